"""Keys that a replica misses: the leader, or the origin of a mirror, confirms that they do not exist.

The replica that lags here is a mirror with a filter that also answers direct gets of its origin, as `mirror_direct`
makes it: half of the reads come from it, and it has only the first of the keys.
"""

from __future__ import annotations

import json

import pytest

from kvctl.errors import KeyNotFound
from tests.cli.conftest import run_process
from tests.support.restricted import restricted
from tests.support.waiting import until

READS = 24
KEYS = [f"k{number}" for number in range(20)]


def lagging_mirror(raw, name: str, origin: str) -> None:
    raw.create_stream(
        name,
        mirror={"name": f"KV_{origin}", "filter_subject": f"$KV.{origin}.k0"},
        mirror_direct=True,
        allow_direct=True,
    )


def last_sequence(raw, stream: str) -> int:
    return int(raw.api(f"STREAM.INFO.{stream}")["state"]["last_seq"])


@pytest.fixture
async def bucket(client, raw, unique):
    """A bucket with keys, half of whose reads are answered by a replica that has none of them."""
    made = await client.create_bucket(unique())
    await made.put_many((key, b"value") for key in KEYS)
    lagging_mirror(raw, unique("LAGGING"), made.name)
    return client.bucket(made.name)


@pytest.mark.guarantee("reading-20", by="fault")
async def test_gets_find_keys_that_a_replica_misses(bucket):
    for _ in range(READS):
        assert (await bucket.get("k1")).value == b"value"
        assert (await bucket.get("k1", revision=2)).value == b"value"
    assert not bucket.unconfirmed
    with pytest.raises(KeyNotFound) as caught:
        await bucket.get("absent")
    assert caught.value.confirmed


@pytest.mark.guarantee("reading-20", by="fault")
async def test_many_keys_are_found_that_a_replica_misses(bucket, client):
    for _ in range(READS):
        entries = await client.bucket(bucket.name).get_many([*KEYS, "absent"])
        assert [entry and entry.value for entry in entries] == [*[b"value"] * len(KEYS), None]


@pytest.mark.guarantee("reading-20", by="fault")
async def test_filters_that_match_nothing_at_a_replica_are_asked_of_the_leader(bucket, client):
    await bucket.put_many((key, b"value") for key in ("a.1", "a.2"))
    for _ in range(READS):
        reader = client.bucket(bucket.name)
        assert {entry.key async for entry in _flat(reader.get_matching("a.*"))} == {"a.1", "a.2"}
        assert [entry async for entry in _flat(reader.get_matching("b.*"))] == []
        assert not reader.unconfirmed


@pytest.mark.guarantee("reading-20", by="fault")
async def test_readings_that_ask_for_it_are_of_no_replica_that_is_behind(bucket, client):
    for _ in range(READS):
        reader = client.bucket(bucket.name)
        assert {entry.key async for entry in _flat(reader.get_matching(">", confirm=True))} == set(KEYS)


@pytest.mark.guarantee("reading-20", by="fault")
async def test_variables_are_those_that_the_leader_has(server, bucket):
    env = {"NATS_URL": server.url}
    for _ in range(6):
        found = run_process("env", bucket.name, "--prefix", "X_", "--", "env", env=env)
        names = {line.partition("=")[0] for line in found.out.splitlines() if line.startswith("X_")}
        assert (names, found.err) == ({f"X_{key.upper()}" for key in KEYS}, "")


async def _flat(batches):
    async for batch in batches:
        for entry in batch:
            yield entry


@pytest.mark.guarantee("reading-20", by="fault")
async def test_a_deletion_that_a_replica_has_is_confirmed(client, raw, unique):
    """The replica here has the marker, and not the value that was written later."""
    origin = await client.create_bucket(unique(), history=5)
    await origin.put("k", b"1")
    await origin.delete("k")
    mirror = unique("STOPPED")
    raw.create_stream(mirror, mirror={"name": f"KV_{origin.name}"}, mirror_direct=True, max_msgs=2, discard="new")
    until(lambda: last_sequence(raw, mirror) == 2, what="the marker in the mirror")
    await origin.put("k", b"2")
    for _ in range(READS):
        assert (await client.bucket(origin.name).get("k")).value == b"2"


