"""With few permissions: what still works, and that every denial names the subject that is missing, at once."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

import kvctl
from kvctl import CURRENT, Bucket, Context
from kvctl.errors import BucketNotFound, KeyExists, KeyNotFound, PermissionDenied, WrongRevision
from kvctl.kv.read import bulk_get
from kvctl.server import Server, run_server
from tests.support.raw import RawClient

API = "$JS.API"
DIRECT = f"{API}.DIRECT.GET.KV_B"
CREATE, NEXT = f"{API}.CONSUMER.CREATE.KV_B.>", f"{API}.CONSUMER.MSG.NEXT.KV_B.>"

ALLOWED = {
    "admin": [">"],
    "getter": [f"{DIRECT}.$KV.B.>"],
    "one": [f"{DIRECT}.$KV.B.mine.>", "$KV.B.mine.>"],
    "plainreader": [f"{API}.STREAM.MSG.GET.KV_PLAIN"],
    "writer": ["$KV.B.>"],
    "lister": [CREATE, NEXT, f"{API}.STREAM.MSG.GET.KV_B"],
    "counter": [CREATE, NEXT, f"{API}.CONSUMER.INFO.KV_B.>"],
    "nothing": ["other.subjects"],
}
"""What each user may publish; all may receive replies."""


@pytest.fixture(scope="module")
def guarded():
    """Bucket B with keys a, b and mine.x, and PLAIN without direct get, with key a; a user for each line of ALLOWED."""
    users = "\n".join(
        f'{{ user: {name}, password: x, permissions: {{ publish: {subjects}, subscribe: "_INBOX.>" }} }}'.replace(
            "'", '"'
        )
        for name, subjects in ALLOWED.items()
        if name != "admin"
    )
    config = (
        'listen: 127.0.0.1:@client@\nserver_name: @name@\njetstream { store_dir: "@store@" }\n'
        f"authorization {{ users: [ {{ user: admin, password: x }}\n{users} ] }}\n"
    )
    with run_server(name="guarded", config=config) as server, RawClient(server.url, user="admin", password="x") as raw:
        raw.create_bucket("B", max_msgs_per_subject=5)
        raw.create_bucket("PLAIN", allow_direct=False)
        for key in ("a", "b", "mine.x"):
            raw.put("B", key, key.encode())
        raw.put("PLAIN", "a", b"a")
        yield server


@asynccontextmanager
async def bucket_as(server: Server, user: str, name: str = "B") -> AsyncIterator[Bucket]:
    context = Context(url=server.url, user=user, password="x", timeout=timedelta(seconds=300))
    async with kvctl.connect(context) as client:
        yield client.bucket(name)


async def denied(attempt: Awaitable[Any]) -> str:
    """The subject that the denial names; it must come at once."""
    begun = time.monotonic()
    with pytest.raises(PermissionDenied) as caught:
        await attempt
    assert time.monotonic() - begun < 60
    subject = str(caught.value.subject)
    assert (caught.value.exit_code, f"`{subject}`" in caught.value.message) == (5, True)
    return subject


async def everything(batches: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in batches]


class TestOnlyGetsOfKeys:
    """DIRECT.GET with the subject appended: the form that permissions can allow key by key."""

    @pytest.mark.guarantee("reading-19")
    async def test_one_key_needs_nothing_else(self, guarded):
        async with bucket_as(guarded, "getter") as bucket:
            assert (await bucket.get("a")).value == b"a"
            with pytest.raises(KeyNotFound):
                await bucket.get("nope")

    @pytest.mark.guarantee("reading-19")
    @pytest.mark.parametrize("listed", [1, bulk_get.LISTED_KEYS])
    async def test_several_named_keys_neither(self, guarded, monkeypatch, listed):
        monkeypatch.setattr(bulk_get, "LISTED_KEYS", listed)
        async with bucket_as(guarded, "getter") as bucket:
            found = await bucket.get_many(["b", "nope", "a", "mine.x"])
            assert [entry and entry.value for entry in found] == [b"b", None, b"a", b"mine.x"]

    async def test_a_wildcard_is_denied_by_name(self, guarded):
        async with bucket_as(guarded, "getter") as bucket:
            assert await denied(everything(bucket.get_matching("mine.*"))) == DIRECT

    async def test_revision_is_read_without_permission_for_the_leader(self, guarded):
        async with bucket_as(guarded, "getter") as bucket:
            assert await denied(bucket.get("a", revision=1)) == f"{API}.STREAM.MSG.GET.KV_B"

    async def test_listing_and_watching_need_no_further_permission(self, guarded):
        async with bucket_as(guarded, "getter") as bucket:
            assert (await denied(everything(bucket.keys()))).startswith(f"{API}.CONSUMER.CREATE.KV_B.kvctl-")
            watcher = await bucket.watch("a")
            assert (await denied(watcher.__aenter__())).endswith(".$KV.B.a")

    async def test_another_key_is_denied_by_name(self, guarded):
        async with bucket_as(guarded, "one") as bucket:
            assert (await bucket.get("mine.x")).value == b"mine.x"
            assert await denied(bucket.get("a")) == f"{DIRECT}.$KV.B.a"
            assert await denied(bucket.get_many(["mine.x", "a"])) == f"{DIRECT}.$KV.B.a"
            assert await denied(bucket.get_many(["a", "mine.x"])) == f"{DIRECT}.$KV.B.a"

    async def test_own_writes_are_read_without_asking_the_leader(self, guarded):
        async with bucket_as(guarded, "one") as bucket:
            for number in range(20):
                await bucket.put("mine.y", b"%d" % number)
                assert (await bucket.get("mine.y")).value == b"%d" % number


class TestOnlyTheLeader:
    async def test_a_bucket_without_direct_get_needs_no_stream_info(self, guarded):
        async with bucket_as(guarded, "plainreader", "PLAIN") as bucket:
            assert await denied(bucket.get("a")) == f"{DIRECT.replace('KV_B', 'KV_PLAIN')}.$KV.PLAIN.a"
            assert (await bucket.get("a", leader=True)).value == b"a"


class TestOnlyWrites:
    async def test_puts_and_conditional_writes(self, guarded):
        async with bucket_as(guarded, "writer") as bucket:
            revision = await bucket.put("w", b"1")
            assert await bucket.update("w", b"2", revision) > revision
            with pytest.raises(WrongRevision, match="`w` is at revision"):
                await bucket.update("w", b"3", revision)

    async def test_creation_says_that_a_key_exists_though_it_cannot_be_read(self, guarded):
        async with bucket_as(guarded, "writer") as bucket:
            await bucket.create("c", b"1")
            with pytest.raises(KeyExists):
                await bucket.create("c", b"2")

    async def test_deletions_write_the_mark_without_looking(self, guarded):
        async with bucket_as(guarded, "writer") as bucket, bucket_as(guarded, "admin") as admin:
            for remove in (bucket.delete, bucket.purge):
                await bucket.put("d", b"1")
                await remove("d")
                with pytest.raises(KeyNotFound):
                    await admin.get("d")
            assert await bucket.delete("never") == await admin.last_revision("never")

    async def test_many_writes_need_no_more(self, guarded):
        async with bucket_as(guarded, "writer") as bucket:
            assert (await bucket.put_many((f"m.{number}", b"") for number in range(100))).written == 100

    async def test_a_denied_write_names_its_subject(self, guarded):
        async with bucket_as(guarded, "one") as bucket:
            for attempt in (
                bucket.put("a", b""),
                bucket.create("a", b""),
                bucket.update("a", b"", 1),
                bucket.delete("a"),
            ):
                assert await denied(attempt) == "$KV.B.a"

    async def test_denied_writes_of_many_fail_and_the_others_are_written(self, guarded):
        async with bucket_as(guarded, "one") as bucket:
            begun = time.monotonic()
            summary = await bucket.put_many([("mine.1", b""), ("a", b"no"), ("mine.2", b""), ("b", b"no")])
            assert time.monotonic() - begun < 60
            assert (summary.written, sorted(key for key, _ in summary.failed)) == (2, ["a", "b"])
            assert {getattr(error, "subject", "") for _, error in summary.failed} == {"$KV.B.a", "$KV.B.b"}


@pytest.mark.parametrize("user", ["lister", "counter"])
class TestListingWithoutStreamInfo:
    """The end of a listing is found by the last message, or, where that may not be read either, by the consumer."""

    async def test_keys_entries_and_history(self, guarded, user):
        async with bucket_as(guarded, user) as bucket:
            assert {"a", "b", "mine.x"} <= set(await everything(bucket.keys()))
            assert [entry.value for entry in await everything(bucket.entries("mine.x"))] == [b"mine.x"]
            assert [entry.revision for entry in await everything(bucket.history("a"))] == [1]
            assert await everything(bucket.keys("nothing.>")) == []

    async def test_a_watch_has_its_marker(self, guarded, user):
        async with bucket_as(guarded, user) as bucket:
            for key, values in (("a", [b"a", CURRENT]), ("nothing", [CURRENT])):
                async with await bucket.watch(key, follow=False) as watcher:
                    assert [item if item is CURRENT else item.value async for item in watcher] == values


async def test_nothing_allowed_is_said_by_every_operation(guarded):
    operations: list[tuple[str, Callable[[Bucket], Awaitable[Any]]]] = [
        (f"{DIRECT}.$KV.B.a", lambda bucket: bucket.get("a")),
        ("$KV.B.a", lambda bucket: bucket.put("a", b"")),
        (f"{API}.STREAM.INFO.KV_B", lambda bucket: bucket.status()),
        (f"{API}.STREAM.INFO.KV_B", lambda bucket: bucket.destroy()),
    ]
    async with bucket_as(guarded, "nothing") as bucket:
        for subject, operation in operations:
            assert await denied(operation(bucket)) == subject


async def test_a_bucket_that_cannot_be_seen_is_not_said_to_be_missing(guarded):
    async with bucket_as(guarded, "admin", "NONE") as bucket:
        with pytest.raises(BucketNotFound):
            await bucket.get("a")
    async with bucket_as(guarded, "nothing", "NONE") as bucket:
        assert await denied(bucket.get("a")) == f"{API}.DIRECT.GET.KV_NONE.$KV.NONE.a"
