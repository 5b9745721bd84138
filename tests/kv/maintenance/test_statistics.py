"""Statistics of a bucket agree with what is read from it, and memory does not grow with the keys."""

import random
import tracemalloc
from datetime import timedelta

import pytest

from kvctl.errors import BucketNotFound, UsageError
from kvctl.kv.entry import Operation
from kvctl.kv.maintenance import statistics as module
from kvctl.kv.maintenance.statistics import KeyGroup, statistics

HOUR = 3600 * 10**9
COUNT = 20_000
"""More keys than a reading asks for at once."""


@pytest.mark.parametrize("history", [1, 3])
async def test_statistics_agree_with_a_recount_of_all_entries(client, bucket_name, history):
    bucket = await client.create_bucket(bucket_name, history=history)
    chance = random.Random(history)
    living: set[str] = set()
    for number in range(60):
        key = chance.choice(["a.b.c", "a.b.d", "a.x", "solo", "b.c"])
        if key in living and chance.random() < 0.4:
            await bucket.delete(key)
            living.discard(key)
        else:
            living.add(key)
            await bucket.put(key, b"x" * chance.randrange(number + 1))
    entries = [entry async for entry in bucket.history()]
    latest = {entry.key: entry for entry in entries}
    found = await statistics(bucket, tokens=2, largest=2)
    assert (found.bucket, found.last_revision, found.history) == (bucket_name, 60, history)
    for prefix, group in {None: found.total, **found.prefixes}.items():
        chosen = {key for key in latest if prefix in (None, _prefix(key))}
        values = [latest[key] for key in chosen if latest[key].operation is Operation.PUT]
        stored = [entry for entry in entries if entry.key in chosen]
        assert (group.keys, group.deleted) == (len(values), len(chosen) - len(values))
        assert (group.entries, group.held) == (len(stored), sum(len(entry.value) for entry in stored))
        assert group.bytes == sum(len(entry.value) for entry in values)
        assert group.changed_today == len(chosen)
        times = [latest[key].created_ns for key in chosen]
        assert (group.oldest, group.newest) == (min(times), max(times))
        assert group.writes_a_day is None
    sizes = sorted(
        ((entry.size, key) for key, entry in latest.items() if entry.operation is Operation.PUT), reverse=True
    )
    assert found.largest == sizes[:2]
    assert set(found.prefixes) == {_prefix(key) for key in latest}


def _prefix(key: str) -> str:
    return {"a.b.c": "a.b", "a.b.d": "a.b", "a.x": "a", "solo": "", "b.c": "b"}[key]


async def test_statistics_of_an_empty_and_a_missing_bucket(client, bucket_name):
    bucket = await client.create_bucket(bucket_name)
    found = await statistics(bucket, tokens=1)
    assert (found.total, found.prefixes) == (KeyGroup(), {})
    with pytest.raises(BucketNotFound):
        await statistics(client.bucket(bucket_name + "x"))
    with pytest.raises(UsageError):
        await statistics(bucket, tokens=0)


@pytest.mark.parametrize("history", [1, 3])
async def test_a_list_that_starts_over_is_counted_once(client, raw, bucket_name, history):
    bucket = await client.create_bucket(bucket_name, history=history)
    await bucket.put_many((f"k{number:05}", b"v") for number in range(COUNT))
    lost = []

    def lose(count: int) -> None:
        for name in raw.api(f"CONSUMER.NAMES.KV_{bucket_name}")["consumers"] or [] if not lost else []:
            lost.append(raw.api(f"CONSUMER.DELETE.KV_{bucket_name}.{name}"))

    total = (await statistics(bucket, advance=lose)).total
    assert lost
    assert (total.keys, total.entries, total.held) == (COUNT, COUNT, COUNT)


async def test_too_many_prefixes_are_refused(client, bucket_name, monkeypatch):
    monkeypatch.setattr(module, "MAX_PREFIXES", 2)
    bucket = await client.create_bucket(bucket_name)
    await bucket.put_many((key, b"") for key in ("a.x", "b.x", "c.x"))
    with pytest.raises(UsageError, match="more than 2 prefixes of 1 tokens"):
        await statistics(bucket, tokens=1)
    assert (await statistics(bucket)).total.keys == 3


async def test_memory_does_not_grow_with_the_keys(client, bucket_name):
    bucket = await client.create_bucket(bucket_name)
    await statistics(bucket)  # what is imported once
    peaks = []
    for count in (20_000, 80_000):  # both fill the window of the reading, whose share in the peak depends on timing
        await bucket.put_many((f"k{number:06}", b"v") for number in range(count))
        tracemalloc.start()
        assert (await statistics(bucket)).total.keys == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 30 * 60_000, peaks  # a held key takes more than 60 bytes


def test_rate_needs_an_hour_of_history():
    assert KeyGroup(entries=10, first=0, newest=HOUR - 1).writes_a_day is None
    rate = KeyGroup(entries=25, first=0, newest=24 * HOUR).writes_a_day
    assert rate == timedelta(days=1) / timedelta(hours=1)
