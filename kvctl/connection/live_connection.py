"""Live connection of a context: requests, subscriptions and raw publishes, each with a bounded wait."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any

from kvctl.connection.client_options import RECONNECT_WAIT_S, Outage, connect_options, explain, logins, text_of
from kvctl.connection.nats_client import Dialer, NatsLink, install_parser, require_supported
from kvctl.connection.requests import PendingRequests, Subscription, permission_denied
from kvctl.contexts import Context
from kvctl.deferred import pattern
from kvctl.errors import (
    ConnectionLost,
    KvctlError,
    NoResponders,
    NoServer,
    PermissionDenied,
    RequestTimeout,
    UsageError,
)
from kvctl.tokens import check_header, check_subject, encoded, shown
from kvctl.urls import redact
from kvctl.wire import MAX_CONTROL_LINE, Frame, FrameParser, Inbox, publish_frame, status

PING_INTERVAL = 2
PATIENCE_S = 2.0
"""Seconds after which people are told what a request waits for."""
HELD_FRAMES, HOLD_S = 64, 0.01
"""Maximum number of frames in one write, and seconds that they wait for each other."""

Trace = Callable[[str, float, str], None]

_DENIED = pattern(r'permissions violation for (publish|subscription) to "([^"]+)"', re.IGNORECASE)


class Connection:
    """Live connection: requests, subscriptions and raw publishes, each with a bounded wait."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.timeout = context.timeout.total_seconds()
        self.repeats = 0
        """How often a safe request without an answer is sent again."""
        self.trace: Trace | None = None
        self.warn: Callable[[str], None] | None = None
        """Called with the reason why a lost connection does not come back."""
        self.waits: Callable[[str], None] | None = None
        """Called with the reason why a request takes longer than PATIENCE_S."""
        self.epoch = 0
        """Number of connections made so far: a change means that everything in flight was lost."""
        self._client = NatsLink(context, [])
        self._outage = Outage(context)
        self._online = asyncio.Event()
        self._closed = False
        self._parser: FrameParser | None = None
        self._pending = PendingRequests()
        self._subscriptions: list[Subscription] = []
        self._deaf: PermissionDenied | None = None
        """Error that keeps replies from being received, if any."""
        self._hears = False
        """True if a reply has arrived on this connection."""
        self._last_word = ""
        """Last error sent by the server before it closed the connection."""
        self._soon: list[bytes] = []
        """Frames of the next write."""
        self._soon_since = 0.0

    # -- facts ---------------------------------------------------------------------------------------------

    @property
    def max_payload(self) -> int:
        """Maximum size of a message in bytes, headers included."""
        return int(self._client.max_payload)

    @property
    def server_version(self) -> tuple[int, ...]:
        """Version of the server, as in (2, 15, 1)."""
        text = str(self._client.facts.get("version", "0"))
        return tuple(int(part) for part in re.findall(r"\d{1,9}", text)[:3])

    @property
    def server_info(self) -> dict[str, Any]:
        """INFO of the server."""
        return dict(self._client.facts)

    @property
    def url(self) -> str:
        """URL of the server in use, without credentials."""
        connected = self._client.connected_url
        return redact(connected.geturl()) if connected else redact(self.context.url)

    @property
    def online(self) -> bool:
        """True if bytes written now reach a server."""
        return self._online.is_set() and bool(self._client.is_connected) and not self._closed

    @property
    def closed(self) -> bool:
        """True if the connection has ended permanently."""
        return self._closed or bool(self._client.is_closed)

    async def wait_online(self, timeout: float) -> None:
        """Wait for a reconnect. Raises NoServer."""
        if not self.closed:
            if not self.online:
                self._online.clear()  # the library reports a loss some turns later
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):  # `wait_for` of Python 3.11 may swallow a cancellation
                    await self._online.wait()
        if not self.online:
            raise self._gone()

    # -- requests ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def told(self, reason: Callable[[], str]) -> Iterator[None]:
        """Call `waits` with the reason if the block takes longer than PATIENCE_S."""
        waits = self.waits
        if waits is None:
            yield
            return
        timer = asyncio.get_running_loop().call_later(PATIENCE_S, lambda: waits(reason()))
        try:
            yield
        finally:
            timer.cancel()

    async def request(
        self, subject: str, payload: bytes = b"", header: bytes = b"", timeout: float | None = None
    ) -> Frame:
        """Send one request and return its reply.

        Raises NoResponders, RequestTimeout, PermissionDenied, ConnectionLost, NoServer, UsageError.
        """
        limit = self.timeout if timeout is None else timeout
        begun = time.monotonic()
        if not self.online:
            await self.wait_online(limit)
        if self._deaf is not None:
            raise self._deaf
        asked = encoded(subject)
        token = self._pending.token()
        reply = self._replies + token
        self._check(asked, reply, header, payload)
        future = self._pending.add(token, asked, limit, max(begun + limit - time.monotonic(), 0.05))
        try:
            self.write(publish_frame(asked, reply, header, payload))
            with self.told(lambda: f"no answer on `{subject}`"):
                answer = await future
        except KvctlError as error:
            self._traced(subject, begun, type(error).__name__)
            raise
        finally:
            self._pending.remove(token)
        code, text = status(answer.header)
        if code == 503 and not answer.payload:
            self._traced(subject, begun, "no responders")
            raise NoResponders(f"Nobody answers on `{subject}`")
        self._traced(subject, begun, f"{code} {text}".strip() if code else "")
        return answer

    async def require_replies(self) -> None:
        """Find out, before the first write of a connection, that replies arrive: without, its outcome stays unknown.

        Raises PermissionDenied, NoServer; nothing was written.
        """
        deadline = time.monotonic() + self.timeout
        while not self._hears:
            try:
                await self.flush()
            except (ConnectionLost, RequestTimeout) as error:
                if time.monotonic() > deadline:
                    raise NoServer(f"{error.message}; nothing was written", hint=error.hint) from None
                continue
            if self._deaf is not None:
                raise self._deaf
            self._hears = True

    def request_soon(self, subject: bytes, payload: bytes, header: bytes = b"") -> asyncio.Future[Frame]:
        """Send one request, in one write with others of the moment, at a third of the cost of `request`.

        The future ends as `request` does, except that a request without responders yields a frame of status 503. Raises
        NoServer, UsageError.
        """
        if self._deaf is not None:
            raise self._deaf
        token = self._pending.token()
        reply = self._replies + token
        self._check(subject, reply, header, payload)
        self.write_soon(publish_frame(subject, reply, header, payload))
        future = self._pending.add(token, subject, self.timeout, self.timeout)
        if self.trace is not None:
            begun = time.monotonic()
            future.add_done_callback(lambda _: self._traced(subject.decode(errors="replace"), begun, ""))
        return future

    async def stream_replies(
        self, subject: str, payload: bytes, timeout: float | None = None
    ) -> AsyncGenerator[list[tuple[bytes, bytes, bytes, bytes]], None]:
        """Send one request and yield its replies until the caller stops.

        Raises as `request`; RequestTimeout also between two replies.
        """
        limit = self.timeout if timeout is None else timeout
        async with self.subscribe() as subscription:
            begun, epoch = time.monotonic(), self.epoch
            self.publish(subject, payload, reply=subscription.subject)
            while True:
                frames = await subscription.inbox.take(limit)
                if denied := subscription.denied(subject):
                    raise denied
                if self.epoch != epoch:
                    raise ConnectionLost(f"The connection was lost while `{subject}` was answering")
                if not frames:
                    raise RequestTimeout(f"No answer on `{subject}` within {limit:g}s")
                code, text = status(frames[-1][2])
                self._traced(subject, begun, f"{code} {text}".strip() if code else f"{len(frames)} messages")
                if code == 503 and not frames[-1][3]:
                    raise NoResponders(f"Nobody answers on `{subject}`")
                yield frames

    # -- publishing ----------------------------------------------------------------------------------------

    def publish(self, subject: str, payload: bytes = b"", header: bytes = b"", reply: str = "") -> None:
        """Publish without waiting. Raises NoServer when offline, UsageError for messages that close the connection."""
        to, answer = encoded(subject), encoded(reply)
        if reply:
            check_subject(answer)
        self._check(to, answer, header, payload)
        self.write(publish_frame(to, answer, header, payload))

    def write(self, data: bytes) -> None:
        """Write raw protocol bytes. Raises NoServer when offline: nothing is buffered for a later connection."""
        if not self.online:
            raise self._gone()
        if self._soon:
            data = b"".join([*self._soon, data])
            self._soon.clear()
        self._client.send(data)

    def write_soon(self, data: bytes) -> None:
        """Write together with other bytes, within a hundredth of a second or at the loop's next turn.

        Raises NoServer when offline; bytes on a connection lost in between are silently lost.
        """
        if not self.online:
            raise self._gone()
        now = time.monotonic()
        if not self._soon:
            self._soon_since = now
            asyncio.get_running_loop().call_soon(self._write_held)
        self._soon.append(data)
        if len(self._soon) >= HELD_FRAMES or now - self._soon_since > HOLD_S:
            self._write_held()

    def _write_held(self) -> None:
        if self._soon:
            with contextlib.suppress(NoServer):
                self.write(b"")
            self._soon.clear()

    async def drain(self) -> None:
        """Wait until the socket has accepted all written bytes. Raises NoServer."""
        try:
            await self._client.drain_socket()
        except OSError:
            raise self._gone() from None

    def check_message(self, subject: bytes, header: bytes, payload: bytes) -> None:
        """Raise UsageError for a message that would be misread, or that makes the server close the connection."""
        self._check(subject, self._replies + b"0" * 12, header, payload)

    def _check(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Check everything that is published: nothing reaches the wire without this check or an equal one."""
        check_subject(subject)
        check_header(header)
        size = len(header) + len(payload)
        if size > self.max_payload:
            raise UsageError(
                f"The message has {size} bytes, the server's limit is {self.max_payload}",
                hint="The limit is the server's `max_payload`, headers included",
            )
        if len(subject) + len(reply) + 32 > MAX_CONTROL_LINE:
            raise UsageError(
                f"The subject has {len(subject)} bytes and exceeds the protocol's line limit of {MAX_CONTROL_LINE}: "
                f"`{shown(subject)}`"
            )

    # -- subscriptions -------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def subscribe(self, wildcard: bool = False) -> AsyncIterator[Subscription]:
        """Subscribe to a new inbox, with `wildcard` to all subjects one token below it; frames go to an Inbox."""
        if not self.online:
            await self.wait_online(self.timeout)
        subscription = Subscription(f"{self._inbox}s{self._pending.token().decode()}", Inbox())
        inbox = subscription.inbox
        sid = await self._add(subscription.subject + ".*" * wildcard, inbox.frames.append, inbox)
        subscription.sid = sid
        self._subscriptions.append(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.remove(subscription)
            await self._remove(sid)

    @contextlib.contextmanager
    def denials(self) -> Iterator[Subscription]:
        """Collect the server's denials during the block, without an inbox of its own."""
        listener = Subscription("", Inbox())
        self._subscriptions.append(listener)
        try:
            yield listener
        finally:
            self._subscriptions.remove(listener)

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Unsubscribe; messages that the server had sent until then are in the inbox when this returns.

        Raises RequestTimeout, ConnectionLost, NoServer.
        """
        if self._parser is None:
            return  # the library would drop messages in flight
        self._client.forget(int(subscription.sid))
        self.write(b"UNSUB %b \r\n" % subscription.sid)
        await self.flush()

    async def flush(self) -> None:
        """Wait until the server has read all written bytes. Raises RequestTimeout, ConnectionLost, NoServer."""
        with contextlib.suppress(NoResponders, PermissionDenied):  # either comes after everything in flight
            await self.request(f"{self._inbox}nobody")

    async def _add(self, subject: str, sink: Any, inbox: Inbox | None) -> bytes:
        if self._parser is None:  # the slow path, when the library's internals are not as expected
            wake = inbox.wake if inbox is not None else lambda: None
            return b"%d" % await self._client.subscribe_slowly(subject, sink, wake)
        sid = self._client.claim(subject)
        key = b"%d" % sid
        self._parser.sinks[key] = sink
        if inbox is not None:
            self._parser.inboxes[key] = inbox
        try:
            self.write_soon(b"SUB %b  %d\r\n" % (subject.encode(), sid))  # in one write with the request that follows
        except NoServer:
            await self._remove(key)
            raise
        return key

    async def _remove(self, sid: bytes) -> None:
        self._client.forget(int(sid))
        if self._parser is not None:
            self._parser.sinks.pop(sid, None)
            self._parser.inboxes.pop(sid, None)
        if self.online:
            self.write_soon(b"UNSUB %b \r\n" % sid)

    # -- lifecycle -----------------------------------------------------------------------------------------

    async def _open(self) -> None:
        require_supported()
        options = connect_options(self.context)
        servers = logins(self.context)
        if len(servers) > 1:
            random.shuffle(servers)
        # Replies and subscriptions are separate, or the wildcard for replies would receive everything twice.
        self._inbox = f"{self.context.inbox_prefix or '_INBOX'}.{os.urandom(8).hex()}."
        self._replies = f"{self._inbox}r.".encode()
        options |= {
            "reconnect_time_wait": RECONNECT_WAIT_S,
            "ping_interval": PING_INTERVAL,
            "max_outstanding_pings": 2,
            "pending_size": 0,
        }
        dialing = Dialer(self.context, servers, options)
        link = await dialing.first()
        if link is None:
            await self.close()
            raise explain(dialing.causes, self.context) from None
        self._client = link
        same = [address for address, _ in servers if address.websocket == link.websocket]
        link.keep(self, [address for address in same if not link.is_at(address)])
        self._online.set()
        self._parser = install_parser(self._client, self._server_error)
        await self._add(f"{self._inbox}r.*", self._replied, None)

    async def close(self) -> None:
        """Close; requests in flight end with NoServer."""
        self._write_held()
        self._closed = True
        self._lost(self._gone())
        self._online.set()
        with contextlib.suppress(Exception):
            self._client.forget_servers()
            async with asyncio.timeout(1):
                await self._client.close()

    def _replied(self, frame: tuple[bytes, bytes, bytes, bytes]) -> None:
        self._hears = True
        self._pending.reply(frame[0][len(self._replies) :], Frame(*frame))

    def _lost(self, error: KvctlError) -> None:
        self._pending.fail(error)
        for subscription in self._subscriptions:
            subscription.inbox.wake()

    async def disconnected(self) -> None:
        """Handle an event of `nats_client.Listener`, like the next three."""
        self._online.clear()
        self._hears = False
        self.epoch += 1
        if not self._closed:
            self._outage.begin()
        why = f": {self._last_word}" if self._last_word else ""
        self._lost(ConnectionLost(f"The connection to the server was lost{why}"))

    async def reconnected(self) -> None:
        """Handle the event; see `disconnected`."""
        self._deaf = None
        self._last_word = ""
        self._say(self._outage.end())
        self._client.options["reconnect_time_wait"] = RECONNECT_WAIT_S
        self._online.set()
        for subscription in self._subscriptions:
            subscription.inbox.wake()

    async def ended(self) -> None:
        """Handle the event; see `disconnected`."""
        self.epoch += 1
        self._lost(self._gone())
        self._online.set()  # wake those who wait: it will not come back

    async def failed(self, error: Exception) -> None:
        """Handle the event; see `disconnected`."""
        if denied := _DENIED.match(text_of(error)):
            self._deny(denied[1].lower(), denied[2])
        elif not self._client.is_connected:
            self._say(self._outage.met(error))
            self._client.options["reconnect_time_wait"] = self._outage.pause
            if self._outage.hopeless and not self._closed:
                self._closing = asyncio.ensure_future(self.close())

    def _say(self, text: str | None) -> None:
        if text and self.warn is not None:
            self.warn(text)

    def _server_error(self, text: str) -> bool:
        """Handle the server's -ERR; False leaves it to the library, which closes the connection permanently."""
        lower = text.lower()
        if "stale connection" in lower:
            return False
        if denied := _DENIED.match(text):
            self._deny(denied[1].lower(), denied[2])
        elif "invalid publish subject" not in lower:  # sent for literal wildcards, which are stored nevertheless
            self._last_word = text  # the server closes the connection itself if necessary
        return True

    def _deny(self, kind: str, subject: str) -> None:
        """Pass a denial to its requests and subscriptions; the library's path has it in lower case."""
        replies = f"{self._inbox}r.*"
        if kind == "subscription" and subject.lower() == replies.lower():
            self._deaf = permission_denied(kind, replies)
            self._lost(self._deaf)
        if kind == "publish":
            self._pending.deny(subject)
        for subscription in self._subscriptions:
            subscription.deny(kind, subject)

    def _traced(self, subject: str, begun: float, note: str) -> None:
        if self.trace is not None:
            self.trace(subject, time.monotonic() - begun, note)

    def _gone(self) -> NoServer:
        return self._outage.error(self._last_word)


async def connect(context: Context) -> Connection:
    """Connect. Raises NoServer, AuthenticationRefused, UsageError (for an unusable credentials file)."""
    connection = Connection(context)
    await connection._open()
    return connection
