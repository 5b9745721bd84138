"""Writers of the data source: what Spark plans on the driver, runs in tasks, and commits on the driver again."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kvctl.errors import KvctlError, UsageError
from kvctl.kv.load_target import target_of
from kvctl.pipeline import outcome, overwriting
from kvctl.pipeline.claims import release
from kvctl.pipeline.connecting import connected, run
from kvctl.pipeline.crossing import crossing
from kvctl.pipeline.deciding import WriteMode
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.outcome import Summary, Written
from kvctl.pipeline.overwriting import Stage
from kvctl.pipeline.row_ids import job_of, new_job
from kvctl.pipeline.rows import check_columns
from kvctl.pipeline.writing_task import Attempt, attempted_before, ids_of, partition, write_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

RUN = "spark.jobGroup.id"
QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"

_runs: set[tuple[str, str]] = set()
"""Queries and their runs of which this worker has written a batch: later ones of the run were never begun before."""


class KvWriter(DataSourceArrowWriter):
    """A batch write. Made on the driver, which says what all attempts at all tasks have to agree on."""

    def __init__(self, schema: StructType, options: SourceOptions, overwrite: bool) -> None:
        """Raises UsageError for columns that cannot be written; and, asking the server, as a put would."""
        check_columns(schema, WriteMode(options.write_mode))
        if overwrite and options.write_mode != WriteMode.PUT:
            raise UsageError(f"Mode overwrite goes with `writeMode` put, not {options.write_mode}")
        self._options = options
        self._again = options.write_id is not None and not overwrite
        """Whether an earlier job may have begun it: an overwrite always begins anew."""
        self._job = job_of(options.write_id or "") if self._again else new_job()
        self._since, self._stage = run(_prepare(options, overwrite))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """One task."""
        attempt = Attempt(
            job=self._job, partition=partition(),
            begun=self._again or attempted_before(), since=None if self._again else self._since,
        )  # fmt: skip
        return run(write_rows(self._options, attempt, iterator, self._stage))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks are done. Raises PartlyDone where rows could not be written."""
        with crossing():
            summary = outcome.summary_of(self._options.bucket, messages)
            if self._stage:
                summary = run(_exchange(self._options, self._stage, self._job, summary))
            else:
                run(_release(self._options, self._job, len(messages)))
            outcome.conclude(summary, self._options)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Some task failed. What is written stays: others may write still, and to delete keys would undo nothing."""
        with suppress(KvctlError):
            if self._stage:
                run(_discard(self._options, self._stage))
            else:
                run(_release(self._options, self._job, len(messages)))


class KvStreamWriter(DataSourceStreamArrowWriter):
    """A stream write: each batch of a query is written once, however often Spark runs it."""

    def __init__(self, schema: StructType, options: SourceOptions, overwrite: bool) -> None:
        """Raises UsageError."""
        if overwrite:
            raise UsageError(
                "Output mode complete would replace the bucket's content with each batch",
                hint="Write in `foreachBatch`: mode append, and a `writeId` made of the batch's number",
            )
        check_columns(schema, WriteMode(options.write_mode))
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """One task of one batch."""
        task = TaskContext.get()
        assert task is not None
        query, batch = task.getLocalProperty(QUERY) or "", task.getLocalProperty(BATCH) or ""
        # Only the first batch of a run may be one that an earlier run began.
        this_run = (query, task.getLocalProperty(RUN) or "")
        begun = attempted_before() or this_run not in _runs
        job = f"{job_of(self._options.write_id or query)}-{batch}"
        attempt = Attempt(job=job, partition=partition(), begun=begun, since=None)
        told = run(write_rows(self._options, attempt, iterator))
        _runs.add(this_run)
        return told

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a batch are done; said twice, nothing more happens. Raises PartlyDone."""
        with crossing():
            told = [message for message in messages if isinstance(message, Written)]
            if told:
                run(_release(self._options, told[0].job, len(messages)))
            outcome.conclude(outcome.summary_of(self._options.bucket, messages), self._options)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Some task failed: what is written stays, and the batch, when it is run again, adds what is missing."""


async def _prepare(options: SourceOptions, overwrite: bool) -> tuple[int, Stage | None]:
    """The last revision before the first task, and where to stage rows; what takes no writes is refused already."""
    async with connected(options) as client:
        if overwrite:
            return 0, await overwriting.begin(client, options.bucket)
        target = await target_of(client.bucket(options.bucket))
        return int(target.info["state"]["last_seq"]), None


async def _release(options: SourceOptions, job: str, partitions: int) -> None:
    """Remove the tasks' claims; where that fails they go by themselves, a day later."""
    with suppress(KvctlError):
        async with connected(options) as client:
            await release(await target_of(client.bucket(options.bucket)), job, partitions)


async def _exchange(options: SourceOptions, stage: Stage, job: str, summary: Summary) -> Summary:
    """Replace the bucket's content by what is staged. Raises KvctlError where it stays as it was, PartlyDone."""
    async with connected(options) as client:
        if summary.rejected and not options.dead_letter:
            raise KvctlError(f"{overwriting.unchanged(options.bucket)}: {outcome.rejections(summary)}")
        target = await target_of(client.bucket(options.bucket))
        done = await overwriting.exchange(
            client, options.bucket, stage, summary.written, ids_of(job, 0, target), if_different=options.if_different
        )
        await overwriting.discard(client, options.bucket, stage.created)
    counts = f"{done.counts.written} entries written, {done.removed} keys deleted"
    print(f"nats-kv: bucket `{options.bucket}` is overwritten: {counts}", file=sys.stderr)
    return replace(
        summary, written=done.counts.written, unchanged=done.counts.unchanged,
        removed=done.removed, first_removed=done.first_removed,
    )  # fmt: skip


async def _discard(options: SourceOptions, stage: Stage) -> None:
    async with connected(options) as client:
        await overwriting.discard(client, options.bucket, stage.created)
