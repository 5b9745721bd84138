"""Plan a topology file: look at all its places, compare, and measure what changes would cost. Nothing is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvctl.jetstream.api import Api
from kvctl.kv.stream_kind import Kind
from kvctl.topology.discover import links, origin_lookup
from kvctl.topology.discover.inventory import World, survey
from kvctl.topology.file.document import Topology
from kvctl.topology.hazards import collisions, hazards, plan_hazards
from kvctl.topology.hazards.plan_hazards import Found
from kvctl.topology.model import Origin
from kvctl.topology.plan.desired import Draft, Drafts
from kvctl.topology.plan.order import ordered
from kvctl.topology.plan.origin_place import Locator, Looked, Where
from kvctl.topology.plan.plan import (
    Action,
    Change,
    Comparison,
    Plan,
    compare,
    fingerprint,
)

AT_ONCE = 16
"""Changes whose cost is measured at the same time."""


async def plan(topology: Topology, apis: Mapping[str, Api], *, prune: bool = False) -> Plan:
    """What has to change so that all is as the file says, and what speaks against it.

    Raises BucketExists where a name means something else, UsageError, and what a listing raises.
    """
    return (await plan_and_world(topology, apis, prune=prune))[0]


async def plan_and_world(topology: Topology, apis: Mapping[str, Api], *, prune: bool = False) -> tuple[Plan, World]:
    """The plan, and what was seen to make it. Raises as `plan`."""
    world = await survey(apis)
    drafts = Drafts(topology, Locator(topology, world.places))
    compared = compare(drafts, world, prune=prune)
    if looked := await _looked_up(compared, topology, apis):
        drafts = Drafts(topology, Locator(topology, world.places, looked))
        compared = compare(drafts, world, prune=prune)
    found = plan_hazards.found(compared.changes, drafts, world)
    await _measured(compared, apis, found)
    changes = [replace(change, hazards=tuple(found.hazards.get(change.name, ()))) for change in compared.changes]
    return Plan(ordered(changes), found.warnings, compared.unlisted, _seen(compared, drafts)), world


def _seen(compared: Comparison, drafts: Drafts) -> dict[Where, str]:
    """The fingerprints of everything in the file, of what it reads, and of what is deleted."""
    wheres = {change.where for change in compared.changes}
    for draft in compared.drafts:
        wheres |= {draft.where, *(item.where for item in draft.origins if item.where is not None)}
    return {where: fingerprint(drafts.live(where)) for where in sorted(wheres)}


async def _looked_up(compared: Comparison, topology: Topology, apis: Mapping[str, Api]) -> Looked:
    """The origins in other domains and accounts of what is made or changes, asked for where they are said to be."""
    places = {change.name: change.place for change in compared.changes if change.action is not Action.DELETE}
    wanted = dict.fromkeys(
        (place, origin) for name, place in places.items() for origin in _origins(topology, name) if origin.external
    )
    found = await asyncio.gather(*(origin_lookup.look(apis[place], origin) for place, origin in wanted))
    return dict(zip(wanted, found, strict=True))


def _origins(topology: Topology, name: str) -> Sequence[Origin]:
    if name in topology.mirrors:
        return [topology.mirrors[name].origin]
    return topology.aggregates[name].origins if name in topology.aggregates else ()


async def _measured(compared: Comparison, apis: Mapping[str, Api], found: Found) -> None:
    """Add what only the servers can tell: what a change would lose, which keys collide, cycles out of view."""
    drafts = {draft.name: draft for draft in compared.drafts}
    slots = asyncio.Semaphore(AT_ONCE)

    async def measure(change: Change) -> None:
        async with slots:
            api, draft = apis[change.place], drafts.get(change.name)
            if change.action is Action.CHANGE and not change.follows:
                found.add(change.name, await _lossy(api, change))
            if draft is not None and draft.kind is Kind.AGGREGATE:
                colliding, remarks = await collisions.stored(api, draft.after, since=_known_sources(draft))
                found.add(change.name, colliding)
                found.warn(remarks)
            if draft is not None and (unseen := [item.seen for item in draft.origins if item.seen and not item.where]):
                found.add(change.name, await origin_lookup.cycles(api, draft.after, unseen))

    await asyncio.gather(*(measure(change) for change in compared.changes))


async def _lossy(api: Api, change: Change) -> list[hazards.Hazard]:
    assert change.live is not None
    assert change.after is not None
    before, after = change.live["config"], change.after
    if change.kind is Kind.AGGREGATE:
        after = {**after, "subjects": before.get("subjects")}  # what may be written says nothing of what can be read
    return hazards.lossy(before, after, await links.cost(api, before, change.live, after))


def _known_sources(draft: Draft) -> int:
    """Where the sources begin that are new to a live aggregate."""
    before = (draft.before or {}).get("sources") or []
    return len([source for source in draft.after["sources"] if source in before])
