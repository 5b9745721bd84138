"""Create, find, change, seal, list and delete tables (PDP-39's KeyValueTableManager).

A table with a stream for each partition is seen when it is complete: its own stream is made first and bears a mark
until all others are there, and again from the beginning of a deletion to its end. What a kill leaves is completed when
the command runs again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kvctl.errors import ConflictError, KvctlError, StreamNotFound, TableExists, TableNotFound, UnreachableError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.server_clock import ServerClock
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.kv import catalog
from kvctl.kv.catalog import Edit
from kvctl.kv.config_diff import Difference, differences
from kvctl.kv.config_edit import edited
from kvctl.tables.config import (
    PARTITIONS,
    STREAM_PREFIX,
    TableConfig,
    check_table,
    is_table,
    partition_stream,
    prefix_of,
    stream_name,
    subject_prefix,
)

AT_ONCE = 16
"""Streams of partitions that are made, changed or deleted at the same time."""

CREATING, DELETING = "creating", "deleting"
"""States of a table that is not complete."""

_STATE = "kvctl.table.state"


@dataclass(frozen=True, slots=True)
class Found:
    """A table that exists."""

    config: TableConfig
    info: StreamInfo
    """Of the table's own stream."""

    @property
    def life(self) -> int:
        """Which of the lives of this name: no two share a sequence."""
        return int(self.info["config"]["first_seq"])

    @property
    def prefix(self) -> str:
        """What the subjects of its entries begin with."""
        return prefix_of(self.info["config"])

    @property
    def sealed(self) -> bool:
        """Whether it is permanently read-only."""
        return bool(self.info["config"].get("sealed"))

    @property
    def streams(self) -> list[str]:
        """All its streams, its own first."""
        parts = range(self.config.partitions) if self.config.apart else ()
        return [self.info["config"]["name"], *(partition_stream(self.config.name, number) for number in parts)]


