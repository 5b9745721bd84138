"""Transactions on real servers: all or nothing, on every condition, and truthful when an answer is lost."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

import kvctl
from kvctl import Client, Context, Operation, Transaction
from kvctl.errors import (
    BucketNotFound,
    ConditionsFailed,
    ConnectionLost,
    HazardRefused,
    KvctlError,
    OutcomeUnknown,
    PermissionDenied,
    ReadOnly,
    RequestTimeout,
    ServerError,
    UnreachableError,
    UsageError,
)
from kvctl.kv.transaction import execution
from tests.project.test_faults import connections
from tests.support.contents import contents
from tests.support.differences import differences
from tests.support.restricted import restricted


@pytest.fixture
async def bucket(client, bucket_name):
    return await client.create_bucket(bucket_name, atomic=True, history=5, marker_ttl=timedelta(seconds=1))


class TestAllOrNothing:
    @pytest.mark.guarantee("transactions-1")
    async def test_every_change_in_one_step(self, bucket):
        await bucket.put_many([("old", b"1"), ("older", b"1"), ("host", b"a")])
        transaction = Transaction().put("port", b"8081").create("lock", b"me", ttl=timedelta(seconds=30))
        transaction.update("host", b"b", 3).delete("old").purge("older").delete("never")
        assert await bucket.commit(transaction) == [4, 5, 6, 7, 8, 9]
        assert await contents(bucket) == {"port": b"8081", "lock": b"me", "host": b"b"}
        found = {entry.key: entry async for entry in bucket.entries(deleted=True)}
        assert (found["lock"].ttl, found["lock"].revision) == (timedelta(seconds=30), 5)
        deleted = {key: str(found[key].operation) for key in ("old", "older", "never")}
        assert deleted == {"old": "DEL", "older": "PURGE", "never": "DEL"}
        assert [entry.operation async for entry in bucket.history("older")] == [Operation.PURGE]

    async def test_a_thousand_changes_with_a_thousand_conditions(self, bucket):
        await bucket.put_many((f"k.{number}", b"0") for number in range(1000))
        transaction = Transaction()
        for number in range(1000):
            transaction.expect(f"k.{number}", value=b"0").put(f"k.{number}", b"1")
        assert differences(await bucket.commit(transaction), range(1001, 2001)) == []
        await bucket.put("k.7", b"other")
        with pytest.raises(ConditionsFailed) as caught:
            await bucket.commit(transaction)
        assert len(caught.value.failures) == 1000
        assert (await bucket.status()).last_revision == 2001

    @pytest.mark.guarantee("transactions-1", "reading-3", by="race")
    async def test_nobody_sees_half_of_it(self, bucket):
        keys = [f"k.{number}" for number in range(20)]

        async def write() -> None:
            for number in range(50):
                transaction = Transaction()
                for key in keys:
                    transaction.put(key, b"%d" % number)
                await bucket.commit(transaction)

        writing = asyncio.create_task(write())
        reads = 0
        async with kvctl.connect(bucket.binding.api.connection.url) as other:
            while not writing.done():
                batches = [batch async for batch in other.bucket(bucket.name).get_matching("k.*")]
                values = {entry.value for batch in batches for entry in batch}
                assert len(values) <= 1, values
                reads += 1
        await writing
        assert reads > 5

    async def test_the_session_reads_what_it_wrote(self, bucket):
        (revision,) = await bucket.commit(Transaction().put("k", b"1"))
        assert bucket.own.last("k") == revision


class TestConditions:
    @pytest.mark.guarantee("transactions-1")
    async def test_all_that_fail_are_named_and_nothing_is_written(self, bucket):
        await bucket.put_many([("port", b"1"), ("lock", b"me"), ("mode", b"off")])
        await bucket.delete("mode")
        transaction = (
            Transaction()
            .expect("port", revision=9)
            .expect("lock", absent=True)
            .expect("mode", value=b"on")
            .expect("host", exists=True)
            .expect("port", value=b"1")
            .put("port", b"2")
        )
        for _ in range(2):
            with pytest.raises(ConditionsFailed) as caught:
                await bucket.commit(transaction)
            assert caught.value.message.splitlines()[1:] == [
                "  `port` is at revision 1, not 9",
                "  `lock` exists, at revision 2",
                '  `mode` is deleted, at revision 4, not "on"',
                "  `host` was never written",
            ]
            assert [failure.found.revision for failure in caught.value.failures if failure.found] == [1, 2, 4]
        assert (await bucket.status()).last_revision == 4

    async def test_those_that_the_server_compares_are_named_too(self, bucket):
        await bucket.put("a", b"1")
        transaction = Transaction().update("a", b"2", 7).update("b", b"2", 1).expect("c", revision=5).put("d", b"")
        with pytest.raises(ConditionsFailed) as caught:
            await bucket.commit(transaction)
        assert [(failure.key, failure.expected) for failure in caught.value.failures] == [("c", 5), ("a", 7), ("b", 1)]

    async def test_contradicting_revisions_never_hold(self, bucket):
        await bucket.put("a", b"1")
        with pytest.raises(ConditionsFailed):
            await bucket.commit(Transaction().expect("a", revision=7).expect("a", revision=1).put("a", b"2"))

    async def test_a_revision_is_the_last_markers_included(self, bucket):
        await bucket.put("a", b"1")
        marker = await bucket.delete("a")
        with pytest.raises(ConditionsFailed):
            await bucket.commit(Transaction().expect("a", revision=1).put("b", b""))
        assert await bucket.commit(Transaction().expect("a", revision=marker).expect("x", revision=0).put("b", b""))

    async def test_create_succeeds_over_markers_and_expired_keys(self, bucket):
        await bucket.create("gone", b"", ttl=timedelta(seconds=1))
        await bucket.put("deleted", b"1")
        await bucket.delete("deleted")
        while (entry := await bucket.last_entry("gone", leader=True)) and entry.operation is Operation.PUT:
            await asyncio.sleep(0.05)
        await bucket.commit(Transaction().create("gone", b"2").create("deleted", b"2").create("new", b"2"))
        assert set((await contents(bucket)).values()) == {b"2"}
        with pytest.raises(ConditionsFailed):
            await bucket.commit(Transaction().create("gone", b"3"))

    @pytest.mark.guarantee("transactions-1")
    @pytest.mark.parametrize("broken", range(4))
    async def test_guards_on_other_keys_hold_or_stop_everything(self, bucket, broken):
        """Four guards, one of which has room in the free change; the others ride on repetitions."""
        revisions = [await bucket.put(f"g.{number}", b"") for number in range(4)]
        transaction = Transaction().put("a", b"long value").create("b", b"")
        for number, revision in enumerate(revisions):
            transaction.expect(f"g.{number}", revision=revision)
        assert transaction.messages == 5
        found = await bucket.commit(transaction)
        assert found == [5, 9]
        assert [entry.revision async for entry in bucket.history("b")] == [6, 7, 8, 9]
        await bucket.delete("b")
        await bucket.put(f"g.{broken}", b"")
        with pytest.raises(ConditionsFailed) as caught:
            await bucket.commit(transaction)
        assert [failure.key for failure in caught.value.failures] == [f"g.{broken}"]

    @pytest.mark.parametrize("seed", range(4))
    async def test_guards_never_evict_more_history_than_the_changes(self, client, unique, seed):
        """Oracle: what each changed key holds after one more entry of it; otherwise nothing may have been written."""
        draw, refusals = random.Random(seed), 0
        for _ in range(20):
            history = draw.choice([1, 2, 3, 5])
            bucket = await client.create_bucket(unique(), atomic=True, history=history)
            keys = [f"k.{number}" for number in range(draw.randint(1, 3))]
            for key in keys:
                for number in range(draw.randint(0, history + 1)):
                    await bucket.put(key, b"%d" % number)
            transaction = Transaction()
            for number in range(draw.randint(1, 5)):
                transaction.expect(f"g.{number}", absent=True)
            for key in keys:
                draw.choice([transaction.put, transaction.create])(key, b"new")
            before = {key: [entry.value async for entry in bucket.history(key)] for key in keys}
            for key in keys:
                if ("create", key) in {(change.verb, change.key) for change in transaction.changes} and before[key]:
                    await bucket.purge(key)
                    before[key] = [b""]
            last = (await bucket.status()).last_revision
            refused = (await asyncio.gather(bucket.commit(transaction), return_exceptions=True))[0]
            if isinstance(refused, HazardRefused):
                refusals += 1
                assert (refused.name, (await bucket.status()).last_revision) == ("evicts-history", last)
                await bucket.commit(transaction, evict_history=True)
                continue
            assert isinstance(refused, list)
            for key in keys:
                held = [entry.value async for entry in bucket.history(key)]
                kept = [*before[key], b"new"][-history:]
                assert held[: len(kept)] == kept
        assert 0 < refusals < 20

    @pytest.mark.guarantee("transactions-1")
    async def test_a_value_read_is_guarded_by_its_revision(self, bucket, monkeypatch):
        """Written again between the reading and the batch: the same value counts, another one does not."""
        await bucket.put("mode", b"on")
        publish = execution.publish_batch
        tries = []

        async def overtaken(*arguments: Any) -> int:
            tries.append(arguments)
            if len(tries) <= len(values):
                await bucket.put("mode", values[len(tries) - 1])
            return await publish(*arguments)

        monkeypatch.setattr(execution, "publish_batch", overtaken)
        values = [b"on"]
        assert await bucket.commit(Transaction().expect("mode", value=b"on").put("k", b"")) == [3]
        assert len(tries) == 2
        tries.clear()
        values = [b"off"]
        with pytest.raises(ConditionsFailed, match='`mode` is "off"'):
            await bucket.commit(Transaction().expect("mode", value=b"on").put("k", b""))

    async def test_a_check_looks_and_writes_nothing(self, bucket):
        await bucket.check(Transaction().expect("a", absent=True).put("b", b""))
        with pytest.raises(ConditionsFailed):
            await bucket.check(Transaction().update("a", b"", 3))
        assert (await bucket.status()).last_revision == 0

    async def test_concurrent_creations_of_the_same_keys_succeed_once(self, cluster, bucket_name):
        """Contenders on three servers; every key is won by the one that won them all."""
        async with connections(cluster, 6) as clients:
            bucket = await clients[0].create_bucket(bucket_name, replicas=3, atomic=True)
            for round in range(5):

                async def create(client: Client, name: int, round: int = round) -> bool:
                    transaction = Transaction()
                    for key in random.sample("abcd", 4):
                        transaction.create(f"{round}.{key}", b"%d" % name)
                    try:
                        await client.bucket(bucket_name).commit(transaction)
                        return True
                    except ConditionsFailed:
                        return False

                won = await asyncio.gather(*map(create, clients, range(6)))
                assert sum(won) == 1
                found = [entry.value async for entry in bucket.entries(f"{round}.*")]
                assert found == [b"%d" % won.index(True)] * 4


class TestRefused:
    @pytest.mark.guarantee("transactions-3")
    async def test_transaction_without_atomic_batches_is_not_sent(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name)
        for attempt in (bucket.commit, bucket.check):
            with pytest.raises(KvctlError, match="does not allow atomic batches; nothing was sent") as caught:
                await attempt(Transaction().put("a", b"").put("b", b""))
            assert caught.value.hint == f"Allow them with `kvctl bucket edit {bucket_name} --atomic`"
        assert (await bucket.status()).last_revision == 0

    async def test_bad_names_sizes_and_handles_before_anything_is_sent(self, client, bucket):
        with pytest.raises(UsageError):
            await bucket.commit(Transaction())
        with pytest.raises(UsageError, match=r"`b` takes .* the limit of the server"):
            await bucket.commit(Transaction().put("a", b"").put("b", b"x" * (2 << 20)))
        with pytest.raises(ReadOnly):
            await client.bucket(bucket.name, read_only=True).commit(Transaction().put("a", b""))
        with pytest.raises(BucketNotFound):
            await client.bucket("nowhere").commit(Transaction().put("a", b""))
        assert (await bucket.status()).last_revision == 0

    @pytest.mark.parametrize("place", [0, 1, 2])
    async def test_a_value_over_the_buckets_limit_is_named_at_once_wherever_it_stands(self, client, bucket_name, place):
        bucket = await client.create_bucket(bucket_name, atomic=True, max_value_size=300)
        transaction = Transaction()
        for number in range(3):
            transaction.put(f"k{number}", b"x" * (500 if number == place else 5))
        begun = time.monotonic()
        with pytest.raises(UsageError, match=f"`k{place}` takes .* the limit of the bucket `{bucket_name}` is 300"):
            await bucket.commit(transaction)
        assert time.monotonic() - begun < 5
        assert await contents(bucket) == {}

    async def test_a_limit_that_was_changed_in_the_meantime_is_read_again(self, client, raw, bucket_name):
        config = (await client.create_bucket(bucket_name, atomic=True, max_value_size=5000)).binding
        bucket = client.bucket(bucket_name, stream=config.stream)  # bound to it, so the info is kept
        await bucket.locate()
        edited = raw.api(f"STREAM.INFO.KV_{bucket_name}")["config"]
        large = Transaction().put("a", b"x" * 1000).put("b", b"y")
        for limit, refused in ((300, True), (2000, False)):
            raw.api(f"STREAM.UPDATE.KV_{bucket_name}", edited | {"max_msg_size": limit})
            if refused:
                with pytest.raises(UsageError, match="`a` takes"):
                    await bucket.commit(large)
            else:
                assert await bucket.commit(large) == [1, 2]

    async def test_one_over_the_limit_of_bytes_is_refused_before_it_is_sent(self, bucket):
        transaction = Transaction()
        for number in range(70):
            transaction.put(f"k.{number}", b"x" * (1 << 20))
        with pytest.raises(UsageError, match="the maximum is"):
            await bucket.commit(transaction)

    async def test_too_many_concurrent_transactions_are_not_a_conflict(self, bucket, monkeypatch):
        async def overloaded(*_: Any, **__: Any) -> int:
            raise ServerError("batch publish too many inflight", code=429, err_code=10210)

        monkeypatch.setattr(execution, "publish_batch", overloaded)
        monkeypatch.setattr(bucket._api.connection, "timeout", 0.3)
        with pytest.raises(UnreachableError, match="does not accept batches at the moment"):
            await bucket.commit(Transaction().put("a", b"1"))

    async def test_a_full_bucket_takes_nothing_and_the_way_out_is_said(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name, atomic=True, max_bytes=1000)
        with pytest.raises(ServerError) as caught:
            await bucket.commit(Transaction().put("a", b"").put("b", b"x" * 2000))
        assert "--max-bytes" in str(caught.value.hint)
        assert (await bucket.status()).values == 0

    async def test_a_read_only_aggregate_names_its_origins_and_a_mirror_passes_it_on(self, client, bucket, unique):
        aggregate, mirror = unique("AGG"), unique("MIR")
        await kvctl.create_aggregate(client, kvctl.Aggregate(aggregate, (kvctl.Origin(bucket.name),)))
        with pytest.raises(ReadOnly, match=f"read-only aggregate of `{bucket.name}`"):
            await client.bucket(aggregate).commit(Transaction().put("a", b""))
        await kvctl.create_mirror(client, kvctl.Mirror(mirror, kvctl.Origin(bucket.name)))
        (revision,) = await client.bucket(mirror).commit(Transaction().expect("a", absent=True).put("b", b"1"))
        assert (await bucket.get("b")).revision == revision

    async def test_a_denied_key_is_named(self):
        with restricted('publish: {deny: "$KV.B.b"}') as users:
            async with kvctl.connect(users.everything) as client, kvctl.connect(users.some) as other:
                bucket = await client.create_bucket("B", atomic=True)
                for keys in ("abc", "acb", "bac"):
                    transaction = Transaction()
                    for key in keys:
                        transaction.put(key, b"")
                    with pytest.raises(PermissionDenied) as caught:
                        await other.bucket("B").commit(transaction)
                    assert caught.value.subject == "$KV.B.b"
                assert (await bucket.status()).values == 0

    async def test_revisions_are_compared_without_permission_to_read(self):
        with restricted('publish: ["$KV.B.>", "$JS.API.STREAM.INFO.KV_B"], subscribe: "_INBOX.>"') as users:
            async with kvctl.connect(users.everything) as client, kvctl.connect(users.some) as other:
                await (await client.create_bucket("B", atomic=True)).put("a", b"1")
                transaction = Transaction().update("a", b"2", 1).expect("b", revision=0).put("c", b"")
                assert await other.bucket("B").commit(transaction) == [2, 3]
                with pytest.raises(ConditionsFailed, match="does not hold; nothing was written") as caught:
                    await other.bucket("B").commit(transaction)
                assert "cannot be read to find out which one" in str(caught.value.hint)
                with pytest.raises(PermissionDenied):
                    await other.bucket("B").commit(Transaction().create("d", b""))

    async def test_a_ttl_that_the_bucket_does_not_take_stores_nothing_and_says_what_helps(self, client, bucket_name):
        bucket = await client.create_bucket(bucket_name, atomic=True)
        with pytest.raises(ServerError) as caught:
            await bucket.commit(Transaction().put("a", b"").put("b", b"", ttl=timedelta(seconds=30)))
        assert "--marker-ttl" in str(caught.value.hint)
        assert (await bucket.status()).last_revision == 0

    async def test_across_a_domain_with_conditions(self, leaf, bucket_name):
        async with kvctl.connect(leaf.contexts["hub"]) as hub, kvctl.connect(leaf.contexts["hub-via-leaf"]) as away:
            bucket = await hub.create_bucket(bucket_name, atomic=True)
            guard = await bucket.put("g", b"1")
            transaction = Transaction().expect("g", revision=guard).expect("x", absent=True).create("a", b"1")
            assert await away.bucket(bucket_name).commit(transaction) == [4]
            await bucket.put("g", b"2")
            with pytest.raises(ConditionsFailed):
                await away.bucket(bucket_name).commit(transaction)


PUBLISH = execution.publish_batch
LOST = [RequestTimeout("no answer"), ConnectionLost("cut")]


class Lossy:
    """Stores batches, but loses answers: of the first `times`, after or before they were stored."""

    def __init__(self, error: KvctlError, *, stored: bool, times: int = 1) -> None:
        self.error, self.stored, self.times = error, stored, times
        self.sent = 0
        self.meanwhile: Callable[[], Awaitable[Any]] | None = None
        self.held: list[tuple[Any, ...]] = []

    async def __call__(self, *arguments: Any) -> int:
        self.sent += 1
        if self.sent > self.times:
            return await PUBLISH(*arguments)
        if self.stored:
            await PUBLISH(*arguments)
        else:
            self.held.append(arguments)
        if self.meanwhile:
            await self.meanwhile()
        raise self.error


@pytest.fixture
def lose(monkeypatch):
    def install(error: KvctlError, **options: Any) -> Lossy:
        lossy = Lossy(error, **options)
        monkeypatch.setattr(execution, "publish_batch", lossy)
        return lossy

    return install


@pytest.fixture(params=[1, 3], ids=["R1", "R3"])
async def lossy_bucket(request, cluster, bucket_name):
    """A bucket over a connection that waits half a minute."""
    async with kvctl.connect(Context(url=cluster.servers["n1"].url, timeout=timedelta(seconds=30))) as client:
        yield await client.create_bucket(bucket_name, atomic=True, replicas=request.param)


@pytest.mark.parametrize("error", LOST, ids=lambda error: type(error).__name__)
class TestLostAnswers:
    @pytest.mark.guarantee("transactions-2", by="fault")
    @pytest.mark.parametrize("stored", [True, False])
    async def test_conditional_transaction_is_applied_once_after_a_lost_answer(self, lossy_bucket, lose, error, stored):
        bucket = lossy_bucket
        lossy = lose(error, stored=stored)
        transaction = Transaction().expect("g", absent=True).create("a", b"1").put("b", b"2").delete("c")
        assert await bucket.commit(transaction) == [1, 2, 3]
        assert (lossy.sent, (await bucket.status()).last_revision) == (1 if stored else 2, 3)

    async def test_a_put_is_found_when_it_was_stored_and_else_unknown_since_it_may_still_come(
        self, lossy_bucket, lose, error
    ):
        bucket = lossy_bucket
        lose(error, stored=True)
        transaction = Transaction().put("a", b"1").put("b", b"2")
        assert await bucket.commit(transaction) == [1, 2]
        lossy = lose(error, stored=False)
        bucket._api.connection.timeout = 1
        with pytest.raises(OutcomeUnknown, match="find out if the transaction") as caught:
            await bucket.commit(transaction)
        assert (lossy.sent, caught.value.exit_code) == (1, 6)
        assert f"kvctl history {bucket.name} a b" in str(caught.value.hint)

    @pytest.mark.guarantee("transactions-2", by="fault")
    async def test_overwritten_in_part_it_is_found_by_the_rest(self, lossy_bucket, lose, error):
        bucket = lossy_bucket
        lossy = lose(error, stored=True)
        lossy.meanwhile = lambda: bucket.put("a", b"theirs")
        assert await bucket.commit(Transaction().create("a", b"1").put("b", b"2")) == [1, 2]

    async def test_completely_overwritten_transaction_is_unknown_without_history(self, lossy_bucket, lose, error):
        bucket = lossy_bucket
        first = await bucket.put("a", b"0")
        lossy = lose(error, stored=True)
        lossy.meanwhile = lambda: bucket.put("a", b"theirs")
        with pytest.raises(OutcomeUnknown):
            await bucket.commit(Transaction().update("a", b"1", first))


@pytest.mark.parametrize("error", LOST[:1], ids=lambda error: type(error).__name__)
class TestLostAnswersWithHistory:
    @pytest.mark.parametrize("stored", [True, False])
    async def test_the_history_tells_what_was_overwritten(self, bucket, lose, error, stored):
        first = await bucket.put("a", b"0")
        lossy = lose(error, stored=stored)
        lossy.meanwhile = lambda: bucket.put("a", b"theirs")
        transaction = Transaction().update("a", b"1", first)
        if stored:
            assert await bucket.commit(transaction) == [2]
        else:
            with pytest.raises(ConditionsFailed):
                await bucket.commit(transaction)

    async def test_transaction_that_cannot_be_applied_any_more_is_a_conflict(self, bucket, lose, error):
        """The guard moved on and the key that would have changed has not."""
        guard = await bucket.put("g", b"")
        lossy = lose(error, stored=False)
        lossy.meanwhile = lambda: bucket.put("g", b"")
        with pytest.raises(ConditionsFailed, match="`g` is at revision 2, not 1"):
            await bucket.commit(Transaction().expect("g", revision=guard).create("a", b"1"))

    @pytest.mark.guarantee("transactions-2", by="fault")
    async def test_a_late_try_is_not_applied_twice(self, bucket, lose, error, monkeypatch):
        """The first try arrives between the look and the second try; its value meets the condition again."""
        await bucket.put("a", b"same")
        lossy = lose(error, stored=False)

        async def late(*arguments: Any) -> int:
            if lossy.held:
                await PUBLISH(*lossy.held.pop())
            return await lossy(*arguments)

        monkeypatch.setattr(execution, "publish_batch", late)
        assert await bucket.commit(Transaction().expect("a", value=b"same").put("a", b"same").put("b", b"")) == [2, 3]
        assert (await bucket.status()).last_revision == 3


async def test_transaction_without_a_server_reports_that_nothing_was_sent(own_server):
    async with kvctl.connect(own_server.url) as client:
        bucket = await client.create_bucket("B", atomic=True)
        own_server.kill()
        client.connection.timeout = 1
        with pytest.raises(UnreachableError):
            await bucket.commit(Transaction().put("a", b""))
        await asyncio.to_thread(own_server.start)
        client.connection.timeout = 60
        assert await bucket.commit(Transaction().put("a", b"").create("b", b"")) == [1, 2]
