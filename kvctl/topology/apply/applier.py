"""Application of a plan: each write checked just before it, replicas waited for, the result compared with the file.

An apply that was killed is completed by running it again: the remaining work is derived from the servers alone.
Therefore the writes of one change, and those of changes that depend on each other, are ordered such that every state in
between leads to the same end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from kvctl.errors import (
    BucketNotFound,
    ConflictError,
    KeyExists,
    KvctlError,
    PartlyDone,
    UnreachableError,
    UsageError,
    WaitExpired,
)
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo, sources_of
from kvctl.kv import catalog
from kvctl.kv.bucket import Bucket
from kvctl.kv.names import STREAM_PREFIX
from kvctl.phrases import indented, lines
from kvctl.topology.apply import origin_removal
from kvctl.topology.health import arrival
from kvctl.topology.health.arrival import Advance, Goal
from kvctl.topology.model.file import Topology
from kvctl.topology.model.origins import Origin, added
from kvctl.topology.plan.change import Action, ResourceChange, TopologyPlan, fingerprint
from kvctl.topology.plan.description import title
from kvctl.topology.plan.location import Locator
from kvctl.topology.plan.planner import readers_first
from kvctl.topology.plan.saved import is_begun, is_marked, moved
from kvctl.topology.survey import origin_lookup
from kvctl.topology.survey.graph import Inventory, Link, Where

MAX_CONCURRENT_WRITES = 16
"""Entries that are created concurrently."""

Apis = Mapping[str, Api]
Entries = Mapping[str, Mapping[str, str]]


class Verb(StrEnum):
    """Kind of a request that changes a stream."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    SEED = "create entries of"


@dataclass(frozen=True, slots=True)
class StreamWrite:
    """One request for one change; recreating takes two."""

    change: ResourceChange
    verb: Verb

    @property
    def ends(self) -> bool:
        """True if this request completes the change."""
        if self.change.entries:
            return self.verb is Verb.SEED
        return self.verb is not Verb.DELETE or self.change.action is Action.DELETE

    def __str__(self) -> str:
        return f"{self.verb} {title(self.change)}"


class ApplyOutcome(StrEnum):
    """Outcome of a change."""

    DONE = "done"
    FAILED = "failed"
    NOT_TRIED = "not-tried"


@dataclass(slots=True)
class Report:
    """Outcomes of a plan."""

    outcomes: dict[Where, ApplyOutcome] = field(default_factory=dict)
    written: int = 0
    """Number of requests that changed something."""
    error: KvctlError | None = None
    """Reason why it ended early, or why the result differs from the file."""

    def outcome(self, change: ResourceChange) -> ApplyOutcome:
        """Return the outcome of one change."""
        return self.outcomes.get(change.where, ApplyOutcome.NOT_TRIED)


def writes(changes: Sequence[ResourceChange]) -> list[StreamWrite]:
    """Return the requests of a plan in their order.

    A stream that is recreated, or loses keys, is changed after its readers are deleted and before they are created
    again: otherwise a mirror that outlives its origin would silently keep the old entries.
    """
    recreated = [change for change in changes if change.action is Action.RECREATE]
    deleted: set[Where] = set()
    verbs = {Action.CREATE: Verb.CREATE, Action.CHANGE: Verb.UPDATE, Action.DELETE: Verb.DELETE}
    found: list[StreamWrite] = []
    for change in changes:
        if change.action is Action.RECREATE or change.leaving:
            readers = [item for item in _with_readers(change, recreated) if item.action is Action.RECREATE]
            found += [StreamWrite(item, Verb.DELETE) for item in readers if item.where not in deleted]
            deleted |= {item.where for item in readers}
        if change.action is not Action.CHANGE or change.differences or not change.entries:
            found.append(StreamWrite(change, verbs.get(change.action, Verb.CREATE)))
        if change.entries:
            found.append(StreamWrite(change, Verb.SEED))
    return found


def _with_readers(change: ResourceChange, changes: Sequence[ResourceChange]) -> list[ResourceChange]:
    """Return a change and those of its readers, readers first."""
    found = [change]
    for item in found:
        found += [other for other in changes if item.where in other.origins and other not in found]
    return readers_first(found)


async def apply(
    apis: Apis,
    plan: TopologyPlan,
    filling: ReplicaFilling,
    advance: Advance = lambda _: None,
    *,
    entries: Entries | None = None,
    done: Callable[[ResourceChange, float], None] = lambda *_: None,
) -> Report:
    """Apply the changes in order, up to the first that fails. `entries` are those of the file, by bucket and key.

    `done` is called after each change, with the seconds since the one before.
    """
    report, begun = Report(), time.monotonic()
    for write in writes(plan.changes):
        try:
            if await _make(apis[write.change.place], plan, write, filling, entries or {}):
                report.written += 1
        except KvctlError as error:
            report.outcomes[write.change.where] = ApplyOutcome.FAILED
            report.error = _failed(plan, report, write, error)
            return report
        if write.ends:
            report.outcomes[write.change.where] = ApplyOutcome.DONE
            done(write.change, time.monotonic() - begun)
            begun = time.monotonic()
        advance(1)
    return report


