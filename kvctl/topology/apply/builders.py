"""Creation of mirrors and aggregates: plan with all hazards, apply, wait until they are filled."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from kvctl.errors import BucketExists, BucketNotFound, ConflictError, KvctlError, RefusedError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.config_diff import listed
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.kv import catalog
from kvctl.kv.client import Client
from kvctl.kv.config import differences
from kvctl.kv.names import STREAM_PREFIX, check_bucket
from kvctl.kv.stream_kind import Kind, described, kind_of, started
from kvctl.suggest import did_you_mean
from kvctl.topology.hazards import collisions, hazards
from kvctl.topology.hazards.hazards import Hazard
from kvctl.topology.health import arrival
from kvctl.topology.health.arrival import WAIT_FOR, Advance, Goal
from kvctl.topology.model.origins import Aggregate, Mirror, Origin, meaning
from kvctl.topology.survey import origin_lookup


@dataclass(frozen=True, slots=True)
class Plan:
    """Planned replica with hazards, warnings and goals to wait for. Nothing is changed yet."""

    config: StreamConfig
    goals: list[Goal]
    hazards: list[Hazard]
    warnings: list[str]
    info: StreamInfo | None = None
    """Existing stream of the name."""

    @property
    def name(self) -> str:
        """Name, as users type it."""
        return str(self.config["name"]).removeprefix(STREAM_PREFIX)

    @property
    def changes(self) -> bool:
        """True if something has to be done, as it does not exist with the same configuration."""
        return self.info is None or bool(differences(self.info["config"], self.config))

    @property
    def held(self) -> int:
        """Number of messages that it already holds."""
        return int(self.info["state"]["messages"]) if self.info else 0


async def plan_mirror(api: Api, mirror: Mirror, force: Collection[str] = ()) -> Plan:
    """Plan a mirror with settings from its origin. Raises BucketNotFound, BucketExists, UsageError."""
    seen = await origin_lookup.look(api, mirror.origin)
    await origin_lookup.refuse_missing([seen], force)
    wanted = replace(mirror, origin=seen.origin).to_stream(seen.config)
    if seen.exists is False:
        wanted["mirror_direct"] = False  # servers turn it on when the origin allows it
    info = await _existing_mirror(api, wanted)
    found = [*seen.hazards(), *hazards.of_mirror(wanted, seen.config)]
    found += hazards.full(wanted, seen.held)
    found += await origin_lookup.cycles(api, wanted, [seen])
    return Plan(wanted, await arrival.goals([(0, wanted["mirror"], seen)]), found, seen.warnings(), info)


async def plan_aggregate(api: Api, aggregate: Aggregate, force: Collection[str] = ()) -> Plan:
    """Plan an aggregate with settings from its origins. Raises BucketNotFound, BucketExists, UsageError."""
    seen = await asyncio.gather(*(origin_lookup.look(api, origin) for origin in aggregate.origins))
    await origin_lookup.refuse_missing(seen, force)
    known = replace(aggregate, origins=tuple(item.origin for item in seen))
    wanted = known.to_stream([item.config for item in seen])
    info = await catalog.existing(api, wanted)
    goals = await arrival.goals([(number, wanted["sources"][number], item) for number, item in enumerate(seen)])
    colliding, remarks = await collisions.stored(api, wanted)
    remarks += hazards.outliving(wanted, [item.config for item in seen])
    found = [hazard for item in seen for hazard in item.hazards()]
    found += hazards.of_aggregate(wanted, [item.config for item in seen]) + colliding
    found += hazards.full(wanted, sum(item.held for item in seen))
    found += await origin_lookup.cycles(api, wanted, seen)
    return Plan(wanted, goals, found, [*remarks, *(text for item in seen for text in item.warnings())], info)


async def plan_origin(api: Api, name: str, origin: Origin, force: Collection[str] = ()) -> Plan:
    """Plan another origin of an aggregate. Raises BucketNotFound, RefusedError if not an aggregate, UsageError."""
    info = await find_aggregate(api, name)
    seen = await origin_lookup.look(api, origin)
    await origin_lookup.refuse_missing([seen], force)
    before = info["config"]
    added = seen.origin.to_source(name)
    there = before.get("sources") or []
    if any(meaning(source) == meaning(added) for source in there):
        return Plan(started(before), [], [], [], info)
    after = started({**before, "sources": [*there, added]})
    if (seen.config or {}).get("allow_msg_ttl"):
        after["allow_msg_ttl"] = True
    others: list[StreamConfig | None] = [None] * len(there)
    found = hazards.introduced(before, after, others, [*others, seen.config])
    colliding, remarks = await collisions.stored(api, after, since=len(there))
    found += [*colliding, *seen.hazards(), *hazards.full(after, info["state"]["bytes"] + seen.held)]
    found += await origin_lookup.cycles(api, after, [seen])
    goals = await arrival.goals([(len(there), added, seen)])
    return Plan(after, goals, found, [*remarks, *seen.warnings()], info)


async def apply(api: Api, plan: Plan, force: Collection[str] = ()) -> StreamInfo:
    """Create or change the stream and return its info. Raises HazardRefused, ConflictError, OutcomeUnknown."""
    if not plan.changes:
        assert plan.info is not None
        return plan.info
    hazards.refuse(plan.hazards, force, f"`{plan.name}` could lose, hide or mix up data")
    if plan.info is not None:
        return await catalog.apply_edit(api, catalog.Edit(plan.info, plan.config))
    try:
        return await catalog.create_stream(api, plan.config)
    except ConflictError:
        info = await streams.info(api, plan.config["name"])
        _require_same(info["config"], plan.config)
        return info


async def wait(api: Api, plan: Plan, limit: timedelta = WAIT_FOR, advance: Advance = lambda _: None) -> None:
    """Wait until it holds what its origins held when it was planned. Raises WaitExpired."""
    if plan.goals:
        await arrival.until_filled(api, plan.config["name"], plan.goals, limit, advance, shown=plan.held)


async def create_mirror(
    client: Client, mirror: Mirror, *, force: Collection[str] = (), wait_for: timedelta | None = WAIT_FOR
) -> None:
    """Create a mirror and wait until it is filled (None: do not wait); repeating it is not an error.

    Raises BucketNotFound for a missing origin, BucketExists, HazardRefused, WaitExpired (it exists then), UsageError.
    """
    await _build(client, await plan_mirror(client.api, mirror, force), force, wait_for)


async def create_aggregate(
    client: Client, aggregate: Aggregate, *, force: Collection[str] = (), wait_for: timedelta | None = WAIT_FOR
) -> None:
    """Create an aggregate and wait until it is filled (None: do not wait); raises as `create_mirror`."""
    await _build(client, await plan_aggregate(client.api, aggregate, force), force, wait_for)


async def add_aggregate_origin(
    client: Client, bucket: str, origin: Origin, *, force: Collection[str] = (), wait_for: timedelta | None = WAIT_FOR
) -> None:
    """Add an origin to an aggregate. Raises as `create_mirror`, and RefusedError if it is not an aggregate."""
    await _build(client, await plan_origin(client.api, bucket, origin, force), force, wait_for)


async def find_aggregate(api: Api, name: str) -> StreamInfo:
    """Return the info of an aggregate. Raises BucketNotFound, RefusedError if it is not an aggregate."""
    info = await streams.find(api, STREAM_PREFIX + check_bucket(name))
    if info is None:
        info = await streams.find(api, name)
        if info is None or not info["config"].get("mirror"):
            raise await _missing(api, name, Kind.AGGREGATE)
    require_kind(name, info["config"], Kind.AGGREGATE)
    return info


async def find_mirror(api: Api, name: str) -> StreamInfo:
    """Return the info of a mirror; a bucket of its name hides it. Raises BucketNotFound, RefusedError if not one."""
    try:
        info = await catalog.find(api, name)
    except BucketNotFound:
        raise await _missing(api, name, Kind.MIRROR) from None
    require_kind(name, info["config"], Kind.MIRROR)
    return info


def require_kind(name: str, config: StreamConfig, kind: Kind) -> None:
    """Raise RefusedError if a stream is not a mirror, or not an aggregate."""
    found = Kind.MIRROR if config.get("mirror") else kind_of(config)
    if found is not kind:
        raise _other_kind(name, config, "a mirror" if kind is Kind.MIRROR else "an aggregate")


async def _missing(api: Api, name: str, kind: Kind) -> BucketNotFound:
    known: list[str] = []
    with suppress(KvctlError):
        known = [status.bucket for status in await catalog.statuses(api) if status.kind is kind]
    remedy = f"List {kind}s with `kvctl {kind} ls`"
    return BucketNotFound(f"{kind.capitalize()} `{name}` does not exist", hint=did_you_mean(name, known, remedy))


async def _build(client: Client, plan: Plan, force: Collection[str], wait_for: timedelta | None) -> None:
    client.connection.context.require_writable()
    await apply(client.api, plan, force)
    if wait_for is not None:
        await wait(client.api, plan, wait_for)


async def _existing_mirror(api: Api, wanted: StreamConfig) -> StreamInfo | None:
    """Return the mirror if it exists as wanted; None if it does not exist. Raises BucketExists."""
    name = wanted["name"]
    info, bucket = await asyncio.gather(streams.find(api, name), streams.find(api, STREAM_PREFIX + name))
    if bucket is not None:
        raise BucketExists(
            f"`{name}` is {described(kind_of(bucket['config']))}, which would hide the mirror",
            hint="Choose another name",
        )
    if info is not None:
        _require_same(info["config"], wanted)
    return info


def _require_same(found: StreamConfig, wanted: StreamConfig) -> None:
    name = found["name"]
    if bool(found.get("mirror")) != bool(wanted.get("mirror")):
        raise BucketExists(f"`{name}` is {described(kind_of(found))}", hint="Choose another name")
    if differing := differences(started(found), wanted):
        raise BucketExists(
            f"`{name.removeprefix(STREAM_PREFIX)}` exists with another configuration (current -> requested):\n"
            f"{listed(differing)}",
            hint=f"See it with `kvctl {_group(found)} show {name.removeprefix(STREAM_PREFIX)}`",
        )


def _other_kind(name: str, config: StreamConfig, wanted: str) -> RefusedError:
    return RefusedError(
        f"`{name}` is {described(kind_of(config))}, not {wanted}",
        hint=f"See it with `kvctl {_group(config)} show {name}`",
    )


def _group(config: StreamConfig) -> str:
    kind = kind_of(config)
    return str(kind) if kind in (Kind.AGGREGATE, Kind.MIRROR) else "bucket"
