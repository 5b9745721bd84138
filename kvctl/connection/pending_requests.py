"""Requests that wait for their replies, each with a deadline."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque

from kvctl.connection.subscription import permission_denied
from kvctl.errors import KvctlError, RequestTimeout
from kvctl.wire import Frame

SWEEP_S = 1.0
"""Seconds between checks for timed-out requests."""


class PendingRequests:
    """Futures of requests in flight, by the token that ends their reply subject."""

    def __init__(self) -> None:
        self._open: dict[bytes, tuple[asyncio.Future[Frame], bytes]] = {}
        self._tokens = itertools.count(1)
        self._swept: deque[tuple[float, bytes, bytes, float]] = deque()
        """Requests without a timer of their own: deadline, token, subject, limit."""

    def token(self) -> bytes:
        """Return a new token."""
        return b"%d" % next(self._tokens)

    def add(self, token: bytes, subject: bytes) -> asyncio.Future[Frame]:
        """Add a request; its future ends in a reply or an error."""
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._open[token] = future, subject
        return future

    def remove(self, token: bytes) -> None:
        """Forget a request."""
        self._open.pop(token, None)

    def expire(self, token: bytes, subject: str, limit: float) -> None:
        """End a request that had `limit` seconds."""
        waiting = self._open.pop(token, None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_exception(RequestTimeout(f"No answer on `{subject}` within {round(limit, 1) or limit:g}s"))

    def expire_after(self, limit: float, token: bytes, subject: bytes) -> None:
        """End a request after `limit` seconds, or up to a second later: cheaper than a timer for each."""
        if not self._swept:
            asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
        self._swept.append((time.monotonic() + limit, token, subject, limit))

    def reply(self, token: bytes, frame: Frame) -> None:
        """End a request with its reply."""
        waiting = self._open.pop(token, None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result(frame)

    def fail(self, error: KvctlError) -> None:
        """End all requests with an error."""
        pending, self._open = self._open, {}
        for future, _ in pending.values():
            if not future.done():
                future.set_exception(error)

    def deny(self, subject: str) -> None:
        """End the requests to a subject that may not be published to; denials may have it in lower case."""
        for token, (future, asked) in list(self._open.items()):
            exact = asked.decode(errors="surrogateescape")
            if subject in (exact, exact.lower()) and not future.done():
                del self._open[token]
                future.set_exception(permission_denied("publish", exact))

    def _sweep(self) -> None:
        """End timed-out requests; all have the same timeout, so the first sent ends first."""
        now, swept = time.monotonic(), self._swept
        while swept and (swept[0][0] <= now or swept[0][1] not in self._open):
            _, token, subject, limit = swept.popleft()
            self.expire(token, subject.decode(errors="replace"), limit)
        if swept:
            asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
