"""Checkout of a commit to a live bucket, and recording a bucket as a commit."""

import asyncio
import random
from datetime import timedelta

import pytest

import kvctl
from kvctl.errors import BucketNotFound, ConflictError, KeyNotFound, ReadOnly, UnreachableError, UsageError
from kvctl.jetstream.consumers import ordered_consumer, server_consumer
from kvctl.kv.bucket import Bucket
from kvctl.versions.commits import NothingToCommit
from kvctl.versions.ref_diff import ChangeKind
from kvctl.versions.repository import Repository
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.transfer import checkout, record_bucket
from tests.support.contents import contents


@pytest.fixture
async def repository():
    made = Repository(MemoryStore(), author="tests")
    await made.init()
    return made


@pytest.fixture(params=["atomic", "plain"])
async def bucket(request, client, bucket_name):
    """A bucket whose changes go in one batch, and one whose changes go key by key."""
    return await client.create_bucket(bucket_name, history=3, atomic=request.param == "atomic")


async def committed(repository: Repository, content: dict[str, bytes]) -> str:
    await repository.put_many("main", {**dict.fromkeys(await names(repository)), **content})
    return (await repository.commit("main", "content")).id


async def names(repository: Repository) -> list[str]:
    return [entry.key for entry in await repository.entries("main")]


async def roll_out(repository: Repository, ref: str, bucket: Bucket) -> checkout.CheckoutResult:
    return await checkout.apply(await checkout.plan(repository, ref, bucket), bucket)


async def test_lost_server_ends_the_read(own_server, monkeypatch):
    monkeypatch.setattr(ordered_consumer, "PATIENCE_S", 0.5)
    monkeypatch.setattr(server_consumer, "HEARTBEAT_S", 0.2)
    async with kvctl.connect(kvctl.Context(url=own_server.url, timeout=timedelta(milliseconds=300))) as client:
        bucket = await client.create_bucket("B")
        for number in range(20):  # more than is asked for at once
            await bucket.put(f"k{number}", bytes(900_000))

        def keep(_: bytes) -> None:
            own_server.kill()

        with pytest.raises(UnreachableError):
            await asyncio.wait_for(record_bucket.read_bucket(bucket, keep), 60)


async def test_checkout_refuses_staged_changes(repository, client):
    with pytest.raises(UsageError, match="a commit is required"):
        await checkout.plan(repository, "main$", client.bucket("B"))


async def test_checkout_makes_the_bucket_equal_to_the_commit(repository, bucket):
    before = await committed(repository, {"a": b"1", "b": b"2", "c.d": b""})
    after = await committed(repository, {"a": b"1", "b": b"3", "e": b"\xff" * 9000})
    await bucket.put("stray", b"x")
    for commit in (before, after, before):
        done = await roll_out(repository, commit, bucket)
        assert not done.changed_meanwhile
        assert await contents(bucket) == {entry.key: entry.value for entry in await repository.entries(commit)}


async def test_checkout_writes_only_differing_keys(repository, bucket):
    commit = await committed(repository, {"same": b"1", "changed": b"new", "added": b"a"})
    same = await bucket.put("same", b"1")
    changed, gone = await bucket.put("changed", b"old"), await bucket.put("gone", b"g")
    rollout = await checkout.plan(repository, commit, bucket)
    assert [(step.kind, step.key, step.revision) for step in rollout.steps] == [
        (ChangeKind.ADDED, "added", 0),
        (ChangeKind.CHANGED, "changed", changed),
        (ChangeKind.REMOVED, "gone", gone),
    ]
    assert (rollout.unchanged, rollout.revision) == (1, gone)
    await checkout.apply(rollout, bucket)
    assert (await bucket.get("same")).revision == same
    assert not (await checkout.plan(repository, commit, bucket)).steps


async def test_checkout_restores_a_deleted_key_and_keeps_its_history(repository, bucket):
    commit = await committed(repository, {"k": b"v"})
    await bucket.put("k", b"old")
    await bucket.delete("k")
    await roll_out(repository, commit, bucket)
    assert [entry.value for entry in [entry async for entry in bucket.history("k")]] == [b"old", b"", b"v"]


