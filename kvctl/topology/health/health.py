"""Health of each replica in view for each of its origins, by evidence: a lag of 0 proves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from kvctl.errors import KvctlError, NoResponders, RequestTimeout
from kvctl.jetstream import direct_get, streams
from kvctl.jetstream.stream_info import Source, StreamInfo
from kvctl.topology.hazards import limits
from kvctl.topology.hazards.hazards import name_of
from kvctl.topology.health import arrival, counts
from kvctl.topology.health.arrival import Goal
from kvctl.topology.health.inspection import Lineage, lineage
from kvctl.topology.model.subjects import KeyMapping
from kvctl.topology.survey.graph import Inventory, Link, Where, upstreams
from kvctl.topology.survey.inventory import lost_majority, servers, silence
from kvctl.topology.survey.origin_lookup import PATIENCE
from kvctl.units import format_duration

SECOND_LOOK = 1.0
"""Seconds before a late replica is examined again, to see whether anything arrives."""

MAX_CONCURRENT_REPLICAS = 32
"""Replicas that are examined concurrently."""

_NOT_FOUND = "(10059)"


class Health(StrEnum):
    """Health of a replica for one of its origins, from the best to the worst."""

    OK = "ok"
    """Up to date with the origin, and not lacking entries by count; an audit compares the keys."""
    UNCONFIRMED = "unconfirmed"
    """Connected, but its contents, or those of the origin, cannot be read from here, or counts raise doubts."""
    BEHIND = "behind"
    """Entries are missing and arriving."""
    SILENT = "silent"
    """No message from the origin for a long time, or since the replica's server started."""
    STALLED = "stalled"
    """Entries are missing and not arriving."""
    NEVER_CONNECTED = "never connected"
    """It holds nothing of the origin, and no message from it ever came."""
    FAILING = "failing"
    """The server reports an error."""
    OFFLINE_ORIGIN = "offline origin"
    """The servers of its origin do not answer, or too few of them to elect a leader."""
    MISSING_ORIGIN = "missing origin"
    """The origin does not exist."""
    MISSING_ENTRIES = "missing entries"
    """Up to date with the origin, but with fewer entries."""
    RECREATED_ORIGIN = "recreated origin"
    """It holds entries of an earlier stream instance of its origin: a mirror serves the old values."""
    NO_LEADER = "no leader"
    """Too few of its servers answer to elect a leader: nothing arrives."""
    OFFLINE = "offline"
    """Its servers do not answer."""


_UNHEARD = (Health.OFFLINE_ORIGIN, Health.MISSING_ORIGIN, Health.SILENT)
"""States in which nothing comes from the origin, and the last reported lag, often 0, is no longer true."""


@dataclass(frozen=True, slots=True)
class ReplicaHealth:
    """Health of one replica for one of its origins."""

    link: Link
    state: Health
    evidence: str = ""
    """Evidence in words."""
    arrived: int | None = None
    """Revision of the origin up to which everything has arrived; None: unknown."""
    lineage: Lineage | None = None
    """Whether it holds entries of the origin's current stream instance; None if one of the two cannot be read."""

    @property
    def origin_last(self) -> int | None:
        """The origin's last revision; None if it cannot be read."""
        return int(self.link.origin["state"]["last_seq"]) if self.link.origin else None

    @property
    def lag(self) -> int | None:
        """Missing messages as the server reports them; None without a report, or without a connection to the origin."""
        upstream = self.link.upstream
        known = not self.link.silent and upstream.last_seen is not None
        return upstream.lag if known and self.state not in _UNHEARD else None

    @property
    def last_seen(self) -> float | None:
        """Seconds since the last message from the origin; None: never, or unknown."""
        return None if self.link.silent else self.link.upstream.last_seen


def worst(found: Iterable[ReplicaHealth]) -> ReplicaHealth | None:
    """Return the one in the worst state; None without any."""
    order = list(Health)
    return max(found, key=lambda item: order.index(item.state), default=None)


async def check_health(inventory: Inventory, second_look: float = SECOND_LOOK) -> list[ReplicaHealth]:
    """Return the health of all replicas, in the order of the inventory's links; the other links above them count.

    Takes `second_look` seconds if one of them is late.
    """
    looks = [_LinkCheck(link) for link in (*inventory.links, *inventory.above())]
    slots = asyncio.Semaphore(MAX_CONCURRENT_REPLICAS)
    found = await asyncio.gather(*(look.first(slots) for look in looks))
    late = [at for at, standing in enumerate(found) if standing is None]
    if late:
        await asyncio.sleep(second_look)
    again = dict(zip(late, await asyncio.gather(*(looks[at].second(slots) for at in late)), strict=True))
    settled = await _recounted([standing or again[at] for at, standing in enumerate(found)], second_look, slots)
    return _inherited(settled)[: len(inventory.links)]


