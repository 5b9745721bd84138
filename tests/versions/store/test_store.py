"""One conformance suite for every Store: lakeFS's design, what it shipped, and where its drivers slipped."""

import asyncio
import random
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

import pytest

from kvctl.errors import UsageError
from kvctl.versions.store import jetstream_store, memory
from kvctl.versions.store.protocol import (
    ABSENT,
    MissingArgument,
    PredicateFailed,
    Store,
    StoreChange,
    StoreClosed,
    StoreCondition,
    StoredValue,
)
from tests.support.waiting import until_async

pytestmark = pytest.mark.parametrize("reopen", ["memory", "bucket", "replicas"], indirect=True)

Change, Condition = StoreChange, StoreCondition
P, Q = b"partition", b"other"
EVERY = bytes(range(256))


async def keys_of(store: Store, partition: bytes = P, start: bytes = b"", **settings: Any) -> list[bytes]:
    return [entry.key async for entry in store.scan(partition, start, **settings)]


async def value_of(store: Store, partition: bytes, key: bytes) -> bytes | None:
    found = await store.get(partition, key)
    return found and found.value


async def as_read(store: Store, partition: bytes, key: bytes) -> Condition:
    """Return the condition that a key is as it is now."""
    found = await store.get(partition, key)
    return Condition(partition, key, found.revision)


def set_pages(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    """Let pages of scans have so many entries."""
    for module in (memory, jetstream_store):
        monkeypatch.setattr(module, "PAGE_ENTRIES", entries)


async def fill(store: Store, *keys: bytes, partition: bytes = P) -> None:
    for key in keys:
        await store.set(partition, key, b"v" + key)


class TestArguments:
    async def test_missing_argument_is_named(self, store):
        none: Any = None
        attempts: list[Awaitable[Any]] = [
            store.get(b"", b"k"),
            store.get(P, b""),
            store.set(b"", b"k", b"v"),
            store.set(P, b"", b"v"),
            store.set(P, b"k", none),
            store.set_if(b"", b"k", b"v", ABSENT),
            store.set_if(P, b"", b"v", ABSENT),
            store.set_if(P, b"k", none, ABSENT),
            store.delete(b"", b"k"),
            store.delete(P, b""),
            store.write([], []),
            store.write([Condition(P, b"", ABSENT)], [Change(P, b"k", b"v")]),
            store.write([], [Change(b"", b"k", b"v")]),
            store.get_many([(P, b"k"), (b"", b"k")]),
            store.get_many([(P, b"")]),
            store.set_many(b"", {b"k": b"v"}),
            store.set_many(P, {b"": b"v"}),
            store.clear(b""),
            store.put_while(Condition(P, b"k", ABSENT), P, b"", b"v"),
            store.put_while(Condition(P, b"k", ABSENT), b"", b"k", b"v"),
        ]
        for attempt in attempts:
            with pytest.raises(MissingArgument):
                await attempt
        with pytest.raises(MissingArgument):
            await anext(store.pages(b""))
        assert await keys_of(store) == []

    async def test_an_empty_value_is_a_value(self, store):
        await store.set(P, b"k", b"")
        assert await value_of(store, P, b"k") == b""

    async def test_the_callers_buffers_may_change_afterwards(self, store):
        partition, key, value = bytearray(P), bytearray(b"key"), bytearray(b"value")
        await store.set(bytes(partition), bytes(key), value)  # type: ignore[arg-type]
        await store.write([], [Change(P, b"other", value)])  # type: ignore[arg-type]
        value[:] = b"wrong"
        assert await value_of(store, P, b"key") == await value_of(store, P, b"other") == b"value"

    async def test_partitions_and_keys_are_any_bytes(self, store):
        for name in (EVERY, b"\0", b".", b"*", b">", b" ", b"a/b", b"\xff" * 40):
            await store.set(name, name[::-1], name)
            assert await value_of(store, name, name[::-1]) == name
            assert await keys_of(store, name) == [name[::-1]]


class TestPartitions:
    async def test_the_same_key_in_two_partitions_is_two(self, store):
        await store.set(P, b"k", b"p")
        await store.set(Q, b"k", b"q")
        await store.delete(P, b"k")
        assert await value_of(store, Q, b"k") == b"q"
        assert await keys_of(store) == []

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ((b"a", b"b/c"), (b"a/b", b"c")),
            ((b"a", b"b.c"), (b"a.b", b"c")),
            ((b"a", b"bc"), (b"ab", b"c")),
            ((b"a", b"\0b"), (b"a\0", b"b")),
        ],
    )
    async def test_nested_and_concatenated_names_do_not_meet(self, store, one, other):
        await store.set(*one, b"one")
        assert await store.get(*other) is None
        await store.set_if(*other, b"other", ABSENT)
        assert await value_of(store, *one) == b"one"
        assert await keys_of(store, one[0]) == [one[1]]

    async def test_partition_that_was_never_written_is_empty(self, store):
        assert await keys_of(store, b"never") == []
        await store.delete(b"never", b"k")
        assert await store.get(b"never", b"k") is None


