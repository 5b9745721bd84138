"""The library's table manager, and typed access."""

from datetime import timedelta

import pytest

import kvctl
from kvctl.errors import BadKeyVersion, ReadOnly, TableExists, TableNotFound, UsageError
from kvctl.tables.changes import Insert, Put, Remove
from kvctl.tables.table import Bytes, Json, Text
from kvctl.tables.table_manager import Tables


async def test_table_from_creation_to_deletion(client, unique):
    tables, name = Tables(client), unique("T")
    table = await tables.create(name, partitions=4, settings={"ttl": timedelta(days=1)})
    with pytest.raises(TableExists):
        await tables.create(name, partitions=5)
    await table.put(b"k", b"v")
    assert sum(await tables.counts(name)) == 1
    await tables.update(name, description="changed")
    listed = {found.config.name: found.config for found in await tables.listing()}
    assert listed[name].settings == {"ttl": timedelta(days=1), "description": "changed"}
    assert await tables.seal(name)
    assert await (await tables.open(name)).exists(b"k")
    await tables.delete(name)
    with pytest.raises(TableNotFound):
        await tables.open(name)


async def test_typed_keys_and_values(client, unique):
    tables, name = Tables(client), unique("T")
    await tables.create(name)
    users = await tables.open_typed(name, Text(), Json())
    version = await users.put("ålice", {"b": [1, 2.5, None], "a": "ü"})
    with pytest.raises(BadKeyVersion):
        await users.put_if_absent("ålice", {})
    await users.update([Insert("bob", 3), Put("ålice", [], version)])
    found = await users.get("ålice")
    assert (found.key, found.value) == ("ålice", [])
    assert [entry.key async for entry in users.entries()] == ["bob", "ålice"]
    assert [entry and entry.value for entry in await users.get_all(["none", "bob"])] == [None, 3]
    await users.update([Remove("bob"), Remove("ålice", found.version)])
    assert not await users.exists("bob")


async def test_equal_json_is_equal_bytes():
    assert Json().serialize({"b": 1, "a": 2}) == Json().serialize({"a": 2, "b": 1}) == b'{"a":2,"b":1}'
    assert Bytes().deserialize(Bytes().serialize(b"\xff")) == b"\xff"
    with pytest.raises(ValueError, match="JSON"):
        Json().serialize(float("nan"))
    for value in ({1: "a"}, {"k": (1, 2)}, [{None: 1}]):
        with pytest.raises(TypeError):
            Json().serialize(value)
    for data in (b"NaN", b"[-Infinity]", b'{"a":1,"a":2}'):
        with pytest.raises(ValueError, match=r"JSON|twice"):
            Json().deserialize(data)
    assert Json().deserialize(b'{"b": 1}') == {"b": 1}


async def test_a_key_that_another_one_would_become_is_refused(client, unique):
    tables, name = Tables(client), unique("T")
    await tables.create(name)
    plain, typed = await tables.open(name), await tables.open_typed(name, Json(), Json())
    await typed.put({"a": 1}, "canonical")
    await plain.put(b'{"b": 1}', b'"not"')
    assert (await typed.get({"a": 1})).value == "canonical"
    with pytest.raises(ValueError, match="is not as Json writes it"):
        [entry async for entry in typed.entries()]


async def test_a_read_only_connection_changes_no_table(server, unique):
    async with kvctl.connect(server.url, read_only=True) as client:
        with pytest.raises(ReadOnly):
            await Tables(client).create(unique("T"))


async def test_creation_by_name_takes_settings(client, unique):
    table = await Tables(client).create(unique("T"), partitions=2, replicas=1, ttl=timedelta(hours=1))
    assert table.config.partitions == 2
    assert table.config.settings == {"ttl": timedelta(hours=1)}
    with pytest.raises(UsageError, match="`partition` is not a setting of a table"):
        await Tables(client).create(unique("T"), partition=2)
