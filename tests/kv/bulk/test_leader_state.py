"""What a bucket holds for many keys at once, never staler than its leader says."""

from __future__ import annotations

from kvctl.jetstream import multi_get
from kvctl.kv.bulk.bulk_writer import target_of
from kvctl.kv.bulk.leader_state import Current
from kvctl.kv.bulk.rows import Row


def rows(count: int) -> list[Row]:
    return [Row(n, f"k.{n}", b"") for n in range(count)]


async def revisions(current: Current, count: int) -> dict[str, int]:
    found = await current.last(rows(count))
    return {key: message.sequence if message else 0 for key, message in found.items()}


async def test_keys_that_are_there_and_that_are_not(client, bucket_name, raw):
    await client.create_bucket(bucket_name)
    target = await target_of(client.bucket(bucket_name))
    current = Current(target.binding, target.info)
    assert await revisions(current, 50) == {f"k.{n}": 0 for n in range(50)}
    raw.put(bucket_name, "other", b"")
    assert await revisions(current, 50) == {f"k.{n}": 0 for n in range(50)}
    for n in range(20):
        raw.put(bucket_name, f"k.{n}", b"")
    assert await revisions(current, 50) == {f"k.{n}": n + 2 if n < 20 else 0 for n in range(50)}
    raw.api(f"STREAM.PURGE.KV_{bucket_name}")
    assert await revisions(current, 50) == {f"k.{n}": 0 for n in range(50)}


async def test_one_request_is_enough(client, bucket_name, raw, monkeypatch):
    await client.create_bucket(bucket_name)
    raw.put(bucket_name, "other", b"")
    target = await target_of(client.bucket(bucket_name))
    asked: list[int] = []

    async def counted(api: object, stream: str, subjects: list[str], *, leader: bool) -> dict[str, None]:
        asked.append(len(subjects))
        return {}

    monkeypatch.setattr(multi_get, "last_of_each", counted)
    assert len(await revisions(Current(target.binding, target.info), 50)) == 50
    assert asked == [0]


async def test_a_mirror_that_lags_is_not_believed(client, bucket_name, raw):
    """It answers half of the direct gets, and knows nothing of what was just written."""
    await client.create_bucket(bucket_name)
    raw.put(bucket_name, "other", b"")
    raw.create_stream(
        f"M{bucket_name}",
        mirror={"name": f"KV_{bucket_name}"},
        mirror_direct=True,
        allow_direct=True,
        max_msgs_per_subject=1,
    )
    target = await target_of(client.bucket(bucket_name))
    current = Current(target.binding, target.info)
    for count in range(1, 60):
        revision = raw.put(bucket_name, f"k.{count - 1}", b"")
        assert (await revisions(current, 60))[f"k.{count - 1}"] == revision
