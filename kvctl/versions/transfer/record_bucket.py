"""Record complete content as one commit: its tree is built, and objects that the branch lacks are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from kvctl.errors import UsageError
from kvctl.versions import commits
from kvctl.versions.branch import staging
from kvctl.versions.commits import CommitInfo
from kvctl.versions.model import Commit, apart_id, inline_value, leaf_value
from kvctl.versions.store.protocol import Store
from kvctl.versions.tree.chunks import Chunk
from kvctl.versions.tree.objects import Objects
from kvctl.versions.tree.tree import Objects as Made
from kvctl.versions.tree.tree import Reading, Tree, build

Content = Mapping[str, bytes] | Iterable[tuple[str, bytes]]
"""Keys and values; if it is not a mapping, sorted by the bytes of the keys without duplicates."""

SHOWN = 80
"""Maximum characters of a key in a message."""


async def record(
    store: Store, objects: Objects, branch: str, content: Content, info: CommitInfo, check: Callable[[str, bytes], None]
) -> Commit:
    """Commit this content, and nothing else, onto a branch; `check` raises for what no branch can hold.

    Raises NothingToCommit, Staged, UsageError, BranchNotFound, ConflictError after too many retries.
    """
    large: Made = {}
    tree = build(_pairs(content, large, check))
    for _ in range(staging.MAX_ATTEMPTS):
        state = await commits.read_clean(store, objects, branch)
        known = await objects.run(_above_leaves(bytes.fromhex(state.head.root)))
        made = await commits.move_to(store, objects, state, info, tree.root, _new(tree, large, known))
        if made is not None:
            return made
        await staging.pause()
    raise staging.busy(branch)


def _pairs(content: Content, large: Made, check: Callable[[str, bytes], None]) -> Iterator[tuple[bytes, bytes]]:
    """Yield entries as leaves store them; the objects of large values are added to `large`. Raises UsageError."""
    before = b""
    for key, value in sorted(content.items()) if isinstance(content, Mapping) else content:
        _check(key, value, check)
        name = key.encode()
        if name <= before:
            raise UsageError(f"`{key}` follows `{before.decode()}`: keys must be sorted and unique")
        before = name
        stored, apart = leaf_value(value)
        large.update(apart)
        yield name, stored


def _new(tree: Tree, large: Made, known: set[bytes]) -> Made:
    """Return the objects not in the tree whose ids are known; the large values of its leaves exist, too."""
    found = {identity: data for identity, data in tree.objects.items() if identity not in known}
    for data in list(found.values()):
        chunk = Chunk.decode(data)
        stored = (value for _, value in chunk.pairs if chunk.level == 0 and inline_value(value) is None)
        found.update((apart_id(value), large[apart_id(value)]) for value in stored)
    return found


def _above_leaves(root: bytes) -> Reading[set[bytes]]:
    """Return the ids of a tree's chunks without reading leaves."""
    known, waiting = {root}, {root}
    while waiting:
        data = yield waiting
        chunks = [Chunk.decode(data[identity]) for identity in waiting]
        below = {child for chunk in chunks if chunk.level for _, child in chunk.pairs}
        known |= below
        waiting = below if any(chunk.level > 1 for chunk in chunks) else set()
    return known


def _check(key: str, value: bytes, check: Callable[[str, bytes], None]) -> None:
    """Check a key and its value. Raises UsageError that names the key."""
    try:
        check(key, value)
    except UsageError as error:
        shown = key if len(key) <= SHOWN else f"{key[:SHOWN]}…"
        what = error.message[0].lower() + error.message[1:]
        raise UsageError(f"`{shown}` cannot be recorded: {what}", hint=error.hint) from None
