"""Counts of replicas that are up to date, compared with those of their origins: missing or extra entries."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from kvctl.errors import KvctlError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo, sources_of
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.phrases import counted, joined
from kvctl.topology.hazards.hazards import landing, name_of, overlaps
from kvctl.topology.health import arrival
from kvctl.topology.health.arrival import Goal
from kvctl.topology.model.subjects import KeyMapping, UnknownTransform, land
from kvctl.topology.survey.graph import Link
from kvctl.topology.survey.origin_lookup import PATIENCE
from kvctl.units import format_time, parse_time

_UNLIMITED = float("inf")


class Doubt(NamedTuple):
    """Reason why a replica that is up to date with its origins may still differ from them."""

    missing: bool
    """True if entries are certainly missing."""
    evidence: str


class SourceCounts(NamedTuple):
    """One source of a replica, and the info of its origin, requested after the replica's."""

    number: int
    """Number of the source among the replica's."""
    source: dict[str, Any]
    origin: StreamInfo
    pending: int = 0
    """Revisions of the origin that may not have arrived."""


def lacking(replica: StreamInfo, readings: Sequence[SourceCounts]) -> Doubt | None:
    """Return the evidence that keys, or only revisions, are missing in the replica; None if there is none."""
    comparable = _countable(replica["config"], readings)
    entries = sum(max(_least(replica, item) - item.pending, 0) for item in comparable)
    keys = sum(max(_keys(item.origin) - item.pending, 0) for item in comparable)
    if replica["state"]["messages"] >= entries and _keys(replica) >= keys:
        return None
    text = f"{_holds(replica)}, but {_of(comparable)} {_counts(comparable)}"
    if _keys(replica) == keys:
        # A key's ttl begins again in an aggregate: there, a revision may push out one that stays in the origin.
        return Doubt(False, f"{text}: the keys agree in number, and revisions of them differ")
    return Doubt(True, text)


def surplus(replica: StreamInfo, readings: Sequence[SourceCounts]) -> str:
    """Return the evidence that the replica holds more than its origins, without concurrent writes; empty if none.

    The surplus may be markers that were compacted in an origin, or live keys whose purge did not arrive.
    """
    config = replica["config"]
    comparable = _countable(config, readings)
    every = len(config.get("sources") or [config.get("mirror")])
    if len(comparable) < every or config.get("subjects"):
        return ""
    if config.get("mirror"):
        more = replica["state"]["messages"] > comparable[0].origin["state"]["messages"]
        same = _history(config) == _history(comparable[0].origin["config"])
        return _surplus(replica, comparable) if more and same else ""
    if any(_expires(item.origin["config"]) for item in comparable):
        return ""  # in aggregates ages count from the arrival
    return _surplus(replica, comparable) if _keys(replica) > sum(_keys(item.origin) for item in comparable) else ""


def late_start(reading: SourceCounts) -> str:
    """Return a description of a source that begins after the first entry of its origin; empty if it does not."""
    source, state, name = reading.source, reading.origin["state"], name_of(reading.source)
    sequence, moment = source.get("opt_start_seq") or 0, source.get("opt_start_time")
    if not state["messages"]:
        return ""
    if sequence > state["first_seq"]:
        return f"it replicates `{name}` from revision {sequence}, but `{name}` begins at {state['first_seq']}"
    if moment and parse_time(state["first_ts"]) < parse_time(moment):
        return f"it replicates `{name}` from {format_time(parse_time(moment))}, but `{name}` holds older entries"
    return ""


def _countable(config: StreamConfig, readings: Sequence[SourceCounts]) -> list[SourceCounts]:
    """Return the sources whose entries share no place in the replica with others."""
    shared = {place.number for pair in overlaps(config) for place in pair}
    return [item for item in readings if item.number not in shared and _complete(item)]


def _complete(reading: SourceCounts) -> bool:
    """Return whether a source replicates all that its origin holds, each subject to its own destination."""
    try:
        rules = KeyMapping.of(reading.source)
    except UnknownTransform:
        return False
    subjects = _subjects(reading.origin["config"])
    return not rules.lossy and (rules.taken == (">",) or (bool(subjects) and subjects <= {*rules.taken}))


