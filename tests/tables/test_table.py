"""Single entries of a table, in both partition modes: the requirements of PDP-39 and what Pravega's tests show."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from kvctl.errors import (
    BadKeyVersion,
    ConditionalUpdateError,
    NoSuchKey,
    ReadOnly,
    ServerError,
    TableNotFound,
    TableSealed,
    UsageError,
)
from kvctl.tables import catalog
from kvctl.tables.changes import NO_VERSION, NOT_EXISTS, Insert, Put, Remove
from kvctl.tables.keys import MAX_KEY
from kvctl.tables.stored_entries import LIFE_CHECK_S
from kvctl.tables.table import Table
from kvctl.tables.table_manager import Tables


async def test_keys_and_values_are_any_bytes(table):
    every = bytes(range(256))
    for key, value in [(every, b""), (b"\0", every), (b".", b"dot"), (b"*", b"star"), (b">", b"rest")]:
        version = await table.put(key, value)
        found = await table.get(key)
        assert (found.key, found.value, found.version, found.family) == (key, value, version, None)


@pytest.mark.guarantee("tables-1")
async def test_empty_family_differs_from_no_family(table):
    await table.put(b"k", b"none")
    await table.put(b"k", b"empty", family="")
    await table.put(b"k", b"f", family="f")
    found = [await table.get(b"k", family=family) for family in (None, "", "f", "g")]
    assert [entry and entry.value for entry in found] == [b"none", b"empty", b"f", None]


@pytest.mark.guarantee("tables-3")
async def test_each_key_has_a_version_that_changes_every_time_it_is_written(table):
    first = await table.put(b"k", b"v")
    second = await table.put(b"k", b"v")
    assert first != second
    assert await table.replace(b"k", b"v", second) not in (first, second)


@pytest.mark.guarantee("tables-3")
async def test_a_version_stays_valid_however_much_else_is_written(table):
    version = await table.put(b"k", b"v", family="f")
    for number in range(300):
        await table.put(b"%d" % number, b"other", family="f")
    await table.replace(b"k", b"w", version, family="f")


@pytest.mark.guarantee("tables-4")
async def test_conditionally_insert_update_or_remove_one_entry_at_a_time(table):
    version = await table.put_if_absent(b"k", b"1")
    with pytest.raises(BadKeyVersion, match=f"`k` exists at version {version}"):
        await table.put_if_absent(b"k", b"2")
    newer = await table.replace(b"k", b"2", version)
    with pytest.raises(BadKeyVersion, match=f"`k` is at version {newer}, not {version}") as caught:
        await table.replace(b"k", b"3", version)
    assert caught.value.failed == ((None, b"k", str(newer)),)
    with pytest.raises(BadKeyVersion):
        await table.remove(b"k", version)
    await table.remove(b"k", newer)
    assert not await table.exists(b"k")


@pytest.mark.guarantee("tables-4")
async def test_a_version_of_an_absent_key_is_no_such_key(table):
    version = await table.put(b"k", b"v")
    await table.remove(b"k")
    for key in (b"k", b"ghost"):
        for attempt in (table.replace(key, b"w", version), table.remove(key, version)):
            with pytest.raises(NoSuchKey, match="does not exist") as caught:
                await attempt
            assert caught.value.exit_code == 4
            assert caught.value.failed == ((None, key, None),)


async def test_the_special_versions(table):
    first = await table.replace(b"k", b"1", NOT_EXISTS)
    with pytest.raises(BadKeyVersion):
        await table.replace(b"k", b"2", NOT_EXISTS)
    assert await table.replace(b"k", b"2", NO_VERSION) != first
    with pytest.raises(BadKeyVersion):
        await table.remove(b"k", NOT_EXISTS)
    await table.remove(b"k", NO_VERSION)
    await table.remove(b"k", NOT_EXISTS)


@pytest.mark.guarantee("tables-3")
async def test_versions_of_other_keys_partitions_and_tables_never_hold(table):
    version = await table.put(b"k", b"v")
    others = [
        await table.put(b"other", b"v"),
        version._replace(partition=(version.partition + 1) % 4),
        version._replace(life=version.life + 1, number=version.number - 1),
    ]
    for other in others:
        with pytest.raises(BadKeyVersion, match="`k` is at version"):
            await table.replace(b"k", b"w", other)


@pytest.mark.guarantee("tables-4")
async def test_removing_a_missing_entry_succeeds_and_writes_nothing(table, client):
    before = await client.api.call(
        f"STREAM.INFO.{table.layout.bucket(table.layout.place(None, b'never')).binding.stream}"
    )
    await table.remove(b"never")
    after = await client.api.call(
        f"STREAM.INFO.{table.layout.bucket(table.layout.place(None, b'never')).binding.stream}"
    )
    assert before["state"]["last_seq"] == after["state"]["last_seq"]


@pytest.mark.parametrize(
    "headers", [{"KV-Operation": "DEL"}, {"KV-Operation": "PURGE"}, {"KV-Operation": "DEL", "Nats-TTL": "1"}]
)
async def test_key_can_be_inserted_after_any_removal_marker(table, raw, headers):
    for batch in (False, True):
        version = await table.put(b"k", b"v")
        raw.request(f"{table.layout.prefix}{table.layout.place(None, b'k')}", b"", headers)
        assert await table.get(b"k") is None
        with pytest.raises(NoSuchKey):
            await table.replace(b"k", b"w", version)
        if batch:
            await table.update(
                [Insert(b"k", b"w"), Remove(b"k" * 9)] if not table.config.apart else [Insert(b"k", b"w")]
            )
        else:
            await table.put_if_absent(b"k", b"w")
        assert await table.exists(b"k")


async def test_get_all_keeps_requested_order_with_none_for_missing_keys(table):
    keys = [b"%d" % number for number in range(50)]
    versions = {key: await table.put(key, key) for key in keys[::2]}
    asked = [*reversed(keys), keys[0], b"never"]
    found = await table.get_all(asked)
    assert [entry and entry.value for entry in found] == [key if key in versions else None for key in asked]
    assert all(entry.version == versions[entry.key] for entry in found if entry)


async def test_concurrent_conditional_writers_lose_nothing(table):
    await table.put(b"n", b"0")

    async def add() -> None:
        for _ in range(10):
            while True:
                entry = await table.get(b"n")
                try:
                    await table.replace(b"n", b"%d" % (int(entry.value) + 1), entry.version)
                    break
                except ConditionalUpdateError:
                    await asyncio.sleep(0.001)

    await asyncio.gather(*(add() for _ in range(8)))
    entry = await table.get(b"n")
    assert entry.value == b"80"


@pytest.mark.guarantee("tables-3")
async def test_handle_on_earlier_instance_of_table_does_no_harm(table, client):
    version = await table.put(b"k", b"old")
    await catalog.delete(client.api, table.name)
    await catalog.create(client.api, table.config)
    again = await Table.open(client.api, table.name)
    new = await again.put(b"k", b"new")
    assert new.number == version.number
    with pytest.raises(ConditionalUpdateError):
        await again.replace(b"k", b"lost", version)
    with pytest.raises(TableNotFound, match="deleted since it was opened"):
        await table.replace(b"k", b"lost", version)
    entry = await again.get(b"k")
    assert entry.value == b"new"


@pytest.mark.guarantee("tables-10")
async def test_sealed_table_is_permanently_read_only(table, client):
    version = await table.put(b"k", b"v")
    assert await catalog.seal(client.api, table.name)
    assert not await catalog.seal(client.api, table.name)
    for attempt in (
        table.put(b"k", b"w"),
        table.put_if_absent(b"j", b"w"),
        table.replace(b"k", b"w", version),
        table.remove(b"k"),
        table.update([Put(b"00", b"v", family="f"), Put(b"01", b"v", family="f")]),
    ):
        with pytest.raises(TableSealed):
            await attempt
    entry = await table.get(b"k")
    assert entry.value == b"v"


@pytest.mark.guarantee("tables-1")
async def test_too_large_sizes_are_refused_before_anything_is_sent(table):
    await table.put(b"k" * MAX_KEY, b"v")
    assert await table.exists(b"k" * MAX_KEY)
    with pytest.raises(UsageError, match="2,561 bytes"):
        await table.put(b"k" * (MAX_KEY + 1), b"v")
    with pytest.raises(UsageError, match="empty"):
        await table.put(b"", b"v")


async def test_use_after_close_is_a_usage_error(table):
    table.close()
    with pytest.raises(UsageError, match="was closed"):
        await table.get(b"k")
    with pytest.raises(UsageError, match="was closed"):
        await table.put(b"k", b"v")


async def test_a_read_only_handle_writes_nothing(table, client):
    handle = await Table.open(client.api, table.name, read_only=True)
    with pytest.raises(ReadOnly):
        await handle.put(b"k", b"v")
    assert await handle.get(b"k") is None


async def test_stale_handle_with_another_partition_count_writes_and_reads_nothing(table, client):
    keys = [b"%d" % number for number in range(12)]
    await catalog.delete(client.api, table.name)
    await catalog.create(client.api, replace(table.config, partitions=7))
    again = await Table.open(client.api, table.name)
    for key in keys:
        with pytest.raises(TableNotFound, match="deleted since it was opened"):
            await table.put(key, b"stale")
    await asyncio.sleep(LIFE_CHECK_S)
    for reading in (table.get(b"0"), table.get_all(keys), anext(table.pages())):
        with pytest.raises(TableNotFound):
            await reading
    assert [page.entries async for page in again.pages()] == [[]]


async def test_removal_leaves_a_permanent_marker(table, raw):
    """An entry without a marker reappears when a server is killed; markers with a ttl do not stay."""
    await table.put(b"k", b"v")
    await table.remove(b"k")
    await table.put(b"j", b"v")
    await table.update([Remove(b"j")])
    for key in (b"k", b"j"):
        place = table.layout.place(None, key)
        stream = table.layout.bucket(place).binding.stream
        reply = raw.request(f"$JS.API.DIRECT.GET.{stream}.{table.layout.prefix}{place}")
        assert reply.headers["KV-Operation"] == "PURGE"
        assert "Nats-TTL" not in reply.headers


async def test_compaction_removes_only_markers(table):
    for number in range(10):
        await table.put(b"%d" % number, b"v")
    for number in range(5):
        await table.remove(b"%d" % number)
    await table.put(b"0", b"again")
    found = await table.find_markers()
    assert sum(len(one.entries) for one in found) == 4
    await table.put(b"1", b"between")
    await table.remove_markers(found)
    assert [e.key async for page in table.pages() for e in page.entries] == [
        b"0",
        b"1",
        *(b"%d" % n for n in range(5, 10)),
    ]
    assert sum(len(one.entries) for one in await table.find_markers()) == 0
    assert sum([len(one.entries) for one in await table.find_markers(older_than=timedelta(days=1))]) == 0


async def test_messages_in_the_wrong_partition_are_no_entries(table, raw):
    keys = [b"j", b"k", b"l"]
    for key in keys:
        await table.put(key, b"right")
    number, _, rest = table.layout.place(None, b"k").partition(".")
    for other in range(table.config.partitions):
        if other != int(number, 16):
            assert "seq" in raw.request(f"{table.layout.prefix}{other:04x}.{rest}", b"wrong").json()
    for values in (True, False):
        for limit in (None, 1, 2, 3, 4):
            pages = table.pages(values=values, limit=limit)
            found = [(one.key, one.value) async for page in pages for one in page.entries]
            assert found == [(key, b"right" if values else b"") for key in keys[:limit]]


async def test_refusals_name_the_commands_of_tables(client, unique):
    table = await Tables(client).create(unique("T"), partitions=1, max_value_size=300)
    with pytest.raises(ServerError) as caught:
        await table.put(b"k", b"v" * 400)
    assert caught.value.hint is not None
    assert f"`kvctl table edit {table.name} --max-value-size SIZE`" in caught.value.hint
