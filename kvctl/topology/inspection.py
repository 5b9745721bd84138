"""What is wrong with mirrors and aggregates that exist."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from kvctl.errors import KvctlError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.kv.kinds import StreamConfig
from kvctl.topology import replica_hazards
from kvctl.topology.hazards import Hazard
from kvctl.topology.origins import PATIENCE


async def hazards(api: Api, info: dict[str, Any]) -> list[Hazard]:
    """The hazards in the configuration of a mirror or an aggregate, as far as its origins can be seen."""
    config = info["config"]
    if config.get("mirror"):
        return replica_hazards.of_mirror(config, await _config_of(api, config["mirror"]))
    sources = config.get("sources") or []
    return replica_hazards.of_aggregate(config, await asyncio.gather(*(_config_of(api, item) for item in sources)))


async def _config_of(api: Api, source: dict[str, Any]) -> StreamConfig | None:
    prefix = (source.get("external") or {}).get("api")
    with suppress(KvctlError):
        found = await streams.info(api.at(prefix) if prefix else api, source["name"], timeout=PATIENCE)
        config: StreamConfig = found["config"]
        return config
    return None
