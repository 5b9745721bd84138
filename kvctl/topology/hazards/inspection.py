"""Hazards of existing mirrors and aggregates."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from kvctl.errors import KvctlError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import Source, StreamConfig, StreamInfo, sources_of
from kvctl.kv.names import STREAM_PREFIX
from kvctl.topology.hazards import replica_hazards
from kvctl.topology.hazards.hazards import Hazard
from kvctl.topology.hazards.replica_hazards import MISSING_ORIGIN, UNCONNECTED, name_of
from kvctl.topology.health.lineage import lineage
from kvctl.topology.survey import graph, inventory
from kvctl.topology.survey.graph import upstreams
from kvctl.topology.survey.origin_lookup import PATIENCE
from kvctl.units import duration_ns, parse_time

GRACE = timedelta(seconds=10)
"""Time that a new replica may take to connect."""

_NOT_FOUND = "(10059)"


async def hazards(api: Api, info: StreamInfo) -> list[Hazard]:
    """Return the hazards of a mirror or an aggregate, as far as its origins can be read."""
    return of_replica(info, await origins_of(api, info["config"]))


async def origins_of(api: Api, config: StreamConfig) -> list[StreamInfo | None]:
    """Return the infos of a stream's origins, in the order of its sources; None for those that cannot be read."""
    return list(await asyncio.gather(*(_origin(api, source) for source in sources_of(config))))


def of_replica(info: StreamInfo, origins: Sequence[StreamInfo | None]) -> list[Hazard]:
    """Return the hazards of an existing replica, given the infos of its origins in the order of its sources."""
    config = info["config"]
    configs = [origin["config"] if origin else None for origin in origins]
    found = replica_hazards.of_replica(config, configs)
    if config.get("mirror") and origins[0] is not None:
        found += lineage(info, origins[0]).hazards()
    return [*found, *_unconnected(info, origins)]


async def of_edit(api: Api, before: StreamConfig, after: StreamConfig) -> list[Hazard]:
    """Return the hazards that a change introduces, in the replica itself and in the replicas that read from it.

    Replicas in other accounts and domains are not examined.
    """
    if not replica_hazards.concerns_replicas(before, after):
        return []
    origins = await _configs_read(api, before)
    changed = origins if before.get("sources") == after.get("sources") else await _configs_read(api, after)
    found = _introduced(before, after, origins, changed) if changed else []
    known = {before["name"]: before}
    with suppress(KvctlError):
        place = await inventory.view("", api)
        known = {stream: info["config"] for stream, info in place.known.items()} | known
        found += graph.unknown(place.dependents(before["name"]))
    for reader in known.values():
        sources = sources_of(reader)
        current = [known.get(source["name"]) if not Source.parse(source).is_external else None for source in sources]
        if before not in current:
            continue
        updated = [after if config == before else config for config in current]
        for hazard in _introduced(reader, reader, current, updated):
            found.append(replace(hazard, evidence=f"`{name_of(reader)}` reads from it: {hazard.evidence}"))
    return found


async def seen(api: Api, stream: str) -> StreamInfo | None:
    """Return the info of a stream within a short timeout; None if it cannot be read."""
    with suppress(KvctlError):
        return await streams.info(api, stream, timeout=PATIENCE)
    return None


def is_new(info: StreamInfo) -> bool:
    """Return whether a replica may still be connecting."""
    age = parse_time(info["ts"]) - parse_time(info["created"]) if info.get("ts") else 0
    return age < duration_ns(GRACE)


async def _configs_read(api: Api, config: StreamConfig) -> list[StreamConfig | None]:
    return [origin["config"] if origin else None for origin in await origins_of(api, config)]


def _introduced(
    before: StreamConfig,
    after: StreamConfig,
    origins: Sequence[StreamConfig | None],
    changed: Sequence[StreamConfig | None],
) -> list[Hazard]:
    """Return the hazards that a replica has only after the change of itself or its origins."""
    accepted = replica_hazards.of_replica(before, origins) if origins else []
    return [hazard for hazard in replica_hazards.of_replica(after, changed) if hazard not in accepted]


def _unconnected(info: StreamInfo, origins: Sequence[StreamInfo | None]) -> Iterable[Hazard]:
    """Return the hazards of sources that never connected or do not exist."""
    name = name_of(info["config"])
    for upstream, origin in zip(upstreams(info), origins, strict=True):
        source = upstream.source
        of = source.name.removeprefix(STREAM_PREFIX)
        if upstream.error and upstream.error.endswith(_NOT_FOUND) and origin is None:
            yield Hazard(MISSING_ORIGIN, f"Origin `{of}` of `{name}` does not exist: nothing arrives until it does")
        elif upstream.last_seen is None and not upstream.error and not is_new(info):
            where = f" in domain `{source.domain}`" if source.domain else f" under `{source.api}`"
            text = f"`{name}` never connected to `{of}`{where if source.api else ''}"
            yield Hazard(UNCONNECTED, f"{text}: nothing arrives, although its lag is reported as 0")


async def _origin(api: Api, source: Mapping[str, Any]) -> StreamInfo | None:
    prefix = Source.parse(source).api
    return await seen(api.at(prefix) if prefix else api, source["name"])
