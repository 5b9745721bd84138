"""Batches: several entries written, inserted and removed together or not at all."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kvctl.errors import BadKeyVersion, ConditionalUpdateError, NoSuchKey, UsageError
from kvctl.kv.transaction import execution
from kvctl.tables.batch import IN_FLIGHT, TableBatch
from kvctl.tables.changes import NOT_EXISTS, Change, Insert, Put, Remove
from kvctl.tables.table import Table

FAMILY = "f"
KEYS = [b"%02d" % number for number in range(40)]


async def held(table: Table[bytes, bytes], keys: Sequence[bytes] = KEYS) -> list[bytes | None]:
    return [entry and entry.value for entry in await table.get_all(keys, family=FAMILY)]


@pytest.mark.guarantee("tables-5")
async def test_batch_is_applied_completely_or_not_at_all(table):
    version = await table.put(b"00", b"old", family=FAMILY)
    await table.put(b"01", b"old", family=FAMILY)
    changes: list[Change] = [
        Put(b"00", b"new", version, FAMILY),
        Remove(b"01", family=FAMILY),
        Insert(b"02", b"new", FAMILY),
        Put(b"03", b"", family=FAMILY),
        Remove(b"04", NOT_EXISTS, FAMILY),
    ]
    versions = await table.update(changes)
    assert await held(table, KEYS[:5]) == [b"new", None, b"new", b"", None]
    entries = await table.get_all(KEYS[:5], family=FAMILY)
    assert versions == [entry and entry.version for entry in entries]
    with pytest.raises(ConditionalUpdateError):
        await table.update(changes)
    assert await table.get_all(KEYS[:5], family=FAMILY) == entries


@pytest.mark.guarantee("tables-5")
async def test_every_failing_condition_is_named(table):
    old = await table.put(b"00", b"v", family=FAMILY)
    now = await table.put(b"00", b"w", family=FAMILY)
    with pytest.raises(BadKeyVersion) as caught:
        await table.update(
            [
                Put(b"00", b"x", old, FAMILY),
                Remove(b"01", old, FAMILY),
                Insert(b"02", b"x", FAMILY),
                Put(b"03", b"x", family=FAMILY),
            ]
        )
    assert caught.value.failed == ((FAMILY, b"00", str(now)), (FAMILY, b"01", None))
    with pytest.raises(NoSuchKey, match="`01` of family `f` is not at version"):
        await table.update([Put(b"01", b"x", old, FAMILY), Put(b"03", b"x", family=FAMILY)])
    with pytest.raises(BadKeyVersion) as caught:
        await table.update([Insert(b"00", b"x", FAMILY), Remove(b"00" * 2, family=FAMILY)])
    assert caught.value.failed == ((FAMILY, b"00", str(now)),)
    assert await held(table, KEYS[:4]) == [b"w", None, None, None]


async def test_removal_of_missing_entry_holds_when_it_appears_concurrently(table, monkeypatch):
    bucket, _ = table._target(FAMILY, b"01")
    commit = bucket.commit

    async def late(transaction: object) -> object:
        await table.put(b"01", b"came between", family=FAMILY)
        return await commit(transaction)  # type: ignore[arg-type]

    monkeypatch.setattr(bucket, "commit", late)
    await table.update([Put(b"00", b"v", family=FAMILY), Remove(b"01", family=FAMILY)])
    assert await held(table, KEYS[:2]) == [b"v", None]
    with pytest.raises(BadKeyVersion):
        await table.update([Put(b"00", b"w", family=FAMILY), Remove(b"01", NOT_EXISTS, FAMILY)])
    assert await held(table, KEYS[:2]) == [b"v", b"came between"]


async def test_batch_of_conditions_only_writes_nothing(table):
    assert await table.update([Remove(key, NOT_EXISTS, FAMILY) for key in KEYS]) == [None] * len(KEYS)
    await table.put(KEYS[3], b"v", family=FAMILY)
    with pytest.raises(BadKeyVersion, match="`03` of family `f` exists"):
        await table.update([Remove(key, NOT_EXISTS, FAMILY) for key in KEYS])
    assert await table.update([]) == []


async def test_invalid_batch_is_refused_before_anything_is_sent(table):
    with pytest.raises(UsageError, match="twice"):
        await table.update([Put(b"00", b"v", family=FAMILY), Remove(b"00", family=FAMILY)])
    if table.config.apart:
        with pytest.raises(UsageError, match="several partitions"):
            await table.update([Put(key, b"v") for key in KEYS])
    else:
        await table.update([Put(key, b"v") for key in KEYS])


async def test_too_large_value_is_named(table):
    with pytest.raises(UsageError, match=r"The value of `01` of family `f` is 2,097,152 bytes"):
        await table.update([Put(b"00", b"v", family=FAMILY), Put(b"01", b"v" * (2 << 20), family=FAMILY)])
    assert await held(table, KEYS[:2]) == [None, None]


async def test_batch_of_a_thousand_entries(table):
    keys = [b"%d" % number for number in range(1000)]
    versions = await table.update([Insert(key, key, FAMILY) for key in keys])
    entries = await table.get_all(keys, family=FAMILY)
    assert [entry and (entry.value, entry.version) for entry in entries] == list(zip(keys, versions, strict=True))


@pytest.mark.guarantee("tables-5", by="race")
async def test_concurrent_batches_lose_and_double_nothing(table):
    """Each writer moves one from an entry to another, conditional on both versions."""
    await table.update([Insert(key, b"100", FAMILY) for key in KEYS[:6]])
    done = 0

    async def transfer(seed: int) -> None:
        nonlocal done
        for number in range(12):
            giver, taker = KEYS[(seed + number) % 6], KEYS[(seed + 2 * number + 1) % 6]
            if giver == taker:
                continue
            while True:
                one, other = await table.get_all([giver, taker], family=FAMILY)
                assert one
                assert other
                try:
                    await table.update(
                        [
                            Put(giver, b"%d" % (int(one.value) - 1), one.version, FAMILY),
                            Put(taker, b"%d" % (int(other.value) + 1), other.version, FAMILY),
                        ]
                    )
                except ConditionalUpdateError:
                    await asyncio.sleep(0.002)
                else:
                    done += 1
                    break

    await asyncio.gather(*(transfer(seed) for seed in range(6)))
    values = [int(value or b"") for value in await held(table, KEYS[:6])]
    assert done > 40
    assert sum(values) == 600


async def test_removals_of_missing_entries_write_nothing(table):
    await table.put(b"00", b"v", family=FAMILY)
    before = await last_sequence(table)
    assert await table.update([Remove(b"01", family=FAMILY), Remove(b"02", NOT_EXISTS, FAMILY)]) == [None, None]
    assert await last_sequence(table) == before
    await table.update([Remove(b"01", family=FAMILY), Remove(b"00", family=FAMILY), Put(b"03", b"v", family=FAMILY)])
    assert await last_sequence(table) == before + 2
    assert await held(table, KEYS[:4]) == [None, None, None, b"v"]


async def test_entry_that_appears_before_its_removal_is_removed(table, client, monkeypatch):
    other, absent = await Table.open(client.api, table.name), table._absent

    async def written_next(batch: TableBatch) -> frozenset[str]:
        found = await absent(batch)
        await other.put(b"01", b"between", family=FAMILY)
        return found

    monkeypatch.setattr(table, "_absent", written_next)
    await table.update([Remove(b"01", family=FAMILY), Put(b"02", b"v", family=FAMILY)])
    assert await held(table, KEYS[:3]) == [None, None, b"v"]


async def test_batches_over_the_limit_of_bytes_are_refused(table):
    changes = [Put(key, b"v" * 900_000, family=FAMILY) for key in KEYS]
    before = await last_sequence(table)
    with pytest.raises(UsageError, match=r"36,000,\d+ bytes, the maximum is 33,554,432"):
        await table.update(changes)
    assert await last_sequence(table) == before


async def test_more_concurrent_batches_than_a_stream_accepts_all_succeed(table):
    names = [[b"%d.%d" % (batch, number) for number in range(50)] for batch in range(80)]
    await asyncio.gather(*(table.update([Insert(key, b"v", FAMILY) for key in keys]) for keys in names))
    assert None not in await held(table, [key for keys in names for key in keys])


@pytest.fixture
def batches(monkeypatch):
    """Return the numbers of messages of the batches that are sent."""
    publish, sent = execution.publish_batch, []

    async def counted(connection: Any, messages: Any, *rest: Any) -> int:
        sent.append(len(messages))
        return await publish(connection, messages, *rest)

    monkeypatch.setattr(execution, "publish_batch", counted)
    return sent


async def test_concurrent_small_updates_share_batches(table, batches):
    made = await asyncio.gather(
        *(table.update([Insert(b"%da" % n, b"1", FAMILY), Insert(b"%db" % n, b"2", FAMILY)]) for n in range(100))
    )
    assert sum(batches) == 200
    assert len(batches) < 10
    entries = await table.get_all([b"%d%c" % (n, end) for n in range(100) for end in b"ab"], family=FAMILY)
    assert [entry and entry.version for entry in entries] == [version for pair in made for version in pair]


@pytest.mark.guarantee("tables-5", by="race")
async def test_refused_update_fails_alone_among_concurrent_ones(table, batches):
    old = await table.put(b"old", b"v", family=FAMILY)
    await table.put(b"old", b"w", family=FAMILY)
    await table.put(b"gone", b"v", family=FAMILY)
    await table.remove(b"gone", family=FAMILY)

    def changes(number: int) -> list[Change]:
        bad: dict[int, Change] = {
            9: Put(b"old", b"x", old, FAMILY),
            10: Insert(b"old", b"x", FAMILY),
            11: Insert(b"gone", b"x", FAMILY),
            12: Remove(b"old", NOT_EXISTS, FAMILY),
            13: Remove(b"never", family=FAMILY),
        }
        return [Insert(b"%d" % number, b"v", FAMILY), bad.get(number, Insert(b"%d'" % number, b"v", FAMILY))]

    outcomes = await asyncio.gather(*(table.update(changes(number)) for number in range(40)), return_exceptions=True)
    refused = {number: error for number, error in enumerate(outcomes) if isinstance(error, BaseException)}
    assert refused.keys() == {9, 10, 12}
    assert all(
        isinstance(error, BadKeyVersion) and [key for _, key, _ in error.failed] == [b"old"]
        for error in refused.values()
    )
    there = await held(table, [b"%d" % number for number in range(40)])
    assert [number for number, value in enumerate(there) if value is None] == [9, 10, 12]
    assert await held(table, [b"old", b"gone"]) == [b"w", b"x"]
    assert len(batches) < 20


async def test_cancelled_update_that_waits_is_not_applied(table, monkeypatch):
    publish, sent, free = execution.publish_batch, [], asyncio.Event()

    async def held_up(connection: Any, messages: Any, *rest: Any) -> int:
        sent.append(messages)
        await free.wait()
        return await publish(connection, messages, *rest)

    monkeypatch.setattr(execution, "publish_batch", held_up)
    tasks = []
    for number in range(IN_FLIGHT + 3):
        changes = [Insert(b"%d" % number, b"v", FAMILY), Insert(b"%d'" % number, b"v", FAMILY)]
        tasks.append(asyncio.create_task(table.update(changes)))
        while len(sent) < min(len(tasks), IN_FLIGHT):
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    tasks[-2].cancel()
    free.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(outcomes.pop(-2), asyncio.CancelledError)
    assert not [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    keys = [b"%d" % number for number in range(IN_FLIGHT + 3)]
    assert await held(table, keys) == [b"v"] * (IN_FLIGHT + 1) + [None, b"v"]
    assert len(sent) == IN_FLIGHT + 1


async def last_sequence(table: Table[bytes, bytes]) -> int:
    bucket = table.layout.bucket(table.layout.place(FAMILY, b"00"))
    info = (await bucket.locate(fresh=True)).info
    return int(info["state"]["last_seq"])
