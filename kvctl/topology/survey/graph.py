"""Replication as one graph: places with their streams, the links between these, and questions to both."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import Source, SourceState, StreamConfig, StreamInfo, source_states, sources_of
from kvctl.kv.names import STREAM_PREFIX
from kvctl.kv.stream_kind import Kind, bucket_name, kind_of
from kvctl.topology.hazards import cycle
from kvctl.topology.hazards.cycle import Replication
from kvctl.topology.hazards.hazards import Hazard, of_silent
from kvctl.topology.model.origins import External, Origin, is_stand_in, is_temporary
from kvctl.topology.survey.origin_lookup import OriginView

SILENCE = 10.0
"""Seconds without a message from an origin, which sends a heartbeat every second, after which it counts as silent."""
OUTSIDE, MISSING = "outside", "missing"
"""Kinds of nodes that are not streams in view: not readable from here, or not existing."""
_KINDS = {OUTSIDE: "out of view", MISSING: "does not exist", str(Kind.UNKNOWN): ""}
_NEVER = -1

Where = tuple[str, str]
"""A place's name and a stream's."""


class Node(NamedTuple):
    """A bucket, mirror, aggregate or other stream."""

    id: str
    name: str
    """Name, as users type it."""
    stream: str
    kind: str
    """A Kind, OUTSIDE or MISSING."""
    context: str | None = None
    """Name of its context in a topology file."""
    domain: str | None = None
    api: str | None = None
    """API prefix of its account, if it is another one."""
    cluster: str | None = None
    offline: bool = False
    """True if its servers do not answer."""

    @property
    def words(self) -> str:
        """Its kind in words, and whether it is offline."""
        kind = _KINDS.get(self.kind, self.kind)
        return ", ".join(part for part in (kind, "offline" if self.offline else "") if part)

    @property
    def absent(self) -> bool:
        """True if nothing but its name and configuration can be read."""
        return self.offline or self.kind in (OUTSIDE, MISSING)

    @property
    def where(self) -> str:
        """Location in words; may be empty."""
        context = self.context and f"context {self.context}"
        domain = self.domain and self.domain != self.context and f"domain {self.domain}"
        account = self.api and f"account behind {self.api}"
        cluster = self.cluster and f"cluster {self.cluster}"
        return ", ".join(part for part in (context, domain, account, cluster) if part)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {name: getattr(self, name) for name in "id name stream kind context domain api cluster".split()}


def node_id(place: str, stream: str) -> str:
    """Return the id of a stream, unique among streams of its name elsewhere."""
    return f"{place}/{stream}" if place else stream


def outside(external: External, stream: str, name: str, kind: str = OUTSIDE, cluster: str | None = None) -> Node:
    """Return the node of a stream in another domain or account."""
    domain = external.domain
    where, api = domain or external.api, None if domain else external.api
    return Node(node_id(where, stream), name, stream, kind, domain=domain, api=api, cluster=cluster)


class Upstream(NamedTuple):
    """One source of a stream, as the server reports it."""

    source: Source
    lag: int
    last_seen: float | None
    """Seconds since the last message from it; None: never."""
    error: str | None

    @property
    def silent(self) -> bool:
        """True if no message came for a long time, or ever."""
        return self.last_seen is None or self.last_seen > SILENCE


def upstreams(info: StreamInfo) -> list[Upstream]:
    """Return the streams that the stream reads, from the server's info and the configuration."""
    live = source_states(info)
    return [_upstream(source, live_part(source, live)) for source in sources_of(info["config"])]


def live_part(source: dict[str, Any], live: Sequence[SourceState]) -> SourceState:
    """Return the server's info of one source; its order is its own, and one stream may be read in several ways."""
    same = [item for item in live if item.get("name") == source["name"]]
    # Servers do not always report filters.
    unfiltered = same[0] if len(same) == 1 and not any(_filters(same[0])) else {}
    return next((item for item in same if _filters(item) == _filters(source)), unfiltered)


class Dependent(NamedTuple):
    """A stream in view that reads, directly or through others, from the stream in question."""

    node: Node
    """Of kind UNKNOWN: a stream that does not answer and whose configuration is unknown. It may read from it."""
    upstream: Upstream | None = None
    """None if unknown."""
    last_revision: int | None = None
    """None if it does not answer."""

    @property
    def offline(self) -> bool:
        """True if its servers do not answer."""
        return self.upstream is None or self.last_revision is None


