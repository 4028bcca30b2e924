"""Damage at random, the same for the same seed."""

import gzip
import io
import random
import struct
import zipfile
import zlib
from collections.abc import Callable

Damage = Callable[[bytes, random.Random], bytes]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Damage bytes in one of eight ways, now and then in two.

    >>> mutate(b"0123456789", random.Random(1)) == mutate(b"0123456789", random.Random(1))
    True
    """
    for _ in range(rng.choice((1, 1, 2))):
        data = rng.choice(_WAYS)(data, rng)
    return data


def _span(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(start + rng.choice((1, 2, 4, 8, 64, 512)), len(data))


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8) if data else 0):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:start] + rng.randbytes(end - start) + data[end:]


def _extreme(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:start] + rng.choice((b"\0", b"\x7f", b"\xff")) * (end - start) + data[end:]


def _splice(data: bytes, rng: random.Random) -> bytes:
    (start, end), (other, _) = _span(data, rng), _span(data, rng)
    return data[:other] + data[start:end] + data[other + end - start :]


def _delete(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:start] + data[end:]


def _duplicate(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:end] + data[start:]


def _extend(data: bytes, rng: random.Random) -> bytes:
    return data + rng.randbytes(rng.choice((1, 16, 256, 4096)))


_WAYS = (_truncate, _flip, _overwrite, _extreme, _splice, _delete, _duplicate, _extend)


# Damage below a checksum, which would otherwise stop all of it at the door


def in_zip(data: bytes, rng: random.Random) -> bytes:
    """Damage one member of an archive, whose checksum is right all the same."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(buffer, "w") as changed:
        members = archive.infolist()
        chosen = rng.randrange(len(members))
        for i, member in enumerate(members):
            content = archive.read(member)
            name = member.filename
            if i == chosen and rng.random() < 0.1:
                name = rng.choice(("../../x", "/x", "a\\b", "", name * 2)) + name
            changed.writestr(name, mutate(content, rng) if i == chosen else content, member.compress_type)
    return buffer.getvalue()


def in_gzip(data: bytes, rng: random.Random) -> bytes:
    """Damage what was compressed."""
    return gzip.compress(mutate(gzip.decompress(data), rng), mtime=0)


def in_png(data: bytes, rng: random.Random) -> bytes:
    """Damage one chunk of an image, whose checksum is right all the same."""
    chunks, place = [], 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        chunks.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + length]))
        place += length + 12
    chosen = rng.randrange(len(chunks))
    kind, content = chunks[chosen]
    chunks[chosen] = (kind, mutate(content, rng))
    return data[:8] + b"".join(png_chunk(*chunk) for chunk in chunks)


def png_chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
