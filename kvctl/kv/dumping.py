"""Dump a bucket as of one revision, in one pass and bounded memory, and tell truthfully whether that succeeded."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from kvctl.errors import KvctlError, RefusedError
from kvctl.jetstream import streams
from kvctl.jetstream.delivery import RawFrame, delivery
from kvctl.jetstream.direct import DirectRequest, StoredMessage
from kvctl.jetstream.ordered import OrderedConsumer, Selection, read
from kvctl.kv.binding import Binding
from kvctl.kv.bucket import Bucket
from kvctl.kv.dump_file import DumpWriter
from kvctl.kv.dump_format import EntryLines
from kvctl.kv.entry import Operation, from_message, is_tombstone
from kvctl.kv.kinds import Kind, kind_of
from kvctl.kv.listing import subjects_of
from kvctl.kv.moment import Moment
from kvctl.kv.names import matches
from kvctl.quantities import format_time

Advance = Callable[[int], None]
"""Told of entries done."""

LOOKS = 10
"""At what was written since the cut: fewer, where two in a row find no further key."""
AT_ONCE = 500
"""Keys whose earlier values are asked for in one request."""


@dataclass(frozen=True, slots=True)
class Dumped:
    """What a dump came to."""

    entries: int
    cut: int
    sha256: str
    lost: list[str] = field(default_factory=list)
    """Keys of which something was overwritten before it could be read, or may have been."""
    vanished: int = 0
    """Entries that went without a trace: removed by somebody."""
    caveat: str | None = None
    """Of a dump of the past: what may be missing all the same, as a sentence."""

    @property
    def exact(self) -> bool:
        """Whether it is the bucket as it was at the cut, but for what expired while it was read."""
        return not (self.lost or self.vanished)


async def dump(
    bucket: Bucket, file: BinaryIO, filters: Sequence[str] = (), *, history: bool = False,
    advance: Advance = lambda _: None, expecting: Callable[[int | None], None] = lambda _: None,
) -> Dumped:  # fmt: skip
    """Write the living keys, or with `history` every entry, as of the bucket's last revision, into an empty file.

    `expecting` is told once how many there may be, where that is known.
    Raises BucketNotFound, RefusedError for what an interrupted restore left, OSError.
    """
    binding = await bucket.locate(fresh=True)
    assert binding.info is not None
    if kind_of(binding.info["config"]) is Kind.INCOMPLETE:
        raise RefusedError(f"`{bucket.name}` is what an interrupted restore or copy left: it is not whole")
    cut = int(binding.info["state"]["last_seq"])
    writer = DumpWriter(file, header(binding, filters, cut, history=history))
    lines = EntryLines(bucket.name, binding.prefix)
    reading = _Reading(binding, filters, cut, history)
    expecting(reading.expected)
    async with aclosing(reading.batches()) as batches:
        async for frames in batches:
            writer.add(lines.of_frames(frames), len(frames))
            advance(len(frames))
    lost, vanished = await reading.shortfall(writer, lines)
    sha256 = writer.finish(exact=not (lost or vanished))
    return Dumped(writer.entries, cut, sha256, lost, vanished)


async def dump_past(
    bucket: Bucket, moment: Moment, file: BinaryIO, filters: Sequence[str] = (), *, advance: Advance = lambda _: None
) -> Dumped:
    """Write the keys that lived at a moment of the past into an empty file.

    Raises HistoryLost where the bucket no longer holds them all, RevisionNotFound, BucketNotFound, OSError.
    """
    past = await bucket.as_of(moment)
    writer = DumpWriter(file, header(bucket.binding, filters, past.revision, history=False))
    lines = EntryLines(bucket.name, bucket.binding.prefix)
    async with aclosing(past.entry_batches(*filters)) as batches:
        async for entries in batches:
            writer.add(lines.of_entries(entries), len(entries))
            advance(len(entries))
    return Dumped(writer.entries, past.revision, writer.finish(exact=True), caveat=past.caveat)


def header(binding: Binding, filters: Sequence[str], cut: int, *, history: bool) -> dict[str, Any]:
    """What a dump's first line says, beside its kind and version."""
    assert binding.info is not None
    return {
        "bucket": binding.bucket,
        "config": binding.info["config"],
        "cut": cut,
        "created": format_time(time.time_ns()),
        "history": history,
        **({"filters": list(filters)} if filters else {}),
    }


