"""Connections through HTTP: as quick as others, refused in the clear where TLS is asked for, and named when missing."""

import asyncio
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

import kvctl
from kvctl import Context
from kvctl.connection import connect
from kvctl.errors import KvctlError, NoServer, UsageError
from kvctl.labs import _free_ports
from kvctl.server import run_server

CERTS = Path(__file__).parents[1] / "certs"
CONFIG = 'listen: 127.0.0.1:@client@\njetstream { store_dir: "@store@" }\nwebsocket { listen: "127.0.0.1:PORT", TLS }\n'
TLS = f'tls {{ cert_file: "{CERTS}/server.pem", key_file: "{CERTS}/server-key.pem" }}'


@pytest.fixture(params=["ws", "wss"])
def web(request):
    """A server with a websocket, and the context for it."""
    pytest.importorskip("aiohttp")
    (port,) = _free_ports(1)
    config = CONFIG.replace("PORT", str(port)).replace("TLS", "no_tls: true" if request.param == "ws" else TLS)
    with run_server(config=config) as server:
        ca = None if request.param == "ws" else str(CERTS / "ca.pem")
        yield server, Context(url=f"{request.param}://127.0.0.1:{port}", ca=ca, timeout=timedelta(seconds=60))


async def test_requests_do_not_wait_for_a_ping(web):
    async with kvctl.connect(web[1]) as client:
        bucket = await client.create_bucket("B")
        begun = time.monotonic()
        for number in range(50):
            await bucket.put(f"k.{number}", b"v")
            assert (await bucket.get(f"k.{number}")).value == b"v"
        assert time.monotonic() - begun < 30  # two seconds each, were they sent with the next ping
        assert len([key async for key in bucket.keys()]) == 50
        summary = await bucket.put_many((f"many.{number}", b"x" * 1000) for number in range(5000))
        assert summary.written == 5000


def test_process_that_defers_imports_reads_and_writes(web):
    _, context = web
    line = [sys.executable, "-m", "kvctl", "--server", context.url, *(["--tls-ca", context.ca] if context.ca else [])]
    for command in (["bucket", "add", "B"], ["put", "B", "k", "v"], ["get", "B", "k"]):
        done = subprocess.run([*line, *command], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "v"


async def test_websocket_reconnects_after_a_restart_of_the_server(web):
    server, context = web
    connection = await connect(context)
    server.restart()
    deadline = time.monotonic() + 60
    while connection.epoch == 0:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    await connection.wait_online(60)
    await connection.flush()
    await connection.close()


async def test_credentials_are_not_sent_in_the_clear(web):
    _, context = web
    if context.url.startswith("wss"):
        pytest.skip("this one is encrypted")
    secret = Context(url=context.url, ca=str(CERTS / "ca.pem"), user="u", password="secret")
    with pytest.raises(NoServer, match="does not offer TLS"):
        await connect(secret)


async def test_mixed_list_of_urls_is_a_usage_error(web, server):
    _, context = web
    for urls in (f"{context.url},nats://127.0.0.1:1", f"nats://127.0.0.1:1,{context.url}"):
        if context.ca is None:
            connection = await connect(Context(url=urls, timeout=timedelta(seconds=60)))
            await connection.flush()
            await connection.close()
    with pytest.raises(KvctlError):
        await connect(Context(url="ws://127.0.0.1:1,nats://127.0.0.1:1", timeout=timedelta(seconds=2)))


async def test_the_package_that_it_needs_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="need the package aiohttp") as caught:
        await connect(Context(url="ws://127.0.0.1:1"))
    assert "kvctl[websocket]" in str(caught.value.hint)
