"""Tables on three servers whose leaders are killed: sums are kept, counters exact, every report is true."""

import asyncio
import random
import sys
from contextlib import suppress

import pytest

import kvctl
from kvctl.errors import ConditionalUpdateError, OutcomeUnknown, TableSealed, UnreachableError
from kvctl.jetstream import streams
from kvctl.labs import Lab
from kvctl.tables import catalog
from kvctl.tables.changes import Insert, Put
from kvctl.tables.config import partition_stream, stream_name
from kvctl.tables.table import Table
from kvctl.tables.table_manager import Tables
from tests.project.test_faults import connections, leader_of

FAMILY = "f"
ACCOUNTS = [b"a%d" % number for number in range(8)]
EACH = 100


class Work:
    """Reported increments and transfers."""

    def __init__(self) -> None:
        self.added = 0
        self.transferred = 0
        self.unknown = 0
        self.going = True

    async def add(self, table: Table[bytes, bytes]) -> None:
        """Increment conditionally, again and again."""
        while self.going:
            with suppress(UnreachableError, ConditionalUpdateError):
                entry = await table.get(b"counter", family=FAMILY)
                try:
                    await table.replace(b"counter", b"%d" % (int(entry.value) + 1), entry.version, family=FAMILY)
                    self.added += 1
                except OutcomeUnknown:
                    self.unknown += 1
            await asyncio.sleep(0.002)

    async def transfer(self, table: Table[bytes, bytes]) -> None:
        """Transfer from one account to another, conditional on both."""
        while self.going:
            giver, taker = random.sample(ACCOUNTS, 2)
            with suppress(UnreachableError, ConditionalUpdateError, OutcomeUnknown):
                one, other = await table.get_all([giver, taker], family=FAMILY)
                await table.update(
                    [
                        Put(giver, b"%d" % (int(one.value) - 1), one.version, FAMILY),
                        Put(taker, b"%d" % (int(other.value) + 1), other.version, FAMILY),
                    ]
                )
                self.transferred += 1
            await asyncio.sleep(0.002)


async def under_kills(lab: Lab, name: str, *, apart: bool, kills: int) -> None:
    """Run traffic on a table while its leader is killed and restarted, then count everything."""
    work = Work()
    async with connections(lab, 4) as clients:
        tables = [Tables(client) for client in clients]
        table = await tables[0].create(name, partitions=4, apart=apart, settings={"replicas": 3})
        await table.update([Insert(key, b"%d" % EACH, FAMILY) for key in ACCOUNTS] + [Insert(b"counter", b"0", FAMILY)])
        handles = [await each.open(name) for each in tables]
        jobs = [work.add(handle) for handle in handles[:2]] + [work.transfer(handle) for handle in handles[2:]]
        tasks = [asyncio.create_task(job) for job in jobs]
        bucket = table.layout.bucket(table.layout.place(FAMILY, b"counter"))
        for _ in range(kills):
            await asyncio.sleep(random.uniform(0.5, 1.5))
            leader = await leader_of(bucket, lab.servers)
            leader.kill()
            await asyncio.sleep(random.uniform(1, 2))
            leader.start()
            await _progress(work, tasks)
        work.going = False  # not cancelled: what is still under way would be stored between the reads of the check
        await asyncio.gather(*tasks)
        await _check(handles[0], work)


async def _progress(work: Work, tasks: list[asyncio.Task[None]]) -> None:
    """Wait until both kinds of work continue after the kill."""
    added, transferred = work.added, work.transferred
    async with asyncio.timeout(180):
        while work.added == added or work.transferred == transferred:
            assert not [task for task in tasks if task.done()]
            await asyncio.sleep(0.05)


async def _check(table: Table[bytes, bytes], work: Work) -> None:
    *accounts, counter = await table.entries_at(
        [table.layout.place(FAMILY, key) for key in (*ACCOUNTS, b"counter")], leader=True
    )
    print(f"{work.added} added, {work.transferred} transferred, {work.unknown} unknown")
    assert work.added <= int(counter.value) <= work.added + work.unknown
    assert sum(int(entry.value) for entry in accounts if entry is not None) == EACH * len(ACCOUNTS)


@pytest.mark.slow
@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("apart", [False, True])
async def test_batches_and_conditions_hold_over_many_kills(own_cluster, apart):
    await under_kills(own_cluster, "T", apart=apart, kills=6)


