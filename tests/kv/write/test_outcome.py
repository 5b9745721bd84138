"""A write whose acknowledgement is lost: said to be stored when it is, not stored when it is not, else unknown."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

import kvctl
from kvctl import Bucket, Context, Operation
from kvctl.errors import (
    ConnectionLost,
    KeyExists,
    KvctlError,
    NoServer,
    OutcomeUnknown,
    RequestTimeout,
    UnreachableError,
    WrongRevision,
)
from kvctl.kv.write import conditional_write
from kvctl.server import Server
from tests.support.waiting import until_async

LIMIT = 60.0
"""Seconds after which a test that waits has failed."""


@pytest.fixture
async def bucket(own_server):
    """A bucket of a server of the test's own, over a connection that waits for half a minute."""
    context = Context(url=own_server.url, timeout=timedelta(seconds=30))
    async with kvctl.connect(context) as client:
        yield await client.create_bucket("B", history=5, marker_ttl=timedelta(minutes=1))


def waiting(bucket: Bucket, seconds: float) -> Bucket:
    """The bucket, over its connection, which from now on waits so long."""
    bucket._api.connection.timeout = seconds
    return bucket


@pytest.fixture
async def theirs(own_server):
    """The same bucket over another connection."""
    async with kvctl.connect(own_server.url) as client:
        yield client.bucket("B")


class Lossy:
    """Publishes, but loses answers: of the first `times` writes, after or before they were stored."""

    def __init__(self, error: KvctlError, *, stored: bool, times: int = 1) -> None:
        self.error, self.stored, self.times = error, stored, times
        self.meanwhile: Callable[[], Awaitable[Any]] | None = None

    async def __call__(self, *arguments: Any, **options: Any) -> int:
        if not self.times:
            return await PUBLISH(*arguments, **options)
        self.times -= 1
        if self.stored:
            await PUBLISH(*arguments, **options)
        if self.meanwhile:
            await self.meanwhile()
        raise self.error


PUBLISH = conditional_write.publish
LOST = [RequestTimeout("no answer"), ConnectionLost("cut")]


@pytest.fixture
def lose(monkeypatch):
    def install(error: KvctlError, **options: Any) -> Lossy:
        lossy = Lossy(error, **options)
        monkeypatch.setattr(conditional_write, "publish", lossy)
        return lossy

    return install


@pytest.mark.parametrize("error", LOST, ids=lambda error: type(error).__name__)
class TestLostAnswers:
    @pytest.mark.guarantee("writing-2", by="fault")
    async def test_a_stored_put_is_found(self, bucket, lose, error):
        lose(error, stored=True)
        assert await bucket.put("k", b"1") == 1

    async def test_a_put_not_stored_is_unknown_since_it_may_still_come(self, bucket, lose, error):
        lose(error, stored=False)
        with pytest.raises(OutcomeUnknown, match="find out if the write to `k` was stored") as caught:
            await waiting(bucket, 1).put("k", b"1")
        assert caught.value.exit_code == 6
        assert "kvctl get B k --leader" in str(caught.value.hint)

    async def test_an_older_equal_value_of_ours_is_not_taken_for_it(self, bucket, lose, error):
        await bucket.put("k", b"1")
        lose(error, stored=False)
        with pytest.raises(OutcomeUnknown):
            await waiting(bucket, 1).put("k", b"1")

    @pytest.mark.guarantee("writing-2", by="fault")
    @pytest.mark.parametrize("stored", [True, False])
    async def test_a_conditional_write_succeeds_either_way_and_once(self, bucket, lose, error, stored):
        first = await bucket.put("k", b"1")
        lose(error, stored=stored)
        assert await bucket.update("k", b"2", first) == first + 1
        assert (await bucket.status()).last_revision == first + 1

    @pytest.mark.parametrize("stored", [True, False])
    async def test_lost_creation_and_deletion_are_found(self, bucket, lose, error, stored):
        lose(error, stored=stored, times=1)
        revision = await bucket.create("k", b"1")
        lose(error, stored=stored, times=1)
        assert await bucket.delete("k", revision=revision) == 2
        assert [entry.operation async for entry in bucket.history()] == [Operation.PUT, Operation.DEL]

    @pytest.mark.parametrize("stored", [True, False])
    async def test_touch_after_lost_acknowledgement_writes_once(self, bucket, lose, error, stored):
        await bucket.create("k", b"1", ttl=timedelta(minutes=1))
        lose(error, stored=stored)
        assert await bucket.touch("k", timedelta(hours=1)) == 2
        assert (await bucket.status()).last_revision == 2
        assert (await bucket.get("k")).ttl == timedelta(hours=1)

    async def test_a_condition_that_no_longer_holds_is_a_conflict_when_nothing_was_stored_first(
        self, bucket, theirs, lose, error
    ):
        first = await bucket.put("k", b"1")
        await theirs.put("k", b"theirs")
        lossy = lose(error, stored=False)
        lossy.times = 0
        with pytest.raises(WrongRevision):
            await bucket.update("k", b"2", first)

    async def test_one_overtaken_by_another_is_found_in_the_history_or_a_conflict(self, bucket, theirs, lose, error):
        first = await bucket.put("k", b"1")
        lose(error, stored=True).meanwhile = lambda: theirs.put("k", b"2")
        assert await bucket.update("k", b"2", first) == first + 1
        lose(error, stored=False).meanwhile = lambda: theirs.put("k", b"3")
        with pytest.raises(WrongRevision):
            await bucket.update("k", b"3", first + 2)

    @pytest.mark.guarantee("writing-2", by="fault")
    @pytest.mark.parametrize("stored", [True, False])
    async def test_one_overtaken_by_another_without_a_history_is_unknown(self, bucket, theirs, lose, error, stored):
        first = await bucket.put("k", b"1")

        async def overtake() -> None:
            for _ in range(5):
                await theirs.put("k", b"2")

        lose(error, stored=stored).meanwhile = overtake
        with pytest.raises(OutcomeUnknown):
            await bucket.update("k", b"2", first)

    async def test_a_late_first_try_is_not_taken_for_a_conflict(self, bucket, monkeypatch, error):
        """The first try is stored between the look and the second try, which then finds the condition broken."""
        first = await bucket.put("k", b"1")
        tries: list[tuple[Any, ...]] = []

        async def late(*arguments: Any, **options: Any) -> int:
            tries.append(arguments)
            if len(tries) == 1:
                raise error
            await PUBLISH(*tries[0])
            return await PUBLISH(*arguments, **options)

        monkeypatch.setattr(conditional_write, "publish", late)
        assert await bucket.update("k", b"2", first) == first + 1
        assert len(tries) == 2


