"""Keys and buckets with a ttl beside a list of all writes, each with the span in which it expires."""

import asyncio
import io
import json
import random
import time
from dataclasses import dataclass
from datetime import timedelta

import pytest

from kvctl import Bucket
from kvctl.errors import HistoryLost, KeyNotFound, WrongRevision
from kvctl.kv.bulk import dump_file

pytestmark = pytest.mark.oracle
KEYS = ["a", "b", "c.1", "c.2", "d"]
PATIENCE_S = 60.0
"""How late a busy server may remove what has expired."""


@dataclass(frozen=True)
class Write:
    """A write that was acknowledged, and when it expires at the earliest."""

    revision: int
    key: str
    value: bytes
    until: float
    """Seconds of the server's clock, which is this machine's; infinite without a ttl."""


class Expiring:
    """One bucket whose entries expire, and everything that was written to it."""

    def __init__(self, bucket: Bucket, dice: random.Random, history: int, ttl: float) -> None:
        self.bucket, self.dice, self.history, self.ttl = bucket, dice, history, ttl
        self.log: list[Write] = []

    async def write(self) -> None:
        """Put, create or update a key, with a ttl of its own where the bucket has none, or delete it."""
        key, value, begun = self.dice.choice(KEYS), b"v%d" % len(self.log), time.time()
        own = 0 if self.ttl else self.dice.choice([0, 1, 2, 3])
        if self.dice.random() < 0.15:
            try:
                revision, value, own = await self.bucket.delete(key), b"", 0
            except KeyNotFound:
                return
        elif own:
            last = await self.bucket.last_entry(key, leader=True)
            try:
                revision = await self.bucket.update(
                    key, value, last.revision if last else 0, ttl=timedelta(seconds=own)
                )
            except WrongRevision:  # the last entry expired since it was read
                assert [one for one in self.log if one.key == key][-1].until < time.time()
                return
        else:
            revision = await self.bucket.put(key, value)
        life = self.ttl or own or float("inf")
        print(f"{self.bucket.name}: {key} {value!r} at {revision}, {life} s")
        self.log.append(Write(revision, key, value, begun + life))

    def alive(self, now: float) -> list[Write]:
        """What the bucket must hold at that time: the last entries of each key, before the end of their ttl."""
        kept = [one for key in KEYS for one in [write for write in self.log if write.key == key][-self.history :]]
        return [one for one in kept if one.until > now]

    async def compare(self) -> None:
        """Every reading has what cannot have expired, and nothing that was not written."""
        ever = {(one.revision, one.key, one.value) for one in self.log}
        found = {(entry.revision, entry.key, entry.value) async for entry in self.bucket.history()}
        assert {(one.revision, one.key, one.value) for one in self.alive(time.time())} <= found
        assert {one for one in found if one[2]} <= ever
        file = io.BytesIO()
        await dump_file.dump(self.bucket, file, history=True)
        rows = [json.loads(line) for line in file.getvalue().splitlines()[1:-1]]
        dumped = {(row["key"], (row.get("value") or "").encode()) for row in rows}
        assert {(one.key, one.value) for one in self.alive(time.time())} <= dumped
        assert {one for one in dumped if one[1]} <= {(one.key, one.value) for one in self.log}
        for key in KEYS:
            await self._compare_last(key)
        for one in self.dice.sample(self.log, min(len(self.log), 4)):
            await self._compare_past(one)

    async def _compare_last(self, key: str) -> None:
        mine = [one for one in self.log if one.key == key]
        try:
            value = (await self.bucket.get(key, leader=True)).value
        except KeyNotFound:
            assert not mine or not mine[-1].value or mine[-1].until < time.time()
        else:
            assert value in [one.value for one in mine]
            assert mine[-1].value == value or mine[-1].until < time.time()

    async def _compare_past(self, one: Write) -> None:
        try:
            value = (await (await self.bucket.as_of(one.revision)).get(one.key)).value
        except (KeyNotFound, HistoryLost):
            assert not one.value or one not in self.alive(time.time())
        else:
            assert value in [
                write.value for write in self.log if write.key == one.key and write.revision <= one.revision
            ]
            assert value == one.value or one not in self.alive(time.time())

    async def end(self) -> None:
        """Whatever had a ttl is removed; of a bucket with a ttl the past is refused then."""
        mortal = {one.value for one in self.log if one.value and one.until < float("inf")}
        async with asyncio.timeout(PATIENCE_S):
            while {entry.value async for entry in self.bucket.history()} & mortal:
                await asyncio.sleep(0.2)
        await self.compare()
        for one in self.log if self.ttl else ():
            with pytest.raises(HistoryLost):
                await (await self.bucket.as_of(one.revision)).get(one.key)


@pytest.mark.guarantee("writing-5", "reading-5", "reading-7", "reading-8")
async def test_expiring_entries_are_read_until_their_time_is_up_and_not_after(client, unique, seed, steps):
    async def world(number: int, history: int, ttl: float) -> None:
        settings = {"ttl": timedelta(seconds=ttl)} if ttl else {"marker_ttl": timedelta(seconds=1)}
        bucket = await client.create_bucket(unique(), history=history, **settings)
        expiring = Expiring(bucket, random.Random(seed * 10 + number), history, ttl)
        for _ in range(steps(24) // 4):
            for _ in range(expiring.dice.randrange(1, 8)):
                await expiring.write()
            await expiring.compare()
            await asyncio.sleep(expiring.dice.choice([0, 0, 0.7]))
        await expiring.end()

    worlds = [(1, 0.0), (3, 0.0), (1, 2.0), (3, 2.0)]
    await asyncio.gather(*(world(number, *one) for number, one in enumerate(worlds)))
