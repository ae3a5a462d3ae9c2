"""A second reader of the store, written from docs/formats.md alone: plain Python, no part of Forebay.

    decode.py STORE                              names every object in the directory STORE
    decode.py STORE BUNDLE NUMBER [TENANT]       lists the items of a version, with the first half of their BLAKE3

It believes nothing: every object's head, digest and length, every block's BLAKE3 and CRC32C, every byte that the page calls zero is
checked, and what does not fit raises Damage. Slow (CRC32C in Python) and short, so that it can be read beside the page.
"""
import itertools
import math
import re
import struct
import sys
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

MAX_SIZE = {1: 1 << 20, 2: 1 << 20, 3: 4096, 4: 4096, 5: 4096, 6: 16 << 20, 7: 16 << 20, 8: 2 << 30, 9: 4096, 10: 4096}
MAGIC = {1: b"FBRT", 2: b"FBTS", 3: b"FBSL", 4: b"FBLB", 5: b"FBGN", 6: b"FBIT", 7: b"FBBK", 8: b"FBPK", 9: b"FBRU", 10: b"FBFL"}
ROOT, TOMBSTONE, SLOT, LABEL, GENERATION, ITEMS, BLOCKS, PACK, RULE, FLOOR = MAGIC
HEAD, DIGEST, ENTRY, TRAILER, PACK_HEAD = 64, 32, 64, 64, 4096
HOLE_PACK = 0xFFFFFFFF
BIG, BIG_ALIGN, SMALL_ALIGN = 64 << 10, 4096, 64
BLOCK_MAX, DIMS_MAX = 8 << 20, 8


class Damage(Exception):
    """A byte is not what the page allows."""


def need(condition: object, what: str) -> None:
    if not condition:
        raise Damage(what)


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


# ---- 1. field rules ---------------------------------------------------------------------------------------------------------


