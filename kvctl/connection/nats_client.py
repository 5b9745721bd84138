"""The adapter to nats-py: every private name of the client library that kvctl needs is touched here.

The library's own client is derived from here, and made to refuse a server in the clear, to survive credentials that
cannot be read for a moment, and to cut dead connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

from nats.aio.client import Client as NatsClient
from nats.aio.client import __version__ as CLIENT_VERSION
from nats.aio.subscription import Subscription
from nats.aio.transport import WebSocketTransport

from kvctl.connection.client_options import NO_LOGIN, Cause, Login, wants_tls
from kvctl.contexts import Context
from kvctl.errors import KvctlError, NoServer, UsageError
from kvctl.urls import PORTS, Address
from kvctl.wire import MALFORMED, MAX_FRAME, MAX_LINE, FrameParser, Sink

SUPPORTED = (2, 16)
"""Version of nats-py with known internals: its transport, its tables of servers and subscriptions, its parser."""

STAGGER_S = 0.25
"""Head start of a server before the next one is tried beside it (as in RFC 8305)."""
MOST_SERVERS = 256
"""Maximum number of servers to know: others that a server announces are ignored."""
MAX_WEBSOCKET_MESSAGE = 2 * MAX_FRAME
"""Maximum bytes of a websocket's message: servers put all that waits for a client into one, by default 64 MiB."""
READ_BYTES = 256 << 10
"""Maximum bytes of one read, which asyncio limits to the same number."""


_FACTS = {
    **dict.fromkeys("server_id server_name version cluster domain nonce".split(), str),
    **dict.fromkeys("headers auth_required tls_required tls_verify jetstream".split(), bool),
    "max_payload": int,
}
"""Fields of INFO and their types."""


class Listener(Protocol):
    """Receiver of events of a link in use."""

    async def failed(self, error: Exception) -> None:
        """Handle a failed attempt to reconnect, or an error from the server."""

    async def disconnected(self) -> None:
        """Handle a lost connection; the library reconnects."""

    async def reconnected(self) -> None:
        """Handle a restored connection."""

    async def ended(self) -> None:
        """Handle the permanent end of the connection."""


class InTheClear(NoServer, ConnectionError):
    """A server without TLS where TLS is required; the library passes only an OSError to its caller."""


class MalformedServer(NoServer, ConnectionError):
    """A server that says what no NATS server says; the library passes only an OSError."""


class CredentialsUnreadable(UsageError, OSError):
    """A credentials file that is temporarily unreadable; the library passes only an OSError."""