async def fill(report: Report, filling: ReplicaFilling, advance: Advance = lambda _: None) -> None:
    """Wait for replicas that are still filling; a late one becomes the report's error."""
    await filling.wait_for(list(filling.goals), advance)
    if filling.late:
        report.error = _late(filling.late)


def moves(changes: Iterable[ResourceChange]) -> bool:
    """Return whether servers move a stream for one of the changes: it has no leader for some seconds then."""
    placed = ("placement", "num_replicas")
    pairs = [(change.before, change.after) for change in changes if change.before and change.after]
    return any(before.get(field) != after.get(field) for before, after in pairs for field in placed)


async def verify(
    replan: Callable[[], Awaitable[TopologyPlan]], patience: float, moving: float = 0
) -> KvctlError | None:
    """Return the error if planning again finds changes; listings of clusters may be slightly behind.

    `moving` are the seconds in which streams may be without a leader, because this run moved them.
    """
    begun = time.monotonic()
    deadline = begun + patience
    while True:
        try:
            left = (await replan()).changes
        except UnreachableError as error:
            if time.monotonic() > begun + moving:
                text = f"The changes were made, but the result could not be compared: {error.message}"
                return PartlyDone(text, hint="Run the command again to compare it")
            await asyncio.sleep(0.2)
            deadline = time.monotonic() + patience
            continue
        if not left:
            return None
        if time.monotonic() > deadline:
            names = ", ".join(title(change) for change in left)
            return PartlyDone(
                f"Changes are still needed: {names}",
                hint="Run the command again; there may have been concurrent changes",
            )
        await asyncio.sleep(0.2)


# -- one write ---------------------------------------------------------------------------------------------


async def _make(api: Api, plan: TopologyPlan, write: StreamWrite, filling: ReplicaFilling, entries: Entries) -> bool:
    """Make a write unless it was made before, and return whether it was. Raises ConflictError if the plan is stale."""
    change = write.change
    if write.verb is Verb.SEED:
        values = entries[change.name]
        return await _seed(api, change.name, {key: values[key] for key in change.entries})
    if write.verb is not Verb.DELETE:
        await filling.wait_for(change.origins)
    live = await streams.find(api, change.stream)
    if not _is_due(plan, write, live):
        return False
    if write.verb is Verb.DELETE:
        filling.goals.pop(change.where, None)
        with suppress(BucketNotFound):  # deleted by somebody else since it was looked at
            await catalog.delete(api, change.stream)
        return True
    await filling.prepare(api, change.where, change.config, live)
    if write.verb is Verb.CREATE:
        await catalog.create_stream(api, change.config)
    else:
        assert live is not None
        await _update(api, change, live)
    return True


async def _seed(api: Api, bucket: str, entries: Mapping[str, str]) -> bool:
    """Create the entries whose keys are absent, and return whether there were any. Raises what a write raises."""
    handle, slots = Bucket(api, bucket), asyncio.Semaphore(MAX_CONCURRENT_WRITES)

    async def create(key: str, value: str) -> bool:
        async with slots:
            with suppress(KeyExists):
                await handle.create(key, value.encode())
                return True
            return False

    return any(await asyncio.gather(*(create(key, value) for key, value in entries.items())))


async def _update(api: Api, change: ResourceChange, live: StreamInfo) -> None:
    if change.leaving:
        await origin_removal.leave(api, live, change.config, change.leaving)
    else:
        await catalog.apply_edit(api, catalog.Edit(live, change.config))


def _is_due(plan: TopologyPlan, write: StreamWrite, live: StreamInfo | None) -> bool:
    """Return whether the write is still to be made. Raises ConflictError after a concurrent change."""
    change, seen = write.change, plan.seen[write.change.where]
    if write.verb is Verb.CREATE and live is None:
        return True
    begun = is_begun(change.action, change.after, live)
    if write.verb is not Verb.CREATE and (fingerprint(live) == seen or (begun and is_marked(live))):
        return True
    if begun:
        return False
    raise ConflictError(
        f"The plan is stale: {moved(change.where, seen, live)}", hint="Create a new plan with `kvctl topology plan`"
    )


# -- what went wrong ---------------------------------------------------------------------------------------


