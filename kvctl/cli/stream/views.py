"""Views of streams: JSON objects and tables."""

from collections.abc import Iterable, Mapping
from typing import Any

from kvctl.cli.bucket.details import cluster_row, servers_view
from kvctl.cli.facts import of_stream, row_of
from kvctl.cli.records import STREAM, STREAM_ROW
from kvctl.jetstream import config_diff, config_text
from kvctl.jetstream.stream_info import Source, SourceState, StreamInfo, source_states
from kvctl.kv import stream_kind
from kvctl.render.fields import columns
from kvctl.render.view import Column, Row, View, age_text, document
from kvctl.topology.survey import offline as survey_offline


def listing_view(infos: Iterable[StreamInfo], offline: Mapping[str, StreamInfo | None]) -> View:
    """Build the view of all streams; those of `offline` streams without info have only a name."""
    infos, away = list(infos), [info for info in offline.values() if info is not None]
    known = {info["config"]["name"]: info["config"] for info in (*infos, *away)}
    rows = [*(_summary(info, known) for info in infos), *(_summary(info, known, offline=True) for info in away)]
    rows += [row_of(STREAM_ROW, _UNKNOWN, name=name) for name, info in offline.items() if info is None]
    rows.sort(key=lambda row: str(row["name"]))
    shown = columns(
        "name kind subjects messages bytes consumers replicas created description state",
        kind=Column("kind", style=lambda kind: "cyan" if kind != "stream" else ""),
        state=_STATE,
    )
    empty = "No streams; create one with `kvctl stream create`"
    return View(columns=shown, tsv=STREAM_ROW.columns, rows=rows, empty=empty)


def stream_view(info: StreamInfo, *, offline: bool = False) -> View:
    """Build the view of one stream; of an `offline` one, only its configuration and servers are known."""
    row = stream_row(info, offline=offline)
    cluster = row["cluster"] or {}
    sections = [
        ("Servers", servers_view(cluster)),
        ("Origins", View(columns=_ORIGINS, rows=row["origins"])),
        ("Alternates, nearest first", View(columns=_ALTERNATES, rows=row["alternates"])),
    ]
    return document(row, *_DETAILS, *_settings(row["config"]), tsv=STREAM.columns, sections=sections)


def stream_row(info: StreamInfo, *, offline: bool = False) -> dict[str, Any]:
    """Return a stream as a JSON object; of an `offline` one, what only its servers know is null."""
    placed = survey_offline.placed_in(info) if offline else None
    return row_of(
        STREAM,
        of_stream(info, offline=offline),
        kind=_kind(info, {}),
        cluster=cluster_row(info.get("cluster") or {}, placed),
        origins=[_origin(origin) for origin in source_states(info)],
        alternates=info.get("alternates") or [],
    )


def _summary(info: StreamInfo, known: dict[str, Any], *, offline: bool = False) -> dict[str, Any]:
    return row_of(STREAM_ROW, of_stream(info, offline=offline), kind=_kind(info, known))


def _kind(info: StreamInfo, known: dict[str, Any]) -> str:
    """Return the kind that the stream's owner has noted, or that of a bucket, or `stream`."""
    owner = (info["config"].get("metadata") or {}).get(stream_kind.KIND)
    return owner or str(stream_kind.kind_of(info["config"], known) or "stream")


def _origin(origin: SourceState) -> dict[str, Any]:
    active = origin.get("active", -1)
    return {
        "stream": origin.get("name", ""),
        "api": Source.parse(origin).api or None,
        "lag": origin.get("lag", 0),
        "last_seen": None if active < 0 else active / 1e9,
        "error": (origin.get("error") or {}).get("description"),
    }


def _settings(config: Row) -> list[Column]:
    """Return columns for settings that differ from the defaults."""
    left_out = {"name", "subjects", "description", "num_replicas", "storage", "retention"}
    differing = config_diff.differences({}, dict(config), config_text.STREAM)
    return [
        Column("config", change.field.replace("_", " ").capitalize(), text=_always(change.words[1]))
        for change in differing
        if change.field not in left_out
    ]


def _always(text: str) -> Any:
    return lambda _: text


_UNKNOWN = {"kind": "unknown", "subjects": [], "state": "offline"}
_STATE = Column("state", style="red")
_DETAILS = columns(
    "name kind state description subjects messages bytes first_sequence last_sequence last_time subject_count "
    "consumers retention storage replicas cluster created",
    state=_STATE,
    last_time=Column("last_time", "Last message", text=age_text),
    subject_count="Subjects held",
    cluster=Column("cluster", "Leader", text=lambda cluster: cluster["leader"] or ""),
)
_ORIGINS = columns("stream api lag last_seen error", error=Column("error", style="red"))
_ALTERNATES = columns("name cluster domain")
