"""Sorted entries as content-addressed chunks: the same entries are the same bytes, and so the same id. [pure]

A chunk ends where the hash of a key says so, so that a change moves few of its neighbours' borders. It holds a minimum
before it may end, and ends at the latest when it has grown to a cap.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

ID_SIZE = 20
"""Bytes of an id: a cut SHA-256."""
LEAF_MINIMUM, LEAF_MEAN = 32, 32
"""Entries before a leaf may end, and how many more until it does: about 8 KB of values of 100 B."""
INDEX_MINIMUM, INDEX_MEAN = 2, 128
CAP = 64 * 1024
"""Bytes after which a chunk ends; the entry that reaches it still belongs to it."""

Pair = tuple[bytes, bytes]
"""Key and value; in an index, the last key of a child and its id."""

_HEAD = struct.Struct(">2sBBI")
_MAGIC, _VERSION = b"kc", 1
# Odd, one a level. The checksum alone is not random on numbered keys.
_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of entries: a leaf (level 0), or an index of chunks one level below."""

    level: int
    pairs: tuple[Pair, ...]

    def encode(self) -> bytes:
        """The chunk's bytes: a head, the lengths, keys, values."""
        keys, values = [key for key, _ in self.pairs], [value for _, value in self.pairs]
        count = len(keys)
        return b"".join((
            _HEAD.pack(_MAGIC, _VERSION, self.level, count),
            struct.pack(f">{count}H", *map(len, keys)),
            struct.pack(f">{count}I", *map(len, values)),
            *keys,
            *values,
        ))  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> Chunk:
        """The chunk of these bytes. Raises ValueError."""
        try:
            magic, version, level, count = _HEAD.unpack_from(data)
            if (magic, version) != (_MAGIC, _VERSION):
                raise ValueError("These bytes are no chunk of this version")
            at = _HEAD.size
            key_sizes = struct.unpack_from(f">{count}H", data, at)
            value_sizes = struct.unpack_from(f">{count}I", data, at + 2 * count)
        except struct.error:
            raise ValueError("These bytes are no chunk") from None
        at += 6 * count
        keys, at = _cut(data, at, key_sizes)
        values, at = _cut(data, at, value_sizes)
        if at != len(data):
            raise ValueError("The chunk's lengths do not add up")
        return cls(level, tuple(zip(keys, values, strict=True)))


EMPTY = Chunk(0, ())
"""The tree without entries."""


def object_id(data: bytes) -> bytes:
    """The id of a chunk's bytes, or of a value that is kept apart."""
    return sha256(data).digest()[:ID_SIZE]


class Chunker:
    """Cuts a sorted run of pairs of one level into chunks."""

    def __init__(self, level: int) -> None:
        self.level = level
        leaf = level == 0
        self._minimum, mean = (LEAF_MINIMUM, LEAF_MEAN) if leaf else (INDEX_MINIMUM, INDEX_MEAN)
        self._threshold = (1 << 64) // mean
        self._factor = _FACTORS[level % len(_FACTORS)]
        self._pairs: list[Pair] = []
        self._size = 0

    @property
    def open(self) -> bool:
        """Whether there is a chunk that has not ended."""
        return bool(self._pairs)

    def add(self, pair: Pair) -> Chunk | None:
        """The chunk that this pair ends, if it ends one."""
        self._pairs.append(pair)
        self._size += len(pair[0]) + len(pair[1]) + 6
        full = self._size >= CAP and len(self._pairs) >= INDEX_MINIMUM
        if full or (len(self._pairs) >= self._minimum and self._ends(pair[0])):
            return self.end()
        return None

    def end(self) -> Chunk | None:
        """The last chunk, if there is one that has not ended."""
        pairs, self._pairs, self._size = self._pairs, [], 0
        return Chunk(self.level, tuple(pairs)) if pairs else None

    def _ends(self, key: bytes) -> bool:
        return (zlib.crc32(key) + 1) * self._factor & _MASK < self._threshold


def chunks_of(level: int, pairs: Iterable[Pair]) -> Iterator[Chunk]:
    """A whole level."""
    chunker = Chunker(level)
    for pair in pairs:
        if chunk := chunker.add(pair):
            yield chunk
    if chunk := chunker.end():
        yield chunk


def _cut(data: bytes, at: int, sizes: tuple[int, ...]) -> tuple[list[bytes], int]:
    found = []
    for size in sizes:
        found.append(data[at : at + size])
        at += size
    return found, at
