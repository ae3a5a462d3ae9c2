"""Input that cannot be: settings, stores, sockets and bytes. A clear error that names the thing, nothing changed, nothing left
behind. What commands are given is in test_cli.py, what ranks say in test_groups.py, what Python is given in python/tests.
"""
import contextlib
import os
import random
import socket
import struct
import subprocess
import threading

import forebay
import pytest

import job

DAEMON = job.BUILD / "forebayd"
LONG = bool(os.environ.get("FOREBAY_LONG"))
NOBODY = 65534
SUDO = [] if os.geteuid() == 0 else ["sudo", "-n"]
HEAD_BYTES = 64
HELLO, REPLY, FAILED = 1, 1, 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with job.Cluster(tmp_path_factory.mktemp("input"), 2) as cluster:
        yield cluster


@pytest.fixture
def fb(cluster):
    with cluster.connect() as fb:
        yield fb


def noise(size, seed=1):
    return random.Random(seed).randbytes(size)


def publish(cluster, bundle, step, data, **more):
    with cluster.connect() as fb, fb.join(job.unique(), run="0", rank=0, size=1) as group:
        return job.save(group, bundle, step, [("x", data, {})], **more).version


def read(cluster, bundle, number="latest", node=0):
    with cluster.connect(node) as fb:
        return fb.open(bundle, number).read("x")


def run_daemon(*words):
    """A daemon that must not come up: its exit status and its words."""
    done = subprocess.run([DAEMON, *map(str, words)], capture_output=True, text=True, timeout=job.LIMIT_S)
    assert done.returncode > 0 and done.stdout == ""
    assert done.stderr.startswith("forebayd: "), done.stderr
    return done.returncode, done.stderr


# ---- settings -------------------------------------------------------------------------------------------------------------

GOOD = ["# a comment", "", "node = n", "store = dir:/nowhere/store", "meta = lmdb:/nowhere/meta"]


@pytest.mark.parametrize(
    "line, words",
    [
        ("colour = red", ['no setting "colour"', "node, domain", "pool"]),
        ("pool = much", ['pool: "much"', "a number of bytes, or one with K, M, G or T"]),
        ("pool = 1X", ['pool: "1X"', "K, M, G or T"]),
        ("pool = -1", ['pool: "-1"']),
        ("pool = 99999999999G", ['pool: "99999999999G"']),
        ("workers = 65", ['workers: "65"', "a number up to 64"]),
        ("log = loud", ['log: "loud"', "error, warn, info or debug"]),
        ("[other]\npool = 1G", ["section [other]", "only [forebayd] and [tenant NAME]"]),
        ("[tenant blue]\ncolour = red", ['a tenant has no setting "colour"', "socket, users, pool"]),
        ("[tenant blue]\nusers = 7, bob", ['users: "7, bob"', "numbers of users"]),
        ("users =", ['users: ""', "1 to 256 numbers of users"]),
        ("[tenant blue]\nusers = ,", ['users: ","', "1 to 256 numbers of users"]),
        ("users = -1", ['users: "-1"', "numbers of users"]),
        ("no equals sign", ['not a line of the form "name = value"']),
        ("store = dir:/" + "x" * 300, ["the line has more than 199 bytes", "flag"]),
    ],
)
def test_a_wrong_line_is_named_with_what_is_allowed(tmp_path, line, words):
    config = tmp_path / "config"
    config.write_text("\n".join([*GOOD, line, ""]))
    status, error = run_daemon("--config", config)
    number = len(GOOD) + line.count("\n") + 1
    assert status == 2 and f"{config}:{number}: " in error, error
    assert all(part in error for part in words), error


@pytest.mark.parametrize(
    "setting, words",
    [
        ("node=a b", 'node: "a b"'), ("node=.n", "node"), ("node=" + "n" * 64, "1 to 63"), ("tenant=a/b", "tenant"),
        ("store=/tmp", "dir:PATH"), ("store=", "dir:PATH"), ("meta=/tmp", "lmdb:PATH"), ("listen=udp:1", "tcp:ADDRESS:PORT"),
        ("socket=", "socket"), ("pool=1M", "at least 4194304"), ("pool=x", 'pool: "x"'),
    ],
)  # fmt: skip
def test_a_wrong_flag_is_named_with_what_is_allowed(setting, words):
    good = ["--node=n", "--store=dir:/nowhere/store", "--meta=lmdb:/nowhere/meta"]
    status, error = run_daemon(*good, f"--{setting}")
    assert status == 2 and words in error and setting.partition("=")[0] in error


