"""Buckets as rows and documents: the JSON objects, and how a terminal shows them."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvctl.quantities import duration_from_ns, duration_seconds, format_time
from kvctl.render.view import Column, Row, View, age_text, document, duration_text, size_text

if TYPE_CHECKING:
    from kvctl.kv.config import BucketStatus
    from kvctl.kv.difference import Difference
    from kvctl.topology.buckets import Description
    from kvctl.topology.observe import Dependent, Upstream

_KINDS = {"aggregate": "cyan", "mirror": "cyan", "stream": "dim", "incomplete": "yellow", "unreachable": "red"}


def listing_view(statuses: "Iterable[BucketStatus]", unreachable: Iterable[str]) -> View:
    """The buckets there are, and those that do not answer."""
    rows = [_listed(status) for status in statuses] + [_unreachable(stream) for stream in unreachable]
    columns = [
        Column("name"),
        Column("stream", table=False),
        Column("kind", style=lambda kind: _KINDS.get(kind, "")),
        Column("values", right=True),
        Column("bytes", "SIZE", text=size_text, right=True),
        Column("history", text=_history_text, right=True),
        Column("ttl", text=_ttl_text, right=True),
        Column("replicas", right=True),
        Column("last_revision", table=False),
        Column("created", "CREATED", text=age_text),
        Column("origins", flex=True),
        Column("description", flex=True),
    ]
    if not any(row.get("origins") for row in rows):
        columns = [column for column in columns if column.key != "origins" or not column.table]
    order = sorted(rows, key=lambda row: (row["name"], row["stream"]))
    return View(columns=columns, rows=order, empty="No buckets; `kvctl bucket add NAME` makes one")


def bucket_view(description: "Description") -> View:
    """Everything about one bucket."""
    row = bucket_row(description)
    config = row["config"]
    sections = [
        ("Servers", View(columns=_PEERS, rows=row["cluster"].get("replicas", []))),
        ("Origins", View(columns=_ORIGINS, rows=row["origins"])),
        ("Alternates, nearest first", View(columns=_ALTERNATES, rows=row["alternates"])),
        ("Replicated by", View(columns=_DEPENDENTS, rows=row["dependents"] or [])),
    ]
    shown = [replace(column, tsv=False) for column in (*_DETAILS, *_settings(config), *_TAIL)]
    return document(row, *_FIELDS, *shown, sections=sections)


def bucket_row(description: "Description") -> dict[str, Any]:
    """The JSON object of a bucket."""
    status = description.status
    info, dependents = status.info, description.dependents
    return {
        "name": status.bucket,
        "stream": status.stream,
        "kind": str(status.kind),
        "description": status.config.get("description", ""),
        "backing_store": status.backing_store,
        "compressed": status.is_compressed,
        "values": status.values,
        "history": status.history,
        "bytes": status.bytes,
        "ttl": duration_seconds(status.ttl),
        "last_revision": status.last_revision,
        "created": format_time(status.created_ns),
        "replicas": status.replicas,
        "cluster": _cluster(info.get("cluster") or {}),
        "origins": [_origin_row(upstream) for upstream in description.upstreams],
        "alternates": info.get("alternates") or [],
        "dependents": None if dependents is None else [dependent_row(item) for item in dependents],
        "config": status.config,
    }


def dependent_row(item: "Dependent") -> dict[str, Any]:
    """The JSON object of a stream that replicates a bucket."""
    upstream = item.upstream
    return {
        "name": item.name,
        "stream": item.stream,
        "kind": str(item.kind),
        "lag": upstream.lag,
        "active": upstream.active,
        "error": upstream.error,
    }


def difference_view(found: "Iterable[Difference]", *, worded: bool) -> View:
    """What a change changes; in words for people, in plain values for scripts."""
    from kvctl.kv.difference import shown

    rows = [
        {"field": item.field, "before": shown(item.field, item.before), "after": shown(item.field, item.after)}
        if worded
        else {"field": item.field, "before": item.before, "after": item.after}
        for item in found
    ]
    columns = [Column("field"), Column("before", style="red"), Column("after", style="green")]
    return View(columns=columns, rows=rows, name="field", empty="Nothing would change")


def _listed(status: "BucketStatus") -> dict[str, Any]:
    mirror = status.config.get("mirror")
    origins = [mirror] if mirror else status.config.get("sources") or []
    return {
        "name": status.bucket,
        "stream": status.stream,
        "kind": str(status.kind),
        "values": status.values,
        "bytes": status.bytes,
        "history": status.history,
        "ttl": duration_seconds(status.ttl),
        "replicas": status.replicas,
        "last_revision": status.last_revision,
        "created": format_time(status.created_ns),
        "origins": [origin["name"].removeprefix("KV_") for origin in origins],
        "description": status.config.get("description", ""),
    }


def _unreachable(stream: str) -> dict[str, Any]:
    fields = ("values", "bytes", "history", "ttl", "replicas", "last_revision", "created")
    return {
        "name": stream.removeprefix("KV_"),
        "stream": stream,
        "kind": "unreachable",
        **dict.fromkeys(fields),
        "origins": [],
        "description": "",
    }


def _cluster(cluster: dict[str, Any]) -> dict[str, Any]:
    if not cluster:
        return {}
    peers = [
        {
            "name": peer["name"],
            "current": bool(peer.get("current")),
            "offline": bool(peer.get("offline")),
            "active": peer.get("active", 0) / 1e9,
            "lag": peer.get("lag", 0),
        }
        for peer in cluster.get("replicas") or []
    ]
    return {"name": cluster.get("name", ""), "leader": cluster.get("leader", ""), "replicas": peers}


def _origin_row(upstream: "Upstream") -> dict[str, Any]:
    return {
        "stream": upstream.stream,
        "domain": upstream.domain,
        "api": upstream.api,
        "filters": list(upstream.filters),
        "transforms": [{"src": source, "dest": target} for source, target in upstream.transforms],
        "active": upstream.active,
        "lag": upstream.lag,
        "error": upstream.error,
    }


def _settings(config: Row) -> list[Column]:
    """Columns for what the configuration says beyond ADR-8's defaults."""
    from kvctl.kv.kinds import own_metadata

    said: list[tuple[str, str]] = []
    if config.get("subject_delete_marker_ttl"):
        said.append(("Marker TTL", duration_text(_seconds(config["subject_delete_marker_ttl"]))))
    elif config.get("allow_msg_ttl"):
        said.append(("TTL of keys", "allowed, without markers"))
    said += [(label, size_text(config[field])) for field, label in _LIMITS if config.get(field, -1) > 0]
    placement, republish = config.get("placement") or {}, config.get("republish")
    said += [
        (label, text)
        for label, text in (("Cluster", placement.get("cluster")), ("Tags", placement.get("tags")))
        if text
    ]
    if republish:
        what = " (headers only)" if republish.get("headers_only") else ""
        said.append(("Republish", f"{republish.get('src')} -> {republish.get('dest')}{what}"))
    if config.get("allow_atomic"):
        said.append(("Atomic batches", "allowed"))
    if not (config.get("allow_direct") or config.get("mirror_direct")):
        said.append(("Direct get", "off: every read goes to the leader"))
    if config.get("sealed"):
        said.append(("Sealed", "yes: read-only for ever"))
    metadata = own_metadata(dict(config))
    if metadata:
        said.append(("Metadata", ", ".join(f"{name}={value}" for name, value in metadata.items())))
    return [Column("config", label, text=_always(text)) for label, text in said]


