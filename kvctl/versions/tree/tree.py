"""Tree of chunks over sorted entries: build, read, compare and merge, reading no more than what differs. [pure]

A function that needs chunks is a generator: it yields the ids it needs and is sent their bytes, so that the same code
runs in memory, on a server with many reads in flight, and on Spark. The same entries have the same root id, in whatever
order they were written.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, TypeVar

from kvctl.versions.tree.chunks import EMPTY, Chunker, Pair, TreeChunk, chunks_of, object_id

ChunkBytes = dict[bytes, bytes]
"""Bytes of chunks by their ids."""
T = TypeVar("T")
Reading = Generator[set[bytes], Mapping[bytes, bytes], T]
"""Yields ids, is sent the bytes of all of them, returns its result."""
Edit = tuple[bytes, bytes | None]
"""Key and its new value; None removes it."""
LEAVES = 512
"""Number of leaves per side compared at a time."""
EMPTY_ROOT = object_id(EMPTY.encode())


class NewTree(NamedTuple):
    """Root, and the chunks that were created for it."""

    root: bytes
    objects: ChunkBytes


class TreeDifference(NamedTuple):
    """Key whose value differs between two sides; None: absent."""

    key: bytes
    before: bytes | None
    after: bytes | None


class Strategy(StrEnum):
    """Side that wins where both changed a key."""

    SOURCE_WINS = "source-wins"
    DEST_WINS = "dest-wins"


class Conflict(NamedTuple):
    """Key that both sides changed to different values; None: absent."""

    key: bytes
    base: bytes | None
    source: bytes | None
    dest: bytes | None


class Merge(NamedTuple):
    """Changes that the destination takes from the source."""

    edits: list[Edit]
    """Changes to the destination, sorted by key."""
    conflicts: list[Conflict]
    """Unresolved keys; empty with a strategy."""


def build(pairs: Iterable[Pair]) -> NewTree:
    """Build the tree of entries sorted by key without duplicates."""
    made = NewChunks()
    return made.tree([made.add(chunk) for chunk in chunks_of(0, pairs)])


def get(root: bytes, keys: Sequence[bytes]) -> Reading[dict[bytes, bytes]]:
    """Return the values of those keys that exist."""
    found: dict[bytes, bytes] = {}
    waiting: dict[bytes, list[bytes]] = {root: sorted(set(keys))}
    while waiting:
        data = yield set(waiting)
        below: dict[bytes, list[bytes]] = {}
        for identity, wanted in waiting.items():
            chunk = _decoded(data[identity])
            if chunk.level == 0:
                held = dict(zip(chunk.keys, chunk.values, strict=True))
                found.update((key, held[key]) for key in wanted if key in held)
            else:
                for child, some in spread(chunk, wanted):
                    below[child] = some
        waiting = below
    return found


def entries(root: bytes, start: bytes = b"") -> Reading[list[Pair]]:
    """Return all entries from a key on, sorted."""
    waiting, leaves = [root], list[TreeChunk]()
    while waiting:
        data = yield set(waiting)
        chunks = [TreeChunk.decode(data[identity]) for identity in waiting]
        waiting = []
        for chunk in chunks:
            if chunk.level == 0:
                leaves.append(chunk)
            else:
                waiting += [child for last, child in chunk.pairs if last >= start]
    return [pair for leaf in leaves for pair in leaf.pairs if pair[0] >= start]


def diff(before: bytes, after: bytes) -> Reading[list[TreeDifference]]:
    """Return the keys that differ, sorted; subtrees with the same id are never read."""
    found: list[TreeDifference] = []
    step = differences(before, after)
    data: Mapping[bytes, bytes] = {}
    with suppress(StopIteration):
        wanted = next(step)
        while True:
            if isinstance(wanted, set):
                data = yield wanted
            else:
                found += wanted
            wanted = step.send(data)
    return found


def differences(
    before: bytes, after: bytes
) -> Generator[set[bytes] | list[TreeDifference], Mapping[bytes, bytes], None]:
    """Compare as `diff`, in batches: yields ids, to be sent their bytes, or differences, to be sent nothing.

    Holds the ids of all differing leaves, and the content of some.
    """
    left, right = yield from _differing_leaves(before, after)
    mine: dict[bytes, bytes] = {}
    theirs: dict[bytes, bytes] = {}
    while left or right:
        ends = [side[LEAVES - 1][0] for side in (left, right) if len(side) > LEAVES]
        end = min(ends) if ends else None
        first, left = _up_to(left, end)
        second, right = _up_to(right, end)
        data = yield {identity for _, identity in (*first, *second)}
        for held, side in ((mine, first), (theirs, second)):
            for _, identity in side:
                chunk = TreeChunk.decode(data[identity])
                held.update(zip(chunk.keys, chunk.values, strict=True))
        yield _compared(mine, theirs, end)
        mine, theirs = _after(mine, end), _after(theirs, end)


def leaves(root: bytes) -> Reading[list[bytes]]:
    """Return the ids of a tree's leaves in key order; no leaf is read but a root. The empty tree has none."""
    found = [root] if root != EMPTY_ROOT else []
    while found:
        data = yield set(found)
        chunks = [TreeChunk.decode(data[identity]) for identity in found]
        if chunks[0].level == 0:
            break
        found = [child for chunk in chunks for child in chunk.values]
        if chunks[0].level == 1:
            break
    return found


