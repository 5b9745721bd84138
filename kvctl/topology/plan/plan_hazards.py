"""Hazards of planned changes, as far as configurations show them. [pure]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvctl.jetstream.stream_info import StreamConfig, StreamInfo, sources_of
from kvctl.kv.stream_kind import Kind, bucket_name, kind_of
from kvctl.topology.hazards import cycle, hazards
from kvctl.topology.hazards.cycle import Reading
from kvctl.topology.hazards.hazards import (
    CYCLE,
    FOREIGN_KIND,
    LOSSY_EDIT,
    MISSING_ORIGIN,
    OF_AGGREGATES,
    OF_MIRRORS,
    RECREATED_ORIGIN,
    UNREACHABLE_STREAM,
    Hazard,
    name_of,
    of_foreign,
    of_replica,
    of_silent,
    overlaps,
)
from kvctl.topology.model.origins import source_key
from kvctl.topology.plan.desired import DesiredState, Draft
from kvctl.topology.plan.origin_place import Located
from kvctl.topology.plan.plan import Action, Change

if TYPE_CHECKING:
    from kvctl.topology.survey.graph import Inventory, Link


OF_PLANS = tuple(
    dict.fromkeys((*OF_MIRRORS, *OF_AGGREGATES, RECREATED_ORIGIN, LOSSY_EDIT, UNREACHABLE_STREAM, FOREIGN_KIND))
)
"""Hazards that can block a plan, and that can be overridden."""


@dataclass(slots=True)
class Found:
    """Hazards by the name of the change, and warnings."""

    hazards: dict[str, list[Hazard]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def add(self, name: str, hazards: Iterable[Hazard]) -> None:
        """Add hazards of a change, each once."""
        there = self.hazards.setdefault(name, [])
        there += [hazard for hazard in hazards if hazard not in there]

    def warn(self, texts: Iterable[str]) -> None:
        """Add warnings, each once."""
        self.warnings += [text for text in texts if text not in self.warnings]


def found(changes: Sequence[Change], drafts: DesiredState, inventory: Inventory) -> Found:
    """Return the hazards that the changes introduce, without those that existed before.

    Raises RefusedError for an origin that is read twice, directly and through another: servers take that for a cycle.
    """
    result = Found()
    by_name = {draft.name: draft for draft in drafts.all()}
    for change in changes:
        if change.live is not None:
            result.add(change.name, of_foreign(change.live["config"]))
        if change.action is not Action.DELETE and change.kind is not Kind.BUCKET:
            _replica(change, by_name[change.name], inventory, result)
    _readers(changes, drafts, inventory, result)
    _cycles(changes, drafts, inventory, result)
    return result


# -- replicas that change ------------------------------------------------------------------------------------


def _replica(change: Change, draft: Draft, inventory: Inventory, result: Found) -> None:
    accepted = of_replica(draft.before, _origins_now(change, inventory)) if draft.before else []
    now = of_replica(draft.after, draft.origin_configs)
    result.add(change.name, [hazard for hazard in now if hazard not in accepted])
    for item in draft.origins:
        result.add(change.name, _of_origin(item))
        result.warn(item.seen.warnings() if item.seen else ())
    result.add(change.name, hazards.full(draft.after, sum(_held(item, inventory) for item in draft.origins)))
    if draft.kind is Kind.AGGREGATE:
        result.warn(hazards.outliving(draft.after, draft.origin_configs))
        result.warn(_overwritten(change, draft))


def _overwritten(change: Change, draft: Draft) -> Iterator[str]:
    """Warn that removing an origin's keys also removes values that they overwrote."""
    gone = list(change.leaving)
    pairs = overlaps({**draft.after, "sources": [*gone, *draft.after["sources"]]}) if gone else []
    if any(one.number < len(gone) <= other.number for one, other in pairs):
        names = ", ".join(f"`{name_of(source)}`" for source in gone)
        repair = f"`kvctl topology audit {change.name} --repair`"
        yield f"Removing {names} from `{change.name}` also removes keys that it overwrote: {repair} restores them"


