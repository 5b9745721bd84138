"""All checks of doctor, and those of the connection, its server, the account, and of mirrors and aggregates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from kvctl.connection import Connection
from kvctl.doctor import content
from kvctl.doctor.content import ERROR, NOTE, WARNING, Finding, ordered
from kvctl.errors import JetStreamDisabled, KvctlError, NoResponders, PermissionDenied
from kvctl.jetstream.api import SINGLE_ANSWERS, Api
from kvctl.jetstream.direct_get import DirectRequest
from kvctl.jetstream.multi_get import pages
from kvctl.jetstream.permissions import probe, round_trip
from kvctl.jetstream.stream_info import Source, StreamConfig, StreamInfo
from kvctl.kv.stream_kind import Kind
from kvctl.topology.hazards import cycle, hazards
from kvctl.topology.hazards.cycle import Replication
from kvctl.topology.hazards.hazards import Hazard, name_of
from kvctl.topology.health.health import Health, ReplicaHealth, check_health
from kvctl.topology.health.inspection import is_new
from kvctl.topology.model.origins import is_stand_in, is_temporary, original
from kvctl.topology.survey.graph import Inventory, Link, Place, Where
from kvctl.topology.survey.inventory import survey, with_domains
from kvctl.topology.survey.origin_lookup import suspected
from kvctl.units import duration_from_ns, format_duration, format_size

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


async def of_replicas(inventory: Inventory) -> list[Finding]:
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
    for limit in ("max-value-size", "max-bytes"):
        if standing.state is Health.STALLED and limit in standing.evidence:
            return f"`kvctl bucket edit {standing.link.node.name} --{limit} none` removes the limit"
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
        stale = hazards.unserved(config, origins[0]) if origins[0] is not None else None
        for hazard in [*hazards.of_replica(config, origins), *filter(None, [stale])]:
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
    republished = inventory.republications()
    for where in dict.fromkeys(reading.origin for reading in republished):
        for text in cycle.republishing([item for item in republished if item.origin == where], where):
            yield Finding(WARNING, "republish", name_of({"name": where[1]}), text, "Use an aggregate to replicate keys")
    for streams in cycle.cycles([*readings, *republished]):
        name = name_of({"name": streams[0][1]})
        fix = f"Remove one of the origins: `kvctl aggregate remove-origin {name} BUCKET`"
        if any({item.reader, item.origin} <= {*streams} for item in republished):
            fix = f"Stop republishing: `kvctl bucket edit {name} --clear republish`"
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
        hazards.LONGER_HISTORY: f"kvctl bucket edit {name} --history {_history(seen)} --force lossy-edit",
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


async def examine(api: Api) -> list[Finding]:
    """Return findings, the worst first. A failed check is a finding too; only a lost connection is raised."""
    parts = [of_connection(api.connection), of_account(api), _streams(api)]
    return ordered(finding for found in await asyncio.gather(*map(_guarded, parts)) for finding in found)


async def _streams(api: Api) -> list[Finding]:
    try:
        inventory = await survey({"": api})
    except PermissionDenied as error:
        text = f"Could not list the streams of this account, so its buckets were not checked: {error.message}"
        return [Finding(WARNING, "unseen", ACCOUNT, text, "Use a user who may list streams")]
    except JetStreamDisabled:
        return []  # reported by the check of the account
    except KvctlError as error:
        return [Finding(ERROR, "unseen", ACCOUNT, f"Could not list the streams: {error.message}", error.hint or "")]
    place = inventory.places[""]
    found = [*content.of_buckets(place.infos, *_servers(api)), *_offline(place)]
    found += _shadowed(place)
    found += [*content.of_tables(place.infos, place.unreachable), *await content.of_repositories(api, place.infos)]
    found += [*await of_import(api, place.infos), *await content.of_unlisted(api, place.infos)]
    return [*found, *await of_replicas(inventory)]


def _shadowed(place: Place) -> Iterator[Finding]:
    """Yield buckets whose reads a mirror of a bucket elsewhere also answers."""
    configs = {stream: info["config"] for stream, info in place.known.items()}
    for config in configs.values():
        bucket = configs.get((config.get("mirror") or {}).get("name", ""))
        for hazard in hazards.shadowed(config, bucket, place.domain):
            name = name_of(config["mirror"])
            fix = f"Copy it with `kvctl bucket copy {name} NEWNAME --data history`, then `kvctl bucket delete {name}`"
            yield Finding(ERROR, hazard.name, name, hazard.evidence, fix)


def _offline(place: Place) -> list[Finding]:
    origins = {stream: clue.origin for stream, clue in place.clues.items()}
    return [
        content.of_offline(stream, place.offline.get(stream), place.cluster_of(stream), origins.get(stream))
        for stream in place.unreachable
    ]


async def _guarded(part: Awaitable[Iterable[Finding]]) -> list[Finding]:
    """Return the findings of a check; one that fails is a finding itself."""
    try:
        return list(await part)
    except KvctlError as error:
        return [Finding(ERROR, "unseen", CONNECTION, error.message, error.hint or "")]


def _servers(api: Api) -> tuple[int, str]:
    """Return the number of servers in this server's cluster, as far as it reports them, and the cluster's name."""
    found = api.connection.server_info
    return len(set(found.get("connect_urls") or ())) or 1, found.get("cluster") or ""


CONNECTION = "connection"
SLOW_ROUND_TRIP_S = 0.25
"""Round trip in seconds above which every command is noticeably slow."""
LACKS = (
    ((2, 10), "subject transforms (required by aggregates), metadata, compression"),
    ((2, 11), "per-key TTLs, reads of many keys in one request"),
    ((2, 12), "atomic batches (required by transactions)"),
)
"""Features that servers before a version do not support."""

_VARZ = "$SYS.REQ.SERVER.PING.VARZ"
_VARZ_TIMEOUT_S = 0.5


async def of_connection(connection: Connection) -> list[Finding]:
    """Check round trip, version, encryption, and disk syncs of the server."""
    context, url = connection.context, connection.url
    encrypted = url.startswith(("tls://", "wss://")) or bool(connection.server_info.get("tls_required"))
    secret = any((context.password, context.token, context.user_jwt)) or "@" in context.url
    found = [*version(connection.server_version), *([] if encrypted else clear(url, secret=secret))]
    try:
        seconds = await round_trip(connection)
    except KvctlError as error:
        return [*found, Finding(WARNING, "round-trip", CONNECTION, error.message)]
    if seconds > SLOW_ROUND_TRIP_S:
        text = f"A message takes {seconds * 1000:.0f} ms to the server and back"
        found.append(Finding(NOTE, "round-trip", CONNECTION, text, "Connect to a server nearby, or read from a mirror"))
    return [*found, *await _syncing(connection)]


def version(number: tuple[int, ...]) -> Iterator[Finding]:
    """Yield the finding on missing features of a server of this version."""
    lacking = [text for since, text in LACKS if number < since]
    if lacking:
        text = f"nats-server {'.'.join(map(str, number))} does not support {'; '.join(lacking)}"
        yield Finding(WARNING if len(lacking) > 1 else NOTE, "server-version", CONNECTION, text, "Use a newer server")


def clear(url: str, *, secret: bool) -> Iterator[Finding]:
    """Yield the finding on an unencrypted connection to another machine; `secret` if a password or token is sent."""
    if not _here(url):
        text = "The connection is not encrypted" + (", and the password is sent in the clear" if secret else "")
        yield Finding(WARNING if secret else NOTE, "no-tls", CONNECTION, text, "Enable TLS on the server: `tls {}`")


def _here(url: str) -> bool:
    """Return whether the server is on this machine."""
    host = urlsplit(url if "://" in url else f"nats://{url}").hostname or ""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


async def _syncing(connection: Connection) -> list[Finding]:
    """Return the finding on servers that acknowledge before syncing to disk; only a system account sees the setting."""
    always: bool | None = None
    with suppress(KvctlError, NoResponders, PermissionDenied, ValueError, TimeoutError):
        async with asyncio.timeout(_VARZ_TIMEOUT_S):
            frame = await connection.request(_VARZ, timeout=_VARZ_TIMEOUT_S)
        config = json.loads(frame.payload)["data"]["jetstream"]["config"]
        always = bool(config.get("sync_always"))
    if always:
        return []
    seen = "" if always is False else " by default (the setting is not readable from this account)"
    text = f"Servers acknowledge writes before syncing to disk, every two minutes{seen}: a power failure can lose them"
    remedy = "Set `jetstream { sync_interval: always }` on each server; writes become slower"
    return [Finding(NOTE, "fsync", CONNECTION, text, remedy)]


ACCOUNT = "account"
PROBE_TIMEOUT_S = 1.0
"""Seconds for the answer to a probe: a refusal comes immediately, and in clusters some get no answer."""
NEAR, FULL = 0.8, 0.98
"""Parts of a limit at which to warn, and to report an error."""

_LIMITS = {"memory": "max_memory", "storage": "max_storage", "streams": "max_streams", "consumers": "max_consumers"}


async def of_account(api: Api) -> list[Finding]:
    """Check the usage of the account's limits, in each tier, and its user's permissions."""
    found = await _denied(api)
    try:
        info = await api.account_info()
    except PermissionDenied:
        return found  # reported by the probes
    except KvctlError as error:
        return [*found, Finding(ERROR, "jetstream", ACCOUNT, error.message, error.hint or "")]
    found += _near(info, "")
    for tier, usage in (info.get("tiers") or {}).items():
        found += _near(usage, f" of tier {tier}")
    return found


def _near(usage: Mapping[str, Any], where: str) -> Iterator[Finding]:
    limits = usage.get("limits") or {}
    for name, of in _LIMITS.items():
        used = max(usage.get(name, 0), usage.get(f"reserved_{name}", 0))
        limit = limits.get(of, -1)
        part = used / limit if limit > 0 else 0.0  # no limit is 0 or less
        if part >= NEAR:
            shown = [format_size(value) if name in ("memory", "storage") else str(value) for value in (used, limit)]
            text = f"{part:.0%} of the account's {name}{where} limit is used: {shown[0]} of {shown[1]}"
            severity = ERROR if part >= FULL else WARNING
            yield Finding(severity, "account-limit", ACCOUNT, text, "Raise the account's limit, or delete unused data")


async def _denied(api: Api) -> list[Finding]:
    denied = [
        item
        for item in await probe(api, timeout=PROBE_TIMEOUT_S)
        if not item.allowed and item.reason == "permission denied"
    ]
    if not denied:
        return []
    actions = ", ".join(item.action for item in denied)
    subjects = ", ".join(f"`{item.subject}`" for item in denied)
    remedy = f"Allow the user to publish to {subjects}"
    return [Finding(NOTE, "permissions", ACCOUNT, f"Not allowed to {actions}", remedy)]


async def of_import(api: Api, infos: Mapping[str, StreamInfo]) -> list[Finding]:
    """Request one message from one stream, which takes two answers: the message, and the end."""
    if api.prefix.startswith("$JS."):
        return []
    for stream, info in infos.items():
        if info["state"]["messages"] and info["config"].get("allow_direct"):
            request = DirectRequest(sequence=info["state"]["first_seq"], batch=1)
            with suppress(KvctlError):  # other errors are reported elsewhere
                async with aclosing(pages(api, stream, request)) as answers:
                    await anext(answers)
            break
    if not api.answers_once:
        return []
    text = f"Requests to `{api.prefix}` get only one answer: listings, watches and `consume` request each message"
    return [Finding(WARNING, "single-answers", ACCOUNT, text, SINGLE_ANSWERS)]
