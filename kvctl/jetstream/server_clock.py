"""The server's clock, by which messages are dated and keys expire. The client's own clock may be hours off.

Servers from 2.10 on date the info of a stream (`ts`). From there the client's monotonic clock goes on.
"""

from __future__ import annotations

import time
from typing import Any

from kvctl.errors import ServerError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.quantities import parse_time


class ServerClock:
    """Tells the time of the server that leads a stream."""

    def __init__(self, now_ns: int) -> None:
        self._ahead_ns = now_ns - time.monotonic_ns()

    @classmethod
    def from_info(cls, info: dict[str, Any]) -> ServerClock:
        """Return the clock that dated an info of a stream or consumer, which has just come. Raises ServerError."""
        if not info.get("ts"):
            raise ServerError("The server does not report its time", hint="Servers do that from 2.10 on")
        return cls(parse_time(info["ts"]))

    @classmethod
    async def read(cls, api: Api, stream: str) -> ServerClock:
        """Ask the leader of a stream. Raises StreamNotFound, PermissionDenied, ServerError."""
        return cls.from_info(await streams.info(api, stream))

    def now_ns(self) -> int:
        """Return the nanoseconds since the epoch."""
        return self._ahead_ns + time.monotonic_ns()
