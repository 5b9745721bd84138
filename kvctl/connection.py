"""Open and close a connection for a context; the client library's types and errors stop here.

nats-py keeps the connection (credentials, TLS, reconnects). Requests, subscriptions and publishes are our own frames:
the library's request and publish calls lose errors, hang on a dead server, or take five event loop turns each.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from nats.aio.client import Client as NatsClient
from nats.aio.subscription import Subscription as NatsSubscription

from kvctl.contexts import Context, redact
from kvctl.errors import (
    ConnectionLost,
    KvctlError,
    NoResponders,
    NoServer,
    PermissionDenied,
    RequestTimeout,
    UsageError,
)
from kvctl.handshake import START_HINT, connect_options, explain, insist_on_tls
from kvctl.wire import MAX_CONTROL_LINE, Frame, FrameParser, Inbox, publish_frame, status

RECONNECT_WAIT = 0.1
PING_INTERVAL = 2

Trace = Callable[[str, float, str], None]

_DENIED = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"', re.IGNORECASE)


class Connection:
    """A live connection: requests, subscriptions and raw publishes, each with a bounded wait."""

    def __init__(self, context: Context, *, fast: bool = True) -> None:
        self.context = context
        self.timeout = context.timeout.total_seconds()
        self.trace: Trace | None = None
        self.epoch = 0
        """Counts the connections made so far: a change means that everything in flight was lost."""
        self._fast = fast
        self._client = NatsClient()
        self._causes: list[Exception] = []
        self._online = asyncio.Event()
        self._closed = False
        self._parser: FrameParser | None = None
        self._pending: dict[bytes, tuple[asyncio.Future[Frame], bytes]] = {}
        self._tokens = itertools.count(1)
        self._listeners: set[Callable[[PermissionDenied], None]] = set()
        self._denied_inbox: PermissionDenied | None = None
        self._inboxes: list[Inbox] = []

    # -- facts ---------------------------------------------------------------------------------------------

    @property
    def max_payload(self) -> int:
        """The largest message, headers included, in bytes."""
        return int(self._client.max_payload)

    @property
    def server_version(self) -> tuple[int, ...]:
        """As in (2, 15, 1)."""
        text = str(self._client._server_info.get("version", "0"))
        return tuple(int(part) for part in re.findall(r"\d+", text)[:3])

    @property
    def server_info(self) -> dict[str, Any]:
        """The server's INFO."""
        return dict(self._client._server_info)

    @property
    def url(self) -> str:
        """The server in use, without credentials."""
        connected = self._client.connected_url
        return redact(connected.geturl()) if connected else redact(self.context.url)

    @property
    def online(self) -> bool:
        """Whether bytes written now reach a server."""
        return self._online.is_set() and bool(self._client.is_connected)

    async def wait_online(self, timeout: float) -> None:
        """Wait for a reconnect. Raises NoServer."""
        if self._closed or self._client.is_closed:
            raise self._gone()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._online.wait(), timeout)
        if not self.online:
            raise self._gone()

    # -- requests ------------------------------------------------------------------------------------------

    async def request(
        self, subject: str, payload: bytes = b"", header: bytes = b"", timeout: float | None = None
    ) -> Frame:
        """One request, one reply. Raises NoResponders, RequestTimeout, PermissionDenied, ConnectionLost, NoServer, UsageError."""
        limit = self.timeout if timeout is None else timeout
        begun = time.monotonic()
        if not self.online:
            await self.wait_online(limit)
        asked = subject.encode(errors="surrogateescape")
        token = b"%d" % next(self._tokens)
        reply = self._replies + token
        self._check_sizes(asked, reply, header, payload)
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._pending[token] = (future, asked)
        alarm = asyncio.get_running_loop().call_later(limit, self._expire, token, subject, limit)
        try:
            self.write(publish_frame(asked, reply, header, payload))
            answer = await future
        except KvctlError as error:
            self._traced(subject, begun, type(error).__name__)
            raise
        finally:
            alarm.cancel()
            self._pending.pop(token, None)
        code, text = status(answer.header)
        if code == 503 and not answer.payload:
            self._traced(subject, begun, "no responders")
            raise NoResponders(f"Nobody answers on `{subject}`")
        self._traced(subject, begun, f"{code} {text}".strip() if code else "")
        return answer

    async def stream_replies(
        self, subject: str, payload: bytes, timeout: float | None = None
    ) -> AsyncGenerator[Frame, None]:
        """One request, many replies: yields until the caller stops. Raises as `request`; RequestTimeout between two replies."""
        limit = self.timeout if timeout is None else timeout
        if not self.online:
            await self.wait_online(limit)
        async with self.subscribe() as subscription:
            begun, epoch = time.monotonic(), self.epoch
            denied: list[PermissionDenied] = []
            with self.listening(lambda error: denied.append(error) if error.subject == subject else None, subscription.inbox):
                self.publish(subject, payload, reply=subscription.subject)
                while True:
                    frames = await subscription.inbox.take(limit)
                    if denied:
                        raise denied[0]
                    if self.epoch != epoch:
                        raise ConnectionLost(f"The connection was lost while `{subject}` was answering")
                    if not frames:
                        raise RequestTimeout(f"No answer on `{subject}` within {limit:g}s")
                    for frame in frames:
                        answer = Frame(*frame)
                        self._traced(subject, begun, "" if status(answer.header)[0] < 400 else "%s %s" % status(answer.header))
                        if status(answer.header)[0] == 503 and not answer.payload:
                            raise NoResponders(f"Nobody answers on `{subject}`")
                        yield answer

    # -- publishing ----------------------------------------------------------------------------------------

    def publish(self, subject: str, payload: bytes = b"", header: bytes = b"", reply: str = "") -> None:
        """Send and forget. Raises NoServer at once when offline, UsageError for what the server would cut the connection for."""
        to, answer = subject.encode(errors="surrogateescape"), reply.encode()
        self._check_sizes(to, answer, header, payload)
        self.write(publish_frame(to, answer, header, payload))

    def write(self, data: bytes) -> None:
        """Raw protocol bytes. Raises NoServer when offline: nothing is buffered for a later connection."""
        if not self.online:
            raise self._gone()
        if self._client._transport is None:  # pragma: no cover - online implies a transport
            raise self._gone()
        self._client._transport.write(data)

    async def drain(self) -> None:
        """Wait until the socket has taken what was written. Raises NoServer."""
        try:
            if self._client._transport is not None:
                await self._client._transport.drain()  # type: ignore[no-untyped-call]
        except OSError:
            raise self._gone() from None

    def check_size(self, subject: bytes, header: bytes, payload: bytes) -> None:
        """Raises UsageError for a message that the server would refuse by closing the connection."""
        self._check_sizes(subject, self._replies + b"0" * 12, header, payload)

    def _check_sizes(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        size = len(header) + len(payload)
        if size > self.max_payload:
            raise UsageError(
                f"The message is {size} bytes, the server takes {self.max_payload}",
                hint="The limit is the server's `max_payload`; headers count",
            )
        if len(subject) + len(reply) + 32 > MAX_CONTROL_LINE:
            raise UsageError(f"The subject is {len(subject)} bytes, too long for the protocol's line of {MAX_CONTROL_LINE}")

    # -- subscriptions -------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def subscribe(self, wildcard: bool = False) -> AsyncIterator[Subscription]:
        """An own inbox subject whose frames arrive in an Inbox; with `wildcard` all subjects one token below it."""
        subject = f"{self._inbox}s{next(self._tokens)}"
        inbox = Inbox()
        sid = await self._add(subject + ".*" if wildcard else subject, inbox.frames.append, inbox)
        self._inboxes.append(inbox)
        try:
            yield Subscription(subject, inbox)
        finally:
            self._inboxes.remove(inbox)
            await self._remove(sid)

    @contextlib.contextmanager
    def listening(self, listener: Callable[[PermissionDenied], None], *wake: Inbox) -> Any:
        """Tell `listener` of every permission the server denies meanwhile, and wake the inboxes."""

        def told(error: PermissionDenied) -> None:
            listener(error)
            for inbox in wake:
                inbox.wake()

        self._listeners.add(told)
        try:
            yield
        finally:
            self._listeners.discard(told)

    async def _add(self, subject: str, sink: Any, inbox: Inbox | None) -> bytes:
        client = self._client
        if self._parser is None:
            return await self._add_stock(subject, sink, inbox)
        client._sid += 1
        sid = client._sid
        # The library replays SUB after a reconnect for what stands in its own table.
        client._subs[sid] = NatsSubscription(client, id=sid, subject=subject)
        key = b"%d" % sid
        self._parser.sinks[key] = sink
        if inbox is not None:
            self._parser.inboxes[key] = inbox
        self.write(b"SUB %b  %d\r\n" % (subject.encode(), sid))
        return key

    async def _add_stock(self, subject: str, sink: Any, inbox: Inbox | None) -> bytes:
        """The slow path: the library parses and dispatches; used when its internals are not as expected."""

        async def arrived(message: Any) -> None:
            head = b"NATS/1.0"
            fields = dict(message.headers or {})
            if "Status" in fields:
                head += f" {fields.pop('Status')} {fields.pop('Description', '')}".rstrip().encode()
            lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in fields.items())
            header = head + b"\r\n" + lines + b"\r\n" if message.headers else b""
            sink((
                message.subject.encode(errors="surrogateescape"), message.reply.encode(), header, message.data,
            ))  # fmt: skip
            if inbox is not None:
                inbox.wake()

        subscription = await self._client.subscribe(
            subject, cb=arrived, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        await self._client.flush()
        return b"%d" % subscription._id

    async def _remove(self, sid: bytes) -> None:
        subscription = self._client._subs.pop(int(sid), None)
        if self._parser is not None:
            self._parser.sinks.pop(sid, None)
            self._parser.inboxes.pop(sid, None)
        elif subscription is not None:
            subscription._stop_processing()
        if self.online:
            self.write(b"UNSUB %b \r\n" % sid)

    # -- life ----------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        options = connect_options(self.context)
        insist_on_tls(self._client, self.context)
        # Replies and subscriptions stand apart, or the wildcard for replies would receive everything twice.
        self._inbox = f"{self.context.inbox_prefix or '_INBOX'}.{os.urandom(8).hex()}."
        self._replies = f"{self._inbox}r.".encode()
        try:
            async with asyncio.timeout(self.timeout):
                await self._client.connect(
                    **options,
                    error_cb=self._failed,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._reconnected,
                    closed_cb=self._was_closed,
                    # A dead server must be an error at once; a live connection is to come back for ever.
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=RECONNECT_WAIT,  # type: ignore[arg-type]  # a float works
                    ping_interval=PING_INTERVAL,
                    max_outstanding_pings=2,
                    pending_size=0,
                )
        except Exception as error:
            self._abandon()
            await self.close()
            raise explain([*self._causes, error], self.context, self._client._server_info) from None
        self._client.options.update(allow_reconnect=True, max_reconnect_attempts=-1)
        self._online.set()
        if self._fast:
            self._parser = install_parser(self._client, self._server_error)
        await self._add(f"{self._inbox}r.*", self._replied, None)

    async def close(self) -> None:
        """Close; requests under way end with NoServer."""
        self._closed = True
        self._lost(self._gone())
        with contextlib.suppress(Exception):
            async with asyncio.timeout(1):
                await self._client.close()

    def _abandon(self) -> None:
        """Drop a half-made connection: after a failed handshake the library would wait for its end in vain."""
        writer = getattr(self._client._transport, "_bare_io_writer", None)
        if writer is not None:
            writer.transport.abort()
            self._client._transport = None

    def _replied(self, frame: tuple[bytes, bytes, bytes, bytes]) -> None:
        waiting = self._pending.pop(frame[0][len(self._replies) :], None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result(Frame(*frame))

    def _expire(self, token: bytes, subject: str, limit: float) -> None:
        waiting = self._pending.pop(token, None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_exception(self._denied_inbox or RequestTimeout(f"No answer on `{subject}` within {limit:g}s"))

    def _lost(self, error: KvctlError) -> None:
        pending, self._pending = self._pending, {}
        for future, _ in pending.values():
            if not future.done():
                future.set_exception(error)
        for inbox in self._inboxes:
            inbox.wake()

    async def _disconnected(self) -> None:
        self._online.clear()
        self.epoch += 1
        self._lost(ConnectionLost("The connection to the server was lost"))

    async def _reconnected(self) -> None:
        self._online.set()
        for inbox in self._inboxes:
            inbox.wake()

    async def _was_closed(self) -> None:
        self._online.clear()
        self.epoch += 1
        self._lost(self._gone())

    async def _failed(self, error: Exception) -> None:
        self._causes.append(error)
        del self._causes[:-8]
        self._server_error(str(error).removeprefix("nats: "))

    def _server_error(self, text: str) -> bool:
        """Deal with the server's -ERR; False leaves it to the library."""
        if "invalid publish subject" in text.lower():
            return True  # said of subjects with a literal wildcard, which are stored all the same
        denied = _DENIED.match(text)
        if not denied:
            return False
        self._deny(denied[1].lower(), denied[2])
        return True

    def _deny(self, kind: str, subject: str) -> None:
        verb = "publish to" if kind == "publish" else "subscribe to"
        error = PermissionDenied(
            f"Permission denied: the account may not {verb} `{subject}`",
            subject=subject,
            hint=f"Ask for the permission to {verb} `{subject}`",
        )
        if kind == "subscription":
            error.hint = "Replies cannot be received; use `--inbox-prefix` with a prefix that the account may subscribe to"
            self._denied_inbox = error
        asked = subject.lower().encode(errors="surrogateescape")
        for token, (future, pending) in list(self._pending.items()):
            # The library's own path hands the subject on in lower case.
            if (kind == "subscription" or pending.lower() == asked) and not future.done():
                del self._pending[token]
                future.set_exception(error)
        for listener in list(self._listeners):
            listener(error)

    def _traced(self, subject: str, begun: float, note: str) -> None:
        if self.trace is not None:
            self.trace(subject, time.monotonic() - begun, note)

    def _gone(self) -> NoServer:
        return NoServer(f"Not connected to `{redact(self.context.url)}`", hint=START_HINT)


class Subscription:
    """An inbox and the subject that fills it."""

    __slots__ = ("inbox", "subject")

    def __init__(self, subject: str, inbox: Inbox) -> None:
        self.subject = subject
        self.inbox = inbox


async def connect(context: Context, *, fast: bool = True) -> Connection:
    """Connect. Raises NoServer, AuthenticationRefused, UsageError (a credential file that cannot be used)."""
    connection = Connection(context, fast=fast)
    await connection._open()
    return connection


def install_parser(client: Any, on_error: Callable[[str], bool]) -> FrameParser | None:
    """Swap the frame parser in; None, and nothing changed, when the library's internals are not as expected."""
    stock = getattr(client, "_ps", None)
    expected = ("_process_msg", "_subs", "_sid", "_transport")
    if not (hasattr(stock, "parse") and hasattr(stock, "reset")) or not all(hasattr(client, name) for name in expected):
        return None
    if getattr(stock, "buf", None):
        return None  # in the middle of a frame
    client._ps = parser = FrameParser(client, stock, on_error)
    return parser
