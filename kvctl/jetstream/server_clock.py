"""Clock of the server, which dates messages and expires keys. The client's own clock may be hours off.

Servers since 2.10 date the info of a stream (`ts`). From there the client's monotonic clock continues.
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
    """Clock of the server that leads a stream."""

    def __init__(self, now_ns: int) -> None:
        self._ahead_ns = now_ns - time.monotonic_ns()

    @classmethod
    def from_info(cls, info: StreamInfo) -> ServerClock:
        """Return the clock for an info of a stream or consumer that has just arrived. Raises ServerError."""
        if not info.get("ts"):
            raise ServerError("The server does not report its time", hint="Use nats-server 2.10 or later")
        return cls(parse_time(info["ts"]))

    @classmethod
    async def read(cls, api: Api, stream: str) -> ServerClock:
        """Ask the leader of a stream. Raises StreamNotFound, PermissionDenied, ServerError."""
        return cls.from_info(await streams.info(api, stream))

    @classmethod
    async def of_connection(cls, api: Api) -> ServerClock:
        """Ask the connected server; fall back to the client's clock if it does not answer."""
        try:
            answer = json.loads((await api.connection.request(_USER_INFO, b"", timeout=_ASK_S)).payload)
            return cls(parse_time(answer["server"]["time"]))
        except (KvctlError, KeyError, TypeError, ValueError):
            return cls(time.time_ns())

    def now_ns(self) -> int:
        """Return the nanoseconds since the epoch."""
        return self._ahead_ns + time.monotonic_ns()
