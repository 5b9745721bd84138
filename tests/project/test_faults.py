"""Faults on a cluster under traffic, checked: nothing acknowledged is lost, conditions hold, readings are whole.

Each test prints its seed; `KVCTL_SEED` repeats a run's choices.
"""

import asyncio
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

import kvctl
from kvctl import CURRENT, Bucket, Client, Entry
from kvctl.errors import KvctlError, OutcomeUnknown, StreamReplaced, UnreachableError, WrongRevision
from kvctl.labs import Lab
from kvctl.server import Server
from tests.kv.read.test_watch import SLOW_READER
from tests.support.differences import differences

CAS_CLIENTS, WRITERS, WATCHERS = 4, 3, 2


@pytest.fixture
def seed():
    """What the test's choices are drawn from."""
    chosen = int(os.environ.get("KVCTL_SEED") or random.randrange(1 << 32))
    print(f"KVCTL_SEED={chosen}")
    random.seed(chosen)
    return chosen


@asynccontextmanager
async def connections(lab: Lab, count: int) -> AsyncIterator[list[Client]]:
    """As many connections, each to the servers in an order of its own."""
    async with AsyncExitStack() as stack:
        urls = [server.url for server in lab.servers.values()]
        orders = (random.sample(urls, len(urls)) for _ in range(count))
        yield [await stack.enter_async_context(kvctl.connect(",".join(order))) for order in orders]


async def leader_of(bucket: Bucket, lab: Lab) -> Server:
    """The server that leads the bucket's stream."""
    info = (await bucket.locate(fresh=True)).info
    assert info is not None
    return lab.servers[info["cluster"]["leader"]]


@dataclass
class Traffic:
    """What was written to one key on condition and to many without, and what came of it."""

    bucket: str
    conditional: list[tuple[int, int]] = field(default_factory=list)
    """Revision expected and got, of each conditional write acknowledged."""
    stored: dict[str, int] = field(default_factory=dict)
    """Revision of each key acknowledged; keys are never written twice."""
    unknown: int = 0
    stale_reads: list[tuple[int, int]] = field(default_factory=list)
    """Revisions read at the leader that were below one acknowledged before the read began."""
    problems: list[BaseException] = field(default_factory=list)

    async def count(self, client: Client, name: int) -> None:
        """Read the counter at the leader and write the next value if nobody has written meanwhile."""
        bucket = client.bucket(self.bucket)
        number = 0
        while True:
            known = max((got for _, got in self.conditional), default=0)
            with suppress(WrongRevision, UnreachableError):
                entry = await bucket.last_entry("counter", leader=True)
                revision = entry.revision if entry else 0
                if revision < known:
                    self.stale_reads.append((revision, known))
                number += 1
                try:
                    got = await bucket.update("counter", b"%d.%d" % (name, number), revision)
                    self.conditional.append((revision, got))
                except OutcomeUnknown:
                    self.unknown += 1
            await asyncio.sleep(0.001)

    async def write(self, client: Client, name: int) -> None:
        """Put one new key after the other, some in bulk."""
        bucket = client.bucket(self.bucket)
        number = 0
        while True:
            number += 1
            key = f"set.{name}.{number}"
            try:
                self.stored[key] = await bucket.put(key, key.encode())
            except OutcomeUnknown:
                self.unknown += 1
            except UnreachableError:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0)

    def check_conditions(self) -> None:
        """Each condition held: the writes on the key form one chain, whatever became of the unknown ones."""
        print(f"{len(self.conditional)} conditional, {len(self.stored)} other writes, {self.unknown} unknown")
        expected = [last for last, _ in self.conditional]
        assert len(expected) == len(set(expected)), "two writes succeeded on one revision"
        acked = sorted(got for _, got in self.conditional)
        for last, got in self.conditional:
            between = [revision for revision in acked if last < revision < got]
            assert between == [], f"revision {between} lies between {last} and {got}"
        assert self.stale_reads == []

    async def check_nothing_lost(self, client: Client) -> None:
        """All that was acknowledged is there, with the value and at the revision said."""
        bucket = client.bucket(self.bucket)
        found = {entry.key: entry for entry in await all_entries(bucket, "set.>")}
        lost = {key: revision for key, revision in self.stored.items() if key not in found}
        assert list(lost.items())[:5] == []
        assert all(entry.value == entry.key.encode() for entry in found.values())
        # A write resolved after its answer was lost may have been found at another of its revisions, never at none.
        assert all(found[key].revision >= revision for key, revision in self.stored.items())
        (counter,) = await all_entries(bucket, "counter")
        assert counter.revision >= max(got for _, got in self.conditional)


