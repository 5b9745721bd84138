"""Tables: whole, unfinished, damaged, and what is left of them. [pure]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvctl.doctor.finding import ERROR, WARNING, Finding
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.tables import catalog
from kvctl.tables.config import PARTITION_PREFIX, TableConfig, is_table, prefix_of, stream_name


def examine(infos: Mapping[str, StreamInfo], unreachable: tuple[str, ...] = ()) -> Iterator[Finding]:
    """All tables in view, and streams of partitions whose table is gone."""
    parts = {name for name in infos if name.startswith(PARTITION_PREFIX)}
    for info in infos.values():
        if is_table(info["config"]):
            table = catalog.found(info)
            parts -= {*table.streams}
            yield from _table(table, info, {*infos, *unreachable})
    names = {name.removeprefix(PARTITION_PREFIX).rpartition("_")[0] for name in parts}
    for name in sorted(names - {name for name in names if stream_name(name) in unreachable}):
        text = f"Streams of partitions are there, the table's own `{stream_name(name)}` is not"
        mends = f"`kvctl table create {name}` with the same options, then `kvctl table delete {name}`"
        yield Finding(WARNING, "table-leftovers", name, text, mends)


def _table(table: catalog.Found, info: StreamInfo, there: set[str]) -> Iterator[Finding]:
    name, state = table.config.name, catalog.state(info)
    if state:
        doing, command = ("created", "create") if state == catalog.CREATING else ("deleted", "delete")
        text = f"It is not complete: it is being {doing}, or that was interrupted"
        yield Finding(
            WARNING, "unfinished", name, text, f"If nobody is at it, `kvctl table {command} {name}` completes it"
        )
        return
    missing = [stream for stream in table.streams if stream not in there]
    if missing:
        text = f"{len(missing)} of its streams are gone, `{missing[0]}` the first: their entries are lost"
        yield Finding(ERROR, "table-damaged", name, text, f"`kvctl table delete {name}`, make it anew, and load a copy")
    for field, kept, meaning in _broken(table.config, info["config"]):
        text = f"`{field}` is {kept or 'off'}: {meaning}"
        yield Finding(ERROR, "table-changed", name, text, f"`nats stream edit {stream_name(name)}`: set it back")


def _broken(config: TableConfig, stream: StreamConfig) -> Iterator[tuple[str, Any, str]]:
    """Settings that no table has, and what they do to it."""
    wanted = config.head(stream.get("first_seq", 1), prefix_of(stream))
    for field, meaning in _NEEDED.items():
        if stream.get(field) != wanted.get(field):
            yield field, stream.get(field), meaning


_NEEDED = {
    "max_msgs_per_subject": "every entry has one version",
    "allow_atomic": "batches are refused",
    "allow_direct": "reads go to the leader alone",
    "subjects": "entries are out of reach",
}
