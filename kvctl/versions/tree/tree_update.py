"""Update a tree: read the chunks that changes fall into, write those that come out different. [pure]

A level is a sorted map: entries at the bottom, above it the last key and the id of each chunk below. The result of one
level, chunks removed and chunks added, is the list of changes of the next level: one routine serves all levels. Where a
changed run of chunks ends at an existing border, everything after it is unchanged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvctl.versions.tree.chunks import Chunker, Pair, TreeChunk, chunks_of, overwritten
from kvctl.versions.tree.tree import Edit, NewChunks, NewTree, Reading, build, child_of, spread

CHANGES_PER_ROUND = 256
"""Number of changes whose chunks are read, and released, together."""
HAND_OVER = 1 << 20
"""Bytes of new chunks after which the caller may take them."""
SINGLE_CHANGES = 8
"""Maximum number of changes to a chunk that are applied one by one."""


class Ahead(set[bytes]):
    """Ids that will be asked for next: the caller may begin to read them, and sends nothing."""


def update(root: bytes, edits: Sequence[Edit], made: NewChunks | None = None) -> Reading[NewTree]:
    """Return the tree with these changes, sorted by key without duplicates, and the objects that the old one lacks.

    Sometimes asks for nothing: the caller may then yield to other tasks, and take the chunks in `made` once they hold
    HAND_OVER bytes; the result then lacks them. Asks with Ahead for what comes next.
    """
    made = made or NewChunks()
    old = _Old(root)
    height = (yield from old.chunk(root)).level
    changes = list(edits)
    for level in range(height + 1):
        changes = yield from _level(old, level, changes, made)
        if not changes:
            return NewTree(root, {})
    row = {key: child for key, child in changes if child is not None}
    last = (yield from old.chunk(root)).keys[-1:]
    if last and last[0] not in dict(changes):
        row[last[0]] = root  # it stays, and others are added beside it
    tree = yield from _top(old, height, sorted(row.items()), made)
    return NewTree(root, {}) if tree.root == root else tree


def read_for(root: bytes, keys: Sequence[bytes]) -> Reading[None]:
    """Read the chunks that sorted keys belong to."""
    yield from _Old(root).prefetch(0, keys)


class _Old:
    """The tree before the update, as far as it has been read."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self._known: dict[bytes, TreeChunk] = {}
        self._data: dict[bytes, bytes] = {}
        """Chunks that were read and not used yet."""

    def chunk(self, identity: bytes) -> Reading[TreeChunk]:
        """Return one chunk."""
        if identity not in self._known:
            self._known[identity] = TreeChunk.decode((yield from self.data(identity)))
            del self._data[identity]
        return self._known[identity]

    def data(self, identity: bytes) -> Reading[bytes]:
        """Return the bytes of one chunk."""
        if identity in self._known:
            return self._known[identity].encode()
        if identity not in self._data:
            self._data[identity] = (yield {identity})[identity]
        return self._data[identity]

    def prefetch(self, level: int, keys: Sequence[bytes]) -> Reading[None]:
        """Read the chunks that sorted keys belong to, down to a level."""
        if missing := (yield from self.missing(level, keys)):
            self._data.update((yield missing))

    def missing(self, level: int, keys: Sequence[bytes]) -> Reading[set[bytes]]:
        """Return the ids of the unknown chunks of a level that sorted keys belong to; reads those above."""
        waiting = {self.root: list(keys)}
        top = (yield from self.chunk(self.root)).level
        while True:
            missing = waiting.keys() - self._known.keys() - self._data.keys()
            if top == level:
                return missing
            if missing:
                self._data.update((yield missing))
            below: dict[bytes, list[bytes]] = {}
            for identity, wanted in waiting.items():
                below.update(spread((yield from self.chunk(identity)), wanted))
            waiting, top = below, top - 1

    def forget(self, level: int) -> None:
        """Release the chunks read of a level, and below."""
        self._known = {identity: chunk for identity, chunk in self._known.items() if chunk.level > level}
        self._data.clear()

    def at(self, level: int, key: bytes) -> Reading[_Place]:
        """Return the place of the chunk of a level that a key belongs to: the first to end at or after it, or the last.

        The chunk itself is not read, unless it is the root.
        """
        chunk = yield from self.chunk(self.root)
        identity, last, following = self.root, b"".join(chunk.keys[-1:]), None
        for _ in range(chunk.level - level):
            if identity != self.root:
                chunk = yield from self.chunk(identity)
            child = child_of(chunk, key)
            if child + 1 < len(chunk.keys):
                following = chunk.values[child + 1]
            identity, last = chunk.values[child], chunk.keys[child]
        return _Place(identity, last, following)

    def first_end(self, level: int, identity: bytes) -> Reading[bytes]:
        """Return the last key of the first chunk of a level below a chunk."""
        chunk = yield from self.chunk(identity)
        while chunk.level > level:
            chunk = yield from self.chunk(chunk.values[0])
        return chunk.keys[-1]


