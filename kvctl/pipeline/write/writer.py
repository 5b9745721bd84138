"""Writers of the data source: planned on the driver, run in tasks, committed on the driver.

An overwrite writes all rows as an append does, then deletes the keys that are not among them. One that fails deletes
nothing, but may have replaced values. It is not atomic: until it ends, a reader sees some keys new and some old. Run it
again to complete it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kvctl.errors import KvctlError, PartlyDone, UsageError
from kvctl.kv.bulk.bulk_writer import WriteTarget, target_of
from kvctl.kv.conditional_write import write_headers
from kvctl.kv.names import RESERVED, check_key
from kvctl.kv.read import listing
from kvctl.phrases import counted
from kvctl.pipeline.error_transport import crossing
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.worker_connection import connected, run
from kvctl.pipeline.write.arrow_rows import RowChunk, check_columns
from kvctl.pipeline.write.decision import WriteMode, WritePlan
from kvctl.pipeline.write.publisher import Publisher
from kvctl.pipeline.write.row_ids import job_of, new_job
from kvctl.pipeline.write.task_registry import begin, forget, release
from kvctl.pipeline.write.write_task import SHOWN, Attempt, TaskResult, ids_of, write_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


RUN = "spark.jobGroup.id"
QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"

_first: dict[tuple[str, str], str] = {}
"""First batch of each query run that this worker has seen: later ones of the run are new."""


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """Result of a write, of all its tasks."""

    written: int = 0
    unchanged: int = 0
    rejected: int = 0
    samples: tuple[tuple[str, str], ...] = ()
    """First rejected rows: key, cause."""

    @classmethod
    def of(cls, messages: Sequence[WriterCommitMessage | None]) -> WriteSummary:
        """Add up the messages of the tasks. Raises PartlyDone if files of rejected rows are not visible here."""
        tasks = [message for message in messages if isinstance(message, TaskResult)]
        for place, name in (task.letters for task in tasks if task.letters and task.counts.rejected):
            if not place.sizes([name]):
                problem = f"Rows were rejected, and `{place}` does not have all of them for this machine"
                raise PartlyDone(problem, hint="All machines have to share the folder, under the same path")
        counts = [task.counts for task in tasks]
        return cls(
            sum(count.written for count in counts),
            sum(count.unchanged for count in counts),
            sum(count.rejected for count in counts),
            tuple(sample for task in tasks for sample in task.samples)[:SHOWN],
        )

    @property
    def rejections(self) -> str:
        """Return the first rejected rows with their causes, and the number of others."""
        more = self.rejected - len(self.samples)
        return "; ".join(f"`{key}`: {cause}" for key, cause in self.samples) + (f"; and {more} more" if more else "")

    def require_all(self, options: SourceOptions) -> None:
        """Raises PartlyDone if rows were rejected and are not stored as dead letters."""
        if not self.rejected or options.dead_letter:
            return
        rejected = f"{counted(self.rejected, 'row')} cannot be written: {self.rejections}"
        raise PartlyDone(
            f"{self.written} rows were written to `{options.bucket}`, but {rejected}",
            hint="Set option `deadLetter` to a folder that stores such rows and their causes",
        )


class KvWriter(DataSourceArrowWriter):
    """Batch write. Created on the driver, which decides what all attempts of all tasks share."""

    def __init__(self, schema: StructType, options: SourceOptions, overwrite: bool = False) -> None:
        """Raises UsageError for columns that cannot be written, and the errors of a put."""
        check_columns(schema, WriteMode(options.write_mode))
        if overwrite:
            _check_overwrite(options)
        self._options = options
        self._overwrite = overwrite
        self._again = options.write_id is not None and not overwrite
        """True if an earlier job may have started it: an overwrite always starts over."""
        self._job = job_of(options.write_id or "") if self._again else new_job()
        self._since = run(_prepare(options, self._job if self._again else None))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Run one task."""
        attempt = Attempt.of_task(self._job, since=self._since, replay=self._again)
        return run(write_rows(self._options, attempt, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Finish after all tasks. Raises PartlyDone if rows could not be written."""
        with crossing():
            summary = self.finish(messages)
            summary.require_all(self._options)
            if self._overwrite:
                removed = run(remove_others(self._options, self._since or 0))
                counts = f"{summary.written} entries written, {removed} keys deleted"
                print(f"nats-kv: bucket `{self._options.bucket}` overwritten: {counts}", file=sys.stderr)
            if self._again:
                run(_release(self._options, self._job, over=self._job))

    def finish(self, messages: Sequence[WriterCommitMessage | None]) -> WriteSummary:
        """Remove the claims of all tasks, and return what they did."""
        run(_release(self._options, self._job))
        return WriteSummary.of(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None] = ()) -> None:
        """Handle a failed task. TaskResult rows stay: others may still write, and deleting keys undoes nothing."""
        with suppress(KvctlError):
            run(_release(self._options, self._job))


class KvStreamWriter(DataSourceStreamArrowWriter):
    """Stream write: each batch of a query is written once, however often Spark runs it."""

    def __init__(self, schema: StructType, options: SourceOptions, overwrite: bool) -> None:
        """Raises UsageError."""
        if overwrite:
            raise UsageError(
                "Output mode complete is not supported: it would replace the bucket's content with each batch",
                hint="Write in `foreachBatch` with mode append and a `writeId` that contains the batch number",
            )
        check_columns(schema, WriteMode(options.write_mode))
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Run one task of one batch."""
        task = TaskContext.get()
        assert task is not None
        query, batch = task.getLocalProperty(QUERY) or "", task.getLocalProperty(BATCH) or ""
        this_run = task.getLocalProperty(RUN) or ""
        job = _batch_job(job_of(self._options.write_id or query), batch)
        # Only the first batch of a run may have been started by an earlier run.
        replay = _first.setdefault((query, this_run), batch) == batch
        attempt = Attempt.of_task(job, replay=replay, lenient=True, run=this_run)
        return run(write_rows(self._options, attempt, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Finish a batch after all tasks; idempotent. Raises PartlyDone."""
        with crossing():
            job = next((message.job for message in messages if isinstance(message, TaskResult)), None)
            if job is not None:
                # The note of this batch stays: after a kill before Spark records it as done, it is repeated.
                run(_release(self._options, job, over=_batch_job(job.rpartition("-")[0], batchId - 1)))
            WriteSummary.of(messages).require_all(self._options)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Handle a failed task: written rows stay, and the batch, when repeated, adds the missing ones."""


def _batch_job(query: str, batch: str | int) -> str:
    """Return the job of a query's batch, by the name of the query's job."""
    return f"{query}-{batch}"


def _check_overwrite(options: SourceOptions) -> None:
    """Raises UsageError for options under which a written row may keep its old revision, or not be written."""
    if options.write_mode != WriteMode.PUT:
        raise UsageError(f"Mode overwrite requires `writeMode` put, not {options.write_mode}")
    if options.if_different:
        raise UsageError(
            "Mode overwrite cannot be combined with `ifDifferent`",
            hint="Omit it: keys that are not among the rows are found by their revisions",
        )


async def _prepare(options: SourceOptions, again: str | None) -> int | None:
    """Return a revision before the first row of any run; check that writes are possible.

    For a job that may be run `again` it is None if it is not recorded.
    """
    async with connected(options) as client:
        target = await target_of(client.bucket(options.bucket))
        if again is None:
            return int(target.info["state"]["last_seq"])
        this_run = new_job()
        beginning = await begin(target, again, this_run)
        return beginning.since if beginning and beginning.run != this_run else None


async def _release(options: SourceOptions, job: str, *, over: str | None = None) -> None:
    """Remove the tasks' claims, and the note of a job that is not repeated; if that fails they expire."""
    with suppress(KvctlError):
        async with connected(options) as client:
            target = await target_of(client.bucket(options.bucket))
            await release(target, job)
            if over is not None:
                await forget(target, over)


async def remove_others(options: SourceOptions, since: int) -> int:
    """Delete the keys that were last written at this revision or before; return their number.

    All rows were written since, and so were keys that other clients wrote in the meantime: those stay.
    """
    async with connected(options) as client:
        bucket = client.bucket(options.bucket)
        target = await target_of(bucket)
        last = int(target.info["state"]["last_seq"])
        plan = WritePlan(ids=ids_of(new_job(), 0, target), mode=WriteMode.UPDATE, since=last)
        others: list[str] = []
        counts = await Publisher(target, plan).run(_deletions(target, since, others))
        for key in others:
            await bucket.delete_literal(key)
    return counts.written + len(others)


async def _deletions(target: WriteTarget, since: int, others: list[str]) -> AsyncIterator[RowChunk]:
    """Yield deletions on condition of the entries' revisions; non-conforming keys are added to `others`."""
    import pyarrow as pa

    first, header = 0, write_headers(operation="DEL")
    async for entries in listing.entry_batches(target.binding, [], values=False):
        old: dict[str, int] = {}
        for entry in entries:
            if entry.revision <= since and not entry.key.startswith(RESERVED):
                try:
                    old[check_key(entry.key)] = entry.revision
                except UsageError:
                    others.append(entry.key)
        if old:
            keys, count = list(old), len(old)
            rows = pa.RecordBatch.from_pydict({"key": keys})
            yield RowChunk(rows, first, keys, [b""] * count, [header] * count, list(old.values()))
            first += count