class Fields:
    """A body, read field by field. A body that ends at a field's border was written by an older minor: the rest is empty."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, n: int, default: bytes | None = None) -> bytes:
        if default is not None and self.at == len(self.data):
            return default
        need(self.at + n <= len(self.data), "a body ends within a field")
        self.at += n
        return self.data[self.at - n : self.at]

    def u32(self) -> int:
        return struct.unpack("<I", self.take(4, bytes(4)))[0]

    def u64(self) -> int:
        return struct.unpack("<Q", self.take(8, bytes(8)))[0]

    def digest(self) -> bytes:
        return self.take(32, bytes(32))

    def str(self) -> bytes:
        return self.take(self.u32())

    def box(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        n = self.u32()
        need(n <= DIMS_MAX, f"a box of {n} dimensions")
        numbers = struct.unpack(f"<{2 * n}Q", self.take(16 * n))
        return numbers[:n], numbers[n:]

    def list(self) -> list["Fields"]:
        count, size = self.u32(), self.u32()
        whole = Fields(self.take(size))
        found = [Fields(whole.str()) for _ in range(count)]
        need(whole.at == size, "a list has bytes behind its last element")
        return found


# ---- 3. keys ------------------------------------------------------------------------------------------------------------------


def encode(name: str) -> str:
    """A tenant, bundle or label as a part of a key."""
    plain = re.sub(rb"[^A-Za-z0-9._-]", lambda byte: b"%%%02X" % byte[0][0], name.encode()).decode()
    return "%2E" + plain[1:] if plain.startswith(".") else plain


# ---- 4. stored records --------------------------------------------------------------------------------------------------------


class Head(NamedTuple):
    kind: int
    body_bytes: int
    save: int
    epoch: int
    incarnation: int
    number: int
    generation: int
    part: int


def open_head(data: bytes) -> Head:
    need(len(data) >= HEAD, "shorter than a head")
    magic, major, minor, kind, *rest, generation, part, zero, crc = struct.unpack("<4sBBHQQQQQIIII", data[:HEAD])
    need(crc == crc32c(data[:60]), "the head's CRC32C is wrong")
    need(kind in MAGIC and magic == MAGIC[kind], f"kind {kind} with magic {magic!r}")
    need((major, minor) == (1, 0), f"format {major}.{minor}")
    need(zero == 0, "a byte of the head that has to be zero is not")
    need(len(data) <= MAX_SIZE[kind], "larger than its kind may be")
    return Head(kind, *rest, generation, part)


def open_record(data: bytes, kind: int) -> tuple[Head, Fields]:
    head = open_head(data)
    need(head.kind == kind, f"kind {head.kind} instead of {kind}")
    need(len(data) == HEAD + head.body_bytes + DIGEST, "its length is not that of head, body and digest")
    need(blake3(data[:-DIGEST]).digest() == data[-DIGEST:], "its BLAKE3 is wrong")
    return head, Fields(data[HEAD:-DIGEST])


class Block(NamedTuple):
    digest: bytes
    pack: int
    offset: int
    bytes: int
    crc: int
    hole: bool


def open_entry(data: bytes) -> Block:
    digest, pack, offset, logical, stored, crc, codec, flags, key, spare = struct.unpack("<32sIQIIIBBHI", data)
    need(0 < logical <= BLOCK_MAX, f"a block of {logical} bytes")
    need(codec == 0 and key == 0 and flags in (0, 1), "a codec, flag or key that is not known")
    need(spare == 0, "a block entry's spare bytes are not zero")
    if flags:
        need((digest, pack, offset, stored, crc) == (bytes(32), HOLE_PACK, 0, 0, 0), "a hole with a place")
    else:
        need(stored == logical and pack != HOLE_PACK, "stored bytes are not the logical ones")
    return Block(digest, pack, offset, logical, crc, bool(flags))


class Piece(NamedTuple):
    start: tuple[int, ...]
    count: tuple[int, ...]
    first_block: int
    n_blocks: int


class Item(NamedTuple):
    name: str
    dtype: str
    element_bits: int
    shape: tuple[int, ...]
    pieces: list[Piece]


# ---- 5. packs -----------------------------------------------------------------------------------------------------------------


def open_pack(data: bytes, node: bytes) -> list[Block]:
    """Checks every byte of a pack, and returns its index."""
    head = open_head(data)
    need(head.kind == PACK, "it is no pack")  # its number is the slot that it was written under
    need(head.body_bytes == len(data) - HEAD - TRAILER, "its length is not what the head says")
    need(data[64:128] == node.ljust(64, b"\0") and len(node) < 64, "it was written by another node")
    need(not any(data[128:4092]), "a byte of the head that has to be zero is not")
    need(struct.unpack("<I", data[4092:4096])[0] == crc32c(data[:4092]), "the CRC32C of the first 4 KiB is wrong")

    trailer = data[-TRAILER:]
    index_digest, index_at, size, n, magic, zero, crc = struct.unpack("<32sQQI4sII", trailer)
    need(crc == crc32c(trailer[:60]) and magic == b"FBPT" and zero == 0, "the trailer is wrong")
    need(size == len(data) and n <= 1 << 20, "the trailer's sizes are wrong")
    need(index_at % SMALL_ALIGN == 0 and index_at + n * ENTRY + TRAILER == size, "the index is not where it should be")
    index = data[index_at:-TRAILER]
    need(blake3(index).digest() == index_digest, "the index's BLAKE3 is wrong")

    blocks = [open_entry(index[i : i + ENTRY]) for i in range(0, len(index), ENTRY)]
    at = PACK_HEAD
    for block in blocks:
        need(block.pack == 0 and not block.hole, "an entry of the index that cannot be")
        need(block.offset % (BIG_ALIGN if block.bytes >= BIG else SMALL_ALIGN) == 0, "a block is not aligned")
        need(at <= block.offset and block.offset + block.bytes <= index_at, "a block is not behind the one before")
        need(not any(data[at : block.offset]), "a gap is not zero")
        at = block.offset + block.bytes
        check_block(data[block.offset : at], block)
    need(not any(data[at:index_at]), "the gap before the index is not zero")
    return blocks


def check_block(data: bytes, block: Block) -> None:
    need(blake3(data).digest() == block.digest, f"a block's BLAKE3 is wrong, at {block.offset}")
    need(crc32c(data) == block.crc, f"a block's CRC32C is wrong, at {block.offset}")


# ---- a version ----------------------------------------------------------------------------------------------------------------


class Version:
    """A published version, read whole from a directory that is a store."""

    def __init__(self, store: Path, bundle: str, number: int, tenant: str = "default") -> None:
        self.base = Path(store) / "t" / encode(tenant) / "b" / encode(bundle)
        data = (self.base / "v" / f"{number:020}" / "root").read_bytes()
        need(open_head(data).kind != TOMBSTONE, "the version was deleted, or never published")
        self.head, root = open_record(data, ROOT)
        need(self.head.number == number, "a root of another version")
        need((root.str().decode(), root.str().decode()) == (tenant, bundle), "a root of another bundle")
        self.step, self.parent = root.u64(), root.u64()
        self.n_items, self.n_pieces, self.n_blocks, self.bytes, self.stored_bytes = (root.u64() for _ in range(5))
        self.attributes = {e.str().decode(): e.str().decode() for e in root.list()}
        packs = [(e.str().decode(), e.u64(), e.str()) for e in root.list()]
        segments = [(e.str().decode(), e.u32(), e.u64(), e.u64(), e.digest()) for e in root.list()]

        self.packs = [self._pack(*pack) for pack in packs]
        self.items: dict[str, Item] = {}
        self.blocks: list[Block] = []
        for part, segment in enumerate(segments):
            need(part == 0 or segments[part - 1][1] <= segment[1], "segments of blocks stand before those of items")
            self._segment(*segment)
        self._check()

    def _pack(self, key: str, size: int, node: bytes) -> tuple[bytes, list[Block]]:
        need(re.fullmatch(f"p/{self.head.save:016x}-{re.escape(node.decode())}-[0-9]+", key), f"a pack with key {key}")
        data = (self.base / key).read_bytes()
        need(len(data) == size, f"{key} has not the length that the root says")
        head = open_head(data)
        need(head.save == self.head.save and head.part == 0, f"{key} is another pack")
        return data, open_pack(data, node)

    def _segment(self, key: str, kind: int, size: int, count: int, digest: bytes) -> None:
        data = (self.base / key).read_bytes()
        need(kind in (ITEMS, BLOCKS) and len(data) == size and data[-DIGEST:] == digest, f"{key} is not the one that the root names")
        head, body = open_record(data, kind)
        need((head.save, head.number) == (self.head.save, self.head.number), f"{key} belongs to another version")
        if kind == ITEMS:
            found = [self._item(fields) for fields in body.list()]
            self.items.update((item.name, item) for item in found)
            need(len(found) == count, f"{key} has not as many items as the root says")
        else:
            need(len(body.data) == count * ENTRY, f"{key} has not as many blocks as the root says")
            self.blocks += [open_entry(body.data[i : i + ENTRY]) for i in range(0, len(body.data), ENTRY)]

    @staticmethod
    def _item(fields: Fields) -> Item:
        name, dtype, bits, (start, shape) = fields.str(), fields.str(), fields.u32(), fields.box()
        need(not any(start), f"item {name!r} does not begin at 0")
        pieces = [Piece(*piece.box(), piece.u64(), piece.u32()) for piece in fields.list()]
        return Item(name.decode(), dtype.decode(), bits, shape, pieces)

    def _check(self) -> None:
        names = [name.encode() for name in self.items]
        pieces = [(item, piece) for item in self.items.values() for piece in item.pieces]
        need(names == sorted(names) and len(names) == self.n_items, "items are not sorted, or one comes twice")
        need(len(pieces) == self.n_pieces and len(self.blocks) == self.n_blocks, "the root counts otherwise")
        need(sum(len(data) for data, _ in self.packs) == self.stored_bytes, "the root sums the packs otherwise")
        need(sum(size_of(i.shape, i.element_bits) for i in self.items.values()) == self.bytes, "the root sums the items otherwise")
        block = 0
        for item, piece in pieces:
            need(piece.first_block == block, f"a piece of {item.name} does not begin behind the piece before")
            block += piece.n_blocks
            inside = all(a + n <= whole for a, n, whole in zip(piece.start, piece.count, item.shape, strict=True))
            need(inside, f"a piece lies outside of {item.name}")
        need(block == len(self.blocks), "a block belongs to no piece")
        indexed = [{(b.offset, b.bytes, b.digest, b.crc) for b in index} for _, index in self.packs]
        for b in self.blocks:
            need(b.hole or (b.offset, b.bytes, b.digest, b.crc) in indexed[b.pack], "a block that its pack does not have")

    def piece(self, item: Item, piece: Piece) -> bytes:
        """Its bytes: the elements of its box, row-major."""
        parts = []
        for block in self.blocks[piece.first_block : piece.first_block + piece.n_blocks]:
            data = bytes(block.bytes) if block.hole else self.packs[block.pack][0][block.offset : block.offset + block.bytes]
            parts.append(data)
        whole = b"".join(parts)
        need(len(whole) == size_of(piece.count, item.element_bits), f"a piece of {item.name} has not the bytes of its box")
        return whole

    def read(self, name: str) -> bytes:
        """All bytes of an item whose elements fill whole bytes, put together from its pieces."""
        item = self.items[name]
        size, element = size_of(item.shape, item.element_bits), item.element_bits // 8
        out, filled = bytearray(size), 0
        for piece in item.pieces:
            data = self.piece(item, piece)
            filled += len(data)
            if piece.count == item.shape:
                out[:] = data
                continue
            strides = [math.prod(item.shape[d + 1 :]) for d in range(len(item.shape))]
            row = piece.count[-1] * element  # a run of the last dimension is contiguous in both
            rows = itertools.product(*(range(a, a + n) for a, n in zip(piece.start[:-1], piece.count[:-1])))
            for i, index in enumerate(rows if row else ()):
                to = sum(a * b for a, b in zip((*index, piece.start[-1]), strides)) * element
                out[to : to + row] = data[i * row : (i + 1) * row]
        need(filled == size, f"the pieces of {name} do not make a whole")
        return bytes(out)


def size_of(shape: tuple[int, ...], element_bits: int) -> int:
    bits = math.prod(shape) * element_bits
    need(bits % 8 == 0, "elements that do not fill whole bytes")
    return bits // 8


# ---- everything in a store ------------------------------------------------------------------------------------------------------


def decode(name: str) -> str:
    """The name that a part of a key stands for."""
    plain = re.sub(rb"%([0-9A-F]{2})", lambda m: bytes.fromhex(m[1].decode()), name.encode()).decode()
    need(encode(plain) == name, f"{name} is another spelling of {plain}")
    return plain


def survey(store: Path) -> dict[str, str]:
    """What each object of a store is, by key. Every byte of each is checked, but whether packs and segments are those of a root."""
    keys = [str(path.relative_to(store)) for path in sorted(Path(store).rglob("*")) if path.is_file()]
    return {key: describe(key, (Path(store) / key).read_bytes()) for key in keys if not key.startswith(".tmp/")}


def describe(key: str, data: bytes) -> str:
    if match := re.fullmatch(r"g/([1-9][0-9]*)(?:\.([1-9][0-9]*))?", key):
        head, body = open_record(data, GENERATION)
        cluster, node, life, token = body.str().decode(), body.str().decode(), body.u64(), body.str()
        need(head.number == head.generation == int(match[1]) and life == int(match[2] or 0), f"{key} is another generation")
        need(re.fullmatch(rb"[0-9a-f]{32}", token), f"{key} has no token")
        return f"generation {head.number}, life {life} of {cluster} by {node}"
    match = re.fullmatch(r"t/([^/]+)/b/([^/]+)/(v|p|l|r|floor)/(.+)", key)
    need(match, f"{key} is no key of ours")
    tenant, bundle, family, rest = decode(match[1]), decode(match[2]), match[3], match[4]
    if family == "p":
        (node,) = re.fullmatch(r"[0-9a-f]{16}-(.+)-(?:0|[1-9][0-9]*)", rest).groups()
        return f"pack of {len(open_pack(data, node.encode()))} blocks from {node}"
    if family == "l":
        label, move = re.fullmatch(r"([^/]+)/([0-9]{20})", rest).groups()
        head, body = open_record(data, LABEL)
        named = [body.str().decode() for _ in range(3)]
        need((named, head.number) == ([tenant, bundle, decode(label)], int(move)), f"{key} is another move")
        return f"label {decode(label)} to {body.u64()}"
    if family in ("r", "floor"):
        need(re.fullmatch(r"[0-9]{20}", rest), f"{key} is no key of ours")
        head, body = open_record(data, RULE if family == "r" else FLOOR)
        named = [body.str().decode() for _ in range(2)]
        need((named, head.number) == ([tenant, bundle], int(rest)), f"{key} is another's")
        return f"floor {int(rest)}" if family == "floor" else f"rule: the last {body.u64()}, each {body.u64()}th"
    number, last = re.fullmatch(r"([0-9]{20})/([^/]+)", rest).groups()
    if segment := re.fullmatch(r"([0-9a-f]{16})-(items|blocks)-(0|[1-9][0-9]*)", last):
        head, body = open_record(data, ITEMS if segment[2] == "items" else BLOCKS)
        need((head.save, head.part) == (int(segment[1], 16), int(segment[3])), f"{key} is another segment")
        what = segment[2]
    elif last == "slot":
        head, body = open_record(data, SLOT)
        need([body.str().decode(), body.str().decode()] == [tenant, bundle], f"{key} is of another bundle")
        what = f"slot after {body.u64()}, opened by {body.str().decode()}"
    else:
        need(last == "root", f"{key} is no key of ours")
        head, body = open_record(data, open_head(data).kind)
        need([body.str().decode(), body.str().decode()] == [tenant, bundle], f"{key} is of another bundle")
        what = "root" if head.kind == ROOT else ["burned", "deleted"][body.u32() - 1]
        need(head.kind in (ROOT, TOMBSTONE), f"{key} is neither root nor tombstone")
    need(head.number == int(number), f"{key} is of another version")
    return f"{what} of {head.number}"


def main() -> None:
    if len(sys.argv) == 2:
        for key, what in survey(Path(sys.argv[1])).items():
            print(key, what, sep="\t")
        return
    store, bundle, number, *tenant = sys.argv[1:]
    version = Version(Path(store), bundle, int(number), *tenant)
    print(f"{bundle}@{number} step {version.step} {version.attributes or ''}")
    for item in version.items.values():
        print(item.name, item.dtype, list(item.shape), blake3(version.read(item.name)).hexdigest()[:32])


if __name__ == "__main__":
    main()
