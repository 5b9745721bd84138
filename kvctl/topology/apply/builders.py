"""Creation of mirrors and aggregates: plan with all hazards, apply, wait until they are filled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

from kvctl.errors import BucketExists, BucketNotFound, ConflictError, KvctlError, RefusedError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import Source, StreamConfig, StreamInfo, sources_of
from kvctl.kv import catalog
from kvctl.kv.client import Client
from kvctl.kv.config import differences
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX, check_bucket, meet
from kvctl.kv.stream_kind import Kind, described, kind_of, started
from kvctl.phrases import indented, joined
from kvctl.suggest import did_you_mean
from kvctl.topology.hazards import hazards, lossy_edit
from kvctl.topology.hazards.hazards import Hazard
from kvctl.topology.health import arrival, inspection
from kvctl.topology.health.arrival import WAIT_FOR, Advance, Goal
from kvctl.topology.model.origins import Aggregate, Mirror, Origin, meaning
from kvctl.topology.model.subjects import KeyMapping
from kvctl.topology.survey import origin_lookup
from kvctl.topology.survey.origin_lookup import OriginView


class ReplicaPlan(NamedTuple):
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


async def plan_mirror(api: Api, mirror: Mirror, force: Collection[str] = ()) -> ReplicaPlan:
    """Plan a mirror with settings from its origin. Raises BucketNotFound, BucketExists, UsageError."""
    seen = await _looked_up(api, [mirror.origin], force)
    wanted = replace(mirror, origin=seen[0].origin).to_stream(seen[0].config)
    if seen[0].exists is False:
        wanted["mirror_direct"] = False  # servers turn it on when the origin allows it
    info = await _existing_mirror(api, wanted)
    plan = await _planned(api, wanted, seen, info)
    namesake = await streams.find(api, wanted["mirror"]["name"]) if Source.parse(wanted["mirror"]).is_external else None
    return plan._replace(
        hazards=[*plan.hazards, *hazards.shadowed(wanted, namesake["config"] if namesake else None, None)]
    )


async def plan_aggregate(api: Api, aggregate: Aggregate, force: Collection[str] = ()) -> ReplicaPlan:
    """Plan an aggregate with settings from its origins. Raises BucketNotFound, BucketExists, UsageError."""
    seen = await _looked_up(api, aggregate.origins, force)
    configs = [item.config for item in seen]
    wanted = replace(aggregate, origins=tuple(item.origin for item in seen)).to_stream(configs)
    info = await catalog.existing(api, wanted)
    return await _planned(api, wanted, seen, info, remarks=hazards.outliving(wanted, configs))


async def plan_origin(api: Api, name: str, origin: Origin, force: Collection[str] = ()) -> ReplicaPlan:
    """Plan another origin of an aggregate.

    Raises BucketNotFound, RefusedError if not an aggregate, ConflictError if keys arrive from it already, UsageError.
    """
    info = await find_aggregate(api, name)
    seen = await _looked_up(api, [origin], force)
    before = info["config"]
    added, there = seen[0].origin.to_source(name), before.get("sources") or []
    if any(meaning(source) == meaning(added) for source in there):
        return ReplicaPlan(started(before), [], [], [], info)
    _refuse_again(name, added, there)
    after = started({**before, "sources": [*there, added]})
    if (seen[0].config or {}).get("allow_msg_ttl"):
        after["allow_msg_ttl"] = True
    return await _planned(api, after, seen, info, before=before, held=info["state"]["bytes"])


def _refuse_again(name: str, added: dict[str, Any], there: Iterable[dict[str, Any]]) -> None:
    """Raise ConflictError if a source brings keys that the aggregate has already: each would land twice."""
    for source in there:
        same = Source.parse(source)[:2] == Source.parse(added)[:2]
        if same and any(
            meet(one, other) for one in KeyMapping.of(source).taken for other in KeyMapping.of(added).taken
        ):
            places = joined(f"`{place.removeprefix(f'{SUBJECT_PREFIX}{name}.')}`" for place in hazards.landing(source))
            of = hazards.name_of(source)
            raise ConflictError(
                f"`{of}` is already an origin of `{name}` (as {places}): its keys would arrive twice",
                hint=f"To change its keys, first use `kvctl aggregate remove-origin {name} {of}`",
            )


async def _looked_up(api: Api, origins: Sequence[Origin], force: Collection[str]) -> list[OriginView]:
    seen = await asyncio.gather(*(origin_lookup.look(api, origin) for origin in origins))
    await origin_lookup.refuse_missing(seen, force)
    return seen


async def _planned(
    api: Api,
    wanted: StreamConfig,
    seen: Sequence[OriginView],
    info: StreamInfo | None,
    *,
    before: StreamConfig | None = None,
    held: int = 0,
    remarks: Sequence[str] = (),
) -> ReplicaPlan:
    """Return the plan of a replica whose last sources are those seen; `before` is it without them."""
    since = len(before["sources"]) if before else 0
    others = [other["config"] if other else None for other in await inspection.origins_of(api, before or {})]
    colliding, possible = await lossy_edit.stored_collisions(api, wanted, since)
    found = [hazard for item in seen for hazard in item.hazards()]
    found += hazards.introduced(before, wanted, others, [*others, *(item.config for item in seen)])
    found += colliding
    if not any(hazard.name == hazards.SMALLER_LIMITS for hazard in found):
        found += hazards.full(wanted, held + sum(item.held for item in seen))
    found += await origin_lookup.cycles(api, wanted, seen)
    goals = await arrival.goals(zip(sources_of(wanted)[since:], seen, strict=True))
    warnings = [*possible, *remarks, *(text for item in seen for text in item.warnings())]
    warnings += hazards.possible(wanted, [*others, *(item.config for item in seen)])
    return ReplicaPlan(wanted, goals, found, warnings, info)


async def apply(
    api: Api, plan: ReplicaPlan, force: Collection[str] = (), way: Callable[[list[str]], str] = hazards.options
) -> StreamInfo:
    """Create or change the stream and return its info. Raises HazardRefused, ConflictError, OutcomeUnknown."""
    if not plan.changes:
        assert plan.info is not None
        return plan.info
    hazards.refuse(plan.hazards, force, f"`{plan.name}` could lose, hide or mix up data", way)
    if plan.info is not None:
        return await catalog.apply_edit(api, catalog.Edit(plan.info, plan.config))
    try:
        return await catalog.create_stream(api, plan.config)
    except ConflictError:
        info = await streams.info(api, plan.config["name"])
        _require_same(info["config"], plan.config)
        return info


async def wait(api: Api, plan: ReplicaPlan, limit: timedelta = WAIT_FOR, advance: Advance = lambda _: None) -> None:
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


async def _build(client: Client, plan: ReplicaPlan, force: Collection[str], wait_for: timedelta | None) -> None:
    client.connection.context.require_writable()
    await apply(client.api, plan, force, hazards.argument)
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
            indented(
                f"`{name.removeprefix(STREAM_PREFIX)}` exists with another configuration (current -> requested):",
                differing,
            ),
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
