"""What became of a write: told by each task, added up on the driver, and a failure where rows are lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pyspark.sql.datasource import WriterCommitMessage

from kvctl import atomic_file
from kvctl.errors import KvctlError, PartlyDone
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.write.arrow_rows import Chunk
from kvctl.pipeline.write.publisher import Counts

SHOWN = 5
"""Rejected rows that are named."""
LENGTH = 200
"""Characters of a name or a cause: all tasks' messages are on the driver together."""


@dataclass(slots=True)
class Written(WriterCommitMessage):
    """What one task tells the driver; as small for a million rejected rows as for five."""

    job: str
    counts: Counts = field(default_factory=Counts)
    samples: list[tuple[str, str]] = field(default_factory=list)
    """The first rejected rows: key, cause."""
    dead_letter: str | None = None
    """The file that has them all."""

    def take(self, chunk: Chunk, causes: dict[int, str]) -> None:
        """Remember the first of these rejected rows of a batch."""
        for at in sorted(causes)[: SHOWN - len(self.samples)]:
            self.samples.append((chunk.keys[at][:LENGTH], causes[at][:LENGTH]))


@dataclass(frozen=True, slots=True)
class Summary:
    """What became of all rows."""

    bucket: str
    written: int = 0
    unchanged: int = 0
    rejected: int = 0
    removed: int = 0
    """Keys that an overwrite deleted: they were there, and not among the rows."""
    first_removed: tuple[str, ...] = ()
    """A few of them."""
    dead_letters: tuple[str, ...] = ()
    """Files of rejected rows."""
    samples: tuple[tuple[str, str], ...] = ()


def summary_of(bucket: str, messages: Sequence[WriterCommitMessage | None]) -> Summary:
    """The tasks' messages as one."""
    told = [message for message in messages if isinstance(message, Written)]
    return Summary(
        bucket,
        written=sum(message.counts.written for message in told),
        unchanged=sum(message.counts.unchanged for message in told),
        rejected=sum(message.counts.rejected for message in told),
        dead_letters=tuple(message.dead_letter for message in told if message.dead_letter),
        samples=tuple(sample for message in told for sample in message.samples)[:SHOWN],
    )


def conclude(summary: Summary, options: SourceOptions) -> None:
    """Report what became of the rows. Raises PartlyDone where some were rejected and are kept nowhere, KvctlError."""
    if options.report:
        _report(summary, options.report)
    if summary.rejected and not options.dead_letter:
        raise PartlyDone(
            f"{summary.written} rows are written into `{summary.bucket}`, but {rejections(summary)}",
            hint="Option `deadLetter` names a folder that keeps such rows, with their causes, for another try",
        )


def rejections(summary: Summary) -> str:
    """How many rows cannot be written, and the first of them."""
    named = "; ".join(f"`{key}`: {cause}" for key, cause in summary.samples)
    more = summary.rejected - len(summary.samples)
    what = "1 row cannot" if summary.rejected == 1 else f"{summary.rejected} rows cannot"
    return f"{what} be written: {named}" + (f"; and {more} more" if more else "")


def _report(summary: Summary, path: str) -> None:
    document = {"version": 1, **asdict(summary)}
    try:
        atomic_file.replace(Path(path), json.dumps(document).encode(), mode=atomic_file.PUBLIC)
    except OSError as error:
        raise KvctlError(f"The report `{path}` cannot be written: {error.strerror}") from None
