"""Lists of last entries in streams with history: the server drops what does not fit into a pull's bytes."""

import os

import pytest

import kvctl

LARGE = os.urandom(450_000).hex().encode()


@pytest.mark.parametrize(("small", "large"), [(0, 40), (3000, 110)])
async def test_none_is_missing_however_sizes_are_mixed(server, raw, unique, small, large):
    name = unique()
    raw.create_bucket(name, max_msgs_per_subject=5)
    for number in range(small):
        raw.publish(f"$KV.{name}.small.{number}")
    for number in range(large):
        raw.put(name, f"large.{number}", LARGE)
    async with kvctl.connect(server.url) as client:
        bucket = client.bucket(name)
        listed = [entry.revision async for entry in bucket.entries()]
        async with await bucket.watch(follow=False) as watcher:
            watched = [item.revision async for item in watcher if isinstance(item, kvctl.Entry)]
    assert listed == watched == list(range(1, small + large + 1))
    raw.api(f"STREAM.DELETE.KV_{name}")