@pytest.mark.parametrize(
    "sections, words",
    [
        ("[tenant blue]\npool = 8M", "tenant blue: socket: a path is needed"),
        ("[tenant blue]\nsocket = /b\npool = 1M", "tenant blue: pool: 1048576 bytes are too few"),
        ("[tenant a/b]\nsocket = /b", 'tenant: "a/b"'),
        ("[tenant default]\nsocket = /b", "tenant default: it has the socket /d already"),
        ("[tenant blue]\nsocket = /d", "tenant blue: /d is the socket of tenant default"),
        ("[tenant blue]\nsocket = /b\n[tenant red]\nsocket = /b", "tenant red: /b is the socket of tenant blue"),
    ],
)
def test_tenants_that_cannot_be_are_named(tmp_path, sections, words):
    config = tmp_path / "config"
    config.write_text("\n".join([*GOOD, "socket = /d", sections, ""]))
    status, error = run_daemon("--config", config)
    assert status == 2 and words in error, error


def test_the_longest_line_is_read_and_the_lines_behind_it_are_counted(tmp_path):
    config, start = tmp_path / "config", "store = dir:/"
    config.write_text("\n".join(["node = n", start + "x" * (199 - len(start)), "pool = much", ""]))
    assert f"{config}:3: pool" in run_daemon("--config", config)[1]


@pytest.mark.parametrize("words", [["--fly"], ["--node"], ["what"]])
def test_a_command_line_that_makes_no_sense_exits_as_a_wrong_setting_does(words):
    done = subprocess.run([DAEMON, *words], capture_output=True, text=True, timeout=job.LIMIT_S)
    assert done.returncode == 2 and "--help" in done.stderr


@pytest.mark.parametrize("line", [b"no\x1b[31mde = n", b"node = n\x07\xff\x9b", "node = \u009b31m".encode(), bytes(range(1, 256))])
def test_a_file_that_is_no_configuration_commands_no_terminal(tmp_path, line):
    config = tmp_path / "config"
    config.write_bytes("\n".join(GOOD).encode() + b"\n" + line + b"\n")
    done = subprocess.run([DAEMON, "--config", config], capture_output=True, timeout=job.LIMIT_S)
    assert done.returncode == 2 and done.stderr.startswith(b"forebayd: ")
    text = done.stderr.decode()  # it is UTF-8
    assert text.endswith("\n") and all(c.isprintable() for c in text[:-1]), text


def test_a_configuration_that_is_not_there_is_named(tmp_path):
    assert f"{tmp_path}/none: No such file" in run_daemon("--config", tmp_path / "none")[1]
    assert str(tmp_path) in run_daemon("--config", tmp_path)[1]


# ---- sockets and folders --------------------------------------------------------------------------------------------------


def flags(cluster, **changed):
    """Of a second daemon beside node 0, which shares nothing with it but what is not changed."""
    settings = {
        "node": "second",
        "cluster": cluster.folder.name,
        "socket": cluster.folder / "second-socket",
        "store": f"dir:{cluster.store}",
        "meta": f"lmdb:{cluster.folder / 'second-meta'}",
        "pool": "4M",
        **changed,
    }
    return [f"--{name}={value}" for name, value in settings.items()]


def test_a_second_daemon_at_the_same_place_is_refused_and_the_first_goes_on(cluster, fb):
    publish(cluster, "second", 1, b"1")
    before = sorted(cluster.folder.rglob("*"))
    error = run_daemon(*flags(cluster, socket=cluster.socket(0)))[1]
    assert cluster.socket(0) in error, error
    error = run_daemon(*flags(cluster, meta=f"lmdb:{cluster.meta}"))[1]
    assert str(cluster.meta) in error and str(cluster.daemons[0].pid) in error, error
    address = {node["name"]: node["address"] for node in fb.status()["nodes"]}["node-0"]
    error = run_daemon(*flags(cluster, listen=address))[1]
    assert address in error, error
    assert publish(cluster, "second", 2, b"2") == 2 and read(cluster, "second", "1", node=1) == b"1"
    fb.status()
    left = {path.name for path in set(cluster.folder.rglob("*")) - set(before)} - {"second-meta", "data.mdb", "lock.mdb", "owner.lock"}
    assert "second-socket" not in left


