"""Bring replicas back to what their origins hold: mirrors are made anew, aggregates get again what is wrong in them.

Nothing is taken away before its replacement has arrived, and whatever is interrupted is completed by the next repair:
what it needs for that stands on the server (`repairs`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from kvctl.errors import BucketNotFound, WaitExpired
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.jetstream.stream_source import sources_of
from kvctl.kv import catalog
from kvctl.kv.stream_kind import SERVER_METADATA, Kind
from kvctl.topology.apply import arrival, refill
from kvctl.topology.apply.arrival import WAIT_FOR
from kvctl.topology.apply.repair_leftovers import (
    is_stand_in,
    is_temporary,
    original,
    stand_in,
)
from kvctl.topology.audit.findings import LOCAL_WRITE, Difference, Outcome
from kvctl.topology.audit.verdict import Verdict
from kvctl.topology.discover.inventory import (
    Link,
    Place,
    World,
)
from kvctl.topology.discover.replicas import Replica
from kvctl.topology.hazards.replica_hazards import name_of

Advance = Callable[[int], None]
"""Told of messages that have arrived."""


@dataclass(frozen=True, slots=True)
class Repair:
    """What has to be done about one replica. Nothing is changed yet."""

    replica: Replica
    differences: Sequence[Difference] = ()
    """All there are, for an aggregate."""

    @property
    def purged(self) -> list[Difference]:
        """Keys that an aggregate has to forget."""
        return [] if self._mirror else [item for item in self.differences if item.kind is Verdict.EXTRA]

    @property
    def fed(self) -> list[Difference]:
        """Keys that an aggregate has to get again."""
        return [] if self._mirror else [item for item in self.differences if item.kind is not Verdict.EXTRA]

    @property
    def overwritten(self) -> list[Difference]:
        """Of those, the ones that were written in the aggregate itself."""
        return [item for item in self.fed if item.cause == LOCAL_WRITE]

    @property
    def _mirror(self) -> bool:
        return self.replica.kind is Kind.MIRROR


@dataclass(frozen=True, slots=True)
class StandIn:
    """What an interrupted repair left of a mirror."""

    place: Place
    config: StreamConfig
    exists: bool
    """Whether the mirror itself is there."""
    link: Link = field(compare=False)

    @property
    def name(self) -> str:
        """The mirror's."""
        return name_of(original(self.config))


def stand_ins(world: World, names: Collection[str] = ()) -> list[StandIn]:
    """The stand-ins in view; with names only of mirrors, or of origins, of these names."""
    found = [
        StandIn(link.place, config, link.place.has(original(config)["name"]), link)
        for link in world.links
        if is_stand_in(config := link.info["config"])
    ]
    return [item for item in found if not names or {item.name, name_of(item.link.source)} & {*names}]


def needed(replica: Replica, outcomes: Iterable[Outcome], differences: Sequence[Difference]) -> Repair | None:
    """What has to be done about a replica that was audited; None: nothing."""
    drift = any(outcome.error is None and outcome.drifts for outcome in outcomes)
    return Repair(replica, differences) if drift or is_unfinished(replica) else None


def is_unfinished(replica: Replica) -> bool:
    """Whether an interrupted repair left sources in an aggregate."""
    return any(is_temporary(source) for source in sources_of(replica.info["config"]))


async def carry_out(repair: Repair, limit: timedelta = WAIT_FOR, advance: Advance = lambda _: None) -> None:
    """Repair one replica, waiting at most `limit` for what arrives in each step.

    Raises WaitExpired when what is needed does not arrive (it is as it was then), RefusedError for an aggregate that
    denies purges, ReadOnly, OutcomeUnknown, ServerError.
    """
    replica = repair.replica
    if replica.kind is Kind.MIRROR:
        await _recreate(replica.links[0], limit, advance)
    else:
        await refill.feed(replica, repair.purged, repair.fed, limit, advance)


async def complete(left: StandIn, limit: timedelta = WAIT_FOR, advance: Advance = lambda _: None) -> None:
    """Finish the repair that left a stand-in: the mirror is made if it is missing. Raises as `carry_out`."""
    if not left.exists:
        await _create(left.place.api, original(left.config), left.link, limit, advance)
    await _delete(left.place.api, left.config["name"])


async def _recreate(link: Link, limit: timedelta, advance: Advance) -> None:
    """A stand-in first: it shows that a new mirror fills, and answers reads while there is none."""
    api = link.place.api
    config = _own(await streams.info(api, link.info["config"]["name"]))
    beside = stand_in(config)
    await _delete(api, beside["name"])
    try:
        await _create(api, beside, link, limit, advance)
    except WaitExpired as error:
        await _delete(api, beside["name"])
        text = f"Mirror `{name_of(config)}` stays as it is, a new one does not fill"
        raise WaitExpired(
            error.message.replace(f"`{beside['name']}` exists, and", f"{text}:"), hint=error.hint
        ) from None
    await catalog.delete(api, config["name"])
    await _create(api, config, link, limit, advance)
    await _delete(api, beside["name"])


async def _create(api: Api, config: StreamConfig, link: Link, limit: timedelta, advance: Advance) -> None:
    """Make a mirror and wait until it holds what its origin does."""
    goals = await arrival.goals([(0, config["mirror"], await refill.seen(link))])
    await catalog.create_stream(api, config)
    await arrival.until_filled(api, config["name"], goals, limit, advance)


async def _delete(api: Api, stream: str) -> None:
    with suppress(BucketNotFound):
        await catalog.delete(api, stream)


def _own(info: StreamInfo) -> StreamConfig:
    """The configuration without what servers add."""
    config: StreamConfig = dict(info["config"])
    metadata = config.get("metadata") or {}
    kept = {key: value for key, value in metadata.items() if not key.startswith(SERVER_METADATA)}
    return {**config, "metadata": kept}
