"""A write whose request or answer is lost is found by its identity, never by its value."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import kvctl
from kvctl import Bucket, Context, Operation
from kvctl.errors import (
    ConflictError,
    ConnectionLost,
    KeyExists,
    KvctlError,
    NoServer,
    OutcomeUnknown,
    RequestTimeout,
    ServerError,
    UnreachableError,
    WrongRevision,
)
from kvctl.kv import conditional_write, identity
from kvctl.server import Server
from tests.support.proxy import DOWN, Cut, Forward, Late, LoseAnswer, Proxy, Replace, Swallow
from tests.support.raw import RawClient, putting
from tests.support.waiting import until_async

KVCTL = [sys.executable, "-m", "kvctl"]


@pytest.fixture
async def ours(proxy, server, client, bucket_name):
    """A bucket with a history of 5, through the proxy, over a connection that does not wait long."""
    await client.create_bucket(bucket_name, history=5)
    async with kvctl.connect(Context(url=proxy.url, timeout=timedelta(seconds=2))) as connected:
        bucket = connected.bucket(bucket_name)
        await bucket.locate()
        yield bucket


@pytest.fixture
def rival(server, bucket_name):
    """Makes hooks that run `kvctl` on the server itself, while the proxy holds the writer back."""

    def make(*arguments: str) -> Callable[[], object]:
        command = [*KVCTL, "-s", server.url, arguments[0], bucket_name, *arguments[1:]]
        return lambda: subprocess.run(command, check=True, capture_output=True, timeout=60)

    return make


def message_of(key: str) -> bytes:
    return f".{key} ".encode()


CONDITIONAL = {
    "create": (lambda bucket, _: bucket.create("new", b"x"), ["create", "new", "x"]),
    "update": (lambda bucket, last: bucket.update("old", b"x", last), ["update", "old", "x", "1"]),
    "delete": (lambda bucket, last: bucket.delete("old", revision=last), ["delete", "old", "--if-revision", "1"]),
    "purge": (lambda bucket, last: bucket.purge("old", revision=last), ["purge", "old", "--if-revision", "1", "--yes"]),
}


@pytest.mark.guarantee("writing-2", by="fault")
@pytest.mark.parametrize("name", CONDITIONAL)
async def test_one_of_two_equal_conditional_writes_succeeds_when_the_other_is_lost(ours, proxy, rival, name):
    write, arguments = CONDITIONAL[name]
    assert await ours.put("old", b"first") == 1
    rule = proxy.on(message_of("new" if name == "create" else "old"), Cut(), hook=rival(*arguments))
    with pytest.raises(ConflictError) as caught:
        await write(ours, 1)
    assert rule.seen.is_set()
    assert isinstance(caught.value, KeyExists if name == "create" else WrongRevision)
    assert (await ours.status()).last_revision == 2


@pytest.mark.guarantee("writing-2", by="fault")
@pytest.mark.parametrize("name", CONDITIONAL)
@pytest.mark.parametrize("cut", [True, False])
async def test_conditional_write_whose_answer_is_lost_succeeds_once(ours, proxy, name, cut):
    assert await ours.put("old", b"first") == 1
    proxy.on(message_of("new" if name == "create" else "old"), LoseAnswer(cut=cut))
    assert await CONDITIONAL[name][0](ours, 1) == 2
    assert (await ours.status()).last_revision == 2


@pytest.mark.guarantee("writing-2", by="fault")
@pytest.mark.parametrize("name", CONDITIONAL)
@pytest.mark.parametrize("at", [0, 30])
async def test_conditional_write_whose_request_is_lost_is_sent_again(ours, proxy, name, at):
    assert await ours.put("old", b"first") == 1
    proxy.on(message_of("new" if name == "create" else "old"), Cut(at))
    assert await CONDITIONAL[name][0](ours, 1) == 2
    assert (await ours.status()).last_revision == 2


def refused_by_the_old_leader(proxy: Proxy, code: int, text: str) -> None:
    """Put a refusal in the place of the next acknowledgement, as the first of two leaders to answer does."""
    refusal = json.dumps({"error": {"code": 400, "err_code": code, "description": text}, "seq": 0}).encode()

    def replaced(frame: bytes) -> Replace:
        _, subject, number, *_ = frame.split(b"\r\n")[0].split()
        return Replace(b"MSG %b %b %d\r\n%b\r\n" % (subject, number, len(refusal), refusal))

    proxy.on(re.compile(rb'"stream": ?"KV_.*"seq": ?[1-9]'), replaced, way=DOWN)


@pytest.mark.guarantee("writing-2", by="fault")
@pytest.mark.parametrize("name", CONDITIONAL)
async def test_conditional_write_that_one_leader_stored_while_the_old_one_was_busy_succeeds(ours, proxy, name):
    assert await ours.put("old", b"first") == 1
    refused_by_the_old_leader(proxy, 10164, "wrong last sequence")
    assert await CONDITIONAL[name][0](ours, 1) == 2
    assert (await ours.status()).last_revision == 2


@pytest.mark.guarantee("writing-2", "transactions-2", by="fault")
async def test_write_that_one_leader_stored_and_the_old_one_refused_succeeds(cluster, bucket_name):
    """The old one names a last revision below the one that the client has read."""
    with Proxy(next(iter(cluster.servers.values())).url) as proxy:
        async with kvctl.connect(Context(url=proxy.url, timeout=timedelta(seconds=10))) as connected:
            bucket = await connected.create_bucket(bucket_name, replicas=3, history=5, atomic=True)
            await bucket.put("k", b"1")
            last = await bucket.put("k", b"2")
            refused_by_the_old_leader(proxy, 10071, f"wrong last sequence: {last - 1}")
            assert await bucket.update("k", b"3", last) == last + 1
            refused_by_the_old_leader(proxy, 10071, f"wrong last sequence: {last - 1}")
            transaction = kvctl.Transaction().update("k", b"4", last + 1).put("l", b"")
            assert [*await bucket.commit(transaction)] == [last + 2, last + 3]
            with pytest.raises(WrongRevision):
                await bucket.update("k", b"5", last + 99)
            assert (await bucket.status()).last_revision == last + 3
            refused_by_the_old_leader(proxy, 10071, f"wrong last sequence: {last}")
            assert await bucket.put_while("m", b"", "l", last + 3) == last + 4
            with pytest.raises(WrongRevision):
                await bucket.put_while("m", b"", "l", last)
            assert (await bucket.status()).last_revision == last + 4


@pytest.mark.guarantee("writing-2", by="fault")
async def test_conditional_write_that_arrives_late_is_stored_once(ours, proxy):
    proxy.on(message_of("k"), Late(1))
    assert await ours.create("k", b"x") == 1
    with RawClient(proxy.target) as raw:
        assert proxy.on(b"never", Swallow()).seen.wait(1.5) is False
        assert raw.api(f"STREAM.INFO.KV_{ours.name}")["state"]["last_seq"] == 1


@pytest.mark.guarantee("writing-2", by="fault")
async def test_conditional_write_that_was_overwritten_is_found_in_the_history(ours, proxy, server):
    first = await ours.put("k", b"1")
    proxy.on(message_of("k"), LoseAnswer(cut=True))
    proxy.on(b"STREAM.MSG.GET", Forward(), hook=putting(server.url, ours.name, "k", b"x"))
    assert await ours.update("k", b"x", first) == first + 1
    assert (await ours.get("k")).revision == first + 2


@pytest.mark.guarantee("writing-2", by="fault")
async def test_conditional_write_is_a_conflict_after_an_unconditional_one_of_the_same_value(ours, proxy, server):
    """The history still holds the revision expected, so the first message after it is known."""
    first = await ours.put("k", b"1")
    proxy.on(message_of("k"), Cut(), hook=putting(server.url, ours.name, "k", b"x"))
    with pytest.raises(WrongRevision):
        await ours.update("k", b"x", first)


@pytest.mark.guarantee("writing-2", by="fault")
async def test_creation_is_unknown_after_an_unconditional_write_of_the_same_value(ours, proxy, server):
    proxy.on(message_of("k"), Cut(), hook=putting(server.url, ours.name, "k", b"x"))
    with pytest.raises(OutcomeUnknown):
        await ours.create("k", b"x")


@pytest.mark.guarantee("writing-2", by="fault")
async def test_put_of_the_value_that_is_there_is_unknown_when_its_request_is_lost(ours, proxy, server):
    putting(server.url, ours.name, "k", b"ok")()
    proxy.on(message_of("k"), Cut())
    with pytest.raises(OutcomeUnknown):
        await ours.put("k", b"ok")


@pytest.mark.guarantee("writing-2", by="fault")
async def test_put_is_found_under_later_writes_of_the_same_value(ours, proxy, server):
    again = putting(server.url, ours.name, "k", b"ok")
    again()
    proxy.on(message_of("k"), LoseAnswer(cut=True))
    proxy.on(b"STREAM.MSG.GET", Forward(), hook=lambda: (again(), again()))
    assert await ours.put("k", b"ok") == 2
    assert (await ours.status()).last_revision == 4


@pytest.mark.guarantee("writing-2", by="fault")
async def test_lost_write_that_is_then_refused_is_unknown(ours, proxy, client):
    """What refuses the second try says nothing about the first, which may have been stored or arrive yet."""
    proxy.on(message_of("k"), Cut())
    proxy.on(message_of("k"), Cut(), times=None)
    with pytest.raises(OutcomeUnknown):
        await ours.create("k", b"x")


@pytest.mark.guarantee("writing-14")
@pytest.mark.parametrize("size", [0, 8, 30, 42])
async def test_value_that_leaves_no_room_for_an_identity_is_written_without(client, raw, bucket_name, size):
    bucket = await client.create_bucket(bucket_name, max_value_size=100)
    assert await bucket.put("k", b"x" * (100 - size)) == 1
    stored = raw.api(f"STREAM.MSG.GET.KV_{bucket_name}", {"seq": 1})["message"]
    assert ("hdrs" in stored) is (size == 42)
    largest = bucket._api.connection.max_payload
    free = await client.create_bucket(f"{bucket_name}-free")
    assert await free.put("k", b"x" * (largest - size)) == 1


@pytest.mark.guarantee("writing-3")
async def test_identities_are_shown_nowhere_and_copied_nowhere(client, raw, server, bucket_name, tmp_path):
    bucket = await client.create_bucket(bucket_name, history=5)
    await bucket.put("k", b"1")
    await bucket.put("k", b"2")
    await bucket.delete("k")
    assert all(entry.headers.keys() <= {"KV-Operation"} for entry in [entry async for entry in bucket.history()])
    dump = str(tmp_path / "dump")
    run = [*KVCTL, "-s", server.url]
    for command in (
        ["dump", bucket_name, "--history", "--to", dump],
        ["bucket", "copy", bucket_name, f"{bucket_name}-copy", "--data", "history"],
        ["bucket", "add", f"{bucket_name}-load", "--history", "5"],
        ["load", f"{bucket_name}-load", dump],
    ):
        subprocess.run([*run, *command], check=True, capture_output=True, timeout=60)
    assert b"Kvctl" not in Path(dump).read_bytes()
    own = _identities(raw, bucket_name)
    assert len(set(own) - {None}) == 3
    for other in ("copy", "load"):
        assert not set(own) & (set(_identities(raw, f"{bucket_name}-{other}")) - {None})


async def test_purge_without_rollups_names_the_setting_and_another_way(client, raw, bucket_name):
    raw.create_bucket(bucket_name, allow_rollup_hdrs=False)
    raw.put(bucket_name, "k", b"v")
    with pytest.raises(ServerError, match="rollup not permitted") as refused:
        await client.bucket(bucket_name).purge("k")
    assert f"`kvctl stream edit KV_{bucket_name} --set allow_rollup_hdrs=true`" in str(refused.value.hint)


def test_forked_process_has_identities_of_its_own():
    before = identity.new()
    read, write = os.pipe()
    if not os.fork():
        os.write(write, identity.new())
        os._exit(0)
    os.wait()
    theirs = os.read(read, 100)
    assert len({item.partition(b".")[0] for item in (before, theirs)}) == 2
    assert identity.new().partition(b".")[0] == before.partition(b".")[0]


@pytest.mark.guarantee("writing-2", by="race")
def test_two_commands_that_create_the_same_key_do_not_both_succeed(proxy, server, raw, bucket_name):
    raw.create_bucket(bucket_name)
    command = ["create", bucket_name, "deploy", "running"]
    codes: list[int] = []

    def run(url: str) -> None:
        codes.append(subprocess.run([*KVCTL, "-s", url, *command], capture_output=True, timeout=60).returncode)

    proxy.on(message_of("deploy"), Cut(), hook=lambda: run(server.url))
    run(proxy.url)
    assert codes == [0, 4]


def _identities(raw: RawClient, bucket: str) -> list[bytes | None]:
    import base64

    last = raw.api(f"STREAM.INFO.KV_{bucket}")["state"]["last_seq"]
    found = [raw.api(f"STREAM.MSG.GET.KV_{bucket}", {"seq": number}) for number in range(1, last + 1)]
    return [identity.identity_of(base64.b64decode(item["message"].get("hdrs", ""))) for item in found]


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
