"""Ordered reading by pull consumers: every matching message once, in order, in bounded memory.

Unlike with the client library's ordered consumer, a slow reader loses nothing (it pulls when it is ready for more), a
consumer lost by a restart or a broken connection is recreated from the last message received, and the end of the
initial data is always found (ADR-8).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

from kvctl.errors import (
    Away,
    ConsumerNotFound,
    JetStreamDisabled,
    KvctlError,
    NoResponders,
    NoServer,
    PermissionDenied,
    RequestTimeout,
    ServerError,
    StreamNotFound,
)
from kvctl.jetstream import streams
from kvctl.jetstream.answer import answer_to
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers import server_consumer
from kvctl.jetstream.consumers.message import DELIVERY, delivery
from kvctl.jetstream.consumers.pull import Meaning, PullStatus
from kvctl.jetstream.consumers.server_consumer import (
    SOMEWHERE,
    InitialEnd,
    ListGaps,
    PullSize,
    Selection,
    ServerConsumer,
    StreamInstance,
)
from kvctl.jetstream.stream_info import StreamInfo, StreamState
from kvctl.wire import RawFrame, header_value

IDLE_S = 0.25
"""Seconds without a message after which a reading checks if anything is left."""
PATIENCE_S = 15.0
"""Minimum seconds that a reading waits for an unavailable server."""
DOUBTS, RESTARTS = 3, 30
"""How often the server may deliver fewer messages than it counts, and a list start over without progress."""
UNANSWERED_PAUSE_S = 0.1
"""Seconds before another consumer is created where nobody answered the pulls of the last one."""
PLACEMENTS, CREATIONS = 32, 3
"""How often a consumer is created until it is at the stream's leader, and without an answer: chance places it."""
SECOND_NAME_S = 2.0
"""Seconds without an answer after which a consumer is created under another name: its server may have just died."""

_SLOWER = "Read fewer keys at once with a filter, or read from nearer to the server"
_GONE = (Away, ConsumerNotFound, ServerError)


