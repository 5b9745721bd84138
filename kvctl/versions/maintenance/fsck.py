"""Check a repository for broken references and unreferenced data: cheap and read-only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvctl.versions.branch import branch_state, dropped_epochs
from kvctl.versions.branch.staging import STAGING
from kvctl.versions.catalog import Found
from kvctl.versions.maintenance import lost_keys
from kvctl.versions.maintenance.lost_keys import Loss
from kvctl.versions.model import Commit
from kvctl.versions.refs import COMMITS
from kvctl.versions.repository import Repository
from kvctl.versions.store.protocol import Store
from kvctl.versions.tree.objects import OBJECTS

LOOKED_AT = 1000
"""Maximum number of commits checked, from branches and tags on."""
MOST_RECORDS = 100_000
"""Maximum number of records whose subjects are listed to find orphans: one page of the server's."""


class Kind(StrEnum):
    """Kind of problem."""

    MISSING_COMMIT = "missing-commit"
    """A branch, a tag or a commit refers to a missing commit."""
    MISSING_OBJECT = "missing-object"
    """The tree of a commit is missing."""
    MISSING_STAGING = "missing-staging"
    """A branch has no staging record: it can be neither read nor written."""
    ORPHANED_EPOCHS = "orphaned-epochs"
    """Staged changes that no branch uses, recorded or dropped ones included."""
    LOST_KEYS = "lost-keys"
    """A commit has none of its parent's keys, see `lost_keys`."""
    INTERRUPTED_COLLECTION = "interrupted-collection"
    """A garbage collection was interrupted or is running."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """One problem and its evidence."""

    kind: Kind
    evidence: str
    branch: str = ""
    commit: str = ""
    """Branch and commit that a remedy needs to name."""


async def inspect(found: Found, repository: Repository) -> list[Flaw]:
    """Return the problems of a repository. Raises what reading raises."""
    store = repository.store
    branches = await repository.branches()
    leads = {f"Branch `{name}`": commit for name, commit in branches.items()}
    leads |= {f"Tag `{name}`": commit for name, commit in (await repository.tags()).items()}
    flaws = [flaw async for flaw in _broken(store, leads)]
    flaws += await _without_staging(store, list(branches))
    flaws += [_lost(loss) for loss in await lost_keys.losses(store, repository.objects, branches)]
    if found.info["state"].get("num_subjects", 0) <= MOST_RECORDS and (epochs := await _orphaned(store)):
        what = "epoch of staged changes is" if len(epochs) == 1 else "epochs of staged changes are"
        flaws.append(Flaw(Kind.ORPHANED_EPOCHS, f"{len(epochs)} {what} not used by any branch"))
    if (await branch_state.collections(store)).collection.deleting:
        flaws.append(Flaw(Kind.INTERRUPTED_COLLECTION, "A garbage collection was interrupted or is running"))
    return flaws


async def _broken(store: Store, leads: dict[str, str]) -> AsyncIterator[Flaw]:
    """Return the references to missing commits, nearest to branches and tags first."""
    looked: set[str] = set()
    while leads and len(looked) < LOOKED_AT:
        looked.update(leads.values())
        there = await store.get_many([(COMMITS, bytes.fromhex(commit)) for commit in leads.values()])
        commits = [Commit.decode(value) for value in {item.value for item in there if item is not None}]
        for (who, commit), item in zip(leads.items(), there, strict=True):
            if item is None:
                yield Flaw(Kind.MISSING_COMMIT, f"{who} refers to commit `{commit}`, which is missing")
        roots = await store.get_many([(OBJECTS, bytes.fromhex(commit.root)) for commit in commits], lasting=True)
        for commit_found, root in zip(commits, roots, strict=True):
            if root is None:
                text = f"Commit `{commit_found.id}` needs object `{commit_found.root}`, which is missing"
                yield Flaw(Kind.MISSING_OBJECT, text)
        leads = {f"Commit `{one.id}`": parent for one in commits for parent in one.parents if parent not in looked}


def _lost(loss: Loss) -> Flaw:
    text = (
        f"Commit `{loss.commit}` on branch `{loss.branch}` has no key of its parent `{loss.parent}`: "
        "an earlier version of kvctl may have lost them"
    )
    return Flaw(Kind.LOST_KEYS, text, loss.branch, loss.parent)


async def _without_staging(store: Store, branches: Sequence[str]) -> list[Flaw]:
    held = await store.get_many([(STAGING, name.encode()) for name in branches])
    return [
        Flaw(Kind.MISSING_STAGING, f"Branch `{name}` has no staging record")
        for name, item in zip(branches, held, strict=True)
        if item is None
    ]


async def _orphaned(store: Store) -> list[str]:
    """Return the epochs with changes that garbage collection would clear."""
    return [
        epoch for epoch in await dropped_epochs.uncollected(store) if await dropped_epochs.has_changes(store, epoch)
    ]
