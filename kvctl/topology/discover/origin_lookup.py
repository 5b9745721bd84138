"""Look at origins: whether they exist, in this account or elsewhere, and what is not allowed to be seen of them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from kvctl.errors import (
    BucketNotFound,
    JetStreamDisabled,
    KvctlError,
    NoResponders,
    PermissionDenied,
    RefusedError,
    RequestTimeout,
    StreamNotFound,
    UnreachableError,
    UsageError,
)
from kvctl.jetstream import streams
from kvctl.jetstream.api import DEFAULT_PREFIX, Api
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.jetstream.stream_source import Source, sources_of
from kvctl.kv import reserved_streams, resolve
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.topology.hazards import cycle
from kvctl.topology.hazards.cycle import Node, Reading
from kvctl.topology.hazards.hazards import Hazard
from kvctl.topology.hazards.replica_hazards import CYCLE, MISSING_ORIGIN, UNCONNECTED
from kvctl.topology.model import External, Origin

PATIENCE = 2.0
"""Seconds for an answer from another domain or account: where nothing is imported, none comes."""
MAX_CHAIN = 64
"""Streams that are followed upwards in search of a cycle."""

_SILENT = (JetStreamDisabled, NoResponders, RequestTimeout, PermissionDenied)


@dataclass(frozen=True, slots=True)
class Seen:
    """An origin as far as it can be seen from here."""

    origin: Origin
    """With its bucket and stream named."""
    api: Api
    info: StreamInfo | None
    """None where it does not exist, or may not be asked."""
    exists: bool | None
    """None: not known."""
    reachable: bool = True
    """Whether anybody answers where it is said to be."""

    @property
    def config(self) -> StreamConfig | None:
        """Its configuration, where it can be seen."""
        return self.info["config"] if self.info else None

    @property
    def held(self) -> int:
        """Bytes that it holds, as far as is known."""
        return int(self.info["state"]["bytes"]) if self.info else 0

    def hazards(self) -> list[Hazard]:
        """Why nothing might ever arrive from it."""
        if self.exists is False:
            return [Hazard(MISSING_ORIGIN, f"`{self.origin.name}` does not exist: nothing arrives until it does")]
        if not self.reachable:
            return [Hazard(UNCONNECTED, self._unreachable(), self._exports())]
        return []

    def warnings(self) -> list[str]:
        """What cannot be confirmed about it, and what would let it be."""
        if self.info is not None or self.exists is False or not self.reachable:
            return []
        stream, prefix = self.origin.source_stream, self.api.prefix
        if self.origin.external is None:
            return [f"Whether `{self.origin.name}` suits is not known: `{prefix}.STREAM.INFO.{stream}` is not allowed"]
        return [
            f"Whether `{self.origin.name}` exists, and when everything of it has arrived, cannot be seen from here: "
            f"{exports_to_see(stream, prefix)}"
        ]

    def _unreachable(self) -> str:
        domain = self.origin.external.domain if self.origin.external else None
        where = f"in domain `{domain}`" if domain else f"under `{self.api.prefix}`"
        return f"Nobody answers {where}: nothing of `{self.origin.name}` would ever arrive"

    def _exports(self) -> str:
        if self.origin.external is None or self.origin.external.domain:
            return "Check the domain's name, and that the leaf node is connected"
        return exports_needed(self.origin, filtered=True)


def exports_to_see(stream: str, prefix: str) -> str:
    """What would let this account see an origin of another one, imported under a prefix."""
    return (
        f"export the services `{DEFAULT_PREFIX}.STREAM.INFO.{stream}` and `{DEFAULT_PREFIX}.DIRECT.GET.{stream}.>` to "
        f"this account, and import them as `{prefix}.STREAM.INFO.{stream}` and `{prefix}.DIRECT.GET.{stream}.>`"
    )


def exports_needed(origin: Origin, *, filtered: bool) -> str:
    """What another account has to export so that this one can replicate."""
    stream = origin.source_stream
    deliver = (origin.external.deliver if origin.external else "") or "<the deliver prefix>"
    create = f"{DEFAULT_PREFIX}.CONSUMER.CREATE.{stream}{'.>' if filtered else ''}"
    return (
        f"The origin's account exports the services `{create}` and `$JS.FC.{stream}.>` and the stream "
        f"`{deliver}.>`; this one imports them, the first under `{origin.external.api if origin.external else ''}`"
    )


async def own_domain(api: Api) -> str | None:
    """The JetStream domain of this API; None without one, or where the account may not be asked."""
    with suppress(KvctlError):
        return str((await api.account_info()).get("domain") or "") or None
    return None


async def look(api: Api, origin: Origin) -> Seen:
    """Find an origin and complete what was said of it. Raises UsageError when the bucket of a stream stays unknown."""
    if origin.external and origin.external.domain and origin.external.domain == await own_domain(api):
        origin = replace(origin, external=None)  # servers take it for another domain, and never deliver
    there = api.at(origin.external.api) if origin.external else api
    patience = PATIENCE if origin.external else None
    try:
        info = await _first(there, _candidates(origin), patience)
    except _SILENT as error:
        if origin.external is None and not isinstance(error, PermissionDenied):
            raise
        reachable = isinstance(error, PermissionDenied) or await _answers(there, origin)
        return Seen(_named(origin), there, None, None, reachable)
    if info is None:
        return Seen(_named(origin, exists=False), there, None, False)
    return Seen(await _completed(there, origin, info), there, info, True)


def refuse_missing(seen: Iterable[Seen], forced: Iterable[str]) -> None:
    """Raises BucketNotFound for origins that do not exist, unless `missing-origin` is forced."""
    absent = [item for item in seen if item.exists is False]
    if not absent or MISSING_ORIGIN in forced:
        return
    names = ", ".join(f"`{item.origin.name}`" for item in absent)
    where = ""
    if (external := absent[0].origin.external) is not None:
        where = f" in domain `{external.domain}`" if external.domain else f" under `{external.api}`"
    raise BucketNotFound(
        f"Origin {names} does not exist{where}",
        hint=f"`kvctl bucket ls` lists the buckets here. `--force {MISSING_ORIGIN}` goes on, and waits for it",
    )


async def cycles(api: Api, config: StreamConfig, seen: Iterable[Seen]) -> list[Hazard]:
    """Whether the stream of this configuration would, through other streams, read itself; domains are crossed.

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
    found = [circle for circle in cycle.circles(readings) if target in circle]
    if not found:
        _refuse_doubled(config["name"], cycle.doubled(readings, target))
    certain = [cycle.hazard(cycle.beginning_with(circle, target), "domain ") for circle in found]
    return [*certain, *(hazard for item in seen for hazard in _suspected_of(config["name"], item))]


