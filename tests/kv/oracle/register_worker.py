"""A process that reads and writes a few keys at random and tells what it saw: for histories of several processes.

python -m tests.kv.oracle.register_worker NAME URL TIMEOUT

Each line of input is an episode as JSON: bucket, table (or null), keys, seed, tasks, operations. The answer is a line:
the operations, each as kind, call, end, outcome, conditions, changes. Times are those of the system's monotonic clock.
"""

import asyncio
import json
import math
import random
import sys
import time
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import kvctl
from kvctl import Bucket, Client, Context, Transaction
from kvctl.errors import ConflictError, KeyNotFound, KvctlError, OutcomeUnknown
from kvctl.tables.changes import Version
from kvctl.tables.table import Table
from tests.support.linearizability import Change, Condition

VALUES = ("x", "y")
"""Few on purpose: writers meet equal values of others all the time."""


class Registers:
    """The keys as one task sees them, in a bucket or a table."""

    def __init__(self, name: str, bucket: Bucket, table: Table | None, keys: list[str], seed: int) -> None:
        self._name = name
        self._bucket = bucket
        self._table = table
        self._keys = keys
        self._random = random.Random(seed)
        self._known = dict.fromkeys(range(len(keys)), 0)
        """The revision that each key had when it was last seen."""
        self.told: list[list[Any]] = []

    async def run(self, operations: int) -> None:
        """Carry out so many operations."""
        kinds = ["read"] * 4 + ["put", "put", "create", "create", "update", "update", "update", "delete"]
        if self._table is None:
            kinds += ["txn", "txn"]
        for _ in range(operations):
            await self._one(self._random.choice(kinds))
            await asyncio.sleep(self._random.choice((0, 0, 0.002, 0.01)))

    async def _one(self, kind: str) -> None:
        key, value = self._random.randrange(len(self._keys)), self._random.choice(VALUES)
        if kind in ("update", "delete", "txn") and self._random.random() < 0.6:
            await self._told("read", key, value, self._known[key])
        await self._told(kind, key, value, self._known[key])

    async def _told(self, kind: str, key: int, value: str, revision: int) -> None:
        """One operation, noted with its times and its outcome."""
        call = time.monotonic()
        of = self._in_table if self._table else self._in_bucket
        conditions, changes, work = of(kind, key, value, revision)
        try:
            seen = await work
            outcome = "ok"
            changes = tuple(change._replace(revision=found) for change, found in zip(changes, seen, strict=False))
            if kind == "read":
                conditions = (_seen(key, *seen),)
        except OutcomeUnknown:
            outcome = "unknown"
        except KeyNotFound:
            outcome, conditions, changes = "ok", (Condition(key, live=False),), ()
        except ConflictError:
            outcome = "conflict"
        except KvctlError:
            return  # nothing was done, it says
        end = math.inf if outcome == "unknown" else time.monotonic()
        if outcome == "ok":
            self._known |= {change.key: change.revision for change in changes if change.revision is not None}
            self._known |= {item.key: item.revision for item in conditions if kind == "read" and item.revision}
        if not (kind == "read" and outcome != "ok"):
            self.told.append([kind, call, end, outcome, conditions, changes])

    def _in_bucket(self, kind: str, key: int, value: str, revision: int) -> tuple[Any, Any, Awaitable[Any]]:
        bucket, name, data = self._bucket, self._keys[key], value.encode()
        if kind == "put":
            return (), (Change(key, value),), _listed(bucket.put(name, data))
        if kind == "create":
            return (Condition(key, live=False),), (Change(key, value),), _listed(bucket.create(name, data))
        if kind == "update":
            return self._at(key, revision), (Change(key, value),), _listed(bucket.update(name, data, revision))
        if kind == "delete":
            return self._at(key, revision), (Change(key, None),), _listed(bucket.delete(name, revision=revision))
        if kind == "txn":
            return self._transaction(key, (key + 1) % len(self._keys), value)
        return (), (), self._read(name)

    def _transaction(self, key: int, other: int, value: str) -> tuple[Any, Any, Awaitable[Any]]:
        """Two keys at once, both on condition, or one on condition of the other."""
        one, two = self._known[key], self._known[other]
        transaction = Transaction()
        conditions = (Condition(key, revision=one), Condition(other, revision=two))
        if self._random.random() < 0.5:
            transaction.update(self._keys[key], value.encode(), one).update(self._keys[other], value.encode(), two)
            return conditions, (Change(key, value), Change(other, value)), self._bucket.commit(transaction)
        transaction.put(self._keys[key], value.encode()).expect(self._keys[other], revision=two)
        return conditions[1:], (Change(key, value),), self._bucket.commit(transaction)

    async def _read(self, name: str) -> tuple[int, str | None]:
        entry = await self._bucket.last_entry(name, leader=True)
        if entry is None:
            return 0, None
        return entry.revision, entry.value.decode() if entry.operation == "PUT" else None

    def _in_table(self, kind: str, key: int, value: str, revision: int) -> tuple[Any, Any, Awaitable[Any]]:
        table, name, data = self._table, self._keys[key].encode(), value.encode()
        place = table._place(None, name)
        if kind == "read":
            return (), (), self._read_table(place)
        version = table.layout.version(place, revision)
        if kind == "put":
            return (), (Change(key, value),), self._sequence(table.put(name, data))
        if kind == "create" or revision == 0:
            done = self._sequence(table.put_if_absent(name, data))
            return (Condition(key, live=False),), (Change(key, value),), done
        if kind == "update":
            done = self._sequence(table.replace(name, data, version))
            return self._at(key, revision), (Change(key, value),), done
        return self._at(key, revision), (Change(key, None),), self._removed(name, version)

    async def _read_table(self, place: str) -> tuple[int | None, str | None]:
        (entry,) = await self._table.entries_at([place], leader=True)
        return (None, None) if entry is None else (self._table.layout.sequence(entry.version), entry.value.decode())

    async def _sequence(self, work: Awaitable[Version]) -> list[int]:
        return [self._table.layout.sequence(await work)]

    async def _removed(self, name: bytes, version: Version) -> list[None]:
        await self._table.remove(name, version)
        return [None]

    @staticmethod
    def _at(key: int, revision: int) -> tuple[Condition, ...]:
        return (Condition(key, revision=revision),)


def _seen(key: int, revision: int | None, value: str | None) -> Condition:
    return Condition(key, value is not None, revision, value)


async def _listed(work: Awaitable[int]) -> list[int]:
    return [await work]


async def episode(client: Client, name: str, order: dict[str, Any]) -> list[list[Any]]:
    """Let some tasks operate on the same keys."""
    bucket = client.bucket(order["bucket"])
    table = await Table.open(client.api, order["table"]) if order["table"] else None
    tasks = [Registers(name, bucket, table, order["keys"], order["seed"] + number) for number in range(order["tasks"])]
    await asyncio.gather(*(task.run(order["operations"]) for task in tasks))
    return [line for task in tasks for line in task.told]


async def main(name: str, url: str, timeout: float) -> None:
    """Do what the lines of input say."""
    async with kvctl.connect(Context(url=url, timeout=timedelta(seconds=timeout))) as client:
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            try:
                answer = await episode(client, name, json.loads(line))
            except KvctlError as error:
                answer = []
                print(f"{name}: {error!r}", file=sys.stderr, flush=True)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
