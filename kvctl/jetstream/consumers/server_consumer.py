"""Ordered reading: its ephemeral pull consumer, the stream's extent and instance, and the end of the initial data."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from kvctl.errors import KvctlError, NoResponders, PermissionDenied, StreamReplaced
from kvctl.jetstream import direct_get, streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers.pull import Pull, Puller
from kvctl.jetstream.stream_info import StreamInfo, StreamState
from kvctl.wire import MAX_CONTROL_LINE

INACTIVE_S = 30.0
"""Seconds after which the server removes a consumer whose client died."""
BATCH_MESSAGES = 10_000
MAX_BYTES = 4 << 20
LIST_MAX_BYTES = 64 << 20
"""Maximum bytes of a pull from a list of last entries."""
EXPIRES_S = 30.0
HEARTBEAT_S = 2.0
SMALL_PULLS = 64
"""Pulls in flight where each delivers few messages."""
STEP_HEARTBEAT_S, STEP_EXPIRES_S, SINGLE_STEP_EXPIRES_S = 0.000_2, 0.5, 0.05
"""Seconds of a pause, of the pull that ends pauses, and of one with a single answer."""
PAUSES, ENTRIES_PER_PAUSE = 500, 50
"""Pauses after which a new list is faster, and entries read in the time of one pause."""


class Selection(NamedTuple):
    """Selection of a stream's messages: subjects, start, with or without payloads."""

    subjects: tuple[str, ...]
    deliver: str = "last_per_subject"
    """`last_per_subject`, `all`, `new` or `by_start_sequence`."""
    start: int = 0
    headers_only: bool = False
    last: int = 0
    """Sequence after which nothing is wanted; 0 for none. Not for `last_per_subject` and `new`."""


class ServerConsumer:
    """One consumer on the server; a reading that is interrupted continues with another one."""

    def __init__(self, api: Api, stream: str) -> None:
        self.name = f"kvctl-{os.urandom(6).hex()}"
        self.puller = Puller(api.connection, f"{api.prefix}.CONSUMER.MSG.NEXT.{stream}.{self.name}")
        self.epoch = api.connection.epoch
        """Connection epoch in which it was created."""
        self.due: int | None = None
        """Number of messages that it is to deliver, by the server's count."""
        self.server: str | None = None
        """Server that it runs on, None outside clusters."""
        self.next = 1
        """Number of the next message, in the order of delivery."""
        self.end: int | None = None
        """Sequence after which the server had nothing more to send, if reported."""
        self.lost = False
        self.missing = False
        """True if the server reports messages as sent that did not arrive."""
        self._api = api
        self._stream = stream

    async def create(self, selection: Selection, last: int, *, resumed: bool) -> dict[str, Any]:
        """Create it, after the sequence `last` if `resumed`; return the server's answer."""
        policy = "by_start_sequence" if resumed else selection.deliver
        config: dict[str, Any] = {
            "name": self.name,
            "deliver_policy": policy,
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(INACTIVE_S * 1e9),
            "headers_only": selection.headers_only,
        }
        if policy == "by_start_sequence":
            config["opt_start_seq"] = last + 1
        endpoint = f"CONSUMER.CREATE.{self._stream}.{self.name}"
        if len(selection.subjects) == 1:
            config["filter_subject"] = selection.subjects[0]
            endpoint += f".{selection.subjects[0]}"
        else:
            config["filter_subjects"] = list(selection.subjects)
        made = await self._api.call(endpoint, {"stream_name": self._stream, "config": config}, retry=True)
        self.server = (made.get("cluster") or {}).get("leader")
        self.due = made.get("num_pending")
        if self.due == 0:
            self.end = last
        return made

    async def delete(self) -> bool:
        """Delete it, if the server answers within a second; return False if nobody may."""
        try:
            if self._api.connection.online:
                await self._api.call(f"CONSUMER.DELETE.{self._stream}.{self.name}", timeout=1)
        except (PermissionDenied, NoResponders):
            return False
        except KvctlError:
            pass
        return True

    async def note_missing(self) -> None:
        """Note whether the server reports messages as sent that did not arrive, if it answers within a second."""
        with suppress(KvctlError):
            self.missing = self._on_its_way(await self._info(timeout=1))

    async def has_more(self) -> bool:
        """Return True if the server has, or has sent, messages that did not arrive."""
        info = await self._info(retry=True)
        return bool(info["num_pending"]) or self._on_its_way(info)

    async def _info(self, **options: Any) -> dict[str, Any]:
        return await self._api.call(f"CONSUMER.INFO.{self._stream}.{self.name}", **options)

    def _on_its_way(self, info: dict[str, Any]) -> bool:
        return int(info["delivered"]["consumer_seq"]) >= self.next


