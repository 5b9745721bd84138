"""Checks of mirrors and aggregates: hazards in their configuration, and their replication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from kvctl.doctor.finding import ERROR, NOTE, WARNING, Finding
from kvctl.errors import KvctlError
from kvctl.jetstream.stream_info import Source, StreamConfig
from kvctl.kv.stream_kind import Kind
from kvctl.topology.hazards import cycle, hazards
from kvctl.topology.hazards.cycle import Replication
from kvctl.topology.hazards.hazards import Hazard, name_of
from kvctl.topology.health.health import Health, ReplicaHealth, check_health
from kvctl.topology.health.inspection import is_new
from kvctl.topology.model.origins import is_stand_in, is_temporary, original
from kvctl.topology.survey.graph import Inventory, Link, Where
from kvctl.topology.survey.inventory import with_domains
from kvctl.topology.survey.origin_lookup import suspected
from kvctl.units import duration_from_ns, format_duration

_ERRORS = {
    hazards.FILTERED_MIRROR,
    hazards.RENAMING_MIRROR,
    hazards.SHORTER_TTL,
    hazards.OUTSIDE_PREFIX,
    hazards.CYCLE,
    hazards.RECREATED_ORIGIN,
}
_REMEDIES = {
    Health.STALLED: "Check its limits with `kvctl bucket show {name}`: too large values or a full replica stop it",
    Health.SILENT: "Check the connection to the origin's servers; watch it with `kvctl topology status --watch`",
    Health.FAILING: "See the server's error with `kvctl bucket show {name}`",
    Health.NEVER_CONNECTED: "Check the domain, or the exports and imports of the accounts: `kvctl help topologies`",
    Health.MISSING_ORIGIN: "Create the origin, or delete `{name}`; `kvctl mirror promote` turns a mirror into a bucket",
    Health.RECREATED_ORIGIN: "`kvctl topology audit {name} --repair` {repairs} it",
    Health.MISSING_ENTRIES: "`kvctl topology audit {name} --repair` {repairs} it",
    Health.OFFLINE_ORIGIN: "Start the origin's servers",
    Health.OFFLINE: "Start the servers of `{name}`",
    Health.UNCONFIRMED: "Export STREAM.INFO and DIRECT.GET from the origin's account: `kvctl help topologies`",
}
"""States of replicas that are findings; one that is behind but catching up is healthy."""
_FLOW_CONTROL = "(10228)"
"""Code that servers report if no acknowledgement of a part arrives."""


async def examine(inventory: Inventory) -> list[Finding]:
    """Check all replicas in view."""
    sound = inventory.only(link for link in inventory.links if not _of_repair(link))
    found = [*_repairs(inventory), *_hazards(sound), *_suspected(sound), *_cycles(await _wider(sound))]
    for standing in await check_health(sound):
        found += [*of_standing(standing), *_doubts(standing)]
    return found


def of_standing(standing: ReplicaHealth) -> Iterator[Finding]:
    """Yield the finding on one replica and one of its origins."""
    if standing.link.silent:
        return  # reported as an offline stream
    if standing.state not in _REMEDIES or (standing.state is Health.NEVER_CONNECTED and is_new(standing.link.info)):
        return
    check = str(standing.state).replace(" ", "-")
    name, origin, evidence = standing.link.node.name, name_of(standing.link.source), standing.evidence
    evidence = f"{evidence[:1].upper()}{evidence[1:]}" if f"`{origin}`" in evidence else f"`{origin}`: {evidence}"
    if standing.state is Health.NEVER_CONNECTED:
        check = hazards.UNCONNECTED
        evidence = f"`{name}` never connected to `{origin}`: nothing arrives, although its lag is reported as 0"
    severity = NOTE if standing.state is Health.UNCONFIRMED else ERROR
    yield Finding(severity, check, name, evidence, _remedy(standing))


def _remedy(standing: ReplicaHealth) -> str:
    source = Source.parse(standing.link.source)
    abroad = source.api and source.domain is None
    if standing.state is Health.STALLED and abroad and not standing.arrived:
        return "Check its deliver prefix and the exports and imports of the accounts: `kvctl help topologies`"
    if standing.state is Health.FAILING and _FLOW_CONTROL in standing.evidence:
        return f"Export the service `$JS.FC.{source.name}.>` from the origin's account, and import it"
    if standing.state is Health.UNCONFIRMED and standing.link.origin is not None:
        return f"Compare the keys with `kvctl topology audit {standing.link.node.name}`"
    repairs = "recreates" if standing.link.node.kind == Kind.MIRROR else "refills"
    return _REMEDIES[standing.state].format(name=standing.link.node.name, repairs=repairs)


def _of_repair(link: Link) -> bool:
    """Return whether it exists only during a repair."""
    return is_stand_in(link.info["config"]) or is_temporary(link.source)


def _repairs(inventory: Inventory) -> Iterator[Finding]:
    for link in filter(_of_repair, inventory.links):
        config = link.info["config"]
        name = link.node.name if not is_stand_in(config) else original(config)["name"]
        text = "A repair was interrupted, or is still running"
        yield Finding(WARNING, "unfinished", name, text, f"Complete it with `kvctl topology audit {name} --repair`")


async def _wider(inventory: Inventory) -> Inventory:
    """Return the inventory with the domains that its streams read from, as cycles may cross them."""
    (place,) = inventory.places.values()
    with suppress(KvctlError):
        return await with_domains(inventory, {place.domain or "": place.api})
    return inventory


def _hazards(inventory: Inventory) -> Iterator[Finding]:
    grouped: dict[Where, list[Link]] = {}
    for link in inventory.links:
        grouped.setdefault(link.at, []).append(link)
    for links in grouped.values():
        name, config = links[0].node.name, links[0].info["config"]
        origins = [link.origin["config"] if link.origin else None for link in links]
        for hazard in hazards.of_replica(config, origins):
            severity = ERROR if hazard.name in _ERRORS else WARNING
            evidence = hazard.evidence[:1].upper() + hazard.evidence[1:]
            yield Finding(severity, hazard.name, name, evidence, remedy_of(hazard, name, config, origins))


def _doubts(standing: ReplicaHealth) -> Iterator[Finding]:
    """Yield a mirror that may hold old values of its origin; if that is certain, its health reports it."""
    name, lineage = standing.link.node.name, standing.lineage
    if lineage and lineage.same is None and standing.link.info["config"].get("mirror"):
        yield Finding(
            WARNING, hazards.RECREATED_ORIGIN, name, lineage.evidence, f"Check it with `kvctl topology audit {name}`"
        )


def _cycles(inventory: Inventory) -> Iterator[Finding]:
    readings = [
        Replication(link.at, link.origin_at, link.source) for link in inventory.links if link.origin_at is not None
    ]
    for streams in cycle.cycles(readings):
        name = name_of({"name": streams[0][1]})
        fix = f"Remove one of the origins: `kvctl aggregate remove-origin {name} BUCKET`"
        yield Finding(ERROR, hazards.CYCLE, name, cycle.hazard(streams, "domain ").evidence, fix)


def _suspected(inventory: Inventory) -> Iterator[Finding]:
    """Yield possible cycles through other accounts, as far as this account shows them."""
    for link in inventory.links:
        if link.origin is not None and link.origin_place is None:
            for hazard in suspected(link.reader, link.origin["config"]):
                yield Finding(
                    WARNING, hazards.CYCLE, link.node.name, hazard.evidence, "Run `kvctl doctor` in that account"
                )


def remedy_of(hazard: Hazard, name: str, config: StreamConfig, origins: Sequence[StreamConfig | None]) -> str:
    """Return the command for a replica of this name and configuration; origins are None if not readable."""
    seen = [origin for origin in origins if origin is not None]
    if hazard.name in (hazards.SHORTER_TTL, hazards.TTL_NOT_INHERITED):
        return _ttl_remedy(name, config, seen)
    if hazard.name == hazards.OUTSIDE_PREFIX:
        return f"Remove the origin with `kvctl aggregate remove-origin {name} ORIGIN`, and add it again"
    if hazard.name in (hazards.FILTERED_MIRROR, hazards.RENAMING_MIRROR):
        return f"`kvctl mirror delete {name}`; {hazard.remedy}"
    commands = {
        hazards.SHORTER_HISTORY: f"kvctl bucket edit {name} --history {_history(seen)}",
        hazards.SMALLER_LIMITS: f"kvctl bucket edit {name} --clear {_limit(config)}",
        hazards.DUPLICATE_WINDOW: f"kvctl stream edit {config['name']} --set duplicate_window=0",
        hazards.ORIGIN_NOT_DIRECT: f"kvctl stream edit {seen[0]['name'] if seen else 'ORIGIN'} --set allow_direct=true",
    }
    if hazard.name in commands:
        return f"`{commands[hazard.name]}`"
    return hazard.remedy or "`kvctl help hazards`"


def _ttl_remedy(name: str, config: StreamConfig, origins: Sequence[StreamConfig]) -> str:
    ages = [origin.get("max_age", 0) for origin in origins]
    wanted = max(ages, default=0) if all(ages) else 0
    if wanted == config.get("max_age", 0):
        return f"`kvctl stream edit {config['name']} --set allow_msg_ttl=true`"
    if not wanted:
        return f"`kvctl bucket edit {name} --clear ttl`"
    shorter = not 0 < config.get("max_age", 0) < wanted
    force = " --force lossy-edit" if shorter else ""  # entries that expire here also expire in the origin
    return f"`kvctl bucket edit {name} --ttl {format_duration(duration_from_ns(wanted))}{force}`"


def _history(origins: Sequence[StreamConfig]) -> int:
    """Return the history that covers all origins; ADR-8 allows at most 64."""
    kept = [origin.get("max_msgs_per_subject", -1) for origin in origins]
    return max(kept, default=64) if all(number > 0 for number in kept) else 64


def _limit(config: StreamConfig) -> str:
    return "max-value-size" if config.get("max_msg_size", -1) > 0 else "max-bytes"
