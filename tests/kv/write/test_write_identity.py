"""A write whose request or answer is lost is found by its identity, never by its value."""

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

import kvctl
from kvctl import Bucket, Context
from kvctl.errors import ConflictError, KeyExists, OutcomeUnknown, WrongRevision
from kvctl.kv.write import identity
from kvctl.server import Server
from tests.support.proxy import Cut, Forward, Late, LoseAnswer, Proxy, Swallow
from tests.support.raw import RawClient

KVCTL = [sys.executable, "-m", "kvctl"]
Write = Callable[[Bucket, int], Awaitable[int]]


@pytest.fixture
def proxy(server):
    with Proxy(server.url) as running:
        yield running


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
    proxy.on(b"STREAM.MSG.GET", Forward(), hook=_put(server, ours.name, "k", b"x"))
    assert await ours.update("k", b"x", first) == first + 1
    assert (await ours.get("k")).revision == first + 2


@pytest.mark.guarantee("writing-2", by="fault")
async def test_conditional_write_is_a_conflict_after_an_unconditional_one_of_the_same_value(ours, proxy, server):
    """The history still holds the revision expected, so the first message after it is known."""
    first = await ours.put("k", b"1")
    proxy.on(message_of("k"), Cut(), hook=_put(server, ours.name, "k", b"x"))
    with pytest.raises(WrongRevision):
        await ours.update("k", b"x", first)


@pytest.mark.guarantee("writing-2", by="fault")
async def test_creation_is_unknown_after_an_unconditional_write_of_the_same_value(ours, proxy, server):
    proxy.on(message_of("k"), Cut(), hook=_put(server, ours.name, "k", b"x"))
    with pytest.raises(OutcomeUnknown):
        await ours.create("k", b"x")


@pytest.mark.guarantee("writing-2", by="fault")
async def test_put_of_the_value_that_is_there_is_unknown_when_its_request_is_lost(ours, proxy, server):
    _put(server, ours.name, "k", b"ok")()
    proxy.on(message_of("k"), Cut())
    with pytest.raises(OutcomeUnknown):
        await ours.put("k", b"ok")


@pytest.mark.guarantee("writing-2", by="fault")
async def test_put_is_found_under_later_writes_of_the_same_value(ours, proxy, server):
    again = _put(server, ours.name, "k", b"ok")
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


def _put(server: Server, bucket: str, key: str, value: bytes) -> Callable[[], object]:
    def put() -> None:
        with RawClient(server.url) as raw:
            raw.put(bucket, key, value)

    return put


def _identities(raw: RawClient, bucket: str) -> list[bytes | None]:
    import base64

    last = raw.api(f"STREAM.INFO.KV_{bucket}")["state"]["last_seq"]
    found = [raw.api(f"STREAM.MSG.GET.KV_{bucket}", {"seq": number}) for number in range(1, last + 1)]
    return [identity.identity_of(base64.b64decode(item["message"].get("hdrs", ""))) for item in found]
