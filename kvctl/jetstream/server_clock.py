"""The server's clock, by which messages are dated and keys expire. The client's own clock may be hours off.

Servers from 2.10 on date the info of a stream (`ts`). From there the client's monotonic clock goes on.
"""

from __future__ import annotations

import json
import time

from kvctl.errors import KvctlError, ServerError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.units import parse_time

_USER_INFO = "$SYS.REQ.USER.INFO"
_ASK_S = 1.0


class ServerClock:
    """Tells the time of the server that leads a stream."""

    def __init__(self, now_ns: int) -> None:
        self._ahead_ns = now_ns - time.monotonic_ns()

    @classmethod
    def from_info(cls, info: StreamInfo) -> ServerClock:
        """Return the clock that dated an info of a stream or consumer, which has just come. Raises ServerError."""
        if not info.get("ts"):
            raise ServerError("The server does not report its time", hint="Servers do that from 2.10 on")
        return cls(parse_time(info["ts"]))

    @classmethod
    async def read(cls, api: Api, stream: str) -> ServerClock:
        """Ask the leader of a stream. Raises StreamNotFound, PermissionDenied, ServerError."""
        return cls.from_info(await streams.info(api, stream))

    @classmethod
    async def of_connection(cls, api: Api) -> ServerClock:
        """Ask the server that the client is connected to; where it does not tell, the client's clock has to do."""
        try:
            answer = json.loads((await api.connection.request(_USER_INFO, b"", timeout=_ASK_S)).payload)
            return cls(parse_time(answer["server"]["time"]))
        except (KvctlError, KeyError, TypeError, ValueError):
            return cls(time.time_ns())

    def now_ns(self) -> int:
        """Return the nanoseconds since the epoch."""
        return self._ahead_ns + time.monotonic_ns()