@asynccontextmanager
async def traffic(lab: Lab, bucket: Bucket) -> AsyncIterator[Traffic]:
    """Clients at work while the block runs."""
    work = Traffic(bucket.name)
    async with connections(lab, CAS_CLIENTS + WRITERS) as clients:
        jobs: list[Awaitable[None]] = [work.count(client, name) for name, client in enumerate(clients[:CAS_CLIENTS])]
        jobs += [work.write(client, name) for name, client in enumerate(clients[CAS_CLIENTS:])]
        tasks = [asyncio.ensure_future(job) for job in jobs]
        try:
            yield work
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [result for result in results if not isinstance(result, asyncio.CancelledError)] == []


async def working_again(work: Traffic, limit: float = 180) -> None:
    """Wait until conditional and other writes are acknowledged again."""
    deadline = time.monotonic() + limit
    before = (len(work.conditional), len(work.stored))
    while len(work.conditional) < before[0] + 60 or len(work.stored) < before[1] + 1200:
        assert time.monotonic() < deadline, "no writes after the fault"
        await asyncio.sleep(0.05)


async def killed(server: Server, down: float) -> None:
    server.kill()
    await asyncio.sleep(down)
    await asyncio.to_thread(server.start)


async def stopped(server: Server, away: float) -> None:
    server.pause()
    await asyncio.sleep(away)
    server.resume()


@pytest.mark.guarantee("writing-1", "reading-2", by="kill")
@pytest.mark.parametrize(("fault", "seconds"), [(killed, 2.0), (stopped, 3.0)], ids=["kill", "stop"])
async def test_nothing_acknowledged_is_lost_and_conditions_hold_when_a_leader_fails(own_cluster, seed, fault, seconds):
    async with connections(own_cluster, 1) as (client,):
        bucket = await client.create_bucket("B", replicas=3)
        async with traffic(own_cluster, bucket) as work:
            await working_again(work)
            await fault(await leader_of(bucket, own_cluster), seconds)
            await working_again(work)
        work.check_conditions()
        await work.check_nothing_lost(client)


@pytest.mark.guarantee("writing-1", by="kill")
async def test_nothing_acknowledged_is_lost_when_all_servers_die(own_cluster, seed):
    async with connections(own_cluster, 1) as (client,):
        bucket = await client.create_bucket("B", replicas=3)
        async with traffic(own_cluster, bucket) as work:
            await working_again(work)
            for server in own_cluster.servers.values():
                server.kill()
            await asyncio.gather(*(asyncio.to_thread(server.start) for server in own_cluster.servers.values()))
            await working_again(work)
        work.check_conditions()
        await work.check_nothing_lost(client)


class Seen:
    """The revisions that a watch has seen."""

    def __init__(self) -> None:
        self.revisions: list[int] = []

    async def run(self, bucket: Bucket) -> None:
        async with await bucket.watch(history=True) as watcher:
            async for item in watcher:
                if item is not CURRENT:
                    self.revisions.append(item.revision)


@pytest.mark.guarantee("reading-6", by="kill")
async def test_watches_and_listings_are_complete_while_servers_restart(own_cluster, seed):
    stable = {f"s.{number}" for number in range(3000)}
    async with connections(own_cluster, WATCHERS + 1) as (client, *others):
        bucket = await client.create_bucket("B", replicas=3, history=64)
        await bucket.put_many((key, b"") for key in stable)
        watches = [Seen() for _ in others]
        tasks = [asyncio.create_task(seen.run(other.bucket("B"))) for seen, other in zip(watches, others, strict=True)]
        async with traffic(own_cluster, bucket) as work:
            await working_again(work)
            victim = await leader_of(bucket, own_cluster)
            restart = asyncio.create_task(killed(victim, 1.0))
            listings = 0
            while not restart.done() or listings < 5:
                listed = await _listed(bucket, "s.*")
                assert differences(set(listed), stable) == []
                assert len(listed) == len(stable)
                listings += 1
            await restart
            await working_again(work)
        last = (await bucket.status()).last_revision
        deadline = time.monotonic() + 180
        while any(not seen.revisions or seen.revisions[-1] < last for seen in watches):
            assert time.monotonic() < deadline, "a watch has stopped"
            assert not [task for task in tasks if task.done()]
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        for seen in watches:
            assert all(later > earlier for earlier, later in zip(seen.revisions, seen.revisions[1:], strict=False))
            assert set(work.stored.values()) - set(seen.revisions) == set()
        await work.check_nothing_lost(client)


