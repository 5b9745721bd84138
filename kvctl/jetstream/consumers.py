"""Ordered reading by pull consumers: everything that matches, once, in order, in bounded memory.

Unlike the client library's ordered consumer, nothing is lost when the reader is slow (it pulls when it is ready for
more), a consumer that a restart or a cut connection took away is made anew from where it was heard last, and the end
of what was there at the start is always found (ADR-8's end of initial data).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

from kvctl.connection import Subscription
from kvctl.errors import (
    ConnectionLost,
    ConsumerNotFound,
    JetStreamDisabled,
    KvctlError,
    NoResponders,
    NoServer,
    NotFoundError,
    PermissionDenied,
    RequestTimeout,
    ServerError,
    StreamNotFound,
    StreamReplaced,
)
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.delivery import RawFrame, delivery
from kvctl.wire import header_value, status

BATCH = 10_000
MAX_BYTES = 4 << 20
EXPIRES = 30.0
HEARTBEAT = 5.0
IDLE = 0.25
"""Seconds without a message after which a reading asks whether anything is left."""
INACTIVE = 30.0
"""Seconds after which the server forgets a consumer whose client died."""

_GONE = (NoResponders, ConsumerNotFound, ConnectionLost, RequestTimeout, JetStreamDisabled, NoServer, ServerError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to read of a stream: subjects, from where, with or without payloads."""

    subjects: tuple[str, ...]
    deliver: str = "last_per_subject"
    """`last_per_subject`, `all`, `new` or `by_start_sequence`."""
    start: int = 0
    headers_only: bool = False


