"""Exports compared with live buckets: at their cut while the bucket holds that, else as it is now."""

import asyncio
from pathlib import Path

import pytest

from kvctl.kv.maintenance.copy_bucket import KeyDifference
from kvctl.pipeline.files import contents
from kvctl.pipeline.files.export_files import read_manifest
from kvctl.pipeline.jobs.commit import of_commit
from kvctl.pipeline.jobs.export import export
from kvctl.pipeline.jobs.verify import BucketComparison, ComparedAt, compare, verify
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.spark.engine import Engine
from kvctl.server import Server
from kvctl.versions.catalog import RepositoryConfig
from kvctl.versions.repositories import create


class Verifying:
    """Exports a bucket and compares it with others."""

    def __init__(self, engine: Engine, server: Server, folder: Path) -> None:
        self._engine, self._url, self.folder = engine, server.url, folder

    def export(self, bucket: str, **options: object) -> None:
        asked = SourceOptions(bucket=bucket, url=self._url, **options)  # type: ignore[arg-type]
        export(self._engine, lambda: contents.of_bucket(asked), self.folder)

    def compare(self, bucket: str) -> BucketComparison:
        options = SourceOptions(bucket=bucket, url=self._url)
        return compare(self._engine, self.folder, read_manifest(self.folder), options)


@pytest.fixture
def verifying(engine, server, tmp_path):
    """An export of the test's own."""
    return Verifying(engine, server, tmp_path / "export")


def found(compared: BucketComparison) -> list[tuple[str, str, int | None, int | None]]:
    return [(item.key, str(item.difference), item.revision, item.other_revision) for item in compared.differences]


async def test_keys_that_an_export_of_a_commit_holds_are_not_extra(verifying, engine, server, client, fill, unique):
    """Although they have no revision."""
    name = unique("CONF")
    repository, _ = await create(client.api, RepositoryConfig(name), author="tests")
    await repository.put_many("main", {"a": b"1", "b": b"2", "c": b"3"})
    await repository.commit("main", "three")
    asked = SourceOptions(bucket=name, url=server.url)
    await asyncio.to_thread(export, engine, lambda: of_commit(asked, "main"), verifying.folder)
    bucket = fill({"a": b"other", "b": b"2", "d": b"4"})
    compared = await asyncio.to_thread(verifying.compare, bucket)
    assert found(compared) == [("a", "differs", None, 1), ("c", "missing", None, None), ("d", "extra", None, 3)]
    assert compared.counts == {"missing": 1, "extra": 1, "differs": 1}


@pytest.mark.guarantee("pipeline-23")
def test_an_export_is_compared_at_its_cut_while_the_bucket_holds_that(verifying, fill, raw):
    bucket = fill({"a.1": b"1", "a.2": b"2", "b": b"not exported"}, max_msgs_per_subject=3)
    verifying.export(bucket, filter=("a.*",))
    assert verify(verifying.folder).whole
    raw.put(bucket, "a.1", b"later")
    raw.put(bucket, "a.3", b"later")
    compared = verifying.compare(bucket)
    assert (compared.at, compared.revision) == (ComparedAt.CUT, 3)
    assert compared.counts == {"missing": 0, "extra": 0, "differs": 0}
    for value in (b"x", b"y", b"z"):
        raw.put(bucket, "a.1", value)
    compared = verifying.compare(bucket)
    assert (compared.at, compared.revision) == (ComparedAt.NOW, 8)
    assert found(compared) == [("a.1", "differs", 1, 8), ("a.3", "extra", None, 5)]
    assert compared.counts == {"missing": 0, "extra": 1, "differs": 1}


def test_another_bucket_is_compared_by_values(verifying, fill, raw):
    verifying.export(fill({"a": b"1", "b": b"2", "c": b"\xff"}))
    copy = fill({"x": b"", "b": b"2", "c": b"\xfe"})
    raw.put(copy, "x", b"", {"KV-Operation": "DEL"})
    compared = verifying.compare(copy)
    assert compared.at is ComparedAt.NOW
    assert found(compared) == [("a", "missing", 1, None), ("c", "differs", 3, 3)]
    assert isinstance(compared.differences[0], KeyDifference)


def test_history_is_compared_entry_by_entry(verifying, fill, raw):
    bucket = fill({"a": b"1", "b": b"1"}, max_msgs_per_subject=2)
    raw.put(bucket, "a", b"2")
    raw.put(bucket, "b", b"", {"KV-Operation": "DEL"})
    verifying.export(bucket, mode="history")
    raw.put(bucket, "a", b"pushes the first out")
    raw.put(bucket, "c", b"later")
    compared = verifying.compare(bucket)
    assert (compared.at, sum(compared.counts.values())) == (ComparedAt.CUT, 0)
    copy = fill({"a": b"1", "b": b"1"}, max_msgs_per_subject=2)
    raw.put(copy, "b", b"", {"KV-Operation": "DEL"})
    compared = verifying.compare(copy)
    assert (compared.at, found(compared)) == (ComparedAt.NOW, [("a", "differs", 3, 1)])
