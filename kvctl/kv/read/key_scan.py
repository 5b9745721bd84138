"""Scan of the entries a bucket still has, to reconstruct keys at a past moment or report them as lost.

A key's entries are evicted oldest first, so the last one at or below the snapshot revision is its state there. A key
without one counts as created later, if it has fewer entries than the bucket's history and does not begin with a purge.

A revision that the stream lacks was such an entry, if a later one begins a key that has a full history or begins with a
purge. Otherwise it was removed from the stream: by a purge, as a single message, by a compaction, or by a limit.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from kvctl.errors import KvctlError, NotFoundError, PermissionDenied, UnreachableError
from kvctl.jetstream import streams
from kvctl.jetstream.consumers.message import delivery
from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.jetstream.direct_get import from_leader
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.jetstream.streams import ServerClock
from kvctl.kv.entry import MARKER_HEADER, Operation, is_tombstone, operation_of
from kvctl.kv.names import FilterTree, is_plain, is_wild
from kvctl.kv.read.listing import KeyFilter, key_filter, with_unindexed
from kvctl.kv.resolve import Binding
from kvctl.units import duration_from_ns, format_duration, parse_time
from kvctl.wire import header_value

MANY_SUBJECTS = 64
"""Maximum number of subjects to request; more are selected from the entire bucket."""
CHECKS_AT_ONCE = 64
CHECKS = 5
_MISSED = "Keys may be missing or outdated: the origin keeps fewer entries than its mirror, which lacks some"


def choose(binding: Binding, texts: Sequence[str], *, literal: bool = False) -> KeyFilter:
    """Select these keys and filters, or the entire bucket; with `literal`, non-conforming keys."""
    if len(texts) > MANY_SUBJECTS and not literal:
        wild = tuple(filter(is_wild, texts))
        everything = key_filter(binding, ())
        return everything._replace(filters=FilterTree(wild) if wild else None, keys=frozenset(texts).difference(wild))
    return key_filter(binding, texts, literal=literal)


@dataclass(slots=True)
class Trace:
    """Stored entries of one key."""

    count: int = 0
    first: int = 0
    """First revision."""
    last: int = 0
    """Last revision."""
    erased: bool = False
    """True if the first entry erased older ones: a purge, or a marker of the server."""
    found: int = 0
    """Last revision up to the snapshot; 0 for none."""
    living: bool = False
    """True if that entry is a value."""
    unknown: bool = False
    """True if the key changed too fast to be checked."""

    def add(self, sequence: int, header: bytes, cut: int) -> None:
        """Count the next of the key's entries, in order; a repeated one is ignored."""
        if sequence <= self.last:
            return
        if not self.count:
            self.first, self.erased = sequence, _erases(header)
        self.count += 1
        self.last = sequence
        if sequence <= cut:
            self.found, self.living = sequence, not (header and is_tombstone(header))


@dataclass(frozen=True, slots=True)
class Retention:
    """History that a stream, and the streams it mirrors, retain."""

    history: int
    """Entries per key."""
    dropped: str | None = None
    """Reason why entire keys may be missing, if any."""
    caveat: str | None = None
    """Data that may be missing without a trace, if any."""
    first: int = 1
    """First revision that the bucket may have had."""

    def full(self, trace: Trace) -> bool:
        """Return True if older entries of the key may have been evicted or purged."""
        return trace.erased or trace.count >= self.history

    def lost(self, trace: Trace) -> bool:
        """Return True if the key's state at the snapshot cannot be determined."""
        if trace.found:
            return trace.unknown
        return trace.unknown or self.full(trace) or self.dropped is not None


