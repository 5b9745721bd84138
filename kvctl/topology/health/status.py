"""Replication status: a row for each replica and origin, with location, progress and health; metrics of the rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvctl.jetstream.api import Api
from kvctl.kv.names import STREAM_PREFIX
from kvctl.kv.resolve import missing
from kvctl.kv.stream_kind import Kind
from kvctl.topology.health.health import SECOND_LOOK, Health, ReplicaHealth, check_health
from kvctl.topology.model import file as model_file
from kvctl.topology.model.notation import rules_json
from kvctl.topology.survey.graph import Inventory, Node, Place
from kvctl.topology.survey.inventory import silence, survey
from kvctl.units import format_time, parse_time

Row = dict[str, Any]
"""The JSON object; None for unknown fields."""

FIELDS = (
    "replica stream kind context domain cluster origin origin_stream origin_context origin_domain origin_api "
    "origin_cluster keys state lag last_seen error revision origin_revision created origin_created evidence prefix map "
    "transforms"
).split()
_MOVING = ("last_seen",)
"""Fields that differ at every look."""
GONE = "gone"
"""Health of a replica that has disappeared since the last look."""
ABSENT = "absent"
"""Health of a replica that is in the file but does not exist."""


class ReplicaSelection(NamedTuple):
    """Selection of replicas; with neither names nor topology all."""

    names: Collection[str] = ()
    """Names of replicas; origins stand for all their replicas."""
    topology: model_file.Topology | None = None
    """A file whose replicas are selected, in its contexts."""
    must_exist: bool = True
    """True if an unknown name is an error."""

    @property
    def selects(self) -> bool:
        """True if it selects some replicas, not all."""
        return bool(self.names or self.topology)

    def means(self, replica: str, origin: str | None) -> bool:
        """Return whether a replica of this origin is selected."""
        return not self.names or bool({replica, origin} & set(self.names))


async def status(apis: Mapping[str, Api], wanted: ReplicaSelection, second_look: float = SECOND_LOOK) -> list[Row]:
    """Return the rows, by replica and origin. Raises BucketNotFound, and what a listing raises."""
    return await status_of(await survey(apis), wanted, second_look)


async def status_of(inventory: Inventory, wanted: ReplicaSelection, second_look: float = SECOND_LOOK) -> list[Row]:
    """Return the rows of what was surveyed. Raises BucketNotFound."""
    if wanted.must_exist:
        _require_known(inventory, wanted.names)
    links = (link for link in inventory.links if wanted.means(link.node.name, link.origin_node.name))
    found = [_row(standing) for standing in await check_health(inventory.only(links), second_look)]
    # Any stream that is only known by its name may be a replica of anything.
    found += [_silent(place, stream) for place in inventory.places.values() for stream in place.unknown]
    if wanted.topology is not None:
        found = _of_file(found, wanted.topology)
    found = [row for row in found if row["origin"] is None or wanted.means(row["replica"], row["origin"])]
    order = ("replica", "context", "origin", "transforms")
    return sorted(found, key=lambda row: [str(row[name] or "") for name in order])


def changes(before: Iterable[Row], after: Iterable[Row]) -> list[Row]:
    """Return the rows that changed, and those that disappeared."""
    known = {_identity(row): _lasting(row) for row in before}
    found = {_identity(row): row for row in after}
    new = [row for identity, row in found.items() if known.get(identity) != _lasting(row)]
    return new + [{**row, "state": GONE, "evidence": None} for row in before if _identity(row) not in found]


def _row(standing: ReplicaHealth) -> Row:
    link, replica = standing.link, standing.link.node
    words = rules_json(link.source, replica.stream)
    return {
        **_of_replica(replica),
        **_of_origin(link.origin_node),
        "keys": words.pop("keys"),
        "state": str(standing.state),
        "lag": standing.lag,
        "last_seen": standing.last_seen,
        "error": link.upstream.error,
        "revision": standing.arrived,
        "origin_revision": standing.origin_last,
        "created": format_time(parse_time(link.info["created"])),
        "origin_created": format_time(parse_time(link.origin["created"])) if link.origin else None,
        "evidence": standing.evidence or None,
        **words,
    }


def _of_replica(node: Node) -> Row:
    known = {name: getattr(node, name) for name in "stream kind context domain cluster".split()}
    return {"replica": node.name, **known}


def _of_origin(node: Node) -> Row:
    known = {f"origin_{name}": getattr(node, name) for name in "stream context domain api cluster".split()}
    return {"origin": node.name, **known}


def _unknown(node: Node, state: str, evidence: str) -> Row:
    known = {**_of_replica(node), "keys": [], "transforms": [], "state": state, "evidence": evidence}
    return {**dict.fromkeys(FIELDS), **known}


def _silent(place: Place, stream: str) -> Row:
    """Return the row of a stream whose servers do not answer; it may read from another one."""
    text, clue = silence(()), place.clues.get(stream)
    if clue is None:
        return _unknown(place.node(stream), Health.OFFLINE, f"{text}; it may be a replica")
    origin = place.infos[clue.origin]
    return {
        **_unknown(place.node(stream), Health.OFFLINE, text),
        **_of_origin(place.node(clue.origin)),
        "origin_revision": origin["state"]["last_seq"],
        "origin_created": format_time(parse_time(origin["created"])),
        **rules_json(clue.source, stream),
    }


def _of_file(found: Iterable[Row], topology: model_file.Topology) -> list[Row]:
    """Return the rows of a file's replicas, and of those that do not exist."""
    kinds = dict.fromkeys(topology.mirrors, Kind.MIRROR) | dict.fromkeys(topology.aggregates, Kind.AGGREGATE)
    places = {name: topology.place_of(name) or None for name in kinds}
    mine = [row for row in found if row["replica"] in kinds and places[row["replica"]] == row["context"]]
    absent = set(kinds) - {row["replica"] for row in mine}
    streams = {name: name if kinds[name] is Kind.MIRROR else STREAM_PREFIX + name for name in absent}
    nodes = [Node(stream, name, stream, str(kinds[name]), places[name]) for name, stream in streams.items()]
    text = "does not exist: `kvctl topology plan` shows how to create it"
    return mine + [_unknown(node, ABSENT, text) for node in nodes]


