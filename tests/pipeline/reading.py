"""Reads of the data source as Spark makes them, step by step and without Spark."""

import pickle
from typing import Any

from pyspark.sql.datasource import InputPartition

from kvctl.pipeline.data_source import KvDataSource
from kvctl.pipeline.read.batch_reader import KvReader

COLUMNS = "key,value,revision,created,operation"


class Read:
    """One read, planned when it is made; `rows` has each part read by a reader of its own. No bucket if options do."""

    def __init__(self, url: str, bucket: str, **options: str) -> None:
        source = KvDataSource({"url": url, **({"bucket": bucket} if bucket else {}), **options})
        self._reader = pickle.dumps(source.reader(source.schema()))
        self.parts: list[InputPartition] = self.reader.partitions()

    @property
    def reader(self) -> KvReader:
        """A reader as a task gets it."""
        reader: KvReader = pickle.loads(self._reader)
        return reader

    def rows(self) -> list[dict[str, Any]]:
        """All rows of all parts."""
        parts: list[InputPartition] = pickle.loads(pickle.dumps(self.parts))
        return [row for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()]

    @property
    def cut(self) -> int:
        """The revision that the read is of."""
        revision: int = self.parts[0].cut.revision  # type: ignore[attr-defined]
        return revision


def latest(url: str, bucket: str, **options: str) -> dict[str, bytes]:
    """Return rows by key; checks that keys are unique."""
    rows = Read(url, bucket, **options).rows()
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: row["value"] for row in rows}
