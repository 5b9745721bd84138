"""Leases: one holder at a time, renewed, lost, taken over, released."""

import asyncio
import itertools
import time
from collections.abc import Awaitable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

import kvctl
from kvctl import Context
from kvctl.errors import (
    ConnectionLost,
    KvctlError,
    LeaseHeld,
    LeaseLost,
    ReadOnly,
    RequestTimeout,
    UsageError,
    WaitExpired,
)
from kvctl.kv import conditional_write, lease
from kvctl.kv import lease as leases
from kvctl.kv.lease import Lease, acquire, clock
from tests.support.patience import quickest

SECOND = timedelta(seconds=1)
TTL = 60 * SECOND
"""Of leases that are not to end while a test runs, however slow the machine is."""


@pytest.fixture
async def bucket(client, bucket_name):
    return await client.create_bucket(bucket_name, marker_ttl=SECOND)


@pytest.fixture
async def theirs(server, bucket):
    """The same bucket over another connection."""
    async with kvctl.connect(server.url) as client:
        yield client.bucket(bucket.name)


async def kept(lease: Lease) -> "asyncio.Task[Any]":
    """The task that keeps the lease, once its watch is under way."""
    task = asyncio.create_task(lease.keep())
    await asyncio.sleep(0.2)
    return task


async def refused(expected: type[KvctlError], taking: Awaitable[Lease], lease: Lease) -> None:
    """Nobody else takes a lease that is held; one that could not be renewed in time is."""
    with suppress(expected):
        await taking
        if clock() < lease.deadline:
            pytest.fail("two hold the lease")
        raise AssertionError("it was not renewed in time")


class TestTaking:
    async def test_the_value_is_the_owner_and_the_ttl_the_leases(self, bucket):
        before = clock()
        lease = await acquire(bucket, "k", "me", timedelta(seconds=60.5))
        after = clock()
        entry = await bucket.get("k")
        assert (entry.value, entry.revision, lease.token) == (b"me", 1, 1)
        assert entry.ttl == timedelta(seconds=61)  # what a server would cut to sixty
        assert before + 60.5 <= lease.deadline <= after + 60.5

    @pytest.mark.guarantee("leases-1", by="race")
    async def test_one_of_many_owners_holds_the_lease_and_the_others_learn_its_name(self, bucket):
        results = await asyncio.gather(
            *(acquire(bucket, "k", f"owner {number}", TTL) for number in range(8)), return_exceptions=True
        )
        (lease,) = [result for result in results if isinstance(result, Lease)]
        refused = [result for result in results if isinstance(result, LeaseHeld)]
        assert {error.owner for error in refused} == {lease.owner}
        assert (len(refused), refused[0].exit_code) == (7, 4)

    async def test_the_same_owner_is_another_holder(self, bucket):
        await acquire(bucket, "k", "me", TTL)
        with pytest.raises(LeaseHeld):
            await acquire(bucket, "k", "me", TTL)

    async def test_key_written_by_others_counts_as_held(self, bucket):
        await bucket.put("k", b"x" * 1000)
        with pytest.raises(LeaseHeld) as caught:
            await acquire(bucket, "k", "me", TTL)
        assert caught.value.owner == "x" * 200 + "…"

    @pytest.mark.guarantee("leases-1", by="fault")
    @pytest.mark.parametrize("error", [RequestTimeout("none"), ConnectionLost("cut")])
    async def test_a_lost_answer_to_anothers_creation_is_not_taken_for_ours(self, bucket, theirs, monkeypatch, error):
        publish = conditional_write.publish

        async def overtaken(*arguments: Any, **options: Any) -> int:
            monkeypatch.setattr(conditional_write, "publish", publish)
            await acquire(theirs, "k", "me", TTL)
            raise error

        monkeypatch.setattr(conditional_write, "publish", overtaken)
        with pytest.raises(LeaseHeld):
            await acquire(bucket, "k", "me", TTL)

    async def test_a_lost_answer_to_ones_own_is(self, bucket, monkeypatch):
        publish = conditional_write.publish

        async def lost(*arguments: Any, **options: Any) -> int:
            monkeypatch.setattr(conditional_write, "publish", publish)
            await publish(*arguments, **options)
            raise RequestTimeout("none")

        monkeypatch.setattr(conditional_write, "publish", lost)
        lease = await acquire(bucket, "k", "me", TTL)
        assert (lease.token, (await bucket.status()).last_revision) == (1, 1)

    async def test_bucket_without_ttls_is_refused_with_a_hint(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name)
        with pytest.raises(KvctlError, match="does not allow per-key TTLs") as caught:
            await acquire(bucket, "k", "me", TTL)
        assert caught.value.hint == f"Allow them with `kvctl bucket edit {bucket_name} --marker-ttl 1s`"
        assert (await bucket.status()).last_revision == 0

    async def test_impossible_lease_is_refused(self, client, bucket, bucket_name):
        with pytest.raises(UsageError, match="at least 1 second"):
            await acquire(bucket, "k", "me", timedelta(milliseconds=999))
        short = await client.create_bucket(f"{bucket_name}S", marker_ttl=SECOND, ttl=TTL)
        with pytest.raises(UsageError, match=r"keys of bucket .* expire after 1m"):
            await acquire(short, "k", "me", 2 * TTL)
        with pytest.raises(ReadOnly):
            await acquire(client.bucket(bucket.name, read_only=True), "k", "me", TTL)

    async def test_lease_on_a_mirror_is_held_at_the_origin(self, client, bucket, bucket_name):
        await kvctl.create_mirror(client, kvctl.Mirror(f"{bucket_name}M", kvctl.Origin(bucket.name)))
        async with client.bucket(f"{bucket_name}M").lease("k", "me"):
            with pytest.raises(LeaseHeld):
                await acquire(bucket, "k", "you", TTL)


