"""Consumer of a stream, with the ways to get its messages, and ordered reading of a stream (ADR-37)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from typing import Any, Self

from kvctl.errors import UsageError
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers import admin
from kvctl.jetstream.consumers.consume import Consumption
from kvctl.jetstream.consumers.delivery import delivery
from kvctl.jetstream.consumers.fetch import Fetch
from kvctl.jetstream.consumers.message import Message, MessageIteration
from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer
from kvctl.jetstream.consumers.pull import EXPIRES, ConsumeOptions, FetchOptions, OnEvent
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.tokens import check_filter_subject, check_name
from kvctl.units import format_time

_POLICIES = ("all", "last_per_subject", "new", "by_start_sequence")


class Consumer:
    """Pull consumer of a stream."""

    def __init__(self, api: Api, stream: str, name: str, info: dict[str, Any] | None = None) -> None:
        self.api = api
        self.stream = stream
        self.name = name
        self.cached_info = info
        """Last info requested; None before the first request."""
        self._pins: dict[str, str] = {}
        """This client's pin ids by priority group, for a consumer pinned to one of its clients."""

    async def info(self) -> dict[str, Any]:
        """Request the server's info: config, delivered, ack_floor, counts. Raises ConsumerNotFound, StreamNotFound."""
        self.cached_info = await admin.info(self.api, self.stream, self.name)
        return self.cached_info

    async def delete(self) -> None:
        """Delete it. Raises ConsumerNotFound, ReadOnly."""
        await admin.delete(self.api, self.stream, self.name)

    async def pause(self, until_ns: int) -> dict[str, Any]:
        """Pause delivery until a time in nanoseconds since the epoch (servers since 2.11). Raises ConsumerNotFound."""
        return await admin.pause(self.api, self.stream, self.name, format_time(until_ns))

    async def resume(self) -> dict[str, Any]:
        """End a pause. Raises ConsumerNotFound."""
        return await admin.pause(self.api, self.stream, self.name, None)

    def fetch(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        expires: timedelta = EXPIRES,
        idle_heartbeat: timedelta | None = None,
        no_wait: bool = False,
        group: str = "",
        on_event: OnEvent | None = None,
    ) -> Fetch:
        """Send one pull for at most some messages, or bytes, or both, within `expires`; `async for message in it`.

        Longer than 30 s, it has heartbeats. `no_wait` takes only available messages. Raises UsageError without a limit,
        and for an `idle_heartbeat` outside 0.5 to 30 s.
        """
        options = FetchOptions(
            max_messages=max_messages,
            max_bytes=max_bytes,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            no_wait=no_wait,
            group=group,
        )
        return Fetch(self.api, self.stream, self.name, options, on_event, self._pins)

    async def next(
        self,
        *,
        expires: timedelta = EXPIRES,
        idle_heartbeat: timedelta | None = None,
        group: str = "",
        on_event: OnEvent | None = None,
    ) -> Message | None:
        """Return one message; None if none came in time. Raises as `fetch` and its iteration."""
        pull = self.fetch(1, expires=expires, idle_heartbeat=idle_heartbeat, group=group, on_event=on_event)
        async with pull as messages:
            async for message in messages:
                return message
        return None

    def consume(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: timedelta = EXPIRES,
        idle_heartbeat: timedelta | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        count: int | None = None,
        group: str = "",
        on_event: OnEvent | None = None,
    ) -> Consumption:
        """Iterate over messages endlessly, with a buffer of 500 unless `max_messages` or `max_bytes` is given.

        More are requested when half of it, or a threshold, is left. Events beside the messages are reported to
        `on_event`. With `max_bytes`, servers up to 2.15 may skip a message of a consumer that delivers the last per
        subject of a stream with history. Raises UsageError for both limits together, a threshold above its limit, an
        `expires` under 1 s, an `idle_heartbeat` outside 0.5 to 30 s.
        """
        options = ConsumeOptions(
            max_messages=max_messages,
            max_bytes=max_bytes,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            count=count,
            group=group,
        )
        return Consumption(self.api, self.stream, self.name, options, on_event)


class StreamReading(MessageIteration):
    """Ordered reading, each message once: an async context manager and an iterator.

    Raises StreamNotFound, StreamReplaced, PermissionDenied.
    """

    def __init__(
        self,
        api: Api,
        stream: str,
        subjects: Sequence[str] = (),
        deliver: str = "all",
        start: int = 0,
        follow: bool = False,
        headers_only: bool = False,
    ) -> None:
        if deliver not in _POLICIES:
            raise UsageError(f"`deliver` must be one of {', '.join(_POLICIES)}, not `{deliver}`")
        if (deliver == "by_start_sequence") != bool(start):
            raise UsageError("`start` and `by_start_sequence` must be used together")
        check_name(stream, "stream")
        for subject in subjects:
            check_filter_subject(subject)
        selection = Selection(
            subjects=tuple(subjects) or (">",), deliver=deliver, start=start, headers_only=headers_only
        )
        self._connection = api.connection
        self._ordered = OrderedConsumer(api, stream, selection, follow=follow)
        self._last = 0

    async def __aenter__(self) -> Self:
        await self._ordered.__aenter__()
        self._opened = True
        return self

    async def __aexit__(self, *exit: object) -> None:
        await self._ordered.__aexit__(*exit)

    async def batches(self) -> AsyncGenerator[list[Message], None]:
        """Yield messages in batches, as they arrive."""
        async for frames in self._ordered.batches():
            fresh = []
            for frame in frames:
                sequence = delivery(frame[1])[0]
                if sequence > self._last:  # messages repeat when the consumer is recreated
                    self._last = sequence
                    fresh.append(Message(frame, self._connection))
            if fresh:
                yield fresh
