"""Sorted entries as content-addressed chunks: the same entries are the same bytes, and so have the same id. [pure]

A chunk ends where the hash of a key decides, so that a change moves few of its neighbours' borders. It holds a minimum
number of entries before it may end, and ends at the latest when it reaches a maximum size.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import accumulate, islice, pairwise
from typing import NamedTuple
from zlib import crc32

from kvctl.errors import KvctlError
from kvctl.wire import MALFORMED

ID_SIZE = 20
"""Bytes of an id: a truncated SHA-256."""
LEAF_MINIMUM, LEAF_MEAN = 32, 32
"""Minimum entries of a leaf, and the mean number after that: about 8 KB with values of 100 B."""
INDEX_MINIMUM, INDEX_MEAN = 2, 128
CAP = 64 * 1024
"""Bytes after which a chunk ends; the entry that reaches it still belongs to it."""

Pair = tuple[bytes, bytes]
"""Key and value; in an index, the last key of a child and its id."""

_HEAD = struct.Struct(">2sBBI")
_MAGIC, _VERSION = b"kc", 1
# One odd factor per level. The checksum alone is not random on numbered keys.
_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_MASK = (1 << 64) - 1
_PAIRS_PER_ROUND = 512
"""Number of pairs processed together."""


class BadRecord(KvctlError, ValueError):
    """Record or object that exists but cannot be decoded."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"Could not decode a record of the repository: {why}",
            hint="Another program has written or damaged it; `kvctl doctor` checks all of them",
        )


@contextmanager
def understood() -> Iterator[None]:
    """Map decoding errors of a record's bytes to BadRecord."""
    try:
        yield
    except MALFORMED as error:
        raise BadRecord(f"{type(error).__name__}: {error}") from None


class TreeChunk(NamedTuple):
    """Run of entries: a leaf (level 0), or an index of chunks one level below. Keys and values are parallel lists."""

    level: int
    keys: list[bytes]
    values: list[bytes]

    @classmethod
    def of(cls, level: int, pairs: Iterable[Pair]) -> TreeChunk:
        """Create the chunk of these pairs."""
        found = list(pairs)
        return cls(level, [key for key, _ in found], [value for _, value in found])

    @property
    def pairs(self) -> list[Pair]:
        """Return its entries."""
        return list(zip(self.keys, self.values, strict=True))

    def encode(self) -> bytes:
        """Return the chunk's bytes: header, lengths, keys, values."""
        count = len(self.keys)
        return b"".join((
            _HEAD.pack(_MAGIC, _VERSION, self.level, count),
            struct.pack(f">{count}H", *map(len, self.keys)),
            struct.pack(f">{count}I", *map(len, self.values)),
            *self.keys,
            *self.values,
        ))  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> TreeChunk:
        """Decode the chunk of these bytes. Raises BadRecord."""
        try:
            magic, version, level, count = _HEAD.unpack_from(data)
            if (magic, version) != (_MAGIC, _VERSION):
                raise BadRecord("not a chunk of this version")
            sizes = struct.unpack_from(f">{count}H{count}I", data, _HEAD.size)
        except struct.error:
            raise BadRecord("not a chunk") from None
        ends = list(accumulate(sizes, initial=_HEAD.size + 6 * count))
        if ends[-1] != len(data):
            raise BadRecord("the lengths in a chunk do not add up")
        parts = [data[start:end] for start, end in pairwise(ends)]
        return cls(level, parts[:count], parts[count:])


