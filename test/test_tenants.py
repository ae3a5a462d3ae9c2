"""Tenants of one daemon: a socket, a pool and names of their own. One can neither read, nor guess, nor delete, nor measure another's."""
import contextlib
import json
import os
import subprocess

import forebay
import pytest

import job
from test_hostile import FILLED, JOIN, KEY, Raw, blake3, crc32c, filled, frame, join, offer, offered, text, u32

MIB = 1 << 20
NOBODY, STRANGER = 65534, 65532
SUDO = [] if os.geteuid() == 0 else ["sudo", "-n"]
SECRET = os.urandom(300_000)
TENANTS = """
[tenant blue]
socket = {home}/blue
pool = 16M

[tenant closed]
socket = {home}/closed
users = 65534, 65533
pool = 8M
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tenants")
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == os.getuid() and parent != parent.parent:
            parent.chmod(parent.stat().st_mode | 0o011)  # another user's process passes through
    with job.Cluster(folder / "c", 2, key=KEY, more=TENANTS) as cluster:
        yield cluster


def socket_of(cluster, tenant, node=0):
    return cluster.socket(node) if tenant == "default" else str(cluster.folder / f"node-{node}" / tenant)


@pytest.fixture
def red(cluster):
    with forebay.connect(socket_of(cluster, "default")) as fb:
        yield fb


@pytest.fixture
def blue(cluster):
    with forebay.connect(socket_of(cluster, "blue")) as fb:
        yield fb


def publish(fb, bundle, data, step=1, group=None, **more):
    with fb.join(group or job.unique(), run=job.unique(), rank=0, size=1) as group:
        return job.save(group, bundle, step, [("x", data, {})], **more).version


def test_one_neither_reads_nor_names_nor_deletes_what_is_anothers(red, blue):
    bundle = job.unique()
    publish(red, bundle, SECRET)
    red.label(bundle, "prod", 1)
    assert bundle in [entry.name for entry in red.list()]
    assert bundle not in [entry.name for entry in blue.list()]
    for call in (
        lambda: blue.open(bundle, 1), lambda: blue.open(bundle, "prod"), lambda: blue.open(bundle, "latest"),
        lambda: blue.delete(bundle, 1), lambda: blue.label(bundle, "prod", 1), lambda: blue.versions(bundle),
        lambda: blue.open(f"../../../default/b/{bundle}", 1), lambda: blue.open(f"../default/{bundle}", 1),
    ):  # fmt: skip
        with pytest.raises((forebay.Error, OSError, LookupError)):
            call()
    assert red.open(bundle, "prod").read("x") == SECRET


def test_the_same_names_are_two_things(red, blue):
    bundle, group = job.unique(), job.unique()
    assert publish(red, bundle, b"red", group=group) == publish(blue, bundle, b"blue", group=group) == 1
    assert (red.open(bundle, 1).read("x"), blue.open(bundle, 1).read("x")) == (b"red", b"blue")
    red.delete(bundle, 1)
    assert blue.open(bundle, "latest").read("x") == b"blue"


def test_the_same_bytes_are_not_shared(red, blue):
    """What one has in its pool is no hit for another, who could tell that it is there."""
    bundle = job.unique()
    publish(red, bundle, SECRET)
    assert red.open(bundle, 1).read("x") == SECRET
    before = blue.status()["counters"]
    publish(blue, bundle, SECRET)
    stored = blue.status()["counters"]["pool_capture_used_bytes"] + blue.status()["counters"]["pool_capture_clean_bytes"]
    assert stored >= len(SECRET) + before["pool_capture_clean_bytes"]  # its own copy


def test_a_digest_says_nothing_and_gets_nothing(cluster, red):
    """A client claims the digest of another tenant's block for bytes of its own, which it has not got right."""
    bundle = job.unique()
    publish(red, bundle, SECRET[:4096])
    digest, crc = blake3(SECRET[:4096]).digest(), crc32c(SECRET[:4096])
    answers = []
    for claim in (digest, os.urandom(32)):  # one that is there, for another, and one that is nowhere
        with Raw(socket_of(cluster, "blue")) as raw:
            group, grants = offered(raw.hello(), "guess", 4096)
            failed, words = raw.ask(FILLED, filled(group, grants[0][1], 0, claim, crc), 3)
            assert failed
            answers.append(words)
    assert answers[0] == answers[1]


def test_arenas_are_of_one_tenant_each(cluster):
    """The descriptors that each is given are of other files, and mapping one shows nothing of the other."""
    inodes = {}
    for tenant in ("default", "blue"):
        with Raw(socket_of(cluster, tenant)) as raw:
            fds = raw.descriptors()
            inodes[tenant] = {os.fstat(fd).st_ino for fd in fds}
            for fd in fds:
                os.close(fd)
    assert len(inodes["default"]) == len(inodes["blue"]) == 2
    assert not inodes["default"] & inodes["blue"]


