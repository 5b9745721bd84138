"""Creation, lookup, edit, seal, listing and deletion of tables (PDP-39's KeyValueTableManager).

A table with partition streams becomes visible when it is complete: its own stream is created first and carries a mark
until all others exist, and again during its deletion. An interrupted command is completed by running it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kvctl.errors import ConflictError, KvctlError, StreamNotFound, TableExists, TableNotFound, UnreachableError
from kvctl.jetstream import edits, streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.config_diff import Difference
from kvctl.jetstream.consumers import admin
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.jetstream.streams import ServerClock
from kvctl.kv import catalog
from kvctl.kv.catalog import Edit
from kvctl.kv.config import differences, edited
from kvctl.phrases import indented
from kvctl.suggest import did_you_mean
from kvctl.tables.config import (
    PARTITIONS,
    STREAM_PREFIX,
    TableConfig,
    check_table,
    is_table,
    life_prefix,
    partition_stream,
    stream_name,
    subject_prefix,
)

MAX_CONCURRENT_STREAMS = 16
"""Partition streams that are created, changed or deleted concurrently."""

CREATING, DELETING = "creating", "deleting"
"""States of an incomplete table."""

_STATE = "kvctl.table.state"


@dataclass(frozen=True, slots=True)
class ExistingTable:
    """An existing table."""

    config: TableConfig
    info: StreamInfo
    """Info of the table's own stream."""

    @property
    def life(self) -> int:
        """Instance of the table of this name: no two share a sequence."""
        return int(self.info["config"]["first_seq"])

    @property
    def prefix(self) -> str:
        """Prefix of the subjects of its entries."""
        return life_prefix(self.config.name, self.life)

    @property
    def sealed(self) -> bool:
        """True if it is permanently read-only."""
        return bool(self.info["config"].get("sealed"))

    @property
    def streams(self) -> list[str]:
        """Names of all its streams, its own first."""
        parts = range(self.config.partitions) if self.config.apart else ()
        return [self.info["config"]["name"], *(partition_stream(self.config.name, number) for number in parts)]