def _subjects(config: StreamConfig) -> set[str]:
    """Return filters for all subjects that a stream can hold; empty if unclear."""
    found, mirror = {*(config.get("subjects") or ())}, config.get("mirror")
    if mirror:
        plain = str(mirror["name"]).startswith(STREAM_PREFIX) and not mirror.get("subject_transforms")
        return {f"{SUBJECT_PREFIX}{name_of(mirror)}.>"} if plain else set()
    own = f"{SUBJECT_PREFIX}{name_of(config)}."
    landings = [pattern for source in config.get("sources") or () for pattern in landing(source)]
    if not all(pattern.startswith(own) for pattern in landings):
        return set()
    return found | ({f"{own}>"} if landings else set())


def _least(replica: StreamInfo, reading: SourceCounts) -> int:
    """Return the number of an origin's entries for which the replica's history has room."""
    enough = _history(replica["config"]) >= _history(reading.origin["config"])
    return int(reading.origin["state"]["messages"]) if enough else _keys(reading.origin)


def _expires(config: StreamConfig) -> bool:
    return bool(config.get("max_age") or config.get("allow_msg_ttl") or config.get("subject_delete_marker_ttl"))


def _history(config: StreamConfig) -> float:
    history = config.get("max_msgs_per_subject", -1)
    return history if history > 0 else _UNLIMITED


def _keys(info: StreamInfo) -> int:
    return int(info["state"].get("num_subjects") or 0)


def _surplus(replica: StreamInfo, comparable: Sequence[SourceCounts]) -> str:
    reasons = ["markers compacted there", "keys whose deletion did not arrive"]
    # A source does not notice that its origin was deleted and recreated, and one may be added that is younger.
    younger = [item for item in comparable if _created(item.origin) > _created(replica)]
    reasons += [f"keys of an earlier {_of(younger)}"] if younger else []
    return f"{_holds(replica)}, but {_of(comparable)} {_counts(comparable)}: {joined(reasons, 'or')}"


def _created(info: StreamInfo) -> int:
    return parse_time(info["created"]) if info.get("created") else 0


def _holds(replica: StreamInfo) -> str:
    return f"`{name_of(replica['config'])}` holds {_number(replica['state']['messages'], _keys(replica))}"


def _of(comparable: Sequence[SourceCounts]) -> str:
    return ", ".join(dict.fromkeys(f"`{name_of(item.source)}`" for item in comparable))


def _counts(comparable: Sequence[SourceCounts]) -> str:
    return _number(
        sum(item.origin["state"]["messages"] for item in comparable), sum(_keys(item.origin) for item in comparable)
    )


def _number(entries: int, keys: int) -> str:
    return f"{counted(entries, 'entry')} of {counted(keys, 'key')}"


_State = tuple[Any, ...]


async def doubts(links: Sequence[Link], pause: float) -> list[Doubt | None]:
    """Return a doubt or None for each link of one up-to-date replica; takes `pause` seconds if counts differ."""
    found, config = await _of_all(links, pause), links[0].info["config"]
    if any(found):
        return found
    shared = {place.number for pair in overlaps(config) for place in pair}
    return list(await asyncio.gather(*(_of_part(link, shared, pause) for link in links)))


async def _of_all(links: Sequence[Link], pause: float) -> list[Doubt | None]:
    """Compare the numbers of all entries of the replica and its origins."""
    info = links[0].info
    shown = [_reading(link, info, link.origin, 0) for link in links if link.origin]
    if not _found(info, shown):
        return [_late(link, link.origin) for link in links]
    with suppress(KvctlError):
        before, _ = await _look(links)
        await asyncio.sleep(pause)
        after, (info, readings) = await _look(links)
        if before == after:  # nothing is arriving: missing entries were removed
            readings = [SourceCounts(item.number, item.source, item.origin) for item in readings]
        if doubt := lacking(info, readings):
            return [doubt] * len(links)
        if text := await _emptied(links, info):
            return [Doubt(True, text)] * len(links)
        if before == after and len(links) == len(sources_of(info["config"])) and (text := surplus(info, readings)):
            return [Doubt(False, text)] * len(links)
        return [_late(link, item.origin) for link, item in zip(links, readings, strict=True)]
    return [_late(link, link.origin) for link in links]


