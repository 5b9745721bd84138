"""Facts of a stream by the names of their fields, of which the rows of buckets, streams, tables and others pick."""

from collections.abc import Mapping
from typing import Any

from kvctl.cli.records import PrintedRecord
from kvctl.jetstream.stream_info import StreamInfo, parsed_sources
from kvctl.units import duration_from_ns, duration_seconds, format_time, parse_utc

_NEVER = "0001-01-01T00:00:00Z"


def of_stream(info: StreamInfo, *, offline: bool = False) -> dict[str, Any]:
    """Return all facts of a stream; of an `offline` one, what only its servers know is null."""
    config, contents = info["config"], _contents(info)
    cluster = info.get("cluster") or {}
    leaderless = cluster.get("replicas") and not cluster.get("leader")
    placed = (config.get("placement") or {}).get("cluster")  # another server answers for an offline one, with its own
    return {
        "name": config["name"],
        "stream": config["name"],
        "subjects": config.get("subjects") or [],
        "history": config.get("max_msgs_per_subject", 0),
        "ttl": duration_seconds(duration_from_ns(config.get("max_age", 0))) or None,
        "compressed": config.get("compression", "none") != "none",
        "replicas": config.get("num_replicas", 1),
        "storage": config.get("storage", "file"),
        "retention": config.get("retention", "limits"),
        "created": format_time(parse_utc(info["created"])),
        "origins": origin_rows(config),
        "description": config.get("description") or None,
        "cluster": (placed if offline else cluster.get("name")) or None,
        "config": config,
        "state": "offline" if offline else "no leader" if leaderless else None,
        **(dict.fromkeys(contents) if offline else contents),
    }


def row_of(record: PrintedRecord, facts: Any, **more: Any) -> dict[str, Any]:
    """Return the row of a record: its fields from `more`, or else from the facts, a mapping or the attributes of an
    object; what neither has is null.
    """
    known = facts if isinstance(facts, Mapping) else {name: getattr(facts, name, None) for name in record.fields}
    return {name: more[name] if name in more else known.get(name) for name in record.fields}


def origin_rows(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the JSON objects of a replica's origins, once for each key set, in a listing or after a change."""
    return [
        {
            "name": source.name.removeprefix("KV_"),
            "stream": source.name,
            "domain": source.domain,
            "api": source.api or None,
        }
        for source in parsed_sources(config)
    ]


def _contents(info: StreamInfo) -> dict[str, Any]:
    state = info["state"]
    return {
        "messages": state["messages"],
        "values": state["messages"],
        "bytes": state["bytes"],
        "consumers": state.get("consumer_count", 0),
        "first_sequence": state["first_seq"],
        "last_sequence": state["last_seq"],
        "last_revision": state["last_seq"],
        "first_time": _time(state.get("first_ts")),
        "last_time": _time(state.get("last_ts")),
        "last_write": _time(state.get("last_ts")),
        "subject_count": state.get("num_subjects", 0),
        "deleted_messages": state.get("num_deleted", 0),
    }


def _time(text: str | None) -> str | None:
    """Return a time of a stream's state; None if there is none, which servers report as the year 1."""
    return format_time(parse_utc(text)) if text and text != _NEVER else None
