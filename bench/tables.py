"""Tables beside plain buckets: run as `python -m bench.tables WORK URL NAME COUNT`; prints the seconds."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

import kvctl
from kvctl.tables import catalog
from kvctl.tables.changes import Change, Insert, Put
from kvctl.tables.config import TableConfig
from kvctl.tables.ranges import Range
from kvctl.tables.table import Table

VALUE = b"v" * 100


async def put(client: kvctl.Client, name: str, count: int) -> None:
    """A table's puts, one by one."""
    table = await Table.open(client.api, name)
    for number in range(count):
        await table.put(b"k%d" % number, VALUE)


async def bucket_update(client: kvctl.Client, name: str, count: int) -> None:
    """Updates of one key of a bucket."""
    bucket = client.bucket(name)
    revision = await bucket.put("one", VALUE)
    for _ in range(count):
        revision = await bucket.update("one", VALUE, revision)


async def replace(client: kvctl.Client, name: str, count: int) -> None:
    """Conditional puts of one entry."""
    table = await Table.open(client.api, name)
    version = await table.put(b"one", VALUE)
    for _ in range(count):
        version = await table.replace(b"one", VALUE, version)


async def batches_of_100(client: kvctl.Client, name: str, count: int) -> None:
    """Insertions, a hundred in a batch, one batch at a time."""
    await _batches(client, name, count, 100, 1)


async def batches_of_1000(client: kvctl.Client, name: str, count: int) -> None:
    """Insertions, a thousand in a batch, one batch at a time."""
    await _batches(client, name, count, 1000, 1)


async def batches_in_flight(client: kvctl.Client, name: str, count: int) -> None:
    """Insertions, a thousand in a batch, several batches at a time."""
    await _batches(client, name, count, 1000, 8)


async def get_all(client: kvctl.Client, name: str, count: int) -> None:
    """A thousand entries a call."""
    table = await Table.open(client.api, name)
    for first in range(0, count, 1000):
        assert all(await table.get_all([b"%018d" % number for number in range(first, first + 1000)], family="f"))


async def scan_keys(client: kvctl.Client, name: str, count: int) -> None:
    """All keys of a family, sorted."""
    await _scan(client, name, count, Range("f"), values=False)


async def scan_entries(client: kvctl.Client, name: str, count: int) -> None:
    """All entries of a family, sorted."""
    await _scan(client, name, count, Range("f"), values=True)


async def scan_all(client: kvctl.Client, name: str, count: int) -> None:
    """All entries of the table, sorted."""
    await _scan(client, name, count, Range(), values=True)


async def seed(client: kvctl.Client, name: str, count: int) -> None:
    """A table with `count` entries of one family."""
    await catalog.create(client.api, TableConfig(name))
    table = await Table.open(client.api, name)
    for first in range(0, count, 1000):
        await table.update([Put(b"%018d" % number, VALUE, family="f") for number in range(first, first + 1000)])


async def _batches(client: kvctl.Client, name: str, count: int, size: int, at_once: int) -> None:
    table = await Table.open(client.api, name)
    salt = time.time_ns()
    slots = asyncio.Semaphore(at_once)

    async def one(first: int) -> None:
        changes: list[Change] = [Insert(b"%d.%d" % (salt, number), VALUE, "f") for number in range(first, first + size)]
        async with slots:
            await table.update(changes)

    await asyncio.gather(*(one(first) for first in range(0, count, size)))


async def _scan(client: kvctl.Client, name: str, count: int, of: Range, *, values: bool) -> None:
    table = await Table.open(client.api, name)
    found = 0
    async for page in table.pages(of, values=values):
        found += len(page.entries)
    assert found == count, found


async def _timed(work: str, url: str, name: str, count: str) -> None:
    run: Callable[[kvctl.Client, str, int], Awaitable[None]] = globals()[work]
    async with kvctl.connect(url) as client:
        begun = time.perf_counter()
        await run(client, name, int(count))
        print(time.perf_counter() - begun)


if __name__ == "__main__":
    asyncio.run(_timed(*sys.argv[1:]))
