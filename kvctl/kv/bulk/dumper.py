"""Dump a bucket as of one revision, in one pass and bounded memory, and report if the snapshot is consistent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from kvctl.errors import RefusedError
from kvctl.jetstream.streams import ServerClock
from kvctl.kv.bucket import Bucket
from kvctl.kv.bulk.dump_file import DumpWriter, EntryLines
from kvctl.kv.entry import Operation, from_message
from kvctl.kv.read.moment import Moment
from kvctl.kv.read.snapshot_reader import SnapshotReading
from kvctl.kv.resolve import Binding
from kvctl.kv.stream_kind import Kind, kind_of
from kvctl.units import format_time

Advance = Callable[[int], None]
"""Called with the number of entries done."""


@dataclass(frozen=True, slots=True)
class DumpSummary:
    """Result of a dump."""

    entries: int
    cut: int | str
    """Snapshot revision; for a repository, a commit's id."""
    sha256: str
    lost: list[str] = field(default_factory=list)
    """Keys with entries that were, or may have been, overwritten before they could be read."""
    vanished: int = 0
    """Number of entries that were removed without a trace."""
    caveat: str | None = None
    """For a dump of the past: a sentence on entries that may nevertheless be missing."""

    @property
    def exact(self) -> bool:
        """True if it equals the bucket at the snapshot revision, except for entries that expired during the dump."""
        return not (self.lost or self.vanished)


async def dump(
    bucket: Bucket,
    file: BinaryIO,
    filters: Sequence[str] = (),
    *,
    history: bool = False,
    advance: Advance = lambda _: None,
    expecting: Callable[[int | None], None] = lambda _: None,
) -> DumpSummary:
    """Write the live keys, or with `history` every entry, as of the bucket's last revision, into an empty file.

    `expecting` is called once with the expected number of entries, if known.
    Raises BucketNotFound, RefusedError for the leftovers of an interrupted restore, OSError.
    """
    binding = await bucket.locate(fresh=True)
    assert binding.info is not None
    clock = ServerClock.from_info(binding.info)
    if kind_of(binding.info["config"]) is Kind.INCOMPLETE:
        raise RefusedError(f"`{bucket.name}` is incomplete: an interrupted restore or copy left it")
    cut = int(binding.info["state"]["last_seq"])
    writer = DumpWriter(file, header(binding, filters, cut, clock, history=history))
    lines = EntryLines(bucket.name, binding.prefix, clock)
    reading = SnapshotReading(binding, filters, cut, history=history)
    expecting(reading.expected)
    async with aclosing(reading.batches()) as batches:
        async for frames in batches:
            writer.add(lines.of_frames(frames), len(frames))
            advance(len(frames))
    async with aclosing(reading.missed()) as found:
        async for messages in found:
            entries = [from_message(binding.bucket, len(binding.prefix), message) for message in messages]
            living = [entry for entry in entries if entry.operation is Operation.PUT]
            writer.add(lines.of_entries(living), len(living))
    lost = [subject[len(binding.prefix.encode()) :].decode(errors="surrogateescape") for subject in reading.lost]
    sha256 = writer.finish(exact=not (lost or reading.vanished))
    return DumpSummary(writer.entries, cut, sha256, lost, reading.vanished)


async def dump_past(
    bucket: Bucket, moment: Moment, file: BinaryIO, filters: Sequence[str] = (), *, advance: Advance = lambda _: None
) -> DumpSummary:
    """Write the keys that lived at a past moment into an empty file.

    Raises HistoryLost if the bucket no longer has them all, RevisionNotFound, BucketNotFound, OSError.
    """
    past = await bucket.as_of(moment)
    writer = DumpWriter(file, header(bucket.binding, filters, past.revision, past.clock, history=False))
    lines = EntryLines(bucket.name, bucket.binding.prefix, past.clock)
    async with aclosing(past.entry_batches(*filters)) as batches:
        async for entries in batches:
            writer.add(lines.of_entries(entries), len(entries))
            advance(len(entries))
    return DumpSummary(writer.entries, past.revision, writer.finish(exact=True), caveat=past.caveat)


def header(binding: Binding, filters: Sequence[str], cut: int, clock: ServerClock, *, history: bool) -> dict[str, Any]:
    """Build the fields of a dump's first line, except its kind and version."""
    assert binding.info is not None
    return {
        "bucket": binding.bucket,
        "config": binding.info["config"],
        "cut": cut,
        "created": format_time(clock.now_ns()),
        "history": history,
        **({"filters": list(filters)} if filters else {}),
    }