class _Place(NamedTuple):
    """Place of a chunk in its level."""

    identity: bytes
    last: bytes
    """Its last key; empty if it has none."""
    following: bytes | None
    """Id of the nearest chunk, on this level or above, that begins after it; None for the last."""


def _level(old: _Old, level: int, edits: Sequence[Edit], made: NewChunks) -> Reading[list[Edit]]:
    """Apply changes to one level; return the resulting changes of the level above, sorted."""
    keys = [key for key, _ in edits]
    outcome = _Outcome(made)
    at = read = 0
    while at < len(edits):
        if at >= read:
            read = at + CHANGES_PER_ROUND
            old.forget(level if at else level - 1)
            yield from old.prefetch(level, keys[at:read])
            if following := (yield from old.missing(level, keys[read : read + CHANGES_PER_ROUND])):
                yield Ahead(following)
        place = yield from old.at(level, keys[at])
        end = len(edits) if place.following is None else bisect_right(keys, place.last, at)
        data = overwritten((yield from old.data(place.identity)), edits[at:end])
        if data is None:
            at = yield from _run(old, level, edits, keys, at, outcome)
        else:
            outcome.replace(place, data)
            at = end
            yield set()
    return sorted({**dict.fromkeys(outcome.gone), **outcome.new}.items())


class _Outcome:
    """Result of one level: the ids of chunks removed and added, by their last keys."""

    def __init__(self, made: NewChunks) -> None:
        self.gone: dict[bytes, bytes] = {}
        self.new: dict[bytes, bytes] = {}
        self.made = made

    def replace(self, place: _Place, data: bytes) -> None:
        """Replace a chunk by one with the same keys, which may be equal."""
        if (identity := self.made.add_data(data)) == place.identity:
            self.made.remove(identity)
        else:
            self.gone[place.last], self.new[place.last] = place.identity, identity

    def add(self, chunk: TreeChunk) -> None:
        """Add a new chunk, which may equal an old one."""
        key, identity = self.made.add(chunk)
        if self.gone.get(key) == identity:
            self.made.remove(identity)
            del self.gone[key]
        else:
            self.new[key] = identity


def _run(
    old: _Old, level: int, edits: Sequence[Edit], keys: Sequence[bytes], at: int, outcome: _Outcome
) -> Reading[int]:
    """Rebuild the chunks from a change to the next unchanged border; return the number of changes applied."""
    chunker = Chunker(level)
    place = yield from old.at(level, keys[at])
    while True:
        chunk = yield from old.chunk(place.identity)
        if chunk.keys:
            outcome.gone[place.last] = place.identity
        end = len(edits) if place.following is None else bisect_right(keys, place.last, at)
        for some in _changed(chunk, edits, at, end):
            for ended in chunker.add(some.keys, some.values):
                outcome.add(ended)
            yield set()
        at = end
        if place.following is None or not chunker.open:
            break
        place = yield from old.at(level, (yield from old.first_end(level, place.following)))
    if (last := chunker.end()) is not None:
        outcome.add(last)
    return at


def _changed(chunk: TreeChunk, edits: Sequence[Edit], start: int, end: int) -> Iterator[TreeChunk]:
    """Apply a range of changes to a chunk, in parts: any number of them may fall into one chunk."""
    keys, values = chunk.keys, chunk.values
    while end - start > CHANGES_PER_ROUND:
        some = edits[start : start + CHANGES_PER_ROUND]
        cut = bisect_right(keys, some[-1][0])
        yield _merged(TreeChunk(chunk.level, keys[:cut], values[:cut]), some)
        keys, values, start = keys[cut:], values[cut:], start + CHANGES_PER_ROUND
    yield _merged(TreeChunk(chunk.level, keys, values), edits[start:end])


def _merged(chunk: TreeChunk, edits: Sequence[Edit]) -> TreeChunk:
    if len(edits) > SINGLE_CHANGES:
        held = {**dict(zip(chunk.keys, chunk.values, strict=True)), **dict(edits)}
        return TreeChunk.of(chunk.level, sorted((key, value) for key, value in held.items() if value is not None))
    keys, values = chunk.keys[:], chunk.values[:]
    for key, value in edits:
        place = bisect_left(keys, key)
        there = place < len(keys) and keys[place] == key
        if value is None:
            del keys[place : place + there], values[place : place + there]
        else:
            keys[place : place + there], values[place : place + there] = [key], [value]
    return TreeChunk(chunk.level, keys, values)


def _top(old: _Old, height: int, row: list[Pair], made: NewChunks) -> Reading[NewTree]:
    """Return the root above the remaining chunks, with no more levels than needed."""
    level = height
    while len(row) > 1:
        level += 1
        row = [made.add(chunk) for chunk in chunks_of(level, row)]
    if not row:
        return build([])
    root = row[0][1]
    while True:
        data = made.objects.get(root)
        chunk = TreeChunk.decode(data) if data is not None else (yield from old.chunk(root))
        if chunk.level == 0 or len(chunk.keys) > 1:
            return NewTree(root, made.objects)
        made.remove(root)
        root = chunk.values[0]