class PullSize:
    """Messages and bytes per pull. Servers, and imports that pass on a single answer, limit them."""

    def __init__(self, api: Api) -> None:
        self.single = api.answers_once
        """True if a pull may have one answer only."""
        self.pending = 0
        """Number of messages left, by the server's last count."""
        self.overflowed = False
        """True if a list of last entries reached the end of a pull's bytes."""
        self._batch = self._max_bytes = 0
        self._max_payload = self._average = api.connection.max_payload
        self._most = 1 if self.single else BATCH_MESSAGES
        """The server's maximum for a pull."""
        self.reset()

    def reset(self) -> None:
        """Ask for as much as possible."""
        self._ask(BATCH_MESSAGES, MAX_BYTES + self._max_payload)

    def note_state(self, state: StreamState) -> None:
        """Take the average size of messages from the stream's state."""
        self._average = int(state["bytes"]) // max(int(state["messages"]), 1) + 1

    def fit_list(self, *, headers_only: bool, known: bool) -> None:
        """Pull lists of last entries by number rather than size; `known` if the stream's state was readable.

        If a pull's `max_bytes` end before the list of a stream with history, the server drops the message that did not
        fit (2.15; it keeps the message for consumers that go by sequence). So the size is only a safety net, and when
        it is reached, the list is read again by pulls that cannot reach it.
        """
        largest = self._max_payload + MAX_CONTROL_LINE
        most = max(LIST_MAX_BYTES, largest)
        if self.overflowed or not known:
            self._ask(most // largest, most)
        else:
            average = 1 if headers_only else self._average
            self._ask(min(max(MAX_BYTES // average, 1), BATCH_MESSAGES), most)

    def limit(self, most: int | None) -> bool:
        """Limit the number of messages per pull; return True if that is fewer than before."""
        if not most or most >= self._batch:
            return False
        self._most = self._batch = most
        return True

    def take_single_answers(self) -> None:
        """Request one message at a time."""
        self.single = True
        self._most = self._batch = 1

    def outgrow(self, messages: int | None) -> None:
        """Allow more bytes if one message was larger than a complete pull, which returned all its messages."""
        if messages and messages >= self._batch - 1:
            self._max_bytes *= 4

    @property
    def ahead(self) -> int:
        """Number of messages to keep requested: two batches, or more where a pull delivers few."""
        if not self.single and self._most >= SMALL_PULLS:
            return self._batch + 1
        return max(self._batch + 1, min(self.pending, SMALL_PULLS, LIST_MAX_BYTES // self._average))

    def pull(self, *, follow: bool, stepping: bool, requested: int = 0, most: int = BATCH_MESSAGES) -> Pull:
        """Build the next pull, of at most `most` messages, after `requested` messages that did not arrive yet.

        One limited to a single answer requests one message and expires before it is missed. A finite reading ends when
        the server has filled a pull in part: the last pull must not be filled exactly. Such pulls expire: others are
        answered by the count of pending messages, which for a moment is too low while keys are overwritten.
        """
        waits = follow or stepping
        if self.single:
            expires = SINGLE_STEP_EXPIRES_S if stepping else HEARTBEAT_S * waits
            return Pull(batch=1, expires=expires, no_wait=not waits)
        if self._most == 1 and not waits:
            return Pull(batch=1, no_wait=True)
        batch = min(self._batch, most)
        exact = batch == self.pending - requested and batch > 1
        return Pull(
            batch=batch - (exact and not waits),
            max_bytes=self._max_bytes,
            expires=STEP_EXPIRES_S if stepping else EXPIRES_S,
            heartbeat=STEP_HEARTBEAT_S if stepping else HEARTBEAT_S,
            no_wait=not waits,
        )

    def _ask(self, batch: int, max_bytes: int) -> None:
        self._batch = min(batch, self._most)
        self._max_bytes = max_bytes


class ListGaps:
    """Progress of a consumer past deleted entries of a server's list of last messages (2.15).

    At each of them the server ends the pulls that do not wait, and pauses until something wakes it: a message, a pull
    that it accepts, or a pull's next heartbeat. So pulls that wait, with frequent heartbeats, take it past all of them,
    and their heartbeats tell its position.
    """

    def __init__(self) -> None:
        self._tolerated = PAUSES
        """Pauses after which the list starts over; it grows."""
        self.begin()

    def begin(self) -> None:
        """Start with a new consumer."""
        self.stepping = False
        """True if the server has come to deleted entries."""
        self.moved = False
        """True if it has moved past one since the last look."""
        self._position = self._pauses = 0

    def reach(self, position: int) -> bool:
        """Record the position of a pause; return True if it is a new one."""
        if position <= self._position:
            return False
        self._position, self.moved = position, True
        self._pauses += 1
        return True

    def too_many(self, entries: int) -> bool:
        """Return True if a new list is faster than the pauses to come in a list of this length."""
        if self._pauses <= max(self._tolerated, entries // ENTRIES_PER_PAUSE):
            return False
        self._tolerated *= 4
        return True


_CHANGES = ("messages", "bytes", "first_seq", "last_seq", "num_deleted")
FAR_MESSAGES, FAR_S = 10_000, 1.0
"""Messages, and seconds, of lag that are more than the time between question and answer."""
MAX_SETBACKS, MAX_ROUNDS = 5, 500
"""How often a reading may fall further behind, and how often it may reach the previous end."""
SOMEWHERE = 1 << 63
"""Sequence that no stream reaches: the end is somewhere ahead."""


async def last_matching(api: Api, stream: str, subjects: Sequence[str]) -> int:
    """Return the last sequence on any of the subjects, 0 for none. Raises StreamNotFound, PermissionDenied."""
    asked = (direct_get.from_leader(api, stream, last_by_subj=subject) for subject in subjects)
    return max((message.sequence for message in await asyncio.gather(*asked) if message), default=0)


async def next_matching(api: Api, stream: str, subjects: Sequence[str], first: int) -> int | None:
    """Return the lowest sequence from `first` on on any of the subjects, None for none. Raises as `last_matching`."""
    asked = (direct_get.from_leader(api, stream, seq=first, next_by_subj=subject) for subject in subjects)
    return min((message.sequence for message in await asyncio.gather(*asked) if message), default=None)


async def subjects(api: Api, stream: str, filters: Sequence[str]) -> int:
    """Return the number of subjects that match a filter and have messages in the stream."""
    found: set[str] = set()
    for subject in filters:
        found.update(await streams.subjects(api, stream, subject))
    return len(found)


def unchanged(before: StreamState, after: StreamState) -> bool:
    """Return True if, by a stream's states, nothing was written or removed in between."""
    return all(before.get(name) == after.get(name) for name in _CHANGES)


class StreamInstance:
    """Creation time of the stream, its last known sequence, and the last message received from it."""

    def __init__(self, api: Api, stream: str) -> None:
        self._api = api
        self._stream = stream
        self._created: str | None = None
        self._highest = 0
        """Last known sequence of the stream, on any subject."""
        self._received: tuple[int, int] | None = None
        """Sequence and time of the last message received."""

    @property
    def known(self) -> bool:
        """True if the stream's info was readable."""
        return self._created is not None

    def begin(self, info: StreamInfo) -> None:
        """Record the instance being read."""
        self._created = info["created"]

    def reached(self, sequence: int) -> None:
        """Record the stream's last sequence."""
        self._highest = sequence

    def receive(self, sequence: int, time_ns: int) -> None:
        """Record a received message."""
        self._highest = max(self._highest, sequence)
        self._received = sequence, time_ns

    async def check(self) -> StreamInfo | None:
        """Return the stream's info, None if it is not readable. Raises StreamReplaced for another instance."""
        if self._created is None:
            return None
        info = await streams.info(self._api, self._stream, timeout=1)
        if info["created"] != self._created or not await self._same_message():
            raise StreamReplaced(f"The stream `{self._stream}` was deleted and recreated while it was being read")
        if info["state"]["last_seq"] < self._highest:
            raise StreamReplaced(
                f"The stream `{self._stream}` lost its messages while it was being read (memory storage?)"
            )
        return info

    def deleted(self) -> StreamReplaced:
        """Build the error for a stream that does not exist any more."""
        return StreamReplaced(f"The stream `{self._stream}` was deleted while it was being read")

    async def _same_message(self) -> bool:
        """Return True if the last message received is unchanged; a stream restored from a snapshot is equally old."""
        if self._received is None:
            return True
        sequence, time_ns = self._received
        try:
            found = await direct_get.from_leader(self._api, self._stream, seq=sequence)
        except PermissionDenied:
            return True
        return found is None or found.time_ns == time_ns


class CatchUpLimit:
    """Moving end of a stream that a reading tries to reach."""

    def __init__(self, end: int) -> None:
        self.end = end
        self._distance: int | None = None
        self._begun = time.monotonic()
        self._failed = self._rounds = 0

    def hopeless(self, end: int) -> bool:
        """Record that `self.end` was reached and `end` is the new end; return True if it is time to give up."""
        distance, now = end - self.end, time.monotonic()
        far = distance >= FAR_MESSAGES or now - self._begun >= FAR_S
        if far and self._distance is not None and distance >= self._distance:
            self._failed += 1
        self.end, self._distance, self._begun = end, distance, now
        self._rounds += 1
        return self._failed >= MAX_SETBACKS or self._rounds >= MAX_ROUNDS


class InitialEnd:
    """Sequence at which a finite reading is complete, and followers are current."""

    def __init__(self, last: int) -> None:
        self.last = last
        """Last sequence when the reading began; a list of last messages has none above it."""
        self.target = last
        """Lowest sequence known to complete the reading."""
        self.bounded = False
        """True if the target is that of the subjects being read."""
        self.limit = CatchUpLimit(last)

    def lower(self, last: int) -> None:
        """Use the last sequence of the subjects being read, if it is known."""
        self.target, self.bounded = min(self.target, last), last < SOMEWHERE
