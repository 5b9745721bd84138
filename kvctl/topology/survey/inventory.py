"""All streams in view, in one or more accounts and domains, and the replication between them."""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any

from kvctl.dataclass import dataclass
from kvctl.errors import KvctlError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import Source, StreamConfig, StreamInfo, parsed_sources, sources_of
from kvctl.kv.stream_kind import Kind, kind_of
from kvctl.topology.survey.offline import Clue, clues, placed_in
from kvctl.topology.survey.origin_lookup import PATIENCE, own_domain


@dataclass(frozen=True, slots=True)
class Place:
    """One account in one domain, with all its streams."""

    name: str
    """Name of its context in a topology file; empty for the context in use."""
    api: Api
    domain: str | None
    infos: Mapping[str, StreamInfo]
    """Infos of the streams that answer, by name."""
    unreachable: tuple[str, ...] = ()
    """Names of the streams whose servers do not answer."""
    offline: Mapping[str, StreamInfo] = field(default_factory=dict)
    """Infos of unreachable streams whose configuration the cluster still knows; their state is meaningless."""
    clues: Mapping[str, Clue] = field(default_factory=dict)
    """What other streams report of unreachable ones, by name."""

    @property
    def listing(self) -> streams.Listing:
        """Streams as the server listed them."""
        return streams.Listing(tuple(self.infos.values()), {name: self.offline.get(name) for name in self.unreachable})

    def has(self, stream: str) -> bool:
        """Return whether the stream exists, reachable or not."""
        return stream in self.infos or stream in self.unreachable

    @property
    def unknown(self) -> tuple[str, ...]:
        """Unreachable streams of which only the name is known: any of them may read from any other stream."""
        return tuple(stream for stream in self.unreachable if stream not in self.offline)

    def cluster_of(self, stream: str) -> str | None:
        """Return the cluster of a stream: where it is if it answers, else where it was placed."""
        if stream in self.infos:
            return (self.infos[stream].get("cluster") or {}).get("name") or None
        placed = placed_in(self.offline[stream]) if stream in self.offline else None
        return placed or (self.clues[stream].cluster if stream in self.clues else None)

    @property
    def seen(self) -> bool:
        """True if its servers were asked."""
        return True


@dataclass(frozen=True, slots=True)
class Link:
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
    def silent(self) -> bool:
        """True if the reader does not answer: only the configuration and the servers in its info are valid then."""
        return bool(self.place.offline) and self.info["config"]["name"] in self.place.offline


@dataclass(frozen=True, slots=True)
class Inventory:
    """Accounts by name, and the links within and between them."""

    places: Mapping[str, Place]
    links: tuple[Link, ...]


async def survey(apis: Mapping[str, Api]) -> Inventory:
    """Read all streams of the given accounts, by one paged listing each.

    Raises what a listing raises: JetStreamDisabled, PermissionDenied, RequestTimeout.
    """
    places = dict(zip(apis, await asyncio.gather(*(view(*item) for item in apis.items())), strict=True))
    readings = [
        (place, info, source)
        for place in places.values()
        for info in (*place.infos.values(), *place.offline.values())
        for source in sources_of(info["config"])
    ]
    return Inventory(places, await _links(places.values(), readings))


async def survey_around(place: Place, stream: str) -> Inventory:
    """Return the links of a stream, and of those that read from it, directly or not, to all their origins."""
    infos = {**place.infos, **place.offline}
    names, size = {stream}, 0
    while len(names) > size:
        size = len(names)
        names |= {name for name, info in infos.items() if any(map(reads_from(names), parsed_sources(info["config"])))}
    readings = [
        (place, infos[name], source) for name in names & infos.keys() for source in sources_of(infos[name]["config"])
    ]
    return Inventory({place.name: place}, await _links([place], readings))


def reads_from(names: Collection[str]) -> Callable[[Source], bool]:
    """Return a function that tells if a source is one of these streams of the same account and domain."""
    return lambda source: source.name in names and not source.is_external


def kind_in(place: Place, info: StreamInfo) -> Kind | None:
    """Return the kind of a stream; a mirror of a mirror is followed among the streams of its account."""
    return kind_of(info["config"], _Configs(ChainMap({}, place.infos, place.offline)))  # type: ignore[arg-type]


class _Configs(Mapping[str, StreamConfig]):
    """The configurations of streams, by name."""

    def __init__(self, infos: Mapping[str, StreamInfo]) -> None:
        self._infos = infos

    def __getitem__(self, stream: str) -> StreamConfig:
        config: StreamConfig = self._infos[stream]["config"]
        return config

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)


async def view(name: str, api: Api) -> Place:
    """Read all streams of one account. Raises as `survey`."""
    try:
        found, domain = await asyncio.gather(streams.listing(api), own_domain(api))
    except KvctlError as error:
        if name:
            error.message = f"{error.message}, in context `{name}`"
        raise
    infos = {info["config"]["name"]: info for info in found.answering}
    offline = {stream: info for stream, info in found.silent.items() if info is not None}
    unplaced = [stream for stream in found.silent if stream not in offline or not placed_in(offline[stream])]
    reported = await clues(api, found.answering, unplaced)
    return Place(name, api, domain, infos, tuple(found.silent), offline, reported)


_Reading = tuple[Place, StreamInfo, dict[str, Any]]


async def _links(places: Collection[Place], readings: Sequence[_Reading]) -> tuple[Link, ...]:
    """Return a link for each reading, in the same order, with one request for each API prefix that leads into view."""
    ways: dict[tuple[str, str], list[int]] = {}
    for number, (place, _, source) in enumerate(readings):
        ways.setdefault((place.name, Source.parse(source).api), []).append(number)
    found: dict[int, Link] = {}

    async def follow(numbers: Sequence[int]) -> None:
        first, *others = numbers
        found[first] = await _link(places, readings[first])
        home = found[first].origin_place
        links = await asyncio.gather(*(_link(places, readings[number], home) for number in others))
        found.update(zip(others, links, strict=True))

    await asyncio.gather(*(follow(numbers) for numbers in ways.values()))
    return tuple(found[number] for number in range(len(readings)))


async def _link(places: Iterable[Place], reading: _Reading, home: Place | None = None) -> Link:
    """Return the link of a reading; `home` is the account of others with the same prefix, and is not asked again."""
    place, info, source = reading
    name, prefix = source["name"], Source.parse(source).api
    home = home if prefix else place
    if home is not None and (name in home.infos or not prefix):
        origin = home.infos.get(name)
        return Link(place, info, source, home if origin else None, origin)
    found: StreamInfo | None = None
    with suppress(KvctlError):
        found = await streams.info(place.api.at(prefix), name, timeout=PATIENCE)
    return Link(place, info, source, _home(places, found) if found else None, found)


def _home(places: Iterable[Place], info: StreamInfo) -> Place | None:
    """Return the account of a stream that was read from elsewhere, recognized by its creation time in nanoseconds."""
    name = info["config"]["name"]
    return next(
        (place for place in places if name in place.infos and place.infos[name]["created"] == info["created"]), None
    )
