"""A publication and what its acknowledgement says."""

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest

import kvctl
from kvctl.errors import ConflictError, UnreachableError, WrongRevision
from kvctl.jetstream.publish import publish
from kvctl.server import Server
from tests.support.raw import RawClient

BUSY = {"code": 400, "err_code": 10164, "description": "wrong last sequence: 0"}


class Responder(threading.Thread):
    """Answers publications on a subject as a stream would that refuses the first `times` of them."""

    def __init__(self, url: str, subject: str, times: int) -> None:
        super().__init__(daemon=True)
        self._client = RawClient(url)
        self._client._send(b"SUB %b 1\r\n" % subject.encode())
        self._client.flush()
        self._times = times
        self.asked = 0
        self.start()

    def run(self) -> None:
        try:
            while True:
                line = self._client._line()
                if not line.startswith((b"MSG", b"HMSG")):
                    continue
                reply = line.split()[3].decode()
                self._client._message(line)
                self.asked += 1
                answer = {"error": BUSY} if self.asked <= self._times else {"stream": "S", "seq": self.asked}
                self._client.publish(reply, json.dumps(answer).encode())
        except (OSError, ValueError):
            pass

    def end(self) -> None:
        self._client._socket.close()


@pytest.fixture
def busy(server: Server) -> Iterator[list[Responder]]:
    running: list[Responder] = []
    yield running
    for responder in running:
        responder.end()


async def test_stream_that_is_busy_is_asked_again(server: Server, client: kvctl.Client, busy: list[Responder]) -> None:
    busy.append(Responder(server.url, "busy.for.a.moment", 3))
    assert await publish(client.connection, "busy.for.a.moment", b"") == 4


async def test_stream_that_stays_busy_is_unreachable_and_no_conflict(
    server: Server, client: kvctl.Client, busy: list[Responder]
) -> None:
    busy.append(Responder(server.url, "busy.for.ever", 10**9))
    with pytest.raises(UnreachableError, match="busy with another one; nothing was written") as caught:
        async with asyncio.timeout(30):
            await publish(client.connection, "busy.for.ever", b"", timeout=1)
    assert not isinstance(caught.value, ConflictError | WrongRevision)
    assert caught.value.exit_code == 5
    assert busy[0].asked > 2