def unknown(dependents: Iterable[Dependent]) -> list[Hazard]:
    """Return the hazard of streams that do not answer and may read from the one in question."""
    return of_silent(item.node.stream for item in dependents if item.node.kind == Kind.UNKNOWN)


class Clue(NamedTuple):
    """Facts about a stream that does not answer, from the streams that it mirrors."""

    origin: str
    """Stream of which it is a mirror."""
    cluster: str | None

    @property
    def source(self) -> dict[str, str]:
        """The mirror's source, as far as known."""
        return {"name": self.origin}


class Place(NamedTuple):
    """One account in one domain, with all its streams."""

    name: str
    """Name of its context in a topology file; empty for the context in use."""
    api: Api
    domain: str | None
    infos: Mapping[str, StreamInfo]
    """Infos of the streams that answer, by name."""
    unreachable: tuple[str, ...] = ()
    """Names of the streams whose servers do not answer."""
    offline: Mapping[str, StreamInfo] = {}
    """Infos of unreachable streams whose configuration the cluster still knows; their state is meaningless."""
    clues: Mapping[str, Clue] = {}
    """What other streams report of unreachable ones, by name."""

    @property
    def seen(self) -> bool:
        """True if its servers were asked."""
        return True

    @property
    def known(self) -> Mapping[str, StreamInfo]:
        """Infos of all streams whose configuration is known, by name."""
        return ChainMap(self.offline, self.infos)  # type: ignore[arg-type]

    @property
    def unknown(self) -> tuple[str, ...]:
        """Unreachable streams of which only the name is known: any of them may read from any other stream."""
        return tuple(stream for stream in self.unreachable if stream not in self.offline)

    def has(self, stream: str) -> bool:
        """Return whether the stream exists, reachable or not."""
        return stream in self.infos or stream in self.unreachable

    def cluster_of(self, stream: str) -> str | None:
        """Return the cluster of a stream: where it is if it answers, else where it was placed."""
        if stream in self.infos:
            return cluster_name(self.infos[stream])
        placed = placed_in(self.offline[stream]) if stream in self.offline else None
        return placed or (self.clues[stream].cluster if stream in self.clues else None)

    def kind(self, stream: str) -> Kind | None:
        """Return the kind of a stream of known configuration; a mirror of a mirror is followed within the account."""
        known, chain, at = self.known, dict[str, StreamConfig](), stream
        while at in known and at not in chain:
            chain[at] = known[at]["config"]
            at = (chain[at].get("mirror") or {}).get("name", "")
        return kind_of(chain[stream], chain)

    def node(self, stream: str) -> Node:
        """Return the node of a stream, which may be offline or missing."""
        if info := self.known.get(stream):
            kind = str(self.kind(stream) or _kind_beyond(info))
            name = bucket_name(info["config"], Kind(kind))
        else:
            name, kind = stream.removeprefix(STREAM_PREFIX), MISSING
            if stream in self.unreachable:
                kind = str(Kind.MIRROR if stream in self.clues else Kind.UNKNOWN)
        where, away = (self.name or None, self.domain), stream in self.unreachable
        return Node(node_id(self.name, stream), name, stream, kind, *where, None, self.cluster_of(stream), away)

    def dependents(self, stream: str) -> list[Dependent]:
        """Return the streams that read, or may read, from the stream, directly or not, nearest first.

        Other accounts and domains are not in view. Streams that do not answer are included if they read from it, or may
        do so.
        """
        found: dict[str, Dependent] = {}
        waiting = [stream]
        while waiting:
            origin = waiting.pop(0)
            for name, info in self.known.items():
                reading = next((item for item in upstreams(info) if item.source.reads_locally(origin)), None)
                if reading is not None and name != stream and name not in found:
                    last = None if name in self.unreachable else info["state"]["last_seq"]
                    found[name] = Dependent(self.node(name), reading, last)
                    waiting.append(name)
        clued = [name for name, clue in self.clues.items() if clue.origin in found or clue.origin == stream]
        may = [name for name in self.unknown if name not in self.clues]
        others = [name for name in (*may, *clued) if name != stream and name not in found]
        return [*found.values(), *(Dependent(self.node(name)) for name in others)]


