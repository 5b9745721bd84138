"""Creating, finding, changing and deleting tables, in both partition modes."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import kvctl
from kvctl.errors import KvctlError, TableExists, TableNotFound, UsageError
from kvctl.tables import catalog
from kvctl.tables.changes import Insert, Remove
from kvctl.tables.config import APART, PARTITIONS, TableConfig, is_table, partition_stream
from kvctl.tables.keys import MAX_KEY, MAX_TABLE
from kvctl.tables.ranges import Range
from kvctl.tables.table import Table


@pytest.mark.guarantee("tables-2")
async def test_creating_a_table_again_changes_nothing(client, unique, apart):
    config = TableConfig(
        unique("T"), partitions=3, apart=apart, settings={"description": "x", "ttl": timedelta(days=1)}
    )
    made, fresh = await catalog.create(client.api, config)
    again, fresh_again = await catalog.create(client.api, config)
    assert (fresh, fresh_again) == (True, False)
    assert made.life == again.life
    assert (await catalog.find(client.api, config.name)).config == config
    with pytest.raises(TableExists, match="partitions: 3 -> 4"):
        await catalog.create(client.api, TableConfig(config.name, partitions=4, apart=apart, settings=config.settings))
    with pytest.raises(TableExists, match="partition-streams: "):
        await catalog.create(
            client.api, TableConfig(config.name, partitions=3, apart=not apart, settings=config.settings)
        )


async def test_listing_has_created_tables(client, table, raw):
    tables = {found.config.name: found for found in await catalog.listing(client.api)}
    assert tables[table.name].config == table.config
    names = raw.api("STREAM.NAMES")["streams"]
    assert {*tables[table.name].streams} <= {*names}
    assert len(tables[table.name].streams) == (5 if table.config.apart else 1)


async def test_concurrent_creations_make_one_table(client, unique, apart):
    config = TableConfig(unique("T"), partitions=4, apart=apart)
    made = await asyncio.gather(*(catalog.create(client.api, config) for _ in range(4)))
    assert len({found.life for found, _ in made}) == 1


async def test_bad_configurations_are_refused_before_anything_is_sent():
    for bad in ({"partitions": 0}, {"partitions": 257, "apart": True}, {"settings": {"history": 2}}):
        with pytest.raises(UsageError):
            TableConfig("T", **bad)
    with pytest.raises(UsageError):
        TableConfig("a.b")


class Killed(Exception):
    """Instead of a kill: requests after the n-th write are never sent."""


def killed_after(client: kvctl.Client, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Let only this number of requests that change streams through."""
    call, left = client.api.call, writes

    async def counted(endpoint: str, *args: Any, **settings: Any) -> Any:
        nonlocal left
        if endpoint.startswith(("STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE")):
            if not left:
                raise Killed
            left -= 1
        return await call(endpoint, *args, **settings)

    monkeypatch.setattr(client.api, "call", counted)


@pytest.mark.guarantee("tables-9", by="kill")
@pytest.mark.parametrize("writes", range(1, 5))
async def test_killed_creation_is_invisible_and_completed_by_the_next(client, unique, monkeypatch, writes):
    config = TableConfig(unique("T"), partitions=3, apart=True)
    with monkeypatch.context() as patch:
        killed_after(client, patch, writes)
        with pytest.raises(Killed):
            await catalog.create(client.api, config)
    with pytest.raises(TableNotFound, match="being created") as caught:
        await catalog.find(client.api, config.name)
    assert "kvctl table create" in str(caught.value.hint)
    assert config.name not in {found.config.name for found in await catalog.listing(client.api)}
    made, fresh = await catalog.create(client.api, config)
    assert fresh
    table = Table.of_bytes(client.api, made)
    assert len({(await table.put(b"%d" % number, b"v")).partition for number in range(20)}) == 3


@pytest.mark.guarantee("tables-9", by="kill")
@pytest.mark.parametrize("writes", range(1, 5))
async def test_killed_deletion_is_invisible_and_completed_by_the_next(client, unique, monkeypatch, raw, writes):
    config = TableConfig(unique("T"), partitions=3, apart=True)
    made, _ = await catalog.create(client.api, config)
    await Table.of_bytes(client.api, made).put(b"k", b"old")
    with monkeypatch.context() as patch:
        killed_after(client, patch, writes)
        with pytest.raises(Killed):
            await catalog.delete(client.api, config.name)
    with pytest.raises(TableNotFound, match="being deleted"):
        await catalog.find(client.api, config.name)
    if writes % 2:
        await catalog.delete(client.api, config.name)
        assert not [name for name in raw.api("STREAM.NAMES")["streams"] or () if config.name in name]
    again, fresh = await catalog.create(client.api, config)
    assert fresh
    assert again.life > made.life
    assert await Table.of_bytes(client.api, again).get(b"k") is None


async def test_settings_change_on_all_streams(client, table):
    edits = await catalog.plan_edit(client.api, table.name, {"description": "new"})
    await catalog.apply_edit(client.api, edits)
    found = await catalog.find(client.api, table.name)
    assert found.config.settings == {"description": "new"}
    parts = [info async for _, info in catalog.partitions(client.api, found)]
    assert all(info and info["config"]["description"] == "new" for info in parts)
    assert found.info["config"]["metadata"][PARTITIONS] == "4"
    assert (APART in found.info["config"]["metadata"]) == table.config.apart


async def test_missing_table_error_suggests_nearest_name(client, table):
    with pytest.raises(TableNotFound) as caught:
        await catalog.find(client.api, f"{table.name}x")
    assert f"Did you mean `{table.name}`?" in str(caught.value.hint)


async def test_opening_a_table_checks_its_partitions(client, unique, raw):
    config = TableConfig(unique("T"), partitions=3, apart=True)
    await catalog.create(client.api, config)
    raw.api(f"STREAM.DELETE.{partition_stream(config.name, 2)}")
    with pytest.raises(KvctlError, match=f"but 1 of its streams do not exist: `KVTP_{config.name}_0002`"):
        await Table.open(client.api, config.name)
    await catalog.delete(client.api, config.name)


async def test_the_longest_names_and_keys_fit_into_every_request(client, unique, apart):
    config = TableConfig(unique("T").ljust(MAX_TABLE, "x"), partitions=2, apart=apart)
    await catalog.create(client.api, config)
    table = await Table.open(client.api, config.name)
    family, key = "f" * (MAX_KEY // 2), b"\xff" * (MAX_KEY // 2)
    version = await table.put_if_absent(key, b"v", family=family)
    await table.replace(key, b"w", version, family=family)
    assert [entry.key async for page in table.pages(Range(family)) for entry in page.entries] == [key]
    await table.update([Remove(key, family=family), Insert(key[1:], b"v", family)])
    assert [entry is None for entry in await table.get_all([key, key[1:]], family=family)] == [True, False]
    await catalog.delete(client.api, config.name)


@pytest.mark.parametrize("partitions", ["", "x", "-3", "9" * 5000])
def test_stream_whose_partitions_are_no_number_is_not_a_table(partitions):
    head = TableConfig("T").head(1)
    assert is_table(head)
    assert not is_table(head | {"metadata": head["metadata"] | {PARTITIONS: partitions}})
