"""Writes without an acknowledgement are found by their identities, many keys at a time."""

from kvctl.errors import KvctlError
from kvctl.kv.load.acknowledged import Acknowledged
from kvctl.kv.load.leader_state import Current
from kvctl.kv.load.reconcile import Outcome, WriteReconciler
from kvctl.kv.load.rows import Row
from kvctl.kv.load.target import target_of
from kvctl.kv.write.identity import Series

KEYS, LATER = 300, 3


async def test_rows_followed_by_other_writes_are_found_without_a_round_trip_for_each(client, bucket_name, raw):
    bucket = await client.create_bucket(bucket_name, history=64)
    ids, rows = Series(1 << 20), [Row(n, f"k.{n}", b"ours") for n in range(1, KEYS + 1)]
    lost = {row.key for row in rows[::3]}
    for row in rows:
        if row.key not in lost:
            header = ids.block(row.line, b"", row.value)
            await client.connection.request(f"$KV.{bucket_name}.{row.key}", row.value, header)
    for value in range(LATER):
        await bucket.put_many((row.key, b"theirs %d" % value) for row in rows)
    target = await target_of(bucket)
    found: dict[str, Outcome | KvctlError] = {}
    answers: list[str] = []
    client.connection.trace = lambda _, __, result: answers.append(result)
    reconciler = WriteReconciler(
        Current(target.binding, target.info), lambda row, result, _: found.update({row.key: result}), ids, 64,
        Acknowledged(0),
    )  # fmt: skip
    await reconciler.settle(rows, create=False)
    assert found == {row.key: Outcome.MISSED if row.key in lost else Outcome.WRITTEN for row in rows}
    # requests for last messages, answered in as many pieces as the socket gave; `next_of_each` is not traced
    assert sum(not answer.endswith(" messages") for answer in answers) <= 4


async def test_rows_around_those_without_room_for_an_identity_are_not_taken_for_overtaken_ones(client, bucket_name):
    await client.create_bucket(bucket_name, history=2)
    acknowledged = Acknowledged(0)
    for line in 2, 4:
        await client.connection.request(f"$KV.{bucket_name}.k", b"")
        acknowledged.note(line, "k", line // 2)
    target = await target_of(client.bucket(bucket_name))
    found: dict[int, Outcome | KvctlError] = {}
    reconciler = WriteReconciler(
        Current(target.binding, target.info), lambda row, result, _: found.update({row.line: result}), Series(1 << 20),
        2, acknowledged,
    )  # fmt: skip
    for line in 1, 3:
        await reconciler.settle([Row(line, "k", b"")], create=False)
    assert found == {1: Outcome.SUPERSEDED, 3: Outcome.MISSED}
