"""Change a tree: read the chunks that changes fall into, write those that come out differently. [pure]

A level is a sorted map: entries at the bottom, above it the last key and the id of each chunk below. What comes out of
one level, chunks gone and chunks made, are the changes of the next: one routine serves them all. Where a changed run of
chunks ends at a border that was there before, all that follows is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from kvctl.versions.chunks import Chunk, Chunker, Pair, chunks_of
from kvctl.versions.tree import Made, Reading, Tree, build, spread

Edit = tuple[bytes, bytes | None]
"""A key and its new value; None takes it away."""


def update(root: bytes, edits: Sequence[Edit]) -> Reading[Tree]:
    """The tree with these changes, sorted by key, none twice; its objects are those that the old one does not have."""
    old = _Old(root)
    made = Made()
    yield from old.prefetch([key for key, _ in edits])
    changes = list(edits)
    for level in range(old.height + 1):
        changes = yield from _level(old, level, changes, made)
        if not changes:
            return Tree(root, {})
    tree = yield from _top(old, [(key, child) for key, child in changes if child is not None], made)
    return Tree(root, {}) if tree.root == root else tree


class _Old:
    """The tree as it was, as far as it has been read."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.height = 0
        self._known: dict[bytes, Chunk] = {}

    def read(self, identity: bytes) -> Reading[Chunk]:
        """One chunk."""
        if identity not in self._known:
            data = yield {identity}
            self._known[identity] = Chunk.decode(data[identity])
        return self._known[identity]

    def prefetch(self, keys: Sequence[bytes]) -> Reading[None]:
        """Read all chunks on the ways from the root to the keys, a level at a time."""
        waiting = {self.root: sorted(keys)}
        while waiting:
            data = yield set(waiting)
            below: dict[bytes, list[bytes]] = {}
            for identity, wanted in waiting.items():
                chunk = self._known[identity] = Chunk.decode(data[identity])
                self.height = max(self.height, chunk.level)
                below.update(spread(chunk, wanted) if chunk.level else ())
            waiting = below

    def chunk_of(self, level: int, key: bytes) -> Reading[Chunk]:
        """The chunk of a level that the key belongs to: the first that ends at it or after it, else the last."""
        chunk = yield from self.read(self.root)
        while chunk.level > level:
            chunk = yield from self.read(_child_of(chunk, key))
        return chunk

    def after(self, level: int, key: bytes) -> Reading[Chunk | None]:
        """The chunk of a level that follows the one whose last key this is; None after the last."""
        chunk = yield from self.read(self.root)
        following: bytes | None = None  # the nearest way that leads further right, and how high it begins
        while chunk.level > level:
            at = next(number for number, (last, _) in enumerate(chunk.pairs) if last >= key)
            if at + 1 < len(chunk.pairs):
                following = chunk.pairs[at + 1][1]
            chunk = yield from self.read(chunk.pairs[at][1])
        if following is None:
            return None
        chunk = yield from self.read(following)
        while chunk.level > level:
            chunk = yield from self.read(chunk.pairs[0][1])
        return chunk


def _level(old: _Old, level: int, edits: Sequence[Edit], made: Made) -> Reading[list[Edit]]:
    """Carry changes out on one level; returns those that they mean for the level above, sorted."""
    gone: dict[bytes, bytes] = {}
    new: dict[bytes, bytes] = {}
    waiting = list(reversed(edits))
    while waiting:
        chunk: Chunk | None = yield from old.chunk_of(level, waiting[-1][0])
        chunker = Chunker(level)
        while chunk is not None:
            gone.update(_pair(chunk))
            following = yield from old.after(level, chunk.pairs[-1][0]) if chunk.pairs else _nothing()
            for pair in _merged(chunk, waiting, last=following is None):
                if ended := chunker.add(pair):
                    new.update([made.add(ended)])
            chunk = following if chunker.open else None
        if ended := chunker.end():
            new.update([made.add(ended)])
    for key in [key for key, identity in new.items() if gone.get(key) == identity]:
        made.objects.pop(new.pop(key), None)
        del gone[key]
    return sorted({**dict.fromkeys(gone), **new}.items())


def _merged(chunk: Chunk, waiting: list[Edit], *, last: bool) -> Iterator[Pair]:
    """The chunk's pairs with the changes that belong to it, which are taken away from those waiting."""
    for pair in chunk.pairs:
        while waiting and waiting[-1][0] < pair[0]:
            yield from _put(waiting.pop())
        if waiting and waiting[-1][0] == pair[0]:
            yield from _put(waiting.pop())
        else:
            yield pair
    while last and waiting:
        yield from _put(waiting.pop())


def _put(edit: Edit) -> Iterator[Pair]:
    key, value = edit
    if value is not None:
        yield key, value


def _top(old: _Old, row: list[Pair], made: Made) -> Reading[Tree]:
    """The root above the chunks that are left of the old one: as many levels as it takes, and none too many."""
    level = old.height
    while len(row) > 1:
        level += 1
        row = [made.add(chunk) for chunk in chunks_of(level, row)]
    if not row:
        return build([])
    root = row[0][1]
    while True:
        data = made.objects.get(root)
        chunk = Chunk.decode(data) if data is not None else (yield from old.read(root))
        if chunk.level == 0 or len(chunk.pairs) > 1:
            return Tree(root, made.objects)
        made.objects.pop(root, None)
        root = chunk.pairs[0][1]


def _pair(chunk: Chunk) -> list[Pair]:
    made = Made()
    return [made.add(chunk)]


def _child_of(index: Chunk, key: bytes) -> bytes:
    found = next(islice((child for last, child in index.pairs if last >= key), 1), None)
    return index.pairs[-1][1] if found is None else found


def _nothing() -> Reading[Chunk | None]:
    return None
    yield
