"""A stream reader called as Spark calls it, in any order of crashes: without Spark, on a real server."""

import time
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import kvctl
from kvctl.errors import BucketNotFound, HistoryLost, StreamReplaced, UsageError
from kvctl.jetstream import streams
from kvctl.pipeline.options import parse
from kvctl.pipeline.read.columns import schema_of
from kvctl.pipeline.read.offsets import StreamExtent, check
from kvctl.pipeline.read.stream_reader import KvStreamReader, beginning, look, reach
from kvctl.units import format_time
from tests.support.raw import RawClient
from tests.support.waiting import until

ALL = ReadAllAvailable()


@pytest.fixture
def begin(server, bucket_name):
    """Gives readers, as a query makes one when it starts and when it goes on after a crash; of the test's bucket."""
    readers: list[KvStreamReader] = []

    def begin(**options: str) -> KvStreamReader:
        bucket = {} if options.keys() & {"buckets", "bucketPattern"} else {"bucket": bucket_name}
        given = {"url": server.url, "columns": "key,revision", **bucket, **options}
        readers.append(KvStreamReader(schema_of(given["columns"].split(",")), parse(given)))
        return readers[-1]

    yield begin
    for reader in readers:
        reader.stop()


@pytest.fixture
def put(raw, bucket_name):
    """Writes a key of the test's bucket."""
    raw.create_bucket(bucket_name, max_msgs_per_subject=5)
    return lambda key: raw.put(bucket_name, key, b"value")


