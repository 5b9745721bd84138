"""Record rows of files as one commit: tasks store leaves, the driver builds a tree of them and moves the branch."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from kvctl.errors import ConflictError, UsageError
from kvctl.kv.names import matches
from kvctl.pipeline import worker_connection
from kvctl.pipeline.jobs.export import Contents
from kvctl.pipeline.jobs.load import Input, rows_of
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.read.snapshot_plan import runs
from kvctl.pipeline.spark import tasks
from kvctl.pipeline.spark.tasks import TaskRows
from kvctl.pipeline.tables.origin import EXPORT, LATEST, TableOrigin
from kvctl.versions import commits
from kvctl.versions.branch import branch_state
from kvctl.versions.commits import CommitInfo, NothingToCommit
from kvctl.versions.model import Commit, leaf_value
from kvctl.versions.repositories import open_repository, opened
from kvctl.versions.repository import Repository
from kvctl.versions.tree import tree
from kvctl.versions.tree.chunks import Chunker, Pair, TreeChunk
from kvctl.versions.tree.objects import MissingObject
from kvctl.versions.tree.tree import NewChunks, NewTree, joined

if TYPE_CHECKING:
    import pyarrow as pa

    from kvctl.pipeline.spark.engine import Engine

HAND_OVER = 4 << 20
"""Bytes of objects that a task stores at a time."""
A_TASK = 2_000
"""Number of leaves per task: some 100,000 entries."""
READ_AHEAD = 64
"""Number of leaves that a task reads at a time."""
BORDER = 16
"""Number of leaves at the beginning of a range that are kept in a dry run: cut again, two or three differ."""


# -- reading ---------------------------------------------------------------------------------------------


def of_commit(options: SourceOptions, ref: str) -> Contents:
    """Return the entries of a commit of the repository `options.bucket` that match the filters.

    Raises RepositoryNotFound, RefNotFound, UsageError.
    """
    commit, config, created, leaves = worker_connection.run(_commit(options, ref))
    parts = runs(leaves, [1] * len(leaves), options.partitions or max(-(-len(leaves) // A_TASK), 1))
    committed = datetime.fromtimestamp(commit.created_ns // 1000 / 10**6, UTC)
    origin = TableOrigin(
        kind=EXPORT,
        bucket=options.bucket,
        ref=commit.id,
        instance=created,
        config=config,
        mode=LATEST,
        filters=options.filter,
    )
    return Contents(rows=TaskRows(parts, partial(_rows, options, committed)), origin=origin)


async def _commit(options: SourceOptions, ref: str) -> tuple[Commit, dict[str, Any], str, list[bytes]]:
    async with worker_connection.connected(options) as client:
        found, repository = await opened(client.api, options.bucket)
        commit = await repository.show(ref)
        leaves = await repository.objects.run(tree.leaves(bytes.fromhex(commit.root)))
        return commit, found.info["config"], found.info["created"], leaves


def _rows(options: SourceOptions, created: datetime, ids: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    return worker_connection.iterate(partial(_leaf_rows, options, ids, created))


async def _leaf_rows(
    options: SourceOptions, ids: Sequence[bytes], created: datetime
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the rows of some leaves, one batch each."""
    import pyarrow as pa

    async with worker_connection.connected(options) as client:
        repository = await open_repository(client.api, options.bucket)
        async for chunk in _chunks(repository, ids):
            keys, stored = _matching(chunk, options.filter)
            if not keys:
                continue
            count = len(keys)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(keys, pa.string()),
                    pa.array(await repository.objects.values(stored), pa.binary()),
                    pa.nulls(count, pa.int64()),
                    pa.array([created] * count, pa.timestamp("us", tz="UTC")),
                    pa.array(["PUT"] * count, pa.string()),
                    pa.nulls(count, pa.float64()),
                    pa.nulls(count, pa.map_(pa.string(), pa.string())),
                ],
                names=["key", "value", "revision", "created", "operation", "ttl", "headers"],
            )


