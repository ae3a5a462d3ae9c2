"""A hostile client and a hostile peer: each rule of the two protocols that they can break is broken in turn, over raw sockets.

After each: the daemon is the same process and serves, a bystander's save and load go well (how long they took is printed at the end),
and the refusal is counted under its reason. What is sent is made here from docs/formats.md alone.
"""
import array
import contextlib
import hashlib
import hmac
import os
import socket
import statistics
import struct
import time

import pytest
from blake3 import blake3

import job

KEY = b"the key of the cluster under attack"
LONG = bool(os.environ.get("FOREBAY_LONG"))
LIMIT_S = 30
MIB = 1 << 20
HEAD_BYTES = 64
REPLY, FAILED, MORE = 1, 2, 4
HELLO, PING, PROVE = 1, 2, 3
JOIN, LEAVE, SAVE, FILLED, CANCEL, OPEN, ITEMS, CLOSE, LOAD, RELEASE, LIST = range(16, 27)
FORGO = 41
ARENA, GRANT, META, FETCH, G_JOIN = 48, 49, 64, 65, 66
SESSIONS_MAX, CALLS_MAX, RANKS_MAX, VERSIONS_MAX, PARTS_MAX, STRANGERS_MAX = 896, 256, 256, 1024, 256, 256
CONTROL, BULK = 1, 2

# ---- bytes ----------------------------------------------------------------------------------------------------------------


def _crc_table():
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        yield value


TABLE = list(_crc_table())


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def u8(value):
    return struct.pack("<B", value)


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


def text(words):
    words = words if isinstance(words, bytes) else words.encode()
    return u32(len(words)) + words


def box(*dims):
    return u32(len(dims)) + b"".join(u64(start) for start, _ in dims) + b"".join(u64(count) for _, count in dims)


def listed(*elements):
    body = b"".join(u32(len(element)) + element for element in elements)
    return u32(len(elements)) + u32(len(body)) + body


def head(kind, body=b"", flags=0, request=1, *, magic=b"FBYF", major=1, body_bytes=None, payload=0, group=0, epoch=0,
         generation=0, deadline_ms=20000, body_crc=None, flip=0):  # fmt: skip
    crc = crc32c(body) if body_crc is None else body_crc
    raw = magic + struct.pack("<BBHIIQQQIIIII", major, 0, kind, flags, len(body) if body_bytes is None else body_bytes, request,
                              group, epoch, deadline_ms, payload, generation, crc, 0)  # fmt: skip
    return raw + u32(crc32c(raw) ^ flip)


def frame(kind, body=b"", flags=0, request=1, **more):
    return head(kind, body, flags, request, **more) + body


def client_hello(kind=0, least=1, most=1):
    return u8(kind) + u32(least) + u32(most)


def peer_hello(kind=CONTROL, cluster="", node="ghost", incarnation=0, nonce=b"\7" * 32, least=1, most=1):
    return u8(kind) + u32(least) + u32(most) + text(cluster) + u32(0) + text(node) + u64(incarnation) + nonce


def proof(role, hello, reply, key=KEY):
    words = b"forebay peer 1".ljust(16, b"\0") + u64(role) + blake3(hello).digest() + blake3(reply).digest()
    return hmac.new(key, words, hashlib.sha256).digest()


