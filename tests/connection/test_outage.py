"""Lost connections whose credentials were refused or cannot be read: tried again, said, given up in the end."""

import asyncio
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from subprocess import PIPE, Popen
from urllib.parse import quote

import pytest

import kvctl
from kvctl import Context
from kvctl.connection import Connection, connect
from kvctl.errors import AuthenticationRefused, NoServer
from kvctl.labs import _free_ports
from kvctl.server import Server, run_server
from tests.support.credentials import Operator, creds_file
from tests.support.patience import quickest
from tests.support.raw import RawClient
from tests.support.waiting import until_async

LONG = 60.0
"""Seconds within which something happens on a machine that stands still for some of them."""
USERS = """
listen: 127.0.0.1:@client@
server_name: @name@
jetstream { store_dir: "@store@" }
authorization { users: [ { user: ann, password: "PASSWORD" }, { user: admin, password: x } ] }
"""


@pytest.fixture
def guarded():
    """A server that knows ann by the password `first`."""
    with run_server(config=USERS.replace("PASSWORD", "first")) as server:
        with RawClient(server.url, user="admin", password="x") as raw:
            raw.create_bucket("B")
        yield server


def set_password(server: Server, password: str) -> None:
    """Change ann's password on the running server, which closes her connections."""
    path = server._directory / "server.conf"
    path.write_text(re.sub('(user: ann, password: )"[^"]*"', rf'\1"{password}"', path.read_text()))
    assert server.pid is not None
    os.kill(server.pid, signal.SIGHUP)


@asynccontextmanager
async def opened(context: Context) -> AsyncIterator[tuple[Connection, list[str]]]:
    """A connection, and what it warns of."""
    connection = await connect(context)
    said: list[str] = []
    connection.warn = said.append
    try:
        yield connection, said
    finally:
        await connection.close()


class TestPasswords:
    @pytest.mark.parametrize("password", ["p@ss", "a/b", "what?", "n#1", "50%", "a,b", "c:d", "é ü", "%41"])
    async def test_any_password_may_stand_in_the_url_percent_encoded(self, password):
        with run_server(config=USERS.replace("PASSWORD", password)) as server:
            url = server.url.replace("//", f"//ann:{quote(password, safe='')}@")
            async with opened(Context(url=url)) as (connection, _):
                await connection.request("$JS.API.INFO")
                assert password not in connection.url

    async def test_a_raw_password_with_marks_of_urls_works_too(self):
        with run_server(config=USERS.replace("PASSWORD", "a/b?c#d@e")) as server:
            async with opened(Context(url=server.url.replace("//", "//ann:a/b?c#d@e@"))) as (connection, _):
                await connection.request("$JS.API.INFO")

    async def test_each_server_of_a_list_gets_its_own(self):
        configs = [USERS.replace("PASSWORD", password) for password in ("one", "two")]
        with run_server(config=configs[0]) as first, run_server(config=configs[1]) as second:
            urls = (first.url.replace("//", "//ann:one@"), second.url.replace("//", "//ann:two@"))
            context = Context(url=",".join(urls), timeout=timedelta(seconds=LONG))
            async with opened(context) as (connection, said):
                left = second if str(first.port) in connection.url else first
                (first if left is second else second).kill()
                await until_async(lambda: connection.epoch > 0)
                await connection.request("$JS.API.INFO")
                assert str(left.port) in connection.url
                assert said == []

    async def test_the_url_of_one_server_lets_into_those_that_it_tells_of(self):
        routes = _free_ports(3)
        config = (
            USERS.replace("PASSWORD", "a@b")
            + """
            cluster { name: c, listen: "127.0.0.1:ROUTE", routes: [ALL], authorization { user: r, password: r } }"""
        )
        config = config.replace("ALL", ", ".join(f'"nats://r:r@127.0.0.1:{port}"' for port in routes))
        servers = [Server(name=f"n{port}", config=config.replace("ROUTE", str(port))).launch() for port in routes]
        try:
            for server in servers:
                server.wait_ready()
            url = servers[0].url.replace("//", "//ann:a%40b@")
            async with opened(Context(url=url, timeout=timedelta(seconds=LONG))) as (connection, said):
                await until_async(lambda: len(connection._client.server_pool) >= 3)
                servers[0].kill()
                await until_async(lambda: connection.epoch > 0)
                await connection.wait_online(LONG)
                await connection.flush()
                assert connection.url != servers[0].url
                assert said == []
        finally:
            for server in servers:
                server.close()


