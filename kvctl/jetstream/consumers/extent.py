"""Bounds of an ordered reading: the stream's extent and instance, and the end of the initial data."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kvctl.errors import PermissionDenied, StreamReplaced
from kvctl.jetstream import direct_get, streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import StreamInfo, StreamState

_CHANGES = ("messages", "bytes", "first_seq", "last_seq", "num_deleted")
FAR_MESSAGES, FAR_S = 10_000, 1.0
"""Messages, and seconds, of lag that are more than the time between question and answer."""
MAX_SETBACKS, MAX_ROUNDS = 5, 500
"""How often a reading may fall further behind, and how often it may reach the previous end."""
SOMEWHERE = 1 << 63
"""Sequence that no stream reaches: the end is somewhere ahead."""


async def last_matching(api: Api, stream: str, subjects: Sequence[str]) -> int:
    """Return the last sequence on any of the subjects, 0 for none. Raises StreamNotFound, PermissionDenied."""
    last = 0
    for subject in subjects:
        found = await direct_get.from_leader(api, stream, last_by_subj=subject)
        last = max(last, found.sequence if found else 0)
    return last


async def subjects(api: Api, stream: str, filters: Sequence[str]) -> int:
    """Return the number of subjects that match a filter and have messages in the stream."""
    found: set[str] = set()
    for subject in filters:
        found.update(await streams.subjects(api, stream, subject))
    return len(found)


def unchanged(before: StreamState, after: StreamState) -> bool:
    """Return True if, by a stream's states, nothing was written or removed in between."""
    return all(before.get(name) == after.get(name) for name in _CHANGES)


class StreamInstance:
    """Creation time of the stream, its last known sequence, and the last message received from it."""

    def __init__(self, api: Api, stream: str) -> None:
        self._api = api
        self._stream = stream
        self._created: str | None = None
        self._highest = 0
        """Last known sequence of the stream, on any subject."""
        self._received: tuple[int, int] | None = None
        """Sequence and time of the last message received."""

    @property
    def known(self) -> bool:
        """True if the stream's info was readable."""
        return self._created is not None

    def begin(self, info: StreamInfo) -> None:
        """Record the instance being read."""
        self._created = info["created"]

    def reached(self, sequence: int) -> None:
        """Record the stream's last sequence."""
        self._highest = sequence

    def receive(self, sequence: int, time_ns: int) -> None:
        """Record a received message."""
        self._highest = max(self._highest, sequence)
        self._received = sequence, time_ns

    async def check(self) -> StreamInfo | None:
        """Return the stream's info, None if it is not readable. Raises StreamReplaced for another instance."""
        if self._created is None:
            return None
        info = await streams.info(self._api, self._stream, timeout=1)
        if info["created"] != self._created or not await self._same_message():
            raise StreamReplaced(f"The stream `{self._stream}` was deleted and recreated while it was being read")
        if info["state"]["last_seq"] < self._highest:
            raise StreamReplaced(
                f"The stream `{self._stream}` lost its messages while it was being read (memory storage?)"
            )
        return info

    def deleted(self) -> StreamReplaced:
        """Build the error for a stream that does not exist any more."""
        return StreamReplaced(f"The stream `{self._stream}` was deleted while it was being read")

    async def _same_message(self) -> bool:
        """Return True if the last message received is unchanged; a stream restored from a snapshot is equally old."""
        if self._received is None:
            return True
        sequence, time_ns = self._received
        try:
            found = await direct_get.from_leader(self._api, self._stream, seq=sequence)
        except PermissionDenied:
            return True
        return found is None or found.time_ns == time_ns


class CatchUpLimit:
    """Moving end of a stream that a reading tries to reach."""

    def __init__(self, end: int) -> None:
        self.end = end
        self._distance: int | None = None
        self._begun = time.monotonic()
        self._failed = self._rounds = 0

    def hopeless(self, end: int) -> bool:
        """Record that `self.end` was reached and `end` is the new end; return True if it is time to give up."""
        distance, now = end - self.end, time.monotonic()
        far = distance >= FAR_MESSAGES or now - self._begun >= FAR_S
        if far and self._distance is not None and distance >= self._distance:
            self._failed += 1
        self.end, self._distance, self._begun = end, distance, now
        self._rounds += 1
        return self._failed >= MAX_SETBACKS or self._rounds >= MAX_ROUNDS


class InitialEnd:
    """Sequence at which a finite reading is complete, and followers are current."""

    def __init__(self, last: int) -> None:
        self.last = last
        """Last sequence when the reading began; a list of last messages has none above it."""
        self.target = last
        """Lowest sequence known to complete the reading."""
        self.bounded = False
        """True if the target is that of the subjects being read."""
        self.limit = CatchUpLimit(last)

    def lower(self, last: int) -> None:
        """Use the last sequence of the subjects being read, if it is known."""
        self.target, self.bounded = min(self.target, last), last < SOMEWHERE
