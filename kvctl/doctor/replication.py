"""Mirrors and aggregates: hazards in their configuration, and whether anything arrives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from kvctl.doctor.finding import ERROR, NOTE, WARNING, Finding, Severity
from kvctl.doctor.remedies import remedy
from kvctl.errors import KvctlError
from kvctl.jetstream.stream_source import Source
from kvctl.kv.stream_kind import Kind, bucket_name, kind_of
from kvctl.topology.apply.repair_leftovers import is_stand_in, is_temporary, original
from kvctl.topology.discover.health import Standing, State, standings
from kvctl.topology.discover.inventory import Link, World, survey
from kvctl.topology.discover.mirror_origin import Lineage, lineage
from kvctl.topology.discover.origin_lookup import suspected
from kvctl.topology.hazards import cycle, replica_hazards
from kvctl.topology.hazards.cycle import Node, Reading
from kvctl.topology.hazards.inspection import is_new
from kvctl.topology.hazards.replica_hazards import (
    CYCLE,
    FILTERED_MIRROR,
    MISSING_ORIGIN,
    OUTSIDE_PREFIX,
    RECREATED_ORIGIN,
    RENAMING_MIRROR,
    SHORTER_TTL,
    UNCONNECTED,
    name_of,
)
from kvctl.topology.model import External

_ERRORS = {FILTERED_MIRROR, RENAMING_MIRROR, SHORTER_TTL, OUTSIDE_PREFIX, CYCLE, RECREATED_ORIGIN}
_STATES: dict[State, tuple[Severity, str]] = {
    State.STALLED: (ERROR, "stalled"),
    State.SILENT: (ERROR, "silent"),
    State.FAILING: (ERROR, "failing"),
    State.NEVER_CONNECTED: (ERROR, UNCONNECTED),
    State.MISSING_ORIGIN: (ERROR, MISSING_ORIGIN),
    State.RECREATED_ORIGIN: (ERROR, RECREATED_ORIGIN),
    State.MISSING_ENTRIES: (ERROR, "missing-entries"),
    State.UNREACHABLE: (ERROR, "origin-unreachable"),
    State.UNCONFIRMED: (NOTE, "unconfirmed"),
}
"""What is said of replicas that are not well; one that is behind, and moves, is."""


async def examine(world: World) -> list[Finding]:
    """All replicas in view."""
    sound = replace(world, links=tuple(link for link in world.links if not _of_repair(link)))
    found = [*_repairs(world), *_hazards(sound), *_suspected(sound), *_circles(await _wider(sound))]
    for standing in await standings(sound):
        found += of_standing(standing)
    return found


def of_standing(standing: Standing) -> Iterator[Finding]:
    """What is said of one replica and one of its origins."""
    if standing.link.silent:
        return  # its stream is unreachable: that is said
    if standing.state not in _STATES or (standing.state is State.NEVER_CONNECTED and is_new(standing.link.info)):
        return
    severity, check = _STATES[standing.state]
    origin = name_of(standing.link.source)
    evidence = standing.evidence if standing.evidence.startswith("`") else f"`{origin}`: {standing.evidence}"
    if standing.state is State.NEVER_CONNECTED:
        evidence = f"It was never connected to `{origin}`: nothing arrives, and its lag says 0"
    yield Finding(severity, check, standing.name, evidence, _remedy(standing))


def _remedy(standing: Standing) -> str:
    prefix = Source.parse(standing.link.source).api
    abroad = prefix and External(prefix).domain is None
    if standing.state is State.STALLED and abroad and not standing.arrived:
        return "Check its deliver prefix, and the exports and imports of the accounts: `kvctl help topologies`"
    if standing.state is State.FAILING and _FLOW_CONTROL in standing.evidence:
        return f"Let the origin's account export the service `$JS.FC.{standing.link.source['name']}.>`, and import it"
    if standing.state is State.UNCONFIRMED and standing.link.origin is not None:
        return f"`kvctl topology audit {standing.name}` compares the keys"
    repairs = "recreates" if standing.kind is Kind.MIRROR else "refills"
    return _REMEDIES[standing.state].format(name=standing.name, repairs=repairs)


def _of_repair(link: Link) -> bool:
    """Whether it is there only while a repair is at work."""
    return is_stand_in(link.info["config"]) or is_temporary(link.source)


def _repairs(world: World) -> Iterator[Finding]:
    for link in filter(_of_repair, world.links):
        config = link.info["config"]
        name = _called(link) if not is_stand_in(config) else original(config)["name"]
        text = "An interrupted repair left something on the server, or one is under way"
        yield Finding(WARNING, "unfinished", name, text, f"`kvctl topology audit {name} --repair` completes it")


async def _wider(world: World) -> World:
    """With the domains that its streams read from: a circle goes through them and back."""
    (place,) = world.places.values()
    prefixes = {Source.parse(link.source).api for link in world.links if link.origin}
    domains = {domain for prefix in prefixes if prefix and (domain := External(prefix).domain)}
    if not domains:
        return world
    with suppress(KvctlError):
        apis = {domain: place.api.at(External.of_domain(domain).api) for domain in domains}
        return await survey({place.domain or "": place.api, **apis})
    return world


def _hazards(world: World) -> Iterator[Finding]:
    grouped: dict[Node, list[Link]] = {}
    for link in world.links:
        grouped.setdefault(_node(link), []).append(link)
    for links in grouped.values():
        name, config = _called(links[0]), links[0].info["config"]
        origins = [link.origin["config"] if link.origin else None for link in links]
        for hazard in replica_hazards.of_replica(config, origins):
            severity = ERROR if hazard.name in _ERRORS else WARNING
            evidence = hazard.evidence[:1].upper() + hazard.evidence[1:]
            yield Finding(severity, hazard.name, name, evidence, remedy(hazard, name, config, origins))
        if config.get("mirror") and (origin := links[0].origin) and not links[0].silent:
            yield from _doubts(name, lineage(links[0].info, origin))


def _doubts(name: str, found: Lineage) -> Iterator[Finding]:
    """A mirror that may hold what its origin held before: what is certain, its standing says."""
    if found.same is None:
        yield Finding(
            WARNING, RECREATED_ORIGIN, name, found.evidence, f"`kvctl topology audit {name}` tells whether it does"
        )


def _circles(world: World) -> Iterator[Finding]:
    readings = [
        Reading(_node(link), (link.origin_place.name, link.source["name"]), link.source)
        for link in world.links
        if link.origin_place is not None
    ]
    for circle in cycle.circles(readings):
        name = name_of({"name": circle[0][1]})
        mend = f"Take one of them out: `kvctl aggregate remove-origin {name} BUCKET`"
        yield Finding(ERROR, CYCLE, name, cycle.hazard(circle, "domain ").evidence, mend)


def _suspected(world: World) -> Iterator[Finding]:
    """Circles through accounts, as far as one account tells."""
    for link in world.links:
        if link.origin is not None and link.origin_place is None:
            for hazard in suspected(link.info["config"]["name"], link.origin["config"]):
                yield Finding(WARNING, CYCLE, _called(link), hazard.evidence, "Run `kvctl doctor` in that account")


_FLOW_CONTROL = "(10228)"
"""What servers report where nobody hears that a part has arrived."""
_REMEDIES = {
    State.STALLED: "Look at its limits (`kvctl bucket show {name}`): a value too large or a full replica stops all",
    State.SILENT: "Look at the connection to the origin's servers; `kvctl topology status` follows it",
    State.FAILING: "`kvctl bucket show {name}` shows the server's error",
    State.NEVER_CONNECTED: "Check the domain, or the exports and imports of the accounts: `kvctl help topologies`",
    State.MISSING_ORIGIN: "Make the origin, or delete `{name}`; `kvctl mirror promote` makes a bucket of a mirror",
    State.RECREATED_ORIGIN: "`kvctl topology audit {name} --repair` {repairs} it",
    State.MISSING_ENTRIES: "`kvctl topology audit {name} --repair` {repairs} it",
    State.UNREACHABLE: "Start the origin's servers",
    State.UNCONFIRMED: "Let the origin's account export its STREAM.INFO and DIRECT.GET: `kvctl help topologies`",
}


def _called(link: Link) -> str:
    config = link.info["config"]
    known = {stream: info["config"] for stream, info in link.place.infos.items()}
    return bucket_name(config, kind_of(config, known))


def _node(link: Link) -> Node:
    return link.place.name, link.info["config"]["name"]
