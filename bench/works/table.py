"""Works on tables with kvctl's library."""

import asyncio
import time
from typing import Any

import worker

import kvctl
from kvctl.tables import catalog
from kvctl.tables.changes import Change, Insert, Put
from kvctl.tables.config import TableConfig
from kvctl.tables.keys import partition_of
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


async def update(client: kvctl.Client, name: str, count: int, flight: int, size: int, streams: int = 1) -> None:
    """Insertions, so many a batch, so many batches in flight, spread over so many partition streams."""
    table = await Table.open(client.api, name)
    salt, slots, families = time.time_ns(), asyncio.Semaphore(flight), _families(streams)

    async def one(number: int) -> None:
        family = families[number % streams]
        async with slots:
            numbers = range(number * size, min((number + 1) * size, count))
            changes: list[Change] = [Insert(b"%d.%d" % (salt, n), VALUE, family) for n in numbers]
            await table.update(changes)

    await asyncio.gather(*(one(number) for number in range(-(-count // size))))


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


async def create(client: kvctl.Client, name: str, streams: int = 1) -> None:
    """Create an empty table, with so many partition streams if more than one."""
    parts: dict[str, Any] = {"partitions": streams, "apart": True} if streams > 1 else {}
    await catalog.create(client.api, TableConfig(name, **parts))


async def seed(client: kvctl.Client, name: str, count: int) -> None:
    """Create a table with entries of one family."""
    await create(client, name)
    table = await Table.open(client.api, name)
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        await table.update([Put(b"%018d" % number, VALUE, family="f") for number in numbers])


def _families(streams: int) -> list[str]:
    """Return a key family of each partition, in order."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < streams:
        found.setdefault(partition_of(f"f{number}", b"", streams), f"f{number}")
        number += 1
    return [found[partition] for partition in range(streams)]


async def _scan(client: kvctl.Client, name: str, count: int, *, values: bool) -> None:
    table = await Table.open(client.api, name)
    found = 0
    async for page in table.pages(Range("f"), values=values):
        found += len(page.entries)
    assert found == count, found


if __name__ == "__main__":
    worker.serve(put, replace, update, get_all, keys, entries, create, seed)
