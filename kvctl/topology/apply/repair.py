"""Repair of replicas: mirrors are recreated, aggregates refilled where they differ from their origins.

Nothing is removed before its replacement has arrived, and an interrupted repair is completed by the next one: all it
needs is stored on the server (`repair_leftovers`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from kvctl.errors import BucketNotFound, WaitExpired
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo, sources_of
from kvctl.kv import catalog
from kvctl.kv.stream_kind import SERVER_METADATA, Kind
from kvctl.topology.apply import refill
from kvctl.topology.apply.repair_leftovers import is_stand_in, is_temporary, original, stand_in
from kvctl.topology.audit.findings import LOCAL_WRITE, Difference, Outcome
from kvctl.topology.audit.verdict import Verdict
from kvctl.topology.hazards.replica_hazards import name_of
from kvctl.topology.health import arrival
from kvctl.topology.health.arrival import WAIT_FOR
from kvctl.topology.survey.graph import Inventory, Link, Place, Replica

Advance = Callable[[int], None]
"""Called with the number of messages that have arrived."""


@dataclass(frozen=True, slots=True)
class Repair:
    """Planned repair of one replica. Nothing is changed yet."""

    replica: Replica
    differences: Sequence[Difference] = ()
    """All differences of an aggregate."""

    @property
    def purged(self) -> list[Difference]:
        """Keys to remove from an aggregate."""
        return [] if self._mirror else [item for item in self.differences if item.kind is Verdict.EXTRA]

    @property
    def refilled(self) -> list[Difference]:
        """Keys to replicate again into an aggregate."""
        return [] if self._mirror else [item for item in self.differences if item.kind is not Verdict.EXTRA]

    @property
    def overwritten(self) -> list[Difference]:
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


def needed(replica: Replica, outcomes: Iterable[Outcome], differences: Sequence[Difference]) -> Repair | None:
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
        await refill.refill(replica, repair.purged, repair.refilled, limit, advance)


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
    goals = await arrival.goals([(0, config["mirror"], await refill.seen(link))])
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
