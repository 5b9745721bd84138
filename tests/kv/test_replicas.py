"""Buckets in other shapes and places: mirrors, aggregates, other domains and accounts, other streams and subjects."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import kvctl
from kvctl import CURRENT, Bucket, Context, Entry
from kvctl.errors import BucketNotFound, KeyExists, KeyNotFound, KvctlError, ReadOnly, WrongRevision
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.labs import Lab
from kvctl.server import run_server
from tests.support.waiting import until_async

LIMIT = 60.0
"""Seconds that replication may take on a busy machine."""


async def make(api: Api, name: str, **config: Any) -> None:
    """A stream made as other tools make it."""
    await streams.create(api, {"name": name, "storage": "file", "max_msgs_per_subject": 5, **config})


async def arrived(bucket: Bucket, key: str, value: bytes, limit: float = LIMIT) -> Entry:
    """Wait until the key has the value there."""
    deadline = time.monotonic() + limit
    while True:
        entry = await bucket.last_entry(key)
        if entry is not None and entry.value == value and entry.stream == bucket.binding.stream:  # not its origin
            return entry
        assert time.monotonic() < deadline, f"{key} did not arrive"
        await asyncio.sleep(0.02)


async def watched(bucket: Bucket, count: int, write: Callable[[], Any]) -> list[tuple[str, bytes]]:
    """What a watcher sees after CURRENT of `count` writes."""
    seen: list[tuple[str, bytes]] = []
    async with asyncio.timeout(LIMIT):
        async with await bucket.watch(updates_only=True) as watcher:
            async for item in watcher:
                if item is CURRENT:
                    await write()
                else:
                    seen.append((item.key, item.value))
                if len(seen) == count:
                    return seen
    return seen


async def use(bucket: Bucket) -> None:
    """Everything that a bucket is used for, on an empty one."""
    first = await bucket.create("a.b", b"1")
    with pytest.raises(KeyExists):
        await bucket.create("a.b", b"2")
    second = await bucket.update("a.b", b"2", first)
    with pytest.raises(WrongRevision):
        await bucket.update("a.b", b"3", first)
    assert (await bucket.get("a.b")).value == b"2"
    assert (await bucket.get("a.b", leader=True)).revision == second
    assert (await bucket.get("a.b", revision=first)).value == b"1"
    assert [entry.value async for entry in bucket.history("a.>")] == [b"1", b"2"]
    assert (await bucket.put_many((f"n.{number}", b"%d" % number) for number in range(50))).failed == []
    assert [entry and entry.value for entry in await bucket.get_many(["n.7", "nope", "n.8"])] == [b"7", None, b"8"]
    await bucket.delete("n.0")
    with pytest.raises(KeyNotFound):
        await bucket.get("n.0")
    await bucket.purge("n.1")
    assert len([key async for key in bucket.keys("n.*")]) == 48
    assert {entry.key async for entry in bucket.entries("a.>")} == {"a.b"}
    assert await watched(bucket, 1, lambda: bucket.put("w", b"x")) == [("w", b"x")]


class TestMirror:
    @pytest.fixture
    async def origin(self, client, bucket_name):
        return await client.create_bucket(bucket_name, history=5)

    @pytest.fixture(params=["M{}", "KV_M{}"], ids=["by-its-stream", "named-like-a-bucket"])
    async def mirror(self, request, client, origin):
        """The mirror's handle, its stream named as kvctl and nats-architecture do, or as older tools do."""
        await make(
            client.api, request.param.format(origin.name), mirror={"name": f"KV_{origin.name}"}, allow_direct=True
        )
        return client.bucket(f"M{origin.name}")

    async def test_keys_are_found_under_the_origins_subjects(self, origin, mirror):
        revision = await origin.put("a.b", b"1")
        entry = await arrived(mirror, "a.b", b"1")
        assert (entry.bucket, entry.key, entry.revision) == (mirror.name, "a.b", revision)
        assert str(entry.stream).endswith(mirror.name)
        assert [key async for key in mirror.keys()] == ["a.b"]
        assert [item.value async for item in mirror.history("a.>")] == [b"1"]
        assert (await mirror.get("a.b", revision=revision)).value == b"1"
        assert [entry and entry.value for entry in await mirror.get_many(["a.b", "nope"])] == [b"1", None]

    async def test_everything_works_on_its_name_as_on_the_origins(self, origin, mirror):
        first = await mirror.create("k", b"1")
        assert (await origin.get("k")).revision == first
        assert (await mirror.get("k")).value == b"1"
        with pytest.raises(KeyExists):
            await mirror.create("k", b"2")
        second = await mirror.update("k", b"2", first)
        with pytest.raises(WrongRevision):
            await mirror.delete("k", revision=first)
        assert await mirror.delete("k") == second + 1
        with pytest.raises(KeyNotFound):
            await mirror.get("k")

    @pytest.mark.parametrize("operation", ["get", "delete", "purge", "revision", "last_revision"])
    async def test_a_fresh_handle_finds_out_what_the_name_means(self, client, origin, mirror, operation):
        revision = await origin.put("k", b"1")
        await arrived(client.bucket(mirror.name), "k", b"1")
        fresh = client.bucket(mirror.name)
        result = await {
            "get": lambda: fresh.get("k", leader=True),
            "delete": lambda: fresh.delete("k"),
            "purge": lambda: fresh.purge("k"),
            "revision": lambda: fresh.get("k", revision=revision, leader=True),
            "last_revision": lambda: fresh.last_revision("k"),
        }[operation]()
        assert getattr(result, "revision", result) in (revision, revision + 1)

    async def test_writes_and_watches_go_to_the_origin(self, origin, mirror):
        assert await watched(mirror, 1, lambda: mirror.put("k", b"1")) == [("k", b"1")]
        assert (await origin.get("k")).value == b"1"
        assert await watched(mirror, 1, lambda: origin.put("k", b"2")) == [("k", b"2")]
        assert (await mirror.put_many([("m", b"x")])).written == 1
        assert (await origin.get("m")).value == b"x"

    @pytest.mark.guarantee("reading-4", by="fault")
    async def test_mirror_answers_reads_and_refuses_writes_after_its_origin_is_deleted(self, client, origin, mirror):
        await origin.put("k", b"1")
        await arrived(mirror, "k", b"1")
        await origin.destroy()
        fresh = client.bucket(mirror.name)
        assert (await fresh.get("k")).value == b"1"
        assert [key async for key in fresh.keys()] == ["k"]
        with pytest.raises(BucketNotFound, match=f"`{origin.name}`, the origin of mirror `{mirror.name}`"):
            await fresh.put("k", b"2")

    async def test_deleting_it_leaves_the_origin(self, client, origin, mirror):
        await origin.put("k", b"1")
        await mirror.destroy()
        assert (await origin.get("k")).value == b"1"
        with pytest.raises(BucketNotFound):
            await client.bucket(mirror.name).get("k")

    async def test_a_mirror_of_a_mirror_has_the_first_ones_keys(self, client, origin):
        await make(client.api, f"M{origin.name}", mirror={"name": f"KV_{origin.name}"})
        await make(client.api, f"MM{origin.name}", mirror={"name": f"M{origin.name}"}, allow_direct=True)
        await origin.put("k", b"1")
        second = client.bucket(f"MM{origin.name}")
        await arrived(second, "k", b"1")
        await second.put("k", b"2")
        assert (await origin.get("k")).value == b"2"


