"""Keys that ADR-8 does not allow, stored by others: listed, read and deleted as what they are, never as wildcards."""

import io
import json
import random

import pytest

from kvctl import Moment, Operation
from kvctl.errors import KeyNotFound, UsageError
from kvctl.kv.bulk import dump_file
from tests.cli.conftest import run_process
from tests.support.contents import contents

FOREIGN = """
    é.日本 a\x1b[31mred a:b q"uote $ %20 _kv.internal bad\udcff\udcfe.utf * > star.* *.a a.> two.*.* mid.>.dle
""".split()
"""Without 0x7f: the server itself does not find such a subject again."""
BESIDE = ["star.a", "star.b", "b.a", "a.b.c", "two.x.y", "mid.x.dle", "plain"]
"""Keys that they would match as wildcards."""


@pytest.fixture
async def bucket(raw, client, bucket_name):
    """All of them twice, each with itself as its last value."""
    raw.create_bucket(bucket_name, max_msgs_per_subject=5)
    for key in [*FOREIGN, *BESIDE]:
        raw.put(bucket_name, key, b"old")
        raw.put(bucket_name, key, value_of(key))
    return client.bucket(bucket_name)


def value_of(key: str) -> bytes:
    return key.encode(errors="surrogateescape")


async def test_all_are_listed_as_they_are(bucket):
    assert sorted([key async for key in bucket.keys()]) == sorted([*FOREIGN, *BESIDE])
    assert await contents(bucket) == {key: value_of(key) for key in [*FOREIGN, *BESIDE]}
    assert [key async for key in bucket.keys("star.*")] == ["star.*", "star.a", "star.b"]


@pytest.mark.parametrize("key", FOREIGN)
async def test_each_is_read_as_itself(bucket, key):
    entry = await bucket.get_literal(key)
    assert (entry.key, entry.value) == (key, value_of(key))
    assert (await bucket.get_literal(key, revision=entry.revision - 1)).value == b"old"
    history = [entry async for batch in bucket.history_batches(key, literal=True) for entry in batch]
    assert [(item.key, item.value) for item in history] == [(key, b"old"), (key, value_of(key))]


@pytest.mark.guarantee("writing-15")
@pytest.mark.parametrize("key", FOREIGN)
async def test_deleting_one_leaves_all_others_and_the_connection(client, bucket, key):
    revision = await bucket.delete_literal(key)
    left = await contents(bucket)
    assert left == {other: value_of(other) for other in [*FOREIGN, *BESIDE] if other != key}
    history = [entry async for batch in bucket.history_batches(key, literal=True) for entry in batch]
    assert [item.operation for item in history] == [Operation.PUT, Operation.PUT, Operation.DEL]
    assert history[-1].revision == revision
    for attempt in (bucket.get_literal(key), bucket.delete_literal(key)):
        with pytest.raises(KeyNotFound):
            await attempt
    assert client.connection.epoch == 0


@pytest.mark.parametrize("key", ["none.*", "none", "plain.*", "日"])
async def test_one_that_is_not_there_is_not_found_though_it_would_match(bucket, key):
    for attempt in (bucket.get_literal(key), bucket.delete_literal(key)):
        with pytest.raises(KeyNotFound):
            await attempt


@pytest.mark.parametrize("key", FOREIGN)
async def test_nonconforming_keys_are_refused_without_literal(bucket, key):
    for attempt in (
        bucket.get(key),
        bucket.put(key, b""),
        bucket.delete(key),
        bucket.purge(key),
        bucket.get_many([key]),
    ):
        with pytest.raises(UsageError):
            await attempt


async def test_ordinary_keys_may_be_given_as_literals_too(bucket):
    assert (await bucket.get_literal("star.a")).value == b"star.a"
    await bucket.delete_literal("star.a")
    assert "star.a" not in await contents(bucket)


async def test_a_get_answered_with_another_key_is_a_key_not_found(raw, client, bucket_name):
    raw.create_bucket(bucket_name)
    raw.put(bucket_name, "a.b", b"x")  # what the server answers with when asked for `a.*`
    bucket = client.bucket(bucket_name)
    assert await bucket.last_entry("a.*") is None
    assert await bucket.last_entry("a.*", leader=True) is None


@pytest.mark.guarantee("reading-6")
@pytest.mark.parametrize("history", [1, 2, 5])
@pytest.mark.parametrize("seed", range(3))
async def test_keys_that_the_index_leaves_out_are_listed_with_their_last_values(
    raw, client, bucket_name, history, seed
):
    """Oracle: the last message of each key in the order of writing."""
    raw.create_bucket(bucket_name, max_msgs_per_subject=history)
    bucket, draw, last = client.bucket(bucket_name), random.Random(seed), dict[str, bytes]()
    for number in range(60):
        key = draw.choice(["\x7f", "a\x7fb", "c.\x7f.d", "plain", "a.b", "z"])
        marker = {"KV-Operation": "DEL"} if draw.random() < 0.2 else None
        raw.put(bucket_name, key, b"%d" % number, marker)
        last[key] = b"" if marker else b"%d" % number
    living = {key: value for key, value in last.items() if value}
    assert sorted([key async for key in bucket.keys()]) == sorted(living)
    assert await contents(bucket) == living
    assert {entry.key async for entry in bucket.entries(deleted=True)} == last.keys()
    messages = raw.api(f"STREAM.INFO.KV_{bucket_name}")["state"]["messages"]
    assert len([entry async for entry in bucket.history()]) == messages
    file = io.BytesIO()
    await dump_file.dump(bucket, file, history=True)
    assert len(file.getvalue().splitlines()) == messages + 2
    now = await bucket.as_of(Moment(revision=60))
    assert {entry.key: entry.value async for entry in now.entries()} == living
    file = io.BytesIO()
    await dump_file.dump(bucket, file)
    rows = [json.loads(line) for line in file.getvalue().splitlines()[1:-1]]
    assert {row["key"]: row["value"].encode() for row in rows} == living
    assert [key async for key in bucket.keys("a.>")] == [key for key in living if key == "a.b"]


@pytest.mark.parametrize("history", [1, 5])
def test_commands_that_leave_keys_out_warn_of_them(server, raw, bucket_name, unique, history):
    env, ordinary = {"NATS_URL": server.url}, unique()
    for name, key in ((bucket_name, "a.\x7f"), (ordinary, "a.c")):
        raw.create_bucket(name, max_msgs_per_subject=history)
        for _ in range(2):
            raw.put(name, "a.b", b"x")
            raw.put(name, key, b"x")
    for line in (["get", "NAME", "a.>"], ["watch", "NAME", "--until-current"], ["watch", "NAME", "--count", "1"]):
        for name in (bucket_name, ordinary):
            done = run_process(*[name if word == "NAME" else word for word in line], env=env)
            text = (
                f"warning: `{name}` has keys with the byte 0x7f, which servers may leave out here: `kvctl keys {name}`"
            )
            warned = done.err.startswith(text)
            assert (done.exit_code, warned) == (0, name == bucket_name), done.transcript()
    assert "a.\x7f" in run_process("keys", bucket_name, env=env).out
