"""The store on JetStream: lagging replicas, listings of any size, lost answers, batches."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import kvctl
from kvctl import Context
from kvctl.errors import OutcomeUnknown, ReadOnly, RequestTimeout, UsageError
from kvctl.jetstream.publish import publish_soon
from kvctl.kv.bucket import Bucket
from kvctl.versions.repository import Repository
from kvctl.versions.store import jetstream_store, writes
from kvctl.versions.store.jetstream_store import BucketStore
from kvctl.versions.store.protocol import ABSENT, StoreChange, StoreCondition
from tests.support.raw import RawClient
from tests.support.socket_writes import recorded_writes
from tests.versions.conftest import stored

Change, Condition = StoreChange, StoreCondition
P, Q = b"partition", b"other"
ROUNDS = 12


@pytest.fixture
async def store(client, bucket_name):
    return BucketStore(Bucket(client.api, await stored(client, bucket_name, 1)))


async def values_of(store: BucketStore, *, values: bool = True) -> dict[bytes, bytes]:
    return {entry.key: entry.value async for entry in store.scan(P, values=values)}


async def fence_of(store: BucketStore) -> Condition:
    return Condition(P, b"fence", await store.set(P, b"fence", b""))


async def value_of(store: BucketStore, key: bytes) -> bytes | None:
    found = await store.get(P, key)
    return found and found.value


class TestLaggingReplica:
    """A mirror that answers half of all direct gets, and has stopped at the first messages: it is full."""

    @pytest.fixture
    async def lagging(self, raw, store):
        name = store.bucket.name
        for number in range(4):
            await store.set(P, b"k%d" % number, b"old")
        mirror = {
            "name": f"M{name}",
            "mirror": {"name": f"KV_{name}"},
            "mirror_direct": True,
            "allow_direct": True,
            "max_msgs": 4,
            "discard": "new",
            "max_msgs_per_subject": 1,
        }
        raw.create_stream(**mirror)
        asked = f"$JS.API.DIRECT.GET.KV_{name}.{store.bucket.binding.subject(store._place(P, b'k1'))}"
        async with asyncio.timeout(60):
            while raw.api(f"STREAM.INFO.M{name}")["state"]["messages"] < 4 or all(
                raw.request(asked).headers["Nats-Stream"] == f"KV_{name}" for _ in range(20)
            ):
                await asyncio.sleep(0.05)
        return store

    async def test_reads_are_as_new_as_the_leader(self, lagging):
        for number in range(ROUNDS):
            expected = {b"k%d" % key: b"%d" % number for key in range(4)}
            await lagging.set_many(P, expected)
            assert await values_of(lagging) == expected
            assert set(await values_of(lagging, values=False)) == set(expected)
            found = await lagging.get_many([(P, key) for key in expected] * 10)
            assert {one.value if one else None for one in found} == {b"%d" % number}
        await lagging.clear(P)
        for _ in range(ROUNDS):
            assert await values_of(lagging) == {}

    @pytest.mark.guarantee("versions-20", by="fault")
    async def test_missing_message_is_requested_from_the_leader(self, lagging):
        for number in range(ROUNDS):
            await lagging.set(Q, b"%d" % number, b"v")
            places = [(Q, b"%d" % one) for one in range(number + 1)]
            assert all(await lagging.get_many(places, lasting=True))
            assert await lagging.get_many([(Q, b"none")], lasting=True) == [None]


class TestListings:
    @pytest.mark.parametrize("held", [1 << 20, 2000], ids=["values held", "values fetched"])
    @pytest.mark.parametrize("values", [True, False], ids=["entries", "keys"])
    async def test_listing_of_more_keys_than_one_answer(self, store, monkeypatch, held, values):
        monkeypatch.setattr(jetstream_store, "HELD_BYTES", held)
        content = {b"%05d" % number: b"v%d" % number for number in range(1500)}
        await store.set_many(P, content)
        await store.set_many(Q, content)
        for number in range(0, 1500, 300):
            await store.delete(P, b"%05d" % number)
            del content[b"%05d" % number]
        assert await values_of(store, values=values) == {
            key: value if values else b"" for key, value in content.items()
        }
        entry = await anext(store.scan(P, b"01200", values=values))
        assert entry.key == b"01201"
        await store.set_if(P, b"01201", b"w", entry.revision)

    @pytest.mark.parametrize(("beside", "fetched"), [(0, 0), (99, 1500)], ids=["alone", "beside others"])
    async def test_listings_beside_others_hold_fewer_values(self, store, monkeypatch, beside, fetched):
        latest, asked = jetstream_store.latest, list[str]()

        async def counted(bucket: Bucket, keys: Sequence[str]) -> Any:
            asked.extend(keys)
            return await latest(bucket, keys)

        monkeypatch.setattr(jetstream_store, "HELD_BYTES", 100_000)
        monkeypatch.setattr(jetstream_store, "latest", counted)
        content = {b"%05d" % number: b"v" * 20 for number in range(1500)}
        await store.set_many(P, content)
        pages = [page async for page in store.pages(P, beside=beside)]
        assert {entry.key: entry.value for page in pages for entry in page} == content
        assert len(asked) == fetched

    async def test_listing_of_large_values_comes_in_parts(self, store):
        content = {b"%d" % number: bytes([number]) * 900_000 for number in range(20)}
        await store.set_many(P, content)
        assert await values_of(store) == content


class TestBatches:
    @pytest.mark.guarantee("versions-22")
    async def test_conditional_writes_of_many_tasks_share_few_batches(self, store, raw):
        fence = await fence_of(store)
        wishes = [
            store.write([fence, Condition(P, b"%d" % number, ABSENT)], [Change(P, b"%d" % number, b"v")])
            for number in range(40)
        ]
        await asyncio.gather(*wishes)
        messages = [message for message in _all(raw, store.bucket.name) if "Nats-Batch-Id" in message]
        batches = {message["Nats-Batch-Id"] for message in messages}
        assert len(messages) >= 40
        assert len(batches) <= 3

    async def test_write_too_large_for_a_batch_is_refused_before_it_is_sent(self, store):
        many = [Change(P, b"%d" % number, b"v" * 1_000_000) for number in range(40)]
        with pytest.raises(UsageError, match="the maximum is"):
            await store.write([], many)
        with pytest.raises(UsageError, match="1,001 messages"):
            await store.write([], [Change(P, b"%d" % number, b"v") for number in range(1001)])
        assert await values_of(store) == {}
        await store.write([], many[:30])
        assert len(await values_of(store, values=False)) == 30

    async def test_fenced_value_needs_no_batch(self, store, raw):
        fence = await fence_of(store)
        await asyncio.gather(*(store.put_while(fence, P, b"%d" % number, b"v") for number in range(10)))
        assert {b"%d" % number for number in range(10)} < (await values_of(store)).keys()
        assert not [message for message in _all(raw, store.bucket.name) if "Nats-Batch-Id" in message]


def _all(raw: RawClient, bucket: str) -> list[dict[str, str]]:
    """The headers of all messages."""
    state = raw.api(f"STREAM.INFO.KV_{bucket}")["state"]
    found = (
        raw.request(f"$JS.API.DIRECT.GET.KV_{bucket}", f'{{"seq": {sequence}}}'.encode()).headers
        for sequence in range(state["first_seq"], state["last_seq"] + 1)
    )
    return [headers for headers in found if headers]


class TestLostAnswers:
    @pytest.fixture
    async def impatient(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            store = BucketStore(Bucket(client.api, await stored(client, "B", 1)))
            client.connection.timeout = 1
            yield store

    async def test_stored_fenced_write_is_found(self, impatient, lose):
        fence = await fence_of(impatient)
        lose(True)
        await impatient.put_while(fence, P, b"k", b"v")
        assert await value_of(impatient, b"k") == b"v"

    async def test_fenced_write_that_is_not_found_has_an_unknown_outcome(self, impatient, lose):
        fence = await fence_of(impatient)
        await impatient.set(P, b"k", b"v")
        lose(False)
        with pytest.raises(OutcomeUnknown, match="the write to repository `B` was stored: No answer") as refused:
            await impatient.put_while(fence, P, b"k", b"v")
        assert "kvctl repo status" in str(refused.value.hint)

    @pytest.fixture
    def lose(self, monkeypatch):
        """Have the answer of the next fenced write be lost, after it was stored or before."""
        publish = publish_soon

        def install(stored: bool) -> None:
            async def lossy(*arguments: Any) -> int:
                monkeypatch.setattr(writes, "publish_soon", publish)
                if stored:
                    await publish(*arguments)
                raise RequestTimeout("No answer")

            monkeypatch.setattr(writes, "publish_soon", lossy)

        return install

    async def test_restarted_server_accepts_writes_in_progress(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            store = BucketStore(Bucket(client.api, await stored(client, "B", 1)))
            values = {b"%d" % number: b"v" * 1000 for number in range(20_000)}
            filling = asyncio.create_task(store.set_many(P, values))
            await asyncio.sleep(0.05)
            own_server.kill()
            own_server.start()
            await filling
            assert len(await values_of(store, values=False)) == 20_000


async def test_read_only_store_refuses_writes(server, client, store):
    fence = await fence_of(store)
    async with kvctl.connect(Context(url=server.url, read_only=True)) as other:
        reading = BucketStore(Bucket(other.api, store.bucket.name))
        found = await reading.get(P, b"fence")
        assert found.revision == fence.revision
        for attempt in (
            reading.set(P, b"k", b"v"),
            reading.set_many(P, {b"k": b"v"}),
            reading.delete(P, b"fence"),
            reading.write([fence], [Change(P, b"k", b"v")]),
            reading.clear(P),
            reading.set_if(P, b"k", b"v", ABSENT),
            reading.put_while(fence, P, b"k", b"v"),
        ):
            with pytest.raises(ReadOnly):
                await attempt
    assert await values_of(store) == {b"fence": b""}


async def test_commit_and_diff_are_few_writes_to_the_socket(client, store, monkeypatch):
    writes = recorded_writes(client.connection, monkeypatch)
    repository = Repository(store)
    await repository.init()
    await repository.put("main", "a", b"1")
    await repository.commit("main", "one")
    await repository.put("main", "a", b"2")
    writes.clear()
    await repository.commit("main", "two")
    assert len(requests(writes)) <= 7  # records, the seal, two for the listing, the stream, the batch, clearing
    writes.clear()
    assert len(await Repository(store).diff("main~1", "main")) == 1
    assert len(requests(writes)) <= 4  # head, commit, its parent, both roots


def requests(writes: list[bytes]) -> list[bytes]:
    """Return the writes but those that only end a subscription: they come at any time after an answer."""
    return [one for one in writes if not one.startswith(b"UNSUB") or b"PUB" in one]
