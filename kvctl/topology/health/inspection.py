"""What the infos of a replica and its origins show: its lineage, and its hazards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

from kvctl.errors import KvctlError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import Source, StreamConfig, StreamInfo, sources_of
from kvctl.kv.names import STREAM_PREFIX
from kvctl.topology.hazards import hazards
from kvctl.topology.hazards.hazards import MISSING_ORIGIN, RECREATED_ORIGIN, UNCONNECTED, Hazard, name_of
from kvctl.topology.survey.graph import live_part, upstreams
from kvctl.topology.survey.origin_lookup import PATIENCE
from kvctl.units import duration_ns, format_time, parse_time


class Lineage(NamedTuple):
    """Result of comparing a replica's entries with the current stream instance of its origin."""

    same: bool | None
    """False: it holds entries of an earlier instance. None: undecided; an audit decides."""
    evidence: str = ""

    def hazards(self) -> list[Hazard]:
        """Return the hazard of a stale mirror, if it is one."""
        return [Hazard(RECREATED_ORIGIN, self.evidence, REMEDY)] if self.same is False else []


_SKEW = 10**9
"""Nanoseconds by which the clocks of an aggregate's and its origin's servers may differ."""

REMEDY = "Run `kvctl topology audit --repair` to recreate stale mirrors"


def lineage(replica: StreamInfo, origin: StreamInfo, source: dict[str, Any] | None = None) -> Lineage:
    """Compare two infos, the origin's requested after the replica's; `source` is the one of an aggregate."""
    return (
        _of_mirror(replica, origin)
        if source is None or replica["config"].get("mirror")
        else _of_source(replica, origin, source)
    )


def _of_mirror(mirror: StreamInfo, origin: StreamInfo) -> Lineage:
    """Compare a mirror, which keeps the origin's sequences and times."""
    mine, theirs = mirror["state"], origin["state"]
    name, of = name_of(mirror["config"]), name_of(origin["config"])
    made, created = parse_time(mirror["created"]), parse_time(origin["created"])
    if mine["last_seq"] > theirs["last_seq"]:
        text = f"`{name}` is at revision {mine['last_seq']}, but `{of}` only at {theirs['last_seq']}"
        return Lineage(False, f"{text}: it was recreated or restored, and `{name}` serves the old values")
    if created <= made or not mine["last_seq"]:
        return Lineage(True)
    if mine["messages"] and parse_time(mine["first_ts"]) < created:
        return _older(name, of, mirror, origin, created)
    if mine["first_seq"] > theirs["first_seq"] and theirs["messages"] and not _filtered(mirror):
        text = f"`{name}` begins at revision {mine['first_seq']}, but `{of}` at {theirs['first_seq']}"
        return Lineage(False, f"{text}: it was recreated after the mirror, which lacks its first entries")
    return Lineage(True)


def _of_source(aggregate: StreamInfo, origin: StreamInfo, source: dict[str, Any]) -> Lineage:
    """Compare one source of an aggregate, which detects a recreated origin by itself but keeps the old one's keys."""
    name, of, theirs = name_of(aggregate["config"]), name_of(origin["config"]), origin["state"]
    come = live_part(source, aggregate.get("sources") or []).get("seq", 0)
    if come > theirs["last_seq"]:
        text = f"`{name}` is at revision {come}, but `{of}` only at {theirs['last_seq']}"
        return Lineage(False, f"{text}: it was recreated or restored, and `{name}` keeps the old values")
    config, state, created = aggregate["config"], aggregate["state"], parse_time(origin["created"])
    alone = len(config.get("sources") or ()) == 1 and not config.get("subjects")
    if not alone or config.get("max_msgs_per_subject") != 1 or created <= parse_time(aggregate["created"]):
        return Lineage(True)
    if not state["messages"] or parse_time(state["first_ts"]) + _SKEW >= created:
        return Lineage(True)
    if theirs["messages"] and parse_time(theirs["first_ts"]) < created:
        return Lineage(None, f"`{of}` was restored after `{name}` was created, which may hold old values")
    oldest = format_time(parse_time(state["first_ts"]))
    text = f"`{name}` holds entries that arrived on {oldest}, but `{of}` was recreated on {format_time(created)}"
    return Lineage(False, text)


def _older(name: str, of: str, mirror: StreamInfo, origin: StreamInfo, created: int) -> Lineage:
    theirs = origin["state"]
    if theirs["messages"] and parse_time(theirs["first_ts"]) < created:
        # Restored, or a mirror itself: the entries may be the same.
        return Lineage(None, f"`{of}` was restored or recreated after `{name}`, which may hold old values")
    oldest = format_time(parse_time(mirror["state"]["first_ts"]))
    text = f"`{name}` holds entries of {oldest}, but `{of}` was recreated on {format_time(created)}"
    return Lineage(False, f"{text}: the mirror keeps serving the old values")


def _filtered(mirror: StreamInfo) -> bool:
    source = mirror["config"]["mirror"]
    return bool(source.get("filter_subject") or source.get("subject_transforms"))


GRACE = timedelta(seconds=10)
"""Time that a new replica may take to connect."""

_NOT_FOUND = "(10059)"


async def origins_of(api: Api, config: StreamConfig) -> list[StreamInfo | None]:
    """Return the infos of a stream's origins, in the order of its sources; None for those that cannot be read."""
    sources = map(Source.parse, sources_of(config))
    return list(await asyncio.gather(*(seen(api.at(source.api), source.name) for source in sources)))


def of_replica(info: StreamInfo, origins: Sequence[StreamInfo | None]) -> list[Hazard]:
    """Return the hazards of an existing replica, given the infos of its origins in the order of its sources."""
    config = info["config"]
    configs = [origin["config"] if origin else None for origin in origins]
    found = hazards.of_replica(config, configs)
    if config.get("mirror") and origins[0] is not None:
        found += lineage(info, origins[0]).hazards()
        found += filter(None, [hazards.unserved(config, origins[0]["config"])])
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
            ever = "has not connected since its server started" if info["state"]["messages"] else "never connected"
            text = f"`{name}` {ever} to `{of}`{f' {source.where}' if source.api else ''}"
            yield Hazard(UNCONNECTED, f"{text}: nothing arrives, although its lag is reported as 0")
