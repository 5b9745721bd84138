"""Views of streams: JSON objects and tables."""

from collections.abc import Iterable, Mapping
from typing import Any

from kvctl.cli.bucket.details import cluster_row, servers_view
from kvctl.cli.bucket.views import server_time
from kvctl.cli.records import STREAM, STREAM_ROW
from kvctl.jetstream import config_diff, config_text
from kvctl.jetstream.stream_info import Source, SourceState, StreamInfo, source_states
from kvctl.kv import stream_kind
from kvctl.render.fields import columns
from kvctl.render.view import Column, Row, View, age_text, document
from kvctl.topology.survey import offline as survey_offline
from kvctl.units import format_time, parse_utc


def listing_view(infos: Iterable[StreamInfo], offline: Mapping[str, StreamInfo | None]) -> View:
    """Build the view of all streams; those of `offline` streams without info have only a name."""
    infos, away = list(infos), [info for info in offline.values() if info is not None]
    known = {info["config"]["name"]: info["config"] for info in (*infos, *away)}
    rows = [*(_summary(info, known) for info in infos), *(_offline(info, known) for info in away)]
    rows += [_unknown(name) for name, info in offline.items() if info is None]
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
    state, placed = info["state"], survey_offline.placed_in(info) if offline else None
    row = {
        **(_offline(info, {}) if offline else _summary(info, {})),
        "retention": info["config"].get("retention", "limits"),
        "first_sequence": state["first_seq"],
        "first_time": server_time(state.get("first_ts")),
        "last_time": server_time(state.get("last_ts")),
        "subject_count": state.get("num_subjects", 0),
        "deleted_messages": state.get("num_deleted", 0),
        "cluster": cluster_row(info.get("cluster") or {}, placed),
        "origins": [_origin(origin) for origin in source_states(info)],
        "alternates": info.get("alternates") or [],
        "config": info["config"],
    }
    row |= dict.fromkeys(_OF_CONTENTS) if offline else {}
    row["state"] = row.pop("state")
    return row


def _summary(info: StreamInfo, known: dict[str, Any]) -> dict[str, Any]:
    config, state = info["config"], info["state"]
    owner = (config.get("metadata") or {}).get(stream_kind.KIND)
    return {
        "name": config["name"],
        "kind": owner or str(stream_kind.kind_of(config, known) or "stream"),
        "subjects": config.get("subjects") or [],
        "messages": state["messages"],
        "bytes": state["bytes"],
        "consumers": state.get("consumer_count", 0),
        "last_sequence": state["last_seq"],
        "replicas": config.get("num_replicas", 1),
        "storage": config.get("storage", "file"),
        "created": format_time(parse_utc(info["created"])),
        "description": config.get("description") or None,
        "state": None,
    }


def _offline(info: StreamInfo, known: dict[str, Any]) -> dict[str, Any]:
    unknown = dict.fromkeys(("messages", "bytes", "consumers", "last_sequence"))
    return {**_summary(info, known), **unknown, "state": "offline"}


def _unknown(name: str) -> dict[str, Any]:
    names = ("messages", "bytes", "consumers", "last_sequence", "replicas", "storage", "created")
    return {"name": name, "kind": "unknown", "subjects": [], **dict.fromkeys(names), "description": None,
            "state": "offline"}  # fmt: skip


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


_OF_CONTENTS = ("first_sequence", "first_time", "last_time", "subject_count", "deleted_messages")
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
