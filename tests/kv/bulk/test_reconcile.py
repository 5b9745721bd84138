"""Writes without an acknowledgement are found by their identities, many keys at a time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kvctl import Client
from kvctl.errors import KvctlError
from kvctl.kv.bulk.bulk_writer import target_of
from kvctl.kv.bulk.leader_state import Current
from kvctl.kv.bulk.row_writer import FLOOR_ROWS, FLOORS, AcknowledgedRows, LoadOutcome, WriteReconciler
from kvctl.kv.bulk.rows import Row
from kvctl.kv.identity import Series

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
    found: dict[str, LoadOutcome | KvctlError] = {}
    answers: list[str] = []
    client.connection.trace = lambda _, __, result: answers.append(result)
    reconciler = WriteReconciler(
        Current(target.binding, target.info),
        lambda row, result, _: found.update({row.key: result}),
        ids,
        AcknowledgedRows(0),
    )
    await reconciler.settle(rows)
    assert found == {row.key: LoadOutcome.MISSED if row.key in lost else LoadOutcome.WRITTEN for row in rows}
    # requests for last messages, answered in as many pieces as the socket gave; `next_of_each` is not traced
    assert sum(not answer.endswith(" messages") for answer in answers) <= 4


async def test_rows_around_those_without_room_for_an_identity_are_not_taken_for_overtaken_ones(client, bucket_name):
    await client.create_bucket(bucket_name, history=2)
    acknowledged = AcknowledgedRows(0)
    for line in 2, 4:
        await client.connection.request(f"$KV.{bucket_name}.k", b"")
        acknowledged.note(line, "k", line // 2)
    target = await target_of(client.bucket(bucket_name))
    found: dict[int, LoadOutcome | KvctlError] = {}
    reconciler = WriteReconciler(
        Current(target.binding, target.info),
        lambda row, result, _: found.update({row.line: result}),
        Series(1 << 20),
        acknowledged,
    )
    for line in 1, 3:
        await reconciler.settle([Row(line, "k", b"")])
    assert found == {1: LoadOutcome.SUPERSEDED, 3: LoadOutcome.MISSED}


# -- rows of a killed load ----------------------------------------------------------------------------------

LETTERS = {
    LoadOutcome.WRITTEN: "W",
    LoadOutcome.SUPERSEDED: "s",
    LoadOutcome.MISSED: "M",
    LoadOutcome.OVERTAKEN: "o",
    LoadOutcome.UNKNOWN: "u",
}
MOST = 200
LARGE = b"x" * 120
"""Leaves no room for an identity."""


async def outcomes(client: Client, name: str, rows: list[Row], stored: list[int], **config: Any) -> str:
    """A letter for each row of a killed load, of one key: `-` for one that is written now.

    The key has the stored rows, and for 0 a write of another client.
    """
    await client.create_bucket(name, **config)
    ids = Series(MOST)
    for line in stored:
        row = rows[line - 1] if line else Row(0, "k", b"theirs")
        header = ids.block(line, row.header, row.value) if line else b""
        await client.connection.request(f"$KV.{name}.k", row.value, header)
    target = await target_of(client.bucket(name))
    acknowledged, letters = AcknowledgedRows(0), dict[int, str]()

    def resolved(row: Row, outcome: LoadOutcome | KvctlError, revision: int) -> None:
        assert isinstance(outcome, LoadOutcome)
        letters[row.line] = "-" if revision > len(stored) else LETTERS[outcome]
        if outcome is LoadOutcome.WRITTEN:
            acknowledged.note(row.line, row.key, revision)

    reconciler = WriteReconciler(Current(target.binding, target.info), resolved, ids, acknowledged)
    reconciler.resumed = True
    for row in rows:
        await reconciler.settle([row])
    return "".join(letters[row.line] for row in rows)


@pytest.mark.parametrize(
    ("stored", "fades", "expected"),
    [
        ([1, 2], False, "WW--"),
        ([0], False, "----"),
        ([0, 1, 0], False, "W---"),
        ([1, 3], False, "WMW-"),
        ([3], False, "MMW-"),
        ([2, 4, 0], False, "MWMW"),
        ([3], True, "ssW-"),
        ([2, 4], True, "sWMW"),
        ([0, 2], True, "sW--"),
        ([2, 0], True, "sW--"),
        ([0], True, "oooo"),
    ],
)
async def test_row_below_a_stored_one_is_not_written_and_one_below_another_clients_only_if_it_may_be_stored(
    client, bucket_name, stored, fades, expected
):
    rows = [Row(line, "k", b"ours") for line in range(1, 5)]
    config = {"ttl": timedelta(hours=1)} if fades else {}
    assert await outcomes(client, bucket_name, rows, stored, history=64, **config) == expected


@pytest.mark.parametrize(
    ("stored", "expected"), [([1, 3], "WsW-"), ([1], "W---"), ([1, 0], "Wo--"), ([1, 0, 3], "WsW-")]
)
async def test_row_with_a_ttl_may_have_expired(client, bucket_name, stored, expected):
    rows = [Row(line, "k", b"ours", b"NATS/1.0\r\nNats-TTL: 90\r\n\r\n" if line == 2 else b"") for line in range(1, 5)]
    found = await outcomes(client, bucket_name, rows, stored, history=64, marker_ttl=timedelta(seconds=1))
    assert found == expected


@pytest.mark.parametrize(
    ("history", "stored", "expected"),
    [
        (64, [], "----"),
        (64, [1], "u---"),
        (64, [1, 2], "uW--"),
        (64, [1, 2, 3], "uWu-"),
        (64, [1, 2, 3, 4], "uWuW"),
        (64, [2], "MW--"),
        (64, [3], "uuu-"),
        (64, [0], "----"),
        (1, [3], "uuu-"),
        (1, [4], "sssW"),
        (1, [0], "oooo"),
    ],
)
async def test_row_without_room_for_an_identity_that_may_be_stored_is_unknown(
    client, bucket_name, history, stored, expected
):
    rows = [Row(line, "k", b"%d" % line + (LARGE if line % 2 else b"")) for line in range(1, 5)]
    assert await outcomes(client, bucket_name, rows, stored, history=history) == expected


def test_a_row_looked_up_after_later_ones_does_not_lower_the_floor():
    acknowledged = AcknowledgedRows(0)
    acknowledged.note_all(3, ("k", "other"), (7, 8))
    acknowledged.note(1, "k", 5)
    assert acknowledged.floor(9, "k") == 7
    acknowledged.note(2, "k", 6)
    assert acknowledged.floor(9, "k") == 7


def test_the_floor_of_a_row_between_acknowledged_ones_is_the_one_before_it():
    acknowledged = AcknowledgedRows(0)
    acknowledged.note_all(1, ("k", "other", "other", "k"), (3, 4, 5, 6))
    assert [acknowledged.floor(line, "k") for line in (1, 2, 4, 5)] == [0, 3, 3, 6]
    assert [acknowledged.followed(line, "k") for line in (1, 3, 4)] == [True, True, False]
    assert not acknowledged.followed(1, "none")


def test_a_row_before_all_samples_is_above_the_revision_at_the_start():
    acknowledged = AcknowledgedRows(7)
    for number in range(2 * FLOORS):
        acknowledged.sent_up_to(number * FLOOR_ROWS)
    assert acknowledged.floor(1, "k") == 7
    acknowledged.start_at(9)
    assert acknowledged.floor(1, "k") == 9
