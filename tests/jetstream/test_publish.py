"""A publication and what its acknowledgement says."""

import asyncio
import json
import threading
from contextlib import suppress

import pytest

import kvctl
from kvctl.errors import (
    ConflictError,
    ConnectionLost,
    KvctlError,
    NoResponders,
    NoServer,
    PermissionDenied,
    ServerError,
    UnreachableError,
    WrongRevision,
)
from kvctl.jetstream.publish import PublishWindow, UnmatchedRun, publish
from kvctl.wire import publish_frame
from tests.support.raw import RawClient
from tests.support.restricted import restricted

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
def busy(server):
    running: list[Responder] = []
    yield running
    for responder in running:
        responder.end()


async def test_stream_that_is_busy_is_asked_again(server, client, busy):
    busy.append(Responder(server.url, "busy.for.a.moment", 3))
    assert await publish(client.connection, "busy.for.a.moment", b"") == 4


async def test_stream_that_stays_busy_is_unreachable_and_no_conflict(server, client, busy):
    busy.append(Responder(server.url, "busy.for.ever", 10**9))
    with pytest.raises(UnreachableError, match="busy with another one; nothing was written") as caught:
        async with asyncio.timeout(30):
            await publish(client.connection, "busy.for.ever", b"", timeout=1)
    assert not isinstance(caught.value, ConflictError | WrongRevision)
    assert caught.value.exit_code == 5
    assert busy[0].asked > 2


class Sent:
    """Outcomes of the messages of a window."""

    def __init__(self, client: kvctl.Client) -> None:
        self.stored: list[tuple[int, int]] = []
        self.failed: dict[int, KvctlError] = {}
        self.window = PublishWindow(
            client.connection,
            lambda tag, sequence: self.stored.append((tag, sequence)),
            self.failed.__setitem__,
            all_done=lambda tags, sequences: self.stored.extend(zip(tags, sequences, strict=True)),
            window=1000,
        )

    async def send(self, prefix: str, runs: list[range], size: int = 10) -> None:
        async with self.window as window:
            for run in runs:
                await window.send_run(
                    run,
                    lambda reply, run=run: b"".join(  # type: ignore[misc]
                        publish_frame(f"{prefix}{tag}".encode(), reply, b"", b"v" * size) for tag in run
                    ),
                )


class TestRuns:
    async def test_all_stored_messages_have_their_sequences(self, client, bucket_name):
        await client.create_bucket(bucket_name)
        writes: list[bytes] = []
        write = client.connection.write
        client.connection.write = lambda data: (writes.append(data), write(data))[1]  # type: ignore[method-assign]
        sent = Sent(client)
        await sent.send(f"$KV.{bucket_name}.", [range(start, start + 250) for start in range(0, 3000, 250)])
        assert sent.stored == [(tag, tag + 1) for tag in range(3000)]
        assert not sent.failed
        assert sum(data.startswith(b"PUB") for data in writes) == 12  # one write for each run

    async def test_run_of_which_some_are_refused_is_unmatched(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name, max_bytes=10_000)
        sent = Sent(client)
        await sent.send(f"$KV.{bucket_name}.", [range(10), range(10, 250), range(250, 300)], size=100)
        stored = (await bucket.status()).values
        assert 10 < stored < 250
        assert [tag for tag, _ in sent.stored] == list(range(10))
        assert {type(sent.failed[tag]) for tag in range(10, 250)} == {UnmatchedRun}
        assert {type(sent.failed[tag]) for tag in range(250, 300)} == {ServerError}
        assert len(sent.failed) == 290

    async def test_messages_to_no_stream_are_known_not_to_be_stored(self, client):
        sent = Sent(client)
        await sent.send("nobody.listens.", [range(250), range(250, 500)])
        assert not sent.stored
        assert {type(error) for error in sent.failed.values()} == {NoResponders}
        assert len(sent.failed) == 500

    async def test_denied_messages_are_named_among_stored_ones(self, denying):
        async with kvctl.connect(denying) as client:
            await client.create_bucket("B")
            sent = Sent(client)
            await sent.send("$KV.B.", [range(250), range(250, 300)])
            denied = {tag for tag in range(300) if tag in (7, 77, 277)}
            assert sent.failed.keys() == denied
            assert {type(error) for error in sent.failed.values()} == {PermissionDenied}
            assert [tag for tag, _ in sorted(sent.stored)] == [tag for tag in range(300) if tag not in denied]

    async def test_cut_connection_fails_the_run(self, client, bucket_name):
        await client.create_bucket(bucket_name)
        sent = Sent(client)
        with suppress(NoServer):
            async with sent.window as window:
                await window.send_run(
                    range(250), lambda reply: publish_frame(b"$KV.%b.k" % bucket_name.encode(), reply, b"", b"")
                )
                client.connection._client.cut()
        assert not sent.stored
        assert sent.failed.keys() == set(range(250))
        assert all(isinstance(error, ConnectionLost) for error in sent.failed.values())

    async def test_run_does_not_overtake_those_of_a_lost_connection(self, client, bucket_name, monkeypatch):
        bucket = await client.create_bucket(bucket_name)
        collect, connection = PublishWindow._collect, client.connection

        async def cut(window: PublishWindow) -> None:
            if connection.epoch == 0:
                connection._client.cut()
                while connection.epoch == 0 or not connection.online:
                    await asyncio.sleep(0.001)
            await collect(window)

        monkeypatch.setattr(PublishWindow, "_collect", cut)
        sent = Sent(client)
        await sent.send(f"$KV.{bucket_name}.", [range(250), range(250, 500)])
        assert {type(sent.failed[tag]) for tag in range(500)} == {ConnectionLost}
        assert (await bucket.status()).values <= 250

    async def test_key_is_not_taken_for_a_denied_one_in_another_case(self, denying):
        async with kvctl.connect(denying) as client:
            bucket = await client.create_bucket("LETTERS")
            await bucket.put("k", b"")  # resolves the name
            summary = await bucket.put_many((key, b"") for key in ("k", "K", "l", "L"))
            assert [(key, type(error)) for key, error in summary.failed] == [("K", PermissionDenied)]
            assert sorted([key async for key in bucket.keys()]) == ["L", "k", "l"]


@pytest.fixture(scope="module")
def denying():
    """Server whose user may not publish some keys."""
    with restricted('publish: {deny: ["$KV.B.7", "$KV.B.77", "$KV.B.277", "$KV.LETTERS.K"]}') as users:
        yield users.some
