"""Writers of the data source: planned on the driver, run in tasks, committed on the driver."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kvctl.errors import KvctlError, UsageError
from kvctl.kv.load.target import target_of
from kvctl.pipeline.error_transport import crossing
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.read.worker_connection import connected, run
from kvctl.pipeline.write import overwrite_bucket, write_summary
from kvctl.pipeline.write.arrow_rows import check_columns
from kvctl.pipeline.write.decision import WriteMode
from kvctl.pipeline.write.overwrite_bucket import Stage
from kvctl.pipeline.write.row_ids import job_of, new_job
from kvctl.pipeline.write.task_registry import begin, forget, release
from kvctl.pipeline.write.write_summary import Summary, Written
from kvctl.pipeline.write.write_task import Attempt, attempted_before, ids_of, partition, write_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

RUN = "spark.jobGroup.id"
QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"

_first: dict[tuple[str, str], str] = {}
"""First batch of each query run that this worker has seen: later ones of the run are new."""


class KvWriter(DataSourceArrowWriter):
    """Batch write. Created on the driver, which decides what all attempts of all tasks share."""

    def __init__(self, schema: StructType, options: SourceOptions, overwrite: bool) -> None:
        """Raises UsageError for columns that cannot be written, and the errors of a put."""
        check_columns(schema, WriteMode(options.write_mode))
        if overwrite and options.write_mode != WriteMode.PUT:
            raise UsageError(f"Mode overwrite requires `writeMode` put, not {options.write_mode}")
        self._options = options
        self._again = options.write_id is not None and not overwrite
        """True if an earlier job may have started it: an overwrite always starts over."""
        self._job = job_of(options.write_id or "") if self._again else new_job()
        self._since, self._stage = run(_prepare(options, overwrite, self._job if self._again else None))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Run one task."""
        attempt = Attempt(
            job=self._job, partition=partition(), begun=attempted_before(), since=self._since, replay=self._again
        )
        return run(write_rows(self._options, attempt, iterator, self._stage))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Finish after all tasks. Raises PartlyDone if rows could not be written."""
        with crossing():
            summary = write_summary.summary_of(self._options.bucket, messages)
            if self._stage:
                summary = run(_exchange(self._options, self._stage, self._job, summary))
            else:
                run(_release(self._options, self._job, len(messages)))
            write_summary.conclude(summary, self._options)
            if self._again:
                run(_release(self._options, self._job, 0, over=self._job))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Handle a failed task. Written rows stay: others may still write, and deleting keys undoes nothing."""
        with suppress(KvctlError):
            if self._stage:
                run(_discard(self._options, self._stage))
            else:
                run(_release(self._options, self._job, len(messages)))


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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Run one task of one batch."""
        task = TaskContext.get()
        assert task is not None
        query, batch = task.getLocalProperty(QUERY) or "", task.getLocalProperty(BATCH) or ""
        this_run = task.getLocalProperty(RUN) or ""
        job = _batch_job(job_of(self._options.write_id or query), batch)
        attempt = Attempt(
            job=job, partition=partition(), begun=attempted_before(),
            # Only the first batch of a run may have been started by an earlier run.
            replay=_first.setdefault((query, this_run), batch) == batch, lenient=True, run=this_run,
        )  # fmt: skip
        return run(write_rows(self._options, attempt, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Finish a batch after all tasks; idempotent. Raises PartlyDone."""
        with crossing():
            written = [message for message in messages if isinstance(message, Written)]
            if written:
                # The note of this batch stays: after a kill before Spark records it as done, it is repeated.
                over = _batch_job(written[0].job.rpartition("-")[0], batchId - 1)
                run(_release(self._options, written[0].job, len(messages), over=over))
            write_summary.conclude(write_summary.summary_of(self._options.bucket, messages), self._options)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Handle a failed task: written rows stay, and the batch, when repeated, adds the missing ones."""


def _batch_job(query: str, batch: str | int) -> str:
    """Return the job of a query's batch, by the name of the query's job."""
    return f"{query}-{batch}"


async def _prepare(options: SourceOptions, overwrite: bool, again: str | None) -> tuple[int | None, Stage | None]:
    """Return a revision before the first row of any run, and where to stage rows; check that writes are possible.

    For a job that may be run `again` the revision is None if it is not recorded.
    """
    async with connected(options) as client:
        if overwrite:
            return 0, await overwrite_bucket.begin(client, options.bucket)
        target = await target_of(client.bucket(options.bucket))
        if again is None:
            return int(target.info["state"]["last_seq"]), None
        this_run = new_job()
        beginning = await begin(target, again, this_run)
        return (beginning.since if beginning and beginning.run != this_run else None), None


async def _release(options: SourceOptions, job: str, partitions: int, *, over: str | None = None) -> None:
    """Remove the tasks' claims, and the note of a job that is not repeated; if that fails they expire."""
    with suppress(KvctlError):
        async with connected(options) as client:
            target = await target_of(client.bucket(options.bucket))
            await release(target, job, partitions)
            if over is not None:
                await forget(target, over)


async def _exchange(options: SourceOptions, stage: Stage, job: str, summary: Summary) -> Summary:
    """Replace the bucket's content by the staged rows. Raises KvctlError if it stays unchanged, PartlyDone."""
    async with connected(options) as client:
        if summary.rejected and not options.dead_letter:
            raise KvctlError(f"{overwrite_bucket.unchanged(options.bucket)}: {write_summary.rejections(summary)}")
        target = await target_of(client.bucket(options.bucket))
        done = await overwrite_bucket.exchange(
            client, options.bucket, stage, summary.written, ids_of(job, 0, target), if_different=options.if_different
        )
        await overwrite_bucket.discard(client, options.bucket, stage.created)
    counts = f"{done.counts.written} entries written, {done.removed} keys deleted"
    print(f"nats-kv: bucket `{options.bucket}` overwritten: {counts}", file=sys.stderr)
    return replace(
        summary, written=done.counts.written, unchanged=done.counts.unchanged,
        removed=done.removed, first_removed=done.first_removed,
    )  # fmt: skip


async def _discard(options: SourceOptions, stage: Stage) -> None:
    async with connected(options) as client:
        await overwrite_bucket.discard(client, options.bucket, stage.created)