def _found(info: StreamInfo, readings: Sequence[SourceCounts]) -> bool:
    """Return whether the counts at hand, which may be of different moments, differ."""
    empty = not info["state"]["messages"] and any(item.origin["state"]["messages"] for item in readings)
    return bool(empty or lacking(info, readings) or surplus(info, readings))


async def _look(links: Sequence[Link]) -> tuple[_State, tuple[StreamInfo, list[SourceCounts]]]:
    """Read the replica, then its origins: entries added since are bounded by their revisions."""
    place = links[0].place
    info = await streams.info(place.api, links[0].reader)
    come = [await arrival.arrived(place.api, info, Goal(link.view, link.source, None)) for link in links]
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
    wanted = await arrival.goals([(link.source, link.view) for link in links])
    names = [f"`{name_of(goal.source)}`" for goal in wanted if goal.sequence]
    return f"empty, but {', '.join(dict.fromkeys(names))} has entries for it" if names else ""


def _reading(link: Link, info: StreamInfo, origin: StreamInfo | None, pending: int) -> SourceCounts:
    assert origin is not None
    return SourceCounts(sources_of(info["config"]).index(link.source), link.source, origin, pending)


def _late(link: Link, origin: StreamInfo | None) -> Doubt | None:
    text = late_start(SourceCounts(0, link.source, origin)) if origin is not None else ""
    return Doubt(False, f"{text}; run an audit to find missing entries") if text else None


MOST_NAMES = 10_000
"""Keys of a stream up to which they are compared by name, not only in number."""
_NO_NAMES = 2**31 - 1
"""Offset in a list of subjects beyond its end: the answer has only their number."""


class _Part(NamedTuple):
    """The keys that one source brings, in its origin and in the aggregate."""

    expected: int
    held: int
    pending: int
    last: int
    """The origin's last revision."""


async def _of_part(link: Link, shared: Collection[int], pause: float) -> Doubt | None:
    """Compare the keys of one source with those in the places that it fills."""
    if link.origin is None or (_alone(link) and _complete(_reading(link, link.info, link.origin, 0))):
        return None
    try:
        before = await _part(link, shared)
        if before.held >= before.expected:
            return None
        await asyncio.sleep(pause)
        part = await _part(link, shared)
    except (KvctlError, UnknownTransform) as error:
        return Doubt(False, f"the keys of `{name_of(link.source)}` cannot be counted: {error}")
    if part.held >= part.expected - (part.pending if part.last != before.last else 0):
        return None
    name = name_of(link.info["config"])
    return Doubt(True, f"`{name}` holds {part.held} of {counted(part.expected, 'key')} of `{name_of(link.source)}`")


def _alone(link: Link) -> bool:
    return len(sources_of(link.info["config"])) == 1


async def _part(link: Link, shared: Collection[int]) -> _Part:
    """Count in the aggregate, then in the origin. Raises UnknownTransform for keys that cannot be told from others'."""
    rules, here, there = KeyMapping.of(link.source), link.place.api, link.source["name"]
    info = await streams.info(here, link.reader)
    come = await arrival.arrived(here, info, Goal(link.view, link.source, None)) or 0
    places = [rule.pattern for rule in rules.rules]
    if max(_keys(info), _keys(link.origin) if link.origin else 0) <= MOST_NAMES:
        held = {name for place in places for name in await streams.subjects(here, link.reader, place)}
        subjects = {name for taken in rules.taken for name in await streams.subjects(link.api, there, taken)}
        wanted = {landed for subject in subjects if (landed := land(rules.rules, subject)) is not None}
        expected, present = len(wanted), len(wanted & held)
    elif rules.lossy or sources_of(info["config"]).index(link.source) in shared:
        raise UnknownTransform("they share places with others")
    else:
        present = sum([await _number_of(here, link.reader, place) for place in places])
        expected = sum([await _number_of(link.api, there, taken) for taken in rules.taken])
    last = (await streams.info(link.api, there, timeout=PATIENCE))["state"]["last_seq"]
    return _Part(expected, present, max(last - come, 0), last)


async def _number_of(api: Api, stream: str, subjects: str) -> int:
    """Return the number of subjects that match a filter, without reading them."""
    reply: Mapping[str, Any] = await streams.info(api, stream, subjects_filter=subjects, offset=_NO_NAMES)
    return int(reply.get("total") or 0)
