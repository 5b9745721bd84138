"""Planning of a topology file: read all places, compare, order, and measure the cost of changes. Nothing is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kvctl.errors import BucketExists, UnreachableError
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import StreamConfig
from kvctl.kv.bucket import Bucket
from kvctl.kv.names import STREAM_PREFIX
from kvctl.kv.stream_kind import TOPOLOGY, Kind, bucket_name, described, kind_of
from kvctl.phrases import indented
from kvctl.topology.hazards import lossy_edit
from kvctl.topology.hazards.hazards import Hazard
from kvctl.topology.hazards.lossy_edit import lossy
from kvctl.topology.model.file import Topology
from kvctl.topology.model.origins import Origin
from kvctl.topology.plan import plan_hazards
from kvctl.topology.plan.change import Action, ResourceChange, TopologyPlan, fingerprint
from kvctl.topology.plan.desired import DesiredState
from kvctl.topology.plan.location import Locator, Looked
from kvctl.topology.plan.plan_hazards import PlanHazards
from kvctl.topology.survey import origin_lookup
from kvctl.topology.survey.graph import Inventory, Where
from kvctl.topology.survey.inventory import survey

MAX_CONCURRENT_CHANGES = 16
"""Changes whose cost is measured concurrently."""


async def plan(topology: Topology, apis: Mapping[str, Api], *, prune: bool = False) -> TopologyPlan:
    """Return the changes that the file requires, and their hazards.

    Raises BucketExists if a name has another meaning, UsageError, and what a listing raises.
    """
    return (await plan_and_inventory(topology, apis, prune=prune))[0]


async def plan_and_inventory(
    topology: Topology, apis: Mapping[str, Api], *, prune: bool = False
) -> tuple[TopologyPlan, Inventory]:
    """Return the plan, and the state that it is based on. Raises as `plan`."""
    inventory = await survey(apis)
    desired = DesiredState(topology, Locator(topology, inventory.places))
    compared = compare(desired, inventory, prune=prune)
    if looked := await _looked_up(compared, topology, apis):
        desired = DesiredState(topology, Locator(topology, inventory.places, looked))
        compared = compare(desired, inventory, prune=prune)
    if absent := await _absent(compared, topology, apis):
        compared = compare(desired, inventory, prune=prune, absent=absent)
    found = plan_hazards.found(compared.changes, desired, inventory)
    await _measured(compared, apis, found)
    changes = ordered(found.put_on(compared.changes))
    return TopologyPlan(changes, found.warnings, compared.unlisted, _seen(compared, desired)), inventory


async def destruction(topology: Topology, apis: Mapping[str, Api]) -> TopologyPlan:
    """Return the deletion of everything in the file that exists, readers first, and its hazards. Raises as `plan`."""
    inventory = await survey(apis)
    desired = DesiredState(topology, Locator(topology, inventory.places))
    changes = deletions(desired, inventory)
    found = plan_hazards.found(changes, desired, inventory)
    seen = {change.where: fingerprint(change.live) for change in changes}
    return TopologyPlan(ordered(found.put_on(changes)), found.warnings, seen=seen)


def _seen(compared: FileComparison, desired: DesiredState) -> dict[Where, str]:
    """Return the fingerprints of everything in the file, of its origins, and of everything that is deleted."""
    wheres = {change.where for change in compared.changes}
    wheres |= {where for change in compared.resources for where in (change.where, *change.origins)}
    return {where: fingerprint(desired.live(where)) for where in sorted(wheres)}


async def _looked_up(compared: FileComparison, topology: Topology, apis: Mapping[str, Api]) -> Looked:
    """Look up the origins of planned resources in other domains and accounts."""
    changes = [change for change in compared.changes if change.action is not Action.DELETE]
    wanted = dict.fromkeys(
        (change.place, origin) for change in changes for origin in _origins(topology, change.name) if origin.external
    )
    found = await asyncio.gather(*(origin_lookup.look(apis[place], origin) for place, origin in wanted))
    return dict(zip(wanted, found, strict=True))


def _origins(topology: Topology, name: str) -> Sequence[Origin]:
    if name in topology.mirrors:
        return [topology.mirrors[name].origin]
    return topology.aggregates[name].origins if name in topology.aggregates else ()


async def _absent(compared: FileComparison, topology: Topology, apis: Mapping[str, Api]) -> dict[str, list[str]]:
    """Return the keys of entries that existing buckets do not have, as their leaders know."""
    wanted = [
        change
        for change in compared.resources
        if change.name in topology.entries and change.live is not None and not change.recreated
    ]

    async def missing(change: ResourceChange) -> list[str]:
        keys = list(topology.entries[change.name])
        entries = await Bucket(apis[change.place], change.name).get_many(keys, leader=True)
        return [key for key, entry in zip(keys, entries, strict=True) if entry is None]

    found = await asyncio.gather(*map(missing, wanted))
    return {change.name: keys for change, keys in zip(wanted, found, strict=True) if keys}


async def _measured(compared: FileComparison, apis: Mapping[str, Api], found: PlanHazards) -> None:
    """Add what only the servers show: lost data, colliding keys, cycles out of view."""
    slots = asyncio.Semaphore(MAX_CONCURRENT_CHANGES)

    async def measure(change: ResourceChange) -> None:
        async with slots:
            api = apis[change.place]
            if change.action is Action.CHANGE and not change.follows:
                found.add(change.name, await _lossy(api, change))
            if change.after is not None and change.kind is Kind.AGGREGATE:
                colliding, remarks = await lossy_edit.stored_collisions(api, change.after, since=_known_sources(change))
                found.add(change.name, colliding)
                found.warn(remarks)
            unseen = [item.seen for item in change.located if item.seen and not item.where]
            if change.after is not None and unseen:
                found.add(change.name, await origin_lookup.cycles(api, change.after, unseen))

    await asyncio.gather(*(measure(change) for change in compared.changes))


async def _lossy(api: Api, change: ResourceChange) -> list[Hazard]:
    assert change.live is not None
    before, after = change.live["config"], change.config
    if change.kind is Kind.AGGREGATE:
        after = {**after, "subjects": before.get("subjects")}  # subjects limit writes, not reads
    return lossy(before, after, await lossy_edit.cost(api, before, change.live, after))


def _known_sources(change: ResourceChange) -> int:
    """Return the number of sources that a live aggregate already has."""
    before = (change.before or {}).get("sources") or []
    return len([source for source in change.config["sources"] if source in before])


# -- comparison ----------------------------------------------------------------------------------------------


class FileComparison(NamedTuple):
    """A file compared with the found state."""

    resources: list[ResourceChange]
    """Everything in the file, also what does not change."""
    changes: list[ResourceChange]
    unlisted: list[ResourceChange]


def compare(
    desired: DesiredState,
    inventory: Inventory,
    *,
    prune: bool = False,
    absent: Mapping[str, Sequence[str]] | None = None,
) -> FileComparison:
    """Return the changes that lead from the found state to the file, unordered, and without hazards.

    `absent` are the keys of the file's entries that existing buckets do not have, by bucket.
    Raises BucketExists if a name has another meaning, UnreachableError if a stream does not answer.
    """
    resources, unlisted = desired.all(), _unlisted(desired, inventory)
    _refuse_conflicts(resources, inventory, {change.where for change in unlisted} if prune else set())
    resources = [_with_entries(change, desired.topology, absent or {}) for change in resources]
    deleted = [_with_readers(change, inventory, resources, unlisted) for change in unlisted]
    changes = [change for change in resources if change.is_due]
    return FileComparison(resources, [*changes, *(deleted if prune else [])], deleted)


def deletions(desired: DesiredState, inventory: Inventory) -> list[ResourceChange]:
    """Return the deletions of everything in the file that exists, unordered, and without hazards.

    Raises BucketExists if a name has another meaning, UnreachableError if a stream does not answer.
    """
    resources = desired.all()
    _refuse_conflicts(resources, inventory, set())
    found = [
        ResourceChange(
            kind=change.kind,
            name=change.name,
            place=change.place,
            stream=change.stream,
            live=change.live,
            origins=_origins_of(inventory, change.where),
        )
        for change in resources
        if change.live is not None
    ]
    return [_with_readers(change, inventory, (), found) for change in found]


def _with_entries(change: ResourceChange, topology: Topology, absent: Mapping[str, Sequence[str]]) -> ResourceChange:
    """Return the change with the entries of the file that it creates: all in a new bucket, absent ones in another."""
    new = change.live is None or change.recreated
    keys = tuple((topology.entries if new else absent).get(change.name, ()))
    return replace(change, entries=keys) if keys else change


def _unlisted(desired: DesiredState, inventory: Inventory) -> list[ResourceChange]:
    """Return the deletions of streams with the topology's mark that are not in the file."""
    wanted = {change.where for change in desired.all()}
    known = {(where[1], live["created"]) for where in wanted if (live := desired.live(where)) is not None}
    found: list[ResourceChange] = []
    for place in inventory.places.values():
        for stream, info in place.infos.items():
            ours = (info["config"].get("metadata") or {}).get(TOPOLOGY) == desired.topology.name
            if ours and (place.name, stream) not in wanted and (stream, info["created"]) not in known:
                known.add((stream, info["created"]))  # two contexts may lead to the same account
                kind = place.kind(stream) or Kind.STREAM
                name, origins = bucket_name(info["config"], kind), _origins_of(inventory, (place.name, stream))
                found.append(
                    ResourceChange(kind=kind, name=name, place=place.name, stream=stream, live=info, origins=origins)
                )
    return found