async def _chunks(repository: Repository, ids: Sequence[bytes]) -> AsyncGenerator[TreeChunk, None]:
    """Yield leaves in order, with a few of them in memory at a time."""
    for start in range(0, len(ids), READ_AHEAD):
        some = ids[start : start + READ_AHEAD]
        data = await repository.objects.read(some, keep=False)
        for identity in some:
            yield TreeChunk.decode(data[identity])


def _matching(chunk: TreeChunk, filters: tuple[str, ...]) -> tuple[list[str], list[bytes]]:
    """Return the keys of a leaf that match a filter (without filters, all), and their values as stored."""
    keys = [key.decode() for key in chunk.keys]
    if not filters:
        return keys, list(chunk.values)
    chosen = [(key, stored) for key, stored in zip(keys, chunk.values, strict=True) if matches(key, filters)]
    return [key for key, _ in chosen], [stored for _, stored in chosen]


# -- writing ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskLeaves:
    """Leaves that a task has stored."""

    rows: int
    leaves: list[Pair]
    """Last key and id of each."""
    borders: dict[bytes, bytes]
    """In a dry run, objects of the first and last leaves: those that are cut again where ranges of keys meet."""


def leaves_of(engine: Engine, source: Input, options: SourceOptions, *, dry_run: bool = False) -> list[TaskLeaves]:
    """Sort rows of `key` and `value`, cut them into leaves, and store these; return those of each task, in order.

    Raises UsageError for an illegal or duplicate key, and for a null or too large value.
    """
    rows = rows_of(engine, source, ("key", "value"))
    return tasks.over(engine, rows, partial(_stored, options, dry_run), "key")


def _stored(options: SourceOptions, dry_run: bool, batches: Iterator[pa.RecordBatch]) -> Iterator[TaskLeaves]:
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is not None:
        yield worker_connection.run(_store(options, first, batches, dry_run))


async def _store(
    options: SourceOptions, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch], dry_run: bool
) -> TaskLeaves:
    async with worker_connection.connected(options) as client:
        repository = await open_repository(client.api, options.bucket, write=not dry_run)
        writer = _LeafWriter(repository, dry_run=dry_run)
        await writer.add(first)
        for batch in batches:
            await writer.add(batch)
        return await writer.finish()


class _LeafWriter:
    """Cuts sorted rows into leaves, and stores them with the separately stored values."""

    def __init__(self, repository: Repository, *, dry_run: bool) -> None:
        self._repository = repository
        self._dry_run = dry_run
        self._cut = Chunker(0)
        self._made = NewChunks()
        self._rows = 0
        self._leaves: list[Pair] = []
        self._borders: dict[bytes, bytes] = {}
        self._before = ""

    async def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        keys: list[bytes] = []
        values: list[bytes] = []
        if batch.num_columns > 2:
            _check_problems(batch)
        for key, value in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            stored, apart = leaf_value(self._checked(key, value))
            keys.append(key.encode())
            values.append(stored)
            self._made.objects.update(apart)
            self._made.size += sum(map(len, apart.values()))
        for chunk in self._cut.add(keys, values):
            self._end(chunk)
        if self._made.size >= HAND_OVER:
            await self._hand_over()

    async def finish(self) -> TaskLeaves:
        """Return all leaves, once they are stored."""
        if (chunk := self._cut.end()) is not None:
            self._end(chunk)
        await self._hand_over()
        return TaskLeaves(self._rows, self._leaves, self._borders)

    async def _hand_over(self) -> None:
        objects = self._made.take()
        if self._dry_run:
            near = {identity for _, identity in self._leaves[:BORDER] + self._leaves[-1:]}
            self._borders |= {identity: objects[identity] for identity in near & objects.keys()}
        else:
            await self._repository.objects.write(objects, keep=False)

    def _checked(self, key: str | None, value: bytes | None) -> bytes:
        if key is None or value is None:
            raise UsageError("A row has no key" if key is None else f"`{key}` has no value")
        if key == self._before:
            raise UsageError(f"Key `{key}` occurs twice", hint="Each key must be unique in a commit")
        self._before = key
        self._repository.check(key, value)
        return value

    def _end(self, chunk: TreeChunk) -> None:
        self._rows += len(chunk.keys)
        self._leaves.append(self._made.add(chunk))


