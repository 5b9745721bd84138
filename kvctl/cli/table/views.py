"""Views of tables, entries and versions."""

from collections.abc import Iterable, Sequence
from typing import Any

from kvctl.cli.app.session import Session
from kvctl.cli.facts import of_stream, row_of
from kvctl.cli.records import TABLE, TABLE_ENTRY, TABLE_ROW, TABLE_WRITE
from kvctl.jetstream import api as jetstream_api
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.kv import stream_kind
from kvctl.render.escapes import text_of
from kvctl.render.fields import bar_text, columns, stored, title_line
from kvctl.render.view import Column, View, document
from kvctl.tables import catalog, changes, keys
from kvctl.units import duration_from_ns, duration_seconds

_FAMILY = Column("family", text=lambda family: "''" if family == "" else family or "")
WRITES = columns("key family version", family=_FAMILY)
KEYS = columns("key family version", family=_FAMILY)
ENTRIES = columns("key family value version", family=_FAMILY)
TABLES = columns(
    "name partitions sealed replicas bytes created description",
    sealed=Column("sealed", text=lambda sealed: "yes" if sealed else ""),
)


_GROUPS = (columns("description", description=""), columns("entries bytes ttl created", bytes="stored"))
_APART = Column("partitions", text=lambda count: f"{count}, each with a stream")
_PARTITIONS = columns(
    "partition range entries part stream leader",
    range=Column("range", "hashes", text=lambda ends: "-".join(end[:4] for end in ends)),
    part=Column("part", "", text=bar_text, bar=True, yields=1),
    stream=Column("stream", differs=True),
    leader=Column("leader", differs=True),
)


def write_row(family: str | None, key: bytes, version: object) -> dict[str, Any]:
    """Return the row of a write."""
    text, encoding = text_of(key)
    coded = {} if encoding == "utf-8" else {"key_encoding": encoding}
    return {"key": text, **coded, "family": family, "version": None if version is None else str(version)}


def key_row(key: "changes.Entry") -> dict[str, Any]:
    """Return the row of a key in a listing."""
    text, encoding = text_of(key.key)
    return {"key": text, "key_encoding": encoding, "family": key.family, "version": str(key.version)}


def entry_row(entry: "changes.Entry", encoding: str | None = None) -> dict[str, Any]:
    """Return the row of an entry."""
    value, how = text_of(entry.value, encoding)
    return row_of(TABLE_ENTRY, key_row(entry), value=value, encoding=how)


def table_row(found: "catalog.ExistingTable", infos: Sequence[StreamInfo | None] = ()) -> dict[str, Any]:
    """Return the row of a table; `infos` are those of its partitions' streams."""
    config = found.config
    known = [item for item in (found.info, *infos) if item is not None]
    return row_of(
        TABLE_ROW,
        of_stream(found.info),
        name=config.name,
        partitions=config.partitions,
        partition_streams=config.apart,
        sealed=found.sealed,
        bytes=sum(item["state"]["bytes"] for item in known),
    )


async def table_document(api: "jetstream_api.Api", found: "catalog.ExistingTable") -> View:
    """Build the view of one table and its partitions."""
    config = found.config
    infos = [info async for _, info in catalog.partitions(api, found)]
    entries = await catalog.counts(api, found)
    partitions: list[dict[str, Any]] = []
    for number in range(config.partitions):
        info = infos[number] if config.apart else found.info
        first, last = keys.hash_range(number, config.partitions)
        partitions.append(
            {
                "partition": number,
                "range": [f"{first:016x}", f"{last:016x}"],
                "stream": found.streams[number + 1] if config.apart else found.streams[0],
                "leader": ((info.get("cluster") if info else None) or {}).get("leader") or None,
                "entries": entries[number],
            }
        )
    row = table_row(found, infos)
    age = duration_seconds(duration_from_ns(found.info["config"].get("max_age", 0))) or None
    metadata = stream_kind.own_metadata(found.info["config"])
    row |= {"entries": sum(entries), "ttl": age, "metadata": metadata, "partition_details": partitions}
    parts = _APART if config.apart else Column("partitions")
    most = max(entries) or 1
    held = [{**part, "part": part["entries"] / most} for part in partitions if part["entries"]]
    heading = "Partitions" if len(held) == len(entries) else f"Partitions with entries, {len(held)} of {len(entries)}"
    return document(
        row,
        *columns(
            "name stream partitions partition_streams sealed replicas storage bytes created entries ttl description"
        ),
        tsv=TABLE.columns,
        title=lambda row: title_line(row["name"], "table", "sealed" if row["sealed"] else None),
        groups=(*_GROUPS, (parts, stored(row["replicas"], row["storage"]), Column("stream"))),
        sections=[(heading, View(columns=_PARTITIONS, rows=held))],
    )


def show_writes(session: Session, rows: Iterable[dict[str, Any]], *, single: bool) -> None:
    """Print the versions of written entries; in a pipe, one a line and nothing else."""
    view = View(columns=WRITES, tsv=TABLE_WRITE.columns, rows=list(rows), single=single, name="version", light=True)
    session.show(view)
