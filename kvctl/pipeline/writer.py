"""Writers of the data source: what Spark plans on the driver, runs in tasks, and commits on the driver again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kvctl.errors import UsageError
from kvctl.kv.load_target import target_of
from kvctl.pipeline import outcome
from kvctl.pipeline.connecting import connected, run
from kvctl.pipeline.crossing import crossing
from kvctl.pipeline.deciding import WriteMode
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.outcome import Written
from kvctl.pipeline.row_ids import job_of, new_job
from kvctl.pipeline.rows import check_columns
from kvctl.pipeline.writing_task import Attempt, attempted_before, partition, write_rows

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
        self._options = options
        self._job = job_of(options.write_id) if options.write_id else new_job()
        self._since: int | None = run(_last_revision(options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """One task."""
        again = self._options.write_id is not None
        attempt = Attempt(
            job=self._job, partition=partition(),
            begun=again or attempted_before(), since=None if again else self._since,
        )  # fmt: skip
        return run(write_rows(self._options, attempt, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks are done. Raises PartlyDone where rows could not be written."""
        with crossing():
            summary = outcome.summary_of(self._options.bucket, messages)
            outcome.report(summary, self._options.report)
            outcome.check(summary, self._options.dead_letter)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Some task failed. What is written stays: others may write still, and to delete keys would undo nothing."""


class KvStreamWriter(DataSourceStreamArrowWriter):
    """A stream write: each batch of a query is written once, however often Spark runs it."""

    def __init__(self, schema: StructType, options: SourceOptions, overwrite: bool) -> None:
        """Raises UsageError."""
        if overwrite:
            raise UsageError(
                "Output mode complete would replace the bucket's content with each batch",
                hint='Say `.outputMode("update")`, or `overwrite` in `foreachBatch`',
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
        told = run(
            write_rows(self._options, Attempt(job=job, partition=partition(), begun=begun, since=None), iterator)
        )
        _runs.add(this_run)
        return told

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a batch are done; said twice, nothing more happens. Raises PartlyDone."""
        with crossing():
            summary = outcome.summary_of(self._options.bucket, messages)
            outcome.report(summary, self._options.report)
            outcome.check(summary, self._options.dead_letter)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Some task failed: what is written stays, and the batch, when it is run again, adds what is missing."""


async def _last_revision(options: SourceOptions) -> int:
    """The bucket's, before the first task; a bucket that takes no writes is refused here already."""
    async with connected(options) as client:
        target = await target_of(client.bucket(options.bucket))
        return int(target.info["state"]["last_seq"])
