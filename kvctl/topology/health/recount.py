"""Comparison of healthy replicas with their origins by count; deficits are checked twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kvctl.errors import KvctlError
from kvctl.jetstream import streams
from kvctl.jetstream.stream_info import StreamInfo, sources_of
from kvctl.topology.hazards.hazards import name_of
from kvctl.topology.health import arrival
from kvctl.topology.health.arrival import Goal
from kvctl.topology.health.completeness import Reading, lacking, late_start, surplus
from kvctl.topology.survey.graph import Link
from kvctl.topology.survey.origin_lookup import PATIENCE


@dataclass(frozen=True, slots=True)
class Doubt:
    """Reason why a replica that is up to date with its origins may still differ from them."""

    missing: bool
    """True if entries are certainly missing."""
    evidence: str


_State = tuple[Any, ...]


async def doubts(links: Sequence[Link], pause: float) -> list[Doubt | None]:
    """Return a doubt or None for each link of one up-to-date replica; takes `pause` seconds if counts differ."""
    info = links[0].info
    shown = [_reading(link, info, link.origin, 0) for link in links if link.origin]
    if not _found(info, shown):
        return [_late(link, link.origin) for link in links]
    with suppress(KvctlError):
        before, _ = await _look(links)
        await asyncio.sleep(pause)
        after, (info, readings) = await _look(links)
        if before == after:  # nothing is arriving: missing entries were removed
            readings = [Reading(item.number, item.source, item.origin) for item in readings]
        if text := lacking(info, readings) or await _emptied(links, info):
            return [Doubt(True, text)] * len(links)
        if before == after and len(links) == len(sources_of(info["config"])) and (text := surplus(info, readings)):
            return [Doubt(False, text)] * len(links)
        return [_late(link, item.origin) for link, item in zip(links, readings, strict=True)]
    return [_late(link, link.origin) for link in links]


def _found(info: StreamInfo, readings: Sequence[Reading]) -> bool:
    """Return whether the counts at hand, which may be of different moments, differ."""
    empty = not info["state"]["messages"] and any(item.origin["state"]["messages"] for item in readings)
    return bool(empty or lacking(info, readings) or surplus(info, readings))


async def _look(links: Sequence[Link]) -> tuple[_State, tuple[StreamInfo, list[Reading]]]:
    """Read the replica, then its origins: entries added since are bounded by their revisions."""
    place = links[0].place
    info = await streams.info(place.api, links[0].reader)
    come = [await arrival.arrived(place.api, info, Goal(link.view, 0, link.source, None)) for link in links]
    origins = [await streams.info(link.api, link.source["name"], timeout=PATIENCE) for link in links]
    pending = [max(origin["state"]["last_seq"] - (at or 0), 0) for origin, at in zip(origins, come, strict=True)]
    readings = [_reading(*item) for item in zip(links, [info] * len(links), origins, pending, strict=True)]
    counts = (
        (item["state"]["messages"], item["state"].get("num_subjects"), item["state"]["last_seq"])
        for item in (info, *origins)
    )
    return tuple(counts), (info, readings)


async def _emptied(links: Sequence[Link], info: StreamInfo) -> str:
    """Return the evidence that the replica is empty although one of its origins has an entry for it; else empty."""
    if info["state"]["messages"]:
        return ""
    wanted = await arrival.goals([(0, link.source, link.view) for link in links])
    names = [f"`{name_of(goal.source)}`" for goal in wanted if goal.sequence]
    return f"it is empty, but {', '.join(dict.fromkeys(names))} has entries for it" if names else ""


def _reading(link: Link, info: StreamInfo, origin: StreamInfo | None, pending: int) -> Reading:
    assert origin is not None
    return Reading(sources_of(info["config"]).index(link.source), link.source, origin, pending)


def _late(link: Link, origin: StreamInfo | None) -> Doubt | None:
    text = late_start(Reading(0, link.source, origin)) if origin is not None else ""
    return Doubt(False, f"{text}; run an audit to find missing entries") if text else None
