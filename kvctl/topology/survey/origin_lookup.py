"""Lookup of origins in this account or elsewhere, as far as permissions allow."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from kvctl.errors import (
    BucketNotFound,
    JetStreamDisabled,
    KvctlError,
    NoResponders,
    PermissionDenied,
    RequestTimeout,
    StreamNotFound,
    UnreachableError,
    UsageError,
)
from kvctl.jetstream import streams
from kvctl.jetstream.api import DEFAULT_PREFIX, Api
from kvctl.jetstream.stream_info import Source, StreamConfig, StreamInfo, parsed_sources, sources_of
from kvctl.kv import resolve, stream_kind
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.suggest import did_you_mean
from kvctl.topology.hazards import cycle, hazards
from kvctl.topology.hazards.cycle import Node, Replication
from kvctl.topology.hazards.hazards import CYCLE, MISSING_ORIGIN, UNCONNECTED, Hazard, name_of
from kvctl.topology.model.origins import External, Origin

PATIENCE = 2.0
"""Seconds for an answer from another domain or account: if nothing is imported, none comes."""
MAX_CHAIN = 64
"""Streams that are followed upstream in search of a cycle."""

SILENT = (JetStreamDisabled, NoResponders, RequestTimeout, PermissionDenied)
"""Errors of requests to another domain or account if nothing, or too little, is imported from there."""


class OriginView(NamedTuple):
    """An origin as far as it can be read from here."""

    origin: Origin
    """The origin with its bucket and stream named."""
    api: Api
    info: StreamInfo | None
    """None if it does not exist, or if its info may not be requested."""
    exists: bool | None
    """None: unknown."""
    reachable: bool = True
    """True if anything answers at its address."""

    @property
    def config(self) -> StreamConfig | None:
        """Its configuration, if readable."""
        return self.info["config"] if self.info else None

    @property
    def held(self) -> int:
        """Stored bytes, as far as known."""
        return int(self.info["state"]["bytes"]) if self.info else 0

    def hazards(self) -> list[Hazard]:
        """Return the hazards of an origin from which nothing may ever arrive."""
        if self.exists is False:
            return [Hazard(MISSING_ORIGIN, f"`{self.origin.asked_name}` does not exist: nothing arrives until it does")]
        if not self.reachable:
            return [Hazard(UNCONNECTED, self._unreachable(), self._exports())]
        return []

    def warnings(self) -> list[str]:
        """Return what cannot be confirmed about it, and what would allow that."""
        if self.info is not None or self.exists is False or not self.reachable:
            return []
        stream, prefix = self.origin.source_stream, self.api.prefix
        if self.origin.external is None:
            return [f"Could not check `{self.origin.name}`: `{prefix}.STREAM.INFO.{stream}` is not permitted"]
        return [
            f"Cannot confirm from here that `{self.origin.name}` exists, or when it is completely replicated: "
            f"{exports_to_see(stream, prefix)}"
        ]

    def _unreachable(self) -> str:
        domain = self.origin.external.domain if self.origin.external else None
        where = f"in domain `{domain}`" if domain else f"under `{self.api.prefix}`"
        return f"Nothing answers {where}: nothing would ever arrive from `{self.origin.name}`"

    def _exports(self) -> str:
        if self.origin.external is None or self.origin.external.domain:
            return "Check the name of the domain and the leaf node connection"
        return exports_needed(self.origin, filtered=True)


def exports_to_see(stream: str, prefix: str) -> str:
    """Return the exports that would let this account read an origin of another account, imported under a prefix."""
    return (
        f"export the services `{DEFAULT_PREFIX}.STREAM.INFO.{stream}` and `{DEFAULT_PREFIX}.DIRECT.GET.{stream}.>` to "
        f"this account, and import them as `{prefix}.STREAM.INFO.{stream}` and `{prefix}.DIRECT.GET.{stream}.>`"
    )


def exports_needed(origin: Origin, *, filtered: bool) -> str:
    """Return the exports of another account that replication needs."""
    stream = origin.source_stream
    deliver = (origin.external.deliver if origin.external else "") or "<the deliver prefix>"
    create = f"{DEFAULT_PREFIX}.CONSUMER.CREATE.{stream}{'.>' if filtered else ''}"
    return (
        f"The origin's account must export the services `{create}` and `$JS.FC.{stream}.>` and the stream "
        f"`{deliver}.>`; this account must import them, as `{origin.external.api if origin.external else ''}`"
    )


async def own_domain(api: Api) -> str | None:
    """Return the JetStream domain of this API; None without one, or if account info may not be requested."""
    with suppress(KvctlError):
        return str((await api.account_info()).get("domain") or "") or None
    return None


async def look(api: Api, origin: Origin) -> OriginView:
    """Find an origin and complete its bucket and stream. Raises UsageError if a stream's bucket remains unknown."""
    if origin.external and origin.external.domain and origin.external.domain == await own_domain(api):
        origin = replace(origin, external=None)  # servers would treat it as another domain, and never deliver
    there = api.at(origin.external.api) if origin.external else api
    patience = PATIENCE if origin.external else None
    try:
        info = await _first(there, origin.candidates, patience)
    except SILENT as error:
        if origin.external is None and not isinstance(error, PermissionDenied):
            raise
        reachable = isinstance(error, PermissionDenied) or await _answers(there, origin)
        return OriginView(_named(origin), there, None, None, reachable)
    if info is None:
        return OriginView(_named(origin, exists=False), there, None, False)
    return OriginView(await _completed(there, origin, info), there, info, True)