async def create(api: Api, config: TableConfig) -> tuple[ExistingTable, bool]:
    """Create a table, and return whether it is new; one with the same configuration is left unchanged.

    Raises TableExists, OutcomeUnknown, ServerError, and KvctlError if the server is too old.
    """
    info = await streams.find(api, stream_name(config.name))
    if info is not None and state(info) == DELETING:
        await _delete(api, found(info))
        info = None
    fresh = info is None
    if info is None:
        # Microseconds since 1970: no table writes faster, so sequences of two instances never overlap.
        wanted = config.head((await ServerClock.of_connection(api)).now_ns() // 1000)
        info = await _create(api, _marked(wanted, CREATING) if config.apart else wanted)
    _require_same(info, config)
    if state(info) == CREATING:
        fresh = True
        parts = config.streams(info["config"]["first_seq"])
        await _each(parts, lambda part: _create(api, part))
        info = await streams.update(api, _unmarked(info["config"]))
    return found(info), fresh


async def find(api: Api, name: str, *, incomplete: bool = False) -> ExistingTable:
    """Return the table of a name; with `incomplete` also one that is being created or deleted. Raises TableNotFound."""
    info = await streams.find(api, stream_name(check_table(name)))
    if info is None or not is_table(info["config"]) or (state(info) and not incomplete):
        raise await _missing(api, name, info)
    return found(info)


async def find_complete(api: Api, name: str) -> ExistingTable:
    """Return the table if all partitions exist. Raises TableNotFound, KvctlError if some do not."""
    prefix = subject_prefix(check_table(name))
    table, names = await asyncio.gather(find(api, name), streams.names(api, f"{prefix}>"))
    if missing := sorted({*table.streams} - {*names}):
        raise KvctlError(
            f"Table `{name}` has {table.config.partitions} partitions, but {len(missing)} of its streams do not exist: "
            f"`{missing[0]}` ...",
            hint="See the details with `kvctl doctor`",
        )
    return table


async def listing(api: Api) -> list[ExistingTable]:
    """Return all tables, by name."""
    infos = (await streams.listing(api)).answering
    tables = [found(info) for info in infos if is_table(info["config"]) and not state(info)]
    return sorted(tables, key=lambda table: table.config.name)


async def partitions(api: Api, table: ExistingTable) -> AsyncIterator[tuple[str, StreamInfo | None]]:
    """Yield the partition streams of a table in order, with None for one that does not answer."""
    async for item in streams.infos(api, table.streams[1:], MAX_CONCURRENT_STREAMS):
        yield item


async def counts(api: Api, table: ExistingTable) -> list[int]:
    """Return the number of entries of each partition, removed ones included: their markers are counted too.

    The server counts them for temporary consumers; nothing is read.
    """
    slots = asyncio.Semaphore(MAX_CONCURRENT_STREAMS)

    async def count(partition: int) -> int:
        async with slots:
            name = table.config.name
            stream = partition_stream(name, partition) if table.config.apart else stream_name(name)
            entries = f"{table.prefix}{partition:04x}.>"
            return await admin.count(api, stream, deliver_policy="last_per_subject", filter_subject=entries)

    return list(await asyncio.gather(*(count(partition) for partition in range(table.config.partitions))))


async def plan_edit(api: Api, name: str, changes: Mapping[str, Any], clear: Collection[str] = ()) -> list[Edit]:
    """Plan the changes of a table's settings, stream by stream. Raises TableNotFound, UsageError."""
    table = await find(api, name)
    return [Edit(info, edited(info["config"], changes, clear)) for info in [table.info, *await _parts(api, table)]]


async def apply_edit(api: Api, planned: Iterable[Edit]) -> None:
    """Apply the changes. Raises OutcomeUnknown, ServerError; running the edit again completes it."""
    await _each([edit for edit in planned if edit.differences], lambda edit: catalog.apply_edit(api, edit))


async def seal(api: Api, name: str) -> bool:
    """Make a table permanently read-only; return False if it already was.

    Raises TableNotFound, OutcomeUnknown, UnreachableError for a partition that does not answer: nothing is sealed then.
    """
    table = await find(api, name)
    parts = [info["config"] for info in await _parts(api, table)]
    if table.sealed and all(part.get("sealed") for part in parts):
        return False
    await _each([part for part in parts if not part.get("sealed")], lambda part: streams.seal(api, part))
    if not table.sealed:
        await streams.seal(api, table.info["config"])  # last, so that an interrupted seal can be completed
    return True


async def delete(api: Api, name: str) -> None:
    """Delete a table with all its entries. Raises TableNotFound, OutcomeUnknown; running it again completes it."""
    info = await streams.find(api, stream_name(check_table(name)))
    if info is None or not is_table(info["config"]):
        raise await _missing(api, name, info)
    await _delete(api, found(info))


def found(info: StreamInfo) -> ExistingTable:
    """Return the table of a stream, which must be one."""
    return ExistingTable(TableConfig.from_stream(info["config"]), info)


def state(info: StreamInfo) -> str | None:
    """Return `creating` or `deleting`; None for a complete table."""
    return (info["config"].get("metadata") or {}).get(_STATE)


async def _parts(api: Api, table: ExistingTable) -> list[StreamInfo]:
    """Return the infos of the partition streams. Raises UnreachableError for one that does not answer."""
    infos: list[StreamInfo] = []
    async for stream, info in partitions(api, table):
        if info is None:
            raise UnreachableError(
                f"`{stream}`, a partition of table `{table.config.name}`, does not answer: nothing was changed",
                hint="Find offline servers with `kvctl doctor`",
            )
        infos.append(info)
    return infos


async def _delete(api: Api, table: ExistingTable) -> None:
    own, *parts = table.streams
    if parts and state(table.info) != DELETING:
        await streams.update(api, _marked(table.info["config"], DELETING))
    await _each(parts, lambda part: _delete_stream(api, part))
    await _delete_stream(api, own)


async def _delete_stream(api: Api, stream: str) -> None:
    with suppress(StreamNotFound):
        await edits.delete(edits.stream(api, stream))


async def _create(api: Api, wanted: StreamConfig) -> StreamInfo:
    """Create the stream, or return the one that was created concurrently."""
    try:
        return await catalog.create_stream(api, wanted)
    except ConflictError:
        return await streams.info(api, wanted["name"])


async def _each(items: Iterable[Any], do: Callable[[Any], Awaitable[object]]) -> None:
    """Call `do` for all items, some concurrently; raise the first error after the running calls have ended."""
    slots = asyncio.Semaphore(MAX_CONCURRENT_STREAMS)

    async def one(item: Any) -> None:
        async with slots:
            await do(item)

    done = await asyncio.gather(*(one(item) for item in items), return_exceptions=True)
    for error in done:
        if isinstance(error, BaseException):
            raise error


def _marked(config: StreamConfig, state: str) -> StreamConfig:
    return {**config, "metadata": {**config["metadata"], _STATE: state}}


def _unmarked(config: StreamConfig) -> StreamConfig:
    return {**config, "metadata": {name: text for name, text in config["metadata"].items() if name != _STATE}}


def _require_same(info: StreamInfo, config: TableConfig) -> None:
    found = info["config"]
    if not is_table(found):
        raise TableExists(f"Stream `{found['name']}` exists and is not a table", hint="Choose another name")
    wanted = config.head(found["first_seq"])
    if differing := [_named(item) for item in differences(_unmarked(found), wanted) if item.field not in _FOLLOWS]:
        raise TableExists(
            indented(f"Table `{config.name}` exists with another configuration (current -> requested):", differing),
            hint=f"See it with `kvctl table show {config.name}`, change it with `kvctl table edit`",
        )


_FOLLOWS = ("sealed", "subjects")
"""Fields in which tables with the same configuration may differ, or that only repeat another difference."""


def _named(item: Difference) -> Difference:
    name = item.field.removeprefix("metadata.")
    return Difference("partitions" if name == PARTITIONS else name.rpartition(".")[2], item.before, item.after)


async def _missing(api: Api, name: str, info: StreamInfo | None) -> TableNotFound:
    doing = state(info) if info else None
    if doing:
        again = "create" if doing == CREATING else "delete"
        return TableNotFound(
            f"Table `{name}` is incomplete: being {'created' if doing == CREATING else 'deleted'}, or interrupted",
            hint=f"If that is not running, complete it with `kvctl table {again} {name}`",
        )
    names = {one.removeprefix(STREAM_PREFIX) for one in await streams.names(api) if one.startswith(STREAM_PREFIX)}
    remedy = f"List tables with `kvctl table ls`, or create it with `kvctl table create {name}`"
    return TableNotFound(f"Table `{name}` does not exist", hint=did_you_mean(name, names, remedy))