class TestRefused:
    @pytest.mark.guarantee("commands-9", by="fault")
    async def test_a_changed_password_is_said_tried_ever_more_rarely_and_given_up(self, guarded, monkeypatch):
        monkeypatch.setattr("kvctl.connection.client_options.REFUSED_PATIENCE_S", 3.0)
        context = Context(url=guarded.url, user="ann", password="first")
        async with opened(context) as (connection, said):
            waiting = asyncio.create_task(connection.wait_online(LONG))
            await asyncio.wait_for(waiting, LONG)
            begun = time.monotonic()
            set_password(guarded, "second")
            await until_async(lambda: connection.closed)
            seconds = time.monotonic() - begun
            attempts = guarded.log(1000).count("authentication error")
            assert attempts <= 3 + 10 * seconds / 4, f"{attempts} attempts in {seconds:.1f} s"
            assert len(said) == 1
            assert "refused the credentials: Authorization Violation; trying again" in said[0]
            for attempt in (lambda: connection.request("a"), lambda: connection.wait_online(1)):
                with pytest.raises(AuthenticationRefused) as caught:
                    await attempt()
                assert "server run" not in str(caught.value.hint)

    async def test_connection_comes_back_with_the_right_password(self, guarded):
        async with opened(Context(url=guarded.url, user="ann", password="first")) as (connection, said):
            set_password(guarded, "second")
            await until_async(lambda: said)
            with pytest.raises(NoServer, match="refused the credentials") as caught:
                await connection.request("$JS.API.INFO", timeout=0.1)
            assert "context show" in str(caught.value.hint)
            set_password(guarded, "first")
            await connection.wait_online(LONG)
            await connection.request("$JS.API.INFO")
            assert said[1:] == [f"Reconnected to `{guarded.url}`"]
            assert connection._client.options["reconnect_time_wait"] == 0.1

    async def test_a_watch_and_a_consumer_end_with_the_refusal(self, guarded, monkeypatch):
        monkeypatch.setattr("kvctl.connection.client_options.REFUSED_PATIENCE_S", 1.0)
        async with kvctl.connect(Context(url=guarded.url, user="ann", password="first")) as client:
            consumer = await client.jetstream.create_consumer("KV_B", "c")

            async def consume() -> None:
                async with consumer.consume() as messages:
                    async for _ in messages:
                        pass

            async def watch() -> None:
                async with await client.bucket("B").watch() as watcher:
                    async for _ in watcher:
                        pass

            tasks = [asyncio.create_task(consume()), asyncio.create_task(watch())]
            await asyncio.sleep(0.5)
            set_password(guarded, "second")
            ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), LONG)
            assert [isinstance(end, AuthenticationRefused) for end in ends] == [True, True], ends


class TestCredentialsFiles:
    @pytest.fixture
    def operator(self):
        return Operator()

    @pytest.mark.guarantee("commands-9", by="fault")
    async def test_a_file_that_is_away_or_damaged_during_a_reconnect_is_waited_for(self, operator, tmp_path):
        path = creds_file(tmp_path / "user.creds", *operator.user())
        with run_server(config=operator.config) as server:
            async with opened(Context(url=server.url, creds=str(path))) as (connection, said):
                whole = path.read_text()
                path.unlink()
                server.restart()
                await until_async(lambda: said)
                assert f"The credentials file `{path}` cannot be read" in said[0]
                path.write_text("half a fi")
                await until_async(lambda: len(said) > 1)
                assert "it contains no JWT" in said[1]
                with pytest.raises(NoServer, match="it contains no JWT"):
                    await connection.request("$JS.API.INFO", timeout=0.1)
                path.write_text(whole)
                await connection.wait_online(LONG)
                await connection.request("$JS.API.INFO")

    async def test_an_expired_user_comes_back_when_the_file_is_renewed(self, operator, tmp_path):
        path = creds_file(tmp_path / "user.creds", *operator.user(expires=3))
        with run_server(config=operator.config) as server:
            async with opened(Context(url=server.url, creds=str(path))) as (connection, said):
                await until_async(lambda: said)
                assert "refused the credentials" in said[0]
                creds_file(path, *operator.user())
                await connection.wait_online(LONG)
                await connection.request("$JS.API.INFO")