class OrderedConsumer:
    """Ordered reading of a stream; an async context manager.

    A finite one reads at the stream's leader: a replica may lag behind acknowledged writes, and would first deliver
    what they have overwritten or deleted.
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
        self._size = PullSize(api)
        self._gaps = ListGaps()
        self._instance = StreamInstance(api, stream)
        waits = follow if patient is None else patient
        self._patience = float("inf") if waits else max(PATIENCE_S, 3 * self._connection.timeout)
        self._state: StreamState | None = None
        """State of the stream when the consumer was created."""
        self._last = max(selection.start - 1, 0)
        self._end = InitialEnd(0)
        self._beyond = 0
        """Number of messages after the selection's last sequence; they are not requested."""
        self._current = selection.deliver == "new"
        self._announced = False
        """True once the end of the initial data was reported."""
        self._hushed = 0
        """How often a consumer fell silent after one answer to each pull."""
        self._doubts = self._furthest = self._restarts = 0
        # A key overwritten during a list moves behind the list's end. Nothing is missing if the server found nothing
        # more to send, which it reports to a pull that does not wait; its pending count drifts.
        self._strict = selection.deliver == "last_per_subject" and not follow
        self._unanswered: bool | None = None
        """True while nobody has answered any pull, as where an import lacks their subject; None before the first."""
        self.resumed = False
        """True once a consumer was lost; a list starts over then."""
        self._trouble: float | None = None
        """Start of the current outage."""
        self._leader: str | None = None
        """Server that led the stream when last asked, None outside clusters."""
        self._stack = AsyncExitStack()
        self._consumer = ServerConsumer(api, stream)

    @property
    def _room(self) -> int:
        """Maximum number of messages left to request: those of a bounded selection."""
        bound = self._selection.last
        if not bound or self._consumer.due is None:
            return SOMEWHERE
        left = self._consumer.due - self._beyond - (self._consumer.next - 1)
        return max(min(left, bound - self._last), 0)

    @property
    def _listed(self) -> bool:
        """True if the server uses a list of last messages; without history every message is a last one."""
        without = self.info is not None and self.info["config"].get("max_msgs_per_subject") == 1
        return self._selection.deliver == "last_per_subject" and not self._current and not without

    async def __aenter__(self) -> OrderedConsumer:
        """Create the consumer. Raises StreamNotFound, PermissionDenied, and errors of a request."""
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.delete()
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
                    self._gaps.stepping = False
                    self._size.reset()
                    yield []
                    continue
                self._consumer.lost = True
            else:
                messages = self._accept(await self._receive())
                idle = not (messages or self._gaps.moved)
                if messages and self._in_sequence(messages) and (wanted := self._wanted(messages)):
                    yield wanted
            if self._consumer.lost or self._consumer.epoch != self._connection.epoch:
                await self._resume()
                idle = False

    def _in_sequence(self, messages: list[RawFrame]) -> bool:
        """Record the position of these messages; return False, to start over, if earlier ones were lost."""
        sequence, number, time_ns, pending = delivery(messages[-1][1])
        consumer = self._consumer
        if number != consumer.next + len(messages) - 1:
            consumer.lost = True
            return False
        consumer.next, consumer.missing, self._trouble, self._unanswered = number + 1, False, None, False
        self._last = max(self._last, sequence)
        self._instance.receive(sequence, time_ns)
        self._size.pending = pending
        if self._follow and not pending:
            consumer.end = sequence
        return True

    def _wanted(self, messages: list[RawFrame]) -> list[RawFrame]:
        """Drop messages out of range: servers begin at the end of the stream if that comes before the start."""
        start, last = self._selection.start, self._selection.last or SOMEWHERE
        if delivery(messages[0][1])[0] >= start and delivery(messages[-1][1])[0] <= last:
            return messages
        return [frame for frame in messages if start <= delivery(frame[1])[0] <= last]

    async def _receive(self) -> list[RawFrame]:
        """Keep two batches requested, and return what has arrived."""
        with suppress(NoServer):
            room = self._room
            while (asked := self._consumer.puller.messages) < min(self._size.ahead, room):
                pull = self._size.pull(
                    follow=self._follow, stepping=self._gaps.stepping, requested=asked, most=room - asked
                )
                self._consumer.puller.ask(pull)
        frames = await self._consumer.puller.receive(server_consumer.HEARTBEAT_S if self._current else IDLE_S)
        if not frames:
            await self._heed_silence(time.monotonic() - self._consumer.puller.heard)
        return frames

    async def _heed_silence(self, seconds: float) -> None:
        """Handle silence: the consumer's server has failed, or an import passes on one answer per pull."""
        consumer = self._consumer
        consumer.lost = seconds > 2 * server_consumer.HEARTBEAT_S + 1
        each_answered = 0 < consumer.puller.answers <= consumer.puller.asked
        if self._size.single or not each_answered or not self._connection.online:
            return
        if consumer.lost:
            self._hushed += 1
            if self._hushed > 1:
                self._size.take_single_answers()
        elif consumer.missing:
            consumer.lost = True
            self._size.take_single_answers()
            self._api.note_single_answers()
        else:
            await consumer.note_missing()

    def _accept(self, frames: list[RawFrame]) -> list[RawFrame]:
        messages = [frame for frame in frames if frame[1]]
        self._gaps.moved = False
        self._consumer.puller.count_off(len(messages))
        if len(messages) != len(frames):
            last = b""
            for _, reply, header, _ in frames:
                if reply:
                    last = reply
                else:
                    self._status(header, delivery(last)[0] if last else self._last)
        return messages

    def _status(self, header: bytes, sequence: int) -> None:
        """Handle a pull's end or a heartbeat, after the message of this sequence."""
        found = self._consumer.puller.settle(header)
        self._unanswered = found.code == 503 and self._unanswered is not False
        if found.meaning is Meaning.REFUSED and self._size.limit(found.most("Batch")):
            return
        if found.meaning in (Meaning.BAD, Meaning.REFUSED):
            raise ServerError(f"The server refused a pull: {found}", code=found.code)
        if found.meaning in (Meaning.GONE, Meaning.LOST):
            self._consumer.lost = True
        elif found.meaning is Meaning.ENDED:
            self._ended(found, sequence)
        elif found.meaning is Meaning.ALIVE and self._gaps.stepping:
            with answer_to(DELIVERY):
                position = int(header_value(header, b"Nats-Last-Stream") or 0)
            self._stepped(position, sequence)

    def _stepped(self, position: int, sequence: int) -> None:
        """Handle a pause of the server at that position; beyond the list it pauses only if nothing is left."""
        if self._gaps.reach(position):
            self._trouble = None
        if (position if self._instance.known else sequence) > self._end.last:
            self._consumer.end = position
        elif self._gaps.too_many(self.expected or 0):
            self._consumer.lost = True

    def _ended(self, found: PullStatus, sequence: int) -> None:
        if self._gaps.stepping and found.code == 408:
            return
        if not self._follow and (found.code == 404 or (found.code == 408 and found.text != "Requests Pending")):
            self._consumer.end = sequence
            self._consumer.puller.forget()
        elif found.code == 404:
            self._consumer.lost = True
        elif found.text.startswith("Message Size Exceeds"):
            if self._listed:
                self._consumer.lost = self._size.overflowed = True
            else:
                self._size.outgrow(found.messages)

    async def _open(self) -> None:
        """Create the consumer, then read the stream's extent: in this order, so that nothing is missed in between."""
        if self._selection.last:
            await self._count_beyond()
        made = await self._create_consumer()
        self.info = await self._look()
        if self.misplaced:
            made = await self._move_to_leader(made)
            self.info = await self._look()
        self.expected = self._consumer.due
        if self._current:
            self._last = int(made["delivered"]["stream_seq"])
        if self.info:
            self._instance.begin(self.info)
        self._fit_list()

    async def _count_beyond(self) -> None:
        """Count what comes after a bounded selection; before its consumer is created, so rather too little."""
        last = self._selection.last
        counting = ServerConsumer(self._api, self.stream)
        await counting.create(self._selection._replace(deliver="by_start_sequence"), last, resumed=True)
        await counting.delete()
        self._beyond = counting.due or 0

    async def _look(self) -> StreamInfo | None:
        """Read the stream's extent; return its info, None without permission."""
        try:
            try:
                info = await streams.info(self._api, self.stream)
            except RequestTimeout:  # a leader that just failed took the request with it
                info = await streams.info(self._api, self.stream)
        except (PermissionDenied, JetStreamDisabled):
            self._end = InitialEnd(self._selection.last or await self._last_matching())
            return None
        self._note(info)
        last = int(info["state"]["last_seq"])
        self._instance.reached(last)
        self._end = InitialEnd(min(last, self._selection.last or last))
        return info

    def _note(self, info: StreamInfo) -> None:
        self._state = info["state"]
        self._size.note_state(self._state)
        self._leader = (info.get("cluster") or {}).get("leader")

    @property
    def misplaced(self) -> bool:
        """True if a finite reading is at a replica, though the stream's leader is another server."""
        known = self._leader and self._consumer.server
        return bool(known) and not self._follow and self._leader != self._consumer.server

    def _fit_list(self) -> None:
        if self._listed:
            self._size.fit_list(headers_only=self._selection.headers_only, known=self.info is not None)

    async def _create_consumer(self) -> dict[str, Any]:
        again = self.resumed and (self._current or self._selection.deliver != "last_per_subject")
        latest = time.monotonic() + self._connection.timeout - SECOND_NAME_S
        for left in reversed(range(CREATIONS)):
            await self._stack.aclose()
            self._consumer = ServerConsumer(self._api, self.stream)
            self._gaps.begin()
            await self._stack.enter_async_context(self._consumer.puller)
            creation = asyncio.ensure_future(self._consumer.create(self._selection, self._last, resumed=again))
            try:
                await asyncio.wait([creation], timeout=SECOND_NAME_S if left else None)
                late = time.monotonic() > latest
                if creation.done() or late or not (self._leader or await self._is_replicated()):
                    made = await creation
                    break
            finally:
                creation.cancel()
        self._size.limit(made["config"].get("max_batch"))
        self._size.pending = self._consumer.due or 0
        return made

    async def _move_to_leader(self, made: dict[str, Any]) -> dict[str, Any]:
        """Create the consumer again until it is at the leader, unless nobody may delete it: it lasts for a while."""
        for attempt in range(1, PLACEMENTS + 1):
            if not self.misplaced or not await self._consumer.delete():
                break
            made = await self._create_consumer()
            if not attempt % 8:
                await self._look()  # another may lead by now
        return made

    async def _is_replicated(self) -> bool:
        """Return True if the stream's leader answers, and another replica may have been asked in vain."""
        with suppress(KvctlError):
            info = await streams.info(self._api, self.stream, timeout=2)
            return bool((info.get("cluster") or {}).get("replicas"))
        return False

    async def _resume(self) -> None:
        """Recreate the consumer, from the last message received, once the server is back."""
        await self._stack.aclose()
        self.resumed = True
        self._count_restart()
        await asyncio.sleep(UNANSWERED_PAUSE_S if self._unanswered else 0)
        if self._selection.deliver == "last_per_subject" and not self._current:
            self._last = 0  # a list starts over
        self._trouble = self._trouble or time.monotonic()
        pause = 0.05
        while True:
            try:
                await self._connection.wait_online(min(self._patience, 3600))
                if info := await self._instance.check():
                    self._note(info)
                await self._move_to_leader(await self._create_consumer())
                if self._listed:
                    await self._look()
                self._fit_list()
                return
            except StreamNotFound:
                raise self._instance.deleted() from None
            except _GONE:
                await self._stack.aclose()
                if self._connection.closed or self._out_of_patience():
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)

    def _count_restart(self) -> None:
        """Raise ServerError, or NoResponders, for a reading that starts over repeatedly without progress."""
        self._restarts = 0 if self._last > self._furthest else self._restarts + 1
        self._furthest = max(self._furthest, self._last)
        if self._restarts <= RESTARTS or not self._connection.online:
            return
        if self._unanswered:
            raise NoResponders(f"Nobody answers on `{self._api.prefix}.{DELIVERY}.{self.stream}.>`")
        if not self._follow:
            raise ServerError(
                f"The server does not deliver the messages of stream `{self.stream}` after message {self._furthest}"
            )

    def _out_of_patience(self) -> bool:
        return self._trouble is not None and time.monotonic() - self._trouble > self._patience

    async def _caught_up(self, idle: bool) -> bool:
        """Return True if all initial data has been delivered; `idle` when nothing more seems to come."""
        end, self._consumer.end = self._consumer.end, None
        reached = end if self._strict or self._gaps.stepping else self._last
        if reached is not None and reached >= self._end.target:
            return True
        if self._strict and self._last > self._end.limit.end:
            await self._keep_up()
        if self._listed and not self._gaps.stepping and (idle or end is not None):
            self._gaps.stepping = True
            self._consumer.puller.forget()
        idle = idle or not self._room
        if not idle and (end is None or self._end.bounded):
            return False
        try:
            # The stream may continue on other subjects, or end with deleted messages.
            last = await self._last_matching()
            if (self._last if end is None else end) >= last:
                return True
            if not self._selection.last:  # else it is the next message, and not the last one
                self._end.lower(last)
        except StreamNotFound:
            raise self._instance.deleted() from None
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
        if last and self._end.limit.hopeless(last):
            raise ServerError(f"The stream `{self.stream}` is written faster than it can be read", hint=_SLOWER)

    async def _complete(self) -> bool:
        """Return True if as many messages arrived as the server counted, unless the stream has changed since.

        Raises ServerError when it keeps counting more than it delivers.
        """
        came = self._consumer.next - 1
        if self._last >= self._end.last or self._selection.last:
            return True  # in order, so all initial data; a new consumer counts later messages, too
        if self._consumer.due is None or came >= self._consumer.due or self._state is None:
            return True
        try:
            if not server_consumer.unchanged(self._state, (await streams.info(self._api, self.stream))["state"]):
                return True
            self._doubts += 1
            if self._doubts < DOUBTS:
                return False
            if self._selection.deliver == "last_per_subject":  # a second opinion on the length of its list
                self._consumer.due = await server_consumer.subjects(self._api, self.stream, self._selection.subjects)
        except StreamNotFound:
            raise self._instance.deleted() from None
        except _GONE:
            return False
        if came >= self._consumer.due:
            return True
        raise ServerError(
            f"The server delivered {came} of {self._consumer.due} messages that it counts in stream `{self.stream}`",
            hint="Run the command again; if it fails again, restart the server that leads the stream",
        )

    async def _last_matching(self) -> int:
        """Return the last sequence on the subjects being read, 0 for none."""
        try:
            if self._selection.last:
                return await self._next_in_range()
            return await server_consumer.last_matching(self._api, self.stream, self._selection.subjects)
        except PermissionDenied:
            self._beyond = 0
            # Without permission to read messages, only the consumer's count is known, which is not a sequence.
            return SOMEWHERE if await self._consumer.has_more() else self._last

    async def _next_in_range(self) -> int:
        """Return the next sequence of a bounded selection, or, without one, the last that was read."""
        selection = self._selection
        following = await server_consumer.next_matching(self._api, self.stream, selection.subjects, self._last + 1)
        if following is None or following > selection.last:
            return self._last
        self._beyond = 0  # too few were counted
        return following


async def read(api: Api, stream: str, selection: Selection) -> AsyncIterator[list[RawFrame]]:
    """Yield all batches of a finite reading, without the end marker."""
    async with OrderedConsumer(api, stream, selection) as consumer:
        async for batch in consumer.batches():
            if batch:
                yield batch