def _always(text: Any) -> Any:
    return lambda _: ", ".join(text) if isinstance(text, list) else text


def _seconds(nanoseconds: int) -> float:
    return duration_seconds(duration_from_ns(nanoseconds))


def _ttl_text(seconds: float) -> str:
    return duration_text(seconds) if seconds else ""


def _active_text(seconds: float) -> str:
    return "just now" if seconds < 1 else f"{duration_text(int(seconds))} ago"


def _history_text(history: int) -> str:
    return str(history) if history > 0 else "unlimited"


_LIMITS = (("max_msg_size", "Max value size"), ("max_bytes", "Max bytes"))
_FIELDS = tuple(
    Column(name, table=False)
    for name in (
        "name", "stream", "kind", "description", "backing_store", "compressed", "values", "history", "bytes", "ttl",
        "last_revision", "created", "replicas",
    )
)  # fmt: skip
_DETAILS = (
    Column("name"),
    Column("kind", style=lambda kind: _KINDS.get(kind, "")),
    Column("stream"),
    Column("description"),
    Column("values"),
    Column("bytes", "Size", text=size_text),
    Column("last_revision"),
    Column("history", text=_history_text),
    Column("ttl", "TTL", text=lambda seconds: duration_text(seconds) if seconds else "none"),
    Column("compressed"),
    Column("replicas"),
    Column("config", "Storage", text=lambda config: str(config.get("storage", "file"))),
)
_TAIL = (
    Column(
        "cluster",
        "Leader",
        text=lambda cluster: " in ".join(filter(None, (cluster["leader"], cluster["name"]))),
    ),
    Column("created", text=age_text),
)
_PEERS = (
    Column("name"),
    Column("current"),
    Column("offline", style=lambda offline: "red" if offline else ""),
    Column("lag", right=True),
    Column("active", text=_active_text),
)
_ORIGINS = (
    Column("stream"),
    Column("domain"),
    Column("api"),
    Column("filters", flex=True),
    Column("transforms", text=lambda pairs: ", ".join(f"{pair['src']} -> {pair['dest']}" for pair in pairs), flex=True),
    Column("lag", right=True),
    Column("error", style="red"),
    Column("active", text=_active_text),
)
_ALTERNATES = (Column("name"), Column("cluster"), Column("domain"))
_DEPENDENTS = (
    Column("name"),
    Column("kind"),
    Column("lag", right=True),
    Column("error", style="red"),
    Column("active", text=_active_text),
)
