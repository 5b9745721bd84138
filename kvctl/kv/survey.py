"""What a bucket still holds of keys, seen from a moment of its past: what they were then, or that it is lost.

A key's entries are evicted oldest first, so the last one held up to the cut is what the key was. A key that has none
counts as created later, if it holds fewer entries than the bucket's history and begins with no purge.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from kvctl.errors import KvctlError
from kvctl.jetstream import streams
from kvctl.jetstream.delivery import RawFrame, delivery
from kvctl.jetstream.direct import from_leader
from kvctl.jetstream.ordered import OrderedConsumer, Selection
from kvctl.kv.binding import Binding
from kvctl.kv.entry import MARKER_HEADER, Operation, is_tombstone, operation_of
from kvctl.kv.listing import subjects_of
from kvctl.kv.names import is_plain, is_wild, matches
from kvctl.quantities import duration_from_ns, format_duration, parse_time
from kvctl.wire import header_value

MANY_SUBJECTS = 64
"""More of them are picked out of the whole bucket."""
CHECKS_AT_ONCE = 64
CHECKS = 5


@dataclass(frozen=True, slots=True)
class Choice:
    """Keys and filters that are asked for, and the subjects to read for them."""

    subjects: tuple[str, ...]
    keys: frozenset[str] = frozenset()
    filters: tuple[str, ...] = ()
    everything: bool = False
    """Whether whatever comes is wanted."""

    def takes(self, key: str) -> bool:
        """Whether the key is asked for."""
        return self.everything or key in self.keys or (bool(self.filters) and matches(key, self.filters))


def choose(binding: Binding, texts: Sequence[str], *, literal: bool = False) -> Choice:
    """The choice of these keys and filters, of the whole bucket without any; with `literal` of foreign keys."""
    if literal:
        return Choice(subjects_of(binding, texts, literal=True)[0], keys=frozenset(texts))
    if len(texts) > MANY_SUBJECTS:
        wild = tuple(filter(is_wild, texts))
        return Choice((binding.prefix + ">",), frozenset(texts).difference(wild), wild)
    subjects, rest = subjects_of(binding, texts)
    return Choice(subjects, filters=rest, everything=not rest)


@dataclass(slots=True)
class Trace:
    """What is held of one key."""

    count: int = 0
    erased: bool = False
    """Whether it begins with what erased the rest: a purge, or a marker that the server left."""
    found: int = 0
    """The last revision up to the cut; 0 for none."""
    living: bool = False
    """Whether that one is a value."""
    passed: bool = False
    """Whether anything held is later than the cut."""
    gap: bool = False
    """Whether the next one is a marker that the server left for an entry that is gone."""

    def add(self, sequence: int, header: bytes, cut: int) -> None:
        """Count the next of the key's entries, in their order."""
        if not self.count:
            self.erased = _erases(header)
        self.count += 1
        if sequence <= cut:
            self.found, self.living = sequence, not (header and is_tombstone(header))
        elif not self.passed:
            self.passed, self.gap = True, header_value(header, MARKER_HEADER) is not None


LOST = Trace(found=1, gap=True)
"""The trace of a key of which nothing is certain."""