@pytest.mark.guarantee("reading-20", by="fault")
async def test_waiting_for_a_missing_key_asks_the_leader(server, bucket):
    env = {"NATS_URL": server.url}
    assert run_process("wait", bucket.name, "k1", "--missing", "--wait-for", "0", env=env).exit_code == 9
    found = run_process("wait", bucket.name, "absent", "--missing", "--wait-for", "0", env=env)
    assert (found.exit_code, found.err) == (0, "")


@pytest.mark.guarantee("reading-20", by="fault")
def test_a_miss_that_no_leader_confirms_says_so():
    permissions = """
        publish: { allow: ["$JS.API.DIRECT.GET.>", "$JS.API.STREAM.INFO.>"] }
    """
    with restricted(permissions) as servers:
        everything, some = {"NATS_URL": servers.everything}, {"NATS_URL": servers.some}
        assert run_process("bucket", "add", "B", env=everything).exit_code == 0
        assert run_process("put", "B", "k", "v", env=everything).exit_code == 0
        assert run_process("get", "B", "k", env=some).out == "v"
        for keys in (["absent"], ["k", "absent"]):
            asked = run_process("get", "B", *keys, env=some)
            assert (asked.exit_code, "(not confirmed by the leader of the stream)" in asked.err) == (3, True)
            asked = run_process("get", "B", *keys, "-o", "json", env=some)
            error = json.loads(asked.err.splitlines()[-1])["error"]
            assert (asked.exit_code, error["confirmed"]) == (3, False)
        asked = run_process("get", "B", "absent.*", env=some)
        assert (asked.exit_code, "the leader of the stream did not confirm it" in asked.err) == (0, True)
        assert run_process("get", "B", "absent.*", env=everything).err == ""
        asked = run_process("env", "B", "--prefix", "X_", "--", "printenv", "X_K", env=some)
        assert (asked.out, "did not answer: keys may be missing" in asked.err) == ("v\n", True)
        asked = run_process("get", "B", "absent", "-o", "json", env=everything)
        assert (asked.exit_code, "confirmed" in json.loads(asked.err)["error"]) == (3, False)


async def test_a_mirror_reads_from_its_origin_what_it_misses(client, raw, unique):
    origin = await client.create_bucket(unique())
    await origin.put("k", b"value")
    mirror = unique("EMPTY")
    raw.create_stream(mirror, mirror={"name": f"KV_{origin.name}"}, max_msgs=1, allow_direct=True)
    await origin.put("l", b"value")
    until(lambda: last_sequence(raw, mirror) == 2, what="the second key in the mirror")
    assert (await client.bucket(mirror).get("k")).value == b"value"
    assert [entry.value async for entry in client.bucket(mirror).history("k")] == [b"value"]
    assert [entry.value async for entry in _flat(client.bucket(mirror).get_matching("k"))] == [b"value"]
    await origin.destroy()
    for reading in (client.bucket(mirror).history_batches, client.bucket(mirror).get_matching):
        assert [entry async for entry in _flat(reading("k"))] == []
        assert reading.__self__.unconfirmed == {"k"}
    with pytest.raises(KeyNotFound) as caught:
        await client.bucket(mirror).get("k")
    assert not caught.value.confirmed


async def test_a_mirror_with_a_filter_has_no_keys_outside_it(client, raw, unique):
    origin = await client.create_bucket(unique())
    await origin.put("k", b"value")
    mirror = unique("PART")
    lagging_mirror(raw, mirror, origin.name)
    with pytest.raises(KeyNotFound) as caught:
        await client.bucket(mirror).get("k")
    assert caught.value.confirmed
    assert [entry async for entry in _flat(client.bucket(mirror).get_matching("k"))] == []
    assert [entry async for entry in client.bucket(mirror).history("k")] == []