class _Reading:
    """One reading up to the cut, and the count that shows whether anything went before it was read.

    What was there at the cut is known by number. A short count means that entries were overwritten, expired or were
    removed before their turn: then the keys written since the cut are looked at.
    """

    def __init__(self, binding: Binding, filters: Sequence[str], cut: int, history: bool) -> None:
        assert binding.info is not None
        self._binding = binding
        self._cut = cut
        self._history = history
        self._subjects, self._rest = subjects_of(binding, filters)
        state, config = binding.info["state"], binding.info["config"]
        self.expected: int | None = None
        """How many messages there are to come, tombstones included."""
        if not filters and not config.get("sources"):  # of an aggregate not all subjects need be keys
            self.expected = state["messages"] if history else state.get("num_subjects", 0)
        self._limit = config.get("max_msgs_per_subject", 0)
        self._expires = bool(config.get("max_age") or config.get("allow_msg_ttl"))
        self._seen = array("q")
        """A hash of every subject delivered: eight bytes each, where a set of names would hold a hundred."""
        self._last = 0

    async def batches(self) -> AsyncGenerator[list[RawFrame]]:
        """What is to be dumped, as many at a time as have come."""
        if not self._cut:
            return
        selection = Selection(subjects=self._subjects, deliver="all" if self._history else "last_per_subject")
        async with OrderedConsumer(self._binding.api, self._binding.stream, selection) as consumer:
            if self.expected is None and consumer.info and consumer.info["state"]["last_seq"] == self._cut:
                self.expected = consumer.expected
            async for batch in consumer.batches():
                taken = self._up_to_cut(batch)
                self._seen.extend([hash(frame[0]) for frame in taken])
                if wanted := self._wanted(taken):
                    yield wanted
                if self._last >= self._cut:
                    return

    def _up_to_cut(self, batch: list[RawFrame]) -> list[RawFrame]:
        """The messages up to the cut; one that comes again, after the connection broke, is left out."""
        if not batch:
            return batch
        before, first = self._last, delivery(batch[0][1])[0]
        self._last = max(before, delivery(batch[-1][1])[0])
        if first > before and self._last <= self._cut:
            return batch
        return [frame for frame in batch if before < delivery(frame[1])[0] <= self._cut]

    def _wanted(self, frames: list[RawFrame]) -> list[RawFrame]:
        if not self._history:
            frames = [frame for frame in frames if not (frame[2] and is_tombstone(frame[2]))]
        if self._rest:
            cut = len(self._binding.prefix.encode())
            frames = [frame for frame in frames if matches(frame[0][cut:].decode(errors="surrogateescape"), self._rest)]
        return frames

    async def shortfall(self, writer: DumpWriter, lines: EntryLines) -> tuple[list[str], int]:
        """Keys of which something may be missing, and how many entries beyond those went.

        The last values at the cut that history still holds are added to the dump first.
        """
        if len(self._seen) == self.expected:
            return [], 0
        late = await self._written_since()
        late.full = await self._full()
        seen = Counter(value for value in self._seen if value in late.hashes)
        if self._history:
            names = [name for name in late.counts if self._may_have_lost(late, name, seen[hash(name)])]
        else:
            names = [name for name in late.counts if not seen[hash(name)]]
            found = await self._last_at_cut(names, writer, lines)
            if len(self._seen) + len(found) == self.expected:
                return [], 0
            names = [name for name in names if name not in found and self._may_have_lost(late, name, 0)]
        vanished = 0
        if self.expected is not None and not names and not self._expires:
            vanished = max(self.expected - len(self._seen), 0)
        cut = len(self._binding.prefix.encode())
        return sorted(name[cut:].decode(errors="surrogateescape") for name in names), vanished

    def _may_have_lost(self, late: _Late, subject: bytes, seen: int) -> bool:
        """Whether writes since the cut may have pushed out what was not read: the key is full now, or was purged."""
        full = subject in late.full or self._limit <= late.counts[subject] + seen
        return subject in late.purged or (seen < self._limit and full)

    async def _full(self) -> set[bytes]:
        """The subjects that hold as many entries as they may: of those that were counted some may have gone since."""
        counts: dict[str, int] = {}
        with suppress(KvctlError):  # not allowed to ask: what was counted has to do
            for subject in self._subjects:
                counts |= await streams.subjects(self._binding.api, self._binding.stream, subject)
        return {name.encode(errors="surrogateescape") for name, count in counts.items() if count >= self._limit}

    async def _written_since(self) -> _Late:
        """What was written after the cut; looked at again, as a key that is overwritten meanwhile may escape."""
        late, start, quiet = _Late(), self._cut + 1, 0
        for _ in range(LOOKS):
            known = len(late.counts)
            selection = Selection(subjects=self._subjects, deliver="by_start_sequence", start=start, headers_only=True)
            before = start
            async for batch in read(self._binding.api, self._binding.stream, selection):
                late.add(batch)
                start = delivery(batch[-1][1])[0] + 1
            quiet = quiet + 1 if len(late.counts) == known else 0
            if start == before or quiet == 2:
                break
        return late

    async def _last_at_cut(self, subjects: list[bytes], writer: DumpWriter, lines: EntryLines) -> set[bytes]:
        """Add the last entries at the cut that are still held; returns the subjects that have one."""
        found: set[bytes] = set()
        binding = self._binding
        if self._limit == 1:
            return found
        for start in range(0, len(subjects), AT_ONCE):
            asked = [subject.decode(errors="surrogateescape") for subject in subjects[start : start + AT_ONCE]]
            try:
                messages = await self._up_to(asked)
            except KvctlError:
                return found  # what is not found may be lost
            entries = [from_message(binding.bucket, len(binding.prefix), message) for message in messages]
            found.update(message.subject.encode(errors="surrogateescape") for message in messages)
            living = [entry for entry in entries if entry.operation is Operation.PUT]
            writer.add(lines.of_entries(living), len(living))
        return found

    async def _up_to(self, subjects: list[str]) -> list[StoredMessage]:
        from kvctl.jetstream import direct_batch

        request = DirectRequest(last_of=tuple(subjects), up_to_sequence=self._cut)
        messages: list[StoredMessage] = []
        async with aclosing(direct_batch.read(self._binding.api, self._binding.stream, request)) as pages:
            async for page in pages:
                messages += page.messages
        return [message for message in messages if message.subject in set(subjects)]


class _Late:
    """The subjects that were written after the cut."""

    def __init__(self) -> None:
        self.counts: Counter[bytes] = Counter()
        self.purged: set[bytes] = set()
        self.full: set[bytes] = set()
        """Those that hold as many entries as they may."""
        self.hashes: set[int] = set()

    def add(self, batch: list[RawFrame]) -> None:
        subjects = [frame[0] for frame in batch]
        self.counts.update(subjects)
        self.hashes.update(map(hash, subjects))
        self.purged.update(frame[0] for frame in batch if b"\r\nNats-Rollup:" in frame[2])