def _failed(plan: TopologyPlan, report: Report, write: StreamWrite, error: KvctlError) -> KvctlError:
    """Return the error itself if nothing was changed yet, else one that reports the progress."""
    if not report.written:
        return error
    outcomes = [f"{report.outcome(change).replace('-', ' ')}: {title(change)}" for change in plan.changes]
    return PartlyDone(
        indented(f"Could not {write}: {error.message}", outcomes),
        hint=f"{error.hint}. Then run the command again to complete it"
        if error.hint
        else "Run the command again to complete it",
    )


def _late(errors: Sequence[WaitExpired]) -> WaitExpired:
    return WaitExpired(lines(*(error.message for error in errors)), hint=errors[0].hint)


# -- replicas that fill ------------------------------------------------------------------------------------


@dataclass(slots=True)
class ReplicaFilling:
    """Replicas to wait for, before their readers are created and at the end."""

    limit: timedelta | None
    """Time limit for each; None: do not wait."""
    goals: dict[Where, tuple[Api, list[Goal], int]] = field(default_factory=dict)
    """For each, the goals to reach and the number of entries that it held before."""
    late: list[WaitExpired] = field(default_factory=list)

    @property
    def total(self) -> int | None:
        """Entries that will arrive; None if unknown."""
        return arrival.total(goal for _, goals, _ in self.goals.values() for goal in goals)

    async def prepare(self, api: Api, where: Where, after: StreamConfig, live: StreamInfo | None) -> None:
        """Record the goals of a replica that is about to be created or changed."""
        self.goals.pop(where, None)  # its sources may have changed
        before = live["config"] if live else {}
        fresh = [] if before.get("mirror") else added(before.get("sources") or [], sources_of(after))
        await self._add(api, where, after, fresh, live)

    async def resume(self, apis: Mapping[str, Api], wheres: Iterable[Where]) -> None:
        """Wait for these as well, if they still exist: an apply that was killed did not."""
        for place, stream in wheres:
            if place in apis and (live := await streams.find(apis[place], stream)) is not None:
                with suppress(UsageError):  # changed concurrently to unknown transforms
                    await self._add(apis[place], (place, stream), live["config"], sources_of(live["config"]), live)

    async def wait_for(self, wheres: Sequence[Where], advance: Advance = lambda _: None) -> None:
        """Wait until these hold what their origins held. Those too late are added to `late`."""
        wanted = [(where[1], *self.goals.pop(where)) for where in wheres if where in self.goals]
        await asyncio.gather(*(self._wait(*item, advance) for item in wanted))

    async def _add(
        self,
        api: Api,
        where: Where,
        config: StreamConfig,
        sources: Sequence[dict[str, object]],
        live: StreamInfo | None,
    ) -> None:
        if self.limit is not None and (goals := await _goals(api, config, sources)):
            self.goals[where] = (api, goals, int(live["state"]["messages"]) if live else 0)

    async def _wait(self, stream: str, api: Api, goals: list[Goal], held: int, advance: Advance) -> None:
        assert self.limit is not None
        try:
            await arrival.until_filled(api, stream, goals, self.limit, advance, shown=held)
        except WaitExpired as error:
            self.late.append(error)


def unfilled(topology: Topology, inventory: Inventory) -> list[Where]:
    """Return the file's replicas that have not reached the last revision of an origin, as far as that is known.

    They were left by an apply that was killed, on any machine, are briefly behind, or replicate only a part. The lag
    that servers report proves nothing if it is 0, as it is until the first entry arrives: it counts only where the
    origin cannot be read, as does a link that never connected.
    """
    named = Locator(topology, inventory.places)
    wheres = {named.where(name) for name in (*topology.mirrors, *topology.aggregates)}
    found = dict.fromkeys(link.at for link in inventory.links if _is_behind(link))
    return [where for where in found if where in wheres]


def _is_behind(link: Link) -> bool:
    if link.origin is None:
        upstream = link.upstream
        return not link.silent and (upstream.last_seen is None or upstream.lag > 0)
    state = link.origin["state"]
    return bool(state["messages"]) and (arrival.reported(link.info, link.source) or 0) < state["last_seq"]


async def _goals(api: Api, config: StreamConfig, fresh: Sequence[dict[str, object]]) -> list[Goal]:
    """Return the goals of some of the sources, without origins that do not exist."""
    target = "" if config.get("mirror") else config["name"].removeprefix(STREAM_PREFIX)
    chosen = [source for source in sources_of(config) if source in fresh]
    seen = await asyncio.gather(*(origin_lookup.look(api, Origin.from_source(source, target)) for source in chosen))
    return await arrival.goals(pair for pair in zip(chosen, seen, strict=True) if pair[1].exists is not False)
