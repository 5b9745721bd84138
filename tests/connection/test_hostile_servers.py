"""Servers that lie: where the password goes, when the connection may be in the clear, how many servers are known."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest

from kvctl.connection import Connection, connect, live_connection, nats_client
from kvctl.connection.nats_client import MOST_SERVERS
from kvctl.contexts import Context
from kvctl.errors import ConnectionLost, KvctlError, NoServer
from kvctl.server import run_server
from tests.connection.test_authentication import CA, _tls
from tests.support.waiting import until_async

FACTS: dict[str, Any] = {"server_id": "S", "version": "2.15.1", "headers": True, "max_payload": 1 << 20, "proto": 1}


class Stranger:
    """A server that answers the handshake and keeps what the clients of each connection said in CONNECT."""

    def __init__(self, **facts: Any) -> None:
        self.facts = FACTS | facts
        self.connects: list[dict[str, Any]] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.answer = b""
        """Answer to each message, whatever it is."""

    def info(self, **facts: Any) -> bytes:
        return b"INFO " + json.dumps(self.facts | facts).encode() + b"\r\n"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        writer.write(self.info())
        with suppress(OSError):
            while line := await reader.readline():
                if line.startswith(b"CONNECT "):
                    self.connects.append(json.loads(line[8:]))
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
                if line.startswith(b"PUB ") and self.answer:
                    writer.write(self.answer)

    def drop(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


@asynccontextmanager
async def listening(stranger: Stranger, port: int = 0) -> AsyncIterator[int]:
    """Run the server, and yield its port."""
    server = await asyncio.start_server(stranger.serve, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        stranger.drop()


async def opened(url: str) -> Connection:
    return await connect(Context(url=url, timeout=timedelta(seconds=5)))


@pytest.mark.guarantee("commands-10", by="fault")
async def test_a_connection_never_goes_on_in_the_clear_after_tls(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(CA))
    stranger = Stranger()
    with run_server(config=_tls()) as server:
        connection = await opened(server.url.replace("://", "://ann:secret@").replace("127.0.0.1", "localhost"))
        assert isinstance(connection._client._transport._io_writer.get_extra_info("ssl_object"), ssl.SSLObject)
        port = server.port
    async with listening(stranger, port):
        await until_async(lambda: len(stranger.writers) >= 2, what="attempts to reconnect")
        assert not stranger.connects
        await connection.close()


@pytest.mark.guarantee("commands-10", by="fault")
@pytest.mark.parametrize("repeat", range(4))
async def test_credentials_go_only_to_servers_that_their_own_server_announced(repeat):
    """The list is shuffled: the first server, which is down, may come first in it."""
    announced, hostile = Stranger(), Stranger()
    async with listening(announced) as port, listening(hostile) as entry:
        hostile.facts["connect_urls"] = [f"127.0.0.1:{port}"]
        connection = await opened(f"nats://ann:first@127.0.0.1:1,nats://bob:second@127.0.0.1:{entry}")
        hostile.facts = FACTS | {"auth_required": True}
        hostile.drop()
        await until_async(lambda: announced.connects or len(hostile.connects) > 1, what="a reconnect")
        announced_to = [connect["user"] for connect in announced.connects]
        await connection.close()
    assert {connect["pass"] for connect in hostile.connects} == {"second"}
    assert set(announced_to) <= {"bob"}


def frame(payload: bytes, *, final: bool) -> bytes:
    """Return a binary message of a websocket, or a part of one that another frame continues."""
    return bytes([0x82 if final else 0x02, 127]) + len(payload).to_bytes(8) + payload


@pytest.mark.guarantee("commands-15", by="fault")
@pytest.mark.parametrize("kind", ["announced", "continued"])
@pytest.mark.parametrize("late", [False, True], ids=["as INFO", "later"])
async def test_an_endless_message_of_a_websocket_is_not_held(monkeypatch, kind, late):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(nats_client, "MAX_WEBSOCKET_MESSAGE", 1 << 20)
    sent, stranger = [0], Stranger()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            key = re.search(rb"Sec-WebSocket-Key: (\S+)", head)[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            accept = base64.b64encode(hashlib.sha1(key).digest())
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
            writer.write(b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n")
            if late:
                writer.write(frame(stranger.info(), final=True))
                await reader.read(1)  # CONNECT and PING
                writer.write(frame(b"PONG\r\n", final=True))
                await asyncio.sleep(0.5)
            block = b"x" * 65536
            writer.write(b"\x82\x7f" + (1 << 40).to_bytes(8) if kind == "announced" else frame(block, final=False))
            while sent[0] < 1 << 30:
                writer.write(block if kind == "announced" else b"\x00" + frame(block, final=False)[1:])
                await writer.drain()
                sent[0] += len(block)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connection = None
    with suppress(NoServer):
        connection = await opened(url)
    assert late == (connection is not None)
    if connection is not None:
        await until_async(lambda: sent[0], what="the beginning of the message")
        with suppress(KvctlError):
            await connection.request("x", b"", timeout=2)
        await connection.close()
    server.close()
    assert 0 < sent[0] < 64 << 20  # what buffers of the system take, with some reconnects


@pytest.mark.parametrize("same", [True, False], ids=["same", "new"])
async def test_announced_servers_are_bounded(same):
    stranger = Stranger()
    async with listening(stranger) as port:
        connection = await opened(f"nats://127.0.0.1:{port}")
        for number in range(60):
            hosts = [f"10.{0 if same else number}.{n // 250}.{n % 250}:4222" for n in range(1000)]
            stranger.writers[-1].write(stranger.info(connect_urls=["[", "a:b", "", *hosts]))
        stranger.writers[-1].write(b"-ERR 'the last'\r\n")
        await until_async(lambda: connection._last_word, what="the end of the flood")
        assert len(connection._client._server_pool) <= MOST_SERVERS
        with pytest.raises(KvctlError):
            await connection.request("nobody", timeout=0.2)
        await connection.close()


@pytest.mark.guarantee("commands-15", by="fault")
@pytest.mark.parametrize("slow", [False, True], ids=["own parser", "the library's"])
@pytest.mark.parametrize(
    "answer", [b"MSG x 1 99999999999\r\nhello", b"INFO {" + b"x" * (2 << 20)], ids=["frame", "line"]
)
async def test_an_endless_frame_or_line_ends_the_connection(answer, slow, monkeypatch):
    if slow:
        monkeypatch.setattr(live_connection, "install_parser", lambda *_: None)
    stranger = Stranger()
    async with listening(stranger) as port:
        connection = await opened(f"nats://127.0.0.1:{port}")
        stranger.answer = answer
        with pytest.raises((ConnectionLost, NoServer)) as caught:
            async with asyncio.timeout(4):
                await connection.request("a")
        await until_async(lambda: len(stranger.connects) > 1, what="a reconnect")
        assert slow or "sent a line" in caught.value.message or "announced a message" in caught.value.message
        stranger.answer = b""
        await connection.close()


@pytest.mark.guarantee("commands-15", by="fault")
@pytest.mark.parametrize(
    "facts",
    [
        {"max_payload": "abc"},
        {"max_payload": None},
        {"max_payload": -5},
        {"max_payload": True},
        {"version": [1]},
        {"server_name": {}},
        {"connect_urls": 5},
    ],
    ids=str,
)
async def test_a_malformed_info_is_named(facts):
    stranger = Stranger(**facts)
    async with listening(stranger) as port:
        with pytest.raises(NoServer, match="malformed INFO"):
            await opened(f"nats://127.0.0.1:{port}")


@pytest.mark.parametrize(
    "line", [b"INFO []", b"INFO {", b"INFO " + b'{"a":' * 5000, b"INFO " + b"x" * (1 << 20), b"\xff"]
)
async def test_a_first_line_that_is_no_info_is_an_error_of_the_server(line):
    stranger = Stranger()
    stranger.info = lambda **_: line + b"\r\n"  # type: ignore[method-assign]
    async with listening(stranger) as port:
        with pytest.raises(NoServer):
            await opened(f"nats://127.0.0.1:{port}")


async def test_a_malformed_info_later_ends_the_connection():
    stranger = Stranger()
    async with listening(stranger) as port:
        connection = await opened(f"nats://127.0.0.1:{port}")
        stranger.writers[-1].write(b'INFO {"connect_urls": [[]]}\r\n')
        await until_async(lambda: len(stranger.connects) > 1, what="a reconnect")
        await until_async(lambda: connection.online, what="a connection")
        await connection.close()
