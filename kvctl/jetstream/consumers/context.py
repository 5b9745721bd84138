"""JetStream context (ADR-37): it manages streams, and they manage consumers.

async with kvctl.connect() as client:
    orders = await client.jetstream.create_stream("ORDERS", subjects=["orders.>"])
    worker = await orders.create_consumer("worker", filter_subject="orders.new", ack_wait=timedelta(minutes=1))
    async with worker.consume() as messages:
        async for message in messages:
            await message.ack()

Configurations are the server's own: its field names, with `timedelta` for what it counts in nanoseconds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from kvctl.errors import UsageError
from kvctl.jetstream import edits, streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers import admin
from kvctl.jetstream.consumers.consume import Consumption
from kvctl.jetstream.consumers.fetch import Fetch
from kvctl.jetstream.consumers.message import Message, MessageIteration, delivery
from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer
from kvctl.jetstream.consumers.pull import EXPIRES, ConsumeOptions, FetchOptions, OnEvent
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.jetstream.direct_get import StoredMessage, from_leader
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.tokens import check_filter_subject, check_name
from kvctl.units import duration_ns, format_time

_POLICIES = ("all", "last_per_subject", "new", "by_start_sequence")


class JetStream:
    """Streams and consumers of one account, in the connection's domain or under its API prefix."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def account_info(self) -> dict[str, Any]:
        """Return usage and limits of the account. Raises JetStreamDisabled."""
        return await self.api.account_info()

    def stream(self, name: str) -> Stream:
        """Return a handle without any request."""
        return Stream(self.api, name)

    async def create_stream(self, name: str, **config: Any) -> Stream:
        """Create a stream; succeed if an equal one exists. Raises ConflictError, ServerError, ReadOnly."""
        return self._found(await streams.create(self.api, _config(config, name=name)))

    async def update_stream(self, name: str, **config: Any) -> Stream:
        """Replace a stream's entire configuration. Raises StreamNotFound, ServerError, ReadOnly."""
        return self._found(await streams.update(self.api, _config(config, name=name)))

    async def create_or_update_stream(self, name: str, **config: Any) -> Stream:
        """Create the stream, or apply the configuration to the existing one. Raises as both."""
        if await streams.find(self.api, name) is None:
            return await self.create_stream(name, **config)
        return await self.update_stream(name, **config)

    async def get_stream(self, name: str) -> Stream:
        """Return an existing stream with its info. Raises StreamNotFound."""
        return self._found(await streams.info(self.api, name))

    async def delete_stream(self, name: str) -> None:
        """Delete a stream with all its messages. Raises StreamNotFound, OutcomeUnknown, ReadOnly."""
        await edits.delete(edits.stream(self.api, name))

    async def stream_names(self, subject: str | None = None) -> list[str]:
        """Return the names of all streams, or of those that listen on a subject."""
        return await streams.names(self.api, subject)

    async def list_streams(self) -> list[Stream]:
        """Return all streams whose servers answer, with their infos."""
        return [self._found(info) for info in (await streams.listing(self.api)).answering]

    async def create_consumer(self, stream: str, name: str | None = None, **config: Any) -> Consumer:
        """Call `Stream.create_consumer`."""
        return await self.stream(stream).create_consumer(name, **config)

    async def update_consumer(self, stream: str, name: str, **config: Any) -> Consumer:
        """Call `Stream.update_consumer`."""
        return await self.stream(stream).update_consumer(name, **config)

    async def create_or_update_consumer(self, stream: str, name: str | None = None, **config: Any) -> Consumer:
        """Call `Stream.create_or_update_consumer`."""
        return await self.stream(stream).create_or_update_consumer(name, **config)

    async def get_consumer(self, stream: str, name: str) -> Consumer:
        """Call `Stream.get_consumer`."""
        return await self.stream(stream).get_consumer(name)

    async def delete_consumer(self, stream: str, name: str) -> None:
        """Delete a consumer. Raises ConsumerNotFound, ReadOnly."""
        await admin.delete(self.api, stream, name)

    def _found(self, info: StreamInfo) -> Stream:
        return Stream(self.api, info["config"]["name"], info)