def _inherited(found: list[ReplicaHealth]) -> list[ReplicaHealth]:
    """Return the same, without `ok` for a replica whose origin lacks, or may lack, what its own origins hold."""
    for at, item in enumerate(found):
        beyond = upstreams(item.link.origin) if item.link.origin and not item.link.origin_place else ()
        unheard = next((above.source for above in beyond if above.error or above.silent), None)
        if unheard and item.state is Health.OK:
            text = f"its origin `{name_of(item.link.source)}` receives nothing from `{name_of({'name': unheard.name})}`"
            found[at] = replace(item, state=Health.UNCONFIRMED, evidence=text)
    order = list(Health)
    worst_last = sorted(found, key=lambda item: order.index(item.state))
    troubled: dict[Where | None, ReplicaHealth] = {
        item.link.at: item for item in worst_last if item.state is not Health.OK
    }
    while late := [at for at, item in enumerate(found) if item.state is Health.OK and item.link.origin_at in troubled]:
        for at in late:
            link, cause = found[at].link, troubled[found[at].link.origin_at]
            origin, state = name_of(link.source), Health.BEHIND if cause.state is Health.BEHIND else Health.UNCONFIRMED
            way = "" if cause.link.at == link.origin_at else f" replicates from `{cause.link.node.name}`, which"
            text = f"its origin `{origin}`{way} has the state `{cause.state}`"
            found[at] = replace(found[at], state=state, evidence=text)
            troubled.setdefault(link.at, cause)
    return found


async def _recounted(found: list[ReplicaHealth], pause: float, slots: asyncio.Semaphore) -> list[ReplicaHealth]:
    """Return the same, with replicas that are up to date compared by counts."""
    groups: dict[Where, list[int]] = {}
    for at, standing in enumerate(found):
        if standing.state is Health.OK:
            groups.setdefault(standing.link.at, []).append(at)

    async def recount(group: list[int]) -> None:
        async with slots:
            found_doubts = await counts.doubts([found[at].link for at in group], pause)
        for at, doubt in zip(group, found_doubts, strict=True):
            if doubt is not None:
                state = Health.MISSING_ENTRIES if doubt.missing else Health.UNCONFIRMED
                found[at] = replace(found[at], state=state, evidence=doubt.evidence)

    await asyncio.gather(*map(recount, groups.values()))
    return found