class TestStoppedServer:
    """SIGSTOP: what was sent lies in its socket, and is stored when it goes on."""

    @pytest.mark.parametrize("away", [0.3, 1.6])
    async def test_a_put_is_resolved_when_it_comes_back_in_time(self, own_server, bucket, away):
        own_server.pause()
        put = asyncio.create_task(waiting(bucket, 1).put("k", b"1"))
        await asyncio.sleep(0.3)
        waiting(bucket, 60)  # for what follows the first second
        await asyncio.sleep(away - 0.3)
        own_server.resume()
        revision = await put
        entry = await bucket.get("k")
        assert (entry.value, entry.revision) == (b"1", revision)

    @pytest.mark.guarantee("writing-2", by="fault")
    async def test_put_without_answer_is_unknown_although_it_is_stored(self, own_server, bucket, theirs):
        own_server.pause()
        begun = time.monotonic()
        with pytest.raises(OutcomeUnknown):
            await waiting(bucket, 1).put("k", b"1")
        assert time.monotonic() - begun < 30
        own_server.resume()
        await until_async(lambda: theirs.last_entry("k"), what="storing of `k` after all")

    async def test_a_creation_is_unknown_and_then_exists(self, own_server, bucket):
        own_server.pause()
        with pytest.raises(OutcomeUnknown):
            await waiting(bucket, 1).create("k", b"1")
        own_server.resume()
        await waiting(bucket, 30).locate(fresh=True)
        with pytest.raises(KeyExists):
            await bucket.create("k", b"1")


class TestDeadServer:
    @pytest.mark.guarantee("writing-4", by="kill")
    async def test_write_that_was_never_sent_is_not_an_unknown_outcome(self, own_server, bucket):
        own_server.kill()
        connection = bucket._api.connection
        await until_async(lambda: not connection.online, what="loss of the connection")
        waiting(bucket, 1)
        for attempt in (bucket.put("k", b"1"), bucket.create("k", b"1"), bucket.update("k", b"1", 1)):
            begun = time.monotonic()
            with pytest.raises(NoServer):
                await attempt
            assert time.monotonic() - begun < 30

    async def test_conditional_writes_go_on_over_a_restart(self, own_server):
        async with kvctl.connect(Context(url=own_server.url, timeout=timedelta(seconds=15))) as client:
            bucket = await client.create_bucket("B", history=64)
            revision = await bucket.put("n", b"0")
            restart = None
            for number in range(1, 60):
                if number == 20:
                    restart = asyncio.create_task(asyncio.to_thread(_killed_and_started, own_server))
                revision = await bucket.update("n", b"%d" % number, revision)
            assert restart is not None
            await restart
            assert [int(entry.value) async for entry in bucket.history("n")] == list(range(60))

    async def test_a_put_over_a_restart_is_stored_or_said_not_to_be_known(self, own_server, bucket):
        waiting(bucket, 1)
        known: dict[str, bool] = {}
        restart = None
        for number in range(200):
            if number == 100:
                restart = asyncio.create_task(asyncio.to_thread(_killed_and_started, own_server))
            try:
                await bucket.put(f"k.{number}", b"x")
                known[f"k.{number}"] = True
            except (OutcomeUnknown, UnreachableError):
                known[f"k.{number}"] = False
        assert restart is not None
        await restart
        stored = {key async for key in bucket.keys()}
        assert {key for key, sure in known.items() if sure} <= stored
        assert sum(known.values()) > 150


def _killed_and_started(server: Server) -> None:
    server.kill()
    server.start()