def merge(source: Iterable[TreeDifference], dest: Iterable[TreeDifference], strategy: Strategy | None = None) -> Merge:
    """Apply the source's changes since the base to the destination; both differ from the same base.

    The same change on both sides is not a conflict. A strategy decides only conflicting keys.
    """
    theirs = {difference.key: difference for difference in dest}
    edits: list[Edit] = []
    conflicts: list[Conflict] = []
    for ours in source:
        other = theirs.get(ours.key)
        if other is None:
            edits.append((ours.key, ours.after))
        elif other.after == ours.after:
            continue
        elif strategy is None:
            conflicts.append(Conflict(ours.key, ours.before, ours.after, other.after))
        elif strategy is Strategy.SOURCE_WINS:
            edits.append((ours.key, ours.after))
    return Merge(edits, conflicts)


def joined(parts: Iterable[Sequence[Pair]]) -> Reading[NewTree]:
    """Return the tree over the leaves of consecutive parts: for each leaf its last key and its id.

    Several workers may have cut them concurrently. A leaf's end depends on the keys since the last end, so a part's
    first leaves may differ from those of one pass over everything. They are cut again until both ends meet; from there
    on the part's leaves are correct. Reads the leaves where parts meet; its objects are those that no part has created.
    """
    made, cut, row = NewChunks(), Chunker(0), list[Pair]()
    for part in parts:
        for at, (last, identity) in enumerate(part):
            # The last leaf of a part may have ended only because the part did.
            if not cut.open and at + 1 < len(part):
                row.append((last, identity))
                continue
            data = yield {identity}
            chunk = TreeChunk.decode(data[identity])
            row += map(made.add, cut.add(chunk.keys, chunk.values))
    if (ended := cut.end()) is not None:
        row.append(made.add(ended))
    return made.tree(row)


def _differing_leaves(before: bytes, after: bytes) -> Reading[tuple[list[Pair], list[Pair]]]:
    """Return the leaves that only one of the trees has, as pairs of last key and id, in order."""
    if before == after:
        return [], []
    data = dict((yield {before, after}))
    sides = [[(b"", before)], [(b"", after)]]
    levels = [_decoded(data[root]).level for root in (before, after)]
    while top := max(levels):
        wanted = {identity for side, level in zip(sides, levels, strict=True) if level == top for _, identity in side}
        if missing := wanted - data.keys():
            data.update((yield missing))
        for number in (0, 1):
            if levels[number] == top:
                levels[number] -= 1
                sides[number] = [pair for _, identity in sides[number] for pair in _decoded(data[identity]).pairs]
        common = {identity for _, identity in sides[0]} & {identity for _, identity in sides[1]}
        sides = [[pair for pair in side if pair[1] not in common] for side in sides]
    return sides[0], sides[1]


def _up_to(leaves: list[Pair], end: bytes | None) -> tuple[list[Pair], list[Pair]]:
    """Split leaves into those with keys up to the end, and the rest."""
    count = len(leaves) if end is None else bisect_left(leaves, end, key=lambda pair: pair[0]) + 1
    return leaves[:count], leaves[count:]


def _compared(mine: dict[bytes, bytes], theirs: dict[bytes, bytes], end: bytes | None) -> list[TreeDifference]:
    keys = {key for key, value in mine.items() if theirs.get(key) != value}
    keys |= theirs.keys() - mine.keys()
    return [TreeDifference(key, mine.get(key), theirs.get(key)) for key in sorted(keys) if end is None or key <= end]


def _after(held: dict[bytes, bytes], end: bytes | None) -> dict[bytes, bytes]:
    return {} if end is None else {key: value for key, value in held.items() if key > end}


@lru_cache(maxsize=256)
def _decoded(data: bytes) -> TreeChunk:
    """Decode a chunk that callers only read: gets and diffs meet the same ones."""
    return TreeChunk.decode(data)


def run(reading: Reading[T], objects: Mapping[bytes, bytes]) -> T:
    """Run a reading on chunks in memory. Raises KeyError for a missing one."""
    try:
        wanted = next(reading)
        while True:
            wanted = reading.send({identity: objects[identity] for identity in wanted})
    except StopIteration as end:
        result: T = end.value
        return result


class NewChunks:
    """Chunks created by an operation."""

    def __init__(self) -> None:
        self.objects: ChunkBytes = {}
        self.size = 0
        """Bytes of the chunks held."""

    def add(self, chunk: TreeChunk) -> Pair:
        """Add a chunk; return the pair that refers to it one level above."""
        return (chunk.keys[-1] if chunk.keys else b"", self.add_data(chunk.encode()))

    def add_data(self, data: bytes) -> bytes:
        """Add a chunk's bytes; return their id."""
        identity = object_id(data)
        if identity not in self.objects:
            self.objects[identity] = data
            self.size += len(data)
        return identity

    def tree(self, leaves: Sequence[Pair]) -> NewTree:
        """Return the tree above these leaves, which must be complete."""
        if not leaves:
            return NewTree(self.add(EMPTY)[1], self.objects)
        level, row = 0, leaves
        while len(row) > 1:
            level += 1
            row = [self.add(chunk) for chunk in chunks_of(level, row)]
        return NewTree(row[0][1], self.objects)

    def remove(self, identity: bytes) -> None:
        """Remove a chunk that nothing needs."""
        self.size -= len(self.objects.pop(identity, b""))

    def take(self) -> ChunkBytes:
        """Return all chunks and forget them."""
        taken, self.objects, self.size = self.objects, {}, 0
        return taken


def spread(index: TreeChunk, keys: Sequence[bytes]) -> Iterator[tuple[bytes, list[bytes]]]:
    """Return the children of an index that sorted keys belong to; keys above the last belong to the last."""
    low = 0
    while low < len(keys):
        child = child_of(index, keys[low])
        last = child + 1 == len(index.keys)
        high = len(keys) if last else bisect_right(keys, index.keys[child], low)
        yield index.values[child], list(keys[low:high])
        low = high


def child_of(index: TreeChunk, key: bytes) -> int:
    """Return the position of the child that a key belongs to."""
    return min(bisect_left(index.keys, key), len(index.keys) - 1)
