"""Views of streams: JSON objects and tables."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kvctl.cli.bucket.details import servers_view
from kvctl.cli.bucket.views import server_time
from kvctl.jetstream.stream_info import Peer, SourceState, StreamInfo
from kvctl.jetstream.stream_source import Source, source_states
from kvctl.render.view import Column, Row, View, age_text, document, duration_text, size_text
from kvctl.units import format_time, parse_utc


def listing_view(infos: Iterable[StreamInfo]) -> View:
    """Build the view of all streams."""
    known = {info["config"]["name"]: info["config"] for info in infos}
    rows = [_summary(info, known) for info in sorted(infos, key=lambda info: str(info["config"]["name"]))]
    columns = [
        Column("name"),
        Column("kind", style=lambda kind: "cyan" if kind != "stream" else ""),
        Column("subjects", text=", ".join),
        Column("messages", right=True),
        Column("bytes", "SIZE", text=size_text, right=True),
        Column("consumers", right=True),
        Column("last_sequence", table=False),
        Column("replicas", right=True),
        Column("storage", table=False),
        Column("created", text=age_text),
        Column("description", flex=True),
    ]
    return View(columns=columns, rows=rows, empty="No streams; create one with `kvctl stream create`")


def stream_view(info: StreamInfo) -> View:
    """Build the view of one stream."""
    row = stream_row(info)
    cluster = row["cluster"] or {}
    sections = [
        ("Servers", servers_view(cluster)),
        ("Origins", View(columns=_ORIGINS, rows=row["origins"])),
        ("Alternates, nearest first", View(columns=_ALTERNATES, rows=row["alternates"])),
    ]
    shown = [replace(column, tsv=False) for column in (*_DETAILS, *_settings(row["config"]))]
    return document(row, *(Column(name, table=False) for name in row if name in _TSV), *shown, sections=sections)


def stream_row(info: StreamInfo) -> dict[str, Any]:
    """Return a stream as a JSON object."""
    state, cluster = info["state"], info.get("cluster") or {}
    return {
        **_summary(info, {}),
        "retention": info["config"].get("retention", "limits"),
        "first_sequence": state["first_seq"],
        "first_time": server_time(state.get("first_ts")),
        "last_time": server_time(state.get("last_ts")),
        "subject_count": state.get("num_subjects", 0),
        "deleted_messages": state.get("num_deleted", 0),
        "cluster": {
            "name": cluster.get("name") or None,
            "leader": cluster.get("leader") or None,
            "replicas": [_peer(peer) for peer in cluster.get("replicas") or []],
        }
        if cluster
        else None,
        "origins": [_origin(origin) for origin in source_states(info)],
        "alternates": info.get("alternates") or [],
        "config": info["config"],
    }


def _summary(info: StreamInfo, known: dict[str, Any]) -> dict[str, Any]:
    from kvctl.kv.stream_kind import KIND, kind_of

    config, state = info["config"], info["state"]
    owner = (config.get("metadata") or {}).get(KIND)
    return {
        "name": config["name"],
        "kind": owner or str(kind_of(config, known) or "stream"),
        "subjects": config.get("subjects") or [],
        "messages": state["messages"],
        "bytes": state["bytes"],
        "consumers": state.get("consumer_count", 0),
        "last_sequence": state["last_seq"],
        "replicas": config.get("num_replicas", 1),
        "storage": config.get("storage", "file"),
        "created": format_time(parse_utc(info["created"])),
        "description": config.get("description") or None,
    }


def _peer(peer: Peer) -> dict[str, Any]:
    return {
        "name": peer["name"],
        "current": bool(peer.get("current")),
        "offline": bool(peer.get("offline")),
        "active": peer.get("active", 0) / 1e9,
        "lag": peer.get("lag", 0),
    }


def _origin(origin: SourceState) -> dict[str, Any]:
    active = origin.get("active", -1)
    return {
        "stream": origin.get("name", ""),
        "api": Source.parse(origin).api or None,
        "lag": origin.get("lag", 0),
        "active": None if active < 0 else active / 1e9,
        "error": (origin.get("error") or {}).get("description"),
    }


def _settings(config: Row) -> list[Column]:
    """Return columns for settings that differ from the defaults."""
    from kvctl.jetstream.config.config_text import STREAM, changes

    left_out = {"name", "subjects", "description", "num_replicas", "storage", "retention"}
    differing = changes({}, dict(config), STREAM)
    return [
        Column("config", change.field.replace("_", " ").capitalize(), text=_always(change.words[1]))
        for change in differing
        if change.field not in left_out
    ]


def _always(text: str) -> Any:
    return lambda _: text


def active_text(seconds: float | None) -> str:
    """Show an age in seconds, as in `3s ago`."""
    if seconds is None:
        return "never"
    return "just now" if seconds < 1 else f"{duration_text(int(seconds))} ago"


_TSV = (
    "name", "kind", "subjects", "messages", "bytes", "consumers", "last_sequence", "replicas", "storage", "created",
    "description", "retention", "first_sequence",
)  # fmt: skip
_DETAILS = (
    Column("name"),
    Column("kind"),
    Column("description"),
    Column("subjects", text=", ".join),
    Column("messages"),
    Column("bytes", "Size", text=size_text),
    Column("first_sequence"),
    Column("last_sequence"),
    Column("last_time", "Last message", text=age_text),
    Column("subject_count", "Subjects held"),
    Column("consumers"),
    Column("retention"),
    Column("storage"),
    Column("replicas"),
    Column("cluster", "Leader", text=lambda cluster: cluster["leader"] or ""),
    Column("created", text=age_text),
)
_ORIGINS = (
    Column("stream"),
    Column("api"),
    Column("lag", right=True),
    Column("active", "LAST SEEN", text=active_text),
    Column("error", style="red"),
)
_ALTERNATES = (Column("name"), Column("cluster"), Column("domain"))
