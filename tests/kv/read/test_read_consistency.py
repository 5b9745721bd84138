"""What a session has written it reads, though replicas that lag answer too; as of a moment they are passed by."""

import asyncio

import pytest

import kvctl
from kvctl.errors import KeyNotFound, RevisionNotFound
from kvctl.jetstream import multi_get
from kvctl.jetstream.direct_get import DirectRequest
from kvctl.kv.read.moment import Moment
from tests.support.raw import RawClient

ROUNDS = 20


@pytest.fixture(params=["file", "memory"])
async def lagging(request, raw, client, bucket_name):
    """A bucket whose mirror answers half of the reads, and has stopped at revision 4: it is full."""
    bucket = await client.create_bucket(bucket_name, history=5)
    raw.create_stream(
        f"M{bucket_name}",
        mirror={"name": f"KV_{bucket_name}"},
        mirror_direct=True,
        allow_direct=True,
        max_msgs_per_subject=5,
        max_msgs=4,
        discard="new",
        storage=request.param,
    )
    for number in range(8):
        raw.put(bucket_name, f"k.{number % 2}", b"%d" % number)
    async with asyncio.timeout(60):
        while raw.api(f"STREAM.INFO.M{bucket_name}")["state"]["last_seq"] < 4 or not _answers(raw, bucket_name):
            await asyncio.sleep(0.05)
    return bucket