class Survey:
    """What is held of the chosen keys, up to a cut; keys that are written meanwhile are looked at once more."""

    def __init__(self, binding: Binding, cut: int, choice: Choice) -> None:
        self.traces: dict[bytes, Trace] = {}
        """By subject: some 250 bytes a key."""
        self._binding = binding
        self._cut = cut
        self._choice = choice
        self._prefix = len(binding.prefix.encode())

    async def run(self) -> None:
        """Read what is held. Raises StreamNotFound, StreamReplaced, PermissionDenied."""
        selection = Selection(subjects=self._choice.subjects, deliver="all", headers_only=True)
        end = await self._read(selection, self._add)
        written = await self._written_since(end)
        gate = asyncio.Semaphore(CHECKS_AT_ONCE)

        async def check(subject: bytes) -> None:
            async with gate:
                self.traces[subject] = await self._looked_at_again(subject, self.traces.get(subject, Trace()))

        async with asyncio.TaskGroup() as group:
            for subject in written:
                trace = self.traces.get(subject)
                if trace is None or not trace.living:  # a value is read afterwards, and missed if it is gone
                    group.create_task(check(subject))

    def key(self, subject: bytes) -> str:
        """The key that lives there."""
        return subject[self._prefix :].decode(errors="surrogateescape")

    def _add(self, frame: RawFrame, sequence: int) -> None:
        trace = self.traces.get(frame[0])
        if trace is None:
            trace = self.traces[frame[0]] = Trace()
        trace.add(sequence, frame[2], self._cut)

    async def _read(self, selection: Selection, add: Any) -> int:
        """Hand what comes to `add`, each once; returns the stream's last sequence as of the start."""
        last = 0
        choice = self._choice
        async with OrderedConsumer(self._binding.api, self._binding.stream, selection) as consumer:
            end = int(consumer.info["state"]["last_seq"]) if consumer.info else self._cut
            async for batch in consumer.batches():
                for frame in batch:
                    sequence = delivery(frame[1])[0]
                    if sequence > last and (choice.everything or choice.takes(self.key(frame[0]))):
                        add(frame, sequence)
                    last = max(last, sequence)
        return end

    async def _written_since(self, end: int) -> set[bytes]:
        """The subjects written since the survey began, which may have lost what they held up to the cut."""
        state = (await streams.info(self._binding.api, self._binding.stream))["state"]
        if int(state["last_seq"]) == end:
            return set()
        found: set[bytes] = set()
        selection = Selection(
            subjects=self._choice.subjects, deliver="by_start_sequence", start=end + 1, headers_only=True
        )
        await self._read(selection, lambda frame, _: found.add(frame[0]))
        return found

    async def _looked_at_again(self, subject: bytes, trace: Trace) -> Trace:
        """The trace of a key that holds no value up to the cut, from a moment when it did not change."""
        text = subject.decode(errors="surrogateescape")
        api, stream = self._binding.api, self._binding.stream
        for _ in range(CHECKS if is_plain(text) else 0):
            before = await from_leader(api, stream, last_by_subj=text)
            first = await from_leader(api, stream, next_by_subj=text, seq=1)
            counts = (await streams.info(api, stream, subjects_filter=text))["state"].get("subjects") or {}
            still = await from_leader(api, stream, seq=trace.found) if trace.found else None
            after = await from_leader(api, stream, last_by_subj=text)
            if not (before and first and after) or before.sequence != after.sequence:
                continue
            if trace.found:
                return trace if still is not None and still.subject == text else LOST
            if first.sequence <= self._cut:
                return LOST  # it was not there a moment ago
            return replace(trace, count=counts.get(text, 0), erased=_erases(first.header))
        return LOST


@dataclass(frozen=True, slots=True)
class Keeping:
    """How much of the past a stream holds, and the streams that it mirrors have held."""

    history: int
    """Entries of a key."""
    dropped: str | None = None
    """Why whole keys may be gone, if so."""

    def lost(self, trace: Trace) -> bool:
        """Whether it cannot be told what the key was at the cut."""
        if trace.found:
            return trace.gap
        return trace.erased or trace.count >= self.history or self.dropped is not None


async def keeping(binding: Binding) -> Keeping:
    """What the bucket keeps; a mirror no more than its origin: the least there is, where that does not answer."""
    history, dropped = sys.maxsize, None
    following: Binding | None = binding
    while following is not None:
        info = following.info
        if info is None:
            with suppress(KvctlError):
                info = await streams.find(following.api, following.stream)
        limit = info["config"].get("max_msgs_per_subject", -1) if info else 1
        history = min(history, limit if limit > 0 else sys.maxsize)
        dropped = dropped or (_dropped(info) if info else None)
        following = following.origin
    return Keeping(history, dropped)


def _dropped(info: dict[str, Any]) -> str | None:
    """Why the oldest entries of the stream may be gone, whatever key they belong to."""
    config, state = info["config"], info["state"]
    if state["first_seq"] <= max(config.get("first_seq", 0), 1):
        return None
    ttl = config.get("max_age", 0)
    if ttl and time.time_ns() - parse_time(info["created"]) > ttl:
        return f"entries expire after {format_duration(duration_from_ns(ttl))}"
    if config.get("discard") == "old" and (config.get("max_bytes", -1) > 0 or config.get("max_msgs", -1) > 0):
        return "its limits drop the oldest entries"
    return None


def _erases(header: bytes) -> bool:
    return operation_of(header)[0] is Operation.PURGE or header_value(header, MARKER_HEADER) is not None