@pytest.mark.guarantee("versions-16", by="race")
@pytest.mark.parametrize("change", ["overwritten", "deleted", "created"])
async def test_concurrently_changed_keys_are_reported_and_left_unchanged(repository, bucket, change):
    commit = await committed(repository, {"a": b"1", "k": b"wanted"})
    if change != "created":
        await bucket.put("k", b"before")
    rollout = await checkout.plan(repository, commit, bucket)
    await (bucket.delete("k") if change == "deleted" else bucket.put("k", b"meanwhile"))
    done = await checkout.apply(rollout, bucket)
    assert done.changed_meanwhile == ["k"]
    expected = {} if change == "deleted" else {"k": b"meanwhile"}
    # One batch is carried out whole or not at all; key by key, the others are done.
    assert await contents(bucket) == expected | ({} if done.at_once else {"a": b"1"})


async def test_equal_concurrent_write_is_not_a_conflict(repository, bucket):
    commit = await committed(repository, {"k": b"wanted"})
    rollout = await checkout.plan(repository, commit, bucket)
    await bucket.put("k", b"wanted")
    done = await checkout.apply(rollout, bucket)
    assert (done.changed_meanwhile, done.done_by_others) == ((["k"], []) if done.at_once else ([], ["k"]))
    assert (done.done, done.written_by_others) == (0, [])
    assert await contents(bucket) == {"k": b"wanted"}


async def test_thousands_of_changes_are_applied(repository, bucket):
    commit = await committed(repository, {f"k.{number}": b"%d" % number for number in range(2500)})
    done = await roll_out(repository, commit, bucket)
    assert (done.done, done.at_once) == (2500, False)
    assert len(await contents(bucket)) == 2500


async def test_plan_names_keys_that_lose_a_ttl_or_headers(client, repository, bucket_name):
    bucket = await client.create_bucket(bucket_name, marker_ttl=timedelta(minutes=1))
    commit = await committed(repository, {"changed": b"new", "same": b"1"})
    for key in ("changed", "same"):
        await bucket.create(key, b"1", ttl=timedelta(hours=1))
    rollout = await checkout.plan(repository, commit, bucket)
    assert rollout.adorned == ["changed"]


async def test_non_conforming_keys_stay(repository, bucket, raw):
    raw.publish(f"$KV.{bucket.name}.né", b"x")
    commit = await committed(repository, {"k": b"v"})
    rollout = await checkout.plan(repository, commit, bucket)
    assert [step.key for step in rollout.steps] == ["k"]
    assert len(rollout.foreign) == 1


async def test_checkout_refuses_a_missing_bucket_and_a_read_only_handle(client, repository, bucket):
    with pytest.raises(BucketNotFound):
        await checkout.plan(repository, "main", client.bucket(f"{bucket.name}x"))
    with pytest.raises(ReadOnly):
        await checkout.plan(repository, "main", client.bucket(bucket.name, read_only=True))


@pytest.mark.guarantee("versions-16", by="fault")
async def test_interrupted_checkout_is_completed_by_the_next(client, repository, bucket_name):
    bucket = await client.create_bucket(bucket_name)
    commit = await committed(repository, {f"k.{number}": b"%d" % number for number in range(3000)})
    rollout = await checkout.plan(repository, commit, bucket)
    cut = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(checkout.apply(rollout, bucket, advance=lambda _: cut.done() or cut.set_result(None)))
    await cut
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert 0 < len(await contents(bucket)) <= 3000
    await roll_out(repository, commit, bucket)
    assert len(await contents(bucket)) == 3000


