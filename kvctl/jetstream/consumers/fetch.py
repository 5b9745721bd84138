"""Fetch and next: one pull and its messages (ADR-37)."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Self

from kvctl.errors import (
    ConnectionLost,
    JetStreamDisabled,
    KvctlError,
    NoResponders,
    NoServer,
    NotFoundError,
    RequestTimeout,
    ServerError,
)
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers import admin
from kvctl.jetstream.consumers.message import Message
from kvctl.jetstream.consumers.pull import FetchOptions, Meaning, OnEvent, PullIteration, PullStatus, gone, size_of
from kvctl.wire import RawFrame, header_value

MARGIN = 2.0
"""Seconds that we wait longer than the server, which ends the pull."""


class Fetch(PullIteration):
    """One fetch: an async context manager and an iterator, which ends when the pull does.

    Raises ConsumerNotFound, ServerError for a pull that the server does not understand, PermissionDenied,
    ConnectionLost and RequestTimeout; after the messages received before.
    """

    def __init__(
        self,
        api: Api,
        stream: str,
        consumer: str,
        options: FetchOptions,
        on_event: OnEvent | None = None,
        pins: dict[str, str] | None = None,
    ) -> None:
        """`pins` are the consumer's, by priority group: a pin received by one fetch is sent by the next (ADR-42)."""
        super().__init__(api, stream, consumer, on_event)
        self.refusal: PullStatus | None = None
        """Limit of the consumer that the pull exceeded, or the reason why it ended early."""
        self._pins = {} if pins is None else pins
        self._pull = options.pull(self._pins.get(options.group, ""))
        self._by_size = options.max_messages is None
        self._over = False

    async def __aenter__(self) -> Self:
        """Subscribe and send the pull. Raises NoServer."""
        await self._puller.__aenter__()
        self._opened = True
        self._epoch = self._connection.epoch
        self._left, self._bytes_left = self._pull.batch, self._pull.max_bytes or None
        self._deadline = time.monotonic() + self._pull.expires + max(MARGIN, self._connection.timeout)
        try:
            self._puller.ask(self._pull)
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def batches(self) -> AsyncGenerator[list[Message], None]:
        """Yield messages in batches, as they arrive."""
        connection = self._connection
        while frames := await self._receive():
            yield [Message(frame, connection) for frame in frames]

    async def _receive(self) -> list[RawFrame]:
        while self._left and not self._over and (self._bytes_left is None or self._bytes_left > 0):
            frames = await self._puller.receive(self._wait())
            messages = [frame for frame in frames if frame[1]]
            for frame in frames:
                if not frame[1]:
                    self._heed(self._puller.settle(frame[2]))
            if not frames:
                self._check_silence()
            if messages:
                self._taken(messages)
                return messages
        if self._failure is not None:
            raise await self._explained(self._failure)
        return []

    def _taken(self, messages: list[RawFrame]) -> None:
        """Count received messages: when a pull's bytes are used up exactly, the server sends no status."""
        self._left -= len(messages)
        if self._bytes_left is not None:
            self._bytes_left -= sum(map(size_of, messages))
        if self._pull.group:
            pin = header_value(messages[-1][2], b"Nats-Pin-Id")
            if pin:
                self._pins[self._pull.group] = pin.decode()

    def _ask_again(self, **changes: Any) -> None:
        """Send the pull again, adapted to the server's limits."""
        self._pull = self._pull._replace(**changes)
        self._left = min(self._left, self._pull.batch)
        with suppress(NoServer):  # silence shows it
            self._puller.ask(self._pull)

    def _wait(self) -> float:
        until = self._deadline
        if self._pull.heartbeat:
            until = min(until, self._puller.heard + 2 * self._pull.heartbeat)
        return max(until - time.monotonic(), 0.01)

    def _heed(self, status: PullStatus) -> None:
        if status.meaning is Meaning.ALIVE:
            return
        if status.meaning is Meaning.UNPINNED:
            self._pins.pop(self._pull.group, None)
            self._ask_again(pin="")
            return
        if self._by_size and 0 < status.most("Batch") < self._pull.batch:
            self._ask_again(batch=status.most("Batch"))
            return
        self._over = True
        if status.meaning is Meaning.GONE:
            self._failure = gone(self.stream, self.consumer, status)
        elif status.meaning is Meaning.BAD:
            self._failure = ServerError(f"The server refused the pull: {status}", code=status.code)
        elif status.code == 503:
            self._failure = NoResponders(f"Nobody answers pulls of consumer `{self.consumer}`")
        elif status.meaning is not Meaning.ENDED:
            self.refusal = status
            self._report("warning", f"The server ended the pull: {status}", status.code)
        if self._failure is not None:
            self._report("error", self._failure.message, status.code, final=True)

    def _check_silence(self) -> None:
        """Handle silence: a lost connection, missed heartbeats, or simply the end of the time."""
        now = time.monotonic()
        if self._epoch != self._connection.epoch:
            self._failure = ConnectionLost("The connection to the server was lost during a fetch")
        elif self._pull.heartbeat and now - self._puller.heard >= 2 * self._pull.heartbeat:
            self._report("warning", f"Consumer `{self.consumer}` missed two heartbeats")
            self._failure = RequestTimeout(f"Consumer `{self.consumer}` stopped responding")
        elif now >= self._deadline:
            self._failure = RequestTimeout(
                f"The server did not end the pull of consumer `{self.consumer}` in time", hint=self._puller.suspicion
            )
        self._over = self._failure is not None

    async def _explained(self, error: KvctlError) -> KvctlError:
        """Explain why nobody answers: the consumer does not exist, or another reason from its info."""
        if isinstance(error, NoResponders):
            try:
                await admin.info(self._api, self.stream, self.consumer)
            except (NotFoundError, JetStreamDisabled) as reason:
                return reason
            except KvctlError:
                pass
        return error
