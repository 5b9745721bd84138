"""Loads of exports and tables on real Spark: the content is restored, also after an interrupted load."""

import json
from pathlib import Path

import pytest

import kvctl
from kvctl.errors import BucketExists, BucketNotFound, ConflictError, HazardRefused, NoServer, NotFoundError, UsageError
from kvctl.pipeline.jobs.export import export, of_bucket
from kvctl.pipeline.jobs.load import Input, LoadResult, Order, load, open_export, open_table, write
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.spark import tasks
from kvctl.pipeline.spark.engine import Engine
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.server import Server
from tests.pipeline.tables.test_file_rows import ODD
from tests.support.differences import differences

ROLLUP = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}
KEYS = ["a", "a.b", "a/b=c_d-e", "A.9", "-", "=", "/", "_k.x", "k" * 200, "x.y.z.1.2.3"]
"""Legal ones of every kind."""


class Files:
    """Exports to a folder and loads from it, on one server."""

    def __init__(self, engine: Engine, server: Server, folder: Path) -> None:
        self.engine, self.folder, self._url = engine, folder, server.url

    def export(self, bucket: str, mode: str = "latest") -> None:
        options = SourceOptions(bucket=bucket, url=self._url, mode=mode)
        export(self.engine, lambda: of_bucket(options), TablePlace(str(self.folder)))

    def load(
        self, into: str, source: Input | None = None, *, if_different: bool = False, **order: object
    ) -> LoadResult:
        options = SourceOptions(bucket=into, url=self._url, if_different=if_different)
        return load(self.engine, source or open_export(TablePlace(str(self.folder))), options, Order(**order))  # type: ignore[arg-type]


@pytest.fixture
def pipeline(engine, server, tmp_path):
    """Exports and loads in a folder of the test's own."""
    return Files(engine, server, tmp_path / "export")


async def entries(client: kvctl.Client, bucket: str) -> list[tuple[str, str, bytes, dict[str, str]]]:
    """Return the entries of a bucket, oldest first, without row ids."""
    found = [entry async for entry in client.bucket(bucket).history()]
    drop = ("KV-Operation", "Kvctl-Row", "Nats-Rollup", "Nats-TTL")
    return [
        (entry.key, str(entry.operation), entry.value, {n: v for n, v in entry.headers.items() if n not in drop})
        for entry in found
    ]


@pytest.mark.guarantee("pipeline-24")
async def test_bucket_is_loaded_under_another_name(pipeline, fill, raw, client, unique):
    values = {f"v.{n}": value for n, value in enumerate(ODD) if len(value) < 1_000_000} | dict.fromkeys(KEYS, b"\xff")
    values["large"] = bytes(range(256)) * 4000  # with its headers not above a megabyte
    bucket = fill(values, max_msgs_per_subject=3, description="orders", allow_msg_ttl=True)
    raw.put(bucket, "short", b"lived", {"Nats-TTL": "1h", "Mine": "x: 1, 2"})
    raw.put(bucket, "lasting", b"lived", {"Nats-TTL": "never"})
    pipeline.export(bucket)
    copy = unique()
    loaded = pipeline.load(copy, create=True)
    assert (loaded.created, loaded.written, loaded.unchanged, loaded.rejected) == (True, len(values) + 2, 0, 0)
    assert sorted(await entries(client, copy)) == sorted(await entries(client, bucket))
    assert 3500 < (await client.bucket(copy).get("short")).ttl.total_seconds() <= 3600  # type: ignore[union-attr]
    assert (await client.bucket(copy).get("lasting")).ttl == kvctl.NEVER
    config = (await client.bucket(copy).status()).config
    assert (config["description"], config["max_msgs_per_subject"]) == ("orders", 3)
    again = pipeline.load(copy, create=True)
    assert (again.created, again.written, again.unchanged) == (False, 0, len(values) + 2)


