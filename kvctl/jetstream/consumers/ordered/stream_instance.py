"""The stream instance that a reading began with, recognized after an interruption."""

from __future__ import annotations

from kvctl.errors import PermissionDenied, StreamReplaced
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.direct import direct_get
from kvctl.jetstream.stream_info import StreamInfo


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