class Link(NamedTuple):
    """Replication from one stream into another."""

    place: Place
    info: StreamInfo
    """Info of the reader."""
    source: dict[str, Any]
    """The source as the reader's configuration has it."""
    origin_place: Place | None
    """None: the origin is not in view, or does not exist."""
    origin: StreamInfo | None
    """Info of the origin, also if nothing else of it can be read; None: not readable."""

    @property
    def reader(self) -> str:
        """Stream that reads."""
        return str(self.info["config"]["name"])

    @property
    def at(self) -> Where:
        """Location of the reader."""
        return self.place.name, self.reader

    @property
    def origin_at(self) -> Where | None:
        """Location of the origin, if it is in view."""
        return (self.origin_place.name, self.source["name"]) if self.origin_place else None

    @property
    def silent(self) -> bool:
        """True if the reader does not answer: only the configuration and the servers in its info are valid then."""
        return self.reader in self.place.offline

    @property
    def node(self) -> Node:
        """The reader."""
        return self.place.node(self.reader)

    @property
    def origin_node(self) -> Node:
        """The origin, which may be out of view or missing."""
        source = Source.parse(self.source)
        if self.origin is not None and self.origin_place is not None:
            return self.origin_place.node(source.name)
        if not source.api:
            return self.place.node(source.name)
        external, name = External(source.api), source.name.removeprefix(STREAM_PREFIX)
        if self.origin is None:
            return outside(external, source.name, name)
        kind = kind_of(self.origin["config"]) or _kind_beyond(self.origin)
        return outside(external, source.name, name, str(kind), cluster_name(self.origin))

    @property
    def upstream(self) -> Upstream:
        """Progress as the reader's server reports it."""
        return upstreams(self.info)[sources_of(self.info["config"]).index(self.source)]

    @property
    def elsewhere(self) -> str | None:
        """Domain or API prefix of an origin that is not in the reader's own account and domain."""
        source = Source.parse(self.source)
        return source.domain or source.api or None

    @property
    def api(self) -> Api:
        """API to read the origin: in its own account if that is in view, else as servers reach it."""
        if self.origin_place is not None:
            return self.origin_place.api
        return self.place.api.at(Source.parse(self.source).api)

    @property
    def view(self) -> OriginView:
        """The origin as it was read."""
        return OriginView(Origin(stream=self.source["name"]), self.api, self.origin, True)


class Replica(NamedTuple):
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


class Inventory(NamedTuple):
    """Accounts by name, and the links within and between them."""

    places: Mapping[str, Place]
    links: tuple[Link, ...]
    others: tuple[Link, ...] = ()
    """Other links: `links` are in no better health than those above them."""

    def republications(self, changed: Mapping[Where, StreamConfig | None] | None = None) -> list[Replication]:
        """Return the republishing of streams into others; `changed` replaces configurations, None for a deletion."""
        known: dict[Where, StreamConfig | None] = {}
        for place in self.places.values():
            known.update({(place.name, stream): info["config"] for stream, info in place.known.items()})
        configs: dict[cycle.Node, StreamConfig] = {}
        configs.update({where: config for where, config in {**known, **(changed or {})}.items() if config is not None})
        return cycle.republications(configs)

    def only(self, links: Iterable[Link]) -> Inventory:
        """Return the same accounts with some of the links."""
        kept = tuple(links)
        known = set(map(id, kept))
        return Inventory(
            self.places, kept, tuple(link for link in (*self.links, *self.others) if id(link) not in known)
        )

    def above(self) -> list[Link]:
        """Return those of the other links that lead, directly or through others, to the origins of the links."""
        edges = [(link.at, link.origin_at) for link in self.others]
        readers = followed([link.origin_at for link in self.links], edges)
        return [link for link in self.others if link.at in readers]

    def of(self, where: Where) -> list[Link]:
        """Return the links of a reader, in the order of its sources."""
        return [link for link in self.links if link.at == where]

    def leading_from(self, where: Where) -> list[Link]:
        """Return the links of a stream's readers, without itself."""
        return [link for link in self.links if link.origin_at == where != link.at]

    def around(self, names: Collection[str]) -> Inventory:
        """Return the inventory with only those links that lead to the named streams or from them; all without names."""
        if not names:
            return self
        ends = [(link.origin_node, link.node) for link in self.links]
        start = {node.id for pair in ends for node in pair if node.name in names}
        kept = reach(start, [(origin.id, reader.id) for origin, reader in ends])
        return self.only(
            link for link, (origin, reader) in zip(self.links, ends, strict=True) if {origin.id, reader.id} <= kept
        )

    def replicas(self) -> list[Replica]:
        """Return all mirrors and aggregates, origins before their readers, without what exists only during repairs."""
        found: dict[Where, list[Link]] = {}
        for link in self.links:
            if not is_temporary(link.source) and not is_stand_in(link.info["config"]):
                found.setdefault(link.at, []).append(link)
        replicas: dict[Where, Replica] = {}
        for where, links in found.items():
            place, kind = links[0].place, links[0].place.kind(where[1])
            if kind in (Kind.MIRROR, Kind.AGGREGATE):
                replicas[where] = Replica(place, links[0].info, kind, links[0].node.name, tuple(links))
        return _upstream_first(replicas)


