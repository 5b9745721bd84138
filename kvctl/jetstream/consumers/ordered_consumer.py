"""Ordered reading by pull consumers: every matching message once, in order, in bounded memory.

Unlike with the client library's ordered consumer, a slow reader loses nothing (it pulls when it is ready for more), a
consumer lost by a restart or a broken connection is recreated from the last message received, and the end of the
initial data is always found (ADR-8).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

from kvctl.errors import (
    ConnectionLost,
    ConsumerNotFound,
    JetStreamDisabled,
    KvctlError,
    NoResponders,
    NoServer,
    PermissionDenied,
    RequestTimeout,
    ServerError,
    StreamNotFound,
    StreamReplaced,
)
from kvctl.jetstream import single_reply, streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers import extent
from kvctl.jetstream.consumers.catch_up import Chase
from kvctl.jetstream.consumers.delivery import RawFrame, delivery
from kvctl.jetstream.consumers.pull import Puller
from kvctl.jetstream.consumers.pull_options import Pull
from kvctl.jetstream.consumers.pull_status import Meaning, Status
from kvctl.jetstream.direct import direct_get
from kvctl.jetstream.stream_info import StreamInfo, StreamState
from kvctl.wire import MAX_CONTROL_LINE, header_value

BATCH = 10_000
MAX_BYTES = 4 << 20
NET_BYTES = 64 << 20
"""Maximum bytes of a pull from a list of last entries."""
EXPIRES = 30.0
HEARTBEAT = 2.0
IDLE = 0.25
"""Seconds without a message after which a reading checks if anything is left."""
PATIENCE = 15.0
"""Minimum seconds that a reading waits for an unavailable server."""
STEP, STEPPING, STEPPED = 0.000_2, 0.5, 0.05
"""Seconds of a server's pause at a deleted list entry, of the pull that ends it, and of one with a single answer."""
STEPS, AS_LONG = 500, 50
"""Pauses after which a new list is faster, and entries read in the time of one pause."""
AT_ONCE = 64
"""Pulls in flight where each delivers few messages."""
DOUBTS, RESTARTS = 3, 30
"""How often the server may deliver fewer messages than it counts, and a list start over without progress."""
SOMEWHERE = 1 << 63
"""Sequence that no stream reaches."""
INACTIVE = 30.0
"""Seconds after which the server removes a consumer whose client died."""

