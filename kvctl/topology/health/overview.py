"""Overview of a bucket: its alternates, the streams that can answer its reads; health of its replicas; hazards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from kvctl.errors import BucketNotFound, JetStreamDisabled, KvctlError, NoResponders, RequestTimeout
from kvctl.jetstream import direct_get, streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import Source, StreamConfig, StreamInfo, sources_of
from kvctl.kv import catalog, resolve
from kvctl.kv.config import BucketStatus
from kvctl.kv.names import STREAM_PREFIX
from kvctl.kv.resolve import NOBODY_KNOWS
from kvctl.topology.hazards.hazards import Hazard, refuse, shadowed, unserved
from kvctl.topology.health.arrival import reported
from kvctl.topology.health.health import Health, ReplicaHealth, check_health, worst
from kvctl.topology.health.inspection import Lineage, lineage, of_replica, origins_of, seen
from kvctl.topology.survey.graph import Clue, Dependent, Place, cluster_name
from kvctl.topology.survey.inventory import lost_majority, survey_around, view
from kvctl.topology.survey.origin_lookup import PATIENCE

PROBE_READS = 6
"""Reads to find out which replicas answer: servers distribute them among the nearest ones."""
ORIGIN, MIRROR = "origin", "mirror"
"""Roles of alternates."""

Answers = Mapping[str, float]
"""Streams that answered reads here, each with its shortest round trip in seconds."""


class AlternateStream(NamedTuple):
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


class Reads(NamedTuple):
    """Reads of a bucket: who can answer them, and who does."""

    alternates: tuple[AlternateStream, ...] = ()
    reported: bool = False
    """Whether the server reports alternates; else they are the origin and the mirrors in view."""
    answers: Answers | None = None
    """None: it is empty, or may not be read here."""
    unable: tuple[Hazard, ...] = ()
    """Mirrors that do not answer reads, with the reason."""


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
    health: Collection[ReplicaHealth],
    answers: Answers | None,
    *,
    place: Place | None = None,
    api: str = "",
) -> Reads:
    """Return who can answer reads of a stream, the origin, given its info if it answers.

    `health` is that of mirrors in view; those that read the stream under the API prefix `api` count.
    """
    reported = {item["name"]: item for item in (info.get("alternates") if info else None) or ()}
    times, own = answers or {}, worst(item for item in health if item.link.reader == stream)
    mirrors = {item.link.reader: item for item in health if _mirrors(item, stream, api)}
    configs = {name: (item.link.info["config"], item.link.origin) for name, item in mirrors.items()}
    silent = {name for name, (config, _) in configs.items() if not config.get("mirror_direct") and name not in times}
    unable = (origin and unserved(config, origin["config"]) for name, (config, origin) in configs.items())
    clues = {} if place is None else {name: clue for name, clue in place.clues.items() if clue.origin == stream}
    known = {stream: None, **mirrors, **clues}
    order = list(reported) or sorted(known, key=lambda name: (times.get(name, inf), name != stream, name))
    order = [name for name in [*order, *(name for name in times if name not in order)] if name not in silent]
    found = []
    for name in order:
        row = _mirror(mirrors[name]) if name in mirrors else AlternateStream(_name(name), name, MIRROR)
        if name == stream:
            row = _mirror(own)._replace(role=ORIGIN) if own and not api else _origin(stream, info, place)
        elif name in clues and name not in mirrors:
            row = AlternateStream(_name(name), name, MIRROR, clues[name].cluster, state=Health.OFFLINE)
        here = None if answers is None else name in times
        if at := reported.get(name):
            row = row._replace(cluster=at.get("cluster") or row.cluster, domain=at.get("domain") or row.domain)
        found.append(row._replace(round_trip=times.get(name), here=here))
    return Reads(tuple(found), bool(reported), answers, tuple(filter(None, unable)))


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


def _origin(stream: str, info: StreamInfo | None, place: Place | None) -> AlternateStream:
    if info is None:
        cluster = place.cluster_of(stream) if place else None
        return AlternateStream(_name(stream), stream, ORIGIN, cluster, state=Health.OFFLINE)
    state = Health.NO_LEADER if lost_majority(info) else Health.OK
    return AlternateStream(_name(stream), stream, ORIGIN, cluster_name(info), None, _leader(info), state, 0)


def _mirror(item: ReplicaHealth) -> AlternateStream:
    link, node = item.link, item.link.node
    behind = 0 if item.state is Health.OK else None
    if behind is None and item.arrived is not None and item.origin_last is not None:
        behind = max(item.origin_last - item.arrived, 0)
    leader = None if link.silent else _leader(link.info)
    return AlternateStream(
        node.name, node.stream, MIRROR, node.cluster, None, leader, item.state, behind, item.last_seen
    )


def _leader(info: StreamInfo) -> str | None:
    return (info.get("cluster") or {}).get("leader") or None


def _name(stream: str) -> str:
    return stream.removeprefix(STREAM_PREFIX)


@dataclass(frozen=True, slots=True)
class Overview:
    """A bucket, mirror or aggregate as seen from here."""

    name: str
    stream: str
    status: BucketStatus | None
    """None: its servers do not answer."""
    dependents: list[Dependent] | None
    """Streams that read from it; None if the streams cannot be listed."""
    health: list[ReplicaHealth] = field(default_factory=list)
    """Health of its links to its origins, and of the links of its dependents to theirs."""
    info: StreamInfo | None = None
    """Its info; if its servers do not answer, as far as others know it, without state."""
    clue: Clue | None = None
    """What its origin reports of it, if its servers do not answer."""
    cluster: str | None = None
    """Its cluster, also if its servers do not answer."""
    reads: Reads = field(default_factory=Reads)
    """Streams that can serve its reads, and those that did answer; for a mirror, the reads of its origin."""
    origins: Sequence[StreamInfo | None] = ()
    """Infos of its origins, as far as readable."""
    hazards: list[Hazard] = field(default_factory=list)

    @property
    def answered_by(self) -> list[str] | None:
        """The streams that answered reads, by name; None: it is empty, or may not be read here."""
        return None if self.reads.answers is None else list(self.reads.answers)

    @property
    def lineage(self) -> Lineage | None:
        """The lineage of a mirror."""
        origin = self.origins[0] if self.origins else None
        return lineage(self.info, origin) if self.info and origin and self.info["config"].get("mirror") else None

    @property
    def lineages(self) -> dict[str, Lineage]:
        """Lineages of the mirrors that read from it, by stream."""
        mirrors = (item for item in self.health if item.link.info["config"].get("mirror"))
        near = (item for item in mirrors if Source.parse(item.link.source).reads_locally(self.stream))
        return {item.link.reader: item.lineage for item in near if item.lineage is not None}

    @property
    def doubts(self) -> list[str]:
        """Evidence that it, or a replica of it, lacks entries, or holds those of a recreated origin.

        Stale mirrors are shown by their lineage.
        """
        doubtful = [item for item in self._relevant() if item.state is Health.MISSING_ENTRIES or _recreated(item)]
        return list(dict.fromkeys(item.evidence for item in doubtful))

    @property
    def state(self) -> Health | None:
        """The worst state of its links to origins, `ok` for a bucket that answers; None if it is unknown."""
        if self.info is None or self.status is None:
            return Health.OFFLINE
        if lost_majority(self.info):
            return Health.NO_LEADER
        if found := self.health_of(self.stream):
            return found.state
        return None if sources_of(self.info["config"]) else Health.OK

    def health_of(self, stream: str) -> ReplicaHealth | None:
        """Return the health of the bucket, or of what it arrives in, for the origin with the worst; None: unknown."""
        return worst(item for item in self._relevant() if item.link.reader == stream)

    def _relevant(self) -> list[ReplicaHealth]:
        """Return the health of the links to its own origins, and of those that lead from it to its dependents."""
        names = {self.stream, *(item.node.stream for item in self.dependents or ())}
        return [
            item
            for item in self.health
            if item.link.reader == self.stream or any(map(Source.parse(item.link.source).reads_locally, names))
        ]


async def describe(api: Api, name: str) -> tuple[BucketStatus, Place | None]:
    """Return the bucket, and the streams in view; None if they cannot be listed. Raises BucketNotFound."""
    info, place = await catalog.find(api, name), None
    with suppress(KvctlError):
        place = await view("", api)
    others = {name: other["config"] for name, other in place.infos.items()} if place else {}
    return BucketStatus.from_info(info, others), place


async def inspect(api: Api, name: str) -> Overview:
    """Return the overview of a bucket. Raises BucketNotFound, and connection errors if nothing of it is in view."""
    describing = asyncio.ensure_future(describe(api, name))
    await asyncio.wait([describing], timeout=NOBODY_KNOWS)
    looking = None if describing.done() else asyncio.ensure_future(_from_outside(api, name))
    try:
        return await _from_inside(api, *await describing)
    except (JetStreamDisabled, NoResponders, RequestTimeout):
        found = await (looking or _from_outside(api, name))
        if not (found.answered_by or found.dependents or found.info or found.clue):
            raise
        return found
    finally:
        for task in filter(None, (describing, looking)):
            task.cancel()


async def readers_of(api: Api, name: str) -> Reads:
    """Return who can answer reads of a bucket, also of one in another domain or account that is mirrored here.

    Raises as `inspect`.
    """
    try:
        return (await inspect(api, name)).reads
    except BucketNotFound:
        replica = await resolve.replica_of(api, name)
        if replica is None or not replica[0].get("mirror"):
            raise
        return (await inspect(api, _name(replica[0]["name"]))).reads


async def is_served_by_others(api: Api, stream: str) -> bool:
    """Return whether a mirror serves reads of a stream that may be deleted: then it serves the old values."""
    with suppress(KvctlError):
        message = await direct_get.last(api, stream, ">", timeout=PATIENCE)
        return message is not None and message.stream != stream
    return False


async def namesakes(api: Api, wanted: StreamConfig) -> tuple[list[Hazard], list[str]]:
    """Return hazards and warnings for a new bucket: of replicas of an earlier one of this name, or of one elsewhere."""
    found: list[Hazard] = []
    warnings: list[str] = []
    if await streams.find(api, wanted["name"]) is None:
        with suppress(KvctlError):
            place = await view("", api)
            for stream, info in place.known.items():
                found += shadowed(info["config"], wanted, place.domain)
                warnings += dict.fromkeys(_of_namesakes(place.node(stream).name, info, wanted["name"]))
    return found, warnings


async def refuse_namesakes(api: Api, wanted: StreamConfig, what: str, force: Collection[str] | None) -> None:
    """Raise HazardRefused, whose message begins with `what`, for such hazards of a new bucket that are not forced."""
    refuse((await namesakes(api, wanted))[0], force, what)


def _of_namesakes(name: str, info: StreamInfo, stream: str) -> Iterator[str]:
    """Yield warnings about an aggregate of streams of this name: an earlier one here, or one elsewhere."""
    for config in info["config"].get("sources") or ():
        source = Source.parse(config)
        if source.name == stream and source.is_external:
            yield f"Aggregate `{name}` replicates `{_name(stream)}` {source.where}, not this bucket"
        elif source.name == stream and info["state"]["messages"] and reported(info, config) != 0:
            check = f"`kvctl topology audit {name}`"
            yield f"Aggregate `{name}` may still hold keys of the previous bucket: compare them with {check}"


async def _from_inside(api: Api, status: BucketStatus, place: Place | None) -> Overview:
    read = _read(status.config.get("mirror"), status.stream)
    origins, health, answers = await asyncio.gather(
        origins_of(api, status.config), _health(place, status.stream, read.name), answering(api, read.name)
    )
    mirror = bool(status.config.get("mirror"))
    holder = origins[0] if mirror else status.info
    return Overview(
        status.bucket,
        status.stream,
        status,
        place.dependents(status.stream) if place else None,
        health,
        status.info,
        cluster=cluster_name(status.info),
        reads=reads(read.name, holder, health, answers, place=place, api=read.api),
        origins=origins,
        hazards=of_replica(status.info, origins) if sources_of(status.info["config"]) else [],
    )


def _read(mirror: Mapping[str, Any] | None, stream: str) -> Source:
    """Return the stream that clients name when they read a mirror or a stream."""
    return Source.parse(mirror) if mirror else Source(stream)


async def _health(place: Place | None, stream: str, read: str) -> list[ReplicaHealth]:
    """Return the health of the links of a stream, and of those around the one that clients name when they read it."""
    return await check_health(await survey_around(place, read if read in place.known else stream)) if place else []


def _recreated(item: ReplicaHealth) -> bool:
    return item.state is Health.RECREATED_ORIGIN and not item.link.info["config"].get("mirror")


async def _from_outside(api: Api, name: str) -> Overview:
    """Return the overview of a stream whose own servers do not answer, from other streams."""
    place = await _place(api, STREAM_PREFIX + name)
    if place is None:
        stream = STREAM_PREFIX + name
        return Overview(name, stream, None, None, reads=reads(stream, None, (), await answering(api, stream)))
    stream = next((found for found in (STREAM_PREFIX + name, name) if place.has(found)), STREAM_PREFIX + name)
    info, clue = place.offline.get(stream), place.clues.get(stream)
    read = _read(info["config"].get("mirror") if info else clue.source if clue else None, stream)
    health, answers = await asyncio.gather(_health(place, stream, read.name), answering(api, read.name))
    origin = await seen(api, read.name) if read.name in place.infos else None
    served = reads(read.name, origin, health, answers, place=place, api=read.api)
    where = place.cluster_of(stream)
    return Overview(name, stream, None, place.dependents(stream), health, info, clue, where, served)


async def _place(api: Api, stream: str) -> Place | None:
    """Return the streams in view; if they cannot be listed, those that answer reads of this one."""
    with suppress(KvctlError):
        return await view("", api)
    answered_by = await answering(api, stream)
    if not answered_by:
        return None
    found = await asyncio.gather(*(seen(api, other) for other in answered_by))
    infos = {info["config"]["name"]: info for info in found if info is not None}
    return Place("", api, None, infos, (stream,))