class Stream:
    """A stream: its messages and its consumers."""

    def __init__(self, api: Api, name: str, info: StreamInfo | None = None) -> None:
        self.api = api
        self.name = name
        self.cached_info = info
        """Last info requested; None before the first request."""

    async def info(self) -> StreamInfo:
        """Request the server's info: config, state, cluster, mirror, sources, alternates. Raises StreamNotFound."""
        self.cached_info = await streams.info(self.api, self.name)
        return self.cached_info

    async def delete(self) -> None:
        """Delete it with all its messages. Raises StreamNotFound, OutcomeUnknown, ReadOnly."""
        await edits.delete(edits.stream(self.api, self.name))

    async def purge(
        self,
        *,
        subject: str | None = None,
        sequence: int | None = None,
        keep: int | None = None,
        confirm: str | None = None,
    ) -> int:
        """Remove messages on a subject, below a sequence, or all but the last `keep`; return their number.

        Mirrors and aggregates do not notice it. So a stream that is replicated, or replicates others, is purged only
        with its own name as `confirm`. Raises RefusedError without it, StreamNotFound, ServerError (sequence and keep
        cannot be combined), UsageError, ReadOnly.
        """
        streams.require_writable(self.api)
        await streams.require_alone(self.api, self.name, confirm)
        request = {"filter": subject, "seq": sequence, "keep": keep}
        given = {name: value for name, value in request.items() if value is not None}
        return await streams.purge(self.api, self.name, **given)

    async def subjects(self, subject: str = ">") -> dict[str, int]:
        """Return the subjects of its messages, with their message counts."""
        return await streams.subjects(self.api, self.name, subject)

    async def get_message(
        self, sequence: int | None = None, *, last_for: str | None = None, next_for: str | None = None
    ) -> StoredMessage | None:
        """Get one message from the leader: by sequence, the last on a subject, or the next from a sequence on.

        Returns None if there is none. Raises StreamNotFound, UsageError.
        """
        if (last_for is None) == (sequence is None and next_for is None):
            raise UsageError("Give the message's sequence, `last_for`, or `next_for` with or without a sequence")
        request = {"seq": sequence, "last_by_subj": last_for, "next_by_subj": next_for}
        given = {name: value for name, value in request.items() if value is not None}
        return await from_leader(self.api, self.name, **given)

    async def delete_message(self, sequence: int, *, erase: bool = True) -> None:
        """Remove one message; with `erase` its bytes are overwritten. Raises NotFoundError, ReadOnly."""
        await streams.delete_message(self.api, self.name, sequence, erase=erase)

    def consumer(self, name: str) -> Consumer:
        """Return a handle without any request."""
        return Consumer(self.api, self.name, name)

    async def create_consumer(self, name: str | None = None, **config: Any) -> Consumer:
        """Create a durable consumer, or without a name an ephemeral one; succeed if an equal one exists.

        Raises ConflictError (another configuration), StreamNotFound, ServerError, ReadOnly.
        """
        return self._made(await admin.create(self.api, self.name, _consumer_config(name, config)))

    async def update_consumer(self, name: str, **config: Any) -> Consumer:
        """Replace a consumer's entire configuration. Raises ConsumerNotFound, ServerError, ReadOnly."""
        return self._made(await admin.update(self.api, self.name, _consumer_config(name, config)))

    async def create_or_update_consumer(self, name: str | None = None, **config: Any) -> Consumer:
        """Create the consumer, or apply the configuration to the existing one. Raises as both."""
        return self._made(await admin.create_or_update(self.api, self.name, _consumer_config(name, config)))

    async def get_consumer(self, name: str) -> Consumer:
        """Return an existing consumer with its info. Raises ConsumerNotFound, StreamNotFound."""
        return self._made(await admin.info(self.api, self.name, name))

    async def delete_consumer(self, name: str) -> None:
        """Delete a consumer. Raises ConsumerNotFound, ReadOnly."""
        await admin.delete(self.api, self.name, name)

    async def consumer_names(self) -> list[str]:
        """Return the names of its consumers. Raises StreamNotFound."""
        return await admin.names(self.api, self.name)

    async def list_consumers(self) -> list[Consumer]:
        """Return its consumers that answer, with their infos. Raises StreamNotFound."""
        infos, _ = await admin.listing(self.api, self.name)
        return [self._made(info) for info in infos]

    def read(
        self, *subjects: str, deliver: str = "all", start: int = 0, follow: bool = False, headers_only: bool = False
    ) -> StreamReading:
        """Read in order: every message on the subjects once, by an ephemeral consumer without acks.

        `deliver` is `all`, `last_per_subject`, `new`, or `by_start_sequence` with `start`. The reading ends at the last
        message at its start; with `follow`, never. The consumer is recreated after a gap, missed heartbeats, a
        reconnect.
        """
        return StreamReading(self.api, self.name, subjects, deliver, start, follow, headers_only)

    def _made(self, info: dict[str, Any]) -> Consumer:
        return Consumer(self.api, self.name, info["name"], info)


def _consumer_config(name: str | None, config: Mapping[str, Any]) -> dict[str, Any]:
    named = {} if name is None else {"name": name, "durable_name": name}
    return {"ack_policy": "explicit"} | _config(config) | named


def _config(config: Mapping[str, Any], **fixed: str) -> dict[str, Any]:
    return {name: _plain(value) for name, value in config.items()} | fixed


def _plain(value: Any) -> Any:
    """Convert a value to the server's JSON."""
    if isinstance(value, timedelta):
        return duration_ns(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return {name: _plain(item) for name, item in value.items()} if isinstance(value, Mapping) else value


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