class KeyHistoryScan:
    """Scan of the selected keys up to a revision; keys written in the meantime are checked once more."""

    def __init__(self, binding: Binding, cut: int, choice: KeyFilter, kept: Retention) -> None:
        self.traces: dict[bytes, Trace] = {}
        """By subject: some 300 bytes per key."""
        self.complete = False
        """True if the selected keys are all that the stream holds."""
        self._missing = 0
        """Last revision up to the snapshot that was not selected, or that the stream lacks; 0 for none."""
        self._written: set[bytes] = set()
        """Subjects written since the scan began."""
        self._binding = binding
        self._cut = cut
        self._choice = choice
        self._kept = kept
        self._prefix = len(binding.prefix.encode())

    async def run(self) -> None:
        """Read the stored entries. Raises StreamNotFound, StreamReplaced, PermissionDenied."""
        choice = await with_unindexed(self._binding, self._choice)
        selection = Selection(subjects=choice.subjects, deliver="all", headers_only=True)
        end, _ = await self._read(selection, self._kept.first - 1)
        self._written = await self._written_since(end)
        written = iter(self._written)

        async def work() -> None:
            for subject in written:
                trace = self.traces[subject]
                if not (trace.living or self._kept.lost(trace)):  # a value is read later, and noticed if missing
                    self.traces[subject] = await self._looked_at_again(subject, trace)

        tasks = [asyncio.create_task(work()) for _ in range(CHECKS_AT_ONCE)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    def lost(self) -> list[str]:
        """Return the keys whose state cannot be determined."""
        return [self.key(subject) for subject, trace in self.traces.items() if self._kept.lost(trace)]

    def removed(self) -> int:
        """Return the last revision up to the snapshot that was removed from the stream, 0 for none; if complete."""
        evicting = (item for item in self.traces.items() if self._kept.full(item[1]))
        newest = max((trace.last if key in self._written else trace.first for key, trace in evicting), default=0)
        return self._missing if self._missing > newest else 0

    def key(self, subject: bytes) -> str:
        """Return the key of a subject."""
        return subject[self._prefix :].decode(errors="surrogateescape")

    async def _read(self, selection: Selection, before: int) -> tuple[int, set[bytes]]:
        """Trace the messages after `before`; return the stream's last sequence at the start, and the subjects received.

        Notes the last revision up to the snapshot that did not arrive.
        """
        came: set[bytes] = set()
        choice, traces, cut = self._choice, self.traces, self._cut
        async with OrderedConsumer(self._binding.api, self._binding.stream, selection) as consumer:
            state = consumer.info["state"] if consumer.info else None
            end = int(state["last_seq"]) if state else cut
            everything = choice.everything and not self._binding.filtered
            self.complete = everything and state is not None and consumer.expected == state["messages"]
            async for batch in consumer.batches():
                for subject, reply, header, _ in choice.of(batch):
                    trace = traces.get(subject)
                    if trace is None:
                        trace = traces[subject] = Trace()
                    sequence = delivery(reply)[0]
                    trace.add(sequence, header, cut)
                    came.add(subject)
                    if sequence - before > 1 and before < cut:
                        self._missing = min(sequence - 1, cut)
                    before = max(before, sequence)
        if before < cut:
            self._missing = cut
        return end, came

    async def _written_since(self, end: int) -> set[bytes]:
        """Return the subjects written since the scan began, which may have lost entries up to the snapshot."""
        state = (await streams.info(self._binding.api, self._binding.stream))["state"]
        if int(state["last_seq"]) == end:
            return set()
        complete = self.complete
        selection = Selection(
            subjects=self._choice.subjects, deliver="by_start_sequence", start=end + 1, headers_only=True
        )
        came = (await self._read(selection, end))[1]
        self.complete = complete
        return came

    async def _looked_at_again(self, subject: bytes, trace: Trace) -> Trace:
        """Return the trace of a key without a value up to the snapshot that is being written."""
        text = subject.decode(errors="surrogateescape")
        api, stream = self._binding.api, self._binding.stream
        if trace.found and is_plain(text):  # anything between it and the snapshot would be evicted after it
            still = await from_leader(api, stream, seq=trace.found)
            return trace if still is not None and still.subject == text else replace(trace, unknown=True)
        for _ in range(CHECKS if is_plain(text) else 0):
            first = await from_leader(api, stream, next_by_subj=text, seq=1)
            counts = (await streams.info(api, stream, subjects_filter=text))["state"].get("subjects") or {}
            again = await from_leader(api, stream, next_by_subj=text, seq=1)
            if first and again and first.sequence == again.sequence:  # nothing was evicted or purged in between
                return replace(trace, count=counts.get(text, 0), erased=_erases(first.header))
        return replace(trace, unknown=True)


async def keeping(binding: Binding) -> Retention:
    """Return the retention of the bucket; of a mirror and its origin, the smaller, or the minimum without an answer."""
    history, dropped, caveat, gaps, first = sys.maxsize, None, None, False, 1
    following: Binding | None = binding
    while following is not None:
        info = following.info
        if info is None:
            with suppress(KvctlError):
                info = await streams.find(following.api, following.stream)
        config = info["config"] if info else {"max_msgs_per_subject": 1}
        first = max(first, config.get("first_seq", 0))
        limit = config.get("max_msgs_per_subject", -1)
        limit = limit if limit > 0 else sys.maxsize
        if gaps and limit < history:
            caveat = caveat or _MISSED
        gaps = gaps or bool(info and _has_gaps(info))
        history = min(history, limit)
        dropped = dropped or (_dropped(info) if info else None)
        caveat = caveat or (_caveat(info) if info else None)
        following = following.origin
    return Retention(history, dropped, caveat, first)


async def last_removed(binding: Binding, cut: int, kept: Retention) -> int | None:
    """Return the last revision up to a snapshot that was removed from the stream, 0 for none, None if that is unknown.

    Reads the headers of all its messages, unless it lacks none or its last key explains all; of a mirror with a filter,
    its origin's.
    """
    if binding.filtered:
        binding = binding.source
    try:
        state = (await streams.info(binding.api, binding.stream))["state"]
        if state["messages"] > state["last_seq"] - kept.first:
            return 0
        if await _last_key_explains(binding, int(state["last_seq"]), cut, kept):
            return 0
        scan = KeyHistoryScan(binding, cut, KeyFilter((">",)), kept)
        await scan.run()
    except (NotFoundError, PermissionDenied, UnreachableError):
        return None
    return scan.removed()


async def _last_key_explains(binding: Binding, last: int, cut: int, kept: Retention) -> bool:
    """Return True if the key that was written last is full and begins after the snapshot: without history always."""
    api, stream = binding.api, binding.stream
    newest = await from_leader(api, stream, seq=last)
    if newest is None or not is_plain(newest.subject):
        return False
    first = await from_leader(api, stream, next_by_subj=newest.subject, seq=1)
    counts = (await streams.info(api, stream, subjects_filter=newest.subject))["state"].get("subjects") or {}
    if first is None or first.sequence < cut:
        return False
    return kept.full(Trace(count=counts.get(newest.subject, 0), erased=_erases(first.header)))


def _dropped(info: StreamInfo) -> str | None:
    """Return the reason why the oldest entries of any key may be missing, if any."""
    config, state = info["config"], info["state"]
    if state["first_seq"] <= max(config.get("first_seq", 0), 1):
        return None
    ttl = config.get("max_age", 0)
    if ttl and ServerClock.from_info(info).now_ns() - parse_time(info["created"]) > ttl:
        return f"entries expire after {format_duration(duration_from_ns(ttl))}"
    if config.get("discard") == "old" and (config.get("max_bytes", -1) > 0 or config.get("max_msgs", -1) > 0):
        return "its limits drop the oldest entries"
    return None


def _has_gaps(info: StreamInfo) -> bool:
    """Return True if a stream lacks messages between its first and its last."""
    state = info["state"]
    return bool(state["messages"] < state["last_seq"] - state["first_seq"] + 1)


def _caveat(info: StreamInfo) -> str | None:
    """Return what may be missing without a trace: servers mark an expired entry only if it was the key's last."""
    state = info["state"]
    if not info["config"].get("allow_msg_ttl") or state["messages"] >= state["last_seq"]:
        return None
    return "Keys with a ttl of their own may be missing or outdated: once expired, they leave no trace"


def _erases(header: bytes) -> bool:
    return operation_of(header)[0] is Operation.PURGE or header_value(header, MARKER_HEADER) is not None
