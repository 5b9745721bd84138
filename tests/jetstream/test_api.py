"""The JetStream API: subjects, errors as ours, and what happens where there is no JetStream."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import kvctl
from kvctl import Context
from kvctl.connection import connect
from kvctl.errors import (
    ConflictError,
    ConsumerNotFound,
    JetStreamDisabled,
    KvctlError,
    NotFoundError,
    ServerError,
    StreamNotFound,
)
from kvctl.jetstream.answer import answer_to, parsed
from kvctl.jetstream.api import HINTS, Api, server_error
from kvctl.server import run_server
from tests.support.raw import RawClient

PLAIN = "listen: 127.0.0.1:@client@\nserver_name: @name@\n"
ACCOUNTS = PLAIN + (
    'jetstream { store_dir: "@store@" }\n'
    "accounts { WITH: { jetstream: enabled, users: [ { user: with, password: x } ] }\n"
    "WITHOUT: { users: [ { user: without, password: x } ] } }\n"
)


@asynccontextmanager
async def api_of(context: Context) -> AsyncIterator[Api]:
    connection = await connect(context)
    try:
        yield Api(connection)
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("code", "err_code", "kind", "exit_code"),
    [
        (404, 10059, StreamNotFound, 3),
        (404, 10014, ConsumerNotFound, 3),
        (404, 10037, NotFoundError, 3),
        (400, 10058, ConflictError, 4),
        (503, 10008, JetStreamDisabled, 5),
        (503, 10039, JetStreamDisabled, 5),
        (503, 10077, ServerError, 1),
        (400, 10052, ServerError, 1),
    ],
)
def test_the_servers_errors_are_ours(code, err_code, kind, exit_code):
    error = server_error({"code": code, "err_code": err_code, "description": "something is wrong"})
    assert (type(error), error.exit_code) == (kind, exit_code)
    assert "omething is wrong" in error.message


def test_an_error_without_details_is_one():
    error = server_error({"code": 500})
    assert (type(error), error.message) == (ServerError, "The server refused: status 500")


@pytest.mark.parametrize("reply", [b"", b"-ERR", b"[]", b"1", b"\xff"])
def test_invalid_reply_is_an_error(reply):
    with pytest.raises(ServerError, match=r"answer to `STREAM\.INFO\.X` is malformed"), answer_to("STREAM.INFO.X"):
        parsed("STREAM.INFO.X", reply)


class TestPrefixes:
    async def test_write_prefix_of_the_default_a_domain_and_an_import(self, server):
        base = Context(url=server.url)
        for context, prefix, writes in (
            (base, "$JS.API", ""),
            (replace(base, domain="hub"), "$JS.hub.API", "$JS.hub.API."),
            (replace(base, api_prefix="OWNER.API", domain="hub"), "OWNER.API", "OWNER.API."),
        ):
            async with api_of(context) as api:
                assert (api.prefix, api.write_prefix) == (prefix, writes)
                assert api.at("X.API").prefix == "X.API"

    async def test_one_that_nobody_serves_is_said_at_once(self, server):
        for changes in ({"domain": "nowhere"}, {"api_prefix": "NOBODY.API"}):
            async with api_of(replace(Context(url=server.url, timeout=timedelta(seconds=300)), **changes)) as api:
                begun = time.monotonic()
                with pytest.raises(JetStreamDisabled, match=re.escape(f"under `{api.prefix}`")) as caught:
                    await api.account_info()
                assert time.monotonic() - begun < 60
                assert "--domain" in str(caught.value.hint)


class TestWithoutJetStream:
    async def test_a_server_without_it_is_said(self):
        with run_server(name="plain", config=PLAIN) as server:
            async with kvctl.connect(server.url) as client:
                for attempt in (client.create_bucket("B"), client.bucket("B").get("k"), client.bucket_names()):
                    with pytest.raises(JetStreamDisabled) as caught:
                        await attempt
                    assert caught.value.exit_code == 5
                    assert "Enable JetStream" in str(caught.value.hint)

    async def test_an_account_without_it_is_said(self):
        with run_server(name="accounts", config=ACCOUNTS) as server:
            async with api_of(Context(url=server.url, user="with", password="x")) as api:
                assert "streams" in await api.account_info()
            async with api_of(Context(url=server.url, user="without", password="x")) as api:
                with pytest.raises(JetStreamDisabled):
                    await api.account_info()


class TestRetrying:
    async def test_repeatable_request_waits_for_the_server(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            asking = [asyncio.create_task(client.api.call("INFO", retry=True)) for _ in range(5)]
            own_server.kill()
            await asyncio.to_thread(own_server.start)
            asking += [asyncio.create_task(client.api.call("INFO", retry=True)) for _ in range(5)]
            assert all("streams" in reply for reply in await asyncio.gather(*asking))

    async def test_missing_stream_is_reported_without_waiting(self, client):
        client.connection.timeout = 300
        begun = time.monotonic()
        with pytest.raises(StreamNotFound):
            await client.api.call("STREAM.INFO.NONE", retry=True)
        assert time.monotonic() - begun < 60


LIMITED = """
listen: "127.0.0.1:@client@"
jetstream { store_dir: "@store@", max_memory_store: 1MB, max_file_store: 1MB }
"""


def created(raw: RawClient, name: str, **config: Any) -> dict[str, Any]:
    return raw.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], **config}).get("error") or {}


def test_provoked_errors_have_hints():
    with run_server(name="limited", config=LIMITED) as server, RawClient(server.url) as raw:
        assert created(raw, "A") == {}
        sealed = {"name": "A", "subjects": ["A.>"], "storage": "memory"}
        found = {
            "replicas": created(raw, "B", num_replicas=3),
            "storage": created(raw, "B", max_bytes=10_000_000),
            "memory": created(raw, "B", max_bytes=10_000_000, storage="memory"),
            "overlap": created(raw, "B", subjects=["A.x"]),
            "name": created(raw, "A", subjects=["other"]),
            "change": raw.api("STREAM.UPDATE.A", sealed).get("error") or {},
        }
    codes = {what: error["err_code"] for what, error in found.items()}
    assert codes == {
        "replicas": 10074,
        "storage": 10047,
        "memory": 10028,
        "overlap": 10065,
        "name": 10058,
        "change": 10052,
    }
    for error in found.values():
        raised = server_error(error)
        assert raised.hint == HINTS[error["err_code"]]
        assert str(error["err_code"]) in raised.message


@pytest.mark.parametrize("code", [10005, 10023, 10026, 10027, 10028, 10047, 10052, 10058, 10065, 10074, 10118])
def test_codes_that_an_operator_can_meet_have_a_hint(code):
    raised = server_error({"code": 400, "err_code": code, "description": "text"})
    assert isinstance(raised, KvctlError)
    assert raised.hint
    assert not re.search(r"\.$", raised.hint)
