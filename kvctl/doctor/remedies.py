"""Remedies for the hazards of existing mirrors and aggregates. [pure]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvctl.jetstream.stream_info import Source, StreamConfig
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.topology.file.origin_spec import origin_spec
from kvctl.topology.hazards.hazards import Hazard
from kvctl.topology.hazards.replica_hazards import (
    DUPLICATE_WINDOW,
    FILTERED_MIRROR,
    ORIGIN_NOT_DIRECT,
    OUTSIDE_PREFIX,
    RENAMING_MIRROR,
    SHORTER_HISTORY,
    SHORTER_TTL,
    SMALLER_LIMITS,
    TTL_NOT_INHERITED,
    landing,
    name_of,
)
from kvctl.topology.model import External, Origin
from kvctl.units import duration_from_ns, format_duration


def remedy(hazard: Hazard, name: str, config: StreamConfig, origins: Sequence[StreamConfig | None]) -> str:
    """Return the command for a replica of this name and configuration; origins are None if not readable."""
    seen = [origin for origin in origins if origin is not None]
    if hazard.name in (SHORTER_TTL, TTL_NOT_INHERITED):
        return _ttl(name, config, seen)
    if hazard.name in (FILTERED_MIRROR, RENAMING_MIRROR):
        return f"`kvctl mirror delete {name}`; {hazard.remedy}"
    commands = {
        SHORTER_HISTORY: f"kvctl bucket edit {name} --history {_history(seen)}",
        SMALLER_LIMITS: f"kvctl bucket edit {name} --clear {_limit(config)}",
        DUPLICATE_WINDOW: f"kvctl stream edit {config['name']} --set duplicate_window=0",
        ORIGIN_NOT_DIRECT: f"kvctl stream edit {seen[0]['name'] if seen else 'ORIGIN'} --set allow_direct=true",
        OUTSIDE_PREFIX: _recreate_origins(name, config),
    }
    if hazard.name in commands:
        return f"`{commands[hazard.name]}`"
    return hazard.remedy or "`kvctl help hazards`"


def _ttl(name: str, config: StreamConfig, origins: Sequence[StreamConfig]) -> str:
    ages = [origin.get("max_age", 0) for origin in origins]
    wanted = max(ages, default=0) if all(ages) else 0
    if wanted == config.get("max_age", 0):
        return f"`kvctl stream edit {config['name']} --set allow_msg_ttl=true`"
    if not wanted:
        return f"`kvctl bucket edit {name} --clear ttl`"
    shorter = not 0 < config.get("max_age", 0) < wanted
    force = " --force lossy-edit" if shorter else ""  # entries that expire here also expire in the origin
    return f"`kvctl bucket edit {name} --ttl {format_duration(duration_from_ns(wanted))}{force}`"


def _recreate_origins(name: str, config: StreamConfig) -> str:
    """Return commands, joined by quotes, that recreate origins with keys outside the aggregate's subjects."""
    sources = config.get("sources") or []
    own = f"{SUBJECT_PREFIX}{name_of(config)}."
    outside = [source for source in sources if any(not pattern.startswith(own) for pattern in landing(source))]
    specs = [_spec(source) for source in outside]
    if len(outside) == len(sources):  # the last origin of an aggregate cannot be removed
        origins = " ".join(f"--origin {spec}" for spec in specs)
        return f"kvctl aggregate delete {name}` and `kvctl aggregate create {name} {origins}"
    commands = [f"kvctl aggregate remove-origin {name} {name_of(source)}" for source in outside]
    return "` and `".join([*commands, *(f"kvctl aggregate add-origin {name} {spec}" for spec in specs)])


def _spec(source: dict[str, Any]) -> str:
    """Return the origin of a source without filters, in command-line notation."""
    parsed = Source.parse(source)
    stream = parsed.name
    where = External(parsed.api, parsed.deliver) if parsed.is_external else None
    named: dict[str, Any] = {"bucket": name_of(source)} if stream.startswith(STREAM_PREFIX) else {"stream": stream}
    return origin_spec(Origin(**named, external=where))


def _history(origins: Sequence[StreamConfig]) -> int:
    """Return the history that covers all origins; ADR-8 allows at most 64."""
    kept = [origin.get("max_msgs_per_subject", -1) for origin in origins]
    return max(kept, default=64) if all(number > 0 for number in kept) else 64


def _limit(config: StreamConfig) -> str:
    return "max-value-size" if config.get("max_msg_size", -1) > 0 else "max-bytes"