def keys(reader: KvStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """Return the rows that the tasks of a batch read."""
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return [row["key"] for batch in batches for row in batch.to_pylist()]


@pytest.mark.guarantee("pipeline-25")
@pytest.mark.parametrize("options", [{"startingRevision": "latest"}, {"startingTime": "now"}])
def test_what_is_written_around_a_crash_in_the_first_batch_is_read(begin, put, options):
    put("old")
    first = begin(**{name: value.replace("now", _now()) for name, value in options.items()})
    pinned = first.initialOffset()
    put("before")
    assert first.initialOffset() == pinned
    assert first.latestOffset(pinned, ALL) == pinned, "an empty batch keeps it in the checkpoint"
    first.stop()
    put("away")
    again = begin(**{name: value.replace("now", _now()) for name, value in options.items()})
    moved = again.initialOffset()
    assert moved["revision"] == 3
    assert keys(again, moved, pinned) == []
    end = again.latestOffset(pinned, ALL)
    assert keys(again, pinned, end) == ["before", "away"]


@pytest.mark.parametrize("start", ["earliest", "1"])
def test_a_start_that_does_not_move_needs_no_empty_batch(begin, put, start):
    put("a")
    reader = begin(startingRevision=start)
    first = reader.initialOffset()
    assert keys(reader, first, reader.latestOffset(first, ALL)) == ["a"]


@pytest.mark.guarantee("pipeline-25")
def test_a_planned_batch_is_the_same_when_it_comes_again(begin, put):
    put("a")
    first = begin()
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    parts = first.partitions(start, end)
    first.stop()
    put("b")
    again = begin()
    assert again.partitions(start, end) == parts
    assert keys(again, start, end) == ["a"]


def test_nothing_new_is_the_same_offset(begin, put):
    put("a")
    reader = begin()
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert reader.latestOffset(end, ALL) == end
    put("b")
    assert reader.latestOffset(end, ALL)["revision"] == 2
    reported = reader.reportLatestOffset()
    assert reported["revision"] == 2


def test_what_is_there_now_is_read_in_batches_and_no_more(begin, put):
    for number in range(5):
        put(f"k{number}")
    reader = begin(maxRevisionsPerTrigger="2")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(2)
    reader.prepareForTriggerAvailableNow()
    offsets = [reader.initialOffset()]
    put("later")
    while (end := reader.latestOffset(offsets[-1], limit)) != offsets[-1]:
        offsets.append(end)
    assert [keys(reader, *batch) for batch in pairwise(offsets)] == [["k0", "k1"], ["k2", "k3"], ["k4"]]


class TestSeveralBuckets:
    @pytest.fixture
    def names(self, raw, bucket_name):
        for suffix in "ab":
            raw.create_bucket(
                f"{bucket_name}_{suffix}", {f"{suffix}{n}": b"" for n in range(3)}, max_msgs_per_subject=5
            )
        return [f"{bucket_name}_{suffix}" for suffix in "ab"]

    @pytest.mark.guarantee("pipeline-25")
    def test_each_bucket_continues_where_it_was(self, begin, names, raw):
        first = begin(buckets=",".join(names))
        start = first.initialOffset()
        end = first.latestOffset(start, ALL)
        assert keys(first, start, end) == ["a0", "a1", "a2", "b0", "b1", "b2"]
        first.stop()
        raw.put(names[1], "b9", b"")
        again = begin(buckets=",".join(names))
        later = again.latestOffset(end, ALL)
        assert keys(again, end, later) == ["b9"]
        assert again.latestOffset(later, ALL) == later

    def test_a_batch_has_a_share_of_each_bucket_and_the_progress_tells_what_is_left(self, begin, names):
        reader = begin(bucketPattern=f"{names[0][:-1]}.", maxRevisionsPerTrigger="2")
        offsets = [reader.initialOffset()]
        while (end := reader.latestOffset(offsets[-1], reader.getDefaultReadLimit())) != offsets[-1]:
            offsets.append(end)
            left = 6 - sum(len(keys(reader, *batch)) for batch in pairwise(offsets))
            reported = reader.reportLatestOffset() or {}
            assert reported["behind"] == left
            assert [offset["revision"] for offset in reported["buckets"].values()] == [3, 3]
        assert [keys(reader, *batch) for batch in pairwise(offsets)] == [["a0", "b0"], ["a1", "b1"], ["a2", "b2"]]

    def test_a_bucket_that_comes_later_is_read_from_its_beginning(self, begin, names, raw):
        reader = begin(bucketPattern=f"{names[0][:-1]}.", startingRevision="latest")
        start = reader.initialOffset()
        assert reader.latestOffset(start, ALL) == start
        raw.create_bucket(f"{names[0][:-1]}c", {"c0": b"", "c1": b""})
        end = reader.latestOffset(start, ALL)
        assert keys(reader, start, end) == ["c0", "c1"]

    @pytest.mark.guarantee("pipeline-26")
    def test_a_deleted_bucket_is_a_loss_that_can_be_allowed(self, begin, names, raw):
        pattern = f"{names[0][:-1]}."
        reader, lenient = begin(bucketPattern=pattern), begin(bucketPattern=pattern, failOnDataLoss="false")
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        raw.api(f"STREAM.DELETE.KV_{names[0]}")
        raw.put(names[1], "b9", b"")
        with pytest.raises(BucketNotFound):
            reader.latestOffset(end, ALL)
        assert keys(lenient, end, lenient.latestOffset(end, ALL)) == ["b9"]

    def test_existing_data_is_that_of_the_start(self, begin, names, raw):
        reader = begin(bucketPattern=f"{names[0][:-1]}.")
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        raw.put(names[0], "later", b"")
        raw.create_bucket(f"{names[0][:-1]}d", {"d0": b""})
        end = reader.latestOffset(start, ALL)
        assert keys(reader, start, end) == ["a0", "a1", "a2", "b0", "b1", "b2"]


def test_a_batch_waits_for_enough_revisions_but_not_for_ever(begin, put):
    put("a")
    reader = begin(minRevisionsPerTrigger="3", maxTriggerDelay="1h")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert end["revision"] == 1, "the first batch does not wait"
    put("b")
    assert reader.latestOffset(end, ALL) == end
    assert (reader.reportLatestOffset() or {})["behind"] == 1
    put("c")
    put("d")
    end = reader.latestOffset(end, ALL)
    assert end["revision"] == 4
    hasty = begin(minRevisionsPerTrigger="3", maxTriggerDelay="200ms")
    put("e")
    end = hasty.latestOffset(end, ALL)
    assert end["revision"] == 5
    put("f")
    until(lambda: hasty.latestOffset(end, ALL)["revision"] == 6, what="the end of the delay")
    patient = begin(minRevisionsPerTrigger="3")
    patient.prepareForTriggerAvailableNow()
    assert patient.latestOffset(end, ALL)["revision"] == 6, "what exists is read without waiting"


def test_a_small_batch_has_as_many_tasks_as_asked_for(begin, put):
    for number in range(6):
        put(f"k{number}")
    reader = begin(minPartitions="3")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert len(reader.partitions(start, end)) == 3
    assert keys(reader, start, end) == [f"k{number}" for number in range(6)]


def test_a_batch_planned_on_another_life_of_the_bucket_is_refused(begin, put, raw, bucket_name):
    put("a")
    reader = begin()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    raw.api(f"STREAM.DELETE.KV_{bucket_name}")
    raw.create_bucket(bucket_name)
    with pytest.raises(StreamReplaced, match="was recreated"):
        keys(reader, start, end)


@pytest.mark.guarantee("pipeline-26", by="fault")
@pytest.mark.parametrize("start", [{}, {"startingRevision": "2"}, {"startingTime": "-1h"}])
def test_expiry_while_a_stream_catches_up_is_a_loss(begin, raw, bucket_name, start):
    raw.create_bucket(bucket_name, {f"k{n}": b"" for n in range(10)}, max_age=2 * 10**9, duplicate_window=10**8)
    reader = begin(**start)
    beginning = reader.initialOffset()
    if start.get("startingTime"):
        beginning = reader.latestOffset(beginning, ReadMaxRows(3))
    end = reader.latestOffset(beginning, ReadMaxRows(3))
    while raw.state(bucket_name)["messages"]:
        time.sleep(0.05)
    raw.put(bucket_name, "last", b"")
    with pytest.raises(HistoryLost, match="they may have expired before they were read") as lost:
        reader.latestOffset(end, ALL)
    assert lost.value.hint == "Set option `failOnDataLoss=false` to continue with the remaining entries"
    with pytest.raises(HistoryLost, match="they may have expired before they were read"):
        keys(begin(**start), beginning, end)
    lenient = begin(failOnDataLoss="false")
    assert keys(lenient, beginning, lenient.latestOffset(end, ALL)) == ["last"]


def test_history_that_is_replaced_while_a_stream_catches_up_is_no_loss(begin, raw, bucket_name):
    raw.create_bucket(bucket_name, {f"k{number}": b"" for number in range(10)}, max_age=3600 * 10**9)
    reader = begin()
    beginning = reader.initialOffset()
    end = reader.latestOffset(beginning, ReadMaxRows(3))
    for number in range(10):
        raw.put(bucket_name, f"k{number}", b"")
    assert keys(reader, beginning, end) == []
    assert keys(reader, end, reader.latestOffset(end, ALL)) == [f"k{number}" for number in range(10)]


@pytest.mark.guarantee("pipeline-26", by="fault")
@pytest.mark.parametrize(
    ("config", "cause"),
    [
        ({}, "they were purged or expired"),
        ({"max_msgs": 30_000, "discard": "old"}, "they may have been dropped from the full bucket"),
        ({"max_age": 3600 * 10**9}, None),
    ],
)
def test_loss_during_a_read_ends_it(begin, raw, bucket_name, config, cause):
    """Entries removed during a read are lost unless newer revisions of their keys replaced them."""
    raw.create_bucket(bucket_name, **config)
    value = b"x" * 1000
    for number in range(24_999):
        raw.publish(f"$KV.{bucket_name}.k{number}", value)
    raw.put(bucket_name, "last", b"")
    reader = begin(columns="key,revision,value", partitions="1")
    beginning = reader.initialOffset()
    (part,) = reader.partitions(beginning, reader.latestOffset(beginning, ALL))
    batches = reader.read(part)
    read = next(batches).num_rows
    assert read < 15_000
    if cause is None:
        for number in range(24_999):
            raw.publish(f"$KV.{bucket_name}.k{number}", b"new")
        raw.put(bucket_name, "last", b"")
        assert read + sum(batch.num_rows for batch in batches) < 25_000
        return
    if config:
        for number in range(30_000):
            raw.publish(f"$KV.{bucket_name}.new{number}", b"")
        raw.put(bucket_name, "last", b"")
    else:
        raw.api(f"STREAM.PURGE.KV_{bucket_name}")
    with pytest.raises(HistoryLost, match=cause):
        list(batches)


@pytest.mark.guarantee("pipeline-26", by="fault")
def test_a_read_that_is_quicker_than_expiry_is_no_loss(begin, raw, bucket_name):
    """Entries removed after they were read are not lost."""
    raw.create_bucket(bucket_name, {f"k{n}": b"" for n in range(20)}, max_age=2 * 10**9, duplicate_window=10**8)
    reader = begin(partitions="1")
    beginning = reader.initialOffset()
    (part,) = reader.partitions(beginning, reader.latestOffset(beginning, ALL))
    batches = reader.read(part)
    rows = next(batches).num_rows
    while raw.state(bucket_name)["messages"]:
        time.sleep(0.05)
    assert rows + sum(batch.num_rows for batch in batches) == 20


def test_a_server_that_restarts_is_waited_for(own_server, begin):
    with RawClient(own_server.url) as raw:
        raw.create_bucket("B", {"a": b"1"})
    reader = begin(url=own_server.url, bucket="B")
    start = reader.initialOffset()
    own_server.kill()
    own_server.start()
    assert keys(reader, start, reader.latestOffset(start, ALL)) == ["a"]


def test_a_revision_that_the_bucket_has_not_reached_is_refused(begin, put):
    put("a")
    with pytest.raises(UsageError, match="`startingRevision` 3 is above the last revision"):
        begin(startingRevision="3").initialOffset()


def _now() -> str:
    return format_time(time.time_ns())


async def extent_of(client: kvctl.Client, bucket: str) -> StreamExtent:
    """Return the bucket's current state."""
    return (await look(client.bucket(bucket)))[1]


@pytest.fixture
def written(raw, client, bucket_name):
    """A bucket without history with few revisions left: keys 0 to 9 are at 1 to 5 and 996 to 1000."""
    raw.create_bucket(bucket_name, {f"k{number}": b"old" for number in range(5)})
    for number in range(994):
        raw.publish(f"$KV.{bucket_name}.k{5 + number % 5}", b"new")
    raw.put(bucket_name, "k9", b"newest")
    return client.bucket(bucket_name)


@pytest.mark.guarantee("pipeline-27", by="fault")
async def test_overwritten_keys_are_no_loss(raw, client, bucket_name):
    raw.create_bucket(bucket_name, {"a": b"1"})
    read = (await extent_of(client, bucket_name)).end
    for _ in range(5):
        raw.put(bucket_name, "a", b"2")
    now = await extent_of(client, bucket_name)
    assert (read.revision, now.first, now.last) == (1, 6, 6)
    check(read, now)


@pytest.mark.guarantee("pipeline-27")
async def test_an_emptied_bucket_lost_what_was_not_read(raw, client, bucket_name):
    raw.create_bucket(bucket_name, {"a": b"1"})
    read = (await extent_of(client, bucket_name)).end
    raw.put(bucket_name, "b", b"2")
    await streams.purge(client.api, f"KV_{bucket_name}")
    with pytest.raises(HistoryLost, match="revisions 2 to 2: they were purged or expired"):
        check(read, await extent_of(client, bucket_name))


async def test_a_mirror_is_read_where_its_keys_are_written(client, unique):
    origin = await client.create_bucket(unique("ORIGIN"))
    mirror = unique("MIRROR")
    await streams.create(client.api, {"name": mirror, "mirror": {"name": f"KV_{origin.name}"}, "storage": "file"})
    source, extent = await look(client.bucket(mirror))
    assert (source.stream, extent.bucket) == (f"KV_{origin.name}", mirror)
    assert extent.incarnation == (await extent_of(client, origin.name)).incarnation


@pytest.mark.parametrize(("revision", "offset"), [("earliest", 0), ("latest", 1000), ("3", 2), ("1001", 1000)])
async def test_a_query_begins_where_it_is_told(written, revision, offset):
    source, extent = await look(written)
    found = await beginning(source, extent, revision, None)
    assert (found.revision, found.incarnation) == (offset, extent.incarnation)


async def test_an_empty_bucket_has_a_beginning(client, bucket_name):
    source, extent = await look(await client.create_bucket(bucket_name))
    assert (extent.first, extent.last) == (1, 0)
    for revision in ("earliest", "latest", "1"):
        offset = await beginning(source, extent, revision, None)
        assert offset.revision == 0
        check(offset, extent)
        assert await reach(source, extent, 0, extent.last, 10) == 0


async def test_a_time_counts_from_its_microsecond_on(client, bucket_name):
    bucket = await client.create_bucket(bucket_name, history=5)
    await bucket.put_many(("a", value) for value in (b"1", b"2", b"3"))
    times = [entry.created_ns async for entry in bucket.history()]
    source, extent = await look(bucket)
    exactly = format_time(times[1])
    assert (await beginning(source, extent, "latest", exactly)).revision <= 1
    after = format_time(times[1] + 1000)
    assert (await beginning(source, extent, "latest", after)).revision == (2 if times[2] - times[1] > 2000 else 3)
    late = format_time(time.time_ns())
    assert (await beginning(source, extent, "latest", late)).revision == 3


async def test_a_time_to_come_is_refused(written):
    source, extent = await look(written)
    future = format_time(time.time_ns() + int(timedelta(hours=1).total_seconds() * 10**9))
    with pytest.raises(UsageError, match="is in the future"):
        await beginning(source, extent, "latest", future)


@pytest.mark.parametrize("most", [1, 2, 3, 7, 9, 10, 1000])
async def test_batches_hold_at_most_what_was_asked_for_and_skip_what_is_gone(written, most):
    source, extent = await look(written)
    held = {entry.revision async for entry in written.entries()}
    ends = [0]
    while ends[-1] < extent.last:
        ends.append(await reach(source, extent, ends[-1], extent.last, most))
    sizes = [len([revision for revision in held if low < revision <= high]) for low, high in pairwise(ends)]
    assert sum(sizes) == len(held) == 10
    assert max(sizes) <= most
    assert len(sizes) <= 2 * -(-10 // most) + 1


async def test_a_batch_ends_where_it_is_told_to(written):
    source, extent = await look(written)
    assert await reach(source, extent, 0, 500, 100) == 500
    assert await reach(source, extent, 3, 4, 100) == 4