def overwritten(data: bytes, edits: Sequence[tuple[bytes, bytes | None]]) -> bytes | None:
    """Return the bytes of a chunk after sorted changes that only replace values; None if its borders may move.

    The keys stay, and so does a border that they decide: only a size of CAP could move it.
    """
    try:
        count = _HEAD.unpack_from(data)[3]
        sizes = struct.unpack_from(f">{count}H{count}I", data, _HEAD.size)
    except struct.error:
        return None
    ends = list(accumulate(sizes, initial=_HEAD.size + 6 * count))
    parts: list[bytes] = []
    lengths: list[tuple[int, int]] = []
    place = done = 0
    for key, value in edits:
        place = _place(data, ends, count, key, place)
        if value is None or place < 0:
            return None
        start, end = ends[count + place], ends[count + place + 1]
        parts += data[done:start], value
        done = end
        if len(value) != end - start:
            lengths.append((_HEAD.size + 2 * count + 4 * place, len(value)))
    made = bytearray().join([*parts, data[done:]])
    for at, length in lengths:
        struct.pack_into(">I", made, at, length)
    return None if max(len(data), len(made)) - _HEAD.size >= CAP else bytes(made)


def _place(data: bytes, ends: Sequence[int], count: int, key: bytes, place: int) -> int:
    """Return the place of a key in a chunk, from a place on; -1 if it has none."""
    at = ends[place] - 1
    while (at := data.find(key, at + 1, ends[count])) >= 0:
        place = bisect_left(ends, at, place, count)
        if ends[place] == at and ends[place + 1] == at + len(key):
            return place
    return -1


EMPTY = TreeChunk(0, [], [])
"""Tree without entries."""


def object_id(data: bytes) -> bytes:
    """Return the id of a chunk's bytes, or of a value stored separately."""
    return sha256(data).digest()[:ID_SIZE]


class Chunker:
    """Splits a sorted run of pairs of one level into chunks."""

    def __init__(self, level: int) -> None:
        self.level = level
        leaf = level == 0
        self._minimum, mean = (LEAF_MINIMUM, LEAF_MEAN) if leaf else (INDEX_MINIMUM, INDEX_MEAN)
        self._threshold = (1 << 64) // mean
        self._factor = _FACTORS[level % len(_FACTORS)]
        self._keys: list[bytes] = []
        self._values: list[bytes] = []

    @property
    def open(self) -> bool:
        """True if there is a chunk that has not ended."""
        return bool(self._keys)

    def add(self, keys: Sequence[bytes], values: Sequence[bytes]) -> list[TreeChunk]:
        """Add pairs that follow those before; return the chunks that they complete."""
        made: list[TreeChunk] = []
        looked = len(self._keys)
        self._keys += keys
        self._values += values
        start = 0
        while (end := self._end(start, looked)) is not None:
            made.append(TreeChunk(self.level, self._keys[start:end], self._values[start:end]))
            start = looked = end
        del self._keys[:start], self._values[:start]
        return made

    def end(self) -> TreeChunk | None:
        """Return the last chunk, if one has not ended."""
        keys, self._keys = self._keys, []
        values, self._values = self._values, []
        return TreeChunk(self.level, keys, values) if keys else None

    def _end(self, start: int, looked: int) -> int | None:
        """Return the end of the chunk that begins at `start`; there is none before `looked`."""
        keys, factor, threshold = self._keys, self._factor, self._threshold
        found = None
        for at in range(max(looked, start + self._minimum - 1), len(keys)):
            if (crc32(keys[at]) + 1) * factor & _MASK < threshold:
                found = at + 1
                break
        return self._capped(start, found)

    def _capped(self, start: int, end: int | None) -> int | None:
        """Return the same end, or the earlier one at which the chunk reaches its maximum size."""
        keys, values = self._keys[start:end], self._values[start:end]
        if sum(map(len, keys)) + sum(map(len, values)) + 6 * len(keys) < CAP:
            return end
        sizes = accumulate(len(key) + len(value) + 6 for key, value in zip(keys, values, strict=True))
        full = (count for count, size in enumerate(sizes, 1) if size >= CAP and count >= INDEX_MINIMUM)
        return next((start + count for count in full), end)


def chunks_of(level: int, pairs: Iterable[Pair]) -> Iterator[TreeChunk]:
    """Split a complete level into chunks."""
    chunker = Chunker(level)
    waiting = iter(pairs)
    while some := list(islice(waiting, _PAIRS_PER_ROUND)):
        yield from chunker.add([key for key, _ in some], [value for _, value in some])
    if chunk := chunker.end():
        yield chunk
