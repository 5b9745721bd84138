"""Readers of a stream, their progress, and the cost of an edit, as far as they can be read."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from kvctl.dataclass import dataclass
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers import admin
from kvctl.jetstream.consumers.ordered.ordered_consumer import read
from kvctl.jetstream.consumers.ordered.server_consumer import Selection
from kvctl.jetstream.stream_info import Source, SourceState, StreamConfig, StreamInfo, source_states, sources_of
from kvctl.jetstream.streams import Listing, ServerClock
from kvctl.kv.entry import announced_size
from kvctl.kv.names import STREAM_PREFIX, matches
from kvctl.kv.stream_kind import Kind, bucket_name, kind_of
from kvctl.topology.hazards.hazards import AGE, HISTORY, SIZE, SUBJECTS, Cost, Hazard, looks_at, of_silent
from kvctl.topology.survey.offline import Clue

SILENCE = 10.0
"""Seconds without a message from an origin, which sends a heartbeat every second, after which it counts as silent."""
_NEVER = -1


@dataclass(frozen=True, slots=True)
class Upstream:
    """One stream that another one reads: the origin of a mirror, or one of an aggregate's."""

    stream: str
    lag: int
    last_seen: float | None
    """Seconds since the last message from it; None: never."""
    error: str | None
    filters: tuple[str, ...]
    transforms: tuple[tuple[str, str], ...]
    domain: str | None
    api: str | None
    """API prefix of its account or domain; None: the same as here."""


@dataclass(frozen=True, slots=True)
class Dependent:
    """A stream in view that reads, directly or through others, from the stream in question."""

    name: str
    stream: str
    kind: Kind
    """UNKNOWN: a stream that does not answer and whose configuration is unknown. It may read from it."""
    upstream: Upstream | None
    """None if unknown."""
    last_revision: int | None
    """None if it does not answer."""

    @property
    def offline(self) -> bool:
        """True if its servers do not answer."""
        return self.upstream is None or self.last_revision is None


def upstreams(info: StreamInfo) -> list[Upstream]:
    """Return the streams that the stream reads, from the server's info and the configuration."""
    live = source_states(info)
    return [_upstream(source, live_part(source, live)) for source in sources_of(info["config"])]


def live_part(source: dict[str, Any], live: Sequence[SourceState]) -> SourceState:
    """Return the server's info of one source; its order is its own, and one stream may be read in several ways."""
    same = [item for item in live if item.get("name") == source["name"]]
    unfiltered = (
        same[0] if len(same) == 1 and not any(_filters(same[0])) else {}
    )  # servers do not always report filters
    return next((item for item in same if _filters(item) == _filters(source)), unfiltered)


async def dependents(api: Api, stream: str) -> list[Dependent]:
    """Return the streams of this account and domain that read from the stream.

    Other accounts and domains cannot be read. Streams that do not answer are included if they read from it, or may do
    so.
    """
    return dependents_among(await streams.listing(api), stream)


def dependents_among(found: Listing, stream: str) -> list[Dependent]:
    """Return the streams of a listing that read, or may read, from the stream, directly or not, nearest first."""
    infos = [*found.answering, *(info for info in found.silent.values() if info is not None)]
    known = {info["config"]["name"]: info["config"] for info in infos}
    return [*_readers(infos, known, stream, found.silent), *_unknown(found, stream)]


def identified(found: Iterable[Dependent], stream: str, clues: Mapping[str, Clue]) -> list[Dependent]:
    """Return the same readers, with unknown ones as mirrors of the stream, or not at all, as their origins report."""
    known = [item for item in found if item.stream not in clues or item.kind is not Kind.UNKNOWN]
    names = {stream, *(item.stream for item in known)}
    mirrors = (name for name, clue in clues.items() if clue.origin in names)
    return [*known, *(Dependent(name, name, Kind.MIRROR, None, None) for name in mirrors if name not in names)]


def unknown(found: Iterable[Dependent]) -> list[Hazard]:
    """Return the hazard of streams that do not answer and may read from the one in question."""
    return of_silent(item.stream for item in found if item.kind is Kind.UNKNOWN)


def _unknown(found: Listing, stream: str) -> list[Dependent]:
    names = (name for name, info in found.silent.items() if info is None and name != stream)
    return [Dependent(name.removeprefix(STREAM_PREFIX), name, Kind.UNKNOWN, None, None) for name in names]


def _readers(
    infos: Sequence[StreamInfo], known: Mapping[str, StreamConfig], stream: str, silent: Container[str]
) -> list[Dependent]:
    found: dict[str, Dependent] = {}
    waiting = [stream]
    while waiting:
        origin = waiting.pop(0)
        for info in infos:
            name = info["config"]["name"]
            if name == stream or name in found:
                continue
            reading = next((up for up in upstreams(info) if up.stream == origin and up.api is None), None)
            if reading is not None:
                kind = kind_of(info["config"], known) or (Kind.MIRROR if info["config"].get("mirror") else Kind.STREAM)
                last = None if name in silent else info["state"]["last_seq"]
                found[name] = Dependent(bucket_name(info["config"], kind), name, kind, reading, last)
                waiting.append(name)
    return list(found.values())


async def cost(api: Api, before: StreamConfig, info: StreamInfo, after: StreamConfig) -> Cost:
    """Return the cost of the change; only the aspects that it affects are measured."""
    state, stream = info["state"], before["name"]
    aspects = looks_at(before, after) if state["messages"] else set()
    measured = Cost(messages=state["messages"], bytes=state["bytes"])
    if aspects & {HISTORY, SUBJECTS}:
        counts = await streams.subjects(api, stream)
        keep, wanted = after.get("max_msgs_per_subject", -1), tuple(after.get("subjects") or ())
        if HISTORY in aspects:
            over = [count - keep for count in counts.values() if count > keep]
            measured = measured.having(keys_over_history=len(over), over_history=sum(over))
        if SUBJECTS in aspects:
            outside = [count for subject, count in counts.items() if not matches(subject, wanted)]
            measured = measured.having(keys_outside=len(outside))
    if AGE in aspects:
        from kvctl.jetstream.direct.multi_get_fallback import first_since

        clock = await ServerClock.read(api, stream)  # the info may be as old as a prompt
        first = await first_since(api, stream, clock.now_ns() - after["max_age"])
        younger = await admin.count(api, stream, deliver_policy="by_start_sequence", opt_start_seq=first)
        measured = measured.having(expired=max(state["messages"] - younger, 0))
    if SIZE in aspects:
        measured = measured.having(oversized=await _count_larger(api, stream, after["max_msg_size"]))
    return measured


async def _count_larger(api: Api, stream: str, size: int) -> int:
    count = 0
    async for batch in read(api, stream, Selection(subjects=(">",), deliver="all", headers_only=True)):
        count += sum(1 for _, _, header, _ in batch if announced_size(header) > size)
    return count


def _upstream(source: dict[str, Any], live: SourceState) -> Upstream:
    parsed = Source.parse(source)
    active, error = live.get("active", _NEVER), live.get("error")
    return Upstream(
        stream=parsed.name,
        lag=live.get("lag", 0),
        last_seen=None if active < 0 else active / 1e9,
        error=f"{error.get('description')} ({error.get('err_code')})" if error else None,
        filters=(parsed.filter_subject,) if parsed.filter_subject else (),
        transforms=parsed.transforms,
        domain=parsed.domain,
        api=parsed.api or None,
    )


def _filters(source: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the filter and the transforms of a source, which distinguish it from others of the same stream."""
    found = Source.parse(source)
    return found.filter_subject, found.transforms
