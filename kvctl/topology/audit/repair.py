"""Repair of replicas: mirrors are recreated, aggregates refilled where they differ from their origins.

Nothing is removed before its replacement has arrived, and an interrupted repair is completed by the next one: all it
needs is stored on the server (`repair_leftovers`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from kvctl.errors import BucketNotFound, KvctlError, RefusedError, WaitExpired
from kvctl.jetstream import direct_get, streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo, sources_of
from kvctl.kv import catalog
from kvctl.kv.names import is_plain
from kvctl.kv.stream_kind import SERVER_METADATA, Kind
from kvctl.topology.apply.origin_removal import MAX_CONCURRENT_PURGES
from kvctl.topology.audit.side import AuditReader
from kvctl.topology.audit.verdict import LOCAL_WRITE, AuditDifference, AuditOutcome, Verdict
from kvctl.topology.hazards.hazards import name_of
from kvctl.topology.health import arrival
from kvctl.topology.health.arrival import WAIT_FOR, Advance, Goal
from kvctl.topology.model.origins import is_stand_in, is_temporary, original, stand_in, temporary, token_of
from kvctl.topology.model.subjects import KeyMapping
from kvctl.topology.survey.graph import Inventory, Link, Place, Replica, live_part
from kvctl.topology.survey.origin_lookup import OriginView


class Repair(NamedTuple):
    """Planned repair of one replica. Nothing is changed yet."""

    replica: Replica
    differences: Sequence[AuditDifference] = ()
    """All differences of an aggregate."""

    @property
    def purged(self) -> list[AuditDifference]:
        """Keys to remove from an aggregate."""
        return [] if self._mirror else [item for item in self.differences if item.kind is Verdict.EXTRA]

    @property
    def refilled(self) -> list[AuditDifference]:
        """Keys to replicate again into an aggregate."""
        return [] if self._mirror else [item for item in self.differences if item.kind is not Verdict.EXTRA]

    @property
    def overwritten(self) -> list[AuditDifference]:
        """The refilled keys that were written in the aggregate itself."""
        return [item for item in self.refilled if item.cause == LOCAL_WRITE]

    @property
    def _mirror(self) -> bool:
        return self.replica.kind is Kind.MIRROR


@dataclass(frozen=True, slots=True)
class StandIn:
    """Remains of an interrupted repair of a mirror."""

    place: Place
    config: StreamConfig
    exists: bool
    """True if the mirror itself exists."""
    link: Link = field(compare=False)

    @property
    def name(self) -> str:
        """Name of the mirror."""
        return name_of(original(self.config))


def stand_ins(inventory: Inventory, names: Collection[str] = ()) -> list[StandIn]:
    """Return the stand-ins in view; with names only those of these mirrors or origins."""
    found = [
        StandIn(link.place, config, link.place.has(original(config)["name"]), link)
        for link in inventory.links
        if is_stand_in(config := link.info["config"])
    ]
    return [item for item in found if not names or {item.name, name_of(item.link.source)} & {*names}]


def needed(replica: Replica, outcomes: Iterable[AuditOutcome], differences: Sequence[AuditDifference]) -> Repair | None:
    """Return the repair of a replica that was audited; None if it needs none."""
    drift = any(outcome.error is None and outcome.drifts for outcome in outcomes)
    return Repair(replica, differences) if drift or is_unfinished(replica) else None


def is_unfinished(replica: Replica) -> bool:
    """Return whether an interrupted repair left sources in an aggregate."""
    return any(is_temporary(source) for source in sources_of(replica.info["config"]))


async def run(repair: Repair, limit: timedelta = WAIT_FOR, advance: Advance = lambda _: None) -> None:
    """Repair one replica, waiting at most `limit` for each step.

    Raises WaitExpired if entries do not arrive (the replica is unchanged then), RefusedError for an aggregate that
    denies purges, ReadOnly, OutcomeUnknown, ServerError.
    """
    replica = repair.replica
    if replica.kind is Kind.MIRROR:
        await _recreate(replica.links[0], limit, advance)
    else:
        await refill(replica, repair.purged, repair.refilled, limit, advance)


async def complete(left: StandIn, limit: timedelta = WAIT_FOR, advance: Advance = lambda _: None) -> None:
    """Complete the repair that left a stand-in: create the mirror if it is missing. Raises as `run`."""
    if not left.exists:
        await _create(left.place.api, original(left.config), left.link, limit, advance)
    await _delete(left.place.api, left.config["name"])


async def _recreate(link: Link, limit: timedelta, advance: Advance) -> None:
    """Recreate a mirror behind a stand-in, which proves that a new mirror fills, and serves reads in the meantime."""
    api = link.place.api
    config = _own(await streams.info(api, link.reader))
    beside = stand_in(config)
    await _delete(api, beside["name"])
    try:
        await _create(api, beside, link, limit, advance)
    except WaitExpired as error:
        await _delete(api, beside["name"])
        text = f"Mirror `{name_of(config)}` stays as it is, as a new one does not fill"
        raise WaitExpired(
            error.message.replace(f"`{beside['name']}` was created, but", f"{text}: the new one"), hint=error.hint
        ) from None
    await catalog.delete(api, config["name"])
    await _create(api, config, link, limit, advance)
    await _delete(api, beside["name"])


async def _create(api: Api, config: StreamConfig, link: Link, limit: timedelta, advance: Advance) -> None:
    """Create a mirror and wait until it holds what its origin does."""
    goals = await arrival.goals([(config["mirror"], await seen(link))])
    await catalog.create_stream(api, config)
    await arrival.until_filled(api, config["name"], goals, limit, advance)


async def _delete(api: Api, stream: str) -> None:
    with suppress(BucketNotFound):
        await catalog.delete(api, stream)


def _own(info: StreamInfo) -> StreamConfig:
    """Return the configuration without metadata that servers add."""
    config: StreamConfig = dict(info["config"])
    metadata = config.get("metadata") or {}
    kept = {key: value for key, value in metadata.items() if not key.startswith(SERVER_METADATA)}
    return {**config, "metadata": kept}


MAX_KEYS_PER_SOURCE = 500
"""Keys that one temporary source replicates."""
FULL_REFILL_KEYS = 5_000
"""Number of keys above which everything of an origin is replicated again."""

_PAUSE = 0.1
_REPORTS_SEQUENCE = (2, 15)
"""Servers from this version on report the sequence that a source has reached."""


async def refill(
    replica: Replica,
    extra: Sequence[AuditDifference],
    wanted: Sequence[AuditDifference],
    limit: timedelta,
    advance: Advance,
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
    return link.view._replace(info=info, exists=None if info is None else True)


def _rounds(links: Sequence[Link], wanted: Sequence[AuditDifference]) -> list[list[tuple[Link, dict[str, Any]]]]:
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


def _located(link: Link, wanted: Iterable[AuditDifference]) -> list[tuple[str, str]]:
    """Return subjects of the origin, and where they land, for keys that can have their own rule."""
    rules, name = KeyMapping.of(link.source), name_of(link.source)
    named = ((rules.origin(item.subject), item.subject) for item in wanted if item.origin == name)
    return sorted((subject, landed) for subject, landed in named if subject and is_plain(subject))


async def _replicate(
    api: Api, stream: str, sources: Sequence[tuple[Link, dict[str, Any]]], limit: timedelta, advance: Advance
) -> None:
    """Add the sources, wait until they have replicated everything, and remove them again."""
    info = await streams.info(api, stream)
    there = info["config"]["sources"]
    goals = await arrival.goals([(source, await seen(link)) for link, source in sources])
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
    landed = KeyMapping.of(goal.source).land((goal.subject or "").encode())
    if landed is None or streams.version_of(info) >= _REPORTS_SEQUENCE:
        gone = await AuditReader(goal.seen.api, goal.source["name"]).at(goal.sequence) is None
        return gone and not reported.get("lag")
    message = await direct_get.from_leader(api, info["config"]["name"], last_by_subj=landed.decode())
    if message is None or token_of(goal.source).encode() not in message.header:
        return False
    return arrival.source_sequence(message.header, goal.source["name"]) >= goal.sequence


async def _drop_temporary(api: Api, stream: str) -> None:
    """Remove the sources that this or an interrupted repair added."""
    info = await streams.info(api, stream)
    there = info["config"]["sources"]
    kept = [source for source in there if not is_temporary(source)]
    if kept != there:
        await catalog.apply_edit(api, catalog.Edit(info, {**info["config"], "sources": kept}))


async def _purge(api: Api, stream: str, wanted: Iterable[AuditDifference]) -> None:
    """Remove keys up to the revision that was found to be extra: later writes stay."""
    slots = asyncio.Semaphore(MAX_CONCURRENT_PURGES)

    async def purge(item: AuditDifference) -> None:
        assert item.revision is not None
        async with slots:
            await streams.purge(api, stream, filter=item.subject, seq=item.revision + 1)

    await asyncio.gather(*(purge(item) for item in wanted if is_plain(item.subject)))