async def _listed(bucket: Bucket, text: str) -> list[str]:
    """The keys; a listing may fail while the stream has no leader, but not come out short."""
    deadline = time.monotonic() + 180
    while True:
        try:
            return [key async for key in bucket.keys(text)]
        except UnreachableError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)


async def all_entries(bucket: Bucket, *filters: str) -> list[Entry]:
    """What the bucket holds, as soon as its stream has a leader again."""
    deadline = time.monotonic() + 180
    while True:
        try:
            return [entry async for entry in bucket.entries(*filters)]
        except UnreachableError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)


@pytest.mark.guarantee("reading-14", by="kill")
async def test_a_slow_reader_gets_everything_in_bounded_memory_though_the_leader_dies(own_cluster, seed):
    async with connections(own_cluster, 1) as (client,):
        bucket = await client.create_bucket("B", replicas=3)
        value = os.urandom(1_000_000)
        assert (await bucket.put_many((f"k.{number}", value) for number in range(120))).written == 120
        urls = ",".join(server.url for server in own_cluster.servers.values())
        reader = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SLOW_READER, urls, "asleep", stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert reader.stderr is not None
        said = await reader.stderr.readline()  # it has the first messages, and sleeps
        await killed(await leader_of(bucket, own_cluster), 1.0)
        out, err = await asyncio.wait_for(reader.communicate(), 300)
        assert (reader.returncode, said) == (0, b"reading\n"), err.decode()
        seen, size, peak = map(int, re.findall(rb"\d+", out))
        assert (seen, size) == (120, 120_000_000)
        assert peak < 90, f"{peak} MB"


@pytest.mark.guarantee("reading-16", by="fault")
async def test_a_bucket_deleted_under_a_listing_ends_it_with_an_error(own_cluster, seed, monkeypatch):
    monkeypatch.setattr("kvctl.jetstream.consumers.ordered.pull_size.BATCH_MESSAGES", 200)
    async with connections(own_cluster, 2) as (client, other):
        bucket = await client.create_bucket("B", replicas=3)
        await bucket.put_many((f"k.{number}", b"") for number in range(5000))

        async def listed() -> int:
            keys = 0
            async for batch in bucket.key_batches():
                if not keys:
                    await other.delete_bucket("B")
                keys += len(batch)
            return keys

        begun = time.monotonic()
        with pytest.raises(StreamReplaced):
            await listed()
        assert time.monotonic() - begun < 12  # its patience is 15


@pytest.mark.guarantee("writing-1", "writing-12", by="kill")
async def test_bulk_writes_over_a_leaders_death_are_all_accounted_for(own_cluster, seed):
    count = 20_000
    async with connections(own_cluster, 1) as (client,):
        bucket = await client.create_bucket("B", replicas=3)
        victim = await leader_of(bucket, own_cluster)
        fault: list[asyncio.Task[Any]] = []

        async def items() -> AsyncIterator[tuple[str, bytes]]:
            for number in range(count):
                if number == count // 4:
                    fault.append(asyncio.create_task(killed(victim, 1.0)))
                    await asyncio.sleep(0)
                yield f"k.{number}", b"%d" % number

        summary = await bucket.put_many(items())
        await fault[0]
        assert summary.written + len(summary.failed) == count
        failed = {key for key, _ in summary.failed}
        rest = [(key, key.removeprefix("k.").encode()) for key in failed]
        deadline = time.monotonic() + 180
        while rest:  # what the summary names is what has to be done again
            assert time.monotonic() < deadline
            with suppress(KvctlError):
                again = await bucket.put_many(rest)
                left = {key for key, _ in again.failed}
                rest = [(key, value) for key, value in rest if key in left]
            await asyncio.sleep(0.1)
        found = {entry.key: entry.value for entry in await all_entries(bucket)}
        assert differences(found, {f"k.{number}": b"%d" % number for number in range(count)}) == []
