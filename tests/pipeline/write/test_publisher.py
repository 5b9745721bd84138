"""Rows published by one task: each stored once, those of a key in order, whatever an earlier attempt did."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pyarrow as pa
import pytest

import kvctl
from kvctl.errors import BucketNotFound, KvctlError, ServerError
from kvctl.kv.bulk.bulk_writer import target_of
from kvctl.pipeline.write.arrow_rows import RowChunk, chunk_of
from kvctl.pipeline.write.decision import WriteMode, WritePlan
from kvctl.pipeline.write.publisher import Publisher
from kvctl.pipeline.write.row_ids import RowIds
from kvctl.pipeline.write.write_task import ids_of
from tests.support.differences import differences
from tests.support.raw import RawClient

Rows = Iterable[dict[str, Any]]


class Task:
    """Publishes rows as one attempt at partition 0 of a job does."""

    def __init__(self, client: kvctl.Client, bucket: str, job: str = "JOB", **plan: Any) -> None:
        self.client = client
        self.bucket = bucket
        self.job = job
        self.plan = plan
        self.rejected: dict[str, str] = {}

    async def __call__(self, rows: Rows, *, at_once: int = 10_000, **plan: Any) -> tuple[int, int, int]:
        target = await target_of(self.client.bucket(self.bucket))
        options = {"since": target.info["state"]["last_seq"], **self.plan, **plan}
        ids = ids_of(self.job, 0, target)
        publisher = Publisher(target, WritePlan(ids=ids, **options), self._reject)
        counts = await publisher.run(chunks(list(rows), at_once, options.get("mode", WriteMode.PUT)))
        return counts.written, counts.unchanged, counts.rejected

    def _reject(self, chunk: RowChunk, causes: dict[int, str]) -> None:
        self.rejected |= {chunk.keys[at]: cause for at, cause in causes.items()}


async def chunks(rows: list[dict[str, Any]], at_once: int, mode: WriteMode) -> AsyncIterator[RowChunk]:
    kinds = {
        "key": pa.string(),
        "value": pa.binary(),
        "revision": pa.int64(),
        "operation": pa.string(),
        "headers": pa.map_(pa.string(), pa.string()),
        "ttl": pa.float64(),
    }
    for first in range(0, len(rows), at_once):
        part = rows[first : first + at_once]
        schema = pa.schema([(name, kinds[name]) for name in kinds if any(name in row for row in part)])
        yield chunk_of(pa.RecordBatch.from_pylist(part, schema), first, mode)


def puts(count: int, *, start: int = 0, value: str = "v") -> list[dict[str, Any]]:
    return [{"key": f"k.{n}", "value": f"{value}{n}".encode()} for n in range(start, start + count)]


async def contents(client: kvctl.Client, bucket: str) -> list[tuple[str, bytes, str]]:
    return [(e.key, e.value, str(e.operation)) async for e in client.bucket(bucket).history()]


@pytest.fixture(params=[1, 5])
async def bucket(request, client, bucket_name):
    await client.create_bucket(bucket_name, history=request.param)
    return bucket_name


async def test_rows_are_written_in_order(client, bucket, raw):
    rows = puts(2500)
    assert await Task(client, bucket)(rows, at_once=1000) == (2500, 0, 0)
    assert differences(await contents(client, bucket), [(row["key"], row["value"], "PUT") for row in rows]) == []
    assert raw.state(bucket)["last_seq"] == 2500


async def test_an_id_of_a_row_is_no_header_of_its_writer(client, bucket):
    await Task(client, bucket)(puts(1))
    entry = await client.bucket(bucket).get("k.0")
    assert b"Kvctl-Row: JOB.0.0\r\n" in entry.header
    assert entry.headers == {}


@pytest.mark.parametrize("since", [0, None])
@pytest.mark.parametrize("stored", [0, 1, 700, 1000])
async def test_retry_adds_missing_rows(client, bucket, raw, stored, since):
    rows = puts(1000)
    await Task(client, bucket)(rows[:stored])
    assert await Task(client, bucket)(rows, begun=True, since=since) == (1000, 0, 0)
    assert raw.state(bucket)["last_seq"] == 1000
    assert differences(await contents(client, bucket), [(row["key"], row["value"], "PUT") for row in rows]) == []


async def test_a_retry_keeps_the_order_of_a_key(client, bucket, raw):
    rows = [{"key": f"k{n % 3}", "value": str(n % 4).encode()} for n in range(40)]
    for stored in (1, 7, 20, 39):
        await Task(client, bucket, f"JOB{stored}")(rows[:stored])
        before = raw.state(bucket)["last_seq"] - stored
        await Task(client, bucket, f"JOB{stored}")(rows, begun=True, since=before)
        assert raw.state(bucket)["last_seq"] == before + 40
    kept = [rows[at] for at in range(40) if at >= 37 or (bucket_history(raw, bucket) == 5 and at >= 25)]
    assert await contents(client, bucket) == [(row["key"], row["value"], "PUT") for row in kept]


def bucket_history(raw: RawClient, bucket: str) -> int:
    return int(raw.api(f"STREAM.INFO.KV_{bucket}")["config"]["max_msgs_per_subject"])


@pytest.mark.guarantee("pipeline-14")
async def test_a_retry_in_another_order_adds_nothing(client, bucket, raw):
    rows = puts(300)
    await Task(client, bucket)(rows[:200])
    assert await Task(client, bucket)(rows[::-1], begun=True, since=0) == (300, 0, 0)
    assert raw.state(bucket)["last_seq"] == 300


async def test_different_rows_under_the_same_id_do_not_count_as_written(client, bucket, raw):
    await Task(client, bucket)(puts(20))
    task = Task(client, bucket)
    assert await task(puts(20, value="w"), begun=True, since=None) == (0, 0, 20)
    assert all("another write uses the same `writeId`" in cause for cause in task.rejected.values())
    if bucket_history(raw, bucket) == 1:
        with pytest.raises(KvctlError, match=r"A retry produced different rows for 1 key\."):
            await Task(client, bucket)([{"key": "k.9", "value": b"other"}], begun=True, since=None)


async def test_retry_leaves_concurrent_writes_of_others(client, bucket, raw):
    rows = puts(10)
    await Task(client, bucket)(rows)
    raw.put(bucket, "k.3", b"theirs")
    assert await Task(client, bucket)(rows, begun=True, since=0) == (10, 0, 0)
    assert (await client.bucket(bucket).get("k.3")).value == b"theirs"
    assert raw.state(bucket)["last_seq"] == 11


async def test_late_rows_of_a_killed_attempt_are_waited_for_in_a_busy_bucket(client, bucket, raw):
    """An older row that the server gets two seconds after its sender was killed does not end up on top."""
    rows = [{"key": "k", "value": b"older"}, {"key": "k", "value": b"newer"}]
    writing = asyncio.create_task(Task(client, bucket)(rows, begun=True, since=0))
    until = asyncio.get_running_loop().time() + 2
    while asyncio.get_running_loop().time() < until:
        raw.publish(f"$KV.{bucket}.busy")
        await asyncio.sleep(0.01)
    raw.put(bucket, "k", b"older", {"Kvctl-Row": "JOB.0.00000000"})
    while not writing.done():
        raw.publish(f"$KV.{bucket}.busy")
        await asyncio.sleep(0.01)
    assert await writing == (2, 0, 0)
    stored = [value for key, value, _ in await contents(client, bucket) if key == "k"]
    assert stored in ([b"newer"], [b"older", b"newer"])


async def test_entries_before_the_job_are_overwritten(client, bucket, raw):
    for row in puts(20):
        raw.put(bucket, row["key"], b"old")
    assert await Task(client, bucket)(puts(20), begun=True, since=None) == (20, 0, 0)
    assert [value for _, value, _ in await contents(client, bucket)][-20:] == [row["value"] for row in puts(20)]


async def test_rows_slightly_too_large_are_rejected(client, bucket_name):
    await client.create_bucket(bucket_name, max_value_size=200)
    task = Task(client, bucket_name)
    rows = [
        *puts(3),
        {"key": "big", "value": b"x" * 300},
        {"key": "bad key", "value": b""},
        {"key": "none"},
        {"key": None, "value": b""},
        {"key": "huge", "value": b"x" * 2_000_000},
    ]
    assert await task(rows) == (3, 0, 5)
    assert {key: cause.split(":")[0].split(",")[0] for key, cause in task.rejected.items()} == {
        "big": "The row takes 300 bytes",
        "bad key": "`bad key` is not a key",
        "none": "The value is null",
        "": "The key is null",
        "huge": "The row takes 2000000 bytes",
    }


@pytest.mark.parametrize("limit", [200, None])
async def test_the_largest_value_of_all_is_written_once(client, bucket_name, raw, limit):
    """No id fits beside it; it is identified by its value."""
    await client.create_bucket(bucket_name, max_value_size=limit, history=5)
    rows = [{"key": "k", "value": b"x" * (limit or client.connection.max_payload)}, *puts(1)]
    assert await Task(client, bucket_name)(rows) == (2, 0, 0)
    assert await Task(client, bucket_name)(rows, begun=True, since=0) == (2, 0, 0)
    assert raw.state(bucket_name)["last_seq"] == 2


# -- on condition -----------------------------------------------------------------------------------------


async def test_create_writes_keys_that_do_not_exist(client, bucket, raw):
    raw.put(bucket, "k.1", b"lives")
    raw.put(bucket, "k.2", b"", {"KV-Operation": "DEL"})
    task = Task(client, bucket, mode=WriteMode.CREATE)
    assert await task(puts(4)) == (3, 0, 1)
    assert task.rejected == {"k.1": "The key exists at revision 1"}
    assert (await client.bucket(bucket).get("k.2")).value == b"v2"


async def test_update_writes_at_its_revision(client, bucket, raw):
    for n in range(3):
        raw.put(bucket, f"k.{n}", b"old")
    task = Task(client, bucket, mode=WriteMode.UPDATE)
    rows = [row | {"revision": at} for row, at in zip(puts(5), (1, 7, 3, 0, 4), strict=True)]
    assert await task(rows) == (3, 0, 2)
    assert task.rejected == {"k.1": "`k.1` is at revision 2, not 7", "k.4": "`k.4` does not exist; expected revision 4"}
    assert (await client.bucket(bucket).get("k.2")).value == b"v2"


@pytest.mark.guarantee("pipeline-14")
@pytest.mark.parametrize("mode", [WriteMode.CREATE, WriteMode.UPDATE])
async def test_retried_conditional_write_finds_its_own_row(client, bucket, raw, mode):
    """A retried create or update finds its own write: no conflict, and no second write."""
    rows = [row | ({"revision": 0} if mode is WriteMode.UPDATE else {}) for row in puts(50)]
    task = Task(client, bucket, mode=mode)
    await task(rows[:30])
    raw.put(bucket, "k.7", b"", {"KV-Operation": "DEL"})  # by another, who saw it
    assert await task(rows, begun=True, since=0) in [(49, 0, 1), (50, 0, 0)]
    assert raw.state(bucket)["last_seq"] == 51
    assert "k.7" not in [key async for key in client.bucket(bucket).keys()]
    if bucket_history(raw, bucket) == 1:
        assert task.rejected == {"k.7": "Unknown outcome: the key was at revision 31 since"}


# -- if different --------------------------------------------------------------------------------------------


@pytest.mark.guarantee("pipeline-13")
async def test_equal_values_are_not_written(client, bucket, raw):
    task = Task(client, bucket, if_different=True)
    assert await task(puts(1500)) == (1500, 0, 0)
    assert await task(puts(1500)) == (0, 1500, 0)
    changed = [*puts(10, value="w"), *puts(1490, start=10), {"key": "k.1499", "operation": "DEL"}]
    assert await task([*changed, {"key": "gone", "operation": "DEL"}]) == (11, 1491, 0)
    assert raw.state(bucket)["last_seq"] == 1511


# -- trouble -------------------------------------------------------------------------------------------------


async def test_lost_connection_neither_duplicates_nor_loses_rows(own_server, bucket_name):
    async with kvctl.connect(own_server.url) as client:
        await client.create_bucket(bucket_name, history=5)
        rows = [{"key": f"k.{n % 3000}", "value": f"v{n}".encode()} for n in range(9000)]
        writing = asyncio.create_task(Task(client, bucket_name)(rows, at_once=100))
        with RawClient(own_server.url) as raw:
            for stored in (500, 3000, 6000):
                while raw.state(bucket_name)["last_seq"] < stored:
                    await asyncio.sleep(0)
                client.connection._client.cut()
        assert await writing == (9000, 0, 0)
        assert (await client.bucket(bucket_name).status()).last_revision == 9000
        stored: dict[str, list[bytes]] = {}
        for key, value, _ in await contents(client, bucket_name):
            stored.setdefault(key, []).append(value)
        wanted = {f"k.{n}": [f"v{n + 3000 * life}".encode() for life in range(3)] for n in range(3000)}
        assert differences(stored, wanted) == []


@pytest.mark.parametrize("begun", [False, True])
async def test_full_bucket_ends_the_write(client, bucket_name, begun):
    """Each attempt of the task says why; Spark shows the last one."""
    await client.create_bucket(bucket_name, max_bytes=20_000)
    with pytest.raises(ServerError, match=r"`k\.\d+`: .*maximum bytes exceeded") as caught:
        await Task(client, bucket_name)(puts(2000), begun=begun, since=0)
    assert "--max-bytes" in str(caught.value.hint)


@pytest.mark.parametrize("history", [1, 3])
@pytest.mark.parametrize("keys", [2, 1000])
async def test_refused_rows_of_a_run_are_known(client, bucket_name, raw, history, keys, monkeypatch):
    """The limit is lowered after the look at it. Of the rows in flight then, those since replaced count as written."""
    monkeypatch.setattr("kvctl.pipeline.write.publisher.WINDOW_ROWS", 300)
    await client.create_bucket(bucket_name, history=history)
    target = await target_of(client.bucket(bucket_name))
    raw.api(f"STREAM.UPDATE.KV_{bucket_name}", {**target.info["config"], "max_msg_size": 100})
    rows = [{"key": f"k.{n % keys}", "value": b"%d" % n + b"x" * (200 if n % 7 == 3 else 0)} for n in range(1000)]
    rejected: dict[int, str] = {}

    def reject(chunk: RowChunk, causes: dict[int, str]) -> None:
        rejected.update({chunk.first + at: cause for at, cause in causes.items()})

    publisher = Publisher(target, WritePlan(ids=ids_of("JOB", 0, target), since=0), reject)
    counts = await publisher.run(chunks(rows, 100, WriteMode.PUT))
    assert (counts.written, counts.rejected) == (1000 - len(rejected), len(rejected))
    too_large = {n for n in range(1000) if n % 7 == 3}
    assert rejected.keys() <= too_large
    assert rejected.keys() >= {n for n in too_large if n >= 500 or keys == 1000}
    wanted: dict[str, list[bytes]] = {}
    for n, row in enumerate(rows):
        if n not in rejected:
            wanted.setdefault(row["key"], []).append(row["value"])
    stored: dict[str, list[bytes]] = {}
    for key, value, _ in await contents(client, bucket_name):
        stored.setdefault(key, []).append(value)
    assert differences(stored, {key: values[-history:] for key, values in wanted.items()}) == []


@pytest.mark.parametrize("bucket", [1, 5], indirect=True)
async def test_a_retry_accepts_rows_that_changed_nothing(client, bucket, raw):
    rows = [{"key": "k", "value": value} for value in (b"1", b"1", b"2")]
    task = Task(client, bucket, if_different=True)
    assert await task(rows) == (2, 1, 0)
    assert await task(rows, begun=True, since=0) == (3, 0, 0)
    assert (raw.state(bucket)["last_seq"], task.rejected) == (2, {})


async def test_bucket_deleted_concurrently_ends_the_write(own_server, bucket_name):
    async with kvctl.connect(own_server.url) as client:
        await client.create_bucket(bucket_name)

        async def deleting() -> AsyncIterator[RowChunk]:
            async for chunk in chunks(puts(2000), 1000, WriteMode.PUT):
                yield chunk
                await client.delete_bucket(bucket_name)
                break
            async for chunk in chunks(puts(2000), 1000, WriteMode.PUT):
                yield chunk

        target = await target_of(client.bucket(bucket_name))
        with pytest.raises(BucketNotFound):
            await Publisher(target, WritePlan(ids=RowIds("JOB", 0, 1 << 20), since=0)).run(deleting())
