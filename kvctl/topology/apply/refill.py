"""Refill of an aggregate: missing and wrong keys are replicated again, extra ones removed, the rest stays as it is."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from kvctl.errors import KvctlError, RefusedError, WaitExpired
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.direct import direct_get
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.kv import catalog
from kvctl.kv.names import is_plain
from kvctl.topology.apply.origin_removal import MAX_CONCURRENT_PURGES
from kvctl.topology.apply.repair_leftovers import is_temporary, temporary, token_of
from kvctl.topology.audit.findings import Difference
from kvctl.topology.audit.side import AuditReader
from kvctl.topology.hazards.replica_hazards import name_of
from kvctl.topology.health import arrival
from kvctl.topology.health.arrival import Goal
from kvctl.topology.mapping import Mapping
from kvctl.topology.survey.graph import Link, Replica, live_part
from kvctl.topology.survey.origin_lookup import OriginView

MAX_KEYS_PER_SOURCE = 500
"""Keys that one temporary source replicates."""
FULL_REFILL_KEYS = 5_000
"""Number of keys above which everything of an origin is replicated again."""

_PAUSE = 0.1
_REPORTS_SEQUENCE = (2, 15)
"""Servers from this version on report the sequence that a source has reached."""

Advance = Callable[[int], None]
"""Called with the number of messages that have arrived."""


async def refill(
    replica: Replica, extra: Sequence[Difference], wanted: Sequence[Difference], limit: timedelta, advance: Advance
) -> None:
    """Remove the extra keys and replicate the wanted ones again, waiting at most `limit` for each round.

    Remains of an interrupted attempt are removed first. Raises RefusedError for an aggregate that denies purges,
    WaitExpired if a key does not arrive.
    """
    api, stream = replica.place.api, replica.stream
    if extra and replica.info["config"].get("deny_purge"):
        raise RefusedError(
            f"`{replica.name}` denies purges: extra keys cannot be removed",
            hint=f"Recreate it: `kvctl bucket show {replica.name} -o json` prints its configuration",
        )
    await _drop_temporary(api, stream)
    await _purge(api, stream, extra)
    for sources in _rounds(replica.links, wanted):
        await _replicate(api, stream, sources, limit, advance)


async def seen(link: Link) -> OriginView:
    """Return the origin of a link as it can be read now."""
    info: StreamInfo | None = None
    with suppress(KvctlError):
        info = await streams.info(link.api, link.source["name"])
    return replace(link.view, info=info, exists=None if info is None else True)


def _rounds(links: Sequence[Link], wanted: Sequence[Difference]) -> list[list[tuple[Link, dict[str, Any]]]]:
    """Return the temporary sources for these keys, grouped by those that can exist at the same time."""
    located = [_located(link, wanted) for link in links]
    known = {subject for pairs in located for _, subject in pairs}
    lost = {item.origin for item in wanted if item.subject not in known}
    rounds: list[list[tuple[Link, dict[str, Any]]]] = []
    for link, pairs in zip(links, located, strict=True):
        if name_of(link.source) in lost or len(pairs) > FULL_REFILL_KEYS:
            chunks = [temporary(link.source, secrets.token_hex(6))]
        else:
            starts = range(0, len(pairs), MAX_KEYS_PER_SOURCE)
            parts = [dict(pairs[start : start + MAX_KEYS_PER_SOURCE]) for start in starts]
            chunks = [temporary(link.source, secrets.token_hex(6), part) for part in parts]
        for number, source in enumerate(chunks):
            if number == len(rounds):
                rounds.append([])
            rounds[number].append((link, source))
    return rounds


def _located(link: Link, wanted: Iterable[Difference]) -> list[tuple[str, str]]:
    """Return subjects of the origin, and where they land, for keys that can have their own rule."""
    rules, name = Mapping.of(link.source), name_of(link.source)
    named = ((rules.origin(item.subject), item.subject) for item in wanted if item.origin == name)
    return sorted((subject, landed) for subject, landed in named if subject and is_plain(subject))


async def _replicate(
    api: Api, stream: str, sources: Sequence[tuple[Link, dict[str, Any]]], limit: timedelta, advance: Advance
) -> None:
    """Add the sources, wait until they have replicated everything, and remove them again."""
    info = await streams.info(api, stream)
    there = info["config"]["sources"]
    goals: list[Goal] = await arrival.goals(
        [(len(there) + number, source, await seen(link)) for number, (link, source) in enumerate(sources)]
    )
    after = {**info["config"], "sources": [*there, *(source for _, source in sources)]}
    try:
        await catalog.apply_edit(api, catalog.Edit(info, after))
        await _until_arrived(api, stream, goals, limit, advance)
    finally:
        await asyncio.shield(_drop_temporary(api, stream))


async def _until_arrived(api: Api, stream: str, goals: Sequence[Goal], limit: timedelta, advance: Advance) -> None:
    """Wait until each temporary source has reached its goal; another source of the same stream does not count.

    Raises WaitExpired.
    """
    deadline, shown = time.monotonic() + limit.total_seconds(), 0
    left = list(goals)
    while left:
        info = await streams.info(api, stream)
        left = [goal for goal in left if not await _has_arrived(api, info, goal)]
        advance(max(info["state"]["last_seq"] - shown, 0) if shown else 0)
        shown = info["state"]["last_seq"]
        if left and time.monotonic() > deadline:
            names = ", ".join(f"`{name_of(goal.source)}`" for goal in left)
            raise WaitExpired(f"Timed out after {limit.total_seconds():g} s waiting for keys from {names}")
        if left:
            await asyncio.sleep(_PAUSE)


async def _has_arrived(api: Api, info: StreamInfo, goal: Goal) -> bool:
    """Return whether a temporary source has reached its goal, or the goal's entry was removed."""
    reported = live_part(goal.source, info.get("sources") or [])
    if reported.get("active", -1) < 0 or reported.get("error"):
        return False
    if not goal.sequence or reported.get("seq", 0) >= goal.sequence:
        return True
    landed = Mapping.of(goal.source).land((goal.subject or "").encode())
    if landed is None or api.connection.server_version >= _REPORTS_SEQUENCE:
        gone = await AuditReader(goal.seen.api, goal.source["name"]).at(goal.sequence) is None
        return gone and not reported.get("lag")
    message = await direct_get.from_leader(api, info["config"]["name"], last_by_subj=landed.decode())
    return message is not None and arrival.source_sequence(message.header, goal.source["name"]) >= goal.sequence and (
        token_of(goal.source).encode() in message.header
    )  # fmt: skip


async def _drop_temporary(api: Api, stream: str) -> None:
    """Remove the sources that this or an interrupted repair added."""
    info = await streams.info(api, stream)
    there = info["config"]["sources"]
    kept = [source for source in there if not is_temporary(source)]
    if kept != there:
        await catalog.apply_edit(api, catalog.Edit(info, {**info["config"], "sources": kept}))


async def _purge(api: Api, stream: str, wanted: Iterable[Difference]) -> None:
    """Remove keys up to the revision that was found to be extra: later writes stay."""
    slots = asyncio.Semaphore(MAX_CONCURRENT_PURGES)

    async def purge(item: Difference) -> None:
        assert item.revision is not None
        async with slots:
            await streams.purge(api, stream, filter=item.subject, seq=item.revision + 1)

    await asyncio.gather(*(purge(item) for item in wanted if is_plain(item.subject)))
