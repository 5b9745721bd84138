"""Stream sink called as Spark calls it, with failures and replays in any order, and its allowed results."""

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from zlib import crc32

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StringType, StructField, StructType

from kvctl.pipeline.options import parse
from kvctl.pipeline.write import writer
from tests.pipeline.revisions import Revisions

SCHEMA = StructType([StructField("key", StringType()), StructField("value", StringType())])
Row = tuple[str, str]


class Killed(Exception):
    """Kill of a task."""


@dataclass
class Batch:
    """A batch of the query, and how it was run."""

    number: int
    rows: list[Row]
    began: int
    """The bucket's last revision before it."""
    by_key: bool = True
    """Whether the rows of a key were in one partition, in their order, whenever it ran."""
    cuts: set[tuple[bool, int]] = field(default_factory=set)
    """In what ways it was cut into partitions."""

    def several(self, key: str) -> bool:
        return sum(row[0] == key for row in self.rows) > 1


class RandomSink:
    """A query that writes batches of rows, which are replayed at random, while others write the same keys."""

    def __init__(self, seed: int, revisions: Revisions, history: int, url: str, patch: pytest.MonkeyPatch) -> None:
        self.dice = random.Random(seed)
        self.revisions, self.history, self._patch = revisions, history, patch
        self._sink = writer.KvStreamWriter(SCHEMA, parse({"url": url, "bucket": revisions.bucket}), False)
        self._query = str(uuid.UUID(int=self.dice.getrandbits(128)))
        self._run = ""
        self._workers: list[dict[tuple[str, str], str]] = []
        self._values = 0
        self.batch = Batch(-1, [], 0)
        self.done = True
        self.start_run()

    # -- what happens --------------------------------------------------------------------------------------

    def step(self) -> None:
        """Write a new batch or repeat an old one; often it fails."""
        plan = self.done and self.dice.random() < 0.6
        if not plan or self.dice.random() < 0.2:
            self.start_run()  # only a new run does a batch again
        if plan:
            self.plan()
        self.done = self.run_batch() or self.done
        if self.dice.random() < 0.5:
            self.others()

    def start_run(self) -> None:
        """Restart the query: a new run, new workers."""
        self._run = str(uuid.UUID(int=self.dice.getrandbits(128)))
        self._workers = [{}, {}]
        print("start run")

    def plan(self) -> None:
        """Create the next batch, of a few rows of a few keys."""
        several = self.dice.random() < 0.4
        keys = [f"k.{number}" for number in range(12)]
        count = self.dice.randint(1, 12)
        chosen = self.dice.choices(keys, k=count + 4) if several else self.dice.sample(keys, k=count)
        rows = [(key, self._value()) for key in chosen]
        self.batch = Batch(self.batch.number + 1, rows, int(self.revisions.info()["last_seq"]))
        self.done = False
        print(f"plan {self.batch.number}: {rows}")

    def run_batch(self) -> bool:
        """Run all tasks of the batch; return whether they finished."""
        cut = (self.dice.random() < 0.5, self.dice.randint(1, 4))
        self.batch.cuts.add(cut)
        parts = self._parts(*cut)
        self.batch.by_key &= cut[0] or len(parts) == 1
        told = []
        order = list(enumerate(parts))
        self.dice.shuffle(order)
        for partition, rows in order:
            number = 0
            for _ in range(4):
                stop = self.dice.randint(0, len(rows)) if self.dice.random() < 0.25 else None
                try:
                    told.append(self._task(partition, rows, number, stop))
                    break
                except Killed:
                    number += self.dice.random() < 0.7  # Spark may number attempts anew
                    if self.dice.random() < 0.5:
                        print("  the driver is killed")
                        return False
            else:
                return False
        if self.dice.random() < 0.15:
            print("  the driver is killed before the sink commits")
            return False
        self._sink.commit(told, self.batch.number)
        return True

    def others(self) -> None:
        """Another client writes or deletes some keys."""
        for _ in range(self.dice.randint(1, 6)):
            self._other(f"k.{self.dice.randrange(12)}")

    def _other(self, key: str) -> None:
        value = None if self.dice.random() < 0.15 else f"theirs {self._value()}".encode()
        print(f"  {self.revisions.put(key, value)}: {key} {value!r} by others")

    def _value(self) -> str:
        self._values += 1
        return f"v{self._values}"

    def _parts(self, by_key: bool, count: int) -> list[list[Row]]:
        rows = self.batch.rows
        if by_key:
            return [[row for row in rows if crc32(row[0].encode()) % count == part] for part in range(count)]
        edges = [len(rows) * part // count for part in range(count + 1)]
        return [rows[low:high] for low, high in pairwise(edges)]

    def _task(self, partition: int, rows: list[Row], attempt: int, stop: int | None) -> object:
        print(f"  task {partition} attempt {attempt}: {[row[1] for row in rows]} stop {stop}")
        properties = {writer.QUERY: self._query, writer.RUN: self._run, writer.BATCH: str(self.batch.number)}
        self._patch.setattr(TaskContext, "_taskContext", None)
        TaskContext(partitionId=partition, attemptNumber=attempt, localProperties=properties)
        self._patch.setattr(writer, "_first", self.dice.choice(self._workers))
        return self._sink.write(self._batches(rows, stop))

    def _batches(self, rows: list[Row], stop: int | None) -> Iterator[pa.RecordBatch]:
        at = 0
        while at < len(rows):
            size = self.dice.randint(1, 4)
            some = rows[at : at + size] if stop is None else rows[at : min(at + size, stop)]
            if some:
                keys, values = zip(*some, strict=True)
                yield pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], names=["key", "value"])
            at += size
            if stop is not None and at >= stop:
                raise Killed
            if self.dice.random() < 0.1:
                self._other(self.dice.choice(rows)[0])
        if stop is not None:
            raise Killed

    # -- what may come of it -------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare all revisions ever written with the allowed results of the batch."""
        everything = self.revisions.refresh()
        values = [value for _, value in self.batch.rows]
        copies = {value: sum(r.value == value.encode() for r in everything) for value in values}
        for key in {key for key, _ in self.batch.rows}:
            since = [r for r in everything if r.key == key and r.number > self.batch.began]
            wanted = [value.encode() for name, value in self.batch.rows if name == key]
            theirs = [r for r in since if r.value not in wanted]
            if self.batch.by_key or len(wanted) == 1:
                assert all(copies[value.decode()] <= 1 for value in wanted), (key, since)
            if self.done and not theirs:
                assert since, key
                assert since[-1].value in wanted, (key, since)
                if self.batch.by_key:
                    assert [r.value for r in since if r.value in wanted][-1] == wanted[-1], (key, since)
            if self.done and len(since) < self.history and self.batch.by_key:
                assert all(copies[value.decode()] == 1 for value in wanted), (key, since)
