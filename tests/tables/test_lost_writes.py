"""Conditional table writes whose request or answer is lost: one of two equal ones succeeds."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

import kvctl
from kvctl import Context
from kvctl.errors import ConditionalUpdateError
from kvctl.tables.changes import NOT_EXISTS, Version
from kvctl.tables.table import Table
from tests.support.proxy import Cut, LoseAnswer

PUBLISHED = b"Kvctl-Id"
"""In every single write, and in nothing else that a client sends."""

Write = Callable[[Table[bytes, bytes], Version], Awaitable[Version | None]]
WRITES: dict[str, Write] = {
    "put if absent": lambda table, _: table.put_if_absent(b"new", b"x"),
    "replace": lambda table, version: table.replace(b"old", b"x", version),
    "replace what is absent": lambda table, _: table.replace(b"new", b"x", NOT_EXISTS),
    "remove": lambda table, version: table.remove(b"old", version),
}


@pytest.fixture
async def ours(table, proxy):
    async with kvctl.connect(Context(url=proxy.url, timeout=timedelta(seconds=3))) as client:
        yield await Table.open(client.api, table.name)


@pytest.mark.parametrize("name", WRITES)
async def test_equal_conditional_write_of_another_client_is_not_taken_for_a_lost_one(ours, table, proxy, name):
    version = await table.put(b"old", b"first")
    loop = asyncio.get_running_loop()
    hook = lambda: asyncio.run_coroutine_threadsafe(WRITES[name](table, version), loop).result(30)  # noqa: E731
    rule = proxy.on(PUBLISHED, Cut(), hook=hook)
    with pytest.raises(ConditionalUpdateError):
        await WRITES[name](ours, version)
    assert rule.seen.is_set()


@pytest.mark.parametrize("name", WRITES)
async def test_conditional_write_whose_answer_is_lost_succeeds(ours, table, proxy, raw, name):
    version = await table.put(b"old", b"first")
    rule = proxy.on(PUBLISHED, LoseAnswer(cut=True))
    await WRITES[name](ours, version)
    assert rule.seen.is_set()
    assert await table.exists(b"old") is (name != "remove")