class TestAggregate:
    @pytest.fixture
    async def origins(self, client, unique):
        return [await client.create_bucket(unique()) for _ in range(2)]

    @pytest.fixture
    def sources(self, origins, bucket_name):
        def transforms(origin: Bucket) -> list[dict[str, str]]:
            return [{"src": f"$KV.{origin.name}.>", "dest": f"$KV.{bucket_name}.{origin.name}.>"}]

        return [{"name": f"KV_{origin.name}", "subject_transforms": transforms(origin)} for origin in origins]

    async def test_reads_go_to_it_and_writes_are_refused_naming_its_origins(
        self, client, origins, sources, bucket_name
    ):
        await make(client.api, f"KV_{bucket_name}", sources=sources, allow_direct=True, deny_delete=True)
        aggregate = client.bucket(bucket_name)
        names = [origin.name for origin in origins]
        for origin in origins:
            await origin.put("k", b"1")
            await arrived(aggregate, f"{origin.name}.k", b"1")
        assert sorted([key async for key in aggregate.keys()]) == [f"{name}.k" for name in names]
        assert await watched(aggregate, 1, lambda: origins[0].put("k", b"2")) == [(f"{names[0]}.k", b"2")]
        for attempt in (
            aggregate.put("k", b""),
            aggregate.create("k", b""),
            aggregate.update("k", b"", 1),
            aggregate.put_many([]),
            aggregate.delete(f"{names[0]}.k"),
            aggregate.purge(f"{names[0]}.k"),
        ):
            with pytest.raises(ReadOnly, match=f"read-only aggregate of `{names[0]}` and `{names[1]}`") as caught:
                await attempt
            assert caught.value.exit_code == 1

    async def test_a_writable_one_takes_its_own(self, client, origins, sources, bucket_name):
        subjects = [f"$KV.{bucket_name}.>"]
        await make(
            client.api,
            f"KV_{bucket_name}",
            sources=sources,
            subjects=subjects,
            allow_direct=True,
            allow_rollup_hdrs=True,
        )
        await use(client.bucket(bucket_name))
        await origins[1].put("k", b"theirs")
        await arrived(client.bucket(bucket_name), f"{origins[1].name}.k", b"theirs")


