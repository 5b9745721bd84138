"""The finding on keys that servers leave out of listings."""

from kvctl.doctor import unlisted
from kvctl.doctor.finding import ERROR
from kvctl.jetstream import streams
from kvctl.jetstream.direct import direct_get


async def test_keys_with_byte_7f_are_reported_with_their_revision(raw, client, bucket_name):
    stream = f"KV_{bucket_name}"
    raw.create_bucket(bucket_name, max_msgs_per_subject=2, deny_delete=False)
    for key in ("a", "a", "b", "b"):
        raw.put(bucket_name, key, b"v")
    assert await unlisted.examine(client.api, {stream: await streams.info(client.api, stream)}) == []
    for key in ("a\x7fb", "\x7f", "c"):
        raw.put(bucket_name, key, b"v")
    bucket = client.bucket(bucket_name)
    assert [key async for key in bucket.keys()] == ["a", "b", "c"]  # if servers list them, the finding can go
    assert [entry.key async for entry in bucket.history()] == ["a", "a", "b", "b", "a\x7fb", "\x7f", "c"]
    [found] = await unlisted.examine(client.api, {stream: await streams.info(client.api, stream)})
    assert (found.severity, found.check, found.subject) == (ERROR, "unlisted-keys", bucket_name)
    assert found.evidence.startswith(r"2 of its keys have the byte 0x7f, the first is `a\x7fb`")
    assert f"`kvctl stream get {stream} 5`" in found.remedy
    message = await direct_get.from_leader(client.api, stream, seq=5)
    assert message is not None
    assert message.subject == f"$KV.{bucket_name}.a\x7fb"
    for revision in (5, 6):
        await streams.delete_message(client.api, stream, revision)
    assert await unlisted.examine(client.api, {stream: await streams.info(client.api, stream)}) == []