def _origins_of(inventory: Inventory, where: Where) -> tuple[Where, ...]:
    return tuple(link.origin_at for link in inventory.of(where) if link.origin_at is not None)


def _with_readers(
    change: ResourceChange, inventory: Inventory, resources: Sequence[ResourceChange], deleted: Sequence[ResourceChange]
) -> ResourceChange:
    """Return the deletion with the names of its remaining readers, and whether an origin cannot be read."""
    apart = {other.where for other in (*deleted, *resources)}
    names = [other.name for other in resources if change.where in other.origins]
    names += [
        bucket_name(link.info["config"], kind_of(link.info["config"]))
        for link in inventory.leading_from(change.where)
        if link.at not in apart
    ]
    orphaned = any(link.origin is None for link in inventory.of(change.where))
    return replace(change, readers=tuple(dict.fromkeys(names)), orphaned=orphaned)


def _refuse_conflicts(resources: Sequence[ResourceChange], inventory: Inventory, gone: Collection[Where]) -> None:
    found: list[str] = []
    for change in resources:
        place = inventory.places[change.place]
        if change.stream in place.unreachable:
            raise UnreachableError(
                f"`{change.name}` is offline: its servers do not answer",
                hint="List offline streams with `kvctl bucket ls`",
            )
        if change.live is not None and (text := _other_kind(change, change.live["config"])):
            found.append(text)
        namesake = change.name if change.kind is not Kind.MIRROR else STREAM_PREFIX + change.name
        other = place.infos.get(namesake)
        hides = change.kind is Kind.MIRROR or (other is not None and bool(other["config"].get("mirror")))
        if other is not None and (change.place, namesake) not in gone and hides:
            found.append(_taken(change, kind_of(other["config"])))
    if found:
        raise BucketExists(
            indented("Names in the file are already taken:", found), hint="Choose another name in the file"
        )


