"""Requests, subscriptions and publishes over a real connection: what is refused, what is lost, what comes back."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from kvctl.connection import Connection, connect
from kvctl.connection.client_options import connect_options
from kvctl.connection.requests import DENIALS
from kvctl.contexts import Context
from kvctl.errors import (
    ConnectionLost,
    KvctlError,
    NoResponders,
    NoServer,
    PermissionDenied,
    RequestTimeout,
    UsageError,
)
from kvctl.server import Server, run_server
from kvctl.wire import MAX_CONTROL_LINE, Inbox, decode_headers, encode_headers, status
from tests.support.raw import RawClient
from tests.support.socket_writes import recorded_writes
from tests.support.waiting import until_async

PATIENCE = timedelta(seconds=300)
"""Timeout of connections in tests where something is to end long before it."""
AT_ONCE = 60.0
"""Seconds: what ends at once, on a machine that may stand still for some of them."""

LIMITED = """
listen: 127.0.0.1:@client@
server_name: @name@
jetstream { store_dir: "@store@" }
max_payload: 2048
authorization {
  users: [
    { user: admin, password: x }
    { user: mute, password: x, permissions: { publish: { deny: ["secret.>", "$JS.API.DIRECT.GET.KV_B"] } } }
    { user: deaf, password: x, permissions: { subscribe: { deny: "_INBOX.>" } } }
    { user: own, password: x, permissions: { subscribe: { allow: "_MINE.>" } } }
  ]
}
"""


@asynccontextmanager
async def connected(context: Context | str) -> AsyncIterator[Connection]:
    connection = await connect(Context(url=context) if isinstance(context, str) else context)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture(params=[True, False], ids=["own-parser", "stock-parser"])
def fast(request, monkeypatch):
    """Both ways to read from the wire have to behave the same."""
    if not request.param:
        monkeypatch.setattr("kvctl.connection.live_connection.install_parser", lambda client, on_error: None)
    return bool(request.param)


@pytest.fixture
async def connection(server, fast):
    async with connected(server.url) as connection:
        assert (connection._parser is not None) == fast
        yield connection


@pytest.fixture(scope="module")
def limited():
    with run_server(name="limited", config=LIMITED) as running:
        with RawClient(running.url, user="admin", password="x") as raw:
            raw.create_bucket("B")
        yield running


def user(server: Server, name: str, **changes: object) -> Context:
    return replace(Context(url=server.url, user=name, password="x", timeout=PATIENCE), **changes)  # type: ignore[arg-type]


@asynccontextmanager
async def answering(server: Server, subject: str, *answers: tuple[bytes, bytes]) -> AsyncIterator[None]:
    """Answers (header, payload) to each request on the subject."""
    async with connected(server.url) as other:
        sid = await other._add(
            subject,
            lambda frame: [other.publish(frame[1].decode(), payload, header) for header, payload in answers],
            None,
        )
        await other.request("$JS.API.INFO")  # the server has seen the subscription
        yield
        await other._remove(sid)


class TestOnBothParsers:
    async def test_a_request_is_answered_with_headers_and_payload(self, server, connection, bucket_name):
        sent = encode_headers({"One": "1", "Two": "a: b"})
        async with answering(server, bucket_name, (sent, b"\x00hi\r\n")):
            frame = await connection.request(bucket_name, b"?")
        assert (decode_headers(frame.header), frame.payload) == ({"One": "1", "Two": "a: b"}, b"\x00hi\r\n")

    async def test_request_without_responders_fails_immediately(self, connection):
        begun = time.monotonic()
        with pytest.raises(NoResponders, match=r"`nobody\.home`"):
            await connection.request("nobody.home", timeout=300)
        assert time.monotonic() - begun < AT_ONCE

    async def test_many_requests_at_once_get_their_own_answers(self, connection):
        answers = await asyncio.gather(*(connection.request(f"$JS.API.STREAM.INFO.none{n}") for n in range(100)))
        assert all(b"stream not found" in answer.payload for answer in answers)

    async def test_requests_sent_soon_get_their_own_answers(self, connection):
        sent = [connection.request_soon(b"$JS.API.STREAM.INFO.none%d" % number, b"") for number in range(100)]
        sent.append(connection.request_soon(b"nobody.home", b""))
        *answers, last = await asyncio.gather(*sent)
        assert all(b"stream not found" in answer.payload for answer in answers)
        assert status(last.header)[0] == 503

    @pytest.mark.parametrize("turns", [1, 2, 3])
    async def test_cancelled_subscription_leaves_a_connection_that_answers(self, connection, turns):
        async def subscribe() -> None:
            async with connection.subscribe():
                await asyncio.sleep(60)

        subscribing = asyncio.create_task(subscribe())
        for _ in range(turns):
            await asyncio.sleep(0)
        subscribing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await subscribing
        await connection.flush()
        assert not connection._subscriptions

    async def test_what_waits_to_be_sent_is_sent_before_the_end(self, server, connection, bucket_name):
        async with connection.subscribe() as heard:
            await connection.flush()
            async with connected(server.url) as other:
                other.write_soon(b"PUB %b 2\r\nhi\r\n" % heard.subject.encode())
            assert [frame[3] for frame in await heard.inbox.take(AT_ONCE)] == [b"hi"]

    async def test_one_request_has_many_replies_in_order(self, server, connection, bucket_name):
        parts = [(b"", b"%d" % number) for number in range(500)]
        seen: list[bytes] = []
        async with answering(server, bucket_name, *parts):
            async for frames in connection.stream_replies(bucket_name, b""):
                seen.extend(payload for *_, payload in frames)
                if len(seen) == len(parts):
                    break
        assert seen == [payload for _, payload in parts]

    async def test_subscriptions_are_sent_with_the_requests_beside_them(self, server, monkeypatch):
        async with connected(server.url) as connection:
            writes = recorded_writes(connection, monkeypatch)
            for _ in range(3):
                async with aclosing(connection.stream_replies("$JS.API.INFO", b"")) as replies:
                    assert await anext(replies)
        kinds = [[line.split()[0] for line in data.split(b"\r\n") if line] for data in writes[:3]]
        assert kinds == [[b"SUB", b"SUB", b"PUB"], *[[b"UNSUB", b"SUB", b"PUB"]] * 2]

    async def test_many_replies_need_somebody_too(self, connection):
        with pytest.raises(NoResponders):
            async for _ in connection.stream_replies("nobody.home", b"", timeout=300):
                pass

    async def test_a_silent_responder_is_given_up(self, server, connection, bucket_name):
        async with answering(server, bucket_name):
            with pytest.raises(RequestTimeout, match=bucket_name):
                await connection.request(bucket_name, timeout=0.2)
            with pytest.raises(RequestTimeout, match=bucket_name):
                async for _ in connection.stream_replies(bucket_name, b"", timeout=0.2):
                    pass

    async def test_publishing_a_denied_subject_is_an_error_at_once(self, limited, fast):
        async with connected(user(limited, "mute")) as connection:
            begun = time.monotonic()
            with pytest.raises(PermissionDenied) as caught:
                await connection.request("secret.Plan")
            assert time.monotonic() - begun < AT_ONCE
            assert caught.value.subject == "secret.Plan"  # as asked, though the library hands it on in lower case
            assert "`secret.Plan`" in caught.value.message
            await connection.request("$JS.API.INFO")

    async def test_a_denied_request_for_many_replies_is_an_error_at_once(self, limited, fast):
        async with connected(user(limited, "mute")) as connection:
            begun = time.monotonic()
            with pytest.raises(PermissionDenied) as caught:
                async for _ in connection.stream_replies("$JS.API.DIRECT.GET.KV_B", b"{}"):
                    pass
            assert time.monotonic() - begun < AT_ONCE
            assert caught.value.subject == "$JS.API.DIRECT.GET.KV_B"

    async def test_denied_replies_are_an_error_at_once_and_ever_after(self, limited, fast):
        async with connected(user(limited, "deaf")) as connection:
            for _ in range(2):
                begun = time.monotonic()
                with pytest.raises(PermissionDenied, match="subscribe to `_INBOX") as caught:
                    await connection.request("$JS.API.INFO")
                assert time.monotonic() - begun < AT_ONCE
                assert "--inbox-prefix" in str(caught.value.hint)

    async def test_an_inbox_prefix_goes_where_replies_are_allowed(self, limited, fast):
        async with connected(user(limited, "own", inbox_prefix="_MINE")) as connection:
            assert b"account_info" in (await connection.request("$JS.API.INFO")).payload
            async for frames in connection.stream_replies("$JS.API.DIRECT.GET.KV_B", b'{"multi_last":["$KV.B.>"]}'):
                assert b"404" in frames[0][2]
                break

    async def test_a_message_over_the_limit_is_refused_before_it_is_sent(self, limited, fast):
        async with connected(user(limited, "admin")) as connection:
            header = encode_headers({"Name": "x" * 100})
            with pytest.raises(UsageError, match="2048"):
                await connection.request("$KV.B.k", b"v" * (2048 - len(header) + 1), header)
            with pytest.raises(UsageError, match="2048"):
                connection.publish("$KV.B.k", b"v" * 2049)
            fits = await connection.request("$KV.B.k", b"v" * (2048 - len(header)), header)
            assert (b'"seq"' in fits.payload, connection.epoch) == (True, 0)

    async def test_longest_subject_fits_the_line_that_servers_read(self, connection):
        """They close the connection of whoever sends a longer one than 4096 bytes (`max_control_line`)."""
        assert MAX_CONTROL_LINE == 4096
        connection.publish("a" * 4064, b"v")
        with pytest.raises(UsageError, match="line limit of 4096"):
            connection.publish("a" * 4065, b"v")
        with pytest.raises(NoResponders):
            await connection.request("b")
        assert connection.epoch == 0

    async def test_a_subject_over_the_protocols_line_is_refused_before_it_is_sent(self, connection):
        with pytest.raises(UsageError, match="exceeds the protocol"):
            await connection.request("a" * 4096)
        with pytest.raises(NoResponders):
            await connection.request("a" * 4000)
        assert connection.epoch == 0

    async def test_requests_in_flight_end_when_the_connection_breaks(self, own_server, fast):
        async with (
            connected(Context(url=own_server.url, timeout=PATIENCE)) as connection,
            answering(own_server, "silent"),
        ):
            requests = [asyncio.create_task(connection.request("silent")) for _ in range(3)]
            requests.append(asyncio.create_task(_drained(connection, "silent")))
            soon = connection.request_soon(b"silent", b"")
            await asyncio.sleep(0.1)
            begun = time.monotonic()
            own_server.kill()
            results = await asyncio.gather(*requests, soon, return_exceptions=True)
            assert time.monotonic() - begun < AT_ONCE
            assert {type(result) for result in results} == {ConnectionLost}

    async def test_the_connection_comes_back_with_the_server(self, own_server, fast):
        async with (
            connected(Context(url=own_server.url, timeout=PATIENCE)) as connection,
            connection.subscribe() as subscription,
        ):
            own_server.kill()
            await until_async(lambda: not connection.online)
            waiting = asyncio.create_task(connection.request("$JS.API.INFO"))
            await asyncio.to_thread(own_server.start)
            assert b"account_info" in (await waiting).payload
            assert connection.epoch == 1
            connection.publish(subscription.subject, b"still here")
            frames = await subscription.inbox.take(AT_ONCE)
            assert [payload for *_, payload in frames] == [b"still here"]

    async def test_a_request_in_the_moment_of_a_loss_waits_for_the_server_too(self, own_server, fast):
        async with connected(Context(url=own_server.url, timeout=PATIENCE)) as connection:
            own_server.kill()
            starting = asyncio.create_task(asyncio.to_thread(own_server.start))
            while connection.online:
                await asyncio.sleep(0)
            assert b"account_info" in (await connection.request("$JS.API.INFO")).payload
            await starting


async def _drained(connection: Connection, subject: str) -> None:
    async for _ in connection.stream_replies(subject, b""):
        pass


class TestConnecting:
    async def test_a_dead_port_is_an_error_at_once(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        begun = time.monotonic()
        with pytest.raises(NoServer, match=f"No server answers at `nats://127.0.0.1:{port}`") as caught:
            await connect(Context(url=f"nats://127.0.0.1:{port}", timeout=PATIENCE))
        assert time.monotonic() - begun < AT_ONCE
        assert caught.value.exit_code == 5
        assert "kvctl server run" in str(caught.value.hint)

    async def test_the_second_of_two_urls_serves_when_the_first_is_dead(self, server):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            dead = f"nats://127.0.0.1:{free.getsockname()[1]}"
        async with connected(f"{dead}, {server.url}") as connection:
            assert connection.url.endswith(str(server.port))

    async def test_a_stopped_server_is_given_up_after_the_timeout(self, own_server):
        own_server.pause()
        begun = time.monotonic()
        with pytest.raises(NoServer, match="did not answer within 1s"):
            await connect(Context(url=own_server.url, timeout=timedelta(seconds=1)))
        assert time.monotonic() - begun < 1 + AT_ONCE

    async def test_other_kinds_of_servers_are_reported(self):
        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
            await writer.drain()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as other:
            port = other.sockets[0].getsockname()[1]
            with pytest.raises(NoServer, match="is not a NATS server"):
                await connect(Context(url=f"nats://127.0.0.1:{port}", timeout=PATIENCE))

    async def test_a_closed_connection_says_so(self, server):
        connection = await connect(Context(url=server.url, timeout=PATIENCE))
        await connection.close()
        await connection.close()
        assert (connection.closed, connection.online) == (True, False)
        for attempt in (connection.request("a"), connection.wait_online(AT_ONCE)):
            with pytest.raises(NoServer):
                await attempt
        with pytest.raises(NoServer):
            connection.publish("a")

    @pytest.mark.parametrize("turns", range(5))
    async def test_waiting_for_an_open_connection_can_be_cancelled(self, server, turns):
        connection = await connect(Context(url=server.url))

        async def wait() -> None:
            await connection.wait_online(AT_ONCE)
            await asyncio.Event().wait()

        waiting = asyncio.create_task(wait())
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        ended, _ = await asyncio.wait([waiting], timeout=AT_ONCE)
        assert ended
        await connection.close()

    async def test_closing_ends_what_waits_for_the_server(self, own_server):
        async with connected(Context(url=own_server.url, timeout=PATIENCE)) as connection:
            own_server.kill()
            await until_async(lambda: not connection.online)
            waiting = asyncio.create_task(connection.request("a", timeout=300))
            await asyncio.sleep(0.2)
            await connection.close()
            with pytest.raises(NoServer):
                await asyncio.wait_for(waiting, AT_ONCE)


class TestStoppedServer:
    """SIGSTOP: the connection stays open, and nothing answers."""

    async def test_a_request_ends_after_its_timeout(self, own_server):
        async with connected(Context(url=own_server.url, timeout=PATIENCE)) as connection:
            own_server.pause()
            begun = time.monotonic()
            with pytest.raises(RequestTimeout):
                await connection.request("$JS.API.INFO", timeout=0.3)
            assert time.monotonic() - begun < AT_ONCE

    async def test_requests_sent_soon_time_out(self, own_server):
        context = Context(url=own_server.url, timeout=timedelta(seconds=0.5))
        async with connected(context) as connection:
            own_server.pause()
            sent = [connection.request_soon(b"$JS.API.INFO", b"") for _ in range(3)]
            ends = await asyncio.wait_for(asyncio.gather(*sent, return_exceptions=True), AT_ONCE)
            assert {type(end) for end in ends} == {RequestTimeout}

    async def test_the_connection_is_given_up_though_bytes_wait_to_be_sent(self, own_server, monkeypatch):
        monkeypatch.setattr("kvctl.connection.live_connection.PING_INTERVAL", 0.2)
        async with connected(own_server.url) as connection:
            own_server.pause()
            for _ in range(64):
                connection.publish("nobody.home", b"x" * 1_000_000)  # more than the kernel takes
            with pytest.raises(NoServer):
                await asyncio.wait_for(_flushed(connection), AT_ONCE)
            own_server.resume()
            await connection.wait_online(AT_ONCE)
            assert connection.epoch == 1

    async def test_closing_does_not_wait_for_it(self, own_server):
        connection = await connect(Context(url=own_server.url))
        own_server.pause()
        connection.publish("nobody.home", b"x" * 1_000_000)
        begun = time.monotonic()
        await connection.close()
        assert time.monotonic() - begun < AT_ONCE


async def _flushed(connection: Connection) -> None:
    while True:
        await connection.drain()
        if not connection.online:
            raise NoServer("gone")
        await asyncio.sleep(0.05)


class TestWhatTheServerSays:
    async def test_a_literal_wildcard_published_does_not_end_the_connection(
        self, server, raw, bucket_name, monkeypatch
    ):
        raw.create_bucket(bucket_name)
        pedantic = {**connect_options(Context(url=server.url)), "pedantic": True}  # to such clients servers complain
        monkeypatch.setattr("kvctl.connection.live_connection.connect_options", lambda _: pedantic)
        async with connected(server.url) as connection:
            heard: list[str] = []
            connection._parser._on_error = lambda text: heard.append(text) or connection._server_error(text)
            assert b'"seq":1' in (await connection.request(f"$KV.{bucket_name}.star.*", b"x")).payload
            await connection.request("$JS.API.INFO")
            assert (heard, connection.epoch) == (["Invalid Publish Subject"], 0)

    async def test_its_last_word_is_in_the_error_when_it_closes_the_connection(self, own_server):
        async with connected(own_server.url) as connection:
            connection._client._transport.write(b"PUB a 99999999\r\n")  # over max_payload
            await until_async(lambda: connection.epoch > 0)
            assert "Maximum Payload" in str(connection._gone())
            await connection.wait_online(AT_ONCE)  # and it comes back
            await connection.request("$JS.API.INFO")
            assert "Maximum Payload" not in str(connection._gone())

    async def test_every_request_is_traced(self, server):
        seen: list[tuple[str, str]] = []
        async with connected(server.url) as connection:
            connection.trace = lambda subject, seconds, note: seen.append((subject, note)) if seconds > 0 else None
            await connection.request("$JS.API.INFO")
            with pytest.raises(KvctlError):
                await connection.request("nobody.home")
            await connection.request_soon(b"$JS.API.STREAM.NAMES", b"")
        assert seen == [("$JS.API.INFO", ""), ("nobody.home", "no responders"), ("$JS.API.STREAM.NAMES", "")]

    async def test_connection_reports_its_name_and_version(self, server):
        async with connected(server.url) as connection:
            assert connection.server_version >= (2, 10)
            assert connection.max_payload == 1 << 20
            assert connection.server_info["server_name"] == "tests"
            assert connection.url == server.url


class TestSubscriptions:
    async def test_one_that_cannot_be_sent_leaves_nothing_behind(self, own_server):
        async with connected(Context(url=own_server.url, timeout=timedelta(seconds=0.2))) as connection:
            before = len(connection._parser.sinks), len(connection._parser.inboxes), len(connection._client._subs)
            own_server.kill()
            await until_async(lambda: not connection.online)
            with pytest.raises(NoServer):
                await connection._add("a", list.append, Inbox())
            with pytest.raises(NoServer):
                async with connection.subscribe():
                    pass
            assert before == (
                len(connection._parser.sinks),
                len(connection._parser.inboxes),
                len(connection._client._subs),
            )
            assert connection._subscriptions == []

    async def test_denials_are_remembered_once_and_up_to_a_limit(self, limited):
        async with connected(user(limited, "mute")) as connection, connection.subscribe() as subscription:
            for number in range(2 * DENIALS):
                connection.publish("secret.plan")
                connection.publish(f"secret.{number}")
            await connection.flush()
            assert len(subscription.denials) == DENIALS
            assert isinstance(subscription.denied("secret.plan"), PermissionDenied)
            assert isinstance(subscription.denied(f"secret.{2 * DENIALS - 1}"), PermissionDenied)
            assert subscription.denied("secret.0") is None


async def test_line_that_arrives_in_pieces_after_the_handshake_is_read_by_the_own_parser(server):
    ended = asyncio.Event()

    async def serve(client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)

        async def up() -> None:
            while data := await client_reader.read(65536):
                writer.write(data)
            writer.close()

        upward = asyncio.create_task(up())
        client.write(await reader.readline())
        client.write(await reader.readuntil(b"PONG\r\n") + b"+O")
        await asyncio.sleep(0.2)
        client.write(b"K\r\n")
        while data := await reader.read(65536):
            client.write(data)
        await upward
        client.close()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        async with connected(Context(url=f"nats://127.0.0.1:{port}")) as connection:
            assert connection._parser is not None
            assert (await connection.request("$JS.API.INFO")).payload
        await ended.wait()
