"""Hazards of planned changes, as far as configurations show them. [pure]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kvctl.jetstream.stream_info import StreamConfig, StreamInfo, sources_of
from kvctl.kv.stream_kind import TOPOLOGY, Kind, bucket_name, kind_of
from kvctl.topology.hazards import cycle, hazards
from kvctl.topology.hazards.cycle import Replication
from kvctl.topology.hazards.hazards import (
    CYCLE,
    FOREIGN_KIND,
    LOSSY_EDIT,
    MISSING_ORIGIN,
    OF_AGGREGATES,
    OF_MIRRORS,
    RECREATED_ORIGIN,
    SMALLER_LIMITS,
    UNREACHABLE_STREAM,
    Hazard,
    name_of,
    of_foreign,
    of_silent,
    overlaps,
)
from kvctl.topology.model.origins import source_key
from kvctl.topology.plan.change import Action, ResourceChange
from kvctl.topology.plan.desired import DesiredState
from kvctl.topology.plan.location import OriginLocation
from kvctl.topology.survey.graph import Inventory, Link

OF_PLANS = tuple(
    dict.fromkeys((*OF_MIRRORS, *OF_AGGREGATES, RECREATED_ORIGIN, LOSSY_EDIT, UNREACHABLE_STREAM, FOREIGN_KIND))
)
"""Hazards that can block a plan, and that can be overridden."""


@dataclass(slots=True)
class PlanHazards:
    """Hazards by the name of the change, and warnings."""

    hazards: dict[str, list[Hazard]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def add(self, name: str, hazards: Iterable[Hazard]) -> None:
        """Add hazards of a change, each once."""
        there = self.hazards.setdefault(name, [])
        there += [hazard for hazard in hazards if hazard not in there]

    def put_on(self, changes: Iterable[ResourceChange]) -> list[ResourceChange]:
        """Return the changes with their hazards."""
        return [replace(change, hazards=tuple(self.hazards.get(change.name, ()))) for change in changes]

    def warn(self, texts: Iterable[str]) -> None:
        """Add warnings, each once."""
        self.warnings += [text for text in texts if text not in self.warnings]


def found(changes: Sequence[ResourceChange], desired: DesiredState, inventory: Inventory) -> PlanHazards:
    """Return the hazards that the changes introduce, without those that existed before.

    Raises RefusedError for an origin that is read twice, directly and through another: servers take that for a cycle.
    """
    result = PlanHazards()
    for change in changes:
        if change.live is not None:
            result.add(change.name, of_foreign(change.live["config"]))
        if change.action is not Action.DELETE and change.kind is not Kind.BUCKET:
            _replica(change, inventory, result)
    _shadowed(changes, desired, inventory, result)
    _readers(changes, desired, inventory, result)
    _cycles(changes, desired, inventory, result)
    return result


# -- replicas that change ------------------------------------------------------------------------------------


def _replica(change: ResourceChange, inventory: Inventory, result: PlanHazards) -> None:
    before = _origin_configs(inventory.of(change.where))
    introduced = hazards.introduced(change.before, change.config, before, change.origin_configs)
    result.add(change.name, introduced)
    for item in change.located:
        result.add(change.name, _of_origin(item))
        result.warn(item.seen.warnings() if item.seen else ())
    if not any(hazard.name == SMALLER_LIMITS for hazard in introduced):
        result.add(change.name, hazards.full(change.config, sum(_held(item, inventory) for item in change.located)))
    result.warn(f"`{change.name}`: {text}" for text in hazards.possible(change.config, change.origin_configs))
    if change.kind is Kind.AGGREGATE:
        result.warn(hazards.outliving(change.config, change.origin_configs))
        result.warn(_overwritten(change))


def _shadowed(
    changes: Sequence[ResourceChange], desired: DesiredState, inventory: Inventory, result: PlanHazards
) -> None:
    """Add the hazards of new buckets and mirrors of which one answers reads of the other."""
    for change in changes:
        if change.action is Action.CREATE and change.kind is not Kind.AGGREGATE:
            place = inventory.places[change.place]
            configs = {name: info["config"] for name, info in place.known.items()}
            configs |= {item.stream: item.config for item in desired.all() if item.place == change.place}
            mirrors, bucket = [*configs.values()], configs.get(change.stream)
            if change.kind is Kind.MIRROR:
                mirrors, bucket = [change.config], configs.get(change.config["mirror"]["name"])
            for mirror in mirrors:
                result.add(change.name, hazards.shadowed(mirror, bucket, place.domain))


def _overwritten(change: ResourceChange) -> Iterator[str]:
    """Warn that removing an origin's keys also removes values that they overwrote."""
    gone = change.leaving
    pairs = overlaps({**change.config, "sources": [*gone, *change.config["sources"]]}) if gone else []
    if any(one.number < len(gone) <= other.number for one, other in pairs):
        names = ", ".join(f"`{name_of(source)}`" for source in gone)
        repair = f"`kvctl topology audit {change.name} --repair`"
        yield f"Removing {names} from `{change.name}` also removes keys that it overwrote: {repair} restores them"


