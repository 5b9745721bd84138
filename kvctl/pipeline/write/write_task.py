"""One task of a write, on a worker: its batches are taken as they come, checked, and published.

Rejected rows are stored in a folder: a Parquet file per task, with their columns and the cause. It has a unique name,
the same on every attempt, and is written atomically.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from kvctl.atomic_file import PARTIAL
from kvctl.errors import UsageError
from kvctl.kv.bulk.bulk_writer import RowCounts, WriteTarget, target_of
from kvctl.kv.identity import most_bytes
from kvctl.pipeline.error_transport import crossing
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.pipeline.worker_connection import connected
from kvctl.pipeline.write.arrow_rows import RowChunk, chunk_of
from kvctl.pipeline.write.decision import WriteMode, WritePlan
from kvctl.pipeline.write.publisher import Publisher, Rejected
from kvctl.pipeline.write.row_ids import RowIds
from kvctl.pipeline.write.task_registry import Beginning, begin, claim

if TYPE_CHECKING:
    import pyarrow as pa


CAUSE = "cause"


@contextmanager
def dead_letters(place: TablePlace, task: str) -> Iterator[Rejected]:
    """Give a function that adds rejected rows to a file of the task: stored when the block ends, or not at all.

    It replaces the file of an attempt before. Raises KvctlError if the folder is not writable.
    """
    import pyarrow as pa
    from pyarrow import parquet

    name, writers = f"{task}.parquet", list[parquet.ParquetWriter]()
    with tempfile.TemporaryFile() as file:
        with ExitStack() as stack:

            def add(chunk: RowChunk, causes: dict[int, str]) -> None:
                places = sorted(causes)
                rows = pa.Table.from_batches([chunk.batch.take(pa.array(places, pa.int32()))])
                table = rows.append_column(CAUSE, pa.array([causes[at] for at in places], pa.string()))
                if not writers:
                    writers.append(stack.enter_context(parquet.ParquetWriter(file, table.schema)))
                writers[0].write_table(table)

            yield add
        if writers:
            file.seek(0)
            partial = f"_{task}.{secrets.token_hex(4)}{PARTIAL}"
            place.write(partial, file)
            place.move(partial, name)
        elif place.sizes([name]):
            place.remove([name])


SHOWN = 5
"""Maximum number of rejected rows named."""
LENGTH = 200
"""Maximum characters of a name or a cause: the driver holds the messages of all tasks."""


@dataclass(slots=True)
class TaskResult(WriterCommitMessage):
    """One task's message to the driver; as small for a million rejected rows as for five."""

    job: str
    counts: RowCounts = field(default_factory=RowCounts)
    samples: list[tuple[str, str]] = field(default_factory=list)
    """First rejected rows: key, cause."""
    letters: tuple[TablePlace, str] | None = None
    """Place and file of all rejected rows, if there are any."""

    def take(self, chunk: RowChunk, causes: dict[int, str]) -> None:
        """Add the first of these rejected rows of a batch."""
        for at in sorted(causes)[: SHOWN - len(self.samples)]:
            self.samples.append((chunk.keys[at][:LENGTH], causes[at][:LENGTH]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Attempt at one task of a write."""

    job: str
    partition: int
    begun: bool
    """True if another attempt may have stored some of its rows."""
    since: int | None = None
    """Revision before all that any attempt stored; None if not known."""
    replay: bool = False
    """True if an earlier run of the job may have stored rows, perhaps in other partitions."""
    lenient: bool = False
    """True if such a run may have stored several rows of a key, different ones in each of its partitions."""
    run: str | None = None
    """Run of a job that records its beginning; None for one that is run once, or recorded it already."""

    @classmethod
    @crossing()
    def of_task(cls, job: str, **more: Any) -> Attempt:
        """Create that of this task. Raises UsageError if two attempts may run at once: both would miss a row."""
        task = TaskContext.get()
        assert task is not None
        if task.getLocalProperty("spark.speculation") == "true":
            raise UsageError(
                "Rows cannot be written while Spark may run a task twice at the same time (`spark.speculation`)",
                hint="Switch it off with `--conf spark.speculation=false`",
            )
        return cls(job=job, partition=task.partitionId(), begun=task.attemptNumber() > 0, **more)


async def write_rows(options: SourceOptions, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> TaskResult:
    """Write all rows of a task. Raises errors that prevent writing; errors of single rows are in the result."""
    mode = WriteMode(options.write_mode)
    result = TaskResult(attempt.job)
    with ExitStack() as stack:
        rejected: list[Rejected] = [result.take]
        if options.dead_letter:
            # Spark does not read files whose names begin with `_`, as a job's may.
            task = f"rejected-{attempt.job}-{attempt.partition}"
            given = options.dead_letter
            place = given if isinstance(given, TablePlace) else TablePlace.parse(given)
            rejected.append(stack.enter_context(dead_letters(place, task)))
            result.letters = place, f"{task}.parquet"
        async with connected(options) as client:
            target = await target_of(client.bucket(options.bucket))
            plan = await _plan(options, attempt, target)
            publisher = Publisher(target, plan, lambda chunk, causes: [take(chunk, causes) for take in rejected])
            result.counts = await publisher.run(_chunks(batches, mode))
    return result


async def _plan(options: SourceOptions, attempt: Attempt, target: WriteTarget) -> WritePlan:
    """Plan the write from the notes of other attempts and of earlier runs of its job."""
    claimed, beginning = await asyncio.gather(
        claim(target, attempt.job, attempt.partition), _beginning(target, attempt)
    )
    earlier = beginning is not None and beginning.run != attempt.run
    begun, moved = attempt.begun or attempt.replay or claimed or earlier, attempt.replay or earlier
    since = attempt.since if beginning is None else beginning.since
    floor = None
    if attempt.run is not None and attempt.replay and not earlier:
        # The note of an earlier run may have expired.
        since, floor = None, since if attempt.begun or claimed else None
    return WritePlan(
        ids=ids_of(attempt.job, attempt.partition, target),
        mode=WriteMode(options.write_mode),
        if_different=options.if_different,
        begun=begun,
        moved=moved,
        lenient=moved and attempt.lenient,
        since=since if begun else int(target.info["state"]["last_seq"]),
        floor=floor,
    )


async def _beginning(target: WriteTarget, attempt: Attempt) -> Beginning | None:
    return await begin(target, attempt.job, attempt.run) if attempt.run is not None else None


def ids_of(job: str, partition: int, target: WriteTarget) -> RowIds:
    """Return the ids of a task's rows in a bucket."""
    return RowIds(job, partition, most_bytes(target.binding.api.connection.max_payload, target.info["config"]))


async def _chunks(batches: Iterator[pa.RecordBatch], mode: WriteMode) -> AsyncIterator[RowChunk]:
    """Yield batches as they come: a thread waits for them, which may take long, and the connection stays alive."""
    loop, first = asyncio.get_running_loop(), 0
    with ThreadPoolExecutor(1, "rows") as waiting:
        while (batch := await loop.run_in_executor(waiting, next, batches, None)) is not None:
            if batch.num_rows:
                yield chunk_of(batch, first, mode)
                first += batch.num_rows
