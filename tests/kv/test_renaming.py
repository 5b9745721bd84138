"""Buckets whose stream stores keys under other names, as a `subject_transform` does: a key is not found after a put."""

import json
from datetime import timedelta

import pytest

import kvctl
from kvctl import Bucket, Transaction
from kvctl.errors import KeyNotFound, RefusedError
from kvctl.kv.lease import acquire
from tests.cli.conftest import run_process
from tests.support.raw import RawClient


@pytest.fixture
async def bucket(raw, client, bucket_name):
    """Stores `k` as `renamed.k`."""
    rename = {"src": f"$KV.{bucket_name}.>", "dest": f"$KV.{bucket_name}.renamed.>"}
    made = raw.create_bucket(bucket_name, subject_transform=rename, allow_atomic=True, allow_msg_ttl=True)
    assert "error" not in made
    return client.bucket(bucket_name)


def stored(raw: RawClient, bucket: Bucket) -> int:
    """Messages in the stream."""
    return int(raw.api(f"STREAM.INFO.KV_{bucket.name}")["state"]["messages"])


async def put_many(bucket: Bucket) -> object:
    return await bucket.put_many([("k", b"v")])


async def commit(bucket: Bucket) -> object:
    return await bucket.commit(Transaction().put("k", b"v"))


async def lease(bucket: Bucket) -> object:
    return await acquire(bucket, "k", "me", timedelta(seconds=2), wait=timedelta(0))


async def put_after_a_look(bucket: Bucket) -> object:
    await bucket.locate()
    return await bucket.put("k", b"v")


@pytest.mark.parametrize("write", [put_many, commit, lease, put_after_a_look])
async def test_writes_to_a_renaming_stream_are_refused(bucket, raw, write):
    with pytest.raises(RefusedError, match=rf"stores `\$KV.{bucket.name}.>` as .*nothing was written") as caught:
        await write(bucket)
    assert f"stream edit KV_{bucket.name} --set subject_transform=null" in str(caught.value.hint)
    assert stored(raw, bucket) == 0


async def test_reads_of_a_renaming_stream_show_what_it_stores(bucket, raw):
    raw.put(bucket.name, "k", b"v")
    assert [key async for key in bucket.keys()] == ["renamed.k"]
    assert (await bucket.get("renamed.k")).value == b"v"
    with pytest.raises(KeyNotFound) as caught:
        await bucket.get("k")
    assert "a key is not found after a put" in str(caught.value.hint)


async def test_commands_name_a_renaming_stream_until_it_is_mended(bucket, raw, server):
    def run(*words: str, stdin: str | None = None) -> tuple[int, str, str]:
        result = run_process(*words, "-s", server.url, **({"stdin": stdin.encode()} if stdin else {}))
        return result.exit_code, result.out, result.err

    code, _, warning = run("bucket", "show", bucket.name)
    assert (code, f"warning: Stream `KV_{bucket.name}` stores" in warning) == (0, True), warning
    code, _, error = run("load", bucket.name, "-", stdin=json.dumps({"key": "k", "value": "v"}) + "\n")
    assert (code, "nothing was written" in error) == (1, True), error
    assert run("stream", "edit", f"KV_{bucket.name}", "--set", "subject_transform=null")[0] == 0
    assert "stores" not in run("bucket", "show", bucket.name)[2]
    async with kvctl.connect(server.url) as client:
        await client.bucket(bucket.name).put_many([("k", b"v")])
        assert (await client.bucket(bucket.name).get("k")).value == b"v"
