"""Requests of a stream read on a real server: losses or history, the start, and the end of a batch."""

import time
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise

import pytest

import kvctl
from kvctl.errors import HistoryLost, StreamReplaced, UsageError
from kvctl.jetstream import streams
from kvctl.pipeline.read.offsets import StreamExtent, check
from kvctl.pipeline.read.stream_position import beginning, look, reach
from kvctl.units import format_time

Unique = Callable[..., str]


async def extent_of(client: kvctl.Client, bucket: str) -> StreamExtent:
    """Return the bucket's current state."""
    return (await look(client.bucket(bucket)))[1]


@pytest.fixture
def written(raw, client, bucket_name):
    """A bucket without history with few revisions left: keys 0 to 9 are at 1 to 5 and 996 to 1000."""
    raw.create_bucket(bucket_name)
    for number in range(5):
        raw.put(bucket_name, f"k{number}", b"old")
    for number in range(994):
        raw.publish(f"$KV.{bucket_name}.k{5 + number % 5}", b"new")
    raw.put(bucket_name, "k9", b"newest")
    return client.bucket(bucket_name)


@pytest.mark.guarantee("pipeline-27", by="fault")
async def test_overwritten_keys_are_no_loss(raw, client, bucket_name):
    raw.create_bucket(bucket_name)
    raw.put(bucket_name, "a", b"1")
    read = (await extent_of(client, bucket_name)).end
    for _ in range(5):
        raw.put(bucket_name, "a", b"2")
    now = await extent_of(client, bucket_name)
    assert (read.revision, now.first, now.last) == (1, 6, 6)
    check(read, now)


@pytest.mark.guarantee("pipeline-27")
async def test_an_emptied_bucket_lost_what_was_not_read(raw, client, bucket_name):
    raw.create_bucket(bucket_name)
    raw.put(bucket_name, "a", b"1")
    read = (await extent_of(client, bucket_name)).end
    raw.put(bucket_name, "b", b"2")
    await streams.purge(client.api, f"KV_{bucket_name}")
    with pytest.raises(HistoryLost, match="revisions 2 to 2: they were purged or expired"):
        check(read, await extent_of(client, bucket_name))


async def test_a_full_bucket_that_drops_its_oldest_may_have_lost_some(raw, client, bucket_name):
    raw.create_bucket(bucket_name, discard="old", max_msgs=3)
    raw.put(bucket_name, "a", b"1")
    read = (await extent_of(client, bucket_name)).end
    for key in "bcdef":
        raw.put(bucket_name, key, b"2")
    with pytest.raises(HistoryLost, match="revisions 2 to 3: they may have been dropped from the full bucket"):
        check(read, await extent_of(client, bucket_name))


async def test_only_what_may_have_been_written_before_the_ttl_ran_out_is_a_loss(raw, client, bucket_name):
    raw.create_bucket(bucket_name, max_age=int(0.2e9), duplicate_window=int(0.1e9))
    raw.put(bucket_name, "a", b"1")
    read = (await extent_of(client, bucket_name)).end
    for _ in range(2):
        raw.put(bucket_name, "b", b"2")
    soon = await extent_of(client, bucket_name)
    if soon.at_ns - read.seen_ns < soon.expiry_ns:
        check(read, soon)
    while (now := await extent_of(client, bucket_name)).first <= now.last:
        pass
    raw.put(bucket_name, "c", b"3")
    with pytest.raises(HistoryLost, match="they may have expired"):
        check(read, await extent_of(client, bucket_name))


async def test_a_bucket_made_anew_is_told_by_its_incarnation(client, bucket_name):
    bucket = await client.create_bucket(bucket_name)
    await bucket.put("a", b"1")
    read = (await extent_of(client, bucket_name)).end
    await client.delete_bucket(bucket_name)
    again = await client.create_bucket(bucket_name)
    await again.put("a", b"1")
    with pytest.raises(StreamReplaced, match=f"Bucket `{bucket_name}` was recreated"):
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
    for value in (b"1", b"2", b"3"):
        await bucket.put("a", value)
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
