"""Checks of tables: incomplete, damaged, changed or left over. [pure]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvctl.doctor.finding import ERROR, WARNING, Finding
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.tables import catalog
from kvctl.tables.config import PARTITION_PREFIX, TableConfig, is_table, stream_name


def examine(infos: Mapping[str, StreamInfo], unreachable: tuple[str, ...] = ()) -> Iterator[Finding]:
    """Check all tables in view, and partition streams without a table."""
    parts = {name for name in infos if name.startswith(PARTITION_PREFIX)}
    for info in infos.values():
        if is_table(info["config"]):
            table = catalog.found(info)
            parts -= {*table.streams}
            yield from _table(table, info, {*infos, *unreachable})
    names = {name.removeprefix(PARTITION_PREFIX).rpartition("_")[0] for name in parts}
    for name in sorted(names - {name for name in names if stream_name(name) in unreachable}):
        text = f"Partition streams exist without the table's own stream `{stream_name(name)}`"
        fix = f"Run `kvctl table create {name}` with the same options, then `kvctl table delete {name}`"
        yield Finding(WARNING, "table-leftovers", name, text, fix)


def _table(table: catalog.Found, info: StreamInfo, there: set[str]) -> Iterator[Finding]:
    name, state = table.config.name, catalog.state(info)
    if state:
        doing, command = ("created", "create") if state == catalog.CREATING else ("deleted", "delete")
        text = f"The table is incomplete: it is being {doing}, or that was interrupted"
        yield Finding(
            WARNING,
            "unfinished",
            name,
            text,
            f"If that is not running, complete it with `kvctl table {command} {name}`",
        )
        return
    missing = [stream for stream in table.streams if stream not in there]
    if missing:
        text = f"{len(missing)} of its streams do not exist, the first is `{missing[0]}`: their entries are lost"
        yield Finding(
            ERROR,
            "table-damaged",
            name,
            text,
            f"Delete it with `kvctl table delete {name}`, recreate it, and load a copy",
        )
    for field, kept, meaning in _broken(table.config, info["config"]):
        text = f"`{field}` is {kept or 'off'}: {meaning}"
        yield Finding(ERROR, "table-changed", name, text, f"`nats stream edit {stream_name(name)}`: set it back")


def _broken(config: TableConfig, stream: StreamConfig) -> Iterator[tuple[str, Any, str]]:
    """Yield settings that no table has, and their effects."""
    wanted = config.head(stream.get("first_seq", 1))
    for field, meaning in _NEEDED.items():
        if stream.get(field) != wanted.get(field):
            yield field, stream.get(field), meaning


_NEEDED = {
    "max_msgs_per_subject": "entries need exactly one version",
    "allow_atomic": "batches are refused",
    "allow_direct": "reads go only to the leader",
    "subjects": "entries are inaccessible",
}
