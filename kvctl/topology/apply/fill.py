"""Replicas that an apply created or gave another origin, until they hold what their origins held."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from kvctl.errors import UsageError, WaitExpired
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo, sources_of
from kvctl.kv.names import STREAM_PREFIX
from kvctl.topology.health import arrival
from kvctl.topology.health.arrival import Advance, Goal
from kvctl.topology.model.file import Topology
from kvctl.topology.model.origins import Origin, added
from kvctl.topology.plan.location import Locator
from kvctl.topology.survey import origin_lookup
from kvctl.topology.survey.graph import Inventory, Link, Where


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
    numbered = [(number, source) for number, source in enumerate(sources_of(config)) if source in fresh]
    seen = await asyncio.gather(
        *(origin_lookup.look(api, Origin.from_source(source, target)) for _, source in numbered)
    )
    return await arrival.goals(
        [(*item, found) for item, found in zip(numbered, seen, strict=True) if found.exists is not False]
    )