class Raw:
    """A socket without manners."""

    def __init__(self, address):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(address)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.socket.close()

    def send(self, *parts):
        self.socket.sendall(b"".join(parts))

    def _read(self, size):
        data = b""
        while len(data) < size:
            got = self.socket.recv(size - len(data))
            if not got:
                raise ConnectionResetError("it ended")
            data += got
        return data

    def hear(self):
        """The next frame: its type, flags, request and body."""
        raw = self._read(HEAD_BYTES)
        kind, flags, size, request = struct.unpack_from("<HIIQ", raw, 6)
        return kind, flags, request, self._read(size)

    def answer(self, kind, request=1):
        """The answer to that request, whatever comes before it: (failed, body)."""
        while True:
            heard, flags, number, body = self.hear()
            if (heard, number) == (kind, request) and flags & REPLY:
                return bool(flags & FAILED), body

    def ask(self, kind, body=b"", request=1, **more):
        self.send(frame(kind, body, 0, request, **more))
        return self.answer(kind, request)

    def hello(self):
        failed, _ = self.ask(HELLO, client_hello())
        assert not failed
        return self

    def descriptors(self):
        """Says HELLO, and takes the descriptors that come with the arenas."""
        self.send(frame(HELLO, client_hello()))
        fds, data = [], b""
        while len(fds) < 2:
            more, passed, _, _ = socket.recv_fds(self.socket, 1 << 16, 8)
            fds, data = fds + passed, data + more
            assert more, "it ended"
        return fds

    def greet(self, hello, key=KEY):
        """As a peer. The body of the reply to its proof; ConnectionError or a failure otherwise."""
        failed, reply = self.ask(HELLO, hello, request=7)
        assert not failed, reply
        return self.ask(PROVE, proof(1, hello, reply, key), request=7)

    def ended(self):
        """Whether the other side ends the connection, as it should, in time."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except (ConnectionResetError, BrokenPipeError):
            pass
        return True


# ---- the scene ------------------------------------------------------------------------------------------------------------


class Scene:
    """A cluster under attack, and a bystander on it who saves and loads all the while."""

    def __init__(self, cluster):
        self.cluster, self.pids = cluster, [daemon.pid for daemon in cluster.daemons]
        self.fb = cluster.connect()
        self.group = self.fb.join(job.unique(), run="0", rank=0, size=1)
        self.name, self.step = job.unique(), 0
        self.took_ms = {}
        nodes = {node["name"]: node for node in self.fb.status()["nodes"]}
        host, _, port = nodes["node-0"]["address"].removeprefix("tcp:").rpartition(":")
        self.client, self.peer = cluster.socket(0), (host, int(port))
        self.check("undisturbed")

    def counter(self, name):
        return self.fb.status()["counters"].get(name, 0)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pids[0]}/fd"))

    def memory(self):
        """The daemon's own, without the pool."""
        with open(f"/proc/{self.pids[0]}/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))

    def check(self, what):
        """Everybody else goes on as if nothing had happened."""
        self.step += 1
        data = os.urandom(100_000)
        begin = time.monotonic()
        job.save(self.group, self.name, self.step, [("x", data, {})])
        assert self.fb.open(self.name, "latest").read("x") == data
        self.took_ms[what] = (time.monotonic() - begin) * 1000
        assert [daemon.pid for daemon in self.cluster.daemons if daemon.poll() is None] == self.pids

    def expect(self, what, counter, before, least=1):
        if counter:
            job.until(lambda: self.counter(counter) >= before + least, f"{what}: {counter} counts it")
        self.check(what)


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    with job.Cluster(tmp_path_factory.mktemp("hostile"), 2, key=KEY) as cluster:
        scene = Scene(cluster)
        yield scene
        took = sorted((ms, what) for what, ms in scene.took_ms.items())
        print(f"\na bystander's save and load, ms: {scene.took_ms['undisturbed']:.1f} before all; after each of {len(took) - 1} "
              f"attacks: median {statistics.median(scene.took_ms.values()):.1f}, worst {took[-1][0]:.1f} ({took[-1][1]})")  # fmt: skip


# ---- clients --------------------------------------------------------------------------------------------------------------

ENDS, FAILS, GOES_ON = "the connection ends", "the request fails", "nothing happens"
SAVE_BODY = u64(1) + u64(1) + text("b") + u64(1) + u32(1) + u32(0) + u32(0) + u64(0) + listed() + u64(0) + u32(0) + listed()

# What is sent before HELLO, the counter, and what happens.
BEFORE_HELLO = {
    "bad magic": (frame(HELLO, client_hello(), magic=b"GET "), "garbage", ENDS),
    "damaged head": (frame(HELLO, client_hello(), flip=1), "garbage", ENDS),
    "damaged body": (frame(HELLO, client_hello(), body_crc=7), "garbage", ENDS),
    "foreign major": (frame(HELLO, client_hello(), major=9), "version", ENDS),
    "major zero": (frame(HELLO, client_hello(), major=0), "version", ENDS),
    "foreign majors in HELLO": (frame(HELLO, client_hello(least=8, most=9)), "version", ENDS),
    "a peer's HELLO": (frame(HELLO, client_hello(kind=1)), "hello", ENDS),
    "a HELLO cut short": (frame(HELLO, client_hello()[:-1]), "hello", ENDS),
    "a HELLO in parts": (frame(HELLO, client_hello(), MORE), "hello", ENDS),
    "a HELLO of 1025 bytes": (frame(HELLO, client_hello().ljust(1025, b"\0")), "garbage", ENDS),
    "a call before HELLO": (frame(JOIN, text("g") + text("r") + u32(0) + u32(1)), "hello", ENDS),
    "a ping before HELLO": (frame(PING), "hello", ENDS),
    "an answer before HELLO": (frame(HELLO, client_hello(), REPLY), "order", ENDS),
    "a chunk before HELLO": (head(0, payload=8) + b"8 bytes." + u32(0), "garbage", ENDS),
}

AFTER_HELLO = {
    "a body of 1 MiB and a byte": (head(PING, body_bytes=MIB + 1), "garbage", ENDS),
    "a body of 4 GiB": (head(PING, body_bytes=2**32 - 1), "garbage", ENDS),
    "body and chunk in one": (head(PING, b"x", payload=8), "garbage", ENDS),
    "a bulk chunk": (head(0, payload=8) + b"8 bytes." + u32(0), "garbage", ENDS),
    "a chunk of 4 GiB": (head(0, payload=2**32 - 1), "garbage", ENDS),
    "an answer that nobody asked for": (frame(PING, flags=REPLY), "order", ENDS),
    "a second HELLO": (frame(HELLO, client_hello()), "type", FAILS),
    "an unknown type": (frame(999), "type", FAILS),
    "a push of the daemon": (frame(GRANT), "type", FAILS),
    "a peer's call": (frame(META, u8(1)), "type", FAILS),
    "a peer's fetch": (frame(FETCH, b"\1" * 32 + u32(8) + u64(1) + u32(0)), "type", FAILS),
    "a coordinator's call": (frame(G_JOIN), "type", FAILS),
    "a proof": (frame(PROVE, b"\0" * 32), "type", FAILS),
    "a JOIN cut short": (frame(JOIN, text("g")[:-1]), "body", FAILS),
    "a string longer than its body": (frame(JOIN, u32(2**32 - 1) + b"g"), "body", FAILS),
    "a list longer than its body": (frame(LOAD, u64(1) + u64(0) + u64(1) + u32(2**32 - 1) + u32(4)), "body", FAILS),
    "a JOIN of no ranks": (frame(JOIN, text("g") + text("r") + u32(0) + u32(0)), None, FAILS),
    "a rank beyond its group": (frame(JOIN, text("g") + text("r") + u32(9) + u32(2)), None, FAILS),
    "LEAVE of a group never joined": (frame(LEAVE, u64(99)), "strange", FAILS),
    "a save in another's group": (frame(SAVE, SAVE_BODY), "strange", FAILS),
    "spans filled of another's save": (frame(FILLED, u64(1) + u64(1) + listed()), "strange", FAILS),
    "CANCEL of another's save": (frame(CANCEL, u64(1) + u64(1)), "strange", FAILS),
    "FORGO in another's group": (frame(FORGO, u64(1) + u64(1) + text("b") + text("1")), "strange", FAILS),
    "items of another's version": (frame(ITEMS, u64(1)), "strange", FAILS),
    "a load of another's version": (frame(LOAD, u64(1) + u64(0) + u64(1) + listed()), "strange", FAILS),
    "a load in another's group": (frame(OPEN, text("b") + text("1") + u64(5)), "strange", FAILS),
    "CLOSE of what is not open": (frame(CLOSE, u64(5)), None, GOES_ON),
    "RELEASE of another's spans": (frame(RELEASE, u64(1) + listed(u64(1), u64(2**64 - 1))), None, GOES_ON),
    "a bundle's name that leads out": (frame(OPEN, text("../../b") + text("1")), None, FAILS),
    "a name with a zero in it": (frame(OPEN, text(b"a\0b") + text("1")), None, FAILS),
    "a name of a mebibyte": (frame(OPEN, text(b"a" * (MIB - 100)) + text("1")), None, FAILS),
}  # fmt: skip


def break_rule(scene, raw, what, sent, counter, outcome, prefix):
    counter = counter and f"{prefix}_refused_{counter}"
    before = scene.counter(counter) if counter else 0
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        raw.send(sent)
    if outcome == ENDS:
        assert raw.ended()
    elif outcome == FAILS:
        kind, flags, _, body = raw.hear()
        while kind == ARENA:
            kind, flags, _, body = raw.hear()
        assert flags & FAILED, (what, kind, flags, body)
    if outcome != ENDS:
        assert raw.ask(PING, request=77) == (False, b"")
    scene.expect(what, counter, before)


@pytest.mark.parametrize("what", BEFORE_HELLO)
def test_a_client_that_breaks_a_rule_before_hello(scene, what):
    with Raw(scene.client) as raw:
        break_rule(scene, raw, what, *BEFORE_HELLO[what], "clients")


@pytest.mark.parametrize("what", AFTER_HELLO)
def test_a_client_that_breaks_a_rule(scene, what):
    with Raw(scene.client) as raw:
        break_rule(scene, raw.hello(), what, *AFTER_HELLO[what], "clients")


def join(raw, request=1):
    failed, body = raw.ask(JOIN, text(job.unique()) + text("0") + u32(0) + u32(1), request)
    assert not failed, body
    return struct.unpack_from("<Q", body)[0]


def offer(group, bundle, size):
    item = text("x") + text("uint8") + u32(8) + u32(0) + box((0, size)) + box((0, size))
    body = u64(group) + u64(1) + text(bundle) + u64(1) + u32(1) + u32(0) + u32(0) + u64(0) + listed() + u64(0) + u32(1)
    return frame(SAVE, body + listed(item), 0, 2)


def offered(raw, bundle, size):
    """Joins, offers one item, and takes the grants for it: the group and the granted (block, offset, bytes, arena, at)."""
    group = join(raw)
    raw.send(offer(group, bundle, size))
    failed, body = raw.answer(SAVE, 2)
    assert not failed, body
    kind, _, _, body = raw.hear()
    while kind != GRANT:
        kind, _, _, body = raw.hear()
    count = struct.unpack_from("<I", body, 8)[0]
    at, grants = 16, []
    for _ in range(count):
        length = struct.unpack_from("<I", body, at)[0]
        grants.append(struct.unpack_from("<IIQIQQ", body, at + 4))
        at += 4 + length
    return group, grants


def filled(group, block, flags=0, digest=b"\1" * 32, crc=1):
    return u64(group) + u64(1) + listed(u32(block) + u32(crc) + u32(flags) + u64(0) + digest)


@pytest.mark.parametrize("what", ["a block never granted", "a block twice", "a digest that is not the bytes'", "after LEAVE"])
def test_a_client_that_says_what_is_not_so_of_its_spans(scene, what):
    """Its own save fails; no version comes of it."""
    bundle = job.unique()
    with Raw(scene.client) as raw:
        group, grants = offered(raw.hello(), bundle, 4096)
        block, strange = grants[0][1], scene.counter("clients_refused_strange")
        if what == "after LEAVE":
            raw.ask(LEAVE, u64(group), 3)
            assert raw.ask(FILLED, filled(group, block), 4)[0]
            assert scene.counter("clients_refused_strange") > strange
        elif what == "a block twice":
            zeros = blake3(bytes(4096)).digest()
            element = u32(block) + u32(crc32c(bytes(4096))) + u32(1) + u64(0) + zeros
            raw.send(frame(FILLED, u64(group) + u64(1) + listed(element, element), 0, 3))
            raw.answer(FILLED, 3)
        else:
            assert raw.ask(FILLED, filled(group, block + (1000 if "never" in what else 0)), 3)[0]
        scene.check(what)
    if what != "a block twice":  # which is at worst the same word again
        with scene.cluster.connect() as fb, pytest.raises(job.forebay.Error):
            fb.open(bundle, "latest")
    scene.check(f"{what}, its end")


def test_a_client_that_asks_for_too_much_at_once(scene):
    before = scene.counter("clients_refused_limit")
    with Raw(scene.client) as raw:
        raw.hello()
        calls = CALLS_MAX + 50  # each waits for a second rank that never comes
        raw.send(*(frame(JOIN, text(f"{job.unique()}") + text("0") + u32(0) + u32(2), 0, n) for n in range(2, 2 + calls)))
        scene.check("too many requests, meanwhile")
        for _ in range(50):
            while not raw.hear()[1] & FAILED:
                pass
    scene.expect("too many requests", "clients_refused_limit", before, 50)


def test_a_client_that_joins_thousands_of_groups(scene):
    before = scene.counter("clients_refused_limit")
    with Raw(scene.client) as raw:
        raw.hello()
        for n in range(RANKS_MAX):
            join(raw, n + 2)
        assert raw.ask(JOIN, text("g") + text("0") + u32(0) + u32(1), 9999)[0]
        scene.expect("256 groups joined, meanwhile", "clients_refused_limit", before)
    scene.check("256 groups joined")


def test_a_client_that_opens_thousands_of_versions(scene):
    before = scene.counter("clients_refused_limit")
    with Raw(scene.client) as raw:
        raw.hello()
        for n in range(VERSIONS_MAX):
            failed, body = raw.ask(OPEN, text(scene.name) + text("latest"), n + 2)
            assert not failed, body
        assert raw.ask(OPEN, text(scene.name) + text("latest"), 9999)[0]
        scene.expect("1024 versions open, meanwhile", "clients_refused_limit", before)
    scene.check("1024 versions open")


def test_a_client_with_too_many_messages_in_parts(scene):
    before = scene.counter("clients_refused_order")
    with Raw(scene.client) as raw:
        raw.hello()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            raw.send(*(frame(JOIN, b"x", MORE, n + 2) for n in range(PARTS_MAX + 1)))
        assert raw.ended()
    scene.expect("messages in parts", "clients_refused_order", before)


def test_clients_whose_messages_in_parts_never_end(scene):
    """The full form goes over the bound of all sessions together: whoever holds the most gives way."""
    clients, size = (3, 1000) if LONG else (2, 50)
    before, piece = scene.counter("clients_refused_limit"), bytes(MIB)
    part, memory = head(JOIN, piece, MORE, body_crc=crc32c(piece)) + piece, scene.memory()
    with contextlib.ExitStack() as stack:
        raws = [stack.enter_context(Raw(scene.client)).hello() for _ in range(clients)]
        for raw in raws:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for _ in range(size):
                    raw.send(part)
        scene.check("parts without an end, meanwhile")
        if LONG:
            job.until(lambda: scene.counter("clients_refused_limit") > before, "one gives way")
    job.until(lambda: scene.memory() < memory + 16 * MIB, "the memory is given back")
    scene.check("parts without an end")


def test_clients_that_take_every_place(scene):
    before, crowd = scene.counter("clients_refused_limit"), []
    try:
        for _ in range(SESSIONS_MAX + 50):
            raw = Raw(scene.client)
            crowd.append(raw)
            with contextlib.suppress(OSError):
                raw.send(frame(HELLO, client_hello()))
        job.until(lambda: scene.counter("clients_refused_limit") >= before + 50, "those beyond the limit are refused")
        scene.check("896 sessions, meanwhile")
    finally:
        for raw in crowd:
            raw.socket.close()
    job.until(lambda: scene.counter("sessions") < 10, "their sessions are over")
    scene.check("896 sessions")


def test_clients_that_stop_within_a_word(scene):
    """Before HELLO; the word's bytes do not matter. Whoever has said HELLO may pause: a job may be stopped."""
    before, hello = scene.counter("clients_refused_silent"), frame(HELLO, client_hello())
    silent = [b"", hello[:1], hello[: HEAD_BYTES - 1], hello[:HEAD_BYTES], hello[:-1]]
    with contextlib.ExitStack() as stack:
        raws = [stack.enter_context(Raw(scene.client)) for _ in silent]
        for raw, sent in zip(raws, silent):
            raw.send(sent)
        assert all(raw.ended() for raw in raws)
    scene.expect("silence before HELLO", "clients_refused_silent", before, len(silent))
    with Raw(scene.client) as raw:
        raw.hello().send(frame(LIST, bytes(100))[:HEAD_BYTES + 10])
        scene.check("silence within a frame")


def test_descriptors_that_nobody_asked_for_are_not_kept(scene):
    with Raw(scene.client) as raw, open(os.devnull) as file:
        fds = array.array("i", [file.fileno()] * 50)
        raw.hello()
        before = scene.descriptors()
        for n in range(100):
            raw.socket.sendmsg([frame(PING, request=n)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            assert raw.answer(PING, n) == (False, b"")
        job.until(lambda: scene.descriptors() <= before + 2, lambda: f"{scene.descriptors()} descriptors, and {before} before")
    scene.check("5000 descriptors")


def test_a_client_that_never_reads(scene):
    before = scene.counter("clients_refused_deaf")
    with Raw(scene.client) as raw:
        raw.hello()
        pings = frame(PING) * 4096
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(1000):
                raw.send(pings)
            pytest.fail("64 MiB of answers were queued, and more")
    scene.expect("a client that never reads", "clients_refused_deaf", before)


def test_a_client_that_wants_many_boxes_of_many_pieces(scene):
    """35,000 boxes of an item with 20,000 pieces: each compared with each held the daemon up for 14 s."""
    pieces, boxes, width, name = 20_000, 35_000, 8, job.unique()
    data = os.urandom(width)
    parts = [("x", data, {"shape": (width * pieces,), "start": (width * n,)}) for n in range(pieces)]
    job.save(scene.group, name, 1, parts)
    with Raw(scene.client) as raw:
        failed, opened = raw.hello().ask(OPEN, text(name) + text("latest"), 2)
        assert not failed, opened
        want = text("x") + box((width * pieces - 1, 1))
        wants = u32(boxes) + u32(boxes * (4 + len(want))) + (u32(len(want)) + want) * boxes

        def load(number, request):
            body = u64(number) + u64(0) + opened[:8] + wants
            cut = [body[at : at + MIB] for at in range(0, len(body), MIB)]
            return b"".join(frame(LOAD, part, MORE if part is not cut[-1] else 0, request) for part in cut)

        raw.send(load(1, 3))
        scene.check("35,000 boxes wanted of 20,000 pieces, meanwhile")
        assert raw.answer(LOAD, 3) == (False, b"")
        scene.check("35,000 boxes wanted of 20,000 pieces, looked at")
        meanwhile, behind = (scene.took_ms[f"35,000 boxes wanted of 20,000 pieces, {when}"] for when in ("meanwhile", "looked at"))
        assert meanwhile < 5000 + 10 * behind  # as slow as the machine is at this moment
        raw.send(load(2, 4), frame(CANCEL, u64(0) + u64(2), 0, 5), load(2, 6), load(3, 7))
        assert raw.answer(CANCEL, 5) == (False, b"")  # of a load that a worker still looks at
        assert raw.answer(LOAD, 7) == (False, b"")
        raw.send(load(4, 8))
    scene.check("35,000 boxes wanted of 20,000 pieces")


# ---- peers ----------------------------------------------------------------------------------------------------------------


def peer(scene, **more):
    return peer_hello(**{"cluster": scene.cluster.folder.name, **more})


STRANGER = {
    "bad magic": (lambda s: frame(HELLO, peer(s), magic=b"GET "), "garbage"),
    "damaged head": (lambda s: frame(HELLO, peer(s), flip=1), "garbage"),
    "damaged body": (lambda s: frame(HELLO, peer(s), body_crc=7), "garbage"),
    "a body of 1 MiB": (lambda s: head(HELLO, body_bytes=MIB), "garbage"),
    "a chunk": (lambda s: head(0, payload=8) + b"8 bytes." + u32(0), "garbage"),
    "foreign major": (lambda s: frame(HELLO, peer(s), major=9), "version"),
    "an old major in HELLO": (lambda s: frame(HELLO, peer(s, least=0, most=0)), "version"),
    "a call before HELLO": (lambda s: frame(META, u8(1)), "hello"),
    "a ping before HELLO": (lambda s: frame(PING), "hello"),
    "a proof before HELLO": (lambda s: frame(PROVE, bytes(32)), "hello"),
    "a client's HELLO": (lambda s: frame(HELLO, peer(s, kind=0)), "hello"),
    "a HELLO cut short": (lambda s: frame(HELLO, peer(s)[:-1]), "hello"),
    "an answer": (lambda s: frame(HELLO, peer(s), REPLY), "hello"),
    "another cluster": (lambda s: frame(HELLO, peer(s, cluster="other")), "cluster"),
    "no name": (lambda s: frame(HELLO, peer(s, node="")), "name"),
    "a long name": (lambda s: frame(HELLO, peer(s, node="n" * 64)), "name"),
    "no challenge": (lambda s: frame(HELLO, peer(s, nonce=bytes(32))), "unproven"),
    "an older release": (lambda s: frame(HELLO, peer(s)[:-32]), "unproven"),
}  # fmt: skip


@pytest.mark.parametrize("kind", [CONTROL, BULK])
@pytest.mark.parametrize("what", STRANGER)
def test_a_stranger_that_breaks_a_rule(scene, what, kind):
    sent, counter = STRANGER[what]
    sent = sent(scene)
    if kind == BULK and sent[HEAD_BYTES : HEAD_BYTES + 1] == u8(CONTROL):
        body = u8(BULK) + sent[HEAD_BYTES + 1 :]
        sent = sent[:52] + (u32(crc32c(body)) if what != "damaged body" else u32(7)) + u32(0)
        sent += u32(crc32c(sent) ^ (what == "damaged head")) + body
    with Raw(scene.peer) as raw:
        break_rule(scene, raw, f"{what} ({kind})", sent, counter, ENDS, "peers")


@pytest.mark.parametrize("kind", [CONTROL, BULK])
@pytest.mark.parametrize("what", ["another key", "a replay", "the other role", "another call than the proof", "this node's own name"])
def test_a_stranger_that_proves_nothing(scene, what, kind):
    name = "name" if "name" in what else "hello" if "call" in what else "proof"
    before, hello = scene.counter(f"peers_refused_{name}"), peer(scene, kind=kind)
    if what == "a replay":
        with Raw(scene.peer) as raw:  # a peer with the key, and all that it says
            _, reply = raw.ask(HELLO, hello)
            said = proof(1, hello, reply)
            assert not raw.ask(PROVE, said)[0]
    if "name" in what:
        hello = peer(scene, kind=kind, node="node-0")
    with Raw(scene.peer) as raw:
        _, reply = raw.ask(HELLO, hello)
        if what != "a replay":
            said = proof(2 if "role" in what else 1, hello, reply, b"x" * 40 if what == "another key" else KEY)
        failed, words = raw.ask(META if "call" in what else PROVE, said)
        assert failed, words
        assert raw.ended()
    scene.expect(f"{what} ({kind})", f"peers_refused_{name}", before)


def test_strangers_that_stop_within_a_word(scene):
    hello = frame(HELLO, peer(scene))
    silent, before = [b"", hello[:1], hello[:HEAD_BYTES], hello[:-1], hello], scene.counter("peers_refused_silent")
    with contextlib.ExitStack() as stack:
        raws = [stack.enter_context(Raw(scene.peer)) for _ in silent]
        for raw, sent in zip(raws, silent):
            raw.send(sent)
        assert all(raw.ended() for raw in raws)
    scene.expect("strangers' silence", "peers_refused_silent", before, len(silent))


def test_strangers_that_take_every_place(scene):
    before, crowd = scene.counter("peers_refused_limit"), []
    try:
        for _ in range(STRANGERS_MAX + 100):
            crowd.append(Raw(scene.peer))
        job.until(lambda: scene.counter("peers_refused_limit") >= before + 100, "the oldest give way")
        with Raw(scene.peer) as raw:  # and one with the key comes in, all the same
            assert not raw.greet(peer(scene))[0]
        scene.check("356 strangers, meanwhile")
    finally:
        for raw in crowd:
            raw.socket.close()
    scene.check("356 strangers")


FETCH_BODY = b"\1" * 32 + u32(8) + u64(1) + u32(0)
# A peer that has the key: gone wrong, or out of date.
INSIDER = {
    "an answer": (frame(PING, flags=REPLY), "order", ENDS),
    "a chunk on a control connection": (head(0, payload=8) + b"8 bytes." + u32(0), "garbage", ENDS),
    "a body of 1 MiB and a byte": (head(META, body_bytes=MIB + 1), "garbage", ENDS),
    "a generation that is over": (frame(FETCH, FETCH_BODY), "stale", FAILS),
    "a stale coordinator": (frame(G_JOIN, b""), "stale", FAILS),
    "an unknown type": (frame(99, generation=1), "type", FAILS),
    "a type beyond all": (frame(9999, generation=1), "type", FAILS),
    "a client's call": (frame(JOIN, generation=1), "type", FAILS),
    "a second HELLO": (frame(HELLO, generation=1), "type", FAILS),
    "a FETCH cut short": (frame(FETCH, FETCH_BODY[:10], generation=1), "body", FAILS),
    "a META that makes no sense": (frame(META, u8(200) + text(b"\xff" * 40), generation=1), None, FAILS),
    "a fetch of what is not here": (frame(FETCH, FETCH_BODY, generation=1), None, FAILS),
    "too many messages in parts": (b"".join(frame(META, b"x", MORE, n, generation=1) for n in range(257)), "order", ENDS),
}  # fmt: skip


@pytest.mark.parametrize("what", INSIDER)
def test_a_peer_that_breaks_a_rule(scene, what):
    with Raw(scene.peer) as raw:
        assert not raw.greet(peer(scene))[0]
        break_rule(scene, raw, f"peer: {what}", *INSIDER[what], "peers")


BULK_RULES = {
    "a span never granted": (head(0, request=5, payload=8, epoch=8) + b"8 bytes." + u32(crc32c(b"8 bytes.")), None, False),
    "an offset out of range": (head(0, request=5, payload=8, group=2**63, epoch=8) + b"8 bytes." + u32(crc32c(b"8 bytes.")), None, False),
    "a chunk with a wrong sum": (head(0, request=5, payload=8, epoch=8) + b"8 bytes." + u32(1), "garbage", True),
    "a control frame": (frame(PING), "garbage", True),
    "a chunk of nothing": (head(0, request=5), "garbage", True),
}  # fmt: skip


@pytest.mark.parametrize("what", BULK_RULES)
def test_a_peer_that_breaks_a_rule_of_bulk(scene, what):
    sent, counter, ends = BULK_RULES[what]
    before = scene.counter(f"peers_refused_{counter}")
    with Raw(scene.peer) as raw:
        assert not raw.greet(peer(scene, kind=BULK))[0]
        raw.send(sent)
        if ends:
            assert raw.ended()
        else:
            raw.send(sent)  # the stream is still in step
        scene.expect(f"bulk: {what}", counter and f"peers_refused_{counter}", before)


def test_a_peer_of_an_earlier_life(scene):
    before = scene.counter("peers_refused_stale")
    with Raw(scene.peer) as raw:
        assert not raw.greet(peer(scene, node="lazarus", incarnation=5))[0]
    with Raw(scene.peer) as raw:
        failed, words = raw.greet(peer(scene, node="lazarus", incarnation=4))
        assert failed and b"started again" in words
        assert raw.ended()
    scene.expect("an earlier life", "peers_refused_stale", before)