_SLOWER = "Read fewer keys at once with a filter, or read from nearer to the server"
_GONE = (NoResponders, ConsumerNotFound, ConnectionLost, RequestTimeout, JetStreamDisabled, NoServer, ServerError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selection of a stream's messages: subjects, start, with or without payloads."""

    subjects: tuple[str, ...]
    deliver: str = "last_per_subject"
    """`last_per_subject`, `all`, `new` or `by_start_sequence`."""
    start: int = 0
    headers_only: bool = False


class OrderedConsumer:
    """Ordered reading of a stream; an async context manager.

    Messages repeat after a resume, and in one rare race of the server; readers of entries rather than of a set of names
    skip those not above the last sequence seen.
    """

    def __init__(
        self, api: Api, stream: str, selection: Selection, *, follow: bool = False, patient: bool | None = None
    ) -> None:
        """`patient` makes it wait for the server without limit; the default if it follows."""
        self.stream = stream
        self.info: StreamInfo | None = None
        """Stream info at the start; None without permission to read it."""
        self.expected: int | None = None
        """Number of matching messages when the consumer was created, before `info` was requested."""
        self._api = api
        self._connection = api.connection
        self._selection = selection
        self._follow = follow
        self._single = single_reply.known(api)
        """True if a pull may have one answer only."""
        self._most = 1 if self._single else BATCH
        """The server's maximum for a pull."""
        self._ask(BATCH, MAX_BYTES + self._connection.max_payload)
        waits = follow if patient is None else patient
        self._patience = float("inf") if waits else max(PATIENCE, 3 * self._connection.timeout)
        self._created: str | None = None
        self._state: StreamState | None = None
        """State of the stream when the consumer was created."""
        self._last = max(selection.start - 1, 0)
        self._aim(0)
        self._highest = 0
        """Last known sequence of the stream, on any subject."""
        self._current = selection.deliver == "new"
        self._announced = False
        """True once the end of the initial data was reported."""
        self._heard: tuple[int, int] | None = None
        """Sequence and time of the last message received."""
        self._hushed = 0
        """How often a consumer fell silent after one answer to each pull."""
        self._doubts = self._furthest = self._restarts = 0
        # A key overwritten during a list moves behind the list's end. Nothing is missing if the server found nothing
        # more to send, which it reports to a pull that does not wait; its pending count drifts.
        self._strict = selection.deliver == "last_per_subject" and not follow
        self._steps = STEPS
        """Pauses of the server that are tolerated before the list starts over; it grows."""
        self._resumed = False
        self._overflowed = False
        """True if a list of last entries reached the end of a pull's bytes."""
        self._trouble: float | None = None
        """Start of the current outage."""
        self._begin()

    @property
    def _listed(self) -> bool:
        """True if the server uses a list of last messages; without history every message is a last one."""
        without = self.info is not None and self.info["config"].get("max_msgs_per_subject") == 1
        return self._selection.deliver == "last_per_subject" and not self._current and not without

    def _ask(self, batch: int, max_bytes: int) -> None:
        """Set the size of pulls."""
        self._batch = min(batch, self._most)
        self._max_bytes = max_bytes

    def _ask_carefully(self) -> None:
        """Pull lists of last entries by number rather than size.

        If a pull's `max_bytes` end before the list of a stream with history, the server drops the message that did not
        fit
        (2.15; it keeps the message for consumers that go by sequence). So the size is only a safety net, and when it is
        reached, the list is read again by pulls that cannot reach it.
        """
        if not self._listed:
            return
        size = 1 if self._selection.headers_only else self._size
        largest = self._connection.max_payload + MAX_CONTROL_LINE
        net = max(NET_BYTES, largest)
        if self._overflowed or not self.info:
            self._ask(net // largest, net)
        else:
            self._ask(min(max(MAX_BYTES // size, 1), BATCH), net)

    def _begin(self) -> None:
        self._name = f"kvctl-{os.urandom(6).hex()}"
        self._puller = Puller(self._connection, f"{self._api.prefix}.CONSUMER.MSG.NEXT.{self.stream}.{self._name}")
        self._next = 1
        self._end: int | None = None
        """Sequence after which the server had nothing more to send, if reported."""
        self._stepping = False
        """True if the server has come to deleted entries of its list."""
        self._position = 0
        """Position that it reached then."""
        self._moved = False
        self._rests = 0
        self._lost = False
        self._missing = False
        """True if the server reports messages as sent that did not arrive."""
        self._due: int | None = None
        """Number of messages that this consumer is to deliver, by the server's count."""
        self._pending = 0
        self._epoch = self._connection.epoch

    async def __aenter__(self) -> OrderedConsumer:
        """Create the consumer. Raises StreamNotFound, PermissionDenied, and errors of a request."""
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
        """Yield messages in order, as they arrive; an empty list, once, when the initial data is complete.

        Ends there unless it follows. Raises StreamReplaced when the stream is deleted, recreated or emptied.
        """
        if self._current and not self._announced:
            self._announced = True
            yield []
        idle = False
        while self._follow or not self._current:
            if not self._current and await self._caught_up(idle):
                if await self._complete():
                    self._current = self._announced = True
                    self._stepping = False
                    self._ask(BATCH, MAX_BYTES + self._connection.max_payload)
                    yield []
                    continue
                self._lost = True
            else:
                messages = self._accept(await self._receive())
                idle = not (messages or self._moved)
                if messages and self._in_sequence(messages) and (wanted := self._wanted(messages)):
                    yield wanted
            if self._lost or self._epoch != self._connection.epoch:
                await self._resume()
                idle = False

    def _in_sequence(self, messages: list[RawFrame]) -> bool:
        """Record the position of these messages; return False, to start over, if earlier ones were lost."""
        sequence, number, time_ns, pending = delivery(messages[-1][1])
        if number != self._next + len(messages) - 1:
            self._lost = True
            return False
        self._next, self._trouble, self._missing = number + 1, None, False
        self._last = max(self._last, sequence)
        self._highest = max(self._highest, sequence)
        self._heard, self._pending = (sequence, time_ns), pending
        if self._follow and not pending:
            self._end = sequence
        return True

    def _wanted(self, messages: list[RawFrame]) -> list[RawFrame]:
        """Drop messages below the start: servers begin at the end of the stream if that comes first."""
        start = self._selection.start
        if not start or delivery(messages[0][1])[0] >= start:
            return messages
        return [frame for frame in messages if delivery(frame[1])[0] >= start]

    async def _receive(self) -> list[RawFrame]:
        """Keep two batches requested, and return what has arrived."""
        with suppress(NoServer):
            while self._puller.messages < self._ahead:
                self._puller.ask(self._pull())
        frames = await self._puller.receive(HEARTBEAT if self._current else IDLE)
        if not frames:
            await self._heed_silence(time.monotonic() - self._puller.heard)
        return frames

    @property
    def _ahead(self) -> int:
        """Return the number of messages to keep requested: two batches, or more where a pull delivers few."""
        if not self._single and self._most >= AT_ONCE:
            return self._batch + 1
        return max(self._batch + 1, min(self._pending, AT_ONCE, NET_BYTES // self._size))

    @property
    def _size(self) -> int:
        """Return the average bytes of a message; the maximum while unknown."""
        if self._state is None:
            return self._connection.max_payload
        return int(self._state["bytes"]) // max(int(self._state["messages"]), 1) + 1

    def _pull(self) -> Pull:
        """Build the next pull; one limited to a single answer requests one message and expires before it is missed."""
        waits = self._follow or self._stepping
        if self._single:
            return Pull(batch=1, expires=STEPPED if self._stepping else HEARTBEAT * waits, no_wait=not waits)
        if self._most < BATCH and not waits:  # one that arrives after the last message should end immediately
            return Pull(batch=self._batch, max_bytes=self._max_bytes, no_wait=True)
        return Pull(
            batch=self._batch,
            max_bytes=self._max_bytes,
            expires=STEPPING if self._stepping else EXPIRES,
            heartbeat=STEP if self._stepping else HEARTBEAT,
            no_wait=not waits,
        )

    async def _heed_silence(self, seconds: float) -> None:
        """Handle silence: the consumer's server has failed, or an import passes on one answer per pull."""
        self._lost = seconds > 2 * HEARTBEAT + 1
        if self._single or not 0 < self._puller.answers <= self._puller.asked or not self._connection.online:
            return
        if self._lost:
            self._hushed += 1
            if self._hushed > 1:
                self._take_single_answers()
        elif self._missing:
            self._lost = True
            self._take_single_answers()
            single_reply.note(self._api)
        else:
            with suppress(KvctlError):
                info = await self._api.call(f"CONSUMER.INFO.{self.stream}.{self._name}", timeout=1)
                self._missing = info["delivered"]["consumer_seq"] >= self._next

    def _take_single_answers(self) -> None:
        self._single = True
        self._most = self._batch = 1

    def _accept(self, frames: list[RawFrame]) -> list[RawFrame]:
        messages = [frame for frame in frames if frame[1]]
        self._moved = False
        self._puller.count_off(len(messages))
        if len(messages) != len(frames):
            sequence = self._last
            for frame in frames:
                if frame[1]:
                    sequence = delivery(frame[1])[0]
                else:
                    self._status(frame[2], sequence)
        return messages

    def _status(self, header: bytes, sequence: int) -> None:
        """Handle a pull's end or a heartbeat, after the message of this sequence."""
        found = self._puller.settle(header)
        if found.meaning is Meaning.REFUSED and self._within(found.most("Batch")):
            return
        if found.meaning in (Meaning.BAD, Meaning.REFUSED):
            raise ServerError(f"The server refused a pull: {found}", code=found.code)
        if found.meaning in (Meaning.GONE, Meaning.LOST):
            self._lost = True
        elif found.meaning is Meaning.ENDED:
            self._ended(found, sequence)
        elif found.meaning is Meaning.ALIVE and self._stepping:
            self._stepped(int(header_value(header, b"Nats-Last-Stream") or 0), sequence)

    def _within(self, limit: int | None) -> bool:
        """Limit the number of messages per pull; return True if that is fewer than before."""
        if not limit or limit >= self._batch:
            return False
        self._most = self._batch = limit
        return True

    def _stepped(self, position: int, sequence: int) -> None:
        """Handle a pause of the server at that position; beyond the list it pauses only if nothing is left."""
        if position > self._position:
            self._position, self._moved, self._trouble = position, True, None
            self._rests += 1
        if (sequence if self._created is None else position) > self._beyond:
            self._end = position
        elif self._rests > max(self._steps, (self.expected or 0) // AS_LONG):
            self._lost = True
            self._steps *= 4

    def _step_over(self) -> None:
        """Make the server continue past deleted entries of its list.

        At each of them it ends the pulls that do not wait, and pauses until something wakes it (2.15): a message, a
        pull
        that it accepts, or a pull's next heartbeat. So pulls that wait, with frequent heartbeats, take it past all of
        them,
        and their heartbeats tell its position.
        """
        self._stepping = True
        self._puller.forget()

    def _ended(self, found: Status, sequence: int) -> None:
        if self._stepping and found.code == 408:
            return
        if not self._follow and (found.code == 404 or (found.code == 408 and found.text != "Requests Pending")):
            self._end = sequence
            self._puller.forget()
        elif found.code == 404:
            self._lost = True
        elif found.text.startswith("Message Size Exceeds"):
            if self._listed:
                self._lost = self._overflowed = True
            elif found.messages == self._batch:
                self._max_bytes *= 4  # one message is larger than an entire pull

    async def _open(self) -> None:
        """Create the consumer, then read the stream's extent: in this order, so that nothing is missed in between."""
        await self._stack.enter_async_context(self._puller)
        made = await self._create_consumer()
        self.expected = self._due
        if self._current:
            self._last = int(made["delivered"]["stream_seq"])
        self.info = await self._look()
        self._created = self.info["created"] if self.info else None
        self._ask_carefully()

    async def _look(self) -> StreamInfo | None:
        """Read the stream's extent; return its info, None without permission."""
        try:
            info = await streams.info(self._api, self.stream)
        except (PermissionDenied, JetStreamDisabled):
            self._aim(await self._last_matching())
            return None
        self._state = info["state"]
        self._highest = int(info["state"]["last_seq"])
        self._aim(self._highest)
        return info

    def _aim(self, last: int) -> None:
        """Set the end of the initial data."""
        self._target = self._goal = last
        self._bounded = False
        """True if the target is that of the subjects being read."""
        self._beyond = last
        """Last sequence that a list of last messages may contain."""
        self._chase = Chase(last)

    async def _create_consumer(self) -> dict[str, Any]:
        chosen = self._selection
        again = self._resumed and (self._current or chosen.deliver != "last_per_subject")
        policy = "by_start_sequence" if again else chosen.deliver
        config: dict[str, Any] = {
            "name": self._name,
            "deliver_policy": policy,
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(INACTIVE * 1e9),
            "headers_only": chosen.headers_only,
        }
        if policy == "by_start_sequence":
            config["opt_start_seq"] = self._last + 1
        endpoint = f"CONSUMER.CREATE.{self.stream}.{self._name}"
        if len(chosen.subjects) == 1:
            config["filter_subject"] = chosen.subjects[0]
            endpoint += f".{chosen.subjects[0]}"
        else:
            config["filter_subjects"] = list(chosen.subjects)
        made = await self._api.call(endpoint, {"stream_name": self.stream, "config": config}, retry=True)
        self._within(made["config"].get("max_batch"))
        self._due = made.get("num_pending")
        self._pending = self._due or 0
        if self._due == 0:
            self._end = self._last
        return made

    async def _resume(self) -> None:
        """Recreate the consumer, from the last message received, once the server is back."""
        await self._stack.aclose()
        self._resumed = True
        self._count_restart()
        if self._selection.deliver == "last_per_subject" and not self._current:
            self._last = 0  # a list starts over
        self._trouble = self._trouble or time.monotonic()
        pause = 0.05
        while True:
            try:
                await self._connection.wait_online(min(self._patience, 3600))
                await self._same_stream()
                self._begin()
                self._stack = AsyncExitStack()
                await self._stack.enter_async_context(self._puller)
                await self._create_consumer()
                if self._listed:
                    await self._look()
                self._ask_carefully()
                return
            except StreamNotFound:
                raise self._deleted() from None
            except _GONE:
                await self._stack.aclose()
                if self._connection.closed or self._out_of_patience():
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)

    def _count_restart(self) -> None:
        """Raise ServerError for a finite reading that starts over repeatedly without progress."""
        self._restarts = 0 if self._last > self._furthest else self._restarts + 1
        self._furthest = max(self._furthest, self._last)
        if self._restarts > RESTARTS and not self._follow and self._connection.online:
            raise ServerError(
                f"The server does not deliver the messages of stream `{self.stream}` after message {self._furthest}"
            )

    def _out_of_patience(self) -> bool:
        return self._trouble is not None and time.monotonic() - self._trouble > self._patience

    def _deleted(self) -> StreamReplaced:
        return StreamReplaced(f"The stream `{self.stream}` was deleted while it was being read")

    async def _same_stream(self) -> None:
        """Raise StreamReplaced if the stream of this name is another stream instance than the one being read."""
        if self._created is None:
            return
        info = await streams.info(self._api, self.stream, timeout=1)
        self._state = info["state"]
        if info["created"] != self._created or not await self._same_message():
            raise StreamReplaced(f"The stream `{self.stream}` was deleted and recreated while it was being read")
        if info["state"]["last_seq"] < self._highest:
            raise StreamReplaced(
                f"The stream `{self.stream}` lost its messages while it was being read (memory storage?)"
            )

    async def _caught_up(self, idle: bool) -> bool:
        """Return True if all initial data has been delivered; `idle` when nothing more seems to come."""
        end, self._end = self._end, None
        reached = end if self._strict or self._stepping else self._last
        if reached is not None and reached >= self._target:
            return True
        if self._strict and self._last > self._chase.end:
            await self._keep_up()
        if self._listed and not self._stepping and (idle or end is not None):
            self._step_over()
        if not idle and (end is None or self._bounded):
            return False
        try:
            # The stream may continue on other subjects, or end with deleted messages.
            last = await self._last_matching()
            if (self._last if end is None else end) >= last:
                return True
            self._target, self._bounded = min(self._target, last), last < SOMEWHERE
        except StreamNotFound:
            raise self._deleted() from None
        except _GONE:
            if self._connection.closed or self._out_of_patience():
                raise
        self._trouble = self._trouble or time.monotonic()
        if self._out_of_patience():
            raise ServerError(f"The server has messages of `{self.stream}` that it does not deliver")
        return False

    async def _keep_up(self) -> None:
        """Raise ServerError if the stream is written faster than it is read."""
        last = 0
        with suppress(*_GONE):
            last = await self._last_matching()
        if last and self._chase.hopeless(last):
            raise ServerError(f"The stream `{self.stream}` is written faster than it can be read", hint=_SLOWER)

    async def _same_message(self) -> bool:
        """Return True if the last message received is unchanged; a stream restored from a snapshot is equally old."""
        if self._heard is None:
            return True
        sequence, time_ns = self._heard
        try:
            found = await direct_get.from_leader(self._api, self.stream, seq=sequence)
        except PermissionDenied:
            return True
        return found is None or found.time_ns == time_ns

    async def _complete(self) -> bool:
        """Return True if as many messages arrived as the server counted, unless the stream has changed since.

        Raises ServerError when it keeps counting more than it delivers.
        """
        came = self._next - 1
        if self._last >= self._goal:
            return True  # in order, so all initial data; a new consumer counts later messages, too
        if self._due is None or came >= self._due or self._state is None:
            return True
        try:
            if not extent.unchanged(self._state, (await streams.info(self._api, self.stream))["state"]):
                return True
            self._doubts += 1
            if self._doubts < DOUBTS:
                return False
            if self._selection.deliver == "last_per_subject":  # a second opinion on the length of its list
                self._due = await extent.subjects(self._api, self.stream, self._selection.subjects)
        except StreamNotFound:
            raise self._deleted() from None
        except _GONE:
            return False
        if came >= self._due:
            return True
        raise ServerError(
            f"The server delivered {came} of {self._due} messages that it counts in stream `{self.stream}`",
            hint="Run the command again; if it fails again, restart the server that leads the stream",
        )

    async def _last_matching(self) -> int:
        """Return the last sequence on the subjects being read, 0 for none."""
        try:
            return await extent.last_matching(self._api, self.stream, self._selection.subjects)
        except PermissionDenied:
            return await self._last_by_consumer()

    async def _last_by_consumer(self) -> int:
        """Set the end by the consumer's count, without permission to read messages; it does not give a sequence."""
        info = await self._api.call(f"CONSUMER.INFO.{self.stream}.{self._name}", retry=True)
        on_its_way = info["delivered"]["consumer_seq"] >= self._next
        return SOMEWHERE if info["num_pending"] or on_its_way else self._last


async def read(api: Api, stream: str, selection: Selection) -> AsyncIterator[list[RawFrame]]:
    """Yield all batches of a finite reading, without the end marker."""
    async with OrderedConsumer(api, stream, selection) as consumer:
        async for batch in consumer.batches():
            if batch:
                yield batch
