"""Waiting until a replica holds what its origins held at the start; a lag of 0 does not prove that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from kvctl.errors import ConflictError, KvctlError, WaitExpired
from kvctl.jetstream import direct_get, streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.direct_get import StoredMessage
from kvctl.jetstream.stream_info import Source, StreamInfo, source_states, sources_of
from kvctl.kv.names import STREAM_PREFIX
from kvctl.phrases import indented
from kvctl.topology.hazards.hazards import LAGGING_REPLICA, Hazard, name_of
from kvctl.topology.health.inspection import origins_of
from kvctl.topology.model.origins import Origin, meaning
from kvctl.topology.model.subjects import UnknownTransform, land, parse
from kvctl.topology.survey.graph import Upstream, live_part, upstreams
from kvctl.topology.survey.origin_lookup import MAX_CHAIN, PATIENCE, SILENT, OriginView, exports_needed
from kvctl.wire import header_value

Advance = Callable[[int], None]
"""Called with the number of entries that have arrived, or were read or removed, since the last call."""
WAIT_FOR = timedelta(seconds=60)
"""Default time limit."""
BRIEFLY = timedelta(seconds=5)
"""Time for a replica to catch up before it is read as if it were its origin; more than `STEADY`."""
STEADY = 2.0
"""Seconds without change after which an origin that cannot be read counts as completely replicated."""

_FIRST_PAUSE, _LONGEST_PAUSE, _REMEMBER = 0.03, 0.5, 1.0


class Goal(NamedTuple):
    """Last entry that has to arrive from one origin."""

    seen: OriginView
    source: dict[str, Any]
    sequence: int | None
    """The origin's last entry that belongs here; 0: there is none, None: it cannot be read."""
    subject: str | None = None
    """Subject of that entry, if known."""


class GoalProgress(NamedTuple):
    """Progress of a replica towards one goal."""

    goal: Goal
    upstream: Upstream
    reached: bool
    arrived: int
    """The origin's sequence up to which everything has arrived, as far as known."""


async def goals(sources: Iterable[tuple[dict[str, Any], OriginView]]) -> list[Goal]:
    """Return goals for what the origins of these sources hold now. Call it before the replica is created."""
    return list(await asyncio.gather(*(_goal(source, seen) for source, seen in sources)))


def total(found: Iterable[Goal]) -> int | None:
    """Return the number of messages that will arrive, for progress; None if unknown."""
    counts = [
        goal.seen.info["state"]["messages"] if goal.seen.info and not _filters(goal.source) else None for goal in found
    ]
    return None if None in counts else sum(count for count in counts if count)


async def until_filled(
    api: Api,
    stream: str,
    wanted: Sequence[Goal],
    limit: timedelta = WAIT_FOR,
    advance: Advance = lambda _: None,
    *,
    shown: int = 0,
) -> None:
    """Wait until the stream holds everything up to the goals; `shown` is the number of messages that it held before.

    Raises WaitExpired with the progress.
    """
    deadline, pause = time.monotonic() + limit.total_seconds(), _FIRST_PAUSE
    remembered, quiet = time.monotonic(), _Quiet()
    while True:
        quiet.ask()
        info = await streams.info(api, stream)
        found = [await _progress(api, info, goal, partial(quiet.since, at)) for at, goal in enumerate(wanted)]
        filled = all(item.reached for item in found)
        if filled:  # after the first count
            info = await streams.info(api, stream)
        messages = info["state"]["messages"]
        advance(max(messages - shown, 0))
        shown = max(messages, shown)
        if filled:
            return
        if time.monotonic() > deadline:
            raise _expired(stream, found, limit)
        if time.monotonic() - remembered > _REMEMBER:
            wanted, remembered = [await _still(item) for item in found], time.monotonic()
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)


