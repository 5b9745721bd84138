"""Hazards of existing mirrors and aggregates."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from kvctl.errors import KvctlError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import Source, StreamConfig, StreamInfo, sources_of
from kvctl.kv.names import STREAM_PREFIX
from kvctl.topology.hazards import hazards
from kvctl.topology.hazards.hazards import MISSING_ORIGIN, UNCONNECTED, Hazard, name_of
from kvctl.topology.health.lineage import lineage
from kvctl.topology.survey.graph import upstreams
from kvctl.topology.survey.origin_lookup import PATIENCE
from kvctl.units import duration_ns, parse_time

GRACE = timedelta(seconds=10)
"""Time that a new replica may take to connect."""

_NOT_FOUND = "(10059)"


async def hazards_of(api: Api, info: StreamInfo) -> list[Hazard]:
    """Return the hazards of a mirror or an aggregate, as far as its origins can be read."""
    return of_replica(info, await origins_of(api, info["config"]))


async def origins_of(api: Api, config: StreamConfig) -> list[StreamInfo | None]:
    """Return the infos of a stream's origins, in the order of its sources; None for those that cannot be read."""
    return list(await asyncio.gather(*(_origin(api, source) for source in sources_of(config))))


def of_replica(info: StreamInfo, origins: Sequence[StreamInfo | None]) -> list[Hazard]:
    """Return the hazards of an existing replica, given the infos of its origins in the order of its sources."""
    config = info["config"]
    configs = [origin["config"] if origin else None for origin in origins]
    found = hazards.of_replica(config, configs)
    if config.get("mirror") and origins[0] is not None:
        found += lineage(info, origins[0]).hazards()
    return [*found, *_unconnected(info, origins)]


async def seen(api: Api, stream: str) -> StreamInfo | None:
    """Return the info of a stream within a short timeout; None if it cannot be read."""
    with suppress(KvctlError):
        return await streams.info(api, stream, timeout=PATIENCE)
    return None


def is_new(info: StreamInfo) -> bool:
    """Return whether a replica may still be connecting."""
    age = parse_time(info["ts"]) - parse_time(info["created"]) if info.get("ts") else 0
    return age < duration_ns(GRACE)


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
