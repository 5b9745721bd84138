"""A TCP proxy between clients and one NATS server, for tests of faults.

It works in threads, so blocking tests, asyncio tests and child processes use it alike. It reads the NATS protocol and
forwards whole frames (`HPUB ...` with its payload, `MSG ...`, `PING`), each of which a rule may treat otherwise:

    with Proxy(server.url) as proxy:
        proxy.on(b"$KV.B.k ", Cut())                      # the server never sees the write
        proxy.on(b"$KV.B.k ", LoseAnswer())               # it stores the write, the client hears nothing
        proxy.on(b"$KV.B.k ", LoseAnswer(cut=True))       # the same, and the connection is cut when it is stored
        proxy.on(b"$KV.B.k ", Late(seconds=2))            # the client is cut off now, the server sees the write later
        proxy.on(b"$KV.B.k ", Cut(at=10))                 # ten bytes of the frame arrive
        proxy.on(b"$KV.B.k ", Delay(0.5), hook=lambda: raw.put("B", "k", b"theirs"))
        proxy.on(b'"last_seq"', Swallow(), way=DOWN)      # an answer that contains these bytes
        proxy.on(ANY, lambda frame: Cut() if random.random() < 0.01 else None, times=None)
        proxy.cut(); proxy.refuse(seconds=1); proxy.stall(); proxy.resume()

A rule applies to the first `times` frames that match it, and rules are asked in the order they were made. A hook runs
in a thread of the proxy before the frame is treated: use `tests.support.raw.RawClient` in it, or
`asyncio.run_coroutine_threadsafe(...).result()`. Servers behind it do not tell clients of other ways in
(`connect_urls` is taken out of INFO). Not for TLS.
"""

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

UP, DOWN = "up", "down"
"""To the server, to the client."""
ANY = b""
"""Matches every frame."""
_LINE = re.compile(rb"[^\n]*\n")
_SIZED = (b"PUB ", b"HPUB ", b"MSG ", b"HMSG ")


@dataclass(frozen=True)
class Forward:
    """The frame passes; what no rule matches does."""


@dataclass(frozen=True)
class Cut:
    """The connection ends: before the frame, or after its first `at` bytes, or after the last for -1."""

    at: int = 0


@dataclass(frozen=True)
class Swallow:
    """The frame disappears, the connection stays."""


@dataclass(frozen=True)
class LoseAnswer:
    """A request passes; its answer disappears, and with `cut` the connection ends at that moment."""

    cut: bool = False


@dataclass(frozen=True)
class Delay:
    """The frame, and what follows it in this direction, passes after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Late:
    """The client is cut off now; the frame reaches the server after so many seconds, when the client may be back."""

    seconds: float


@dataclass(frozen=True)
class Replace:
    """Another frame passes in the place of this one."""

    frame: bytes


Action = Forward | Replace | Cut | Swallow | LoseAnswer | Delay | Late
Decide = Callable[[bytes], Action | None]
"""The action for a frame; None leaves it to the next rule."""


@dataclass
class Rule:
    """An action for frames of one direction that contain some bytes, or match a regular expression."""

    match: bytes | re.Pattern[bytes]
    action: Action | Decide
    way: str
    times: int | None
    hook: Callable[[], object] | None
    seen: threading.Event = field(default_factory=threading.Event)
    """Set when the first frame has been treated."""

    def action_for(self, way: str, frame: bytes) -> Action | None:
        """The action if this frame is its business."""
        if way != self.way or self.times == 0:
            return None
        found = self.match in frame if isinstance(self.match, bytes) else self.match.search(frame)
        if not found:
            return None
        return self.action(frame) if callable(self.action) else self.action


class Proxy:
    """The proxy, listening at `url` until `close`; a context manager."""

    def __init__(self, target: str, *, port: int = 0) -> None:
        self.target = target
        """Where new connections lead; may be changed at any time."""
        self.connections: list[_Connection] = []
        """Those that are open."""
        self.accepted = 0
        """Number of connections accepted so far."""
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._refuse_until = 0.0
        self._failure: Exception | None = None
        """What a hook raised; it ends its connection, and is raised when the proxy is closed."""
        self._listener = socket.create_server(("127.0.0.1", port))
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def on(
        self,
        match: bytes | re.Pattern[bytes],
        action: Action | Decide,
        *,
        way: str = UP,
        times: int | None = 1,
        hook: Callable[[], object] | None = None,
    ) -> Rule:
        """Treat the next `times` matching frames (None: all) by this action, from now on."""
        rule = Rule(match, action, way, times, hook)
        with self._lock:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Forget all rules."""
        with self._lock:
            self._rules.clear()

    def cut(self) -> None:
        """End all connections now."""
        for connection in list(self.connections):
            connection.close()

    def refuse(self, seconds: float = 1e9) -> None:
        """End new connections immediately, for a time or until `refuse(0)`."""
        self._refuse_until = time.monotonic() + seconds

    def stall(self) -> None:
        """Forward nothing until `resume`; connections stay, as behind a firewall that drops packets."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward again, what was held first."""
        self._flowing.set()

    def close(self) -> None:
        """Stop listening and end all connections."""
        self._listener.close()
        self._flowing.set()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if self._failure is not None and kind is None:
            raise self._failure

    def treat(self, way: str, frame: bytes) -> Action:
        """The action for a frame, counted; for connections of this proxy."""
        self._flowing.wait()
        with self._lock:
            for rule in self._rules:
                action = rule.action_for(way, frame)
                if action is not None:
                    if rule.times is not None:
                        rule.times -= 1
                    break
            else:
                return Forward()
        if rule.hook is not None:
            try:
                rule.hook()
            except Exception as error:
                self._failure = error
                raise ConnectionAbortedError from None
        rule.seen.set()
        return action

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if time.monotonic() < self._refuse_until:
                client.close()
                continue
            with suppress(OSError):
                self.accepted += 1
                connection = _Connection(self, client)
                self.connections.append(connection)  # before a frame passes: `cut` ends what clients are connected to
                connection.start()