class TestKeeping:
    async def test_lease_is_renewed_at_a_third_of_its_ttl(self, bucket, theirs):
        lease = await acquire(bucket, "k", "me", 4.5 * SECOND)
        first, ends, keeping = lease.revision, [lease.deadline], await kept(lease)
        async with asyncio.timeout(60):
            while len(ends) < 4:
                await refused(LeaseHeld, acquire(theirs, "k", "you", TTL), lease)
                ends += [lease.deadline] if lease.deadline > ends[-1] else []
                await asyncio.sleep(0.05)
        between = [after - before for before, after in itertools.pairwise(ends)]
        assert 1.45 < min(between) < 2.25
        assert (lease.token, keeping.done()) == (first, False)
        keeping.cancel()
        assert await lease.release()

    @pytest.mark.parametrize(
        ("what", "said"),
        [
            (lambda bucket: bucket.delete("k"), "it was deleted"),
            (lambda bucket: bucket.put("k", b"you"), "`you` took it, at revision 2"),
            (lambda bucket: bucket.destroy(), "was deleted or emptied"),
        ],
        ids=["deleted", "taken", "bucket gone"],
    )
    async def test_losing_it_is_noticed_at_once(self, bucket, theirs, what, said):
        keeping = await kept(await acquire(bucket, "k", "me", 600 * SECOND))
        await what(theirs)
        with pytest.raises(LeaseLost, match=said):
            await asyncio.wait_for(keeping, 60)  # its next renewal is in 200 s

    async def test_lease_without_a_server_is_given_up_before_it_expires(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            lease = await acquire(await client.create_bucket("B", marker_ttl=SECOND), "k", "me", 6 * SECOND)
            lease.grace = 3.9
            keeping = await kept(lease)
            own_server.kill()
            with pytest.raises(LeaseLost, match="could not be renewed"):
                await asyncio.wait_for(keeping, 60)
            assert lease.grace > lease.deadline - clock() > 0

    async def test_a_short_outage_is_survived(self, own_server):
        async with kvctl.connect(own_server.url) as client:
            lease = await acquire(await client.create_bucket("B", marker_ttl=SECOND), "k", "me", 60 * SECOND)
            lease.deadline -= 18  # as if taken so long ago: the next renewal is in 2 s
            before, keeping = lease.deadline, await kept(lease)
            own_server.kill()
            await asyncio.to_thread(own_server.start)
            async with asyncio.timeout(60):
                while lease.deadline == before:
                    await asyncio.sleep(0.05)
                    assert not keeping.done()
            keeping.cancel()

    async def test_a_holder_that_was_held_up_does_not_renew(self, bucket, monkeypatch):
        """As if stopped: much later by the clock, though the server would still take the renewal."""
        lease = await acquire(bucket, "k", "me", TTL)
        monkeypatch.setattr(leases, "clock", lambda: clock() + 100)
        with pytest.raises(LeaseLost, match="kvctl was suspended"):
            await asyncio.wait_for(lease.keep(), 60)
        assert (await bucket.status()).last_revision == 1

    async def test_lost_answer_to_a_renewal_does_not_lose_the_lease(self, bucket, monkeypatch):
        async def soon(self: Lease, moment: float) -> None:
            await asyncio.sleep(0.1)

        monkeypatch.setattr(Lease, "_sleep_until", soon)
        lease = await acquire(bucket, "k", "me", TTL)
        write = bucket.write_message
        lost = []

        async def losing(*arguments: Any, **options: Any) -> int:
            revision = await write(*arguments, **options)
            if len(lost) < 2:
                lost.append(revision)
                raise RequestTimeout("none")
            return revision

        monkeypatch.setattr(bucket, "write_message", losing)
        keeping = await kept(lease)
        async with asyncio.timeout(60):
            while lease.revision < 4:
                await asyncio.sleep(0.05)
        assert not keeping.done()
        keeping.cancel()

    @pytest.mark.slow
    async def test_lease_survives_the_leaders_death(self, own_cluster):
        urls = ",".join(server.url for server in own_cluster.servers.values())
        async with kvctl.connect(Context(url=urls)) as client:
            bucket = await client.create_bucket("B", replicas=3, marker_ttl=SECOND)
            lease = await acquire(bucket, "k", "me", 12 * SECOND)
            keeping = await kept(lease)
            info = (await bucket.locate(fresh=True)).info
            own_cluster.servers[info["cluster"]["leader"]].kill()
            before = lease.deadline
            async with asyncio.timeout(12):
                while lease.deadline == before:
                    await asyncio.sleep(0.05)
            assert not keeping.done()
            keeping.cancel()


class TestWaiting:
    @pytest.fixture
    def told_only(self, monkeypatch):
        """Who waits does not look by himself for minutes."""
        monkeypatch.setattr(lease, "LOOK_AGAIN", 300.0)

    @pytest.mark.guarantee("leases-3")
    @pytest.mark.usefixtures("told_only")
    async def test_waiting_owner_wakes_when_the_lease_is_released(self, bucket, theirs):
        async def released() -> float:
            lease = await acquire(bucket, "k", "me", 600 * SECOND)
            told: list[str] = []
            waiting = asyncio.create_task(acquire(theirs, "k", "you", TTL, wait=600 * SECOND, waiting=told.append))
            while not told:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
            begun = time.monotonic()
            assert await lease.release()
            other = await waiting
            took = time.monotonic() - begun
            await other.release()
            assert told == ["me"]
            assert other.token > lease.token
            return took

        assert await quickest(released, 0.2, tries=20) < 0.2

    @pytest.mark.guarantee("leases-3")
    @pytest.mark.usefixtures("told_only")
    async def test_waiting_owner_wakes_when_the_lease_expires(self, bucket, theirs, raw):
        """Of a holder that is no kvctl, so that nothing but the server's marker tells."""

        async def expired() -> float:
            gone: list[float] = []
            there = asyncio.Event()

            async def look() -> None:
                async with await bucket.watch("k", updates_only=True) as watcher:
                    async for item in watcher:
                        if item is kvctl.CURRENT:
                            raw.put(bucket.name, "k", b"foreign", {"Nats-TTL": "1"})
                            there.set()
                        elif item.operation != "PUT":
                            gone.append(time.monotonic())
                            return

            looking = asyncio.create_task(look())
            await there.wait()
            lease = await acquire(theirs, "k", "you", TTL, wait=600 * SECOND)
            taken = time.monotonic()
            await looking
            await lease.release()
            return taken - gone[0]

        assert await quickest(expired, 0.2, tries=20) < 0.2

    async def test_the_time_is_up(self, bucket, theirs):
        await acquire(bucket, "k", "me", 600 * SECOND)
        begun = time.monotonic()
        with pytest.raises(WaitExpired, match="`k` is still held by `me`"):
            await acquire(theirs, "k", "you", TTL, wait=timedelta(seconds=0.5))
        assert 0.4 < time.monotonic() - begun < 60

    @pytest.mark.guarantee("leases-2")
    async def test_a_vanished_holder_is_waited_for_as_long_as_its_ttl_whatever_the_marker_ttl(
        self, client, bucket_name
    ):
        """The server keeps the key for an hour: with a history it raises a message's ttl to the marker's."""
        bucket = await client.create_bucket(bucket_name, marker_ttl=timedelta(hours=1), history=2)
        lease = await acquire(bucket, "k", "me", 2 * SECOND)
        assert (await bucket.get("k")).ttl == timedelta(hours=1)
        other = await acquire(bucket, "k", "you", TTL, wait=120 * SECOND)
        assert 0 < clock() - lease.deadline < 60
        assert other.token > lease.token

    async def test_a_holder_that_renews_is_not_robbed(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name, marker_ttl=timedelta(hours=1), history=2)

        lease = await acquire(bucket, "k", "me", 3 * SECOND)
        keeping = await kept(lease)
        await refused(WaitExpired, acquire(bucket, "k", "you", SECOND, wait=5 * SECOND), lease)
        assert not keeping.done()
        keeping.cancel()

    async def test_many_take_turns(self, bucket):
        inside, most, turns = 0, 0, 0

        async def work(name: int) -> None:
            nonlocal inside, most, turns
            lease = await acquire(bucket, "k", f"{name}", TTL, wait=120 * SECOND)
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.02)
            inside -= 1
            turns += 1
            await lease.release()

        await asyncio.gather(*(work(number) for number in range(10)))
        assert (most, turns) == (1, 10)