def suspected(stream: str, origin: StreamConfig) -> Iterable[Hazard]:
    """An origin in another account that itself reads a stream of our name, from a further one as far as can be told."""
    for source in sources_of(origin):
        prefix = Source.parse(source).api
        if source["name"] == stream and prefix and External(prefix).domain is None:
            name, ours = (text.removeprefix(STREAM_PREFIX) for text in (origin["name"], stream))
            text = f"`{name}` itself reads a `{ours}` under `{prefix}`"
            yield Hazard(CYCLE, f"{text}: if that is this one, every write would go round for ever")


def _refuse_doubled(stream: str, found: tuple[Node, Node] | None) -> None:
    if found is None:
        return
    name, (twice, through) = stream.removeprefix(STREAM_PREFIX), (node[1].removeprefix(STREAM_PREFIX) for node in found)
    raise RefusedError(
        f"`{name}` would read `{twice}` twice, directly and through `{through}`: servers refuse that (10052)",
        hint="Read one of the two",
    )


def _place_of(origin: Origin, domain: str | None) -> Node | None:
    """Domain and stream of an origin; None in another account."""
    if origin.external is None:
        return domain, origin.source_stream
    return (origin.external.domain, origin.source_stream) if origin.external.domain else None


def _readings(config: StreamConfig, domain: str | None) -> list[Reading]:
    """What a stream reads in this account."""
    found = []
    for source in sources_of(config):
        prefix = Source.parse(source).api
        there = External(prefix).domain if prefix else domain
        if there is not None or not prefix:
            found.append(Reading((domain, config["name"]), (there, source["name"]), source))
    return found


