"""Watches: current entries, a marker, then every change, in order, across restarts of the server (ADR-8)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Self

from kvctl.errors import RevisionNotFound, StreamReplaced, UsageError
from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.kv.entry import Entry, Operation, from_frames, newer
from kvctl.kv.read.listing import key_filter
from kvctl.kv.resolve import Binding
from kvctl.wire import RawFrame


class Marker(Enum):
    """Items of a watcher besides entries."""

    CURRENT = "current"
    """End of the initial data: always sent, once."""


CURRENT = Marker.CURRENT


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """Options of a watch (ADR-8), and the revision to start from (an extension)."""

    history: bool = False
    updates_only: bool = False
    ignore_deletes: bool = False
    meta_only: bool = False
    from_revision: int | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for options that cannot be combined."""
        chosen = [name for name in ("history", "updates_only") if getattr(self, name)]
        if self.from_revision is not None:
            chosen.append("from_revision")
        if self.updates_only and len(chosen) > 1:
            other = chosen[0] if chosen[0] != "updates_only" else chosen[1]
            raise UsageError(f"`--updates-only` cannot be combined with `--{other.replace('_', '-')}`")


class Watcher:
    """Watch of a bucket: entries and CURRENT, singly or in batches; an async context manager and iterator.

    Raises StreamReplaced when the bucket is deleted, recreated or emptied during the watch; on entry, RevisionNotFound
    for a `from_revision` that is more than one above the last revision.
    """

    def __init__(
        self,
        binding: Binding,
        filters: Sequence[str],
        options: WatchOptions,
        *,
        follow: bool = True,
        patient: bool | None = None,
    ) -> None:
        self._filter = key_filter(binding, filters)
        self._bucket = binding.bucket
        self._options = options
        self._last = 0
        deliver, start = "last_per_subject", 0
        if options.updates_only:
            deliver = "new"
        elif options.from_revision is not None:
            deliver, start = "by_start_sequence", options.from_revision
        elif options.history:
            deliver = "all"
        subjects = self._filter.subjects
        selection = Selection(subjects=subjects, deliver=deliver, start=start, headers_only=options.meta_only)
        self._consumer = OrderedConsumer(binding.api, binding.stream, selection, follow=follow, patient=patient)

    async def __aenter__(self) -> Self:
        await self._consumer.__aenter__()
        try:
            self._check_start()
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    def _check_start(self) -> None:
        """Raise RevisionNotFound for a revision above the last: it belongs to an earlier stream instance."""
        start, info = self._options.from_revision, self._consumer.info
        if start is not None and info is not None and start > int(info["state"]["last_seq"]) + 1:
            last = info["state"]["last_seq"]
            raise RevisionNotFound(
                f"Bucket `{self._bucket}` has no revision {start}",
                hint=f"Its last revision is {last}; the bucket may have been recreated after revision {start}",
            )

    async def __aexit__(self, *exit: object) -> None:
        await self._consumer.__aexit__(*exit)

    async def __aiter__(self) -> AsyncIterator[Entry | Marker]:
        async for batch in self.batches():
            if not batch:
                yield CURRENT
            for entry in batch:
                yield entry

    async def batches(self) -> AsyncGenerator[list[Entry], None]:
        """Yield entries as they arrive; an empty list stands for CURRENT."""
        try:
            async for frames in self._consumer.batches():
                found = self._entries(frames)
                if found or not frames:
                    yield found
        except StreamReplaced as error:
            raise StreamReplaced(
                error.message.replace("stream `KV_", "bucket `").replace("being read", "being watched")
            ) from None

    def _entries(self, frames: list[RawFrame]) -> list[Entry]:
        found = newer(from_frames(self._bucket, self._filter.cut, self._filter.of(frames)), self._last)
        self._last = found[-1].revision if found else self._last
        if self._options.ignore_deletes:
            found = [entry for entry in found if entry.operation is Operation.PUT]
        return found
