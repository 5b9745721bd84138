"""Inventories of plain values: streams as a server would list them, without a server."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvctl.documents import parser
from kvctl.jetstream.stream_info import StreamConfig, sources_of
from kvctl.kv.config import BucketConfig
from kvctl.kv.stream_kind import TOPOLOGY
from kvctl.topology.model.file import Topology, read_topology
from kvctl.topology.model.origins import Aggregate, Mirror, Origin
from kvctl.topology.plan.desired import DesiredState
from kvctl.topology.plan.location import Locator, Looked
from kvctl.topology.plan.plan_hazards import PlanHazards, found
from kvctl.topology.plan.planner import FileComparison, compare
from kvctl.topology.survey.graph import Inventory, Link, Place

Info = dict[str, Any]


def info(config: StreamConfig, *, mark: str = "", created: str = "") -> Info:
    """Return a server's info of a stream with two messages of ten bytes; `mark` is the topology that created it."""
    marked = {**config, "metadata": {**(config.get("metadata") or {}), TOPOLOGY: mark}} if mark else config
    return {
        "config": marked,
        "created": created or f"2026-01-01T00:00:00Z {config['name']}",
        "state": {"messages": 2, "bytes": 20, "last_seq": 2, "first_seq": 1},
    }


def bucket(name: str, *, mark: str = "", **settings: Any) -> Info:
    return info(BucketConfig(name, **settings).to_stream(), mark=mark)


def mirror(name: str, origin: Info, *, mark: str = "", **settings: Any) -> Info:
    """Return a mirror as kvctl creates it."""
    of = origin["config"]["name"]
    return info(Mirror(name, Origin(of.removeprefix("KV_")), **settings).to_stream(origin["config"]), mark=mark)


def aggregate(name: str, *origins: tuple[Origin, Info], mark: str = "", **settings: Any) -> Info:
    """Return an aggregate as kvctl creates it."""
    model = Aggregate(name, tuple(origin for origin, _ in origins), **settings)
    return info(model.to_stream([seen["config"] for _, seen in origins]), mark=mark)


def inventory(*here: Info, unreachable: Sequence[str] = (), **others: Sequence[Info]) -> Inventory:
    """Return streams of the account in use, and of others by name; readers read in their own account."""
    held: Mapping[str, Sequence[Info]] = {"": here, **others} if here or not others else others
    places = {
        name: Place(name, None, None, {one["config"]["name"]: one for one in infos}, tuple(unreachable))  # type: ignore[arg-type]
        for name, infos in held.items()
    }
    links = [
        Link(place, reader, source, place if origin else None, origin)
        for place in places.values()
        for reader in place.infos.values()
        for source in sources_of(reader["config"])
        for origin in [place.infos.get(source["name"])]
    ]
    return Inventory(places, tuple(links))


def read(text: str) -> Topology:
    """Return the topology of a file without its first line."""
    return read_topology(parser.parse(f"version: 1\n{text}".encode(), "t.yaml"))


def topology(text: str) -> Topology:
    return read(f"name: t\n{text}")


def compared(text: str, seen: Inventory, *, prune: bool = False) -> FileComparison:
    """Return the changes that the file requires."""
    return compare(DesiredState(topology(text), Locator(topology(text), seen.places)), seen, prune=prune)


def judged(text: str, seen: Inventory, *, prune: bool = False, looked: Looked | None = None) -> PlanHazards:
    """Return the hazards; `looked` are lookups of origins out of view."""
    drafts = DesiredState(topology(text), Locator(topology(text), seen.places, looked or {}))
    return found(compare(drafts, seen, prune=prune).changes, drafts, seen)