class _LinkCheck:
    """Examination of one link, repeated if the first one is inconclusive."""

    def __init__(self, link: Link) -> None:
        self._link, self._upstream = link, link.upstream
        come = None if link.silent else arrival.reported(link.info, link.source)
        descent = lineage(link.info, link.origin, link.source) if link.origin is not None and not link.silent else None
        self._plain = ReplicaHealth(link, Health.OK, arrived=come, lineage=descent)
        self._goal: Goal | None = None
        self._come = 0

    async def first(self, slots: asyncio.Semaphore) -> ReplicaHealth | None:
        """Return the health; None if missing entries may still arrive."""
        async with slots:
            try:
                if self._link.silent:
                    return self._away()
                if text := lost_majority(self._link.info):
                    return replace(self._plain, state=Health.NO_LEADER, evidence=text)
                return await self._seen() if self._link.origin else self._without_origin()
            except (NoResponders, RequestTimeout):
                return await self._without_answer()
            except KvctlError as error:
                return replace(self._plain, state=Health.UNCONFIRMED, evidence=error.message)

    async def second(self, slots: asyncio.Semaphore) -> ReplicaHealth:
        """Return the health after checking whether the missing entries, or some of them, have arrived since."""
        assert self._goal is not None
        come, wanted = self._come, self._goal.sequence or 0
        async with slots:
            with suppress(KvctlError):
                info = await streams.info(self._link.place.api, self._link.reader)
                come = await arrival.arrived(self._link.place.api, info, self._goal) or 0
        if come >= wanted:
            return replace(self._plain, arrived=come)
        text = f"at revision {come} of {wanted}"
        if come > self._come:
            return replace(self._plain, state=Health.BEHIND, evidence=text, arrived=come)
        limit = await self._limit(come)
        text = f"{text}, and nothing arrives{f': {limit}' if limit else ''}"
        return replace(self._plain, state=Health.STALLED, evidence=text, arrived=come)

    async def _limit(self, come: int) -> str:
        """Return the limit of the replica that stops the entry after this revision; empty if none is known."""
        link, config = self._link, self._link.info["config"]
        if not any(config.get(field, -1) > 0 for field in ("max_msg_size", "max_bytes", "max_msgs")):
            return ""
        with suppress(KvctlError, ValueError):  # ValueError: deleted since
            info = await streams.info(link.place.api, link.reader)
            asked = ({"seq": come + 1, "next_by_subj": taken} for taken in KeyMapping.of(link.source).taken)
            entries = [await direct_get.from_leader(link.api, link.source["name"], **request) for request in asked]
            entry = min(filter(None, entries), key=lambda entry: entry.sequence)
            return limits.stopped_by(info, link.source, entry.subject, len(entry.header), len(entry.payload))
        return ""

    async def _seen(self) -> ReplicaHealth | None:
        origin = self._link.origin
        assert origin is not None
        if self._plain.lineage and self._plain.lineage.same is False:
            self._plain = replace(self._plain, lineage=await self._later_lineage())
        plain, descent = self._plain, self._plain.lineage
        assert descent is not None
        if self._upstream.error:
            return replace(plain, state=Health.FAILING, evidence=self._upstream.error)
        if descent.same is False:
            return replace(plain, state=Health.RECREATED_ORIGIN, evidence=descent.evidence)
        if self._upstream.silent:
            return self._unconnected()
        if descent.same is None:
            return replace(plain, state=Health.UNCONFIRMED, evidence=descent.evidence)
        return await self._progress(origin)

    def _away(self) -> ReplicaHealth:
        """Return the health of a replica whose own servers do not answer."""
        text = silence(servers(self._link.info) if self._link.silent else ())
        return replace(self._plain, state=Health.OFFLINE, evidence=text, arrived=None)

    async def _without_answer(self) -> ReplicaHealth:
        """Return the health after a request without an answer, which does not show whose servers are away."""
        try:
            await streams.info(self._link.place.api, self._link.reader, timeout=PATIENCE)
        except (NoResponders, RequestTimeout):
            return self._away()
        except KvctlError as error:
            return replace(self._plain, state=Health.UNCONFIRMED, evidence=error.message)
        return self._origin_away()

    def _origin_away(self) -> ReplicaHealth:
        offline = self._link.place.offline.get(self._link.source["name"])
        text = silence(servers(offline) if offline else (), f"`{name_of(self._link.source)}`")
        return replace(self._plain, state=Health.OFFLINE_ORIGIN, evidence=text)

    def _without_origin(self) -> ReplicaHealth:
        plain, source, place = self._plain, self._link.source, self._link.place
        name = name_of(source)
        elsewhere = bool(Source.parse(source).api)
        if source["name"] in place.unreachable and not elsewhere:
            return self._origin_away()
        if not elsewhere or _NOT_FOUND in (self._upstream.error or ""):
            return replace(plain, state=Health.MISSING_ORIGIN, evidence=f"`{name}` does not exist")
        if self._upstream.error:
            return replace(plain, state=Health.FAILING, evidence=self._upstream.error)
        if self._upstream.silent:
            return self._unconnected()
        return replace(plain, state=Health.UNCONFIRMED, evidence=f"the contents of `{name}` cannot be read from here")

    def _unconnected(self) -> ReplicaHealth:
        """Return the health of a replica that never connected, or lost its connection."""
        last_seen = self._upstream.last_seen
        if self._link.origin and (text := lost_majority(self._link.origin)):
            text = f"`{name_of(self._link.source)}` has no leader: {text}"
            return replace(self._plain, state=Health.OFFLINE_ORIGIN, evidence=text)
        if last_seen is None and not self._plain.arrived:
            return replace(self._plain, state=Health.NEVER_CONNECTED)
        since = "since the server of the replica started"
        if last_seen is not None:
            since = f"for {format_duration(timedelta(seconds=round(last_seen)))}"
        also = "" if self._link.origin else ", and it does not answer"
        return replace(self._plain, state=Health.SILENT, evidence=f"no message from the origin {since}{also}")

    async def _later_lineage(self) -> Lineage | None:
        """Return the lineage after both were read once more, the origin last: it may have changed since the survey."""
        with suppress(KvctlError):
            replica = await streams.info(self._link.place.api, self._link.reader)
            origin = await streams.info(self._link.api, self._link.source["name"], timeout=PATIENCE)
            return lineage(replica, origin, self._link.source)
        return self._plain.lineage

    async def _progress(self, origin: StreamInfo) -> ReplicaHealth | None:
        info, source = self._link.info, self._link.source
        last = origin["state"]["last_seq"]
        view = self._link.view
        come = await arrival.arrived(self._link.place.api, info, Goal(view, source, last))
        if come is not None and come >= last:
            return replace(self._plain, arrived=come)
        (goal,) = await arrival.goals([(source, view)])
        if goal.sequence is None:
            return replace(self._plain, state=Health.UNCONFIRMED, evidence="its last entry cannot be read from here")
        come = await arrival.arrived(self._link.place.api, info, goal)
        if come is None:
            return replace(
                self._plain, state=Health.UNCONFIRMED, evidence="entries of another origin hide its last entry"
            )
        if come >= goal.sequence:
            return replace(self._plain, arrived=come)
        self._goal, self._come = goal, come
        return None
