"""Works on tables with kvctl's library."""

import asyncio
import time

import worker

import kvctl
from kvctl.tables import catalog
from kvctl.tables.changes import Change, Insert, Put
from kvctl.tables.config import TableConfig
from kvctl.tables.ranges import Range
from kvctl.tables.table import Table

VALUE = b"v" * 100
BATCH = 1000


async def put(client: kvctl.Client, name: str, count: int) -> None:
    """Puts, one by one."""
    table = await Table.open(client.api, name)
    for number in range(count):
        await table.put(b"k%d" % number, VALUE)


async def replace(client: kvctl.Client, name: str, count: int) -> None:
    """Conditional puts of one entry."""
    table = await Table.open(client.api, name)
    version = await table.put(b"one", VALUE)
    for _ in range(count):
        version = await table.replace(b"one", VALUE, version)


async def update(client: kvctl.Client, name: str, count: int, flight: int) -> None:
    """Insertions, a thousand a batch, so many batches in flight."""
    table = await Table.open(client.api, name)
    salt, slots = time.time_ns(), asyncio.Semaphore(flight)
    size = min(BATCH, count)

    async def one(first: int) -> None:
        async with slots:
            changes: list[Change] = [Insert(b"%d.%d" % (salt, n), VALUE, "f") for n in range(first, first + size)]
            await table.update(changes)

    await asyncio.gather(*(one(first) for first in range(0, count, size)))


async def get_all(client: kvctl.Client, name: str, count: int) -> None:
    """A thousand entries a call."""
    table = await Table.open(client.api, name)
    for first in range(0, count, BATCH):
        wanted = [b"%018d" % number for number in range(first, min(first + BATCH, count))]
        assert all(await table.get_all(wanted, family="f"))


async def keys(client: kvctl.Client, name: str, count: int) -> None:
    """All keys of a family, sorted."""
    await _scan(client, name, count, values=False)


async def entries(client: kvctl.Client, name: str, count: int) -> None:
    """All entries of a family, sorted."""
    await _scan(client, name, count, values=True)


async def create(client: kvctl.Client, name: str) -> None:
    """Create an empty table."""
    await catalog.create(client.api, TableConfig(name))


async def seed(client: kvctl.Client, name: str, count: int) -> None:
    """Create a table with entries of one family."""
    await create(client, name)
    table = await Table.open(client.api, name)
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        await table.update([Put(b"%018d" % number, VALUE, family="f") for number in numbers])


async def _scan(client: kvctl.Client, name: str, count: int, *, values: bool) -> None:
    table = await Table.open(client.api, name)
    found = 0
    async for page in table.pages(Range("f"), values=values):
        found += len(page.entries)
    assert found == count, found


if __name__ == "__main__":
    worker.serve(put, replace, update, get_all, keys, entries, create, seed)
