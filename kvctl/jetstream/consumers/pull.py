"""Pulls of one consumer over one subscription, with what was asked for and is still to come (ADR-37).

Fetch, consume and the ordered consumer stand on this: each decides when to ask, and what a status means for it.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import Self

from kvctl.connection import Connection, Subscription, permission_denied
from kvctl.errors import ConsumerNotFound, KvctlError, ServerError
from kvctl.jetstream.consumers.delivery import RawFrame
from kvctl.jetstream.consumers.pull_options import Pull
from kvctl.jetstream.consumers.pull_status import Meaning, Status, read_status

_REMEMBERED = 16


class Puller:
    """Asks one consumer for messages and receives them; an async context manager."""

    def __init__(self, connection: Connection, subject: str) -> None:
        self.subject = subject
        self.messages = 0
        """Asked for, and neither counted off nor given back by the server."""
        self.bytes = 0
        self.asked = self.answers = 0
        """Pulls that were sent, and what came of them: messages, statuses and signs of life."""
        self.heard = time.monotonic()
        """When the last frame came, or the first pull went out."""
        self._connection = connection
        self._sent: list[Pull] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Subscribe. Raises NoServer."""
        self._subscription: Subscription = await self._stack.enter_async_context(self._connection.subscribe())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def ask(self, pull: Pull) -> None:
        """Send a pull and count it. Raises NoServer."""
        self._connection.publish(self.subject, pull.body(), reply=self._subscription.subject)
        if not self.messages:
            self.heard = time.monotonic()
        self.asked += 1
        self.messages += pull.batch
        self.bytes += pull.max_bytes
        self._sent.append(pull)
        del self._sent[:-_REMEMBERED]

    async def receive(self, timeout: float) -> list[RawFrame]:
        """Messages and statuses, all that have come; none when the time is up or the connection changes.

        Raises PermissionDenied.
        """
        frames = await self._subscription.inbox.take(timeout)
        if self._subscription.denials:
            self._check_denials()
        if frames:
            self.heard = time.monotonic()
            self.answers += len(frames)
        return frames

    def _check_denials(self) -> None:
        """Raises PermissionDenied when pulls may not be sent, or what was delivered may not be answered."""
        if denied := self._subscription.denied(self.subject):
            raise denied
        name = self.subject.split(".MSG.NEXT.")[-1]
        for kind, about in self._subscription.denials:
            if kind == "publish" and about.startswith("$js.ack.") and f".{name}.".lower() in about:
                raise permission_denied("publish", f"$JS.ACK.{name}.>")

    def count_off(self, messages: int, size: int = 0) -> None:
        """Messages have come, or have been dealt with: whichever the caller counts."""
        self.messages = max(self.messages - messages, 0)
        self.bytes = max(self.bytes - size, 0)

    def settle(self, header: bytes) -> Status:
        """Read a status and take what it ends off the count."""
        found = read_status(header)
        if found.messages is not None:
            self.count_off(found.messages, found.bytes)
        elif found.meaning in (Meaning.REFUSED, Meaning.BAD) or found.code in (404, 503):
            # It does not say which pull it was: what is refused is refused at once, so the newest.
            if self._sent:
                newest = self._sent.pop()
                self.count_off(newest.batch, newest.max_bytes)
        elif found.meaning is not Meaning.ALIVE:
            self.forget()
        return found

    def wake(self) -> None:
        """Let a waiting `receive` come back."""
        self._subscription.inbox.wake()

    def forget(self) -> None:
        """None of the pulls is kept by anybody any more."""
        self.messages = self.bytes = 0
        self._sent.clear()

    async def stop(self) -> None:
        """Want nothing more; what the server had sent is received before `receive` comes back empty.

        Raises RequestTimeout, ConnectionLost, NoServer.
        """
        await self._connection.unsubscribe(self._subscription)


def gone(stream: str, consumer: str, status: Status) -> KvctlError:
    """The error for a consumer that answers no pull any more: it was deleted, or pushes its messages."""
    if status.text.startswith("Consumer Deleted"):
        return ConsumerNotFound(f"Consumer `{consumer}` of stream `{stream}` was deleted")
    return ServerError(f"Consumer `{consumer}` pushes its messages: it cannot be pulled", code=status.code)


def size_of(frame: RawFrame) -> int:
    """The bytes of a message as servers count them: subject, reply, header and payload."""
    return len(frame[0]) + len(frame[1]) + len(frame[2]) + len(frame[3])
