"""Update a tree: read the chunks that changes fall into, write those that come out different. [pure]

A level is a sorted map: entries at the bottom, above it the last key and the id of each chunk below. The result of one
level, chunks removed and chunks added, is the list of changes of the next level: one routine serves all levels. Where a
changed run of chunks ends at an existing border, everything after it is unchanged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from kvctl.versions.tree.chunks import (
    Chunk,
    Chunker,
    Pair,
    chunks_of,
)
from kvctl.versions.tree.tree import (
    Made,
    Reading,
    Tree,
    build,
    child_of,
    spread,
)

Edit = tuple[bytes, bytes | None]
"""Key and its new value; None removes it."""

CHANGES_PER_ROUND = 1024
"""Number of changes whose chunks are read, and released, together."""
HAND_OVER = 4 << 20
"""Bytes of new chunks after which the caller may take them."""
SINGLE_CHANGES = 8
"""Maximum number of changes to a chunk that are applied one by one."""


def update(root: bytes, edits: Sequence[Edit], made: Made | None = None) -> Reading[Tree]:
    """Return the tree with these changes, sorted by key without duplicates, and the objects that the old one lacks.

    Sometimes asks for nothing: the caller may then yield to other tasks, and take the chunks in `made` once they hold
    HAND_OVER bytes; the result then lacks them.
    """
    made = made or Made()
    old = _Old(root)
    height = (yield from old.chunk(root)).level
    changes = list(edits)
    for level in range(height + 1):
        changes = yield from _level(old, level, changes, made)
        if not changes:
            return Tree(root, {})
    row = {key: child for key, child in changes if child is not None}
    last = (yield from old.chunk(root)).keys[-1:]
    if last and last[0] not in dict(changes):
        row[last[0]] = root  # it stays, and others are added beside it
    tree = yield from _top(old, height, sorted(row.items()), made)
    return Tree(root, {}) if tree.root == root else tree


class _Old:
    """The tree before the update, as far as it has been read."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self._known: dict[bytes, Chunk] = {}
        self._data: dict[bytes, bytes] = {}
        """Chunks that were read and not used yet."""

    def chunk(self, identity: bytes) -> Reading[Chunk]:
        """Return one chunk."""
        if identity not in self._known:
            data = self._data.pop(identity, None) or (yield {identity})[identity]
            self._known[identity] = Chunk.decode(data)
        return self._known[identity]

    def prefetch(self, level: int, keys: Sequence[bytes]) -> Reading[None]:
        """Read the chunks that sorted keys belong to, down to a level."""
        waiting = {self.root: list(keys)}
        top = (yield from self.chunk(self.root)).level
        while True:
            if missing := waiting.keys() - self._known.keys() - self._data.keys():
                self._data.update((yield missing))
            if top == level:
                return
            below: dict[bytes, list[bytes]] = {}
            for identity, wanted in waiting.items():
                below.update(spread((yield from self.chunk(identity)), wanted))
            waiting, top = below, top - 1

    def forget(self, level: int) -> None:
        """Release the chunks read of a level, and below."""
        self._known = {identity: chunk for identity, chunk in self._known.items() if chunk.level > level}
        self._data.clear()

    def at(self, level: int, key: bytes) -> Reading[tuple[bytes, Chunk, bytes | None]]:
        """Return the chunk of a level that a key belongs to, with its id: the first to end at or after it, or the last.

        Also the id of the nearest chunk, on this level or above, that begins after it; None for the last.
        """
        identity, following = self.root, None
        chunk = yield from self.chunk(identity)
        while chunk.level > level:
            child = child_of(chunk, key)
            if child + 1 < len(chunk.keys):
                following = chunk.values[child + 1]
            identity = chunk.values[child]
            chunk = yield from self.chunk(identity)
        return identity, chunk, following

    def first_end(self, level: int, identity: bytes) -> Reading[bytes]:
        """Return the last key of the first chunk of a level below a chunk."""
        chunk = yield from self.chunk(identity)
        while chunk.level > level:
            chunk = yield from self.chunk(chunk.values[0])
        return chunk.keys[-1]


def _level(old: _Old, level: int, edits: Sequence[Edit], made: Made) -> Reading[list[Edit]]:
    """Apply changes to one level; return the resulting changes of the level above, sorted."""
    keys = [key for key, _ in edits]
    gone: dict[bytes, bytes] = {}
    new: dict[bytes, bytes] = {}
    at = read = 0
    while at < len(edits):
        if at >= read:
            read = at + CHANGES_PER_ROUND
            old.forget(level if at else level - 1)
            yield from old.prefetch(level, keys[at:read])
        at = yield from _run(old, level, edits, keys, at, _Outcome(gone, new, made))
    return sorted({**dict.fromkeys(gone), **new}.items())


class _Outcome:
    """Result of one level: the ids of chunks removed and added, by their last keys."""

    def __init__(self, gone: dict[bytes, bytes], new: dict[bytes, bytes], made: Made) -> None:
        self.gone = gone
        self.new = new
        self.made = made

    def add(self, chunk: Chunk) -> None:
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
    identity, chunk, following = yield from old.at(level, keys[at])
    while True:
        if chunk.keys:
            outcome.gone[chunk.keys[-1]] = identity
        end = len(edits) if following is None else bisect_right(keys, chunk.keys[-1], at)
        for some in _changed(chunk, edits, at, end):
            for ended in chunker.add(some.keys, some.values):
                outcome.add(ended)
            yield set()
        at = end
        if following is None or not chunker.open:
            break
        key = yield from old.first_end(level, following)
        identity, chunk, following = yield from old.at(level, key)
    if (last := chunker.end()) is not None:
        outcome.add(last)
    return at


def _changed(chunk: Chunk, edits: Sequence[Edit], start: int, end: int) -> Iterator[Chunk]:
    """Apply a range of changes to a chunk, in parts: any number of them may fall into one chunk."""
    keys, values = chunk.keys, chunk.values
    while end - start > CHANGES_PER_ROUND:
        some = edits[start : start + CHANGES_PER_ROUND]
        cut = bisect_right(keys, some[-1][0])
        yield _merged(Chunk(chunk.level, keys[:cut], values[:cut]), some)
        keys, values, start = keys[cut:], values[cut:], start + CHANGES_PER_ROUND
    yield _merged(Chunk(chunk.level, keys, values), edits[start:end])


def _merged(chunk: Chunk, edits: Sequence[Edit]) -> Chunk:
    if len(edits) > SINGLE_CHANGES:
        held = {**dict(zip(chunk.keys, chunk.values, strict=True)), **dict(edits)}
        return Chunk.of(chunk.level, sorted((key, value) for key, value in held.items() if value is not None))
    keys, values = chunk.keys[:], chunk.values[:]
    for key, value in edits:
        place = bisect_left(keys, key)
        there = place < len(keys) and keys[place] == key
        if value is None:
            del keys[place : place + there], values[place : place + there]
        else:
            keys[place : place + there], values[place : place + there] = [key], [value]
    return Chunk(chunk.level, keys, values)


def _top(old: _Old, height: int, row: list[Pair], made: Made) -> Reading[Tree]:
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
        chunk = Chunk.decode(data) if data is not None else (yield from old.chunk(root))
        if chunk.level == 0 or len(chunk.keys) > 1:
            return Tree(root, made.objects)
        made.remove(root)
        root = chunk.values[0]