async def behind(api: Api, info: StreamInfo) -> tuple[list[Hazard], list[str]]:
    """Return the hazard of reading a replica that lacks entries of an origin, and warnings of origins not read.

    It is given a few seconds to catch up. Origins that are replicas themselves are held to the same. Buckets have none.
    """
    readers, found, unread = [(api, info)], [], []
    read: list[tuple[Api, str, list[tuple[dict[str, Any], OriginView]]]] = []
    for there, reader in readers:  # grows below
        sources, infos = sources_of(reader["config"]), await origins_of(there, reader["config"])
        pairs = [
            (source, OriginView(Origin(stream=source["name"]), there.at(Source.parse(source).api), origin, True))
            for source, origin in zip(sources, infos, strict=True)
            if origin is not None
        ]
        unread += [name_of(source) for source, origin in zip(sources, infos, strict=True) if origin is None]
        if pairs and len(readers) <= MAX_CHAIN:
            read.append((there, reader["config"]["name"], pairs))
            readers += [(view.api, view.info) for _, view in pairs if view.info]
    for there, stream, pairs in reversed(read):  # an origin first: what it lacks, its readers cannot have
        wanted = await goals(pairs)
        unread += [name_of(goal.source) for goal in wanted if goal.sequence is None]
        try:
            await until_filled(there, stream, [goal for goal in wanted if goal.sequence], BRIEFLY)
        except WaitExpired as error:
            name = stream.removeprefix(STREAM_PREFIX)
            found.append(Hazard(LAGGING_REPLICA, f"`{name}` has not received all entries of {'; '.join(error.late)}"))
    name = name_of(info["config"])
    return found, [f"`{name}` may lack entries of its origin `{origin}`, which could not be read" for origin in unread]


def reported(info: StreamInfo, source: dict[str, Any]) -> int | None:
    """Return the origin's sequence that a replica's info shows as reached; None for aggregates before server 2.15."""
    if info["config"].get("mirror"):
        return int(info["state"]["last_seq"])
    return live_part(source, source_states(info)).get("seq")


async def arrived(api: Api, info: StreamInfo, goal: Goal) -> int | None:
    """Return the origin's sequence up to which everything has arrived; None if another origin's entry hides it."""
    if (sequence := reported(info, goal.source)) is not None:
        return sequence
    return await _stored(api, info, goal) if goal.subject is not None else 0


async def _stored(api: Api, info: StreamInfo, goal: Goal) -> int | None:
    """Return the origin's sequence of the last entry where the goal's belongs; None if it is of another origin."""
    assert goal.subject is not None
    with suppress(UnknownTransform):
        landed = land(parse(goal.source.get("subject_transforms") or ()), goal.subject)
        message = await direct_get.from_leader(api, info["config"]["name"], last_by_subj=landed) if landed else None
        return source_sequence(message.header, goal.source["name"]) or None if message else 0
    return 0


def source_sequence(header: bytes, stream: str) -> int:
    """Return the sequence that an aggregate's message had in its origin; 0 if it came from elsewhere."""
    found = (header_value(header, b"Nats-Stream-Source") or b"").split(b" ")
    same = found[0].partition(b":")[0] == stream.encode() and len(found) > 1 and found[1].isdigit()
    return int(found[1]) if same else 0


