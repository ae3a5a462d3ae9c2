#!/usr/bin/python3
"""fuzz/corpus.py: makes fuzz/corpus/*/golden-*, from the byte tables of docs/formats.md and from nothing else.

It shares no code with src/wire, so an encoder that agrees with these files agrees with the page. BLAKE3 follows its paper
(https://github.com/BLAKE3-team/BLAKE3-specs), CRC32C is RFC 3720's. Run it after a change of the page; the files are committed.
"""
import struct
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"

# ---- hashes ---------------------------------------------------------------------------------------------------------

MASK = 0xFFFFFFFF
IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
CHUNK_START, CHUNK_END, PARENT, ROOT = 1, 2, 4, 8


def compress(chaining, words, counter, length, flags):
    v = list(chaining) + list(IV[:4]) + [counter & MASK, counter >> 32, length, flags]

    def rotate(x, n):
        return (x >> n | x << 32 - n) & MASK

    def mix(a, b, c, d, x, y):
        v[a] = (v[a] + v[b] + x) & MASK
        v[d] = rotate(v[d] ^ v[a], 16)
        v[c] = (v[c] + v[d]) & MASK
        v[b] = rotate(v[b] ^ v[c], 12)
        v[a] = (v[a] + v[b] + y) & MASK
        v[d] = rotate(v[d] ^ v[a], 8)
        v[c] = (v[c] + v[d]) & MASK
        v[b] = rotate(v[b] ^ v[c], 7)

    m = list(words)
    for _ in range(7):
        for i, (a, b, c, d) in enumerate(((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
                                          (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))):
            mix(a, b, c, d, m[2 * i], m[2 * i + 1])
        m = [m[p] for p in PERMUTATION]
    return [v[i] ^ v[i + 8] for i in range(8)]


def words_of(block):
    return struct.unpack("<16I", block.ljust(64, b"\0"))


def chunk(data, counter, root):
    chaining = IV
    blocks = [data[i:i + 64] for i in range(0, len(data), 64)] or [b""]
    for i, block in enumerate(blocks):
        flags = (CHUNK_START if i == 0 else 0) | (CHUNK_END | (ROOT if root else 0) if i == len(blocks) - 1 else 0)
        chaining = compress(chaining, words_of(block), counter, len(block), flags)
    return chaining


def tree(data, counter, root):
    if len(data) <= 1024:
        return chunk(data, counter, root)
    left = 1024
    while left * 2 < len(data):
        left *= 2
    words = tree(data[:left], counter, False) + tree(data[left:], counter + left // 1024, False)
    return compress(IV, words, 0, 64, PARENT | (ROOT if root else 0))


def blake3(data):
    return struct.pack("<8I", *tree(data, 0, True))


def crc32c(data):
    crc = MASK
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ MASK


# ---- fields (section 1) ---------------------------------------------------------------------------------------------


def u8(v):
    return struct.pack("<B", v)


def u16(v):
    return struct.pack("<H", v)


def u32(v):
    return struct.pack("<I", v)


def u64(v):
    return struct.pack("<Q", v)


def text(v):
    raw = v if isinstance(v, bytes) else v.encode()
    return u32(len(raw)) + raw


def box(start, count):
    return u32(len(start)) + b"".join(map(u64, start)) + b"".join(map(u64, count))


def listed(*elements):
    raw = b"".join(u32(len(e)) + e for e in elements)
    return u32(len(elements)) + u32(len(raw)) + raw


# ---- frames (section 2) ---------------------------------------------------------------------------------------------


def frame(kind, flags, body, request=7, group=0, epoch=0, deadline_ms=5000, payload=0, generation=1):
    head = b"FBYF" + u8(1) + u8(0) + u16(kind) + u32(flags) + u32(len(body)) + u64(request) + u64(group) + u64(epoch)
    head += u32(deadline_ms) + u32(payload) + u32(generation) + u32(crc32c(body)) + u32(0)
    return head + u32(crc32c(head)) + body


# ---- records (section 4) --------------------------------------------------------------------------------------------

SAVE = 0x0123456789ABCDEF
KINDS = {1: b"FBRT", 2: b"FBTS", 3: b"FBSL", 4: b"FBLB", 5: b"FBGN", 6: b"FBIT", 7: b"FBBK", 8: b"FBPK", 9: b"FBRU", 10: b"FBFL"}


def head(kind, body_bytes, number, part=0, save=SAVE, epoch=3, incarnation=2, generation=5):
    raw = KINDS[kind] + u8(1) + u8(0) + u16(kind) + u64(body_bytes) + u64(save) + u64(epoch) + u64(incarnation)
    raw += u64(number) + u32(generation) + u32(part) + u32(0)
    return raw + u32(crc32c(raw))


def record(kind, body, number, part=0):
    raw = head(kind, len(body), number, part) + body
    return raw + blake3(raw)


def entry(data, pack, offset):
    return blake3(data) + u32(pack) + u64(offset) + u32(len(data)) * 2 + u32(crc32c(data)) + bytes(8)


def hole(length):
    return bytes(32) + b"\xff" * 4 + u64(0) + u32(length) + u32(0) + u32(0) + u8(0) + u8(1) + bytes(6)


# The example: two items, three blocks, one of them a hole, in one pack.
BIG = bytes(range(251)) * 262
SMALL = b"forebay"
NODE = "node-0"
PACK_KEY = f"p/{SAVE:016x}-{NODE}-0"


def pack():
    blocks = [(BIG, 4096), (SMALL, 4096 + (len(BIG) + 63) // 64 * 64)]
    index_offset = blocks[1][1] + 64
    index = b"".join(entry(data, 0, offset) for data, offset in blocks)
    total = index_offset + len(index) + 64

    first = (head(8, total - 128, 0) + NODE.encode()).ljust(4092, b"\0")
    raw = first + u32(crc32c(first))
    for data, offset in blocks:
        raw = raw.ljust(offset, b"\0") + data
    raw = raw.ljust(index_offset, b"\0") + index
    trailer = blake3(index) + u64(index_offset) + u64(total) + u32(len(blocks)) + b"FBPT" + u32(0)
    return raw + trailer + u32(crc32c(trailer)), [o for _, o in blocks]


def segments(offsets):
    items = listed(
        text("loader") + text("bytes") + u32(8) + box([0], [7]) + listed(box([0], [7]) + u64(0) + u32(1)),
        text("w.0") + text("float16") + u32(16) + box([0, 0], [2, 32881]) +
        listed(box([0, 0], [1, 32881]) + u64(1) + u32(1), box([1, 0], [1, 32881]) + u64(2) + u32(1)))
    blocks = entry(SMALL, 0, offsets[1]) + entry(BIG, 0, offsets[0]) + hole(len(BIG))
    return record(6, items, 4), record(7, blocks, 4)


def version():
    raw, offsets = pack()
    items, blocks = segments(offsets)
    prefix = f"v/{4:020d}/{SAVE:016x}"
    packs = listed(text(PACK_KEY) + u64(len(raw)) + text(NODE))
    segs = listed(text(prefix + "-items-0") + u32(6) + u64(len(items)) + u64(2) + items[-32:],
                  text(prefix + "-blocks-0") + u32(7) + u64(len(blocks)) + u64(3) + blocks[-32:])
    attributes = listed(text("torch.dcp") + text("1"))
    whole = 7 + 2 * 32881 * 2
    names = text("local") + text("ckpt/llama")
    return {
        "pack": raw,
        "items": items,
        "blocks": blocks,
        "root": record(1, names + u64(1200) + u64(3) + u64(2) + u64(3) + u64(3) + u64(whole) + u64(len(raw)) +
                       attributes + packs + segs, 4),
        "deleted": record(2, names + u32(2) + packs + segs + u32(1), 4),
        "burned": record(2, names + u32(1) + listed() + listed() + u32(0), 4),
        "slot": record(3, names + u64(3) + text(NODE) + text("g/local\0job"), 4),
        "label": record(4, names + text("prod") + u64(4), 9),
        "generation": record(5, text("cluster-1") + text(NODE) + u64(3) + text("00112233445566778899aabbccddeeff"), 5),
        "rule": record(9, names + u64(3) + u64(10), 2),
        "floor": record(10, names, 7),
    }


# ---- the corpora ----------------------------------------------------------------------------------------------------


def write(target, name, raw):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"golden-{name}").write_bytes(raw)


def main():
    assert blake3(b"").hex().startswith("af1349b9f5f9a1a6"), "the paper's test vector"
    assert blake3(bytes(i % 251 for i in range(2049))).hex().startswith("5f4d72f40d7a5f82"), "the paper's test vector"
    assert crc32c(b"123456789") == 0xE3069283

    objects = version()
    for name, raw in objects.items():
        write("pack" if name == "pack" else "record", name, raw)
    root, items = objects["root"][64:-32], objects["items"][64:-32]
    write("version", "version", u32(len(root)) + root + u32(len(items)) + items + objects["blocks"][64:-32])
    # The decoder's number in fuzz/record.c, then a body.
    for number, name in enumerate(("root", "deleted", "slot", "label", "generation", "items")):
        write("record", f"body-{name}", u8(number) + objects[name][64:-32])
    write("record", "entry", u8(17) + objects["blocks"][64:128])
    write("frame", "hello", frame(1, 0, u8(1) + u32(1) + u32(1) + text("c") + u32(1) + text(NODE) + u64(9)))
    write("frame", "failure", frame(24, 1 | 2, u32(4100) + text("damaged"), generation=0, deadline_ms=0))
    write("frame", "chunk", frame(65, 0, b"", request=9, group=1 << 20, epoch=3 << 20, payload=8, deadline_ms=0) + SMALL)
    # Message number in MSG_LIST, then the body.
    write("messages", "failure", u8(0) + u32(4100) + text("damaged"))
    write("messages", "join", u8(3) + text("job-17") + text("run:0") + u32(1) + u32(8))
    item = text("w.0") + text("float16") + u32(16) + u32(0) + box([0, 0], [4, 4]) + box([2, 0], [2, 4])
    write("messages", "save", u8(7) + u64(1) + u64(2) + text("ckpt/llama") + u64(1200) + u32(2) + u32(0) + u32(1) + u64(3) +
          listed(text("k") + text("v")) + u64(0x1122334455667788) + u32(1) + listed(item))
    first = u32(1) + u32(0) + u32(7) + u32(0) + u64(0) + b"\3" * 32
    other = u32(1) + u32(5) + u32(8) + u32(1) + u64(9) + b"\4" * 32
    write("messages", "capture-reply", u8(38) + listed(first, other) + u64(64) + u32(5))
    conversations()


def said(kind, body=b"", flags=0, how=2):
    """A frame of fuzz/stage.h."""
    return struct.pack("<HBBH", kind, flags, how, len(body)) + body


def conversations():
    """For the targets hello, door and peer: what is right, so that they begin inside."""
    hello = u32(1) + u32(1)
    peer = hello + text("c") + u32(1) + text("n1") + u64(1) + b"\1" * 32
    reply = u32(1) + text("c") + u32(1) + text("n1") + u64(1)
    short = lambda kind, flags, body: struct.pack("<BBH", kind, flags, len(body)) + body  # noqa: E731
    write("hello", "accepts", u8(0) + short(1, 0, u8(1) + peer))
    write("hello", "accepts-bulk-proven", u8(1) + short(1, 0, u8(2) + peer) + short(3, 0, b"\0" * 32))
    write("hello", "dials", u8(2) + short(1, 1, reply + b"\0" * 32))
    write("hello", "dials-proven", u8(3) + short(1, 1, reply + b"\2" * 32) + short(3, 1, b"\0" * 32))
    write("hello", "refused", u8(3) + short(1, 3, u32(13) + text("no")))

    item = text("w.0") + text("float16") + u32(16) + u32(0) + box([0, 0], [4, 4]) + box([2, 0], [2, 4])
    save = u64(1) + u64(2) + text("ckpt/llama") + u64(1200) + u32(2) + u32(0) + u32(1) + u64(3) + listed(text("k") + text("v"))
    filled = u32(1) + u32(2) + u32(0) + u64(0) + b"\3" * 32
    door = {
        16: text("job-17") + text("run:0") + u32(0) + u32(1), 17: u64(1), 18: save + u64(5) + u32(1) + listed(item),
        19: u64(1) + u64(2) + listed(filled), 20: u64(1) + u64(2) + text("b") + u64(3), 21: text("b") + text("latest") + u64(0),
        22: u64(1) + text("") + text("a") + u32(9), 23: u64(1), 24: u64(1) + u64(0) + u64(1) + listed(text("w") + box([0], [4])),
        25: u64(1) + listed(u64(1)), 26: text("a") + text("b") + text("c") + u64(0) + u32(7),
        27: text("b") + text("prod") + u64(0) + u64(1), 28: text("b") + u64(1), 29: b"", 30: text("b") + u64(1), 31: b"", 2: b"",
    }  # fmt: skip
    write("door", "hello", u8(0) + said(1, u8(0) + hello, how=0))
    write("door", "all", u8(1) + b"".join(said(kind, body, how=0) for kind, body in door.items()))
    write("door", "parts", u8(1) + said(18, b"x" * 100, 4, 0) + said(18, b"y" * 100, 4, 0) + said(16, b"", 4, 0) + said(16, b"", 0, 0))
    write("door", "wrong-sum", u8(1) + said(2, b"x", 0, 1))
    write("door", "chunk", u8(1) + said(2, b"x", 0, 4))

    key = text("t") + text("g") + u64(1)
    peers = {
        64: u8(1) + text("k"), 65: b"\1" * 32 + u32(8) + u64(1) + u32(0) + text("t"),
        66: text("t") + text("g") + text("r") + u32(0) + u32(1) + text("n1"),
        67: key + text("n1") + text("b") + u64(1) + u32(2) + u32(0) + u32(0) + u64(0) + listed() + listed(u32(0) + u64(1) + u32(1) + listed(item)),
        68: key + u32(0) + text("gone") + text("r"), 69: key + text("b") + u64(1) + u64(1) + u32(1) + listed(u32(0)) + listed(),
        70: key + u64(9) + text("b") + u64(1) + u64(1) + u32(0) + listed() + listed(u32(0) + u32(64)), 71: u64(9) + u32(0), 72: u64(9),
        73: u64(9) + listed(text("n2")) + listed(u32(0) + b"\1" * 32 + u32(64) + u32(1) + u32(0)),
        74: u64(9) + text("t/t/b/b/p/1-n0-0") + listed(b"\1" * 32 + u64(4096) + u32(64) + u32(1)),
        75: key + u64(9) + text("b") + u64(1) + u32(1) + u32(0) + text("") + u64(1) + listed(), 77: u64(9), 29: text("t") + u8(1), 2: b"",
    }  # fmt: skip
    frames = b"".join(said(kind, body) for kind, body in peers.items())
    write("peer", "stranger", u8(0) + said(1, u8(1) + peer, how=0) + said(3, b"\0" * 32, how=0))
    write("peer", "control", u8(1) + frames)
    write("peer", "stale", u8(1) + said(65, peers[65], how=0))
    write("peer", "bulk", u8(2) + said(5, b"8 bytes.", how=4) + said(6, b"8 more", how=4))
    write("peer", "control-frame-on-bulk", u8(2) + said(2))


main()
