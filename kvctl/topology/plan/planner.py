"""Planning of a topology file: read all places, compare, and measure the cost of changes. Nothing is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvctl.jetstream.api import Api
from kvctl.kv.stream_kind import Kind
from kvctl.topology.apply import seeds
from kvctl.topology.hazards import collisions
from kvctl.topology.hazards.hazards import Hazard
from kvctl.topology.hazards.lossy_edit import lossy
from kvctl.topology.model.file import Topology
from kvctl.topology.model.origins import Origin
from kvctl.topology.plan import plan_hazards
from kvctl.topology.plan.desired import DesiredState, Draft
from kvctl.topology.plan.order import ordered
from kvctl.topology.plan.origin_place import Locator, Looked
from kvctl.topology.plan.plan import Action, Change, Comparison, Plan, compare, deletions, fingerprint
from kvctl.topology.plan.plan_hazards import Found
from kvctl.topology.survey import edit_cost, origin_lookup
from kvctl.topology.survey.graph import Inventory, Where
from kvctl.topology.survey.inventory import survey

MAX_CONCURRENT_CHANGES = 16
"""Changes whose cost is measured concurrently."""


async def plan(topology: Topology, apis: Mapping[str, Api], *, prune: bool = False) -> Plan:
    """Return the changes that the file requires, and their hazards.

    Raises BucketExists if a name has another meaning, UsageError, and what a listing raises.
    """
    return (await plan_and_inventory(topology, apis, prune=prune))[0]


async def plan_and_inventory(
    topology: Topology, apis: Mapping[str, Api], *, prune: bool = False
) -> tuple[Plan, Inventory]:
    """Return the plan, and the state that it is based on. Raises as `plan`."""
    inventory = await survey(apis)
    drafts = DesiredState(topology, Locator(topology, inventory.places))
    compared = compare(drafts, inventory, prune=prune)
    if looked := await _looked_up(compared, topology, apis):
        drafts = DesiredState(topology, Locator(topology, inventory.places, looked))
        compared = compare(drafts, inventory, prune=prune)
    if absent := await _absent(compared, topology, apis):
        compared = compare(drafts, inventory, prune=prune, absent=absent)
    found = plan_hazards.found(compared.changes, drafts, inventory)
    await _measured(compared, apis, found)
    changes = [replace(change, hazards=tuple(found.hazards.get(change.name, ()))) for change in compared.changes]
    return Plan(ordered(changes), found.warnings, compared.unlisted, _seen(compared, drafts)), inventory


async def destruction(topology: Topology, apis: Mapping[str, Api]) -> Plan:
    """Return the deletion of everything in the file that exists, readers first, and its hazards. Raises as `plan`."""
    inventory = await survey(apis)
    drafts = DesiredState(topology, Locator(topology, inventory.places))
    changes = deletions(drafts, inventory)
    found = plan_hazards.found(changes, drafts, inventory)
    changes = [replace(change, hazards=tuple(found.hazards.get(change.name, ()))) for change in changes]
    seen = {change.where: fingerprint(change.live) for change in changes}
    return Plan(ordered(changes), found.warnings, seen=seen)


def _seen(compared: Comparison, drafts: DesiredState) -> dict[Where, str]:
    """Return the fingerprints of everything in the file, of its origins, and of everything that is deleted."""
    wheres = {change.where for change in compared.changes}
    for draft in compared.drafts:
        wheres |= {draft.where, *(item.where for item in draft.origins if item.where is not None)}
    return {where: fingerprint(drafts.live(where)) for where in sorted(wheres)}


async def _looked_up(compared: Comparison, topology: Topology, apis: Mapping[str, Api]) -> Looked:
    """Look up the origins of planned resources in other domains and accounts."""
    places = {change.name: change.place for change in compared.changes if change.action is not Action.DELETE}
    wanted = dict.fromkeys(
        (place, origin) for name, place in places.items() for origin in _origins(topology, name) if origin.external
    )
    found = await asyncio.gather(*(origin_lookup.look(apis[place], origin) for place, origin in wanted))
    return dict(zip(wanted, found, strict=True))


async def _absent(compared: Comparison, topology: Topology, apis: Mapping[str, Api]) -> dict[str, list[str]]:
    """Return the keys of entries that existing buckets do not have."""
    wanted = {
        draft.name: list(topology.entries[draft.name])
        for draft in compared.drafts
        if draft.name in topology.entries and draft.live is not None and not draft.recreated
    }
    found = await asyncio.gather(
        *(seeds.absent(apis[topology.place_of(name)], name, keys) for name, keys in wanted.items())
    )
    return {name: keys for name, keys in zip(wanted, found, strict=True) if keys}


def _origins(topology: Topology, name: str) -> Sequence[Origin]:
    if name in topology.mirrors:
        return [topology.mirrors[name].origin]
    return topology.aggregates[name].origins if name in topology.aggregates else ()


async def _measured(compared: Comparison, apis: Mapping[str, Api], found: Found) -> None:
    """Add what only the servers show: lost data, colliding keys, cycles out of view."""
    drafts = {draft.name: draft for draft in compared.drafts}
    slots = asyncio.Semaphore(MAX_CONCURRENT_CHANGES)

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


async def _lossy(api: Api, change: Change) -> list[Hazard]:
    assert change.live is not None
    assert change.after is not None
    before, after = change.live["config"], change.after
    if change.kind is Kind.AGGREGATE:
        after = {**after, "subjects": before.get("subjects")}  # subjects limit writes, not reads
    return lossy(before, after, await edit_cost.cost(api, before, change.live, after))


def _known_sources(draft: Draft) -> int:
    """Return the number of sources that a live aggregate already has."""
    before = (draft.before or {}).get("sources") or []
    return len([source for source in draft.after["sources"] if source in before])
