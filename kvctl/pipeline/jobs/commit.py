"""Record rows of files as one commit: tasks store leaves, the driver makes a tree of them and moves the branch."""

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
from kvctl.versions.branch import staging
from kvctl.versions.commits import Note, NothingToCommit
from kvctl.versions.model import Commit
from kvctl.versions.repositories import open_repository
from kvctl.versions.tree import tree
from kvctl.versions.tree.join_leaves import joined

if TYPE_CHECKING:
    from kvctl.pipeline.spark.engine import Engine

TIMES = 3
"""Times that everything is stored, where collections of garbage come between."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit came to."""

    commit: Commit
    recorded: bool
    """False when an earlier run had recorded it."""
    rows: int
    seconds: float


def commit(
    engine: Engine, source: Input, options: SourceOptions, branch: str, message: str,
    *, meta: Mapping[str, str], author: str | None,
) -> Committed:  # fmt: skip
    """Record the rows, and nothing else, onto a branch of the repository `options.bucket` without staged changes.

    Raises Staged, NothingToCommit, BranchNotFound, RepositoryNotFound, UsageError; the branch is then as it was.
    """
    begun = time.monotonic()
    note = _Note(message, author, meta)
    with engine.explaining():
        rows = rows_of(engine, source)
        for _ in range(TIMES):
            collections = worker_connection.run(_ready(options, branch))
            engine.doing = "storing leaves"
            parts = leaves_of(rows, options)
            engine.doing = f"committing to {branch}"
            made = worker_connection.run(_move(options, branch, note, parts, collections))
            if made is not None:
                count = sum(leaf.entries for part in parts for leaf in part)
                return Committed(made[0], made[1], count, time.monotonic() - begun)
    raise ConflictError(
        f"Repository `{options.bucket}` was collected each time while rows were stored", hint="Try again"
    )


def rehearse(engine: Engine, source: Input, options: SourceOptions, branch: str) -> int:
    """How many rows a commit would record: they are checked and compared, and nothing is stored. Raises as `commit`."""
    with engine.explaining():
        engine.doing = "comparing leaves"
        leaves = [leaf for part in leaves_of(rows_of(engine, source), options, dry_run=True) for leaf in part]
        worker_connection.run(_compare(options, branch, [leaf.identity for leaf in leaves]))
    return sum(leaf.entries for leaf in leaves)


async def _compare(options: SourceOptions, branch: str, leaves: Sequence[bytes]) -> None:
    """Raises NothingToCommit where a branch has just these leaves."""
    async with worker_connection.connected(options) as client:
        repository = await open_repository(client.api, options.bucket)
        root = bytes.fromhex((await repository.show(branch)).root)
        if await repository.objects.carry(tree.leaves(root)) == list(leaves):
            raise NothingToCommit("There is nothing to record")


@dataclass(frozen=True, slots=True)
class _Note:
    message: str
    author: str | None
    meta: Mapping[str, str]


async def _ready(options: SourceOptions, branch: str) -> int:
    """How many collections of garbage began before any object was stored. Raises Staged, BranchNotFound."""
    async with worker_connection.connected(options) as client:
        repository = await open_repository(client.api, options.bucket, write=True)
        stand = await commits.clean(repository.store, repository.objects, branch)
        return stand.collections.collection.begun


async def _move(
    options: SourceOptions, branch: str, note: _Note, parts: Sequence[Sequence[Leaf]], collections: int
) -> tuple[Commit, bool] | None:
    """The commit, and whether this run made it; None where a collection may have taken what was stored."""
    async with worker_connection.connected(options) as client:
        repository = await open_repository(client.api, options.bucket, write=True, author=note.author)
        objects = repository.objects
        whole = await objects.carry(joined([[(leaf.last, leaf.identity) for leaf in part] for part in parts]))
        said = Note(note.message, repository.author, note.meta)
        for _ in range(staging.TRIES):
            stand = await commits.clean(repository.store, objects, branch)
            if stand.collections.collection.begun != collections:
                return None
            try:
                made = await commits.move_to(repository.store, objects, stand, said, whole.root, whole.objects)
            except NothingToCommit:
                head = await repository.show(branch)
                if head.message == note.message and head.root == whole.root.hex():
                    return head, False
                raise
            if made is not None:
                return made, True
            await staging.pause()
        raise staging.busy(branch)