class TestPredicates:
    async def test_absent(self, store):
        await store.set_if(P, b"k", b"1", ABSENT)
        with pytest.raises(PredicateFailed):
            await store.set_if(P, b"k", b"2", ABSENT)
        await store.delete(P, b"k")
        await store.set_if(P, b"k", b"3", ABSENT)
        assert await value_of(store, P, b"k") == b"3"

    async def test_as_read(self, store):
        await store.set(P, b"k", b"1")
        read = (await as_read(store, P, b"k")).revision
        await store.set_if(P, b"k", b"2", read)
        for late in (b"3", b"1"):
            with pytest.raises(PredicateFailed):
                await store.set_if(P, b"k", late, read)
        assert await value_of(store, P, b"k") == b"2"

    @pytest.mark.guarantee("versions-18")
    async def test_value_changed_back_fails_the_predicate(self, store):
        await store.set(P, b"k", b"a")
        read = (await as_read(store, P, b"k")).revision
        await store.set(P, b"k", b"b")
        await store.set(P, b"k", b"a")
        with pytest.raises(PredicateFailed):
            await store.set_if(P, b"k", b"c", read)

    async def test_key_deleted_and_written_again_fails_the_predicate(self, store):
        await store.set(P, b"k", b"a")
        read = (await as_read(store, P, b"k")).revision
        await store.delete(P, b"k")
        with pytest.raises(PredicateFailed):
            await store.set_if(P, b"k", b"b", read)
        await store.set(P, b"k", b"a")
        with pytest.raises(PredicateFailed):
            await store.set_if(P, b"k", b"b", read)

    async def test_revision_of_another_key_or_partition_fails(self, store):
        for partition, key in ((P, b"k"), (P, b"other"), (Q, b"k")):
            await store.set(partition, key, b"v")
        for place in ((P, b"other"), (Q, b"k")):
            revision = (await as_read(store, *place)).revision
            with pytest.raises(PredicateFailed):
                await store.set_if(P, b"k", b"w", revision)
            with pytest.raises(PredicateFailed):
                await store.write([Condition(P, b"k", revision)], [Change(P, b"new", b"w")])
        assert await value_of(store, P, b"k") == b"v"

    async def test_one_of_many_concurrent_writes_succeeds(self, store):
        won = await asyncio.gather(
            *(store.set_if(P, b"k", b"%d" % number, ABSENT) for number in range(12)), return_exceptions=True
        )
        (made,) = [result for result in won if isinstance(result, int)]
        assert sum(isinstance(result, PredicateFailed) for result in won) == 11
        await store.set_if(P, b"k", b"again", made)

    async def test_concurrent_increments_are_all_counted(self, store, reopen):
        await store.set(P, b"n", b"0")

        async def add(own: Store) -> None:
            for _ in range(5):
                while True:
                    found = await own.get(P, b"n")
                    with suppress(PredicateFailed):
                        await own.set_if(P, b"n", b"%d" % (int(found.value) + 1), found.revision)
                        break
                    await asyncio.sleep(0.001)

        await asyncio.gather(*(add(reopen()) for _ in range(4)))
        assert await value_of(store, P, b"n") == b"20"


class TestVisibility:
    @pytest.mark.guarantee("versions-10")
    async def test_a_read_after_a_write_sees_it_in_any_session(self, store, reopen):
        other = reopen()
        for number in range(30):
            await store.set(P, b"k", b"%d" % number)
            assert await value_of(other, P, b"k") == b"%d" % number
            assert await keys_of(other) == [b"k"]
        await store.delete(P, b"k")
        assert await other.get(P, b"k") is None
        assert await keys_of(other) == []

    async def test_deleting_twice_is_not_an_error(self, store):
        await store.set(P, b"k", b"v")
        await store.delete(P, b"k")
        await store.delete(P, b"k")


