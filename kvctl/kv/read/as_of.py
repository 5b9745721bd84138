"""A bucket at a past moment, or a refusal that names the keys whose state was lost.

past = await bucket.as_of(1042)             # or a time; RevisionNotFound above the last revision
past.revision                               # the snapshot revision: everything is as it was right after it
entry = await past.get("a.b")
async for entries in past.entries("a.>"):   # live keys by revision; HistoryLost is raised before the first one
    ...
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

from kvctl.errors import HistoryLost, KeyNotFound, NotFoundError, RevisionNotFound, StreamNotFound, UnreachableError
from kvctl.jetstream import multi_get, streams
from kvctl.jetstream.consumers.message import delivery
from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.jetstream.streams import ServerClock
from kvctl.kv.entry import Entry, from_frame
from kvctl.kv.names import check_filter, check_key, check_literal
from kvctl.kv.read.key_scan import KeyHistoryScan, Retention, choose, keeping, last_removed
from kvctl.kv.read.listing import KeyFilter, each
from kvctl.kv.read.moment import Moment
from kvctl.kv.resolve import Binding
from kvctl.phrases import quoted

if TYPE_CHECKING:
    from kvctl.kv.handle import Handle

_REMOVED = "entries were removed from its stream"


async def at(handle: Handle, moment: Moment) -> Past:
    """Return the bucket, aggregate or mirror as it was; for a mirror that lags behind the moment, its origin.

    Raises RevisionNotFound for a revision above the last, BucketNotFound, PermissionDenied.
    """
    binding = await handle.locate(fresh=True)
    assert binding.info is not None
    clock = ServerClock.from_info(binding.info)
    moment = moment.at(clock.now_ns())
    revision = moment.revision or await _last_before(binding, moment)
    reached = await streams.last_sequence(binding.api, binding.stream)
    if revision > reached and binding.origin is not None:
        with suppress(StreamNotFound):
            source = binding.source
            binding, reached = source, await streams.last_sequence(source.api, source.stream)
    if revision > reached:
        raise RevisionNotFound(
            f"Bucket `{handle.name}` has no revision {revision}", hint=f"Its last revision is {reached}"
        )
    return Past(handle.name, binding, moment, revision, await keeping(binding), clock)


class Past:
    """State of the keys right after `revision`. Its methods raise HistoryLost before they return anything."""

    def __init__(
        self, bucket: str, binding: Binding, moment: Moment, revision: int, kept: Retention, clock: ServerClock
    ) -> None:
        self.bucket = bucket
        self.moment = moment
        self.clock = clock
        """Time of the server that led the stream at the start."""
        self.revision = revision
        self.caveat = kept.caveat
        """A sentence on keys that may nevertheless be missing; None if there are none. Complete after a reading."""
        self._binding = binding
        self._kept = kept
        self._deletable = binding.info is None or not binding.info["config"].get("deny_delete")

    async def get(self, key: str, *, literal: bool = False) -> Entry:
        """Return the key's entry at the moment. Raises KeyNotFound, HistoryLost."""
        [entry] = await self.get_many([key], literal=literal)
        if entry is None:
            absent = f"Key `{key}` was not in bucket `{self.bucket}` as of {self.moment}"
            raise KeyNotFound(absent, hint=self.caveat)
        return entry

    async def get_many(self, keys: Sequence[str], *, literal: bool = False) -> list[Entry | None]:
        """Return the keys' entries in the order given, None for keys not live; `literal` for non-conforming keys."""
        for key in keys:
            check_literal(key) if literal else check_key(key)
        found: dict[str, Entry] = {}
        if keys:
            async with aclosing(self._entries(choose(self._binding, keys, literal=literal), keys)) as batches:
                async for batch in batches:
                    found.update((entry.key, entry) for entry in batch)
        return [found.get(key) for key in keys]

    def entries(self, *filters: str, deleted: bool = False) -> AsyncGenerator[Entry, None]:
        """Yield the matching keys that lived, of the whole bucket without a filter, in the order of their revisions.

        With `deleted`, also the markers of those that did not live.
        """
        return each(self.entry_batches(*filters, deleted=deleted))

    def entry_batches(
        self, *filters: str, deleted: bool = False, values: bool = True
    ) -> AsyncGenerator[list[Entry], None]:
        """Yield `entries` in batches, as they arrive; without `values`, only what the headers say."""
        for text in filters:
            check_filter(text)
        return self._entries(choose(self._binding, filters), None, deleted, values)

    async def key_batches(self, *filters: str, deleted: bool = False) -> AsyncGenerator[list[bytes], None]:
        """Yield the names of the same keys, as bytes."""
        async with aclosing(self.entry_batches(*filters, deleted=deleted, values=False)) as batches:
            async for batch in batches:
                yield [entry.key.encode(errors="surrogateescape") for entry in batch]

    async def _entries(
        self, choice: KeyFilter, named: Sequence[str] | None, deleted: bool = False, values: bool = True
    ) -> AsyncGenerator[list[Entry], None]:
        if not self.revision:
            return  # before the first message
        survey = KeyHistoryScan(self._binding, self.revision, choice, self._kept)
        await survey.run()
        await self._check(survey, named)
        wanted = {trace.found for trace in survey.traces.values() if trace.living or (deleted and trace.found)}
        async with aclosing(self._read(choice, wanted, values)) as batches:
            async for batch in batches:
                yield batch
        if wanted:  # overwritten since the scan
            raise self._lost([survey.key(subject) for subject, trace in survey.traces.items() if trace.found in wanted])

    async def _check(self, survey: KeyHistoryScan, named: Sequence[str] | None) -> None:
        """Raise HistoryLost for keys whose state cannot be determined, or note a caveat."""
        lost, why = survey.lost(), self._kept.dropped
        found = {survey.key(subject): trace.found for subject, trace in survey.traces.items()}
        if named is not None and why:
            lost += [key for key in named if key not in found]
        if lost or (named is None and why):
            raise self._lost(lost, why)
        # Purges remove the oldest entries of a key first: where messages cannot be deleted, what is found is right.
        unsure = [key for key in named or () if self._deletable or not found.get(key)]
        if named is not None and not unsure:
            return
        removed = await self._removed(survey)
        if removed is None:
            self.caveat = self.caveat or "Keys may be missing: it is unknown if entries were removed from the stream"
        elif removed:
            lost = [key for key in unsure if found.get(key, 0) < removed]
            nothing = removed == self.revision and not (self.caveat and any(found.values()))
            if lost or (named is None and nothing):
                raise self._lost(lost, _REMOVED)
            if named is None and self.caveat is None:
                self.caveat = f"Keys may be missing: revision {removed} was removed, but not by the bucket's history"

    async def _removed(self, survey: KeyHistoryScan) -> int | None:
        """Return the last revision up to the moment that was removed from the stream, 0 for none, None if unknown."""
        return survey.removed() if survey.complete else await last_removed(self._binding, self.revision, self._kept)

    async def _read(self, choice: KeyFilter, wanted: set[int], values: bool) -> AsyncGenerator[list[Entry], None]:
        """Yield the entries of these revisions and remove them from the set."""
        if not wanted:
            return
        cut, last = len(self._binding.prefix.encode()), max(wanted)
        selection = Selection(
            subjects=choice.subjects, deliver="by_start_sequence", start=min(wanted), headers_only=not values
        )
        async with OrderedConsumer(self._binding.api, self._binding.stream, selection) as consumer:
            async for batch in consumer.batches():
                found = [frame for frame in batch if delivery(frame[1])[0] in wanted]
                wanted.difference_update(delivery(frame[1])[0] for frame in found)
                if found:
                    yield [from_frame(self.bucket, cut, frame)._replace(delta=None) for frame in found]
                if not wanted or (batch and delivery(batch[-1][1])[0] >= last):
                    return

    def _lost(self, keys: list[str], why: str | None = None) -> HistoryLost:
        what = f"what {_listed(keys)} at" if keys else "all that it held at"
        hint = f"See the remaining history with `kvctl history {self.bucket}`"
        if why != _REMOVED:
            hint += "; a longer history keeps more from now on"
        reason = f": {why}" if why else ""
        return HistoryLost(f"Bucket `{self.bucket}` no longer holds {what} {self.moment}{reason}", keys=keys, hint=hint)


async def _last_before(binding: Binding, moment: Moment) -> int:
    """Return the last revision not later than the time: of a mirror's origin, where that answers."""
    assert moment.time_ns is not None
    source = binding.source
    try:
        return await multi_get.first_since(source.api, source.stream, moment.time_ns + 1) - 1
    except (NotFoundError, UnreachableError):
        if source is binding:
            raise
    return await multi_get.first_since(binding.api, binding.stream, moment.time_ns + 1) - 1


def _listed(keys: list[str]) -> str:
    """Return ``key `a` was``, ``keys `a`, `b` were``; of many, the first ten."""
    if len(keys) == 1:
        return f"key `{keys[0]}` was"
    return f"keys {quoted(keys, 10)} were"