@pytest.mark.guarantee("pipeline-24")
async def test_history_is_loaded_in_the_order_of_each_key(pipeline, fill, raw, client, unique, monkeypatch):
    monkeypatch.setattr(tasks, "RANGE_BYTES", 500)
    bucket = fill(max_msgs_per_subject=4)
    for number in range(40):
        raw.put(bucket, f"k.{number % 10}", b"%d" % (number % 20))
    raw.put(bucket, "k.1", b"", {"KV-Operation": "DEL"})
    raw.put(bucket, "k.2", b"", ROLLUP)
    raw.put(bucket, "k.2", b"after")
    pipeline.export(bucket, "history")
    copy = unique()
    pipeline.load(copy, create=True)

    async def by_key(name: str) -> list[tuple[str, list[tuple[str, bytes]]]]:
        found: dict[str, list[tuple[str, bytes]]] = {}
        for key, operation, value, _ in await entries(client, name):
            found.setdefault(key, []).append((operation, value))
        return sorted(found.items())

    wanted = await by_key(bucket)
    assert differences(await by_key(copy), wanted) == []
    assert dict(wanted)["k.2"] == [("PURGE", b""), ("PUT", b"after")]

    half = unique()  # a load that was cut off: some keys whole, some in part, some not at all
    raw.create_bucket(half, max_msgs_per_subject=4)
    for key, held in wanted[:5]:
        for operation, value in held[: 1 + int(key[-1]) % 3]:
            raw.put(
                half,
                key,
                value,
                None if operation == "PUT" else ROLLUP if operation == "PURGE" else {"KV-Operation": "DEL"},
            )
    pipeline.load(half)
    assert differences(await by_key(half), wanted) == []
    again = pipeline.load(half)
    assert (again.written, again.unchanged) == (0, again.rows)

    shallow = fill(max_msgs_per_subject=2)
    with pytest.raises(HazardRefused, match="keeps 2: the oldest would be lost"):
        pipeline.load(shallow)
    pipeline.load(shallow, shorter_history=True)
    assert await by_key(shallow) == [(key, held[-2:]) for key, held in wanted]


@pytest.mark.guarantee("pipeline-24")
async def test_only_differing_rows_are_written(pipeline, fill, raw, client):
    bucket = fill({"a": b"1", "b": b"2", "c": b"3"})
    pipeline.export(bucket)
    raw.put(bucket, "b", b"changed")
    raw.put(bucket, "c", b"", {"KV-Operation": "DEL"})
    raw.put(bucket, "d", b"new")
    first = pipeline.load(bucket, if_different=True)
    assert (first.written, first.unchanged) == (2, 1)
    assert {key: value for key, _, value, _ in await entries(client, bucket)} == {
        "a": b"1",
        "b": b"2",
        "c": b"3",
        "d": b"new",
    }
    before = (await client.bucket(bucket).status()).last_revision
    second = pipeline.load(bucket, if_different=True)
    assert (second.written, second.unchanged) == (0, 3)
    assert (await client.bucket(bucket).status()).last_revision == before


async def test_load_of_a_table_with_bad_rows(pipeline, client, unique, tmp_path):
    rows = [{"sku": "a.1", "n": 7}, {"sku": "b 2", "n": 1}, {"n": 3}, {"sku": "c", "n": "é"}]
    (tmp_path / "stock.ndjson").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"sku": "d", "n\n')
    source = open_table(TablePlace(str(tmp_path / "stock.ndjson")), key="sku", value="n")
    name = unique()
    with pytest.raises(BucketNotFound) as raised:
        pipeline.load(name, source)
    assert "`--create` creates it" in str(raised.value.hint)
    planned = pipeline.load(name, source, create=True, dry_run=True)
    assert (planned.created, planned.rows, planned.written, planned.rejected) == (True, 5, 2, 3)
    assert name not in await client.bucket_names()
    loaded = pipeline.load(name, source, create=True)
    assert (loaded.rows, loaded.written, loaded.rejected) == (5, 2, 3)
    causes = [("b 2", "`b 2` is not a key"), ("", "The key is null"), ("", "The line is not a JSON object")]
    assert list(loaded.samples) == list(planned.samples) == causes
    assert [(key, value) for key, _, value, _ in sorted(await entries(client, name))] == [
        ("a.1", b"7"),
        ("c", "é".encode()),
    ]


def test_load_with_a_lost_server_hints_how_to_complete_it(engine):
    rows = engine.spark.createDataFrame([("a", b"1")], "key string, value binary")
    with pytest.raises(NoServer) as raised, engine.explaining():
        write(engine, rows, SourceOptions(bucket="B", url="nats://127.0.0.1:1"))
    assert raised.value.hint == "Bucket `B` may have some of the rows; run it again to complete it"


def test_invalid_load_is_refused_before_anything_is_written(pipeline, fill, raw, tmp_path):
    bucket = fill({"a": b"1"})
    pipeline.export(bucket)
    other = fill({}, description="another")
    with pytest.raises(BucketExists, match="description"):
        pipeline.load(other, create=True)
    with pytest.raises(UsageError, match="cannot be used with an export"):
        open_table(TablePlace(str(pipeline.folder)), key="key", value=None)
    with pytest.raises(NotFoundError):
        open_table(TablePlace(str(tmp_path / "nowhere.csv")), key="a", value="b")
    (tmp_path / "t.bin").write_bytes(b"")
    with pytest.raises(UsageError, match="Unknown format"):
        open_table(TablePlace(str(tmp_path / "t.bin")), key="a", value="b")
    part = pipeline.folder / open_export(TablePlace(str(pipeline.folder))).table.parts[0].name  # type: ignore[union-attr]
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(ConflictError, match="is damaged"):
        pipeline.load(other)