class TestScan:
    async def test_scan_is_in_byte_order_whatever_the_order_of_writing(self, store):
        dice = random.Random(8)
        keys = {dice.randbytes(dice.randint(1, 4)) for _ in range(60)} | {b"\0", b"\xff", b"a", b"a\0", b"ab"}
        await fill(store, *dice.sample(sorted(keys), len(keys)))
        assert await keys_of(store) == sorted(keys)
        assert all([entry.value == b"v" + entry.key async for entry in store.scan(P)])

    @pytest.mark.parametrize("page", [1, 3, 1000])
    async def test_scan_from_a_start_in_pages_of_any_size(self, store, page, monkeypatch):
        set_pages(monkeypatch, page)
        keys = [b"%02d" % number for number in range(10)]
        await fill(store, *keys)
        for start in (b"", b"00", b"035", b"09", b"099", b"z"):
            assert await keys_of(store, start=start) == [key for key in keys if key >= start]

    async def test_pages_are_the_keys_and_values_in_order(self, store):
        keys = [b"%04d" % number for number in range(2100)]
        await store.set_many(P, {key: b"v" + key for key in keys})
        pages = [page async for page in store.pages(P, b"0003")]
        assert [entry[:2] for page in pages for entry in page] == [(key, b"v" + key) for key in keys[3:]]
        assert len(pages) > 1
        assert {entry.value async for entry in store.scan(P, values=False)} == {b""}

    async def test_partition_is_empty_until_a_key_is_set_and_once_all_are_deleted(self, store):
        assert await store.is_empty(P)
        await fill(store, b"a", b"b")
        for key in (b"b", b"a"):
            assert not await store.is_empty(P)
            await store.delete(P, key)
        assert await store.is_empty(P)
        await store.set(P, b"a", b"1")
        await store.clear(P)
        assert await store.is_empty(P)

    async def test_partition_is_cleared_soon(self, store):
        await fill(store, b"a", b"b")
        await store.set(Q, b"stays", b"1")
        await store.clear_soon(P)

        async def done() -> bool:
            return await store.is_empty(P)

        await until_async(done)
        assert await keys_of(store, Q) == [b"stays"]

    @pytest.mark.parametrize("page", [3, 6])
    async def test_an_exact_number_of_pages_ends(self, store, page, monkeypatch):
        set_pages(monkeypatch, page)
        await fill(store, *(b"%d" % number for number in range(6)))
        assert len(await keys_of(store)) == 6

    @pytest.mark.parametrize("page", [1, 2, 100])
    async def test_deleting_entries_already_read_does_not_disturb_the_scan(self, store, page, monkeypatch):
        set_pages(monkeypatch, page)
        keys = [b"%02d" % number for number in range(10)]
        await fill(store, *keys)
        seen = []
        async for entry in store.scan(P):
            seen.append(entry.key)
            await store.delete(P, entry.key)
        assert seen == keys
        assert await keys_of(store) == []

    async def test_scan_misses_only_entries_deleted_ahead(self, store, monkeypatch):
        set_pages(monkeypatch, 2)
        keys = [b"%02d" % number for number in range(10)]
        await fill(store, *keys)
        entries = store.scan(P)
        seen = [(await anext(entries)).key]
        for key in keys[4:8]:
            await store.delete(P, key)
        seen += [entry.key async for entry in entries]
        assert [key for key in seen if key not in keys[4:8]] == keys[:4] + keys[8:]
        assert len(seen) == len(set(seen))

    async def test_cancelled_scan_leaves_the_store_usable(self, store, monkeypatch):
        set_pages(monkeypatch, 1)
        await fill(store, *(b"%d" % number for number in range(50)))
        reading = asyncio.create_task(keys_of(store))
        await asyncio.sleep(0)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        assert len(await keys_of(store)) == 50

    @pytest.mark.parametrize("values", [True, False])
    async def test_entries_bring_revisions_that_hold_until_they_are_written_again(self, store, values):
        await fill(store, b"a", b"b", b"c")
        found = {entry.key: entry async for entry in store.scan(P, values=values)}
        assert {key: entry.value for key, entry in found.items()} == {
            key: b"v" + key if values else b"" for key in (b"a", b"b", b"c")
        }
        await store.set(P, b"b", b"vb")
        await store.set_if(P, b"a", b"new", found[b"a"].revision)
        for key in (b"a", b"b"):
            with pytest.raises(PredicateFailed):
                await store.set_if(P, key, b"late", found[key].revision)
        await store.write([Condition(P, b"c", found[b"c"].revision)], [Change(P, b"c", None)])
        assert await keys_of(store) == [b"a", b"b"]