def named(replicas: Sequence[Replica], names: Collection[str]) -> list[Replica]:
    """Return the replicas of these names, and those that read, directly or through others, from these names."""
    wanted: set[Where | None] = {(item.place.name, item.stream) for item in replicas if item.name in names}
    for item in replicas:  # origins come before their readers
        if any(_reads(link, names) or link.origin_at in wanted for link in item.links):
            wanted.add((item.place.name, item.stream))
    return [item for item in replicas if (item.place.name, item.stream) in wanted]


def is_origin(replicas: Iterable[Replica], name: str) -> bool:
    """Return whether something reads from a bucket or mirror of this name, in view or not."""
    return any(_reads(link, (name,)) for item in replicas for link in item.links)


def reach(start: Collection[str], edges: Collection[tuple[str, str]]) -> set[str]:
    """Return these nodes, those that lead to them, and those that they lead to, along pairs of origin and reader."""
    return followed(start, edges) | followed(start, [(reader, origin) for origin, reader in edges])


def followed(start: Collection[Any], edges: Collection[tuple[Any, Any]]) -> set[Any]:
    """Return these nodes and all that they lead to, along pairs of nodes."""
    beyond: dict[Any, set[Any]] = {}
    for here, there in edges:
        beyond.setdefault(here, set()).add(there)
    found, waiting = set(start), list(start)
    while waiting:
        more = beyond.get(waiting.pop(), set()) - found
        found |= more
        waiting += more
    return found


def _kind_beyond(info: StreamInfo) -> Kind:
    """Return the kind of a stream that has nothing to do with buckets."""
    return Kind.MIRROR if info["config"].get("mirror") else Kind.STREAM


def cluster_name(info: StreamInfo) -> str | None:
    """Return the cluster of a stream that answers."""
    return (info.get("cluster") or {}).get("name") or None


def placed_in(info: StreamInfo) -> str | None:
    """Return the cluster in the placement of an offline stream; its info names that of the server that answered."""
    return (info["config"].get("placement") or {}).get("cluster") or None


def _upstream(source: dict[str, Any], live: SourceState) -> Upstream:
    active, error = live.get("active", _NEVER), live.get("error")
    text = f"{error.get('description')} ({error.get('err_code')})" if error else None
    return Upstream(Source.parse(source), live.get("lag", 0), None if active < 0 else active / 1e9, text)


def _filters(source: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the filter and the transforms of a source, which distinguish it from others of the same stream."""
    parsed = Source.parse(source)
    return parsed.filter_subject, parsed.transforms


def _reads(link: Link, names: Collection[str]) -> bool:
    return any(link.source["name"] in (STREAM_PREFIX + name, name) for name in names)


def _upstream_first(replicas: Mapping[Where, Replica]) -> list[Replica]:
    left = dict(replicas)
    ordered: list[Replica] = []
    while left:
        free = [where for where, item in left.items() if not any(link.origin_at in left for link in item.links)]
        ordered += [left.pop(where) for where in free or list(left)[:1]]  # in a cycle any can be first
    return ordered
