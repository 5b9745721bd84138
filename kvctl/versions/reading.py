"""Reads at a ref: staged changes over what is committed, checked afterwards so that no commit comes between."""

from __future__ import annotations

from collections.abc import Sequence

from kvctl.versions import refs, staging, tree
from kvctl.versions.model import Staging, VersionedEntry
from kvctl.versions.objects import Objects
from kvctl.versions.refs import Ref
from kvctl.versions.staging import Held
from kvctl.versions.store import Store


async def get(store: Store, objects: Objects, ref: Ref, keys: Sequence[str]) -> list[VersionedEntry | None]:
    """The entries of keys, None for those that are not there. Raises RefNotFound, ConflictError when it is spent."""
    wanted = [key.encode() for key in keys]
    if ref.branch is None:
        root = bytes.fromhex((await refs.commit(store, ref.commit)).root)
        return _entries(keys, await _committed(objects, root, wanted), {})
    for _ in range(staging.TRIES):
        held = await staging.read(store, ref.branch)
        changes: dict[bytes, bytes | None] = {}
        for key in wanted:
            if change := await staging.find(store, held.staging, key):
                changes[key] = change.value
        head, _ = await refs.head(store, ref.branch)
        found = await _committed(objects, bytes.fromhex(head.root), [key for key in wanted if key not in changes])
        if await _unmoved(store, ref.branch, held):
            return _entries(keys, found, changes)
    raise staging.busy(ref.branch)


async def entries(store: Store, objects: Objects, ref: Ref, start: str = "") -> list[VersionedEntry]:
    """All entries from a key on, sorted by the bytes of their keys. Raises as `get`."""
    if ref.branch is None:
        root = bytes.fromhex((await refs.commit(store, ref.commit)).root)
        return await _listed(objects, root, {}, start)
    for _ in range(staging.TRIES):
        held = await staging.read(store, ref.branch)
        changes = await staging.listed(store, held.staging.epochs[::-1])
        head, _ = await refs.head(store, ref.branch)
        found = await _listed(objects, bytes.fromhex(head.root), changes, start)
        if await _unmoved(store, ref.branch, held):
            return found
    raise staging.busy(ref.branch)


async def staged(store: Store, branch: str) -> tuple[Staging, dict[bytes, bytes | None]]:
    """The staged changes of a branch, by key. Raises BranchNotFound, ConflictError when it is spent."""
    for _ in range(staging.TRIES):
        held = await staging.read(store, branch)
        changes = await staging.listed(store, held.staging.epochs[::-1])
        if await _unmoved(store, branch, held):
            return held.staging, changes
    raise staging.busy(branch)


async def _unmoved(store: Store, branch: str, held: Held) -> bool:
    """Whether no commit has taken epochs meanwhile: it moves head and staging together."""
    return (await staging.read(store, branch)).predicate == held.predicate


async def _committed(objects: Objects, root: bytes, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    stored = await objects.carry(tree.get(root, keys))
    return dict(zip(stored, await objects.values(list(stored.values())), strict=True))


async def _listed(
    objects: Objects, root: bytes, changes: dict[bytes, bytes | None], start: str
) -> list[VersionedEntry]:
    first = start.encode()
    stored = dict(await objects.carry(tree.entries(root, first)))
    committed = [key for key in stored if key not in changes]
    values = dict(zip(committed, await objects.values([stored[key] for key in committed]), strict=True))
    found = {key: VersionedEntry(key.decode(), value) for key, value in values.items()}
    for key, change in changes.items():
        if change is not None and key >= first:
            found[key] = VersionedEntry(key.decode(), change, staged=True)
    return [found[key] for key in sorted(found)]


def _entries(
    keys: Sequence[str], found: dict[bytes, bytes], changes: dict[bytes, bytes | None]
) -> list[VersionedEntry | None]:
    result: list[VersionedEntry | None] = []
    for key in keys:
        value = changes.get(key.encode(), found.get(key.encode()))
        result.append(None if value is None else VersionedEntry(key, value, key.encode() in changes))
    return result
