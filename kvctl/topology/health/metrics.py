"""Metrics of replicas and buckets in the text format of Prometheus. [pure]

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kvctl.jetstream.stream_info import StreamInfo
from kvctl.kv.stream_kind import Kind, bucket_name
from kvctl.topology.health.health import Health
from kvctl.topology.health.status import ABSENT, Row
from kvctl.topology.survey.graph import Inventory, Place
from kvctl.units import parse_time

_KINDS = (Kind.BUCKET, Kind.MIRROR, Kind.AGGREGATE)
_STATES = (*map(str, Health), ABSENT)
_NS = 1e9
_EPOCH = "0001-01-01T00:00:00Z"
"""Time of the last message of an empty stream, as servers report it."""

Labels = Mapping[str, str | None]


@dataclass(slots=True)
class Metric:
    """A gauge with its samples; an unknown number has no sample."""

    name: str
    help: str
    samples: list[tuple[Labels, float]] = field(default_factory=list)

    def add(self, labels: Labels, value: float | None) -> None:
        """Add a sample, unless its value is unknown."""
        if value is not None:
            self.samples.append((labels, value))


def metrics(rows: Iterable[Row], inventory: Inventory, wanted: Callable[[str], bool] = lambda _: True) -> list[Metric]:
    """Return the metrics of the rows of `status`, and of the buckets whose name is wanted."""
    return [*_of_replicas(rows), *_of_buckets(inventory, wanted)]


def exposition(found: Iterable[Metric]) -> str:
    """Return the text; metrics without samples are left out."""
    lines: list[str] = []
    for metric in found:
        if metric.samples:
            lines += [f"# HELP {metric.name} {_escaped(metric.help)}", f"# TYPE {metric.name} gauge"]
            lines += [f"{metric.name}{_labels(labels)} {_number(value)}" for labels, value in metric.samples]
    return "".join(f"{line}\n" for line in lines)


def _of_replicas(rows: Iterable[Row]) -> list[Metric]:
    state = Metric("kvctl_replica_state", "State of a replica for one of its origins: 1 for the current one, else 0.")
    behind = Metric("kvctl_replica_entries_behind", "Entries of the origin that have not arrived in the replica.")
    lag = Metric("kvctl_replica_lag_messages", "Missing messages as the server reports them; 0 proves nothing.")
    seen = Metric("kvctl_replica_last_seen_seconds", "Time since the last message from the origin.")
    revision = Metric("kvctl_replica_revision", "Revision of the origin up to which everything has arrived.")
    last = Metric("kvctl_replica_origin_revision", "Last revision of the origin.")
    for row in rows:
        labels = _replica_labels(row)
        for name in _STATES:
            state.add({**labels, "state": name}, float(row["state"] == name))
        behind.add(labels, _behind(row))
        for metric, key in ((lag, "lag"), (seen, "last_seen"), (revision, "revision"), (last, "origin_revision")):
            metric.add(labels, row[key])
    return [state, behind, lag, seen, revision, last]


def _replica_labels(row: Row) -> dict[str, str | None]:
    rules = row["map"] or {}
    keys = ",".join(f"{src}:{dest}" for src, dest in rules.items()) or ",".join(row["keys"] or ())
    names = (
        "replica", "kind", "context", "domain", "cluster", "origin", "origin_context", "origin_domain", "origin_api",
        "origin_cluster",
    )  # fmt: skip
    return {**{name: row[name] for name in names}, "keys": keys, "prefix": row["prefix"]}


def _behind(row: Row) -> int | None:
    """Return the missing entries; None if they are unknown, as with a filter that others pass by."""
    if row["state"] == Health.OK:
        return 0
    known = row["revision"] is not None and row["origin_revision"] is not None
    if not known or row["keys"] or row["map"] or row["state"] == Health.RECREATED_ORIGIN:
        return None
    return max(int(row["origin_revision"]) - int(row["revision"]), 0)


def _of_buckets(inventory: Inventory, wanted: Callable[[str], bool]) -> list[Metric]:
    up = Metric("kvctl_bucket_up", "Whether the servers of the bucket answer: 1 or 0.")
    entries = Metric("kvctl_bucket_entries", "Stored entries, with history and deletions.")
    size = Metric("kvctl_bucket_size_bytes", "Stored bytes.")
    limit = Metric("kvctl_bucket_limit_bytes", "Maximum of stored bytes.")
    most = Metric("kvctl_bucket_limit_entries", "Maximum of stored entries.")
    written = Metric("kvctl_bucket_last_write_timestamp_seconds", "Time of the last entry.")
    for place in inventory.places.values():
        for stream, info in place.known.items():
            kind, config, answers = place.kind(stream), info["config"], stream in place.infos
            if kind not in _KINDS or not wanted(bucket_name(config, kind)):
                continue
            labels, state = _bucket_labels(place, info, kind), info["state"]
            up.add(labels, float(answers))
            limit.add(labels, _limit(config.get("max_bytes")))
            most.add(labels, _limit(config.get("max_msgs")))
            if answers:
                entries.add(labels, state["messages"])
                size.add(labels, state["bytes"])
                written.add(labels, _seconds(state.get("last_ts")))
    return [up, entries, size, limit, most, written]


def _bucket_labels(place: Place, info: StreamInfo, kind: Kind) -> dict[str, str | None]:
    config = info["config"]
    return {
        "bucket": bucket_name(config, kind), "kind": str(kind), "context": place.name, "domain": place.domain,
        "cluster": place.cluster_of(config["name"]),
    }  # fmt: skip


def _limit(value: int | None) -> int | None:
    return value if value and value > 0 else None


def _seconds(time: str | None) -> float | None:
    return parse_time(time) / _NS if time and time != _EPOCH else None


def _labels(labels: Labels) -> str:
    known = ",".join(f'{name}="{_quoted(value)}"' for name, value in labels.items() if value)
    return f"{{{known}}}" if known else ""


def _quoted(value: str) -> str:
    return _escaped(value).replace('"', '\\"')


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
