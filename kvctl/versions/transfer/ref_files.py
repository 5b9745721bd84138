"""Files of a repository: load rows onto a branch as staged changes, and dump a ref as `load` reads it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, BinaryIO

from kvctl.errors import HazardRefused, UsageError
from kvctl.kv.bulk.bulk_writer import RowCounts
from kvctl.kv.bulk.dump_file import DumpSummary, DumpWriter, entry_line
from kvctl.kv.bulk.input_file import LoadInput, RowBatch
from kvctl.kv.bulk.loader import SHORTER_HISTORY, LoadOptions, read
from kvctl.kv.bulk.rows import BadRow, Mode, Row
from kvctl.kv.entry import Operation
from kvctl.units import format_time
from kvctl.versions import commits, ref_reader, refs
from kvctl.versions.branch import private_epoch
from kvctl.versions.branch.private_epoch import Load
from kvctl.versions.branch.staging import IdentityMismatch
from kvctl.versions.model import leaf_value
from kvctl.versions.ref_reader import EntrySelection
from kvctl.versions.repository import Repository

ROWS_PER_BATCH = 10_000
"""Number of rows of distinct keys staged together."""
TOGETHER_BYTES = 16 << 20
WRITES_IN_FLIGHT = 200
"""Number of conditional writes in flight, which share batches."""


async def load(repository: Repository, branch: str, source: LoadInput, options: LoadOptions) -> RowCounts:
    """Stage the rows of an input, all together at its end; rows that no repository can hold are reported and counted.

    With CREATE_ONLY, existing keys (staged or committed) are left unchanged; with IF_DIFFERENT, those with the same
    value. Raises BranchNotFound, ConflictError after too many retries, UsageError (with `strict` for a bad row, too),
    HazardRefused, and server errors.
    """
    if source.dump is not None and source.dump.history and not options.shorter_history:
        raise HazardRefused(
            SHORTER_HISTORY,
            "The dump has several revisions of some keys; staged on a branch, only the last one stays",
            hint=f"`--force {SHORTER_HISTORY}` stages it anyway",
        )
    if options.strict:
        checking = _Loading(repository, branch, replace(options, mode=Mode.PUT, dry_run=True), None)
        async for batch in read(source):
            await checking.take(batch)
        if count := checking.loaded.rejected:
            raise UsageError(f"Found {count} bad row{'s' if count > 1 else ''}: nothing was written")
    async with private_epoch.load(repository.store, repository.writer, branch) as changes:
        loading = _Loading(repository, branch, options, changes)
        async for batch in read(source):
            await loading.take(batch)
            options.advance_rows(len(batch.rows))
            options.advance(batch.size)
    return loading.loaded


async def dump(
    repository: Repository,
    name: str,
    config: dict[str, Any],
    ref: str,
    file: BinaryIO,
    filters: Sequence[str] = (),
    *,
    advance: Callable[[int], None] = lambda _: None,
) -> DumpSummary:
    """Write the keys at a ref, for a branch with its staged changes, into an empty file; the cut is a commit's id.

    `staged` in the header is the number of keys staged on top of that commit. Raises RefNotFound, UsageError, OSError.
    """
    state = await ref_reader.state(repository.store, await refs.resolve(repository.store, ref))
    stored = {
        key: change._replace(value=None if change.value is None else leaf_value(change.value)[0])
        for key, change in state.staged.items()
    }
    staged = len(await commits.differing(repository.objects, state.root, stored))
    header = {
        "bucket": name,
        "config": config,
        "cut": state.commit,
        "ref": ref,
        **({"staged": staged} if staged else {}),
        "created": format_time(time.time_ns()),
        "history": False,
        **({"filters": list(filters)} if filters else {}),
    }
    writer = DumpWriter(file, header)
    async with aclosing(ref_reader.batches(repository.objects, state, EntrySelection(tuple(filters)))) as batches:
        async for batch in batches:
            writer.add(b"".join([entry_line(name, entry.key, entry.value) for entry in batch]), len(batch))
            advance(len(batch))
    return DumpSummary(writer.entries, state.commit, writer.finish(exact=True))


class _Loading:
    """One load."""

    def __init__(self, repository: Repository, branch: str, options: LoadOptions, changes: Load | None) -> None:
        self.loaded = RowCounts()
        self._changes = changes
        self._repository = repository
        self._branch = branch
        self._options = options

    async def take(self, batch: RowBatch) -> None:
        for bad in batch.bad:
            self._reject(bad.line, bad.reason)
        for rows in _parts([row for row in batch.rows if self._acceptable(row)]):
            wanted = await self._wanted(rows)
            self.loaded.unchanged += len(rows) - len(wanted)
            self.loaded.written += len(wanted)
            if self._options.dry_run or self._changes is None:
                continue
            if self._options.mode is Mode.CREATE_ONLY:
                await self._create(wanted)
            else:
                await self._changes.add({row.key.encode(): _value(row) for row in wanted})

    def _acceptable(self, row: Row) -> bool:
        reason = None
        if row.header and row.operation is Operation.PUT:
            reason = "Repository entries cannot have a ttl or headers"
        else:
            try:
                self._repository.check(row.key, row.value)
            except UsageError as error:
                reason = error.message
        if reason is not None:
            self._reject(row.line, reason)
        return reason is None

    def _reject(self, line: int, reason: str) -> None:
        self.loaded.rejected += 1
        self._options.rejected(BadRow(line, reason))

    async def _create(self, rows: Sequence[Row]) -> None:
        """Stage each row on condition that the key still does not exist; existing keys are left unchanged."""
        slots = asyncio.Semaphore(WRITES_IN_FLIGHT)

        async def one(row: Row) -> None:
            async with slots:
                try:
                    await self._repository.write_if(self._branch, row.key, _value(row), None)
                except IdentityMismatch:
                    self.loaded.written -= 1
                    self.loaded.unchanged += 1

        await asyncio.gather(*(one(row) for row in rows))

    async def _wanted(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows that the mode writes."""
        if self._options.mode is Mode.PUT:
            return rows
        there = await self._repository.get(self._branch, *(row.key for row in rows))
        if self._options.mode is Mode.CREATE_ONLY:
            return [row for row, entry in zip(rows, there, strict=True) if entry is None]
        values = {row.key.encode(): entry and entry.value for row, entry in zip(rows, there, strict=True)}
        if self._changes is not None:
            values |= await self._changes.added(values)
        return [row for row in rows if _value(row) != values[row.key.encode()]]


def _value(row: Row) -> bytes | None:
    """Return the value to stage; None deletes."""
    return row.value if row.operation is Operation.PUT else None


def _parts(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Split rows, in order, into parts with each key at most once."""
    part: list[Row] = []
    keys: set[str] = set()
    size = 0
    for row in rows:
        if row.key in keys or len(part) >= ROWS_PER_BATCH or size > TOGETHER_BYTES:
            yield part
            part, keys, size = [], set(), 0
        part.append(row)
        keys.add(row.key)
        size += len(row.value)
    if part:
        yield part
