"""Table writes whose acknowledgement is lost, on one server and on three: never twice, never misreported."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

import kvctl
from kvctl.errors import BadKeyVersion, ConnectionLost, KvctlError, OutcomeUnknown, RequestTimeout
from kvctl.kv import conditional_write
from kvctl.kv.transaction import execution
from kvctl.labs import Lab
from kvctl.server import Server
from kvctl.tables.changes import NOT_EXISTS, Change, Insert, Put, Remove
from kvctl.tables.table import Table
from kvctl.tables.table_manager import Tables

FAMILY = "f"
KEYS = [b"%d" % number for number in range(5)]


@pytest.fixture(params=[1, 3], ids=["R1", "R3"])
def url(request):
    """Return a server, or the first of a cluster."""
    if request.param == 1:
        server: Server = request.getfixturevalue("server")
        return server.url
    lab: Lab = request.getfixturevalue("cluster")
    return next(iter(lab.servers.values())).url


@pytest.fixture
async def tables(url):
    """Return all tables, over a connection that waits half a minute."""
    async with kvctl.connect(kvctl.Context(url=url, timeout=timedelta(seconds=30))) as client:
        yield Tables(client)


@pytest.fixture
async def table(request, tables, unique, lose):
    """Create an empty table with as many stream replicas as there are servers."""
    replicas = request.node.callspec.params["url"]
    made = await tables.create(unique("T"), partitions=4, settings={"replicas": replicas})
    yield made
    await tables.delete(made.name)


Lose = Callable[..., None]


@pytest.fixture
def lose(monkeypatch):
    """Lose the answer to the next write, stored or not."""
    sent = {conditional_write: conditional_write.publish, execution: execution.publish_batch}

    def install(*, stored: bool, meanwhile: Callable[[], Awaitable[Any]] | None = None) -> None:
        for module, name, error in (
            (conditional_write, "publish", RequestTimeout("no answer")),
            (execution, "publish_batch", ConnectionLost("cut")),
        ):
            monkeypatch.setattr(module, name, _Once(sent[module], error, stored, meanwhile))

    return install


class _Once:
    def __init__(
        self, send: Any, error: KvctlError, stored: bool, meanwhile: Callable[[], Awaitable[Any]] | None
    ) -> None:
        self._send, self._error, self._stored, self._meanwhile = send, error, stored, meanwhile
        self._lost = False

    async def __call__(self, *arguments: Any, **settings: Any) -> int:
        if self._lost:
            return int(await self._send(*arguments, **settings))
        self._lost = True
        if self._stored:
            await self._send(*arguments, **settings)
        if self._meanwhile:
            await self._meanwhile()
        raise self._error


async def last_sequence(table: Table[bytes, bytes]) -> int:
    info = (await table.layout.bucket("0000").locate(fresh=True)).info
    return int(info["state"]["last_seq"]) - table.life + 1


@pytest.mark.parametrize("stored", [True, False])
async def test_conditional_write_after_lost_acknowledgement_is_applied_once(table, lose, stored):
    lose(stored=stored)
    first = await table.put_if_absent(b"k", b"1")
    lose(stored=stored)
    second = await table.replace(b"k", b"2", first)
    entry = await table.get(b"k")
    assert (entry.value, entry.version) == (b"2", second)
    lose(stored=stored)
    await table.remove(b"k", second)
    assert await table.get(b"k") is None
    assert await last_sequence(table) == 3


async def test_stored_put_after_lost_acknowledgement_is_found(table, lose):
    lose(stored=True)
    version = await table.put(b"k", b"1")
    entry = await table.get(b"k")
    assert entry.version == version
    assert await last_sequence(table) == 1


async def test_put_after_lost_acknowledgement_reports_unknown_outcome(table, lose):
    lose(stored=False)
    table.layout.bucket("0000").binding.api.connection.timeout = 1
    with pytest.raises(OutcomeUnknown, match="`k` of family `f`") as caught:
        await table.put(b"k", b"1", family=FAMILY)
    assert f"kvctl table get {table.name}" in str(caught.value.hint)


@pytest.mark.guarantee("tables-5", by="fault")
@pytest.mark.parametrize("stored", [True, False])
async def test_batch_after_lost_acknowledgement_is_applied_once(table, lose, stored):
    old = await table.put(KEYS[0], b"old", family=FAMILY)
    await table.put(KEYS[1], b"old", family=FAMILY)
    before = await last_sequence(table)
    changes: list[Change] = [
        Put(KEYS[0], b"new", old, FAMILY),
        Remove(KEYS[1], family=FAMILY),
        Insert(KEYS[2], b"new", FAMILY),
        Put(KEYS[3], b"new", family=FAMILY),
        Remove(KEYS[4], NOT_EXISTS, FAMILY),
    ]
    lose(stored=stored)
    versions = await table.update(changes)
    entries = await table.get_all(KEYS, family=FAMILY)
    assert versions == [entry and entry.version for entry in entries]
    assert [entry and entry.value for entry in entries] == [b"new", None, b"new", b"new", None]
    assert await last_sequence(table) - before <= len(changes)


async def test_stored_batch_without_conditions_is_found(table, lose):
    lose(stored=True)
    versions = await table.update([Put(key, b"v", family=FAMILY) for key in KEYS])
    assert versions == [entry and entry.version for entry in await table.get_all(KEYS, family=FAMILY)]
    assert await last_sequence(table) == len(KEYS)


@pytest.mark.guarantee("tables-5", by="fault")
async def test_write_followed_by_another_is_not_reported_as_conflict(table, tables, lose):
    """An entry has no history, so the outcome of the first write is unknown."""
    version = await table.put(b"k", b"1", family=FAMILY)
    other = await tables.open(table.name)

    async def follow() -> None:
        entry = await other.get(b"k", family=FAMILY)
        await other.replace(b"k", b"theirs", entry.version, family=FAMILY)

    lose(stored=True, meanwhile=follow)
    with pytest.raises(OutcomeUnknown):
        await table.replace(b"k", b"2", version, family=FAMILY)
    lose(stored=False)
    with pytest.raises((BadKeyVersion, OutcomeUnknown)):
        await table.replace(b"k", b"2", version, family=FAMILY)
    entry = await table.get(b"k", family=FAMILY)
    assert entry.value == b"theirs"


@pytest.mark.parametrize("together", [False, True], ids=["single", "batches"])
async def test_concurrent_writers_never_see_a_busy_stream(table, url, unique, together):
    """Every refusal names what was found; no increment is lost, none applied twice."""
    keys = KEYS[:2] if together else KEYS[:1]
    await table.update([Insert(key, b"0", FAMILY) for key in keys])
    unnamed: list[str] = []

    async def add() -> None:
        async with kvctl.connect(url) as client:
            mine = await Tables(client).open(table.name)
            left = 5
            while left:
                found = [entry for entry in await mine.get_all(keys, family=FAMILY) if entry]
                changes = [Put(entry.key, b"%d" % (int(entry.value) + 1), entry.version, FAMILY) for entry in found]
                try:
                    await mine.update(changes)
                    left -= 1
                except BadKeyVersion as error:
                    unnamed.extend(() if error.failed else (error.message,))
                    await asyncio.sleep(0.002)

    await asyncio.gather(*(add() for _ in range(8)))
    assert [entry and entry.value for entry in await table.get_all(keys, family=FAMILY)] == [b"40"] * len(keys)
    assert unnamed == []
