"""Transactions while leaders fail: transfers between accounts keep their sum, and every report is true."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

import kvctl
from kvctl import Bucket, Client, Transaction
from kvctl.errors import ConditionsFailed, ConflictError, OutcomeUnknown, UnreachableError
from tests.project.test_faults import all_entries, connections, killed, leader_of, stopped
from tests.support.differences import differences

ACCOUNTS, CLIENTS, START = 8, 5, 1000


@dataclass
class Transfers:
    """What was asked for and what was reported. Each transfer leaves a receipt under a key of its own."""

    applied: dict[str, int] = field(default_factory=dict)
    """Receipt -> revision reported."""
    refused: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    going: bool = True

    async def run(self, client: Client, name: int) -> None:
        """Move money between accounts, three at a time, as long as nobody touches them meanwhile."""
        bucket = client.bucket("BANK")
        number = 0
        while self.going:
            number += 1
            receipt = f"receipt.{name}.{number}"
            try:
                transaction = await self._transfer(bucket, receipt)
                self.applied[receipt] = (await bucket.commit(transaction))[-1]
            except ConflictError:
                self.refused.add(receipt)
            except OutcomeUnknown:
                self.unknown.add(receipt)
            except UnreachableError:
                self.refused.add(receipt)
                await asyncio.sleep(0.02)
            await asyncio.sleep(0)

    async def _transfer(self, bucket: Bucket, receipt: str) -> Transaction:
        chosen = [f"account.{number}" for number in random.sample(range(ACCOUNTS), 3)]
        held = [entry for entry in await bucket.get_many(chosen, leader=True) if entry is not None]
        amount = random.randrange(1, 20)
        transaction = Transaction()
        for entry, change in zip(held, (-2 * amount, amount, amount), strict=True):
            value = b"%d" % (int(entry.value) + change)
            if random.random() < 0.5:
                transaction.update(entry.key, value, entry.revision)
            else:
                transaction.expect(entry.key, value=entry.value).put(entry.key, value)
        return transaction.put(receipt, b"")

    async def working(self, count: int, limit: float = 180) -> None:
        """Wait until so many more were applied."""
        deadline = time.monotonic() + limit
        wanted = len(self.applied) + count
        while len(self.applied) < wanted:
            assert time.monotonic() < deadline, "no transfers are applied"
            await asyncio.sleep(0.02)

    async def check(self, client: Client) -> None:
        """The sum is kept, what was reported applied is there, what was reported refused is not."""
        print(f"{len(self.applied)} applied, {len(self.refused)} refused, {len(self.unknown)} unknown")
        bucket = client.bucket("BANK")
        entries = {entry.key: entry for entry in await all_entries(bucket)}
        assert sum(int(entries[f"account.{number}"].value) for number in range(ACCOUNTS)) == ACCOUNTS * START
        found = {key: entries[key].revision for key in self.applied if key in entries}
        assert differences(found, self.applied) == []
        assert self.refused & set(entries) == set()


async def transfers_under(
    clients: list[Client], replicas: int, faults: int, fail: Callable[[Bucket], Awaitable[None]], between: int = 60
) -> None:
    """Transfers while the bucket's leader fails so many times, with so many of them between."""
    client, *others = clients
    bucket = await client.create_bucket("BANK", replicas=replicas, atomic=True)
    await bucket.put_many((f"account.{number}", b"%d" % START) for number in range(ACCOUNTS))
    work = Transfers()
    tasks = [asyncio.create_task(work.run(other, name)) for name, other in enumerate(others)]
    try:
        for _ in range(faults):
            await work.working(between)
            await fail(bucket)
        await work.working(between)
        work.going = False  # not cancelled: what is still under way would be stored while the check reads
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    await work.check(client)


@pytest.mark.guarantee("transactions-2", by="kill")
async def test_transfers_keep_their_sum_when_the_only_server_is_killed(own_server, seed):
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(kvctl.connect(own_server.url)) for _ in range(CLIENTS + 1)]
        await transfers_under(clients, 1, 2, lambda bucket: killed(own_server, 0.1), between=15)


@pytest.mark.guarantee("transactions-2", by="kill")
@pytest.mark.slow
@pytest.mark.parametrize(("fault", "seconds"), [(killed, 1.0), (stopped, 4.0), (stopped, 8.0)])
async def test_transfers_keep_their_sum_over_many_failures(own_cluster, seed, fault, seconds):
    async def fail(bucket: Bucket) -> None:
        await fault(await leader_of(bucket, own_cluster), seconds)

    async with connections(own_cluster, CLIENTS + 1) as clients:
        await transfers_under(clients, 3, 6, fail)


async def test_creations_of_the_same_keys_succeed_once(cluster, bucket_name):
    """Contenders on three servers; every key is won by the one that won them all."""
    async with connections(cluster, 6) as clients:
        await clients[0].create_bucket(bucket_name, replicas=3, atomic=True)
        for round in range(5):

            async def create(name: int, client: Client, round: int = round) -> bool:
                transaction = Transaction()
                for key in random.sample("abcd", 4):
                    transaction.create(f"{round}.{key}", b"%d" % name)
                try:
                    await client.bucket(bucket_name).commit(transaction)
                    return True
                except ConditionsFailed:
                    return False

            won = await asyncio.gather(*(create(name, client) for name, client in enumerate(clients)))
            assert sum(won) == 1
            entries = [entry async for entry in clients[0].bucket(bucket_name).entries(f"{round}.*")]
            assert {entry.value for entry in entries} == {b"%d" % won.index(True)}