async def test_a_bucket_is_recorded_as_a_commit(repository, bucket):
    await committed(repository, {"gone": b"1"})
    await bucket.put("k", b"\xff" * 5000)
    revision = await bucket.put("a.b", b"")
    commit, _ = await record_bucket.record_bucket(repository, "main", bucket, "as it was", meta={"ticket": "7"})
    assert await repository.show("main") == commit
    assert commit.meta == {"bucket": bucket.name, "revision": str(revision), "ticket": "7"}
    assert {entry.key: entry.value for entry in await repository.entries("main")} == await contents(bucket)
    with pytest.raises(NothingToCommit):
        await record_bucket.record_bucket(repository, "main", bucket, "again")
    assert not (await checkout.plan(repository, "main", bucket)).steps


async def test_a_bucket_is_not_recorded_over_staged_changes(repository, bucket):
    await repository.put("main", "staged", b"1")
    with pytest.raises(ConflictError, match="staged"):
        await record_bucket.record_bucket(repository, "main", bucket, "as it was")
    assert list((await repository.status("main")).changes)


@pytest.mark.parametrize("history", [1, 8])
async def test_a_bucket_is_read_as_of_one_revision_under_writers(client, bucket_name, history):
    bucket = await client.create_bucket(bucket_name, history=history)
    written: list[tuple[int, str, bytes | None]] = []
    done = asyncio.Event()

    async def write(number: int) -> None:
        chosen = random.Random(number)
        while not done.is_set():
            key, value = f"k.{number}.{chosen.randrange(40)}", chosen.randbytes(8)
            if chosen.random() < 0.2 and any(key == other for _, other, _ in written[-500:]):
                try:
                    written.append((await bucket.delete(key), key, None))
                except KeyNotFound:
                    continue
            else:
                written.append((await bucket.put(key, value), key, value))

    writers = [asyncio.create_task(write(number)) for number in range(8)]
    found = [await record_bucket.read_bucket(bucket, bytes) for _ in range(10)]
    done.set()
    await asyncio.gather(*writers)
    assert found[0].revision < found[-1].revision
    for one in found:
        expected: dict[str, bytes] = {}
        for revision, key, value in sorted(written, key=lambda item: item[0]):
            if revision > one.revision:
                break
            if value is None:
                expected.pop(key, None)
            else:
                expected[key] = value
        assert {key: value for key, (_, value) in one.keys.items()} == expected


@pytest.mark.guarantee("versions-16")
async def test_key_created_after_the_plan_is_reported_and_left(repository, bucket):
    commit = await committed(repository, {"a": b"1", "b": b"1"})
    rollout = await checkout.plan(repository, commit, bucket)
    await bucket.put("theirs", b"1")
    done = await checkout.apply(rollout, bucket)
    assert (done.done, done.changed_meanwhile, done.written_by_others) == (2, [], ["theirs"])
    assert (await contents(bucket)).keys() == {"a", "b", "theirs"}
    again = await roll_out(repository, commit, bucket)
    assert (again.done, again.written_by_others) == (1, [])
    assert await contents(bucket) == {"a": b"1", "b": b"1"}
    await bucket.put("later", b"1")
    assert (await roll_out(repository, commit, bucket)).written_by_others == []


async def test_only_writes_between_plan_and_last_change_count_as_others(repository, bucket):
    commit = await committed(repository, {"a": b"1", "b": b"1"})
    await bucket.put_many([("a", b"1"), ("gone", b"1")])
    await bucket.purge("gone")
    done = await roll_out(repository, commit, bucket)
    assert (done.done, done.written_by_others) == (1, [])
    assert (await roll_out(repository, commit, bucket)).written_by_others == []


@pytest.mark.guarantee("writing-17")
@pytest.mark.parametrize("atomic", [True, False])
async def test_checkout_keeps_keys_that_never_expire(repository, client, bucket_name, atomic):
    bucket = await client.create_bucket(bucket_name, atomic=atomic, marker_ttl=timedelta(seconds=1))
    await bucket.create("k", b"old", ttl=kvctl.NEVER)
    ref = await committed(repository, {"k": b"new", "other": b"new"})
    await roll_out(repository, ref, bucket)
    found = await bucket.get_many(["k", "other"])
    assert [(entry.value, entry.ttl) for entry in found if entry] == [(b"new", kvctl.NEVER), (b"new", None)]