def _of_origin(item: Located) -> list[Hazard]:
    """Return the hazards of an origin from which nothing may ever arrive."""
    if item.exists is False:
        return [
            Hazard(
                MISSING_ORIGIN,
                f"`{item.origin.name}` does not exist, and the file does not create it: nothing arrives until it does",
            )
        ]
    if item.seen is not None and not item.seen.reachable:
        return item.seen.hazards()
    return []


def _origins_now(change: Change, inventory: Inventory) -> list[StreamConfig | None]:
    """Return the configurations of the origins of a live replica, in the order of its sources."""
    return [link.origin["config"] if link.origin else None for link in inventory.of(change.where)]


def _held(item: Located, inventory: Inventory) -> int:
    if item.where is not None:
        info = inventory.places[item.where[0]].infos.get(item.where[1])
        return int(info["state"]["bytes"]) if info else 0
    return item.seen.held if item.seen else 0


# -- replicas whose origin changes ---------------------------------------------------------------------------


def _readers(changes: Sequence[Change], drafts: DesiredState, inventory: Inventory, result: Found) -> None:
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
                reads = f"`{name_of(reader)}` reads from `{change.name}`"
                introduced = _introduced(link, drafts, inventory)
                result.add(change.name, [replace(item, evidence=f"{reads}: {item.evidence}") for item in introduced])
            if reader.get("mirror") and (change.action is not Action.CHANGE or change.leaving):
                result.add(change.name, [_stale(change, link.info)])


def _unseen(change: Change, inventory: Inventory) -> list[Hazard]:
    """Return the hazard of streams of which nothing but the name is known, in any place."""
    if change.action is Action.CHANGE and not change.leaving:
        assert change.live is not None
        assert change.after is not None
        if not hazards.concerns_replicas(change.live["config"], change.after):
            return []
    return of_silent(dict.fromkeys(name for place in inventory.places.values() for name in place.unknown))


def _introduced(link: Link, drafts: DesiredState, inventory: Inventory) -> list[Hazard]:
    """Return the hazards that a replica has only after its origins change."""
    links = inventory.of(link.at)
    before = [other.origin["config"] if other.origin else None for other in links]
    after = [drafts.after(other.origin_at) or config for other, config in zip(links, before, strict=True)]
    accepted = of_replica(link.info["config"], before)
    return [hazard for hazard in of_replica(link.info["config"], after) if hazard not in accepted]


def _stale(change: Change, reader: StreamInfo) -> Hazard:
    name = bucket_name(reader["config"], kind_of(reader["config"]))
    return Hazard(
        RECREATED_ORIGIN,
        f"Mirror `{name}` reads from `{change.name}` and is not in the file: it would keep serving the old values",
        f"Add `{name}` to the file, or delete it first",
    )


# -- cycles --------------------------------------------------------------------------------------------------


def _cycles(changes: Sequence[Change], drafts: DesiredState, inventory: Inventory, result: Found) -> None:
    readings = _readings(drafts, inventory)
    changed = {change.where: change for change in changes if change.action is not Action.DELETE}
    for streams in cycle.cycles(readings):
        first = next((where for where in changed if where in streams), None)
        if first is not None:
            result.add(changed[first].name, [cycle.hazard(cycle.beginning_with(streams, first))])
    if not any(hazard.name == CYCLE for hazards in result.hazards.values() for hazard in hazards):
        for where, change in changed.items():
            cycle.refuse_doubled(change.name, readings, where)


def _readings(drafts: DesiredState, inventory: Inventory) -> list[Reading]:
    """Return the replications after all changes."""
    found, planned = [], set()
    for draft in drafts.all():
        planned.add(draft.where)
        origins = {item.key: item.where for item in draft.origins}
        for source in sources_of(draft.after):
            if (where := origins.get(source_key(source))) is not None:
                found.append(Reading(draft.where, where, source))
    for link in inventory.links:
        if link.at not in planned and link.origin_at is not None:
            found.append(Reading(link.at, link.origin_at, link.source))
    return found