class _Quiet:
    """Time of the last change of each source."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Any, float]] = {}
        self._asked = 0.0

    def ask(self) -> None:
        """Note that the states are requested now."""
        self._asked = time.monotonic()

    def since(self, number: int, state: Any) -> float:
        """Return the seconds for which the state has been this at least: from its first answer to the last request."""
        if number not in self._last or self._last[number][0] != state:
            self._last[number] = (state, time.monotonic())
        return self._asked - self._last[number][1]


async def _goal(source: dict[str, Any], seen: OriginView) -> Goal:
    goal = Goal(seen, source, None)
    if seen.info is None:
        return goal
    if not seen.info["state"]["messages"]:
        return goal._replace(sequence=0)
    try:
        messages = [await _last(seen, text) for text in _filters(source) or [">"]]
    except SILENT:
        # Not permitted: the stream's last sequence is right if nothing is filtered.
        return goal if _filters(source) else goal._replace(sequence=seen.info["state"]["last_seq"])
    found = [message for message in messages if message is not None]
    if not found:
        return goal._replace(sequence=0)
    newest = max(found, key=lambda message: message.sequence)
    return goal._replace(sequence=newest.sequence, subject=newest.subject)


async def _last(seen: OriginView, subjects: str) -> StoredMessage | None:
    """Return the last entry on these subjects, from the leader, or by direct get if that is not permitted."""
    stream = seen.origin.source_stream
    try:
        return await direct_get.from_leader(seen.api, stream, last_by_subj=subjects)
    except SILENT:
        return await direct_get.last(seen.api, stream, subjects, timeout=PATIENCE)


async def _still(item: GoalProgress) -> Goal:
    """Return the goal, or a new one if its entry was removed, and so will never arrive."""
    goal = item.goal
    if item.reached or not goal.sequence or goal.subject is None:
        return goal
    with suppress(KvctlError):
        if await _last(goal.seen, goal.subject) is None:
            return await _goal(goal.source, goal.seen)
    return goal


async def _progress(api: Api, info: StreamInfo, goal: Goal, unchanged_for: Callable[[Any], float]) -> GoalProgress:
    upstream = _upstream(info, goal)
    come = await arrived(api, info, goal)
    connected = upstream.last_seen is not None and upstream.error is None
    if goal.sequence is None or come is None:
        state = (come, info["state"]["last_seq"], upstream.lag, connected)
        some = connected and not upstream.lag and info["state"]["last_seq"] > 0
        unchanged = unchanged_for(state)
        # A heartbeat since then: the origin has nothing more to send.
        reached = some and (upstream.last_seen or 0) < unchanged > STEADY
    elif goal.sequence == 0:
        reached = connected
    else:
        reached = come >= goal.sequence
        if reached and not info["config"].get("mirror"):  # reports entries as replicated before it stores them
            reached = await _is_stored(api, info, goal) or unchanged_for(come) > STEADY
    return GoalProgress(goal, upstream, reached, come or 0)


async def _is_stored(api: Api, info: StreamInfo, goal: Goal) -> bool:
    """Return False if an aggregate lacks the goal's entry: it is not stored yet, or was removed since."""
    if goal.subject is None:
        return True
    try:
        stored = await _stored(api, info, goal)
    except SILENT:
        return True
    return stored is None or stored >= (goal.sequence or 0)


def _upstream(info: StreamInfo, goal: Goal) -> Upstream:
    """Return the goal's source among the replica's. Raises ConflictError if it was removed concurrently."""
    if info["config"].get("mirror"):
        return upstreams(info)[0]
    found = zip(sources_of(info["config"]), upstreams(info), strict=True)
    upstream = next((item for source, item in found if meaning(source) == meaning(goal.source)), None)
    if upstream is None:
        name = info["config"]["name"].removeprefix(STREAM_PREFIX)
        raise ConflictError(
            f"`{name}` no longer replicates `{goal.seen.origin.name}`: it was changed concurrently",
            hint=f"See its origins with `kvctl bucket show {name}`, then run the command again",
        )
    return upstream


def _filters(source: dict[str, Any]) -> list[str]:
    """Return the subjects that a source replicates; empty for all."""
    if source.get("filter_subject"):
        return [source["filter_subject"]]
    taken = [rule.src for rule in parse(source.get("subject_transforms") or ())]
    everything = [
        text
        for text in taken
        if text == ">" or (text.startswith("$KV.") and text.count(".") == 2 and text[-2:] == ".>")
    ]
    return [] if everything else taken


def _expired(stream: str, found: Sequence[GoalProgress], limit: timedelta) -> WaitExpired:
    late = [item for item in found if not item.reached]
    name = stream.removeprefix(STREAM_PREFIX)
    external = [item.goal.seen.origin for item in late if item.goal.seen.origin.external]
    others = [origin for origin in external if origin.external and not origin.external.domain]
    hint = exports_needed(others[0], filtered=bool(late[0].goal.source.get("subject_transforms"))) if others else None
    states = tuple(map(_state, late))
    return WaitExpired(
        indented(f"`{name}` was created, but is not completely filled after {limit.total_seconds():g} s:", states),
        late=states,
        hint=hint or f"Replication continues in the background; see its progress with `kvctl bucket show {name}`",
    )


def _state(item: GoalProgress) -> str:
    goal, upstream = item.goal, item.upstream
    name = goal.seen.origin.name
    if upstream.error:
        heard = f"the server reports `{upstream.error}`"
    elif upstream.last_seen is None:
        heard = "never connected"
    else:
        heard = f"connected, lag {upstream.lag}"
    if goal.sequence is None:
        return f"`{name}`: {heard}; its contents cannot be read from here"
    return f"`{name}`: at revision {item.arrived} of {goal.sequence}, {heard}"