@pytest.mark.parametrize("setting, path", [("store", "dir:{0}/none"), ("store", "dir:{0}/file"), ("meta", "lmdb:{0}/file"),
                                           ("socket", "{0}/none/socket"), ("socket", "{0}/file")])  # fmt: skip
def test_a_place_that_is_missing_or_no_folder_is_named(cluster, tmp_path, setting, path):
    (tmp_path / "file").write_text("mine")
    error = run_daemon(*flags(cluster, **{setting: path.format(tmp_path)}))[1]
    assert path.format(tmp_path).removeprefix("dir:").removeprefix("lmdb:") in error, error
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "mine"


def test_a_long_path_of_a_socket_works(tmp_path):
    deep = tmp_path / ("d" * 40) / ("e" * 10)  # a line of a configuration has an end, too
    with job.Cluster(deep, 2) as cluster:
        assert len(cluster.socket(0)) > 107
        assert publish(cluster, "deep", 1, b"bytes") == 1
        assert read(cluster, "deep", node=1) == b"bytes"
        assert "deep" in cluster.forebay("ls")
        assert cluster.socket(0) in run_daemon(*flags(cluster, socket=cluster.socket(0)))[1]


def test_an_unreadable_file_is_named(make_folder):
    folder = make_folder()
    folder.chmod(0o755)
    with job.Cluster(folder / "cluster", 1) as cluster:
        for path in (folder / "cluster", folder / "cluster" / "node-0"):
            path.chmod(0o755)
        os.chmod(cluster.socket(0), 0o666)
        (folder / "in").mkdir()
        (folder / "in" / "good").write_text("x")
        (folder / "in" / "secret").write_text("x")
        (folder / "in" / "secret").chmod(0)
        env = {**os.environ, "FOREBAY_SOCKET": cluster.socket(0)}
        command, drop = [job.BUILD / "forebay", "put", "b", folder / "in"], {"user": NOBODY} if os.geteuid() == 0 else {}
        put = subprocess.run(command, env=env, capture_output=True, text=True, timeout=job.LIMIT_S, **drop)
        assert put.returncode == 1 and f"{folder}/in/secret: Permission denied" in put.stderr, put.stderr
        with cluster.connect() as fb:
            assert fb.list() == []


# ---- stores ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    """A cluster of two nodes whose store is a file system of its own, of 8 MiB; and a call that mounts it anew."""
    cluster = job.Cluster(tmp_path / "cluster", 2)

    def mount(options):
        subprocess.run([*SUDO, "mount", "-t", "tmpfs", "-o", options, "forebay-test", cluster.store], check=True)

    mount(f"size=8m,uid={os.getuid()}")
    try:
        with cluster:
            yield cluster, lambda options: mount(f"remount,{options}")
            cluster.kill()
            subprocess.run([*SUDO, "umount", cluster.store], check=True)
    finally:
        if os.path.ismount(cluster.store):
            subprocess.run([*SUDO, "umount", "-l", cluster.store], check=True)


def objects(cluster):
    """The files of the store, without what stands for a number that was given up."""
    files = {path for path in cluster.store.rglob("*") if path.is_file()}
    return {path for path in files if path.parent.parent.name != "v" or path.name not in ("slot", "root")}


def save_fails(cluster, step, data, *words):
    with pytest.raises(forebay.Error) as caught:
        publish(cluster, "full", step, data)
    assert all(word in str(caught.value) for word in words), caught.value
    assert all(map(cluster.running, range(2)))
    with cluster.connect() as fb:
        assert [version.step for version in fb.versions("full")] == [1]
    assert read(cluster, "full", node=step % 2) == noise(100_000)


