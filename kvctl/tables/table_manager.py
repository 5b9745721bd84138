"""Manager for all tables of one connection (PDP-39's KeyValueTableManager and KeyValueTableFactory)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvctl.kv.client import Client
from kvctl.tables import catalog
from kvctl.tables.catalog import ExistingTable
from kvctl.tables.changes import K, V
from kvctl.tables.config import TableConfig
from kvctl.tables.table import Serializer, Table


class Tables:
    """Creates, opens, edits, seals, lists and deletes tables."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._api = client.api

    async def create(self, config: TableConfig | str, **settings: Any) -> Table[bytes, bytes]:
        """Create a table, from a configuration or a name and its settings (`partitions`, `apart`, SETTINGS).

        Repeating it changes nothing.

        Raises TableExists (another configuration), OutcomeUnknown, ServerError, UsageError.
        """
        self._client.connection.context.require_writable()
        wanted = _config(config, settings) if isinstance(config, str) else config
        found, _ = await catalog.create(self._api, wanted)
        return Table.of_bytes(self._api, found)

    async def open(self, name: str) -> Table[bytes, bytes]:
        """Return a handle on the table. Raises TableNotFound."""
        return await Table.open(self._api, name, read_only=self._client.connection.context.read_only)

    async def open_typed(self, name: str, keys: Serializer[K], values: Serializer[V]) -> Table[K, V]:
        """Return a handle with typed keys and values. Raises TableNotFound."""
        found = await catalog.find_complete(self._api, name)
        return Table(self._api, found, keys, values, read_only=self._client.connection.context.read_only)

    async def update(self, name: str, **settings: Any) -> None:
        """Change settings of a table (SETTINGS in kvctl.tables.config). Smaller limits delete entries that exceed them.

        Raises TableNotFound, OutcomeUnknown, ServerError, UsageError.
        """
        self._client.connection.context.require_writable()
        await catalog.apply_edit(self._api, await catalog.plan_edit(self._api, name, settings))

    async def seal(self, name: str) -> bool:
        """Make a table permanently read-only; return False if it already was. Raises TableNotFound."""
        self._client.connection.context.require_writable()
        return await catalog.seal(self._api, name)

    async def delete(self, name: str) -> None:
        """Delete a table with all its entries. Raises TableNotFound."""
        self._client.connection.context.require_writable()
        await catalog.delete(self._api, name)

    async def listing(self) -> list[ExistingTable]:
        """Return all tables, by name."""
        return await catalog.listing(self._api)

    async def counts(self, name: str) -> list[int]:
        """Return the number of entries in each partition, removed ones included. Raises TableNotFound."""
        return await catalog.counts(self._api, await catalog.find(self._api, name))


def _config(name: str, settings: Mapping[str, Any]) -> TableConfig:
    own = {field: settings[field] for field in ("partitions", "apart", "settings") if field in settings}
    others = {field: value for field, value in settings.items() if field not in own}
    return TableConfig(name, **{**own, "settings": {**own.get("settings", {}), **others}})
