"""Change a tree: read the chunks that changes fall into, write those that come out differently. [pure]

A level is a sorted map: entries at the bottom, above it the last key and the id of each chunk below. What comes out of
one level, chunks gone and chunks made, are the changes of the next: one routine serves them all. Where a changed run of
chunks ends at a border that was there before, all that follows is as it was.
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
"""A key and its new value; None takes it away."""

AT_ONCE = 1024
"""Changes whose chunks are read together, and let go together."""
HAND_OVER = 4 << 20
"""Bytes of chunks that were made, after which they may be taken."""
FEW = 8
"""Changes of a chunk that are made one by one."""


def update(root: bytes, edits: Sequence[Edit], made: Made | None = None) -> Reading[Tree]:
    """The tree with these changes, sorted by key, none twice; its objects are those that the old one does not have.

    Asks for nothing now and then: who carries it out may do something else, and take what stands in `made` when it
    holds HAND_OVER bytes; then the result lacks it.
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
        row[last[0]] = root  # it stays, and others come to stand beside it
    tree = yield from _top(old, height, sorted(row.items()), made)
    return Tree(root, {}) if tree.root == root else tree


class _Old:
    """The tree as it was, as far as it has been read."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self._known: dict[bytes, Chunk] = {}
        self._data: dict[bytes, bytes] = {}
        """Chunks that were read and not looked at yet."""

    def chunk(self, identity: bytes) -> Reading[Chunk]:
        """One chunk."""
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
        """Hold no longer what was read of a level, and below."""
        self._known = {identity: chunk for identity, chunk in self._known.items() if chunk.level > level}
        self._data.clear()

    def at(self, level: int, key: bytes) -> Reading[tuple[bytes, Chunk, bytes | None]]:
        """The chunk of a level that a key belongs to, with its id: the first that ends at it or after it, or the last.

        And the id of the nearest chunk, of this level or above it, that begins after it; None for the last.
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
        """The last key of the first chunk of a level below a chunk."""
        chunk = yield from self.chunk(identity)
        while chunk.level > level:
            chunk = yield from self.chunk(chunk.values[0])
        return chunk.keys[-1]


def _level(old: _Old, level: int, edits: Sequence[Edit], made: Made) -> Reading[list[Edit]]:
    """Carry changes out on one level; returns those that they mean for the level above, sorted."""
    keys = [key for key, _ in edits]
    gone: dict[bytes, bytes] = {}
    new: dict[bytes, bytes] = {}
    at = read = 0
    while at < len(edits):
        if at >= read:
            read = at + AT_ONCE
            old.forget(level if at else level - 1)
            yield from old.prefetch(level, keys[at:read])
        at = yield from _run(old, level, edits, keys, at, _Outcome(gone, new, made))
    return sorted({**dict.fromkeys(gone), **new}.items())


class _Outcome:
    """What became of one level's chunks: by their last keys, the ids of those gone and of those made."""

    def __init__(self, gone: dict[bytes, bytes], new: dict[bytes, bytes], made: Made) -> None:
        self.gone = gone
        self.new = new
        self.made = made

    def add(self, chunk: Chunk) -> None:
        """A chunk that was made, which may be one that was there."""
        key, identity = self.made.add(chunk)
        if self.gone.get(key) == identity:
            self.made.remove(identity)
            del self.gone[key]
        else:
            self.new[key] = identity


def _run(
    old: _Old, level: int, edits: Sequence[Edit], keys: Sequence[bytes], at: int, outcome: _Outcome
) -> Reading[int]:
    """The chunks from where a change falls to the next border that stays; returns how many changes are done then."""
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
    """A chunk with the changes from one to another, in parts: any number of them may fall into one chunk."""
    keys, values = chunk.keys, chunk.values
    while end - start > AT_ONCE:
        some = edits[start : start + AT_ONCE]
        cut = bisect_right(keys, some[-1][0])
        yield _merged(Chunk(chunk.level, keys[:cut], values[:cut]), some)
        keys, values, start = keys[cut:], values[cut:], start + AT_ONCE
    yield _merged(Chunk(chunk.level, keys, values), edits[start:end])


def _merged(chunk: Chunk, edits: Sequence[Edit]) -> Chunk:
    if len(edits) > FEW:
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
    """The root above the chunks that are left of the old one: as many levels as it takes, and none too many."""
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