class TestWrite:
    async def test_write_is_atomic(self, store):
        await fill(store, b"a", b"gone")
        read = (await as_read(store, P, b"a")).revision
        gone = await as_read(store, P, b"gone")
        conditions = [Condition(P, b"a", read), Condition(P, b"new", ABSENT), gone]
        changes = [Change(P, b"a", b"1"), Change(Q, b"new", b"2"), Change(P, b"gone", None)]
        await store.write(conditions, changes)
        assert await value_of(store, P, b"a") == b"1"
        assert await value_of(store, Q, b"new") == b"2"
        assert await keys_of(store) == [b"a"]
        for failing in ([Condition(P, b"a", read)], [Condition(P, b"a", ABSENT)], [gone]):
            with pytest.raises(PredicateFailed):
                await store.write(failing, [Change(P, b"a", b"lost"), Change(P, b"x", b"lost")])
        assert await value_of(store, P, b"a") == b"1"
        assert await keys_of(store) == [b"a"]

    async def test_revisions_of_what_was_written_hold_until_it_is_written_again(self, store):
        await fill(store, b"gone", b"fence")
        fence = await as_read(store, P, b"fence")
        changes = [Change(P, b"a", b"1"), Change(P, b"gone", None), Change(Q, b"a", b"2")]
        first, gone, second = await store.write([fence], changes)
        (third,) = await store.write([fence], [Change(P, b"b", b"3")])
        assert [first, second, third] == [
            (await as_read(store, *place)).revision for place in ((P, b"a"), (Q, b"a"), (P, b"b"))
        ]
        assert gone == ABSENT
        await store.write([Condition(P, b"a", first), Condition(P, b"gone", gone)], [Change(P, b"a", b"1")])
        with pytest.raises(PredicateFailed):
            await store.set_if(P, b"a", b"lost", first)

    async def test_key_deleted_without_a_trace_is_absent(self, store):
        await fill(store, b"a", b"b")
        for key in (b"a", b"b"):
            await store.write([], [Change(P, key, None, traceless=True)])
        assert await keys_of(store) == []
        await store.write([Condition(P, key, ABSENT) for key in (b"a", b"b")], [Change(P, b"a", b"again")])
        assert await keys_of(store) == [b"a"]

    async def test_conditions_on_keys_that_are_not_written(self, store):
        await fill(store, *(b"guard%d" % number for number in range(5)))
        guards = [await as_read(store, P, b"guard%d" % number) for number in range(5)]
        await store.write(guards, [Change(P, b"one", b"v")])
        await store.delete(P, b"guard3")
        with pytest.raises(PredicateFailed):
            await store.write(guards, [Change(P, b"two", b"v")])
        assert b"two" not in await keys_of(store)

    async def test_deleting_an_absent_key_is_allowed_in_a_write(self, store):
        await store.write([Condition(P, b"none", ABSENT)], [Change(P, b"none", None), Change(P, b"k", b"v")])
        assert await keys_of(store) == [b"k"]
        await store.set_if(P, b"none", b"v", ABSENT)

    async def test_a_key_that_was_deleted_is_absent(self, store):
        for value in (b"1", b"2"):
            await store.write([Condition(P, b"k", ABSENT), Condition(P, b"x", ABSENT)], [Change(P, b"k", value)])
            with pytest.raises(PredicateFailed):
                await store.write([Condition(P, b"k", ABSENT)], [Change(P, b"k", b"lost"), Change(P, b"y", b"lost")])
            assert await value_of(store, P, b"k") == value
            await store.delete(P, b"k")
        assert await keys_of(store) == []

    async def test_a_key_is_changed_once(self, store):
        with pytest.raises(UsageError, match="twice"):
            await store.write([], [Change(P, b"k", b"1"), Change(P, b"k", None)])
        await store.write([], [Change(P, b"k", b"1"), Change(Q, b"k", b"1")])

    async def test_concurrent_writes_of_many_tasks_are_each_written_or_refused(self, store):
        """Stores may batch them: a failing condition affects only its own writer."""
        await store.set(P, b"fence", b"1")
        fence = await as_read(store, P, b"fence")
        await fill(store, *(b"%d" % number for number in range(0, 24, 3)))

        async def create(number: int) -> None:
            key = b"%d" % number
            changes = [Change(P, key, b"new"), Change(Q, b"touched", b"")]
            await store.write([fence, Condition(P, key, ABSENT)], changes)

        ends = await asyncio.gather(*(create(number) for number in range(24)), return_exceptions=True)
        refused = [number for number, end in enumerate(ends) if isinstance(end, PredicateFailed)]
        assert refused == list(range(0, 24, 3))
        for number in range(24):
            expected = b"v%d" % number if number % 3 == 0 else b"new"
            assert await value_of(store, P, b"%d" % number) == expected

    async def test_concurrent_writes_of_the_same_key_all_succeed_in_turn(self, store):
        await store.set(P, b"n", b"0")

        async def add(number: int) -> None:
            while True:
                found = await store.get(P, b"n")
                changes = [Change(P, b"n", b"%d" % (int(found.value) + 1)), Change(Q, b"%d" % number, found.value)]
                with suppress(PredicateFailed):
                    return await store.write([Condition(P, b"n", found.revision)], changes)

        await asyncio.gather(*(add(number) for number in range(6)))
        assert await value_of(store, P, b"n") == b"6"
        found = {await value_of(store, Q, b"%d" % number) for number in range(6)}
        assert found == {b"%d" % number for number in range(6)}

    async def test_fenced_writes_stop_when_the_fence_moves(self, store):
        await store.set(P, b"fence", b"1")
        fence = await as_read(store, P, b"fence")
        await asyncio.gather(*(store.write([fence], [Change(Q, b"%d" % number, b"v")]) for number in range(20)))
        await store.set(P, b"fence", b"1")
        for keys in ([b"late"], [b"late", b"later"]):
            with pytest.raises(PredicateFailed):
                await store.write([fence], [Change(Q, key, b"v") for key in keys])
        assert len(await keys_of(store, Q)) == 20

    async def test_cancelled_writer_does_not_affect_others(self, store):
        await store.set(P, b"fence", b"1")
        fence = await as_read(store, P, b"fence")
        tasks = [
            asyncio.create_task(store.write([fence, Condition(Q, key, ABSENT)], [Change(Q, key, b"v")]))
            for key in (b"%d" % number for number in range(12))
        ]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[7].cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        others = [end for number, end in enumerate(ends) if number not in (0, 7)]
        assert [end for end in others if isinstance(end, BaseException)] == []
        assert {b"%d" % number for number in range(12) if number not in (0, 7)} <= set(await keys_of(store, Q))