def _check_problems(batch: pa.RecordBatch) -> None:
    """Raises UsageError for the first row that has a problem."""
    for key, problem in zip(batch.column(0).to_pylist(), batch.column(2).to_pylist(), strict=True):
        if problem is not None:
            raise UsageError(f"`{key or ''}`: {problem}")


TIMES = 3
"""Number of attempts, if garbage collections interfere."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Result of a commit."""

    commit: Commit
    recorded: bool
    """False if an earlier run had recorded it."""
    rows: int


def commit(
    engine: Engine,
    source: Input,
    options: SourceOptions,
    branch: str,
    message: str,
    *,
    meta: Mapping[str, str],
    author: str | None,
) -> CommitResult:
    """Record the rows, and nothing else, onto a branch of the repository `options.bucket` without staged changes.

    Raises HasStagedChanges, NothingToCommit, BranchNotFound, RepositoryNotFound, UsageError: the branch is unchanged.
    """
    info = _Note(message, author, meta)
    with engine.explaining():
        for _ in range(TIMES):
            collections = worker_connection.run(_ready(options, branch))
            engine.doing = "storing leaves"
            parts = leaves_of(engine, source, options)
            engine.doing = f"committing to {branch}"
            made = worker_connection.run(_move(options, branch, info, parts, collections))
            if made is not None:
                return CommitResult(*made, sum(part.rows for part in parts))
    raise ConflictError(
        f"A garbage collection of repository `{options.bucket}` interfered with every attempt", hint="Try again"
    )


def rehearse(engine: Engine, source: Input, options: SourceOptions, branch: str) -> int:
    """Return the number of rows a commit would record: checks and compares them, stores nothing. Raises as `commit`."""
    with engine.explaining():
        engine.doing = "comparing leaves"
        parts = leaves_of(engine, source, options, dry_run=True)
        worker_connection.run(_compare(options, branch, parts))
    return sum(part.rows for part in parts)


async def _compare(options: SourceOptions, branch: str, parts: Sequence[TaskLeaves]) -> None:
    """Raises NothingToCommit if the branch already has exactly these leaves."""
    async with worker_connection.connected(options) as client:
        repository = await open_repository(client.api, options.bucket)
        head = await repository.show(branch)
        for part in parts:
            repository.objects.keep(part.borders)
        with suppress(MissingObject):  # a leaf that the branch lacks
            if (await _joined(repository, parts)).root.hex() == head.root:
                raise NothingToCommit("Nothing to commit")


async def _joined(repository: Repository, parts: Sequence[TaskLeaves]) -> NewTree:
    return await repository.objects.run(joined([part.leaves for part in parts]))


@dataclass(frozen=True, slots=True)
class _Note:
    message: str
    author: str | None
    meta: Mapping[str, str]


async def _ready(options: SourceOptions, branch: str) -> int:
    """Return how many collections began before any object is stored. Raises HasStagedChanges, BranchNotFound."""
    async with worker_connection.connected(options) as client:
        repository = await open_repository(client.api, options.bucket, write=True)
        state = await commits.read_clean(repository, branch)
        return state.collections.collection.begun


async def _move(
    options: SourceOptions, branch: str, info: _Note, parts: Sequence[TaskLeaves], collections: int
) -> tuple[Commit, bool] | None:
    """Return the commit, and whether this run created it; None if a collection may have removed stored objects."""
    async with worker_connection.connected(options) as client:
        repository = await open_repository(client.api, options.bucket, write=True, author=info.author)
        whole = await _joined(repository, parts)
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