class TestDomains:
    async def test_a_bucket_of_another_domain_is_used_as_any(self, leaf, bucket_name):
        async with kvctl.connect(leaf.contexts["hub-via-leaf"]) as far, kvctl.connect(leaf.contexts["hub"]) as near:
            await use(await far.create_bucket(bucket_name, history=5))
            assert (await near.bucket(bucket_name).get("w")).value == b"x"

    async def test_a_batch_goes_there_too(self, leaf, bucket_name):
        from kvctl.kv.copy_key import rename

        async with kvctl.connect(leaf.contexts["hub-via-leaf"]) as far:
            bucket = await far.create_bucket(bucket_name, atomic=True)
            await bucket.put("old", b"x")
            assert await rename(bucket, "old", bucket, "new") == 2
            assert [key async for key in bucket.keys()] == ["new"]

    async def test_names_mean_there_what_they_mean_here(self, leaf, bucket_name):
        async with kvctl.connect(leaf.contexts["hub-via-leaf"]) as far, kvctl.connect(leaf.contexts["hub"]) as near:
            for use_missing in (
                lambda bucket: bucket.get("k"),
                lambda bucket: bucket.get_many(["k", "l"]),
                lambda bucket: anext(bucket.get_matching("k", "l.>")),
                lambda bucket: bucket.get("k", revision=1),
                lambda bucket: bucket.put("k", b"1"),
            ):
                with pytest.raises(BucketNotFound):
                    await use_missing(far.bucket(bucket_name))
            origin = await near.create_bucket(bucket_name)
            await make(near.api, f"M{bucket_name}", mirror={"name": f"KV_{bucket_name}"}, allow_direct=True)
            assert await far.bucket(f"M{bucket_name}").put("k", b"1") == 1
            await arrived(near.bucket(f"M{bucket_name}"), "k", b"1")
            assert (await far.bucket(f"M{bucket_name}").get("k")).value == b"1"
            await make(near.api, stream := f"KV_N{bucket_name}", subjects=[f"$KV.N{bucket_name}.>"], allow_direct=False)
            await near.bucket(stream.removeprefix("KV_")).put("k", b"2")
            assert (await far.bucket(stream.removeprefix("KV_")).get("k")).value == b"2"
            assert (await origin.get("k")).revision == 1

    async def test_a_mirror_of_it_is_read_here_and_written_there(self, leaf, bucket_name):
        async with kvctl.connect(leaf.contexts["leaf"]) as here, kvctl.connect(leaf.contexts["hub"]) as there:
            origin = await there.create_bucket(bucket_name, history=5)
            external = {"name": f"KV_{bucket_name}", "external": {"api": "$JS.hub.API"}}
            await make(here.api, f"M{bucket_name}", mirror=external, allow_direct=True)
            mirror = here.bucket(f"M{bucket_name}")
            await origin.put("k", b"1")
            entry = await arrived(mirror, "k", b"1")
            assert entry.stream == f"M{bucket_name}"
            revision = await mirror.update("k", b"2", entry.revision)
            assert (await origin.get("k")).revision == revision
            await mirror.delete("k")
            assert (await origin.last_entry("k")).operation == "DEL"  # type: ignore[union-attr]
            assert await watched(mirror, 1, lambda: mirror.create("k", b"3")) == [("k", b"3")]


IMPORTING = """
listen: 127.0.0.1:@client@
server_name: @name@
jetstream { store_dir: "@store@" }
accounts {
  OWNER: {
    jetstream: enabled
    users: [ { user: owner, password: x } ]
    exports: [
      { service: "$JS.API.>", response: stream }
      { service: "$KV.>" }
    ]
  }
  GUEST: {
    users: [ { user: guest, password: x } ]
    imports: [
      { service: { account: OWNER, subject: "$JS.API.>" }, to: "OWNER.API.>" }
      { service: { account: OWNER, subject: "$KV.>" }, to: "OWNER.API.$KV.>" }
    ]
  }
}
"""


@pytest.fixture(scope="module")
def importing():
    """Account OWNER has JetStream, GUEST imports all of it and the buckets' subjects."""
    with run_server(name="importing", config=IMPORTING) as running:
        yield running