class OrderedConsumer:
    """One ordered reading of a stream; an async context manager.

    Consumer messages repeat after a resume, and in one rare race of the server; whoever reads entries rather than a
    set of names skips what is not above the last sequence seen.
    """

    def __init__(self, api: Api, stream: str, selection: Selection, *, follow: bool = False) -> None:
        self.stream = stream
        self.info: dict[str, Any] | None = None
        """The stream's info as of the start; None where it may not be asked."""
        self._api = api
        self._connection = api.connection
        self._selection = selection
        self._follow = follow
        self._batch = BATCH
        self._max_bytes = MAX_BYTES + self._connection.max_payload
        self._patience = float("inf") if follow else max(15.0, 3 * self._connection.timeout)
        self._created: str | None = None
        self._last = 0
        self._floor = 0
        self._current = False
        self._settled = False
        self._target = 0
        self._begin()

    def _begin(self) -> None:
        self._name = f"kvctl-{os.urandom(6).hex()}"
        self._pull = f"{self._api.prefix}.CONSUMER.MSG.NEXT.{self.stream}.{self._name}"
        self._asked = 0
        self._next = 1
        self._lost = False
        self._epoch = self._connection.epoch

    async def __aenter__(self) -> OrderedConsumer:
        """Make the consumer. Raises StreamNotFound, PermissionDenied, and what a request raises."""
        self._stack = AsyncExitStack()
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(KvctlError):
            if self._connection.online:
                await self._api.call(f"CONSUMER.DELETE.{self.stream}.{self._name}", timeout=1)
        await self._stack.aclose()

    async def batches(self) -> AsyncIterator[list[RawFrame]]:
        """Messages in order, as many as have come; an empty list, once, where everything there was has been delivered.

        Ends there unless it follows. Raises StreamReplaced when the stream is deleted, recreated or emptied.
        """
        if self._selection.deliver == "new":
            self._current = True
            yield []
            if not self._follow:
                return
        pending = 1 if self._count is None else self._count
        idle = False
        while True:
            if not self._current and await self._caught_up(idle or not pending):
                self._current = True
                yield []
                if not self._follow:
                    return
            frames = await self._receive()
            messages = self._accept(frames)
            idle = not messages
            if messages:
                sequence, number, _, pending = delivery(messages[-1][1])
                if number != self._next + len(messages) - 1:
                    self._lost = True  # something was lost on the way: read it again
                else:
                    self._next = number + 1
                    self._last = max(self._last, sequence)
                    yield messages
            if self._lost or self._epoch != self._connection.epoch:
                await self._resume()
                pending, idle = 1, False

    async def _receive(self) -> list[RawFrame]:
        """Keep two batches asked for, and take what has come."""
        with suppress(NoServer):
            while self._asked <= self._batch:
                self._connection.publish(
                    self._pull,
                    b'{"batch":%d,"max_bytes":%d,"expires":%d,"idle_heartbeat":%d}'
                    % (self._batch, self._max_bytes, EXPIRES * 1e9, HEARTBEAT * 1e9),
                    reply=self._subscription.subject,
                )
                self._asked += self._batch
        wait = 2 * HEARTBEAT + 1 if self._current else IDLE
        frames = await self._subscription.inbox.take(wait)
        if denied := self._subscription.denied(self._pull):
            raise denied
        if self._current and not frames and self._epoch == self._connection.epoch:
            self._lost = True  # two heartbeats missed
        return frames

    def _accept(self, frames: list[RawFrame]) -> list[RawFrame]:
        messages = [frame for frame in frames if frame[1]]
        self._asked -= len(messages)
        if len(messages) != len(frames):
            for frame in frames:
                if not frame[1]:
                    self._status(frame[2])
        return messages

    def _status(self, header: bytes) -> None:
        """A pull's end or a sign of life."""
        code, text = status(header)
        if code == 100:
            return
        left = int(header_value(header, b"Nats-Pending-Messages") or 0)
        self._asked -= left
        if code == 409 and text.startswith("Message Size Exceeds") and left == self._batch:
            self._max_bytes *= 4  # one message is larger than a whole pull
        elif code == 400 or (code == 409 and text.startswith("Exceeded")):
            raise ServerError(f"The server refused a pull: {text}", code=code)
        elif code in (404, 503) or (code == 409 and text.startswith(("Consumer", "Leadership", "Server"))):
            self._lost = True

    async def _open(self) -> None:
        """Create the consumer, then learn how far the stream reaches: in this order, so that nothing falls between."""
        self._subscription: Subscription = await self._stack.enter_async_context(self._connection.subscribe())
        made = await self._create_consumer()
        self._count = made.get("num_pending")
        try:
            self.info = await streams.info(self._api, self.stream)
        except (PermissionDenied, JetStreamDisabled):
            self.info = None
        if self.info is not None:
            self._created = self.info["created"]
            self._target = self.info["state"]["last_seq"]
            self._floor = self._target if self._selection.deliver == "new" else 0
        else:
            self._target = await self._last_matching()

    async def _create_consumer(self) -> dict[str, Any]:
        chosen = self._selection
        config: dict[str, Any] = {
            "name": self._name,
            "deliver_policy": chosen.deliver,
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(INACTIVE * 1e9),
            "headers_only": chosen.headers_only,
        }
        if chosen.deliver == "by_start_sequence":
            config["opt_start_seq"] = max(chosen.start, 1)
        if self._last and (self._current or chosen.deliver != "last_per_subject"):
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": self._last + 1}
        elif self._current:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": max(self._floor, self._target) + 1}
        endpoint = f"CONSUMER.CREATE.{self.stream}.{self._name}"
        if len(chosen.subjects) == 1:
            config["filter_subject"] = chosen.subjects[0]
            endpoint += f".{chosen.subjects[0]}"
        else:
            config["filter_subjects"] = list(chosen.subjects)
        return await self._api.call(endpoint, {"stream_name": self.stream, "config": config}, retry=True)

    async def _resume(self) -> None:
        """Make the consumer anew, from the last message heard, once the server is back."""
        deadline = time.monotonic() + self._patience
        await self._stack.aclose()
        while True:
            try:
                await self._connection.wait_online(min(deadline - time.monotonic(), 3600))
                await self._same_stream()
                self._begin()
                self._stack = AsyncExitStack()
                self._subscription = await self._stack.enter_async_context(self._connection.subscribe())
                await self._create_consumer()
                return
            except StreamNotFound:
                raise StreamReplaced(f"The stream `{self.stream}` was deleted while it was being read") from None
            except _GONE:
                await self._stack.aclose()
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)

    async def _same_stream(self) -> None:
        """Raises StreamReplaced when the stream under this name is no longer the one that was being read."""
        if self._created is None:
            return
        info = await streams.info(self._api, self.stream, timeout=1)
        if info["created"] != self._created:
            raise StreamReplaced(f"The stream `{self.stream}` was deleted and created anew while it was being read")
        if info["state"]["last_seq"] < max(self._last, self._floor):
            raise StreamReplaced(f"The stream `{self.stream}` lost its messages while it was being read (memory storage?)")

    async def _caught_up(self, dry: bool) -> bool:
        """Whether all that was there at the start has been delivered; `dry` when nothing more seems to come."""
        while True:
            if self._last < self._target:
                if not dry:
                    return False
                # The stream may go on with other subjects, or end with messages that are gone.
                self._target = await self._last_matching()
                if self._last < self._target:
                    return False
            if self._settled:
                return True
            # A key overwritten while the list was read has moved behind its end: read on to where the stream ends now.
            self._settled = True
            if self.info is not None:
                self._target = (await streams.info(self._api, self.stream))["state"]["last_seq"]

    async def _last_matching(self) -> int:
        """The last sequence on the subjects that are read, 0 for none."""
        last = 0
        for subject in self._selection.subjects:
            request = {"last_by_subj": subject}
            try:
                found = await self._api.call(f"STREAM.MSG.GET.{self.stream}", request, retry=True)
                last = max(last, int(found["message"]["seq"]))
            except StreamNotFound:
                raise StreamReplaced(f"The stream `{self.stream}` was deleted while it was being read") from None
            except NotFoundError:
                continue
            except PermissionDenied:
                return await self._last_by_consumer()
        return last

    async def _last_by_consumer(self) -> int:
        """Without the permission to read messages: this consumer's own count decides."""
        info = await self._api.call(f"CONSUMER.INFO.{self.stream}.{self._name}", retry=True)
        return self._last + (1 if info["num_pending"] else 0)


async def read(api: Api, stream: str, selection: Selection) -> AsyncIterator[list[RawFrame]]:
    """All batches of a finite reading, without the end marker."""
    async with OrderedConsumer(api, stream, selection) as consumer:
        async for batch in consumer.batches():
            if batch:
                yield batch


