"""Reading of all streams in view, in the contexts of a file and in other domains, with the replication between them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kvctl.contexts import Context, resolve
from kvctl.errors import KvctlError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import Source, StreamInfo, sources_of
from kvctl.phrases import quoted
from kvctl.topology.model import file as model_file
from kvctl.topology.model.origins import External
from kvctl.topology.survey.graph import Clue, Dependent, Inventory, Link, Place, followed, placed_in
from kvctl.topology.survey.origin_lookup import PATIENCE, own_domain

if TYPE_CHECKING:
    from kvctl.kv.client import Client


HERE = ""
"""Name of the context in use among those of a file."""
MAX_CONCURRENT_REQUESTS = 32
"""Streams that are asked concurrently for those that can answer in their place."""
MAX_DOMAINS = 8
"""Other JetStream domains whose streams are listed, if a stream in view reads from there."""

_ABOUT_THE_SERVER = ("context", "server", "domain", "api_prefix")
_FOR_ALL = ("read_only", "timeout", "inbox_prefix", "tls_ca")


async def opened(
    topology: model_file.Topology,
    here: Callable[[], Awaitable[Client]],
    connect: Callable[[Context], Awaitable[Client]],
    flags: Mapping[str, object] | None = None,
) -> dict[str, Api]:
    """Return an API for each context of the file, and under HERE for the one in use if anything belongs to it.

    `here` returns the client in use, and is called only if needed; `connect` opens another. `flags` are those of the
    connection in use, as `contexts.resolve` takes them. Raises what either raises, ContextNotFound, UsageError.
    """
    apis: dict[str, Api] = {}
    if not topology.contexts or _somewhere_else(topology):
        apis[HERE] = (await here()).api
    for name, settings in topology.contexts.items():
        if "url" in settings or "context" in settings:
            apis[name] = (await connect(context_of(settings, flags or {}))).api
        else:
            apis[name] = _elsewhere((await here()).api, settings)
    return apis


def context_of(settings: Mapping[str, str], flags: Mapping[str, object]) -> Context:
    """Return the connection settings of a context of a file.

    A URL counts as `--server` does: with the credentials of flags and environment, and never with those of another
    context. A named context has its own. A read-only connection stays read-only. Raises ContextNotFound, UsageError.
    """
    if "url" in settings:
        kept = {name: value for name, value in flags.items() if name not in _ABOUT_THE_SERVER}
        where: dict[str, object] = {"server": settings["url"]}
    else:
        kept = {name: value for name, value in flags.items() if name in _FOR_ALL}
        where = {"context": settings["context"]}
    where |= {name: settings[name] for name in ("domain", "api_prefix") if name in settings}
    return resolve({**kept, **where}, os.environ)


def _elsewhere(api: Api, settings: Mapping[str, str]) -> Api:
    """Return the same connection in the domain or under the prefix of the settings."""
    return api.at(
        External.of_domain(settings["domain"]).api if "domain" in settings else settings.get("api_prefix", "")
    )


def _somewhere_else(topology: model_file.Topology) -> bool:
    """Return whether anything belongs to no context of the file."""
    everything = (*topology.buckets, *topology.mirrors, *topology.aggregates)
    return any(name not in topology.places for name in everything)


async def survey(apis: Mapping[str, Api]) -> Inventory:
    """Read all streams of the given accounts, by one paged listing each.

    Raises what a listing raises: JetStreamDisabled, PermissionDenied, RequestTimeout.
    """
    places = dict(zip(apis, await asyncio.gather(*(view(*item) for item in apis.items())), strict=True))
    readings = [
        (place, info, source)
        for place in places.values()
        for info in place.known.values()
        for source in sources_of(info["config"])
    ]
    return Inventory(places, await _links(places.values(), readings))


async def with_domains(known: Inventory, apis: Mapping[str, Api]) -> Inventory:
    """Read the domains that streams in view replicate from as well, as far as permitted, each named after itself.

    `apis` are those of the accounts, by the names that they get. Raises as `survey`, if there are such domains.
    """
    found, tried = dict(apis), set[str]()
    while new := _domains(known, tried):
        tried |= new.keys()
        answers = await asyncio.gather(*map(_answers, new.values()))
        if not any(answers):
            break
        found |= {domain: api for (domain, api), answered in zip(new.items(), answers, strict=True) if answered}
        known = await survey(found)
    return known


async def survey_around(place: Place, stream: str) -> Inventory:
    """Return the links of a stream, and of those that read from it, directly or not; with those above them."""
    names = {stream, *(reader.node.stream for reader in place.dependents(stream))}
    every = [(place, info, source) for info in place.known.values() for source in sources_of(info["config"])]
    edges = [(info["config"]["name"], source["name"]) for _, info, source in every if not Source.parse(source).api]
    readers = followed(names, edges)
    links = await _links([place], [reading for reading in every if reading[1]["config"]["name"] in readers])
    return Inventory({place.name: place}, links).only(link for link in links if link.reader in names)


async def dependents(api: Api, stream: str) -> list[Dependent]:
    """Return the streams that read, or may read, from the stream, as `Place.dependents`. Raises as `survey`."""
    return (await view("", api)).dependents(stream)


async def view(name: str, api: Api) -> Place:
    """Read all streams of one account. Raises as `survey`."""
    found: streams.StreamListing
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


async def clues(api: Api, infos: Iterable[StreamInfo], offline: Collection[str]) -> dict[str, Clue]:
    """Return what answering streams report of offline ones as their alternates, by stream; only clusters do so."""
    slots = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
    found: dict[str, Clue] = {}

    async def ask(stream: str) -> None:
        async with slots:
            try:
                info = await streams.info(api, stream, timeout=PATIENCE)
            except KvctlError:
                return
        for other in info.get("alternates") or ():
            if other["name"] in offline:
                found[other["name"]] = Clue(stream, other.get("cluster") or None)

    if offline:
        await asyncio.gather(*(ask(info["config"]["name"]) for info in infos))
    return found


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


def _domains(known: Inventory, tried: set[str]) -> dict[str, Api]:
    """Return the APIs of domains that streams in view read from, and that are not in view."""
    domains = {place.domain for place in known.places.values()}
    found: dict[str, Api] = {}
    for link in known.links:
        source = Source.parse(link.source)
        domain = source.domain
        if domain and domain not in domains | tried and len(tried) + len(found) < MAX_DOMAINS:
            found[domain] = link.place.api.at(source.api)
    return found


async def _answers(api: Api) -> bool:
    """Return whether the streams of an API can be listed."""
    with suppress(KvctlError, TimeoutError):
        async with asyncio.timeout(PATIENCE):
            await streams.listing(api)
            return True
    return False


def servers(info: StreamInfo) -> list[str]:
    """Return the servers that hold an offline stream, as far as they are known."""
    return [peer["name"] for peer in (info.get("cluster") or {}).get("replicas") or ()]


def silence(names: Collection[str], of: str = "") -> str:
    """Say that the servers of a stream do not answer; without `of`, the sentence is about "its" servers."""
    what, listed = "only server" if len(names) == 1 else "servers", quoted(names)
    verb = "does" if len(names) == 1 else "do"
    if of:
        return f"the {what} of {of}{f', {listed},' if listed else ''} {verb} not answer"
    return f"its {what}{f' {listed}' if listed else ''} {verb} not answer"


def lost_majority(info: StreamInfo) -> str:
    """Return the evidence that too few servers of a stream are up to elect a leader; empty if enough are."""
    cluster = info.get("cluster") or {}
    peers = cluster.get("replicas") or []
    away = [peer["name"] for peer in peers if peer.get("offline")]
    count = len(peers) + bool(cluster.get("leader"))
    if not away or (count - len(away)) * 2 > count:
        return ""
    return f"{quoted(away)} of {count} servers {'is' if len(away) == 1 else 'are'} offline"