def _answers(raw: RawClient, bucket: str) -> bool:
    """Whether the mirror takes part, and is behind."""
    for _ in range(20):
        reply = raw.request(f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.k.1")
        if reply.headers["Nats-Stream"] == f"M{bucket}":
            return reply.headers["Nats-Sequence"] == "4"
    return False


class TestOwnWrites:
    @pytest.mark.guarantee("reading-1", by="fault")
    async def test_are_read_one_by_one(self, lagging):
        for number in range(ROUNDS):
            revision = await lagging.put("k.1", b"own %d" % number)
            assert (await lagging.get("k.1")).revision == revision
        await lagging.delete("k.1")
        for _ in range(ROUNDS):
            with pytest.raises(KeyNotFound):
                await lagging.get("k.1")

    @pytest.mark.guarantee("reading-1", by="fault")
    async def test_are_read_many_at_once(self, lagging):
        await lagging.put_many((f"own.{number}", b"x") for number in range(50))
        keys = ["k.0", *(f"own.{number}" for number in range(50))]
        for _ in range(ROUNDS):
            assert all(await lagging.get_many(keys))

    @pytest.mark.guarantee("reading-1", by="fault")
    async def test_are_read_by_filters(self, lagging):
        await lagging.put("own.1", b"x")
        for _ in range(ROUNDS):
            assert [entry.key async for batch in lagging.get_matching("own.*") for entry in batch] == ["own.1"]

    async def test_are_read_through_the_mirrors_name(self, client, lagging):
        mirror = client.bucket(f"M{lagging.name}")
        revision = await mirror.put("k.1", b"own")
        assert (await mirror.get("k.1")).revision == revision
        await mirror.put("own.1", b"x")
        assert [entry.key async for batch in mirror.get_matching("own.*") for entry in batch] == ["own.1"]
        assert [bool(entry) for entry in await mirror.get_many(["own.1", "k.0"])] == [True, True]
        assert {key async for key in mirror.keys()} == {"k.0", "k.1", "own.1"}
        assert [(entry.bucket, entry.value) async for entry in mirror.entries("k.1")] == [(mirror.name, b"own")]
        assert [entry.revision async for entry in mirror.history("k.1")][-1] == revision
        assert [key async for key in client.bucket(mirror.name).keys("own.*")] == []  # another session sees the mirror


@pytest.mark.guarantee("reading-2", by="fault")
async def test_others_writes_are_read_only_by_the_leader(raw, client, lagging):
    fresh = client.bucket(lagging.name)
    assert {(await fresh.get("k.1")).revision for _ in range(5 * ROUNDS)} == {4, 8}
    raw.put(lagging.name, "new", b"1")
    for _ in range(ROUNDS):
        assert (await fresh.get("k.1", leader=True)).revision == 8
        assert all(await fresh.get_many(["k.1", "new"], leader=True))
        assert [entry.key async for batch in fresh.get_matching("new", leader=True) for entry in batch] == ["new"]
    mirror = client.bucket(f"M{lagging.name}")
    assert (await mirror.get("k.1", leader=True)).revision == 8
    assert [entry.revision async for batch in mirror.get_matching("k.1", leader=True) for entry in batch] == [8]


class TestMoments:
    """Every moment is asked often: half of the answers would be the mirror's."""

    @pytest.mark.guarantee("reading-7", by="fault")
    async def test_one_that_the_mirror_has_not_reached_is_right(self, client, lagging):
        for handle in (lagging, client.bucket(f"M{lagging.name}")):
            for _ in range(ROUNDS // 2):
                past = await handle.as_of(7)
                assert {(entry.key, entry.value) async for entry in past.entries()} == {("k.0", b"6"), ("k.1", b"5")}
                assert (await past.get("k.0")).revision == 7
        with pytest.raises(RevisionNotFound):
            await client.bucket(f"M{lagging.name}").as_of(9)

    async def test_a_time_that_the_mirror_has_not_reached_is_right(self, client, lagging):
        created = (await lagging.get("k.1", leader=True)).created_ns
        for handle in (lagging, client.bucket(f"M{lagging.name}")):
            past = await handle.as_of(Moment(time_ns=created))
            assert past.revision == 8
            assert (await past.get("k.1")).value == b"7"

    async def test_no_results_of_a_mirror_that_lags_are_not_taken_for_none(self, raw, client, lagging):
        request = DirectRequest(last_of=(f"$KV.{lagging.name}.k.*",), up_to_sequence=7)
        memory = raw.api(f"STREAM.INFO.M{lagging.name}")["config"]["storage"] == "memory"
        found = set()
        for _ in range(2 * ROUNDS):
            pages = [page async for page in multi_get.read(client.api, f"KV_{lagging.name}", request)]
            found.add(tuple(message.sequence for page in pages for message in page.messages))
        # Memory storage says as of what it has; file storage says that it has nothing, which is looked into.
        assert found == ({(6, 7), (3, 4)} if memory else {(6, 7)})


class TestThreeReplicas:
    @pytest.fixture
    async def bucket(self, cluster, unique):
        """On a cluster whose servers all answer."""
        async with kvctl.connect(cluster.contexts["cluster"]) as client:
            yield await client.create_bucket(unique(), replicas=3, history=5)

    @pytest.mark.guarantee("reading-1")
    async def test_own_writes_are_read_at_once_in_every_way(self, bucket):
        for number in range(ROUNDS * 2):
            revision = await bucket.put(f"k.{number % 3}", b"%d" % number)
            assert (await bucket.get(f"k.{number % 3}")).revision == revision
            found = [entry async for batch in bucket.get_matching("k.*") for entry in batch]
            assert max(entry.revision for entry in found) == revision
            past = await bucket.as_of(revision)
            assert (await past.get(f"k.{number % 3}")).revision == revision
            many = await bucket.get_many([f"k.{number % 3}", "nope"])
            assert [entry and entry.revision for entry in many] == [revision, None]
        await bucket.put_many((f"m.{number}", b"x") for number in range(50))
        assert all(await bucket.get_many([f"m.{number}" for number in range(50)]))
        await bucket.delete("k.0")
        with pytest.raises(KeyNotFound):
            await bucket.get("k.0")

    async def test_a_time_just_acknowledged_can_be_given_back(self, bucket):
        for number in range(ROUNDS):
            revision = await bucket.put("k", b"%d" % number)
            created = (await bucket.get("k", revision=revision)).created_ns
            assert (await (await bucket.as_of(Moment(time_ns=created))).get("k")).revision == revision