async def refuse_missing(seen: Iterable[OriginView], forced: Iterable[str]) -> None:
    """Raise RefusedError for a table as origin, and BucketNotFound for others that do not exist, unless forced."""
    absent = [item for item in seen if item.exists is False]
    known: list[str] = []
    if absent:
        with suppress(KvctlError):
            known = await streams.names(absent[0].api)
    for item in absent[:1]:
        if other := await resolve.other_owner(item.api, item.origin.name, known):
            raise other
    if not absent or MISSING_ORIGIN in forced:
        return
    names = ", ".join(f"`{item.origin.asked_name}`" for item in absent)
    where = ""
    if (external := absent[0].origin.external) is not None:
        where = f" {Source('', external.api).where}"
    kind = "stream" if absent[0].origin.stream else "bucket"
    known = known if kind == "stream" else resolve.possible_buckets(known)
    remedy = f"List {kind}s with `kvctl {kind} ls`. "
    remedy += f"Use `--force {MISSING_ORIGIN}` to create the replica before its origin"
    raise BucketNotFound(
        f"Origin {names} does not exist{where}", hint=did_you_mean(absent[0].origin.asked_name, known, remedy)
    )


async def cycles(api: Api, config: StreamConfig, seen: Iterable[OriginView]) -> list[Hazard]:
    """Return the hazard if the stream of this configuration would, through others, read itself; domains are crossed.

    Other accounts are not: one that reads a stream of this name from elsewhere is suspected. Raises RefusedError for an
    origin that is read twice, directly and through another: servers take that for a cycle (10052).
    """
    domain = await own_domain(api)
    target: Node = (domain, config["name"])
    seen = list(seen)
    infos = {place: item.info for item in seen if (place := _place_of(item.origin, domain)) is not None}
    readings = _readings(config, domain)
    waiting = [reading.origin for reading in readings]
    known = {target}
    while waiting and len(known) < MAX_CHAIN:
        place = waiting.pop(0)
        if place in known:
            continue
        known.add(place)
        info = infos[place] if place in infos else await _info_at(api, place)
        more = _readings(info["config"], place[0]) if info else []
        readings += more
        waiting += [reading.origin for reading in more]
    local = await _local(api, domain, config)
    republished = cycle.republications(local)
    around = [reading for place, other in local.items() if place not in known for reading in _readings(other, place[0])]
    every = [*readings, *around, *republished] if republished else readings
    found = [nodes for nodes in cycle.cycles(every) if target in nodes]
    if not found:
        cycle.refuse_doubled(name_of(config), readings, target)
    certain = [cycle.hazard(cycle.beginning_with(nodes, target), "domain ") for nodes in found]
    return [*certain, *(hazard for item in seen for hazard in _suspected_of(config["name"], item))]


async def refuse_cycles(api: Api, config: StreamConfig) -> None:
    """Raise HazardRefused if the stream of this configuration would read itself."""
    hint = "Republish to a subject that none of these buckets receives"
    hazards.refuse(await cycles(api, config, ()), None, f"`{name_of(config)}` was not changed", lambda _: hint)


async def republishing(api: Api, config: StreamConfig) -> list[str]:
    """Return warnings about republishing of the stream of this configuration into other buckets."""
    if not config.get("republish"):
        return []
    domain = await own_domain(api)
    readings = cycle.republications(await _local(api, domain, config))
    return cycle.republishing(readings, (domain, config["name"]))