class TestReleasing:
    async def test_lease_is_released_by_revision(self, bucket, theirs):
        lease = await acquire(bucket, "k", "me", TTL)
        await theirs.put("k", b"you")
        assert not await lease.release()
        assert (await bucket.get("k")).value == b"you"

    async def test_a_taking_that_is_given_up_leaves_nothing(self, bucket, monkeypatch):
        write = bucket.write_message

        async def slow(*arguments: Any, **options: Any) -> int:
            await write(*arguments, **options)
            return await asyncio.sleep(60, 0)

        monkeypatch.setattr(bucket, "write_message", slow)
        taking = asyncio.create_task(acquire(bucket, "k", "me", TTL))
        async with asyncio.timeout(30):
            while await bucket.last_entry("k", leader=True) is None:
                await asyncio.sleep(0.02)
        monkeypatch.setattr(bucket, "write_message", write)
        taking.cancel()
        with suppress(asyncio.CancelledError):
            await taking
        entry = await bucket.last_entry("k", leader=True)
        assert entry.operation == "DEL"


class TestHolding:
    async def test_a_block_runs_under_the_lease(self, bucket, theirs):
        async with bucket.lease("k", "me") as lease:
            assert (await theirs.get("k")).revision == lease.token
            with pytest.raises(LeaseHeld):
                async with theirs.lease("k", "you"):
                    pass
        async with theirs.lease("k", "you", ttl=TTL) as other:
            assert other.token > lease.token

    async def test_a_lost_lease_ends_the_block(self, bucket, theirs):
        steps = []

        async def work() -> None:
            async with bucket.lease("k", "me"):
                steps.append("inside")
                await asyncio.sleep(0.2)
                await theirs.delete("k")
                try:
                    await asyncio.sleep(60)
                finally:
                    steps.append("ended")

        with pytest.raises(LeaseLost, match="it was deleted"):
            await work()
        assert steps == ["inside", "ended"]
        task = asyncio.current_task()
        assert not task.cancelling()

    async def test_error_of_the_block_passes_and_the_key_is_released(self, bucket):
        with pytest.raises(ZeroDivisionError):
            async with bucket.lease("k", "me"):
                raise ZeroDivisionError

        async def too_long() -> None:
            async with asyncio.timeout(None) as limit, bucket.lease("k", "me"):
                limit.reschedule(asyncio.get_running_loop().time())
                await asyncio.sleep(60)

        with pytest.raises(TimeoutError):
            await too_long()
        entry = await bucket.last_entry("k", leader=True)
        assert entry.operation == "DEL"
