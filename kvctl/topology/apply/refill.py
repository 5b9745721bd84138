"""Let an aggregate get keys again that are missing or wrong in it, and forget others; all the rest stays as it is."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

from kvctl.errors import KvctlError, RefusedError, WaitExpired
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.direct import direct_get
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.kv import catalog
from kvctl.kv.names import is_plain
from kvctl.topology.apply import arrival
from kvctl.topology.apply.arrival import Goal
from kvctl.topology.apply.origin_removal import AT_ONCE
from kvctl.topology.apply.repair_leftovers import is_temporary, temporary, token_of
from kvctl.topology.audit.findings import Difference
from kvctl.topology.audit.side import Side
from kvctl.topology.discover.inventory import Link
from kvctl.topology.discover.links import live_part
from kvctl.topology.discover.origin_lookup import Seen
from kvctl.topology.discover.replicas import Replica, origin_api
from kvctl.topology.hazards.replica_hazards import name_of
from kvctl.topology.mapping import Mapping
from kvctl.topology.model import Origin

AT_A_TIME = 500
"""Keys that one source brings."""
MANY = 5_000
"""Keys from which on everything of an origin is brought again."""

_PAUSE = 0.1
_TELLS = (2, 15)
"""Servers from this version on say how far a source has come."""

Advance = Callable[[int], None]
"""Told of messages that have arrived."""


async def feed(
    replica: Replica, extra: Sequence[Difference], wanted: Sequence[Difference], limit: timedelta, advance: Advance
) -> None:
    """Remove the extra keys, and let the origins bring the wanted ones, waiting at most `limit` for each round of them.

    What an interrupted attempt left is taken away first. Raises RefusedError for an aggregate that denies purges,
    WaitExpired when something does not come.
    """
    api, stream = replica.place.api, replica.stream
    if extra and replica.info["config"].get("deny_purge"):
        raise RefusedError(
            f"`{replica.name}` denies purges, so what it holds too much cannot be removed",
            hint=f"Delete it and create it anew: `kvctl bucket show {replica.name} -o json` has its configuration",
        )
    await _drop_temporary(api, stream)
    await _purge(api, stream, extra)
    for sources in _rounds(replica.links, wanted):
        await _bring(api, stream, sources, limit, advance)


async def seen(link: Link) -> Seen:
    """What can be seen of a link's origin now."""
    api, stream = origin_api(link), link.source["name"]
    try:
        info = await streams.info(api, stream)
    except KvctlError:
        info = None
    return Seen(Origin(stream=stream), api, info, None if info is None else True)


def _rounds(links: Sequence[Link], wanted: Sequence[Difference]) -> list[list[tuple[Link, dict[str, Any]]]]:
    """The temporary sources that bring these keys, and which can be there at the same time."""
    told = [_told(link, wanted) for link in links]
    known = {subject for pairs in told for _, subject in pairs}
    lost = {item.origin for item in wanted if item.subject not in known}
    rounds: list[list[tuple[Link, dict[str, Any]]]] = []
    for link, pairs in zip(links, told, strict=True):
        if name_of(link.source) in lost or len(pairs) > MANY:
            chunks = [temporary(link.source, secrets.token_hex(6))]
        else:
            starts = range(0, len(pairs), AT_A_TIME)
            parts = [dict(pairs[start : start + AT_A_TIME]) for start in starts]
            chunks = [temporary(link.source, secrets.token_hex(6), part) for part in parts]
        for number, source in enumerate(chunks):
            if number == len(rounds):
                rounds.append([])
            rounds[number].append((link, source))
    return rounds


def _told(link: Link, wanted: Iterable[Difference]) -> list[tuple[str, str]]:
    """Subjects of the origin, and where they land, of those keys for which a rule of their own can be written."""
    rules, name = Mapping.of(link.source), name_of(link.source)
    named = ((rules.origin(item.subject), item.subject) for item in wanted if item.origin == name)
    return sorted((subject, landed) for subject, landed in named if subject and is_plain(subject))


async def _bring(
    api: Api, stream: str, sources: Sequence[tuple[Link, dict[str, Any]]], limit: timedelta, advance: Advance
) -> None:
    """Let the sources bring all they have, and take them away again."""
    info = await streams.info(api, stream)
    there = info["config"]["sources"]
    goals: list[Goal] = await arrival.goals(
        [(len(there) + number, source, await seen(link)) for number, (link, source) in enumerate(sources)]
    )
    after = {**info["config"], "sources": [*there, *(source for _, source in sources)]}
    try:
        await catalog.apply_edit(api, catalog.Edit(info, after))
        await _until_brought(api, stream, goals, limit, advance)
    finally:
        await asyncio.shield(_drop_temporary(api, stream))


async def _until_brought(api: Api, stream: str, goals: Sequence[Goal], limit: timedelta, advance: Advance) -> None:
    """Wait until each temporary source has come to its goal: what another one of the same stream brought is no sign.

    Raises WaitExpired.
    """
    deadline, shown = time.monotonic() + limit.total_seconds(), 0
    left = list(goals)
    while left:
        info = await streams.info(api, stream)
        left = [goal for goal in left if not await _brought(api, info, goal)]
        advance(max(info["state"]["last_seq"] - shown, 0) if shown else 0)
        shown = info["state"]["last_seq"]
        if left and time.monotonic() > deadline:
            names = ", ".join(f"`{name_of(goal.source)}`" for goal in left)
            raise WaitExpired(f"After {limit.total_seconds():g} s not everything has come from {names}")
        if left:
            await asyncio.sleep(_PAUSE)


async def _brought(api: Api, info: StreamInfo, goal: Goal) -> bool:
    """Whether a temporary source has come to its goal, or the goal's entry has gone meanwhile."""
    told = live_part(goal.source, info.get("sources") or [])
    if told.get("active", -1) < 0 or told.get("error"):
        return False
    if not goal.sequence or told.get("seq", 0) >= goal.sequence:
        return True
    landed = Mapping.of(goal.source).land((goal.subject or "").encode())
    if landed is None or api.connection.server_version >= _TELLS:
        gone = await Side(goal.seen.api, goal.source["name"]).at(goal.sequence) is None
        return gone and not told.get("lag")
    message = await direct_get.from_leader(api, info["config"]["name"], last_by_subj=landed.decode())
    return message is not None and arrival.source_sequence(message.header, goal.source["name"]) >= goal.sequence and (
        token_of(goal.source).encode() in message.header
    )  # fmt: skip


async def _drop_temporary(api: Api, stream: str) -> None:
    """Take away what this or an interrupted repair added."""
    info = await streams.info(api, stream)
    there = info["config"]["sources"]
    kept = [source for source in there if not is_temporary(source)]
    if kept != there:
        await catalog.apply_edit(api, catalog.Edit(info, {**info["config"], "sources": kept}))


async def _purge(api: Api, stream: str, wanted: Iterable[Difference]) -> None:
    """Forget keys up to the revision that was found too much: what has come since stays."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def purge(item: Difference) -> None:
        assert item.revision is not None
        async with slots:
            await streams.purge(api, stream, filter=item.subject, seq=item.revision + 1)

    await asyncio.gather(*(purge(item) for item in wanted if is_plain(item.subject)))