def test_a_store_that_is_full_in_the_middle_of_a_save(small):
    cluster, remount = small
    publish(cluster, "full", 1, noise(100_000))
    before = objects(cluster)
    save_fails(cluster, 2, noise(12 * job.MIB), "No space left on device", str(cluster.store))
    assert objects(cluster) == before
    filler = cluster.store / "filler"
    with pytest.raises(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    save_fails(cluster, 3, b"x", "No space left on device", str(cluster.store))
    filler.unlink()
    assert objects(cluster) == before
    remount("size=64m")
    publish(cluster, "full", 4, noise(12 * job.MIB))
    assert read(cluster, "full", node=1) == noise(12 * job.MIB)
    assert cluster.verify_all()["full"]


def test_a_store_that_has_become_read_only(small):
    cluster, remount = small
    publish(cluster, "full", 1, noise(100_000))
    before = objects(cluster)
    remount("ro")
    save_fails(cluster, 2, noise(100_000, 2), "Read-only file system", str(cluster.store))
    cluster.stop()
    cluster.start()  # from which one can still read
    assert read(cluster, "full", node=1) == noise(100_000)
    save_fails(cluster, 3, noise(100_000, 2), "Read-only file system", str(cluster.store))
    remount("rw")
    assert objects(cluster) == before
    publish(cluster, "full", 4, noise(100_000, 2))
    assert read(cluster, "full", node=1) == noise(100_000, 2)
    cluster.verify_all()


# ---- bytes ----------------------------------------------------------------------------------------------------------------


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def frame(type=HELLO, major=1, flags=0, body=b"", body_bytes=None, payload_bytes=0, crc=None):
    """docs/formats.md, 2."""
    size = len(body) if body_bytes is None else body_bytes
    sums = crc32c(body) if crc is None else crc
    head = b"FBYF" + struct.pack("<BBHIIQQQIIII", major, 0, type, flags, size, 1, 0, 0, 1000, payload_bytes, 0, sums) + bytes(4)
    return head + struct.pack("<I", crc32c(head)) + body


GARBAGE = {
    "noise": noise(4096),
    "zeros": bytes(4096),
    "HTTP": b"GET / HTTP/1.1\r\nHost: forebay\r\n\r\n" * 4,
    "TLS": bytes.fromhex("16030100c8010000c40303") + noise(200),
    "a head cut short": frame()[:40],
    "a head with a flipped bit": frame()[:20] + b"\x01" + frame()[21:],
    "a body that is too long": frame(body_bytes=1 << 31, crc=0),
    "a body with another sum": frame(body=noise(100), crc=1),
    "a body that makes no sense": frame(body=noise(100)),
    "a body that does not come": frame(body_bytes=1000, crc=0),
    "an unknown type": frame(type=60_000),
    "a reply to nothing": frame(flags=REPLY),
    "a payload that nobody asked for": frame(type=77, payload_bytes=1 << 20) + noise(1 << 16),
    "parts without end": frame(flags=4, body=noise(1 << 10)) * 50,
    "nothing at all": b"",
}

PATIENT = "a payload that nobody asked for"  # which is waited with until the time for a HELLO is over


def dial(address):
    if address.startswith("tcp:"):
        host, _, port = address[4:].rpartition(":")
        return socket.create_connection((host, int(port)), timeout=job.LIMIT_S)
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(job.LIMIT_S)
    stream.connect(address)
    return stream


def say(address, data):
    """Sends bytes and the end of them; gives all that is answered until the other side hangs up, too."""
    answer = b""
    with dial(address) as stream:
        with contextlib.suppress(OSError):  # it has hung up already; what it said before is still to be read
            stream.sendall(data)
            stream.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            while piece := stream.recv(1 << 16):
                answer += piece
    return answer


def doors(cluster, fb):
    """The client's socket and the peer's port of node 0."""
    addresses = {node["name"]: node["address"] for node in fb.status()["nodes"]}
    return {"client": cluster.socket(0), "peer": addresses["node-0"]}


@pytest.mark.parametrize("door", ["client", "peer"])
def test_garbage_costs_its_connection_only(cluster, fb, door):
    address, descriptors = doors(cluster, fb)[door], f"/proc/{cluster.daemons[0].pid}/fd"
    with fb.join(job.unique(), run="0", rank=0, size=1) as group:
        job.save(group, f"garbage/{door}", 1, [("x", b"1", {})])
        before = len(os.listdir(descriptors))
        for name, data in GARBAGE.items():
            if name != PATIENT or LONG:
                say(address, data)
            assert cluster.running(0), name
        for seed in range(50):
            say(address, frame()[: seed % HEAD_BYTES] + noise(random.Random(seed).randrange(1, 2000), seed))
        job.until(lambda: len(os.listdir(descriptors)) <= before, "connections are closed")
        job.save(group, f"garbage/{door}", 2, [("x", b"2", {})])  # the session that was there all the time
    assert read(cluster, f"garbage/{door}", node=1) == b"2"
    assert cluster.views(), cluster.words


@pytest.mark.parametrize("door", ["client", "peer"])
def test_another_major_is_refused_in_a_frame_that_shows_ours(cluster, fb, door):
    answer = say(doors(cluster, fb)[door], frame(major=9, body=noise(50)))
    assert answer[:4] == b"FBYF" and answer[8] & (REPLY | FAILED) == REPLY | FAILED, answer
    assert answer[4] == 1, "the major that is spoken here"
    assert answer[16:24] == struct.pack("<Q", 1), "the request's number"


def test_a_daemon_of_another_major_is_refused_naming_both(tmp_path):
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer():
            stream, _ = listener.accept()
            with stream:
                stream.recv(1 << 16)
                stream.sendall(frame(major=9, flags=REPLY))
                stream.recv(1 << 16)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(forebay.Error, match="9.*1|1.*9") as caught:
            forebay.connect(path, timeout=job.LIMIT_S)
        thread.join()
    assert caught.value.name == "FOREBAY_EVERSION"


def test_what_listens_at_the_socket_is_no_daemon(tmp_path):
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer():
            stream, _ = listener.accept()
            with stream:
                stream.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
                stream.recv(1 << 16)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(forebay.Error):
            forebay.connect(path, timeout=job.LIMIT_S)
        thread.join()


# ---- a rank's process -----------------------------------------------------------------------------------------------------

FORKED = """
import os, sys
import forebay
fb = forebay.connect(sys.argv[1])
group = fb.join(sys.argv[2], run="0", rank=0, size=1)
data = bytearray(b"p" * 100_000)
with group.save("forked", step=1) as saving:
    saving.add("x", data)
    child = os.fork()
    if not child:
        codes = []
        for call in (lambda: saving.add("y", b"y"), saving.submit, lambda: saving.captured.wait(5), fb.list, group.leave):
            try:
                call()
                codes.append("none")
            except forebay.Error as error:
                codes.append(error.name)
        os.write(1, (" ".join(codes) + "\\n").encode())
        os._exit(0)
    os.waitpid(child, 0)
saving.durable.wait(20)
print("saved", flush=True)
"""


def test_a_child_of_a_rank_is_told_and_harms_nothing(cluster):
    with job.Rank(FORKED, cluster.socket(0), job.unique()) as rank:
        rank.wait_for("saved")
    codes = rank.lines[0].split()
    assert codes[:4] == ["FOREBAY_EFORKED"] * 4, codes
    assert read(cluster, "forked") == b"p" * 100_000
    with cluster.connect() as fb:
        assert [item.name for item in fb.open("forked").items()] == ["x"]


def test_handles_are_not_used_after_their_end(cluster):
    publish(cluster, "closed", 1, b"1")
    fb = cluster.connect()
    group = fb.join(job.unique(), run="0", rank=0, size=1)
    version = fb.open("closed")
    load = fb.load(version)
    load.cancel()
    version.close()
    with pytest.raises(forebay.Error, match="closed"):
        load.into("x", bytearray(1))
    for call in (version.items, lambda: version.find("x"), lambda: fb.load(version)):
        with pytest.raises(forebay.Error, match="closed"):
            list(call())
    saving = group.save("closed", step=2)
    group.leave()
    with pytest.raises(forebay.Error, match="closed"):
        group.save("closed", step=3)
    with pytest.raises(forebay.Error):
        saving.submit()
        saving.durable.wait(job.LIMIT_S)
    fb.close()
    for call in (fb.list, fb.status, lambda: fb.open("closed"), lambda: fb.join("j", run="0", rank=0, size=1)):
        with pytest.raises(forebay.Error, match="closed"):
            call()
    fb.close()
    with cluster.connect() as fb:
        assert [version.number for version in fb.versions("closed")] == [1]