async def _local(api: Api, domain: str | None, config: StreamConfig) -> dict[Node, StreamConfig]:
    """Return the configurations of the streams of this account, as far as they can be listed, with a new one."""
    configs: dict[Node, StreamConfig] = {}
    with suppress(KvctlError):
        configs = {(domain, info["config"]["name"]): info["config"] for info in (await streams.listing(api)).answering}
    return configs | {(domain, config["name"]): config}


def suspected(stream: str, origin: StreamConfig) -> Iterable[Hazard]:
    """Yield the hazard of an origin in another account that reads a stream of our name from an account unknown here."""
    for source in parsed_sources(origin):
        if source.name == stream and source.api and source.domain is None:
            name, ours = (text.removeprefix(STREAM_PREFIX) for text in (origin["name"], stream))
            text = f"`{name}` itself replicates a bucket `{ours}` under `{source.api}`"
            yield Hazard(CYCLE, f"{text}: if that is this one, every write would circulate endlessly")


def _place_of(origin: Origin, domain: str | None) -> Node | None:
    """Return domain and stream of an origin; None in another account."""
    if origin.external is None:
        return domain, origin.source_stream
    return (origin.external.domain, origin.source_stream) if origin.external.domain else None


def _readings(config: StreamConfig, domain: str | None) -> list[Replication]:
    """Return the replications of a stream within this account."""
    found = []
    for source in sources_of(config):
        prefix = Source.parse(source).api
        there = External(prefix).domain if prefix else domain
        if there is not None or not prefix:
            found.append(Replication((domain, config["name"]), (there, source["name"]), source))
    return found


def _suspected_of(stream: str, item: OriginView) -> Iterable[Hazard]:
    elsewhere = item.origin.external is not None and item.origin.external.domain is None
    return suspected(stream, item.config) if elsewhere and item.config else ()


async def _info_at(api: Api, place: Node) -> StreamInfo | None:
    domain, stream = place
    there = api if domain is None else api.at(External.of_domain(domain).api)
    with suppress(KvctlError):
        return await streams.info(there, stream, timeout=PATIENCE)
    return None


async def _first(api: Api, names: list[str], patience: float | None) -> StreamInfo | None:
    for number, name in enumerate(names):
        try:
            info = await streams.info(api, name, timeout=patience)
        except StreamNotFound:
            continue
        except UnreachableError:
            if number:  # narrow exports allow only the first
                continue
            raise
        if number == 0 or info["config"].get("mirror") or stream_kind.owner(info["config"]):
            return info
    return None


def _named(origin: Origin, *, exists: bool = True) -> Origin:
    if origin.bucket or origin.stream.startswith(STREAM_PREFIX) or not exists:
        return replace(origin, bucket=origin.name)
    raise UsageError(
        f"Cannot tell which bucket `{origin.stream}` replicates", hint=f"Name it: `stream={origin.stream},bucket=NAME`"
    )


async def _completed(api: Api, origin: Origin, info: StreamInfo) -> Origin:
    """Return the origin with the stream that was found, and the bucket whose keys it holds."""
    stream = info["config"]["name"]
    if origin.stream and origin.bucket:
        return origin
    if stream_kind.owner(info["config"]):
        return origin.found_as(stream, stream.partition("_")[2])
    bucket = stream.removeprefix(STREAM_PREFIX)
    if info["config"].get("mirror"):
        bound = await resolve.bind(api, bucket, info)
        bucket = bound.prefix.removeprefix(SUBJECT_PREFIX).removesuffix(".")
    elif not stream.startswith(STREAM_PREFIX):
        raise UsageError(
            f"`{stream}` is neither a bucket nor a mirror of one",
            hint=f"Name the bucket: `stream={stream},bucket=NAME`",
        )
    return origin.found_as(stream, bucket)


async def _answers(api: Api, origin: Origin) -> bool:
    """Return whether consumers can be created there, by a request that creates none; narrow exports allow little."""
    stream = origin.source_stream
    for endpoint in (stream, f"{stream}.kvctl.{SUBJECT_PREFIX}{origin.name}.key"):
        try:
            await api.connection.request(f"{api.prefix}.CONSUMER.CREATE.{endpoint}", b"!", timeout=PATIENCE)
        except PermissionDenied:
            return True  # this user may not; the server, which replicates, has its own permissions
        except (NoResponders, RequestTimeout):
            continue
        return True
    return False