class NatsLink(NatsClient):
    """Client of the library for one context."""

    def __init__(self, context: Context, logins: Sequence[tuple[Address, Login]]) -> None:
        super().__init__()
        self.listener: Listener | None = None
        self.causes: list[Cause] = []
        """Errors while connecting."""
        self._secure = wants_tls(context)
        self._sending: asyncio.Future[None] | None = None
        self._shown_url = ""
        self._logins = {address.place: login for address, login in logins}

    async def open(self, address: Address, options: dict[str, Any]) -> None:
        """Connect to this server, once. Raises the library's errors."""
        self._shown_url = address.url
        await self.connect(
            address.url,
            **{**options, **self._logins.get(address.place, NO_LOGIN)},
            error_cb=self._heard_error,
            disconnected_cb=self._heard_loss,
            reconnected_cb=self._heard_return,
            closed_cb=self._heard_end,
            # A dead server must be an immediate error; a live connection must reconnect without limit.
            allow_reconnect=False,
            max_reconnect_attempts=1,
            dont_randomize=True,
        )

    async def _connect_to_server(self, s: Any) -> None:
        if not self._transport and s.uri.scheme in ("ws", "wss"):
            transport: Any = WebSocketTransport(self.options["ws_connection_headers"])
            transport._client = _BoundedSession(transport._client)
            self._transport = transport
        await super()._connect_to_server(s)

    def keep(self, listener: Listener, others: Sequence[Address]) -> None:
        """Reconnect from now on, to this server and others of its kind, and notify the listener."""
        self.listener = listener
        self.options.update(allow_reconnect=True, max_reconnect_attempts=-1)
        self._setup_server_pool([other.url for other in others])
        self.options["dont_randomize"] = False

    def forget_servers(self) -> None:
        """Leave a running reconnect no server to connect to: it may miss its cancellation."""
        self._server_pool.clear()

    @property
    def websocket(self) -> bool:
        """True if the connection goes through HTTP, where written bytes have to be sent by `drain`."""
        return self._transport is not None and not hasattr(self._transport, "_io_writer")

    def is_at(self, address: Address) -> bool:
        """Return True if this is the server it was opened to."""
        return self._shown_url == address.url

    def send(self, data: bytes) -> None:
        """Pass bytes to the socket. Raises NoServer."""
        if self._transport is None:  # pragma: no cover - a connection that is online has one
            raise NoServer(f"Not connected to `{self._shown_url}`")
        self._transport.write(data)
        if self.websocket and (self._sending is None or self._sending.done()):
            self._sending = asyncio.ensure_future(self._send_queued())

    async def _send_queued(self) -> None:
        """Send bytes written to a websocket, which the library only queues; a loss is noticed by its reader."""
        with contextlib.suppress(Exception):
            if self._transport is not None:
                await self._transport.drain()  # type: ignore[no-untyped-call]

    @property
    def facts(self) -> dict[str, Any]:
        """INFO of the server."""
        return self._server_info

    def claim(self, subject: str) -> int:
        """Enter a subscription whose frames the caller dispatches, and return its number.

        The library sends SUB again after a reconnect for what stands in its table.
        """
        self._sid += 1
        self._subs[self._sid] = Subscription(self, id=self._sid, subject=subject)
        return self._sid

    def forget(self, sid: int) -> None:
        """Take a subscription out of the library's table."""
        subscription = self._subs.pop(sid, None)
        if subscription is not None:
            subscription._stop_processing()

    async def subscribe_slowly(self, subject: str, sink: Sink, wake: Callable[[], None]) -> int:
        """Subscribe where the library parses and dispatches, and return the subscription's number."""

        async def arrived(message: Any) -> None:
            head = b"NATS/1.0"
            fields = dict(message.headers or {})
            if "Status" in fields:
                head += f" {fields.pop('Status')} {fields.pop('Description', '')}".rstrip().encode()
            lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in fields.items())
            header = head + b"\r\n" + lines + b"\r\n" if message.headers else b""
            sink((message.subject.encode(errors="surrogateescape"), message.reply.encode(), header, message.data))
            wake()

        subscription = await self.subscribe(subject, cb=arrived, pending_msgs_limit=-1, pending_bytes_limit=-1)
        try:
            await asyncio.shield(self.flush())  # the library's reader ends when it answers a flush that was cancelled
        except BaseException:
            with contextlib.suppress(Exception):
                await subscription.unsubscribe()
            raise
        return subscription._id

    async def drain_socket(self) -> None:
        """Wait until the socket has taken what was written. Raises OSError."""
        if self._transport is not None:
            await self._transport.drain()  # type: ignore[no-untyped-call]

    def cut(self) -> None:
        """Abort the connection: flushing it would wait for a stopped server without limit."""
        writer = getattr(self._transport, "_bare_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def drop(self) -> None:
        """Discard a link that is not in use."""
        self.cut()
        session = getattr(self._transport, "_client", None)
        self._transport = None  # after a failed handshake the library would wait for its end in vain
        with contextlib.suppress(Exception):
            async with asyncio.timeout(1):
                if session is not None:
                    await session.close()
                await self.close()

    async def _read_loop(self) -> None:
        """Read all that one call to the socket returns; the library takes an eighth of it at a time."""
        transport: Any = self._transport
        if transport is not None:
            reader = getattr(transport, "_io_reader", None)
            read = reader.read if reader is not None else partial(type(transport).read, transport)

            async def read_bounded(_: int) -> Any:
                self._check_held()
                return await read(READ_BYTES)

            transport.read = read_bounded
        await super()._read_loop()

    def _check_held(self) -> None:
        """Raise MalformedServer for an endless line or message in the library's own parser; ours has these limits."""
        held, needed = len(getattr(self._ps, "buf", b"")), getattr(self._ps, "needed", 0)
        if needed > MAX_FRAME or held > max(needed, MAX_LINE) + READ_BYTES:
            raise MalformedServer(f"`{self._shown_url}` sent a line or a message that is too long")

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except MALFORMED as error:
            if isinstance(error, OSError | ssl.CertificateError):
                raise
            raise MalformedServer(f"`{self._shown_url}` sent a malformed INFO: {error}") from None

    async def _process_op_err(self, e: Exception) -> None:
        if not (self.is_closed or self.is_reconnecting):
            self.cut()
        await super()._process_op_err(e)

    def _connect_command(self) -> bytes:
        """Return the command with the credentials: only for a server that may receive them, and only its own."""
        if self._encrypted():
            self._secure = True  # for all later connections, too: an attacker may cut this one
        elif self._secure:
            raise InTheClear(
                f"The server at `{self._shown_url}` does not offer TLS",
                hint="To connect without encryption, use `nats://` and none of the TLS options",
            )
        self.options.update(self._current_login())
        try:
            return super()._connect_command()
        except UsageError as error:
            raise CredentialsUnreadable(error.message, hint=error.hint) from None

    def _current_login(self) -> Login:
        """Return the credentials for this server: its own, or those of the one that announced it; none for others."""
        uri = self._current_server.uri if self._current_server else None
        return self._logins.get(_place(uri), NO_LOGIN) if uri else NO_LOGIN

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Take the servers that this one announces: new ones, up to a limit, and with the login of this one.

        Raises MalformedServer.
        """
        for name, kind in _FACTS.items():
            if name in info and type(info[name]) is not kind:
                raise MalformedServer(f"`{self._shown_url}` sent a malformed INFO: `{name}` is not {kind.__name__}")
        if info.get("max_payload", 0) < 0:
            raise MalformedServer(f"`{self._shown_url}` sent a malformed INFO: `max_payload` is negative")
        announced = info.get("connect_urls")
        if announced:
            login, known = self._current_login(), {server.uri.netloc for server in self._server_pool}
            new = []
            for url in announced:
                if len(known) >= MOST_SERVERS:
                    break
                with contextlib.suppress(ValueError):  # an invalid address
                    if url not in known and (place := _place(urlsplit(f"nats://{url}")))[0]:
                        self._logins.setdefault(place, login)
                        known.add(url)
                        new.append(url)
            info = {**info, "connect_urls": new}
        await super()._process_info(info, initial_connection)

    def _encrypted(self) -> bool:
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            return writer.get_extra_info("ssl_object") is not None
        return bool(getattr(self._transport, "_using_tls", False))

    async def _heard_error(self, error: Exception) -> None:
        if self.listener is not None:
            await self.listener.failed(error)
        else:
            self.causes.append((error, self._server_info))

    async def _heard_loss(self) -> None:
        if self.listener is not None:
            await self.listener.disconnected()

    async def _heard_return(self) -> None:
        if self.listener is not None:
            await self.listener.reconnected()

    async def _heard_end(self) -> None:
        if self.listener is not None:
            await self.listener.ended()


class _BoundedSession:
    """Session of a websocket with a limit for its messages, which the library lets be of any size."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.close = session.close

    def ws_connect(self, url: str, **options: Any) -> Any:
        return self._session.ws_connect(url, **{**options, "max_msg_size": MAX_WEBSOCKET_MESSAGE})


def _place(uri: Any) -> tuple[str, int]:
    """Return host and port of a parsed URL."""
    return uri.hostname or "", uri.port or PORTS[uri.scheme]


def require_supported(version: str = CLIENT_VERSION) -> None:
    """Raise KvctlError for a nats-py version with unknown internals."""
    known = ".".join(map(str, SUPPORTED))
    if not version.startswith(f"{known}."):
        raise KvctlError(
            f"nats-py {version} is not supported; kvctl needs {known}",
            hint=f"Install it with `pip install 'nats-py[nkeys]=={known}.*'`",
        )


def install_parser(client: Any, on_error: Callable[[str], bool]) -> FrameParser | None:
    """Install our frame parser; return None, with nothing changed, if the library's internals are unexpected."""
    stock = getattr(client, "_ps", None)
    expected = ("_process_msg", "_subs", "_sid", "_transport")
    if not (hasattr(stock, "parse") and hasattr(stock, "reset")) or not all(hasattr(client, name) for name in expected):
        return None
    begun = bytes(getattr(stock, "buf", b""))  # of the INFO that servers send after the handshake
    client._ps = parser = FrameParser(client._process_msg, stock, on_error, begun)
    return parser


class Dialer:
    """Staggered connection attempts to several servers; the first to succeed wins."""

    def __init__(self, context: Context, logins: Sequence[tuple[Address, Login]], options: dict[str, Any]) -> None:
        self.causes: list[Cause] = []
        """Errors, with the INFO of their server."""
        self._context = context
        self._logins = logins
        self._options = options
        self._limit = context.timeout.total_seconds()
        self._waiting = deque(address for address, _ in logins)
        self._attempts: dict[asyncio.Task[bool], NatsLink] = {}
        self._failed: list[NatsLink] = []

    async def first(self) -> NatsLink | None:
        """Return a link to the first server that accepts us within the context's timeout; None if none does."""
        deadline = time.monotonic() + self._limit
        try:
            while self._waiting or self._attempts:
                if self._waiting:
                    self._begin(self._waiting.popleft())
                left = deadline - time.monotonic()
                pause = min(STAGGER_S, left) if self._waiting else left
                done, _ = await asyncio.wait(self._attempts, timeout=max(pause, 0), return_when=asyncio.FIRST_COMPLETED)
                if won := self._finished(done):
                    return won
                if left <= 0:
                    self.causes.append((TimeoutError(), {}))
                    return None
            return None
        finally:
            await self._abandon()

    def _begin(self, address: Address) -> None:
        link = NatsLink(self._context, self._logins)
        self._attempts[asyncio.create_task(self._attempt(link, address))] = link

    async def _attempt(self, link: NatsLink, address: Address) -> bool:
        try:
            await link.open(address, self._options)
        except Exception as error:
            link.causes.append((error, link.facts))
            return False
        return True

    def _finished(self, done: set[asyncio.Task[bool]]) -> NatsLink | None:
        for task in done:
            if task.result():
                return self._attempts.pop(task)
            self._failed.append(self._attempts.pop(task))
            self.causes += self._failed[-1].causes
        return None

    async def _abandon(self) -> None:
        """End all attempts except the one that succeeded."""
        for task in self._attempts:
            task.cancel()
        await asyncio.gather(*self._attempts, return_exceptions=True)
        for link in (*self._attempts.values(), *self._failed):
            await link.drop()