def _suspected_of(stream: str, item: Seen) -> Iterable[Hazard]:
    elsewhere = item.origin.external is not None and item.origin.external.domain is None
    return suspected(stream, item.config) if elsewhere and item.config else ()


async def _info_at(api: Api, place: Node) -> StreamInfo | None:
    domain, stream = place
    there = api if domain is None else api.at(External.of_domain(domain).api)
    with suppress(KvctlError):
        return await streams.info(there, stream, timeout=PATIENCE)
    return None


def _candidates(origin: Origin) -> list[str]:
    """The streams that a name may mean: the bucket's own, else a mirror's (COMMANDS.md, section 2), a repository's."""
    if origin.stream:
        return [origin.stream]
    return [STREAM_PREFIX + origin.bucket, origin.bucket, reserved_streams.WHOLE + origin.bucket]


async def _first(api: Api, names: list[str], patience: float | None) -> StreamInfo | None:
    for number, name in enumerate(names):
        try:
            info = await streams.info(api, name, timeout=patience)
        except StreamNotFound:
            continue
        except UnreachableError:
            if number:  # narrow exports allow the first alone
                continue
            raise
        if number == 0 or info["config"].get("mirror") or reserved_streams.owner(info["config"]):
            return info
    return None


def _named(origin: Origin, *, exists: bool = True) -> Origin:
    if origin.bucket:
        return origin
    if origin.stream.startswith(STREAM_PREFIX) or not exists:
        return replace(origin, bucket=origin.stream.removeprefix(STREAM_PREFIX))
    raise UsageError(
        f"Which bucket's keys `{origin.stream}` holds cannot be seen from here",
        hint=f"Say it: `stream={origin.stream},bucket=NAME`",
    )


async def _completed(api: Api, origin: Origin, info: StreamInfo) -> Origin:
    """With the stream that was found, and the bucket whose keys it holds."""
    stream = info["config"]["name"]
    if origin.stream and origin.bucket:
        return origin
    if reserved_streams.owner(info["config"]):
        return replace(origin, bucket=stream.partition("_")[2], stream=stream)
    bucket = stream.removeprefix(STREAM_PREFIX)
    if info["config"].get("mirror"):
        bound = await resolve.bind(api, bucket, info)
        bucket = bound.prefix.removeprefix(SUBJECT_PREFIX).removesuffix(".")
    elif not stream.startswith(STREAM_PREFIX):
        raise UsageError(
            f"`{stream}` is no bucket and no mirror of one", hint=f"`stream={stream},bucket=NAME` says whose"
        )
    return replace(origin, bucket=bucket, stream="" if stream == STREAM_PREFIX + bucket else stream)


async def _answers(api: Api, origin: Origin) -> bool:
    """Whether consumers can be made there, asked in a way that makes none; narrow exports allow little else."""
    stream = origin.source_stream
    for endpoint in (stream, f"{stream}.kvctl.{SUBJECT_PREFIX}{origin.key_space}.key"):
        try:
            await api.connection.request(f"{api.prefix}.CONSUMER.CREATE.{endpoint}", b"!", timeout=PATIENCE)
        except PermissionDenied:
            return True  # this user may not; the server, which does the reading, has permissions of its own
        except (NoResponders, RequestTimeout):
            continue
        return True
    return False
