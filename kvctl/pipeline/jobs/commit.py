"""Record rows of files as one commit: tasks store leaves, the driver builds a tree of them and moves the branch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvctl.errors import ConflictError
from kvctl.pipeline.jobs.commit_rows import Leaf, leaves_of
from kvctl.pipeline.jobs.load import Input, rows_of
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.read import worker_connection
from kvctl.versions import commits
from kvctl.versions.branch import branch_state
from kvctl.versions.commits import CommitInfo, NothingToCommit
from kvctl.versions.model import Commit
from kvctl.versions.repositories import open_repository
from kvctl.versions.tree import tree
from kvctl.versions.tree.tree import joined

if TYPE_CHECKING:
    from kvctl.pipeline.spark.engine import Engine

TIMES = 3
"""Number of attempts, if garbage collections interfere."""


@dataclass(frozen=True, slots=True)
class Committed:
    """Result of a commit."""

    commit: Commit
    recorded: bool
    """False if an earlier run had recorded it."""
    rows: int
    seconds: float


def commit(
    engine: Engine, source: Input, options: SourceOptions, branch: str, message: str,
    *, meta: Mapping[str, str], author: str | None,
) -> Committed:  # fmt: skip
    """Record the rows, and nothing else, onto a branch of the repository `options.bucket` without staged changes.

    Raises Staged, NothingToCommit, BranchNotFound, RepositoryNotFound, UsageError; the branch is then unchanged.
    """
    begun = time.monotonic()
    info = _Note(message, author, meta)
    with engine.explaining():
        rows = rows_of(engine, source)
        for _ in range(TIMES):
            collections = worker_connection.run(_ready(options, branch))
            engine.doing = "storing leaves"
            parts = leaves_of(rows, options)
            engine.doing = f"committing to {branch}"
            made = worker_connection.run(_move(options, branch, info, parts, collections))
            if made is not None:
                count = sum(leaf.entries for part in parts for leaf in part)
                return Committed(made[0], made[1], count, time.monotonic() - begun)
    raise ConflictError(
        f"A garbage collection of repository `{options.bucket}` interfered with every attempt", hint="Try again"
    )


def rehearse(engine: Engine, source: Input, options: SourceOptions, branch: str) -> int:
    """Return the number of rows a commit would record: checks and compares them, stores nothing. Raises as `commit`."""
    with engine.explaining():
        engine.doing = "comparing leaves"
        leaves = [leaf for part in leaves_of(rows_of(engine, source), options, dry_run=True) for leaf in part]
        worker_connection.run(_compare(options, branch, [leaf.identity for leaf in leaves]))
    return sum(leaf.entries for leaf in leaves)


async def _compare(options: SourceOptions, branch: str, leaves: Sequence[bytes]) -> None:
    """Raises NothingToCommit if the branch already has exactly these leaves."""
    async with worker_connection.connected(options) as client:
        repository = await open_repository(client.api, options.bucket)
        root = bytes.fromhex((await repository.show(branch)).root)
        if await repository.objects.run(tree.leaves(root)) == list(leaves):
            raise NothingToCommit("Nothing to commit")


@dataclass(frozen=True, slots=True)
class _Note:
    message: str
    author: str | None
    meta: Mapping[str, str]


async def _ready(options: SourceOptions, branch: str) -> int:
    """Return how many garbage collections began before any object is stored. Raises Staged, BranchNotFound."""
    async with worker_connection.connected(options) as client:
        repository = await open_repository(client.api, options.bucket, write=True)
        state = await commits.read_clean(repository, branch)
        return state.collections.collection.begun


async def _move(
    options: SourceOptions, branch: str, info: _Note, parts: Sequence[Sequence[Leaf]], collections: int
) -> tuple[Commit, bool] | None:
    """Return the commit, and whether this run created it; None if a collection may have removed stored objects."""
    async with worker_connection.connected(options) as client:
        repository = await open_repository(client.api, options.bucket, write=True, author=info.author)
        whole = await repository.objects.run(joined([[(leaf.last, leaf.identity) for leaf in part] for part in parts]))
        commit_info = CommitInfo(info.message, repository.author, info.meta)
        for _ in range(branch_state.MAX_ATTEMPTS):
            state = await commits.read_clean(repository, branch)
            if state.collections.collection.begun != collections:
                return None
            try:
                made = await commits.move_to(repository, state, commit_info, whole)
            except NothingToCommit:
                head = await repository.show(branch)
                if head.message == info.message and head.root == whole.root.hex():
                    return head, False
                raise
            if made is not None:
                return made, True
            await branch_state.pause()
        raise branch_state.busy(branch)