class _Connection:
    """A client's connection and the one to the server that goes with it."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self._proxy = proxy
        parts = urlsplit(proxy.target)
        try:
            server = socket.create_connection((parts.hostname, parts.port), 5)
        except OSError:
            client.close()
            raise
        server.settimeout(None)
        self._sockets = {UP: server, DOWN: client}
        for end in self._sockets.values():
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lost: dict[bytes, bool] = {}
        """Subjects of answers that disappear, and whether the connection ends with them."""
        self._abandoned = False
        """Whether the client was cut off before the server."""

    def start(self) -> None:
        """Forward frames, in threads."""
        for way in (UP, DOWN):
            threading.Thread(target=self._pump, args=(way,), daemon=True).start()

    def close(self) -> None:
        """End both connections."""
        for end in self._sockets.values():
            _end(end)
        with suppress(ValueError):
            self._proxy.connections.remove(self)

    def _pump(self, way: str) -> None:
        source = self._sockets[DOWN if way == UP else UP]
        buffer = bytearray()
        with suppress(OSError):
            while data := source.recv(1 << 16):
                buffer += data
                for frame in _frames(buffer):
                    self._pass(way, frame)
        self.close()

    def _pass(self, way: str, frame: bytes) -> None:
        """Treat one frame. Raises OSError when the connection has ended."""
        if way == DOWN:
            if frame.startswith(b"INFO "):
                frame = _without_other_ways(frame)
            if self._is_lost(frame):
                return
        action = self._proxy.treat(way, frame)
        if isinstance(action, Cut):
            self._send(way, frame if action.at < 0 else frame[: action.at])
            self._stop()
        elif isinstance(action, LoseAnswer):
            self._lost[_reply_subject(frame)] = action.cut
        elif isinstance(action, Late):
            self._abandoned = True
            _end(self._sockets[DOWN])
            time.sleep(action.seconds)
            self._send(way, frame)
            self._stop()
        elif isinstance(action, Delay):
            time.sleep(action.seconds)
        elif isinstance(action, Replace):
            frame = action.frame
        if not isinstance(action, Swallow):
            self._send(way, frame)

    def _is_lost(self, frame: bytes) -> bool:
        """Whether it is an answer to lose. Raises OSError when the connection ends with it."""
        subject = frame.split(b" ", 2)[1] if self._lost and frame.startswith((b"MSG ", b"HMSG ")) else b""
        cut = self._lost.pop(subject, None)
        if cut:
            self._stop()
        return cut is not None

    def _send(self, way: str, data: bytes) -> None:
        if way == DOWN and self._abandoned:
            return  # the server must not notice yet
        try:
            self._sockets[way].sendall(data)
        except OSError:
            if way == UP or not self._abandoned:
                raise

    def _stop(self) -> None:
        self.close()
        raise ConnectionAbortedError


def _end(end: socket.socket) -> None:
    """Close for good: what was sent arrives, then the end of the stream."""
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _frames(buffer: bytearray) -> Iterator[bytes]:
    """Take the complete frames out of the buffer."""
    while line := _LINE.match(buffer):
        size = line.end()
        if line[0].upper().startswith(_SIZED):
            size += int(line[0].split()[-1]) + 2
        if len(buffer) < size:
            return
        frame = bytes(buffer[:size])
        del buffer[:size]
        yield frame


def _reply_subject(frame: bytes) -> bytes:
    """The subject to which a request wants its answer."""
    fields = frame[: frame.index(b"\r\n")].split()
    reply = {b"PUB": 4, b"HPUB": 5}.get(fields[0].upper())
    if reply is None or len(fields) < reply:
        raise AssertionError(f"No request, so no answer to lose: {fields!r}")
    return fields[2]


def _without_other_ways(frame: bytes) -> bytes:
    info = json.loads(frame[5:])
    info.pop("connect_urls", None)
    return b"INFO %b\r\n" % json.dumps(info).encode()