def test_a_full_pool_is_its_tenants_own_trouble(cluster, red, blue):
    """A save of blue's that waits for room keeps none of red's waiting, nor does it show there."""
    bundle, used = job.unique(), red.status()["counters"]["pool_capture_used_bytes"]
    with pytest.raises(forebay.Error, match="its pool has 8388608"):
        publish(blue, bundle, os.urandom(9 * MIB))
    with Raw(socket_of(cluster, "blue")) as holder, Raw(socket_of(cluster, "blue")) as waiter:
        offered(holder.hello(), "holds", 6 * MIB)
        waiter.hello().send(offer(join(waiter), "waits", 6 * MIB))
        job.until(lambda: "waits" in [save["bundle"] for save in blue.status()["saves"]], "the second waits")
        assert publish(red, bundle, os.urandom(9 * MIB)) == 1
        assert "waits" in [save["bundle"] for save in blue.status()["saves"]]
    assert red.status()["counters"]["pool_capture_bytes"] == 32 * MIB and blue.status()["counters"]["pool_capture_bytes"] == 8 * MIB
    assert red.status()["counters"]["pool_capture_used_bytes"] <= used + 10 * MIB


def test_saves_under_way_are_seen_by_their_tenant_alone(cluster, red, blue):
    with Raw(socket_of(cluster, "default")) as raw:
        offered(raw.hello(), "in-flight", 4096)
        job.until(lambda: [save["bundle"] for save in red.status()["saves"]] == ["in-flight"], "it is seen, and those before it have ended")
        assert "in-flight" not in [save["bundle"] for save in blue.status()["saves"]]


def test_two_nodes_copy_and_load_for_each_tenant(cluster, red, blue):
    bundle, data = job.unique(), {"default": os.urandom(2 * MIB), "blue": os.urandom(2 * MIB)}
    publish(red, bundle, data["default"], copies=2)
    publish(blue, bundle, data["blue"], copies=2)
    for tenant in data:
        with forebay.connect(socket_of(cluster, tenant, 1)) as fb:
            assert fb.open(bundle, "latest").read("x") == data[tenant]
            counters = fb.status()["counters"]
            assert counters["store_backend_reads"] == 0, counters  # it had the copy


def run_as(uid, *words):
    command = [*SUDO, "setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", job.BUILD / "forebay", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=job.LIMIT_S)


def test_a_user_that_is_not_on_the_list_is_refused_in_words(cluster, red):
    before = red.status()["counters"].get("clients_refused_user", 0)
    with pytest.raises((forebay.Error, OSError), match=rf"user {os.getuid()} is not one of those"):
        forebay.connect(socket_of(cluster, "closed"))
    assert red.status()["counters"]["clients_refused_user"] == before + 1


def test_a_user_on_the_list_comes_in_and_is_no_administrator(cluster):
    path = socket_of(cluster, "closed")
    os.chmod(path, 0o666)
    done = run_as(STRANGER, "status", "--socket", path)
    assert done.returncode and f"user {STRANGER} is not one of those" in done.stderr, done.stderr
    done = run_as(NOBODY, "status", "--json", "--socket", path)
    assert not done.returncode, done.stderr
    status = json.loads(done.stdout)
    assert status["counters"]["pool_capture_bytes"] == 4 * MIB
    assert not [name for name in status["counters"] if "refused" in name]
    assert not [node for node in status["nodes"] if node.get("captured_bytes")]
    done = run_as(NOBODY, "meta", "rebuild", "--socket", path)
    assert done.returncode and "only root and the daemon's own user" in done.stderr, done.stderr


def crowd_of(path, clients, asks):
    """So many connections of this user; each asks for groups whose second rank never comes."""
    crowd = []
    for n in range(clients):
        raw = Raw(path)
        crowd.append(raw)
        with contextlib.suppress(OSError):
            raw.hello().send(*(frame(JOIN, text(f"{n}-{k}") + text("0") + u32(0) + u32(2), 0, k + 2) for k in range(asks)))
    return crowd


@pytest.mark.parametrize("clients,asks", [(1100, 0), (890, 7)])
def test_one_users_crowd_keeps_no_other_user_out(cluster, blue, clients, asks):
    """It takes all connections that it gets, or all fibers."""
    path, bundle = socket_of(cluster, "blue"), job.unique()
    os.chmod(path, 0o666)
    crowd = crowd_of(path, clients, asks)
    try:
        done = run_as(NOBODY, "put", bundle, __file__, "--socket", path)
        assert not done.returncode, done.stderr
        done = run_as(NOBODY, "ls", bundle, "--socket", path)
        assert not done.returncode, done.stderr
    finally:
        for raw in crowd:
            raw.socket.close()

    def gone():
        with contextlib.suppress(forebay.Error):
            return blue.status()["counters"]["sessions"] < 10

    job.until(gone, "the crowd is gone")


def test_the_store_and_the_index_are_read_by_the_daemons_user_alone(cluster, red):
    """Whatever its umask: neither bytes nor names of tenants lie open to whoever may look into their folders."""
    publish(red, job.unique(), SECRET)
    red.label(red.list()[0].name, "prod", 1)
    for folder in (cluster.store, cluster.meta):
        command = [*SUDO, "setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", "find", folder]
        found = subprocess.run(command, capture_output=True, text=True, timeout=job.LIMIT_S).stdout.split()
        seen = [path for path in found if path.startswith(f"{cluster.store}/t/") or path.startswith(f"{cluster.meta}/")]
        assert not seen, seen
