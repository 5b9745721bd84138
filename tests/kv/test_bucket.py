"""One key at a time: what is read, what is written, and on what condition."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import kvctl
from kvctl import Bucket, Operation
from kvctl.errors import (
    BucketNotFound,
    KeyExists,
    KeyNotFound,
    ReadOnly,
    RefusedError,
    RevisionNotFound,
    ServerError,
    UsageError,
    WrongRevision,
)
from tests.support.waiting import until_async

SECOND = timedelta(seconds=1)


@pytest.fixture
async def bucket(client, bucket_name):
    """An empty bucket that keeps five revisions of each key."""
    return await client.create_bucket(bucket_name, history=5)


@pytest.fixture
async def expiring(client, bucket_name):
    """An empty bucket whose keys may have a ttl, and leave markers. With more history the server makes it longer."""
    return await client.create_bucket(bucket_name, marker_ttl=60 * SECOND)


async def gone(bucket: Bucket, key: str) -> None:
    """Wait until the key has expired."""

    async def expired() -> bool:
        entry = await bucket.last_entry(key)
        return entry is None or entry.operation is not Operation.PUT

    await until_async(expired, what=f"expiry of `{key}`")


class TestGet:
    @pytest.mark.parametrize("value", [b"", b"x", b"\x00\xff\r\n", b"x" * 100_000])
    async def test_gives_the_exact_bytes(self, bucket, value):
        revision = await bucket.put("a.b", value)
        entry = await bucket.get("a.b")
        assert (entry.bucket, entry.key, entry.value, entry.revision) == (bucket.name, "a.b", value, revision)
        assert (entry.operation, entry.reason) == (Operation.PUT, None)
        assert abs(entry.created.timestamp() - time.time()) < 60

    async def test_a_key_never_written_is_not_found(self, bucket):
        with pytest.raises(KeyNotFound, match="`nope` is not in bucket") as caught:
            await bucket.get("nope")
        assert caught.value.exit_code == 3
        assert await bucket.last_entry("nope") is None

    @pytest.mark.guarantee("reading-5")
    async def test_a_deleted_or_purged_key_is_not_found_and_the_hint_says_when(self, bucket):
        for key, remove, word in (("d", bucket.delete, "deleted"), ("p", bucket.purge, "purged")):
            await bucket.put(key, b"x")
            revision = await remove(key)
            with pytest.raises(KeyNotFound) as caught:
                await bucket.get(key)
            assert f"was {word} just now (" in str(caught.value.hint)
            assert f"revision {revision}" in str(caught.value.hint)

    async def test_a_missing_bucket_is_not_found_and_a_near_one_named(self, client, unique):
        name = unique("Invoices")
        await client.create_bucket(name)
        with pytest.raises(BucketNotFound, match=f"`{name}x` does not exist") as caught:
            await client.bucket(f"{name}x").get("k")
        assert f"Did you mean `{name}`?" in str(caught.value.hint)

    async def test_a_revision_gives_the_value_it_had(self, bucket):
        first, second = await bucket.put("k", b"1"), await bucket.put("k", b"2")
        other = await bucket.put("other", b"3")
        for leader in (False, True):
            assert (await bucket.get("k", revision=first, leader=leader)).value == b"1"
            assert (await bucket.get("k", revision=second, leader=leader)).value == b"2"
            for wrong in (other, other + 100):
                with pytest.raises(RevisionNotFound):
                    await bucket.get("k", revision=wrong, leader=leader)
        with pytest.raises(UsageError):
            await bucket.get("k", revision=0)

    async def test_revision_of_a_deletion_is_not_a_value(self, bucket):
        await bucket.put("k", b"1")
        with pytest.raises(KeyNotFound):
            await bucket.get("k", revision=await bucket.delete("k"))

    async def test_a_prefix_of_a_key_is_another_key(self, bucket):
        await bucket.put("a.b", b"x")
        with pytest.raises(KeyNotFound):
            await bucket.get("a")

    async def test_headers_that_look_like_the_servers_change_nothing(self, raw, bucket):
        forged = {
            "Nats-Sequence": "999",
            "Nats-Subject": "$KV.X.y",
            "Nats-Stream": "X",
            "Nats-Time-Stamp": "x",
            "Mine": "1",
        }
        revision = raw.put(bucket.name, "k", b"x", forged)  # what a republished message looks like
        for entry in (await bucket.get("k"), await bucket.get("k", leader=True), *await bucket.get_many(["k", "k"])):
            assert (entry.key, entry.revision, entry.headers) == ("k", revision, {"Mine": "1"})


class TestPut:
    @pytest.mark.guarantee("writing-9")
    async def test_a_value_over_the_servers_limit_is_refused_before_it_is_sent(self, bucket, client):
        limit = client.connection.max_payload
        with pytest.raises(UsageError, match=f"the server's limit is {limit}"):
            await bucket.put("k", b"x" * (limit + 1))
        with pytest.raises(UsageError):  # with its headers it is too large
            await bucket.create("k", b"x" * limit)
        await bucket.put("k", b"x" * limit)
        assert client.connection.epoch == 0

    async def test_a_value_over_the_buckets_limit_is_refused_by_the_server(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name, max_value_size=100)
        with pytest.raises(ServerError) as caught:
            await bucket.put("k", b"x" * 101)
        assert caught.value.err_code == 10054
        assert "--max-value-size" in str(caught.value.hint)

    async def test_a_full_bucket_says_so_and_still_takes_what_is_there(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name, max_bytes=2000)
        await bucket.put("k", b"x" * 1000)
        with pytest.raises(ServerError) as caught:
            await bucket.put("other", b"x" * 1000)
        assert caught.value.err_code == 10077
        assert "full" in str(caught.value.hint)
        await bucket.put("k", b"y" * 1000)
        await bucket.delete("k")

    @pytest.mark.guarantee("writing-16")
    async def test_a_key_too_long_to_be_asked_for_is_refused(self, bucket):
        key = "k" * 3800
        await bucket.put(key, b"x")
        assert (await bucket.get(key)).value == b"x"
        assert [name async for name in bucket.keys(key)] == [key]
        with pytest.raises(UsageError, match="exceeds the protocol"):
            await bucket.put("k" * 4000, b"x")

    @pytest.mark.guarantee("writing-8")
    @pytest.mark.parametrize("key", ["a.*", ">", "a b", "_kv.x", "a..b", "a\n"])
    async def test_invalid_key_is_refused_before_it_is_sent(self, bucket, key):
        writes = (
            bucket.put(key, b""),
            bucket.create(key, b""),
            bucket.update(key, b"", 1),
            bucket.delete(key),
            bucket.purge(key),
        )
        for attempt in (*writes, bucket.get(key), bucket.get_many([key]), bucket.put_many([(key, b"")])):
            with pytest.raises(UsageError):
                await attempt
        assert (await bucket.status()).values == 0

    async def test_a_handle_finds_a_bucket_made_after_it(self, client, bucket_name):
        handle = client.bucket(bucket_name)
        with pytest.raises(BucketNotFound):
            await handle.put("k", b"1")
        await client.create_bucket(bucket_name)
        assert await handle.put("k", b"1") == 1


class TestCreate:
    @pytest.mark.guarantee("writing-5")
    async def test_create_writes_a_new_key_and_refuses_a_live_one(self, bucket):
        revision = await bucket.create("k", b"1")
        with pytest.raises(KeyExists, match="`k` already exists") as caught:
            await bucket.create("k", b"2")
        assert (caught.value.revision, caught.value.exit_code) == (revision, 4)
        assert (await bucket.get("k")).value == b"1"

    @pytest.mark.parametrize("remove", [Bucket.delete, Bucket.purge])
    async def test_succeeds_over_a_deletion(self, bucket, remove):
        await bucket.put("k", b"1")
        await remove(bucket, "k")  # type: ignore[misc]
        await bucket.create("k", b"2")
        assert (await bucket.get("k")).value == b"2"

    @pytest.mark.guarantee("writing-5")
    async def test_succeeds_over_an_expired_keys_marker(self, expiring):
        await expiring.create("k", b"1", ttl=SECOND)
        await gone(expiring, "k")
        marker = await expiring.last_entry("k")
        assert (marker.operation, marker.reason) == (Operation.PURGE, "MaxAge")
        assert await expiring.create("k", b"2") > marker.revision

    async def test_succeeds_over_a_max_age_marker(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name, ttl=SECOND, marker_ttl=60 * SECOND)
        await bucket.put("k", b"1")
        await gone(bucket, "k")
        assert (await bucket.last_entry("k")) is not None
        await bucket.create("k", b"2")

    async def test_succeeds_once_the_key_has_expired_without_a_marker(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name, ttl=SECOND)
        await bucket.create("k", b"1")
        await gone(bucket, "k")
        await bucket.create("k", b"2")

    @pytest.mark.guarantee("writing-5", by="race")
    async def test_one_of_many_concurrent_creates_succeeds(self, bucket):
        results = await asyncio.gather(
            *(bucket.create("k", b"%d" % number) for number in range(20)), return_exceptions=True
        )
        won = [result for result in results if isinstance(result, int)]
        assert len(won) == 1
        assert {type(result) for result in results if result not in won} == {KeyExists}


class TestUpdate:
    @pytest.mark.guarantee("writing-6")
    async def test_succeeds_on_the_last_revision_only(self, bucket):
        first = await bucket.put("k", b"1")
        second = await bucket.update("k", b"2", first)
        with pytest.raises(WrongRevision, match=f"`k` is at revision {second}, not {first}") as caught:
            await bucket.update("k", b"3", first)
        assert (caught.value.found, caught.value.exit_code) == (second, 4)

    async def test_zero_means_never_written(self, bucket):
        revision = await bucket.update("k", b"1", 0)
        with pytest.raises(WrongRevision) as caught:
            await bucket.update("k", b"2", 0)
        assert caught.value.found == revision

    async def test_a_deletion_counts_as_a_revision(self, bucket):
        first = await bucket.put("k", b"1")
        marker = await bucket.delete("k")
        with pytest.raises(WrongRevision) as caught:
            await bucket.update("k", b"2", first)
        assert caught.value.found == marker
        assert await bucket.update("k", b"2", marker) == marker + 1

    async def test_a_key_never_written_has_no_revision(self, bucket):
        with pytest.raises(WrongRevision) as caught:
            await bucket.update("k", b"1", 7)
        assert caught.value.found == 0

    @pytest.mark.guarantee("writing-7", by="race")
    async def test_writers_on_a_cluster_never_hear_that_it_is_busy(self, cluster, unique):
        async with kvctl.connect(cluster.contexts["cluster"]) as client:
            bucket = await client.create_bucket(unique(), replicas=3, history=64)
            await bucket.put("n", b"0")
            lost: list[tuple[int, int | None]] = []

            async def count(times: int) -> None:
                while times:
                    entry = await bucket.get("n", leader=True)
                    try:
                        await bucket.update("n", b"%d" % (int(entry.value) + 1), entry.revision)
                        times -= 1
                    except WrongRevision as error:
                        lost.append((entry.revision, error.found))

            await asyncio.gather(*(count(8) for _ in range(6)))
            assert (await bucket.get("n", leader=True)).value == b"48"
            assert lost  # else they never met
            assert all(found is not None and found > expected for expected, found in lost)


class TestDelete:
    async def test_keeps_the_history_and_marks_its_end(self, bucket):
        await bucket.put("k", b"1")
        revision = await bucket.delete("k")
        entries = [entry async for entry in bucket.history("k")]
        assert [(entry.operation, entry.value) for entry in entries] == [(Operation.PUT, b"1"), (Operation.DEL, b"")]
        assert entries[-1].revision == revision == await bucket.last_revision("k")

    async def test_delete_writes_nothing_for_a_missing_key(self, bucket):
        with pytest.raises(KeyNotFound, match="`k` is not in bucket"):
            await bucket.delete("k")
        await bucket.put("k", b"1")
        marker = await bucket.delete("k")
        with pytest.raises(KeyNotFound):
            await bucket.delete("k")
        assert (await bucket.status()).last_revision == marker

    @pytest.mark.guarantee("writing-6")
    async def test_on_condition(self, bucket):
        first = await bucket.put("k", b"1")
        second = await bucket.put("k", b"2")
        with pytest.raises(WrongRevision) as caught:
            await bucket.delete("k", revision=first)
        assert caught.value.found == second
        assert await bucket.delete("k", revision=second) == second + 1


class TestPurge:
    async def test_erases_the_history_but_its_own_mark(self, bucket):
        for value in (b"1", b"2"):
            await bucket.put("k", value)
        await bucket.put("other", b"x")
        await bucket.purge("k")
        assert [entry.operation async for entry in bucket.history("k")] == [Operation.PURGE]
        assert (await bucket.get("other")).value == b"x"

    async def test_purge_of_a_deleted_key(self, bucket):
        await bucket.put("k", b"1")
        await bucket.delete("k")
        await bucket.purge("k")
        assert [entry.operation async for entry in bucket.history("k")] == [Operation.PURGE]

    async def test_purge_of_a_key_never_written_writes_nothing(self, bucket):
        with pytest.raises(KeyNotFound):
            await bucket.purge("k")
        assert (await bucket.status()).values == 0

    @pytest.mark.guarantee("writing-6")
    async def test_on_condition(self, bucket):
        revision = await bucket.put("k", b"1")
        with pytest.raises(WrongRevision):
            await bucket.purge("k", revision=revision + 1)
        await bucket.purge("k", revision=revision)

    async def test_its_mark_goes_with_its_ttl(self, expiring):
        await expiring.put("k", b"1")
        await expiring.purge("k", ttl=SECOND)

        async def nothing_is_left() -> bool:
            return await expiring.last_entry("k") is None

        await until_async(nothing_is_left, what="end of the marker of `k`")


class TestTtl:
    @pytest.mark.guarantee("reading-5")
    async def test_a_key_lives_as_long_as_it_was_given(self, expiring):
        await expiring.create("long", b"1", ttl=3600 * SECOND)
        assert (await expiring.get("long")).ttl == 3600 * SECOND
        await expiring.create("k", b"1", ttl=SECOND)
        await gone(expiring, "k")
        with pytest.raises(KeyNotFound) as caught:
            await expiring.get("k")
        assert str(caught.value.hint).startswith("It expired just now (")

    @pytest.mark.parametrize("ttl", [timedelta(), timedelta(milliseconds=999), -SECOND])
    async def test_less_than_a_second_is_refused(self, expiring, ttl):
        for attempt in (expiring.create("k", b"1", ttl=ttl), expiring.update("k", b"1", 0, ttl=ttl)):
            with pytest.raises(UsageError, match="at least 1 second"):
                await attempt

    async def test_parts_of_a_second_are_kept(self, expiring):
        await expiring.create("k", b"1", ttl=timedelta(seconds=90.5))
        assert (await expiring.get("k")).ttl == timedelta(seconds=90.5)

    async def test_a_bucket_without_them_says_how_to_have_them(self, bucket):
        with pytest.raises(ServerError) as caught:
            await bucket.create("k", b"1", ttl=60 * SECOND)
        assert caught.value.err_code == 10166
        assert "--marker-ttl 1s`" in str(caught.value.hint)


class TestRevert:
    async def test_revert_writes_the_old_value_again(self, bucket):
        first = await bucket.put("k", b"1")
        await bucket.put("k", b"2")
        assert await bucket.revert("k", first) == first + 2
        assert (await bucket.get("k")).value == b"1"

    async def test_brings_a_deleted_key_back(self, bucket):
        first = await bucket.put("k", b"1")
        await bucket.delete("k")
        await bucket.revert("k", first)
        assert (await bucket.get("k")).value == b"1"

    async def test_revert_to_an_evicted_revision_writes_nothing(self, bucket):
        revision = await bucket.put("k", b"1")
        with pytest.raises(RevisionNotFound):
            await bucket.revert("k", revision + 5)
        assert await bucket.last_revision("k") == revision


class TestReadOnly:
    @pytest.mark.guarantee("writing-11")
    async def test_read_only_handle_refuses_every_write_before_it_is_sent(self, client, bucket):
        await bucket.put("k", b"1")
        handle = client.bucket(bucket.name, read_only=True)
        assert (await handle.get("k")).value == b"1"
        for attempt in (
            handle.put("k", b""),
            handle.create("n", b""),
            handle.update("k", b"", 1),
            handle.delete("k"),
            handle.purge("k"),
            handle.put_many([("k", b"")]),
            handle.delete_literal("k"),
            handle.revert("k", 1),
            handle.destroy(),
        ):
            with pytest.raises(ReadOnly, match="read-only"):
                await attempt
        assert (await bucket.status()).last_revision == 1

    async def test_read_only_connection_refuses_every_write(self, server, bucket):
        async with kvctl.connect(server.url, read_only=True) as reader:
            with pytest.raises(ReadOnly):
                await reader.bucket(bucket.name).put("k", b"")
            with pytest.raises(ReadOnly):
                await reader.create_bucket("X")
            with pytest.raises(ReadOnly):
                await reader.delete_bucket(bucket.name)


class TestWithoutDirectGet:
    """Buckets as nats-py makes them: the direct API answers 503."""

    @pytest.fixture
    async def plain(self, raw, client, bucket_name):
        raw.create_bucket(bucket_name, allow_direct=False, max_msgs_per_subject=5)
        return client.bucket(bucket_name)

    async def test_reads_go_to_the_leader(self, plain):
        first = await plain.put("k", b"1")
        await plain.put("k", b"2")
        assert (await plain.get("k")).value == b"2"
        assert (await plain.get("k", revision=first)).value == b"1"
        assert await plain.last_entry("nope") is None
        with pytest.raises(KeyNotFound):
            await plain.get("nope")

    async def test_many_keys_and_listings(self, plain):
        await plain.put_many((f"k.{number}", b"%d" % number) for number in range(300))
        found = await plain.get_many([f"k.{number}" for number in range(301)])
        assert [entry and entry.value for entry in found] == [*(b"%d" % number for number in range(300)), None]
        assert len([key async for key in plain.keys("k.>")]) == 300
        assert [len(batch) async for batch in plain.get_matching("k.1", "k.2")] == [2]


class TestPutWhile:
    async def test_put_while_writes_only_while_the_other_key_is_unchanged(self, bucket):
        revision = await bucket.put("fence", b"1")
        made = await bucket.put_while("key", b"v", "fence", revision)
        assert (await bucket.get("key")).revision == made
        await bucket.put("fence", b"2")
        with pytest.raises(WrongRevision):
            await bucket.put_while("key", b"w", "fence", revision)
        assert (await bucket.get("key")).value == b"v"
        await bucket.put_while("other", b"v", "never-written", 0)


def _listed(listing: Callable[[Bucket], Any]) -> Callable[[Bucket], Any]:
    async def read(bucket: Bucket) -> list[Any]:
        return [item async for item in listing(bucket)]

    return read


USES: list[Callable[[Bucket], Any]] = [
    lambda bucket: bucket.put("k", b""),
    lambda bucket: bucket.create("k", b""),
    lambda bucket: bucket.delete("k"),
    lambda bucket: bucket.get("k"),
    lambda bucket: bucket.get("k", leader=True),
    lambda bucket: bucket.get_many(["k", "l"]),
    _listed(lambda bucket: bucket.keys()),
    _listed(lambda bucket: bucket.history()),
    _listed(lambda bucket: bucket.entries()),
    lambda bucket: bucket.watch(),
    lambda bucket: bucket.as_of(1),
]


async def test_every_use_of_a_missing_bucket_is_bucket_not_found(client, bucket_name):
    more: list[Callable[[Bucket], Any]] = [
        lambda bucket: bucket.update("k", b"", 3),
        lambda bucket: bucket.purge("k"),
        lambda bucket: bucket.put_many([("k", b"")]),
        lambda bucket: bucket.get_many(["k", "l"], leader=True),
        _listed(lambda bucket: bucket.get_matching("*")),
        lambda bucket: bucket.as_of("-15m"),
    ]
    for use in [*USES, *more]:
        with pytest.raises(BucketNotFound):
            await use(client.bucket(bucket_name))


class TestAStreamThatIsNoBucket:
    """It is named like one, and takes other subjects."""

    @pytest.mark.parametrize("subject", ["foo", "foo.>", "$KV.other.>", "$KV"])
    async def test_every_use_names_it(self, client, raw, bucket_name, subject):
        subject = subject if subject.startswith("$") else f"{bucket_name}.{subject}"
        raw.create_stream(f"KV_{bucket_name}", subjects=[subject], allow_direct=True, storage="memory")
        for use in USES:
            with pytest.raises(RefusedError, match=f"`KV_{bucket_name}` is not a bucket"):
                await use(client.bucket(bucket_name))
        raw.api(f"STREAM.DELETE.KV_{bucket_name}", {})

    async def test_one_that_takes_some_of_the_keys_is_read(self, client, raw, bucket_name):
        raw.create_stream(f"KV_{bucket_name}", subjects=[f"$KV.{bucket_name}.a.*"], storage="memory")
        bucket = client.bucket(bucket_name)
        assert await bucket.put("a.b", b"1") == 1
        assert [key async for key in bucket.keys()] == ["a.b"]