def _require_known(inventory: Inventory, names: Collection[str]) -> None:
    known = {node.name for link in inventory.links for node in (link.node, link.origin_node)}
    for place in inventory.places.values():
        known |= {place.node(stream).name for stream in (*place.infos, *place.unreachable)}
    for name in names:
        if name not in known:
            raise missing(name, known)


def _identity(row: Row) -> tuple[Any, ...]:
    names = ("context", "stream", "origin_context", "origin_domain", "origin_api", "origin_stream")
    return (*(row[name] for name in names), str(row["transforms"]))


def _lasting(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in _MOVING}


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
    """Return the metrics of the rows, and whether the buckets whose name is wanted answer."""
    state = Metric("kvctl_replica_state", "State of a replica for one of its origins: 1 for the current one, else 0.")
    behind = Metric("kvctl_replica_entries_behind", "Entries of the origin that have not arrived in the replica.")
    numbers = {name: Metric(*named) for name, named in _NUMBERS.items()}
    for row in rows:
        labels = _labels(row)
        for name in (*map(str, Health), ABSENT):
            state.add({**labels, "state": name}, float(row["state"] == name))
        behind.add(labels, _behind(row))
        for name, metric in numbers.items():
            metric.add(labels, row[name])
    up = Metric("kvctl_bucket_up", "Whether the servers of the bucket answer: 1 or 0.")
    for place in inventory.places.values():
        for node in map(place.node, place.known):
            if node.kind in (Kind.BUCKET, Kind.MIRROR, Kind.AGGREGATE) and wanted(node.name):
                where = {name: getattr(node, name) for name in "kind context domain cluster".split()}
                up.add({"bucket": node.name, **where}, float(not node.offline))
    return [state, behind, *numbers.values(), up]


def exposition(found: Iterable[Metric]) -> str:
    """Return the text format of Prometheus; metrics without samples are left out.

    https://prometheus.io/docs/instrumenting/exposition_formats/
    """
    lines: list[str] = []
    for metric in found:
        if metric.samples:
            lines += [f"# HELP {metric.name} {_escaped(metric.help)}", f"# TYPE {metric.name} gauge"]
            lines += [f"{metric.name}{_braced(labels)} {_number(value)}" for labels, value in metric.samples]
    return "".join(f"{line}\n" for line in lines)


_NUMBERS = {
    "lag": ("kvctl_replica_lag_messages", "Missing messages as the server reports them; 0 proves nothing."),
    "last_seen": ("kvctl_replica_last_seen_seconds", "Time since the last message from the origin."),
    "revision": ("kvctl_replica_revision", "Revision of the origin up to which everything has arrived."),
    "origin_revision": ("kvctl_replica_origin_revision", "Last revision of the origin."),
}
"""Metrics of fields of rows."""


def _labels(row: Row) -> dict[str, str | None]:
    rules = row["map"] or {}
    keys = ",".join(f"{src}:{dest}" for src, dest in rules.items()) or ",".join(row["keys"] or ())
    names = "replica kind context domain cluster origin origin_context origin_domain origin_api origin_cluster".split()
    return {**{name: row[name] for name in names}, "keys": keys, "prefix": row["prefix"]}


def _behind(row: Row) -> int | None:
    """Return the missing entries; None if they are unknown, as with a filter that others pass by."""
    if row["state"] == Health.OK:
        return 0
    known = row["revision"] is not None and row["origin_revision"] is not None
    if not known or row["keys"] or row["map"] or row["state"] == Health.RECREATED_ORIGIN:
        return None
    return max(int(row["origin_revision"]) - int(row["revision"]), 0)


def _braced(labels: Labels) -> str:
    known = ",".join(f'{name}="{_quoted(value)}"' for name, value in labels.items() if value)
    return f"{{{known}}}" if known else ""


def _quoted(value: str) -> str:
    return _escaped(value).replace('"', '\\"')


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