def _of_origin(item: OriginLocation) -> list[Hazard]:
    """Return the hazards of an origin from which nothing may ever arrive."""
    if item.exists is False:
        absent = f"`{item.origin.asked_name}` does not exist, and the file does not create it"
        return [Hazard(MISSING_ORIGIN, f"{absent}: nothing arrives until it does")]
    if item.seen is not None and not item.seen.reachable:
        return item.seen.hazards()
    return []


def _held(item: OriginLocation, inventory: Inventory) -> int:
    if item.where is not None:
        info = inventory.places[item.where[0]].infos.get(item.where[1])
        return int(info["state"]["bytes"]) if info else 0
    return item.seen.held if item.seen else 0


# -- replicas whose origin changes ---------------------------------------------------------------------------


def _readers(
    changes: Sequence[ResourceChange], desired: DesiredState, inventory: Inventory, result: PlanHazards
) -> None:
    """Add the hazards that changes and deletions mean for replicas that stay as they are, in the file or not."""
    touched = {change.where for change in changes}
    for change in changes:
        if change.action is Action.CREATE:
            continue
        result.add(change.name, _unseen(change, inventory))
        for link in inventory.leading_from(change.where):
            reader = link.info["config"]
            if link.at in touched:
                continue
            if change.action is Action.CHANGE:
                found = [
                    hazards.of_reader(reader, change.config, item) for item in _introduced(link, desired, inventory)
                ]
                if (reader.get("metadata") or {}).get(TOPOLOGY) == desired.topology.name:
                    text = f"`--prune` deletes `{name_of(reader)}`, which is no longer in the file"
                    found = [item._replace(remedy=text) for item in found]
                result.add(change.name, found)
            if reader.get("mirror") and (change.action is not Action.CHANGE or change.leaving):
                result.add(change.name, [_stale(change, link.info)])


def _unseen(change: ResourceChange, inventory: Inventory) -> list[Hazard]:
    """Return the hazard of streams of which nothing but the name is known, in any place."""
    stays = change.action is Action.CHANGE and not change.leaving
    if stays and not hazards.concerns_replicas(change.before or {}, change.config):
        return []
    return of_silent(dict.fromkeys(name for place in inventory.places.values() for name in place.unknown))


def _introduced(link: Link, desired: DesiredState, inventory: Inventory) -> list[Hazard]:
    """Return the hazards that a replica has only after its origins change."""
    links, reader = inventory.of(link.at), link.info["config"]
    before = _origin_configs(links)
    after = [desired.after(other.origin_at) or config for other, config in zip(links, before, strict=True)]
    return hazards.introduced(reader, reader, before, after)


def _origin_configs(links: Iterable[Link]) -> list[StreamConfig | None]:
    return [link.origin["config"] if link.origin else None for link in links]


def _stale(change: ResourceChange, reader: StreamInfo) -> Hazard:
    name = bucket_name(reader["config"], kind_of(reader["config"]))
    return Hazard(
        RECREATED_ORIGIN,
        f"Mirror `{name}` reads from `{change.name}` and is not in the file: it would keep serving the old values",
        f"Add `{name}` to the file, or delete it first",
    )


# -- cycles --------------------------------------------------------------------------------------------------


def _cycles(
    changes: Sequence[ResourceChange], desired: DesiredState, inventory: Inventory, result: PlanHazards
) -> None:
    readings = _readings(desired, inventory)
    changed = {change.where: change for change in changes if change.action is not Action.DELETE}
    after = {change.where: change.config for change in desired.all()}
    gone = {change.where: None for change in changes if change.action is Action.DELETE}
    republished = inventory.republications({**after, **gone})
    for where, change in changed.items():
        if (change.before or {}).get("republish") != change.config.get("republish"):
            result.warn(cycle.republishing(republished, where))
    for streams in cycle.cycles([*readings, *republished]):
        first = next((where for where in changed if where in streams), None)
        if first is not None:
            result.add(changed[first].name, [cycle.hazard(cycle.beginning_with(streams, first))])
    if not any(hazard.name == CYCLE for hazards in result.hazards.values() for hazard in hazards):
        for where, change in changed.items():
            cycle.refuse_doubled(change.name, readings, where)


def _readings(desired: DesiredState, inventory: Inventory) -> list[Replication]:
    """Return the replications after all changes."""
    found, planned = [], set()
    for change in desired.all():
        planned.add(change.where)
        origins = {item.key: item.where for item in change.located}
        for source in sources_of(change.config):
            if (where := origins.get(source_key(source))) is not None:
                found.append(Replication(change.where, where, source))
    for link in inventory.links:
        if link.at not in planned and link.origin_at is not None:
            found.append(Replication(link.at, link.origin_at, link.source))
    return found
