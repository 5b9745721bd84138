"""Overview of a bucket: replicas that serve its reads here, health of its replicas, hazards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from kvctl.errors import JetStreamDisabled, KvctlError, NoResponders, RequestTimeout
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.direct import direct_get
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.jetstream.stream_source import Source, parsed_sources, sources_of
from kvctl.jetstream.streams import Listing
from kvctl.kv.names import STREAM_PREFIX
from kvctl.kv.resolve import NOBODY_KNOWS
from kvctl.topology.apply import bucket_changes
from kvctl.topology.apply.bucket_changes import Description
from kvctl.topology.discover import links
from kvctl.topology.discover.health import Health, ReplicaHealth, check_health
from kvctl.topology.discover.inventory import (
    Inventory,
    Link,
    Place,
)
from kvctl.topology.discover.links import Dependent
from kvctl.topology.discover.mirror_origin import Lineage, lineage
from kvctl.topology.discover.origin_lookup import PATIENCE
from kvctl.topology.hazards.hazards import Hazard
from kvctl.topology.hazards.inspection import of_replica, origins_of, seen

PROBE_READS = 6
"""Reads to find out which replicas answer: servers distribute them among the nearest ones."""


@dataclass(frozen=True, slots=True)
class Overview:
    """A bucket, mirror or aggregate as seen from here."""

    name: str
    stream: str
    description: Description | None
    """None: its servers do not answer."""
    dependents: list[Dependent] | None
    """Streams that read from it; None if the streams cannot be listed."""
    lineages: Mapping[str, Lineage]
    """Lineages of the mirrors among its dependents, by stream."""
    alternates: list[dict[str, str]] | None = None
    """Streams that can serve its reads, nearest first: name, cluster, domain; None: not reported by the server."""
    answered_by: list[str] | None = None
    """Streams that did answer, by name; None: it is empty, or may not be read here."""
    origins: Sequence[StreamInfo | None] = ()
    """Infos of its origins, as far as readable."""
    lineage: Lineage | None = None
    """Set for mirrors only."""
    hazards: list[Hazard] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    """Evidence that it, or a replica of it, lacks entries, or holds those of a recreated origin."""


async def inspect(api: Api, name: str) -> Overview:
    """Return the overview of a bucket. Raises BucketNotFound, and connection errors if nothing of it is in view."""
    describing = asyncio.ensure_future(bucket_changes.describe(api, name))
    await asyncio.wait([describing], timeout=NOBODY_KNOWS)
    looking = None if describing.done() else asyncio.ensure_future(_from_outside(api, name))
    try:
        return await _from_inside(api, await describing)
    except (JetStreamDisabled, NoResponders, RequestTimeout):
        found = await (looking or _from_outside(api, name))
        if not found.answered_by and not found.dependents:
            raise
        return found
    finally:
        for task in filter(None, (describing, looking)):
            task.cancel()


async def answering(api: Api, stream: str) -> list[str] | None:
    """Return the streams that serve reads of a stream here, by name; None: it is empty, or may not be read."""
    asked = (direct_get.last(api, stream, ">", timeout=PATIENCE) for _ in range(PROBE_READS))
    found = await asyncio.gather(*asked, return_exceptions=True)
    names = sorted({item.stream for item in found if isinstance(item, direct_get.StoredMessage)})
    nobody = any(isinstance(item, NoResponders | RequestTimeout) for item in found)
    return names if names or nobody else None


async def is_served_by_others(api: Api, stream: str) -> bool:
    """Return whether a mirror serves reads of a stream that may be deleted: then it serves the old values."""
    with suppress(KvctlError):
        message = await direct_get.last(api, stream, ">", timeout=PATIENCE)
        return message is not None and message.stream != stream
    return False


async def _from_inside(api: Api, description: Description) -> Overview:
    status = description.status
    mirror = status.config.get("mirror")
    origins, lineages, answered_by = await asyncio.gather(
        origins_of(api, status.config),
        _lineages(api, status.info, description.known.values()),
        answering(api, mirror["name"] if mirror else status.stream),
    )
    holder = origins[0] if mirror else status.info
    return Overview(
        status.bucket,
        status.stream,
        description,
        description.dependents,
        lineages,
        alternates=_alternates(holder) if holder else None,
        answered_by=answered_by,
        origins=origins,
        lineage=lineage(status.info, origins[0]) if mirror and origins[0] else None,
        hazards=of_replica(status.info, origins) if sources_of(status.info["config"]) else [],
        doubts=await _doubts(api, description, origins),
    )


async def _doubts(api: Api, description: Description, origins: Sequence[StreamInfo | None]) -> list[str]:
    """Return doubts from the counts of links from and to a bucket; stale mirrors are shown by their lineage."""
    info, known = description.status.info, {**description.known, description.status.stream: description.status.info}
    place, stream = Place("", api, None, known), description.status.stream
    joined = [
        Link(place, info, source, place, origin)
        for source, origin in zip(sources_of(info["config"]), origins, strict=True)
    ]
    joined += [
        Link(place, other, source, place, known[source["name"]])
        for other in known.values()
        for source in sources_of(other["config"])
        if source["name"] in known
        and not Source.parse(source).is_external
        and other is not info
        and any(one.reads_locally(stream) for one in parsed_sources(other["config"]))
    ]
    found = await check_health(Inventory({"": place}, tuple(joined)))
    doubtful = [item for item in found if item.state is Health.MISSING_ENTRIES or _recreated(item)]
    return list(dict.fromkeys(item.evidence for item in doubtful))


def _recreated(item: ReplicaHealth) -> bool:
    return item.state is Health.RECREATED_ORIGIN and not item.link.info["config"].get("mirror")


async def _from_outside(api: Api, name: str) -> Overview:
    """Return the overview of a stream whose own servers do not answer, from other streams."""
    stream = STREAM_PREFIX + name
    listed, answered_by = await asyncio.gather(_listed(api), answering(api, stream))
    if listed is None and answered_by:
        found = await asyncio.gather(*(seen(api, other) for other in answered_by))
        listed = Listing(tuple(info for info in found if info is not None), {})
    dependents = None if listed is None else links.dependents_among(listed, stream)
    return Overview(name, stream, None, dependents, {}, answered_by=answered_by)


async def _listed(api: Api) -> Listing | None:
    with suppress(KvctlError, TimeoutError):
        async with asyncio.timeout(api.connection.timeout):
            return await streams.listing(api)
    return None


async def _lineages(api: Api, info: StreamInfo, known: Iterable[StreamInfo]) -> dict[str, Lineage]:
    """Return the lineages of the mirrors in view that read from the stream of this info."""
    stream = info["config"]["name"]
    mirrors = [other for other in known if _mirrors(other, stream)]
    found = {other["config"]["name"]: lineage(other, info) for other in mirrors}
    if all(item.same for item in found.values()):
        return found
    # It may have changed while the streams were listed.
    later = await seen(api, stream)
    return {other["config"]["name"]: lineage(other, later or info) for other in mirrors}


def _mirrors(info: StreamInfo, stream: str) -> bool:
    mirror = info["config"].get("mirror")
    return mirror is not None and Source.parse(mirror).reads_locally(stream)


def _alternates(info: StreamInfo) -> list[dict[str, str]] | None:
    found = info.get("alternates")
    if not found:
        return None
    return [{key: str(item.get(key, "")) for key in ("name", "cluster", "domain")} for item in found]
