"""Views of consumers: JSON objects and tables."""

from collections.abc import Iterable, Sequence
from typing import Any

from kvctl.cli.records import CONSUMER, CONSUMER_ROW
from kvctl.jetstream import config_diff, config_text
from kvctl.render.fields import columns
from kvctl.render.view import Column, Row, View, age_text, document, duration_text
from kvctl.units import duration_from_ns, duration_seconds, format_time, parse_utc


def listing_view(infos: Iterable[dict[str, Any]], stream: str) -> View:
    """Build the view of a stream's consumers."""
    shown = columns(
        "name filters deliver_policy ack_policy pending ack_pending paused created description",
        deliver_policy="Delivers",
        ack_policy="Acks",
        paused=Column("paused", style=lambda paused: "yellow" if paused else ""),
    )
    rows = [_summary(info) for info in infos]
    empty = f"No consumers; create one with `kvctl consumer add {stream} NAME`"
    return View(columns=shown, tsv=CONSUMER_ROW.columns, rows=rows, empty=empty)


def consumer_view(info: dict[str, Any]) -> View:
    """Build the view of one consumer."""
    row = consumer_row(info)
    paused = [Column("pause_remaining", "Paused for", text=_rounded)] if row["paused"] else []
    peers = View(columns=_PEERS, rows=(row["cluster"] or {}).get("replicas", []))
    shown = (*_DETAILS, *paused, *_settings(row["config"]))
    return document(row, *shown, tsv=CONSUMER.columns, sections=[("Servers", peers)])


def consumer_row(info: dict[str, Any]) -> dict[str, Any]:
    """Return a consumer as a JSON object."""
    cluster = info.get("cluster") or {}
    return {
        **_summary(info),
        "delivered": _position(info["delivered"]),
        "ack_floor": _position(info["ack_floor"]),
        "pause_remaining": duration_seconds(duration_from_ns(info.get("pause_remaining", 0))) or None,
        "push_bound": bool(info.get("push_bound")),
        "cluster": {
            "name": cluster.get("name") or None,
            "leader": cluster.get("leader") or None,
            "replicas": [
                {"name": peer["name"], "current": bool(peer.get("current")), "lag": peer.get("lag", 0)}
                for peer in cluster.get("replicas") or []
            ],
        }
        if cluster
        else None,
        "config": info["config"],
    }


def _summary(info: dict[str, Any]) -> dict[str, Any]:
    config = info["config"]
    one = config.get("filter_subject")
    return {
        "stream": info["stream_name"],
        "name": info["name"],
        "durable": bool(config.get("durable_name")),
        "filters": [one] if one else config.get("filter_subjects") or [],
        "deliver_policy": config.get("deliver_policy", "all"),
        "ack_policy": config.get("ack_policy", "none"),
        "pending": info.get("num_pending", 0),
        "ack_pending": info.get("num_ack_pending", 0),
        "redelivered": info.get("num_redelivered", 0),
        "waiting": info.get("num_waiting", 0),
        "paused": bool(info.get("paused")),
        "created": format_time(parse_utc(info["created"])),
        "description": config.get("description") or None,
    }


def _position(position: dict[str, Any]) -> dict[str, Any]:
    last = position.get("last_active")
    return {
        "sequence": position.get("stream_seq", 0),
        "consumer_sequence": position.get("consumer_seq", 0),
        "last_active": format_time(parse_utc(last)) if last else None,
    }


def _settings(config: Row) -> Sequence[Column]:
    """Columns for what the configuration says beyond what is shown anyway."""
    left_out = {
        "name",
        "durable_name",
        "description",
        "deliver_policy",
        "ack_policy",
        "filter_subject",
        "filter_subjects",
    }
    set_fields = [
        change
        for change in config_diff.differences({}, dict(config), config_text.CONSUMER)
        if change.field not in left_out
    ]
    return [
        Column("config", change.field.replace("_", " ").capitalize(), text=_always(change.words[1]))
        for change in set_fields
    ]


def _always(text: str) -> Any:
    return lambda _: text


def _rounded(seconds: float) -> str:
    return duration_text(round(seconds))


def _position_text(position: dict[str, Any]) -> str:
    active = f", {age_text(position['last_active'])}" if position["last_active"] else ""
    return f"sequence {position['sequence']}{active}"


_DETAILS = columns(
    "stream name durable description filters deliver_policy ack_policy delivered ack_floor pending ack_pending "
    "redelivered waiting cluster created",
    deliver_policy="Delivers",
    ack_policy="Acks",
    delivered=Column("delivered", text=_position_text),
    ack_floor=Column("ack_floor", "Acknowledged up to", text=_position_text),
    waiting="Pulls waiting",
    cluster=Column("cluster", "Leader", text=lambda cluster: cluster["leader"] or ""),
)
_PEERS = columns("name current lag")
