"""Pulls of one consumer over one subscription, with the amounts requested and still outstanding (ADR-37).

Fetch, consume and the ordered consumer build on this: each decides when to pull and what a status means for it.
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
    """Sender of one consumer's pulls and receiver of its messages; an async context manager."""

    def __init__(self, connection: Connection, subject: str) -> None:
        self.subject = subject
        self.messages = 0
        """Amount requested, and neither counted off nor returned by the server."""
        self.bytes = 0
        self.asked = self.answers = 0
        """Number of pulls sent, and of answers: messages, statuses and heartbeats."""
        self.heard = time.monotonic()
        """Time of the last frame, or of the first pull."""
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
        """Return messages and statuses that have arrived; none when the time is up or the connection changes.

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
        """Raise PermissionDenied when pulls may not be sent, or delivered messages may not be acknowledged."""
        if denied := self._subscription.denied(self.subject):
            raise denied
        name = self.subject.split(".MSG.NEXT.")[-1]
        for kind, about in self._subscription.denials:
            if kind == "publish" and about.lower().startswith("$js.ack.") and f".{name}.".lower() in about.lower():
                raise permission_denied("publish", f"$JS.ACK.{name}.>")

    def count_off(self, messages: int, size: int = 0) -> None:
        """Count messages as received, or as processed: the caller decides."""
        self.messages = max(self.messages - messages, 0)
        self.bytes = max(self.bytes - size, 0)

    def settle(self, header: bytes) -> Status:
        """Parse a status and subtract what it ends from the count."""
        found = read_status(header)
        if found.messages is not None:
            self.count_off(found.messages, found.bytes)
        elif found.meaning in (Meaning.REFUSED, Meaning.BAD) or found.code in (404, 503):
            # It does not name the pull: refusals come immediately, so it is the newest.
            if self._sent:
                newest = self._sent.pop()
                self.count_off(newest.batch, newest.max_bytes)
        elif found.meaning is not Meaning.ALIVE:
            self.forget()
        return found

    def wake(self) -> None:
        """Make a waiting `receive` return."""
        self._subscription.inbox.wake()

    def forget(self) -> None:
        """Count no pull as outstanding any more."""
        self.messages = self.bytes = 0
        self._sent.clear()

    async def stop(self) -> None:
        """Stop pulling; messages already sent by the server are received before `receive` returns empty.

        Raises RequestTimeout, ConnectionLost, NoServer.
        """
        await self._connection.unsubscribe(self._subscription)


def gone(stream: str, consumer: str, status: Status) -> KvctlError:
    """Build the error for a consumer that does not answer pulls any more: deleted, or a push consumer."""
    if status.text.startswith("Consumer Deleted"):
        return ConsumerNotFound(f"Consumer `{consumer}` of stream `{stream}` was deleted")
    return ServerError(f"Consumer `{consumer}` is a push consumer and cannot be pulled", code=status.code)


def size_of(frame: RawFrame) -> int:
    """Return the bytes of a message as servers count them: subject, reply, header and payload."""
    return len(frame[0]) + len(frame[1]) + len(frame[2]) + len(frame[3])