WRITER = """
import asyncio, sys, kvctl
from kvctl.tables.changes import NOT_EXISTS, Put
from kvctl.tables.table_manager import Tables
async def main(url, name):
    async with kvctl.connect(url) as client:
        table = await Tables(client).open(name)
        keys = [b"%d" % number for number in range(300)]
        found = await table.get_all(keys, family="f")
        number = int(found[0].value) if found[0] else 0
        while True:
            number += 1
            versions = [entry.version if entry else NOT_EXISTS for entry in found]
            await table.update([Put(key, b"%d" % number, version, "f") for key, version in zip(keys, versions)])
            print(number, flush=True)
            found = await table.get_all(keys, family="f")
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("seed")
async def test_killed_writer_leaves_no_partial_batch(table, client, server):
    """Every batch writes the same value to 300 entries; writers are repeatedly killed in the middle of one."""
    said = 0
    for _ in range(15):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, server.url, table.name, stdout=asyncio.subprocess.PIPE
        )
        said = int(await asyncio.wait_for(process.stdout.readline(), 120))
        await asyncio.sleep(random.uniform(0, 0.2))
        process.kill()
        said = max([said, *map(int, (await process.stdout.read()).split())])
        await process.wait()
        found = await table.get_all([b"%d" % number for number in range(300)], family="f")
        (value,) = {entry and int(entry.value) for entry in found}
        assert value in (said, said + 1)  # the last one may not have been told


@pytest.mark.usefixtures("seed")
async def test_table_on_three_servers_reads_its_own_writes(cluster):
    async with kvctl.connect(next(iter(cluster.servers.values())).url) as client:
        tables = Tables(client)
        table = await tables.create("OWN", settings={"replicas": 3})
        for number in range(200):
            version = await table.put(b"k", b"%d" % number)
            entry = await table.get(b"k")
            assert (entry.value, entry.version) == (b"%d" % number, version)
            found = await table.get_all([b"k", b"none"])
            assert [item and item.version for item in found] == [version, None]
        await tables.delete("OWN")


async def test_seal_without_an_answer_of_every_partition_seals_nothing(client, unique):
    name = unique("T")
    table = await Tables(client).create(name, partitions=4, apart=True)
    part = await streams.info(client.api, partition_stream(name, 3))
    await streams.delete(client.api, partition_stream(name, 3))
    with pytest.raises(UnreachableError, match=f"`KVTP_{name}_0003`, .* does not answer: nothing was changed"):
        await catalog.seal(client.api, name)
    await streams.create(client.api, part["config"])
    for key in (b"%d" % number for number in range(40)):
        await table.put(key, b"v")
    assert await catalog.seal(client.api, name)
    for key in (b"%d" % number for number in range(40)):
        with pytest.raises(TableSealed):
            await table.put(key, b"v")


async def test_seal_of_a_sealed_table_completes_its_partitions(client, unique):
    name = unique("T")
    table = await Tables(client).create(name, partitions=4, apart=True)
    head = await streams.info(client.api, stream_name(name))
    await streams.update(client.api, {**head["config"], "sealed": True})
    assert await catalog.seal(client.api, name)
    assert not await catalog.seal(client.api, name)
    with pytest.raises(TableSealed):
        await table.put(b"k", b"v")


@pytest.mark.guarantee("tables-8", by="fault")
async def test_scan_beside_a_lagging_replica_shows_every_listed_entry(own_cluster):
    """A paused follower answers reads before it has caught up."""
    async with connections(own_cluster, 1) as (client,):
        table = await Tables(client).create("T", partitions=2, settings={"replicas": 3})
        leader = await leader_of(table.layout.buckets[0], own_cluster.servers)
    followers = [server for server in own_cluster.servers.values() if server is not leader]
    async with kvctl.connect(leader.url) as client:
        table = await Tables(client).open("T")
        for number in range(12):
            away = followers[number % 2]
            away.pause()
            for key in range(25):
                await table.put(b"%d" % key, b"%d" % number)
            away.resume()
            async with kvctl.connect(away.url) as other:
                found = [e async for page in (await Tables(other).open("T")).pages() for e in page.entries]
            assert {(e.key, e.value) for e in found} == {(b"%d" % key, b"%d" % number) for key in range(25)}  # type: ignore[union-attr]
