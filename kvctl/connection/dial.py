"""Connect to one of several servers, each with the credentials that belong to it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from kvctl.connection.client_options import Cause, Login
from kvctl.connection.nats_client import Link
from kvctl.contexts import Context
from kvctl.urls import Address

STAGGER_S = 0.25
"""Head start of a server before the next one is tried beside it (as in RFC 8305)."""


class Dialing:
    """Staggered connection attempts to several servers; the first to succeed wins."""

    def __init__(self, context: Context, logins: Sequence[tuple[Address, Login]], options: dict[str, Any]) -> None:
        self.causes: list[Cause] = []
        """Errors, with the INFO of their server."""
        self._context = context
        self._logins = logins
        self._options = options
        self._limit = context.timeout.total_seconds()
        self._waiting = deque(address for address, _ in logins)
        self._attempts: dict[asyncio.Task[bool], Link] = {}
        self._failed: list[Link] = []

    async def first(self) -> Link | None:
        """Return a link to the first server that accepts us within the context's timeout; None if none does."""
        deadline = time.monotonic() + self._limit
        try:
            while self._waiting or self._attempts:
                if self._waiting:
                    self._begin(self._waiting.popleft())
                left = deadline - time.monotonic()
                pause = min(STAGGER_S, left) if self._waiting else left
                done, _ = await asyncio.wait(self._attempts, timeout=max(pause, 0), return_when=asyncio.FIRST_COMPLETED)
                if won := self._finished(done):
                    return won
                if left <= 0:
                    self.causes.append((TimeoutError(), {}))
                    return None
            return None
        finally:
            await self._abandon()

    def _begin(self, address: Address) -> None:
        link = Link(self._context, self._logins)
        self._attempts[asyncio.create_task(self._attempt(link, address))] = link

    async def _attempt(self, link: Link, address: Address) -> bool:
        try:
            await link.open(address, self._options)
        except Exception as error:
            link.causes.append((error, link.facts))
            return False
        return True

    def _finished(self, done: set[asyncio.Task[bool]]) -> Link | None:
        for task in done:
            if task.result():
                return self._attempts.pop(task)
            self._failed.append(self._attempts.pop(task))
            self.causes += self._failed[-1].causes
        return None

    async def _abandon(self) -> None:
        """End all attempts except the one that succeeded."""
        for task in self._attempts:
            task.cancel()
        await asyncio.gather(*self._attempts, return_exceptions=True)
        for link in (*self._attempts.values(), *self._failed):
            await link.drop()