def _other_kind(change: ResourceChange, config: StreamConfig) -> str | None:
    kind = kind_of(config)
    if change.kind is Kind.MIRROR and config.get("mirror"):
        return None  # of any origin: the file decides
    if kind is change.kind:
        return None
    if kind is Kind.INCOMPLETE:
        return f"`{change.name}` is incomplete, left by an interrupted restore or copy"
    return _taken(change, kind)


def _taken(change: ResourceChange, kind: Kind | None) -> str:
    return f"`{change.name}` is {described(kind)} on the server, not {described(change.kind)}"


# -- order ---------------------------------------------------------------------------------------------------


def ordered(changes: Iterable[ResourceChange]) -> list[ResourceChange]:
    """Return the changes ordered such that planning again after any of them leads to the same end.

    Creations come before their readers; a change that follows its origin's comes before that one, as nothing would show
    the need for it afterwards. Deletions are last, readers first, except those that free a name.
    """
    changes = list(changes)
    deleted = [change for change in changes if change.action is Action.DELETE]
    others = [change for change in changes if change.action is not Action.DELETE]
    names = {(change.place, change.name) for change in others}
    freeing = [change for change in deleted if (change.place, change.name) in names]
    rest = [change for change in readers_first(deleted) if change not in freeing]
    return [*freeing, *_origins_first(others), *rest]


def readers_first(changes: Sequence[ResourceChange]) -> list[ResourceChange]:
    """Return the changes with readers before their origins."""
    readers = _readers(changes)
    return _sorted(changes, lambda change: readers.get(change.where, []))


def _origins_first(changes: Sequence[ResourceChange]) -> list[ResourceChange]:
    made = {change.where: change for change in changes if change.action is not Action.CHANGE or change.leaving}
    following: dict[Where, list[ResourceChange]] = {}
    for change in changes:
        for where in change.reads if change.follows else ():
            following.setdefault(where, []).append(change)

    def before(change: ResourceChange) -> list[ResourceChange]:
        known = change.reads if change.action is Action.CHANGE else ()
        origins = [made[where] for where in change.origins if where in made and where not in known]
        return origins + (following.get(change.where, []) if change.action is not Action.CREATE else [])

    return _sorted(changes, before)


def _readers(changes: Iterable[ResourceChange]) -> dict[Where, list[ResourceChange]]:
    """Return the changes of readers, by the stream that they read."""
    found: dict[Where, list[ResourceChange]] = {}
    for change in changes:
        for where in change.origins:
            found.setdefault(where, []).append(change)
    return found


def _sorted(
    changes: Sequence[ResourceChange], before: Callable[[ResourceChange], list[ResourceChange]]
) -> list[ResourceChange]:
    """Return the changes with each after those that have to be before it, otherwise in the same order."""
    found: list[ResourceChange] = []
    begun: set[Where] = set()

    def add(change: ResourceChange) -> None:
        if change.where not in begun:
            begun.add(change.where)
            for other in before(change):
                add(other)
            found.append(change)

    for change in changes:
        add(change)
    return found