async def create(api: Api, config: TableConfig) -> tuple[Found, bool]:
    """Create a table, and whether it was not there before; one with the same configuration is left as it is.

    Raises TableExists, OutcomeUnknown, ServerError, and KvctlError when the server is too old.
    """
    info = await streams.find(api, stream_name(config.name))
    if info is not None and state(info) == DELETING:
        await _delete(api, found(info))
        info = None
    fresh = info is None
    if info is None:
        # Microseconds since 1970: no table writes faster, so sequences of two lives never meet.
        wanted = config.head((await ServerClock.of_connection(api)).now_ns() // 1000)
        info = await _create(api, _marked(wanted, CREATING) if config.apart else wanted)
    _require_same(info, config)
    if state(info) == CREATING:
        fresh = True
        parts = config.streams(info["config"]["first_seq"], prefix_of(info["config"]))
        await _each(parts, lambda part: _create(api, part))
        info = await streams.update(api, _unmarked(info["config"]))
    return found(info), fresh


async def find(api: Api, name: str, *, incomplete: bool = False) -> Found:
    """The table of this name; with `incomplete` also one that is being made or deleted. Raises TableNotFound."""
    info = await streams.find(api, stream_name(check_table(name)))
    if info is None or not is_table(info["config"]) or (state(info) and not incomplete):
        raise await _missing(api, name, info)
    return found(info)


async def find_whole(api: Api, name: str) -> Found:
    """The table, compared with the partitions that there are. Raises TableNotFound, KvctlError when some are gone."""
    prefix = subject_prefix(check_table(name))
    table, names = await asyncio.gather(find(api, name), streams.names(api, f"{prefix}>"))
    if missing := sorted({*table.streams} - {*names}):
        raise KvctlError(
            f"Table `{name}` has {table.config.partitions} partitions, and {len(missing)} of its streams are gone: "
            f"`{missing[0]}` ...",
            hint="`kvctl doctor` says more",
        )
    return table


async def listing(api: Api) -> list[Found]:
    """All tables, by name."""
    infos = (await streams.listing(api)).answering
    tables = [found(info) for info in infos if is_table(info["config"]) and not state(info)]
    return sorted(tables, key=lambda table: table.config.name)


async def partitions(api: Api, table: Found) -> AsyncIterator[tuple[str, StreamInfo | None]]:
    """The streams of a table that has one for each partition, in order; None for one that does not answer."""
    async for item in streams.infos(api, table.streams[1:], AT_ONCE):
        yield item


async def plan_edit(api: Api, name: str, changes: Mapping[str, Any], clear: Collection[str] = ()) -> list[Edit]:
    """The changes of a table's settings, stream by stream; nothing is changed yet. Raises TableNotFound, UsageError."""
    table = await find(api, name)
    return [Edit(info, edited(info["config"], changes, clear)) for info in [table.info, *await _parts(api, table)]]


async def apply_edit(api: Api, edits: Iterable[Edit]) -> None:
    """Make the changes. Raises OutcomeUnknown, ServerError; running the edit again completes it."""
    await _each([edit for edit in edits if edit.differences], lambda edit: catalog.apply_edit(api, edit))


async def seal(api: Api, name: str) -> bool:
    """Make a table permanently read-only; False when it was so already.

    Raises TableNotFound, OutcomeUnknown, UnreachableError for a partition that does not answer: nothing is sealed then.
    """
    table = await find(api, name)
    parts = [info["config"] for info in await _parts(api, table)]
    if table.sealed and all(part.get("sealed") for part in parts):
        return False
    await _each([part for part in parts if not part.get("sealed")], lambda part: _seal(api, part))
    if not table.sealed:
        await _seal(api, table.info["config"])  # the last one: until then the table is not sealed, and this goes on
    return True


async def delete(api: Api, name: str) -> None:
    """Delete a table with all it holds. Raises TableNotFound, OutcomeUnknown; running it again completes it."""
    info = await streams.find(api, stream_name(check_table(name)))
    if info is None or not is_table(info["config"]):
        raise await _missing(api, name, info)
    await _delete(api, found(info))


def found(info: StreamInfo) -> Found:
    """The table that a stream is, which must be one."""
    return Found(TableConfig.from_stream(info["config"]), info)


def state(info: StreamInfo) -> str | None:
    """`creating` or `deleting`; None for a table that is complete."""
    return (info["config"].get("metadata") or {}).get(_STATE)


async def _parts(api: Api, table: Found) -> list[StreamInfo]:
    """The streams of the partitions. Raises UnreachableError for one that does not answer."""
    infos: list[StreamInfo] = []
    async for stream, info in partitions(api, table):
        if info is None:
            raise UnreachableError(
                f"`{stream}`, a partition of table `{table.config.name}`, does not answer; nothing was changed",
                hint="`kvctl doctor` shows which servers are offline",
            )
        infos.append(info)
    return infos


async def _delete(api: Api, table: Found) -> None:
    own, *parts = table.streams
    if parts and state(table.info) != DELETING:
        await streams.update(api, _marked(table.info["config"], DELETING))
    await _each(parts, lambda part: _gone(api, part))
    await _gone(api, own)


async def _gone(api: Api, stream: str) -> None:
    with suppress(StreamNotFound):
        await streams.delete(api, stream)


async def _create(api: Api, wanted: StreamConfig) -> StreamInfo:
    """The stream as wanted, or as somebody else has made it meanwhile."""
    try:
        return await catalog.create_stream(api, wanted)
    except ConflictError:
        return await streams.info(api, wanted["name"])


async def _seal(api: Api, config: StreamConfig) -> None:
    await streams.update(api, {**config, "sealed": True})


async def _each(items: Iterable[Any], do: Callable[[Any], Awaitable[object]]) -> None:
    """Do it for all, some at a time; the first error is raised when those under way have ended."""
    slots = asyncio.Semaphore(AT_ONCE)

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
        raise TableExists(f"A stream `{found['name']}` exists that is no table", hint="Choose another name")
    wanted = config.head(found["first_seq"], prefix_of(found))
    if differing := [_named(item) for item in differences(_unmarked(found), wanted) if item.field not in _FOLLOWS]:
        listed = "\n".join(f"  {item}" for item in differing)
        raise TableExists(
            f"Table `{config.name}` exists with another configuration (there -> asked for):\n{listed}",
            hint=f"`kvctl table show {config.name}` shows it, `kvctl table edit` changes what can be changed",
        )


_FOLLOWS = ("sealed", "subjects")
"""What tables of one configuration may differ in, or only repeats another difference."""


def _named(item: Difference) -> Difference:
    name = item.field.removeprefix("metadata.")
    return Difference("partitions" if name == PARTITIONS else name.rpartition(".")[2], item.before, item.after)


async def _missing(api: Api, name: str, info: StreamInfo | None) -> TableNotFound:
    from difflib import get_close_matches

    doing = state(info) if info else None
    if doing:
        again = "create" if doing == CREATING else "delete"
        return TableNotFound(
            f"Table `{name}` is not complete: it is being {'created' if doing == CREATING else 'deleted'}",
            hint=f"If nobody is at it, `kvctl table {again} {name}` completes that",
        )
    names = {one.removeprefix(STREAM_PREFIX) for one in await streams.names(api) if one.startswith(STREAM_PREFIX)}
    near = get_close_matches(name, names, n=1)
    guess = f"Did you mean `{near[0]}`? " if near else ""
    return TableNotFound(
        f"Table `{name}` does not exist",
        hint=f"{guess}`kvctl table ls` lists tables, `kvctl table create {name}` makes one",
    )
