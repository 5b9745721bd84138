"""Mirrors and aggregates among the streams in view, and the selection for an audit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from kvctl.dataclass import dataclass
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import Source, StreamInfo
from kvctl.kv.names import STREAM_PREFIX
from kvctl.kv.stream_kind import Kind, bucket_name
from kvctl.topology.apply.repair_leftovers import is_stand_in, is_temporary
from kvctl.topology.hazards.replica_hazards import name_of
from kvctl.topology.model import External
from kvctl.topology.survey.inventory import Inventory, Link, Place, kind_in


@dataclass(frozen=True, slots=True)
class Replica:
    """A mirror or an aggregate, with its links to origins."""

    place: Place
    info: StreamInfo
    kind: Kind
    name: str
    """Name, as users type it."""
    links: tuple[Link, ...]

    @property
    def stream(self) -> str:
        """Name of its stream."""
        return str(self.info["config"]["name"])

    @property
    def silent(self) -> bool:
        """True if its servers do not answer."""
        return any(link.silent for link in self.links)


def in_view(inventory: Inventory) -> list[Replica]:
    """Return all mirrors and aggregates, origins before their readers."""
    found: dict[tuple[str, str], list[Link]] = {}
    for link in inventory.links:
        if not is_temporary(link.source) and not is_stand_in(link.info["config"]):
            found.setdefault((link.place.name, link.info["config"]["name"]), []).append(link)
    replicas = []
    for links in found.values():
        place, info = links[0].place, links[0].info
        kind = kind_in(place, info)
        if kind in (Kind.MIRROR, Kind.AGGREGATE):
            replicas.append(Replica(place, info, kind, bucket_name(info["config"], kind), tuple(links)))
    return _upstream_first(replicas)


def named(replicas: Sequence[Replica], names: Collection[str]) -> list[Replica]:
    """Return the replicas of these names, and those that read, directly or through others, from these names."""
    wanted = {(item.place.name, item.stream) for item in replicas if item.name in names}
    for item in replicas:  # origins come before their readers
        if any(_reads(link, names) or _origin(link) in wanted for link in item.links):
            wanted.add((item.place.name, item.stream))
    return [item for item in replicas if (item.place.name, item.stream) in wanted]


def is_origin(replicas: Iterable[Replica], name: str) -> bool:
    """Return whether something reads from a bucket or mirror of this name, in view or not."""
    return any(_reads(link, (name,)) for item in replicas for link in item.links)


def origin_api(link: Link) -> Api:
    """Return the API to read a link's origin: in its own account if that is in view, else as servers reach it."""
    if link.origin_place is not None:
        return link.origin_place.api
    prefix = Source.parse(link.source).api
    return link.place.api.at(prefix) if prefix else link.place.api


def origin_name(link: Link) -> str:
    """Return the name of a link's origin."""
    return name_of(link.source)


def where(link: Link) -> str | None:
    """Return the domain or the API prefix of an origin elsewhere."""
    prefix = Source.parse(link.source).api
    return (External(prefix).domain or prefix) if prefix else None


def _reads(link: Link, names: Collection[str]) -> bool:
    return any(link.source["name"] in (STREAM_PREFIX + name, name) for name in names)


def _origin(link: Link) -> tuple[str, str]:
    return link.origin_place.name if link.origin_place else "?", link.source["name"]


def _upstream_first(replicas: Iterable[Replica]) -> list[Replica]:
    left = {(item.place.name, item.stream): item for item in replicas}
    ordered: list[Replica] = []
    while left:
        free = [key for key, item in left.items() if not any(_origin(link) in left for link in item.links)]
        ordered += [left.pop(key) for key in free or list(left)[:1]]  # in a cycle any can be first
    return ordered
