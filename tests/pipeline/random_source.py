"""Stream of a bucket read as Spark reads it, with crashes in any order, and its expected rows."""

import random
import time
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from kvctl.errors import HistoryLost
from kvctl.pipeline.options import parse
from kvctl.pipeline.read.batch_reader import KvReader
from kvctl.pipeline.read.columns import schema_of
from kvctl.pipeline.read.stream_reader import KvStreamReader
from tests.pipeline.revisions import Revision, Revisions, held

COLUMNS = ("key", "value", "revision", "operation")
KEYS = [f"{prefix}.{number}" for prefix in ("a", "b") for number in range(30)]
Document = dict[str, Any]


class RandomSource:
    """A query that reads a bucket, is killed and started again, while others write."""

    def __init__(self, seed: int, revisions: Revisions, url: str, *, history: int, loses: bool) -> None:
        self.dice = random.Random(seed)
        self.revisions, self.history, self.loses = revisions, history, loses
        self._options = {"url": url, "bucket": revisions.bucket, "columns": ",".join(COLUMNS)}
        self._values = 0
        self.losses = 0
        self._stream: KvStreamReader | None = None
        self._forget()

    def close(self) -> None:
        if self._stream:
            self._stream.stop()

    def _forget(self) -> None:
        """Begin with an empty checkpoint."""
        self.read: list[Revision] = []
        self.committed: Document | None = None
        self._planned: tuple[Document, Document] | None = None
        self._before = -1
        """The last revision that the query need not read; -1 before it began."""
        self.write(60, 30)  # which it has to catch up with

    # -- what happens --------------------------------------------------------------------------------------

    def step(self) -> None:
        """Write some keys, wait, or run a batch, which may be cut off."""
        chance = self.dice.random()
        if chance < 0.35:
            self.write(self.dice.choice((1, 5, 30)))
        elif chance < 0.5 and self.loses:
            time.sleep(self.dice.choice((0.3, 1.3)))
            print("sleep")
            if self.dice.random() < 0.6:
                self.write(3)
        elif chance < 0.6:
            print("restart")
            self.close()
            self._stream = None
        else:
            self.run_batch()

    def write(self, most: int, least: int = 1) -> None:
        """Write or delete some keys as other clients do."""
        for _ in range(self.dice.randint(least, most)):
            self._values += 1
            value = None if self.dice.random() < 0.15 else f"v{self._values}".encode()
            self.revisions.put(self.dice.choice(KEYS), value)
        print(f"write up to {self.revisions.info()['last_seq']}")

    def run_batch(self) -> None:
        """Plan the next batch, or the planned one again, and read it; a reported loss restarts everything."""
        try:
            self._run_batch()
        except HistoryLost as error:
            print(f"told: {error.message}")
            if not self.loses:
                raise
            self.losses += 1
            self._forget()
            self.close()
            self._stream = None

    def _run_batch(self) -> None:
        stream = self._stream = self._stream or KvStreamReader(schema_of(COLUMNS), parse(self._options))
        start = self.committed or stream.initialOffset()
        if self._before < 0:
            self._before = int(self.revisions.info()["first_seq"]) - 1
        limit: ReadLimit = ReadMaxRows(self.dice.randint(1, 20)) if self.dice.random() < 0.7 else ReadAllAvailable()
        start, end = self._planned or (start, stream.latestOffset(start, limit))
        if start == end:
            return
        self._planned = start, end
        print(f"batch {start['revision']} to {end['revision']}")
        if self.dice.random() < 0.3:
            self.write(10)
        rows: list[Revision] = []
        for part in stream.partitions(start, end):
            for batch in stream.read(part):
                rows += map(_revision, batch.to_pylist())
        if self.dice.random() < 0.2:
            print("  it is cut off")
            return
        self.read += rows
        self.committed, self._planned = end, None

    # -- what must hold ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare what was read with all revisions that there ever were."""
        everything = self.revisions.refresh()
        numbers = [revision.number for revision in self.read]
        assert numbers == sorted(set(numbers)), "each once, in their order"
        assert set(self.read) <= set(everything)
        done = self.committed["revision"] if self.committed else 0
        coming = {revision.key for revision in everything if revision.number > done}
        given = {revision.key: revision.number for revision in self.read}
        missed = [
            revision
            for revision in everything
            if self._before < revision.number <= done
            and revision.key not in coming
            and revision.number > given.get(revision.key, 0)
        ]
        assert not missed, "the newest state of every key comes"

    def check_reads(self) -> None:
        """Compare a reading of the bucket with what it holds by all that was written."""
        there = held(self.revisions.refresh(), self.history)
        mode = self.dice.choice(("latest", "history", "changes"))
        options: dict[str, str] = {"mode": mode, "partitions": str(self.dice.randint(1, 4))}
        options["onEvicted"] = self.dice.choice(("newer", "fail"))
        if mode == "latest":
            there = held(there, 1)
            if self.dice.random() < 0.5:
                options["includeDeleted"] = "true"
            else:
                there = [revision for revision in there if revision.value is not None]
        if mode == "changes" and self._values:
            first, last = sorted(self.dice.choices(range(1, self._values + 1), k=2))
            options |= {"fromRevision": str(first), "toRevision": str(last)}
            there = [revision for revision in there if first <= revision.number <= last]
        if self.dice.random() < 0.5:
            prefix = self.dice.choice(("a", "b"))
            options["filter"] = f"{prefix}.>"
            there = [revision for revision in there if revision.key.startswith(prefix)]
        print(f"read {options}")
        reader = KvReader(schema_of(COLUMNS), parse({**self._options, **options}))
        rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        assert sorted(map(_revision, rows)) == there


def _revision(row: dict[str, Any]) -> Revision:
    value = row["value"] if row["operation"] == "PUT" else None
    return Revision(row["revision"], row["key"], value)