class TestSeveralServers:
    @pytest.fixture
    def holes(self):
        """Three addresses where connections are accepted and nothing is ever said."""
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        yield [f"nats://127.0.0.1:{one.getsockname()[1]}" for one in sockets]
        for one in sockets:
            one.close()

    async def test_three_that_say_nothing_take_one_timeout(self, holes):
        async def refused() -> float:
            begun = time.monotonic()
            with pytest.raises(NoServer, match="did not answer within 2s"):
                await connect(Context(url=",".join(holes), timeout=timedelta(seconds=2)))
            return time.monotonic() - begun

        assert 1.9 < await quickest(refused, 3.5) < 3.5

    async def test_one_that_answers_is_found_behind_those_that_say_nothing(self, holes, server, monkeypatch):
        monkeypatch.setattr("random.shuffle", lambda _: None)
        context = Context(url=",".join([*holes, server.url]), timeout=timedelta(seconds=LONG))
        begun = time.monotonic()
        async with opened(context) as (connection, _):
            assert connection.url == server.url
            assert time.monotonic() - begun < LONG / 2

    async def test_a_refusal_says_more_than_a_dead_or_silent_server(self, holes, guarded):
        for others in (holes[:1], ["nats://127.0.0.1:1"], ["nats://no-such-host.invalid"]):
            for urls in ([*others, guarded.url], [guarded.url, *others]):
                context = Context(url=",".join(urls), user="ann", password="no", timeout=timedelta(seconds=2))
                with pytest.raises(AuthenticationRefused):
                    await connect(context)

    async def test_attempts_that_lost_leave_nothing_open(self, server):
        urls = ",".join([server.url.replace("127.0.0.1", "localhost"), server.url])
        for _ in range(10):
            async with opened(Context(url=urls)):
                pass
        with RawClient(server.url) as raw:
            raw.flush()
        before = {task for task in asyncio.all_tasks() if not task.done()}
        assert before == {asyncio.current_task()}


@pytest.mark.parametrize("command", ["watch", "consume"])
def test_endless_commands_say_why_and_end_with_5(guarded, command, tmp_path):
    with RawClient(guarded.url, user="admin", password="x") as raw:
        raw.api(
            "CONSUMER.CREATE.KV_B.c",
            {"stream_name": "KV_B", "config": {"name": "c", "durable_name": "c", "ack_policy": "explicit"}},
        )
    password = tmp_path / "password"
    password.write_text("first")
    words = {"watch": ["watch", "B"], "consume": ["consumer", "consume", "KV_B", "c"]}[command]
    program = (
        "from kvctl.connection import client_options; client_options.REFUSED_PATIENCE_S = 2.0; "
        "from kvctl.__main__ import main; main()"
    )
    line = ["-s", guarded.url, "--user", "ann", "--password-file", str(password)]

    with Popen([sys.executable, "-c", program, *words, *line], stdout=PIPE, stderr=PIPE) as process:
        with RawClient(guarded.url, user="admin", password="x") as raw:
            deadline = time.monotonic() + LONG
            while not (
                raw.api("STREAM.INFO.KV_B")["state"]["consumer_count"] > 1
                or raw.api("CONSUMER.INFO.KV_B.c")["num_waiting"]
            ):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        set_password(guarded, "second")
        _, err = process.communicate(timeout=LONG)
        text = err.decode()
        assert process.returncode == 5, text
        assert "warning: The server at" in text
        assert "refused the credentials: Authorization Violation" in text.rpartition("error:")[2]
        assert "server run" not in text
