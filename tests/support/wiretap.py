"""A TCP proxy between a client and a server that keeps what the client sent, and reads it without kvctl's code."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Self

ARGUMENTS = {b"PUB": (2, 3), b"HPUB": (3, 4), b"SUB": (2, 3), b"UNSUB": (1, 2)}
"""Verb -> number of its arguments."""
SUBJECT = re.compile(rb"[^\0\t\n\r .]+(?:\.[^\0\t\n\r .]+)*")


class Wiretap:
    """Forwards connections to `port`; an async context manager whose `url` clients use."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._tasks: list[asyncio.Task[None]] = []
        self.sent: list[bytearray] = []
        """What each connection's client has sent since the last `check`."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self) -> list[bytes]:
        """The subjects published to since the last check; clients are to be at rest.

        Fails for bytes that are no whole commands with legal subjects.
        """
        found = [subject for stream in self.sent for subject in published(bytes(stream))]
        for stream in self.sent:
            stream.clear()
        return found

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        self.sent.append(bytearray())
        at = len(self.sent) - 1

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, keep: bool) -> None:
            with suppress(OSError):
                while data := await source.read(65536):
                    if keep:
                        self.sent[at] += data
                    sink.write(data)
                    await sink.drain()
            sink.close()

        pumps = pump(reader, back, keep=True), pump(there, writer, keep=False)
        self._tasks += map(asyncio.ensure_future, pumps)


@contextmanager
def recording(port: int) -> Iterator[Wiretap]:
    """A wiretap that works in a thread of its own, for tests that block."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    tap = Wiretap(port)
    asyncio.run_coroutine_threadsafe(tap.__aenter__(), loop).result(10)
    try:
        yield tap
    finally:
        asyncio.run_coroutine_threadsafe(tap.__aexit__(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def published(stream: bytes) -> list[bytes]:
    """The subjects of the messages in a client's bytes. Fails for what is no command of the protocol."""
    found = []
    while stream:
        line, end, stream = stream.partition(b"\r\n")
        assert end, f"half a command: {line!r}"
        verb, *arguments = line.split()
        if verb in (b"CONNECT", b"PING", b"PONG"):
            continue
        assert verb in ARGUMENTS, f"not a command: {line!r}"
        assert len(arguments) in ARGUMENTS[verb], f"too many arguments: {line!r}"
        if verb == b"UNSUB":
            continue
        assert SUBJECT.fullmatch(arguments[0]), f"not a subject: {line!r}"
        if verb == b"SUB":
            continue
        found.append(arguments[0])
        size = int(arguments[-1])
        if verb == b"HPUB":
            header = stream[: int(arguments[-2])]
            assert header.find(b"\r\n\r\n") == len(header) - 4, f"not a header block: {header!r}"
        assert stream[size : size + 2] == b"\r\n", f"not the size that was announced: {line!r}"
        stream = stream[size + 2 :]
    return found
