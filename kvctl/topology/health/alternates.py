"""Alternates of a bucket: the streams that can answer its reads, nearest first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from kvctl.errors import KvctlError, NoResponders, RequestTimeout
from kvctl.jetstream.api import Api
from kvctl.jetstream.direct import direct_get
from kvctl.jetstream.stream_info import Alternate as Reported
from kvctl.jetstream.stream_info import Source, StreamInfo
from kvctl.kv.names import STREAM_PREFIX
from kvctl.topology.health.health import Health, ReplicaHealth
from kvctl.topology.survey.graph import Place
from kvctl.topology.survey.offline import lost_majority
from kvctl.topology.survey.origin_lookup import PATIENCE

PROBE_READS = 6
"""Reads to find out which replicas answer: servers distribute them among the nearest ones."""
ORIGIN, MIRROR = "origin", "mirror"
"""Roles of alternates."""

Answers = Mapping[str, float]
"""Streams that answered reads here, each with its shortest round trip in seconds."""


@dataclass(frozen=True, slots=True)
class Alternate:
    """A stream that can answer reads of a bucket. None: unknown."""

    served_by: str
    """Name of the bucket or the mirror, as users type it."""
    stream: str
    role: str
    cluster: str | None = None
    domain: str | None = None
    leader: str | None = None
    state: Health | None = None
    entries_behind: int | None = None
    last_seen: float | None = None
    """Seconds since the last message from its origin."""
    round_trip: float | None = None
    """Seconds from a read to its answer; None if it did not answer here."""
    here: bool | None = None
    """Whether it answered reads here; None if the bucket is empty."""


@dataclass(frozen=True, slots=True)
class Reads:
    """Reads of a bucket: who can answer them, and who does."""

    alternates: tuple[Alternate, ...] = ()
    reported: bool = False
    """Whether the server reports alternates; else they are the origin and the mirrors in view."""
    answers: Answers | None = None
    """None: it is empty, or may not be read here."""


async def answering(api: Api, stream: str) -> Answers | None:
    """Return the streams that serve reads of a stream here; None: it is empty, or may not be read."""
    found = await asyncio.gather(*(_answer(api, stream) for _ in range(PROBE_READS)), return_exceptions=True)
    shortest: dict[str, float] = {}
    for item in found:
        if isinstance(item, tuple):
            shortest[item[0]] = min(item[1], shortest.get(item[0], inf))
    nobody = any(isinstance(item, NoResponders | RequestTimeout) for item in found)
    return dict(sorted(shortest.items())) if shortest or nobody else None


def reads(
    stream: str,
    info: StreamInfo | None,
    health: Iterable[ReplicaHealth],
    answers: Answers | None,
    *,
    place: Place | None = None,
    api: str = "",
) -> Reads:
    """Return who can answer reads of a stream, the origin, given its info if it answers.

    `health` is that of mirrors in view; those that read the stream under the API prefix `api` count.
    """
    reported = {item["name"]: item for item in (info.get("alternates") if info else None) or ()}
    mirrors = {item.link.reader: item for item in health if _mirrors(item, stream, api)}
    clues = {} if place is None else {name: clue for name, clue in place.clues.items() if clue.origin == stream}
    known = {stream: None, **mirrors, **clues}
    times = answers or {}
    order = list(reported) or sorted(known, key=lambda name: (times.get(name, inf), name != stream, name))
    order += [name for name in times if name not in order]
    found = []
    for name in order:
        row = _mirror(mirrors[name]) if name in mirrors else Alternate(_name(name), name, MIRROR)
        if name == stream:
            row = _origin(stream, info, place)
        elif name in clues and name not in mirrors:
            row = Alternate(_name(name), name, MIRROR, clues[name].cluster, state=Health.OFFLINE)
        found.append(_placed(row, reported.get(name), times.get(name), None if answers is None else name in times))
    return Reads(tuple(found), bool(reported), answers)


async def _answer(api: Api, stream: str) -> tuple[str, float] | None:
    """Return the stream that answers a read, and the round trip in seconds; None if the stream is empty."""
    begun = time.monotonic()
    try:
        message = await direct_get.last(api, stream, ">", timeout=PATIENCE)
    except (NoResponders, RequestTimeout):
        raise
    except KvctlError:
        return None
    return (message.stream, round(time.monotonic() - begun, 6)) if message else None


def _mirrors(item: ReplicaHealth, stream: str, api: str) -> bool:
    source = Source.parse(item.link.source)
    return bool(item.link.info["config"].get("mirror")) and (source.name, source.api) == (stream, api)


def _origin(stream: str, info: StreamInfo | None, place: Place | None) -> Alternate:
    if info is None:
        cluster = place.cluster_of(stream) if place else None
        return Alternate(_name(stream), stream, ORIGIN, cluster, state=Health.OFFLINE)
    servers, state = info.get("cluster") or {}, Health.NO_LEADER if lost_majority(info) else Health.OK
    return Alternate(
        _name(stream), stream, ORIGIN, servers.get("name") or None, None, servers.get("leader") or None, state, 0
    )


def _mirror(item: ReplicaHealth) -> Alternate:
    info, stream = item.link.info, item.link.reader
    cluster = {} if item.link.silent else info.get("cluster") or {}
    behind = 0 if item.state is Health.OK else None
    if behind is None and item.arrived is not None and item.origin_last is not None:
        behind = max(item.origin_last - item.arrived, 0)
    return Alternate(
        item.link.node.name, stream, MIRROR, cluster.get("name") or item.link.place.cluster_of(stream), None,
        cluster.get("leader") or None, item.state, behind, item.last_seen,
    )  # fmt: skip


def _placed(row: Alternate, reported: Reported | None, seconds: float | None, here: bool | None) -> Alternate:
    """Return the row with its place as the server reports it, and whether it answered here."""
    cluster, domain = row.cluster, row.domain
    if reported is not None:
        cluster, domain = reported.get("cluster") or cluster, reported.get("domain") or domain
    return replace(row, cluster=cluster, domain=domain, round_trip=seconds, here=here)


def _name(stream: str) -> str:
    return stream.removeprefix(STREAM_PREFIX)
