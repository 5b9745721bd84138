"""Summary of a write: reported by each task, added up on the driver, with an error if rows are lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pyspark.sql.datasource import WriterCommitMessage

from kvctl import atomic_file
from kvctl.errors import KvctlError, PartlyDone
from kvctl.kv.load.bulk_writer import RowCounts
from kvctl.phrases import counted
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.write.arrow_rows import Chunk

SHOWN = 5
"""Maximum number of rejected rows named."""
LENGTH = 200
"""Maximum characters of a name or a cause: the driver holds the messages of all tasks."""


@dataclass(slots=True)
class Written(WriterCommitMessage):
    """One task's message to the driver; as small for a million rejected rows as for five."""

    job: str
    counts: RowCounts = field(default_factory=RowCounts)
    samples: list[tuple[str, str]] = field(default_factory=list)
    """First rejected rows: key, cause."""
    dead_letter: str | None = None
    """File with all rejected rows."""

    def take(self, chunk: Chunk, causes: dict[int, str]) -> None:
        """Add the first of these rejected rows of a batch."""
        for at in sorted(causes)[: SHOWN - len(self.samples)]:
            self.samples.append((chunk.keys[at][:LENGTH], causes[at][:LENGTH]))


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of a write."""

    bucket: str
    written: int = 0
    unchanged: int = 0
    rejected: int = 0
    removed: int = 0
    """Keys that an overwrite deleted, because they were not among the rows."""
    first_removed: tuple[str, ...] = ()
    """A few of them."""
    dead_letters: tuple[str, ...] = ()
    """Files of rejected rows."""
    samples: tuple[tuple[str, str], ...] = ()


def summary_of(bucket: str, messages: Sequence[WriterCommitMessage | None]) -> Summary:
    """Combine the tasks' messages."""
    written = [message for message in messages if isinstance(message, Written)]
    return Summary(
        bucket,
        written=sum(message.counts.written for message in written),
        unchanged=sum(message.counts.unchanged for message in written),
        rejected=sum(message.counts.rejected for message in written),
        dead_letters=tuple(message.dead_letter for message in written if message.dead_letter),
        samples=tuple(sample for message in written for sample in message.samples)[:SHOWN],
    )


def conclude(summary: Summary, options: SourceOptions) -> None:
    """Report the result. Raises PartlyDone if rows were rejected and not stored, KvctlError."""
    if options.report:
        _report(summary, options.report)
    if summary.rejected and not options.dead_letter:
        raise PartlyDone(
            f"{summary.written} rows were written to `{summary.bucket}`, but {rejections(summary)}",
            hint="Set option `deadLetter` to a folder that stores such rows and their causes",
        )


def rejections(summary: Summary) -> str:
    """Return the number of rejected rows, and the first of them."""
    named = "; ".join(f"`{key}`: {cause}" for key, cause in summary.samples)
    more = summary.rejected - len(summary.samples)
    return f"{counted(summary.rejected, 'row')} cannot be written: {named}" + (f"; and {more} more" if more else "")


def _report(summary: Summary, path: str) -> None:
    document = {"version": 1, **asdict(summary)}
    try:
        atomic_file.replace(Path(path), json.dumps(document).encode(), mode=atomic_file.PUBLIC)
    except OSError as error:
        raise KvctlError(f"Could not write the report `{path}`: {error.strerror}") from None