class TestOtherAccounts:
    async def test_a_bucket_imported_under_a_prefix_is_used_as_any(self, importing, bucket_name):
        guest = Context(url=importing.url, user="guest", password="x", api_prefix="OWNER.API")
        owner = Context(url=importing.url, user="owner", password="x")
        async with kvctl.connect(guest) as far, kvctl.connect(owner) as near:
            await use(await far.create_bucket(bucket_name, history=5))
            assert (await near.bucket(bucket_name).get("w")).value == b"x"

    async def test_a_mirror_of_anothers_bucket_is_read_here(self, accounts):
        async with (
            kvctl.connect(accounts.contexts["origin"]) as there,
            kvctl.connect(accounts.contexts["replica"]) as here,
        ):
            origin = await there.create_bucket("ORDERS")
            await origin.put("k", b"1")
            external = {"name": "KV_ORDERS", "external": {"api": "ORIGIN.API", "deliver": "DELIVER.ORDERS.m"}}
            await make(here.api, "M", mirror=external, allow_direct=True)
            await arrived(here.bucket("M"), "k", b"1")
            async with kvctl.connect(accounts.contexts["origin-via-replica"]) as via:
                assert (await via.bucket("ORDERS").get("k")).value == b"1"
            await here.bucket("M").destroy()
            await origin.destroy()


class TestOtherNames:
    """Buckets imported under other streams and subjects than ADR-8's."""

    @pytest.mark.parametrize("direct", [True, False])
    async def test_are_used_with_their_own_names(self, client, bucket_name, direct):
        prefix, settings = f"app.{bucket_name}.", {"allow_direct": direct, "allow_rollup_hdrs": True}
        await make(client.api, f"S{bucket_name}", subjects=[f"{prefix}>"], **settings)
        await use(client.bucket("orders", stream=f"S{bucket_name}", prefix=prefix))

    async def test_a_stream_that_is_not_there_is_a_bucket_not_found(self, client):
        bucket = client.bucket("orders", stream="NO_SUCH", prefix="no.such.")
        for attempt in (bucket.get("k"), bucket.put("k", b""), bucket.status(), bucket.get("k", leader=True)):
            with pytest.raises(BucketNotFound, match="no stream `NO_SUCH`"):
                await attempt


class TestSupercluster:
    @pytest.fixture
    async def mirrored(self, supercluster, unique):
        """A bucket in lon with a mirror in nyc, as nyc sees it, with key k."""
        name = unique()
        async with kvctl.connect(supercluster.contexts["nyc"]) as client:
            bucket = await client.create_bucket(name, cluster="lon")
            config = {"mirror": {"name": f"KV_{name}"}, "mirror_direct": True, "allow_direct": True}
            await make(client.api, f"M{name}", placement={"cluster": "nyc"}, **config)
            await bucket.put("k", b"1")
            await arrived(client.bucket(f"M{name}"), "k", b"1")
            yield bucket

    async def test_the_nearest_replica_answers(self, supercluster, mirrored):
        async with asyncio.timeout(LIMIT):
            while (await mirrored.get("k")).stream != f"M{mirrored.name}":
                await asyncio.sleep(0.05)
        async with kvctl.connect(supercluster.contexts["lon"]) as near:
            assert (await near.bucket(mirrored.name).get("k")).stream == f"KV_{mirrored.name}"

    @pytest.mark.guarantee("reading-4", by="kill")
    async def test_mirror_answers_while_the_origins_cluster_is_down(self, supercluster, mirrored):
        async with asyncio.timeout(LIMIT):
            while (await mirrored.get("k")).stream != f"M{mirrored.name}":
                await asyncio.sleep(0.05)
        async with _down(supercluster, "lon"), kvctl.connect(supercluster.contexts["nyc"]) as client:
            client.connection.timeout = 300
            begun = time.monotonic()
            assert (await client.bucket(mirrored.name).get("k")).value == b"1"
            with pytest.raises(KeyNotFound):
                await client.bucket(mirrored.name).get("nope")
            assert time.monotonic() - begun < 60
            client.connection.timeout = 5
            with pytest.raises(KvctlError):
                await client.bucket(mirrored.name).put("k", b"2")


@asynccontextmanager
async def _down(lab: Lab, name: str) -> AsyncIterator[None]:
    lab.servers[name].kill()
    try:
        yield
    finally:
        await asyncio.to_thread(lab.servers[name].start)
        await until_async(partial(_answers, lab, name))  # as the tests after this one expect


async def _answers(lab: Lab, name: str) -> bool:
    with suppress(KvctlError):
        async with kvctl.connect(replace(lab.contexts[name], timeout=timedelta(seconds=1))) as client:
            return bool(await client.bucket_names())
    return False
