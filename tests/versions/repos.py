"""Contents of a repository, in the short forms that tests compare."""

from collections.abc import Iterable

from kvctl.versions import refs
from kvctl.versions.branch import branch_state, epochs
from kvctl.versions.model import Commit
from kvctl.versions.ref_diff import KeyChange, Value
from kvctl.versions.refs import COMMITS
from kvctl.versions.repository import Repository
from kvctl.versions.store.protocol import Store


async def held(repo: Repository, ref: str = "main") -> dict[str, bytes]:
    return {entry.key: entry.value for entry in await repo.entries(ref)}


async def staged(repo: Repository, branch: str = "main") -> dict[str, Value]:
    return {change.key: change.after for change in await resolved(repo, (await repo.status(branch)).changes)}


async def resolved(repo: Repository, changes: Iterable[KeyChange]) -> list[KeyChange]:
    """Return changes with their large values read."""
    return [one async for some in repo.resolved(changes) for one in some]


async def history(repo: Repository, ref: str = "main") -> list[str]:
    return [commit.message async for _, commit in repo.log(ref)]


async def committed(repo: Repository, branch: str, message: str, **changes: bytes | None) -> Commit:
    await repo.put_many(branch, {key.replace("_", "."): value for key, value in changes.items()})
    return await repo.commit(branch, message)


async def history_ids(repo: Repository, ref: str = "main") -> list[str]:
    return [identity async for identity, _ in repo.log(ref)]


async def stranger(repo: Repository) -> str:
    """Create a tagged commit without common history; return its id."""
    made = Commit(root=(await repo.show("main")).root, parents=(), message="", author="", created_ns=1)
    await repo.store.set(COMMITS, bytes.fromhex(made.id), made.encode())
    if "stranger" not in await repo.tags():
        await repo.create_tag("stranger", made.id)
    return made.id


async def whole(repo: Repository) -> None:
    """Check that all reachable data can be read in a fresh session."""
    fresh = Repository(repo.store)
    seen: set[str] = set()
    for ref in [*await fresh.branches(), *await fresh.tags()]:
        await fresh.entries(ref)
        async for identity, _ in fresh.log(ref):
            if identity not in seen:
                seen.add(identity)
                await fresh.entries(identity)


async def seal(store: Store, branch: str) -> None:
    """Close the epoch of a branch, as a commit does."""
    while await epochs.sealed(store, await refs.branch(store, branch)) is None:
        await branch_state.pause()


async def reservations(store: Store) -> list[str]:
    """Return the epochs that are reserved."""
    return [entry.key.decode() async for entry in store.scan(epochs.RESERVED)]