async def test_a_closed_store_does_nothing(store):
    await store.set(P, b"k", b"v")
    entries = store.scan(P)
    pages = store.pages(P)
    assert await anext(pages)
    await store.close()
    attempts: list[Awaitable[Any]] = [
        store.get(P, b"k"),
        store.set(P, b"k", b"w"),
        store.set_if(P, b"k", b"w", ABSENT),
        store.delete(P, b"k"),
        store.write([], [Change(P, b"k", b"w")]),
        anext(entries),
        anext(pages),
        store.get_many([(P, b"k")]),
        store.set_many(P, {b"k": b"w"}),
        store.clear(P),
        store.partitions(),
        store.put_while(Condition(P, b"k", ABSENT), P, b"l", b"w"),
    ]
    for attempt in attempts:
        with pytest.raises(StoreClosed):
            await attempt


class TestMany:
    """Bulk operations of our own."""

    async def test_several_keys_are_read_in_the_order_asked(self, store):
        await fill(store, b"a", b"b")
        await store.set(Q, b"a", b"")
        await store.set(P, b"gone", b"v")
        await store.delete(P, b"gone")
        places = [(P, b"b"), (Q, b"a"), (P, b"none"), (P, b"gone"), (P, b"a"), (P, b"b")]
        for lasting in (False, True):
            found = await store.get_many(places, lasting=lasting)
            assert [one.value if one else None for one in found] == [b"vb", b"", None, None, b"va", b"vb"]
        assert await store.get_many([]) == []
        read = (await store.get_many([(P, b"a")]))[0]
        assert read == await store.get(P, b"a")

    async def test_hundreds_of_keys_are_read_as_new_as_one(self, store):
        keys = [b"%04d" % number for number in range(1200)]
        await store.set_many(P, dict.fromkeys(keys, b"old"))
        await store.set_many(P, dict.fromkeys(keys, b"new"))
        found = await store.get_many([(P, key) for key in [*keys, b"none"]])
        assert [one.value if one else None for one in found] == [b"new"] * 1200 + [None]

    async def test_many_keys_are_written(self, store, reopen):
        values = {b"%04d" % number: b"v%d" % number for number in range(1500)}
        await store.set_many(P, values)
        await store.set_many(P, {})
        other = reopen()
        assert {entry.key: entry.value async for entry in other.scan(P)} == values
        assert await keys_of(other, Q) == []

    async def test_partition_is_filled_in_several_calls(self, store, reopen):
        """Later values of a key replace earlier ones, also of the call before."""
        async with store.fill(P) as filling:
            await filling.add({b"%04d" % number: b"old" for number in range(1500)})
            await filling.add({b"%04d" % number: b"new" for number in range(1000, 2000)})
            await filling.add({})
            await filling.flush()
            assert len(await keys_of(store)) == 2000
            await filling.add({b"last": b"1"})
            await filling.add({b"last": b"2"})
        found = await reopen().get_many([(P, key) for key in (b"0999", b"1000", b"1999", b"last")])
        assert [one and one.value for one in found] == [b"old", b"new", b"new", b"2"]

    async def test_one_key_is_written_while_another_is_as_read(self, store, reopen):
        await store.set(P, b"fence", b"1")
        fence = await as_read(store, P, b"fence")
        for partition, key in ((Q, b"a"), (Q, b"b"), (P, b"a"), (Q, b"a")):
            held = await store.put_while(fence, partition, key, b"v" + key)
            assert (await reopen().get(partition, key)) == StoredValue(b"v" + key, held)
        assert await keys_of(store, Q) == [b"a", b"b"]
        ends = await asyncio.gather(*(store.put_while(fence, Q, b"%d" % number, b"") for number in range(20)))
        assert len(set(ends)) == 20
        await store.set(P, b"fence", b"1")
        for number in range(2):
            with pytest.raises(PredicateFailed):
                await store.put_while(fence, Q, b"late%d" % number, b"v")
        with pytest.raises(PredicateFailed):
            await store.put_while(Condition(P, b"other", fence.revision), Q, b"late", b"v")
        assert len(await keys_of(store, Q)) == 22

    async def test_a_partition_is_cleared_and_no_other(self, store, reopen):
        for partition in (P, Q, P + b"x"):
            await store.set_many(partition, {b"%d" % number: b"v" for number in range(20)})
        read = (await as_read(store, P, b"7")).revision
        await store.clear(P)
        await store.clear(b"never")
        assert await keys_of(reopen()) == []
        assert len(await keys_of(store, Q)) == len(await keys_of(store, P + b"x")) == 20
        with pytest.raises(PredicateFailed):
            await store.set_if(P, b"7", b"w", read)
        await store.set_if(P, b"7", b"w", ABSENT)
        with pytest.raises(PredicateFailed):
            await store.set_if(P, b"7", b"w", read)

    async def test_partitions_are_listed(self, store, reopen):
        assert await store.partitions() == []
        for partition in (Q, EVERY, P, b"p/1"):
            await store.set(partition, b"k", b"")
        await store.set(P, b"l", b"")
        assert await reopen().partitions() == sorted([Q, EVERY, P, b"p/1"])
        await store.clear(EVERY)
        assert await store.partitions() == sorted([Q, P, b"p/1"])

    async def test_the_largest_value_is_taken_and_none_above(self, store):
        largest, larger = b"v" * store.largest, b"v" * (store.largest + 1)
        await store.set(P, b"fence", b"1")
        fence = await as_read(store, P, b"fence")
        await store.set(P, b"a", largest)
        await store.set_many(P, {b"b": largest})
        await store.write([fence], [Change(P, b"c", largest)])
        await store.write([fence, Condition(P, b"d", ABSENT)], [Change(P, b"d", largest), Change(P, b"e", largest)])
        found = await store.get_many([(P, key) for key in (b"a", b"b", b"c", b"d", b"e")])
        assert all(one is not None and one.value == largest for one in found)
        attempts: list[Awaitable[Any]] = [
            store.set(P, b"x", larger),
            store.set_many(P, {b"x": larger}),
            store.set_if(P, b"x", larger, ABSENT),
            store.write([fence], [Change(P, b"x", larger)]),
            store.put_while(fence, P, b"x", larger),
            store.write([], [Change(P, b"x", larger)]),
        ]
        for attempt in attempts:
            with pytest.raises(UsageError, match="the maximum is"):
                await attempt
        assert b"x" not in await keys_of(store)
