"""Revalidation of a saved or confirmed plan right before it is applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvctl.errors import ConflictError
from kvctl.jetstream.api import Api
from kvctl.phrases import counted
from kvctl.topology.apply import applier
from kvctl.topology.model.file import Topology
from kvctl.topology.plan import planner
from kvctl.topology.plan.description import title
from kvctl.topology.plan.plan import Change, Plan
from kvctl.topology.survey.graph import Inventory
from kvctl.topology.survey.inventory import survey


async def recheck(plan: Plan, topology: Topology, apis: Mapping[str, Api], *, prune: bool) -> Plan:
    """Return the remaining changes of the plan, with current hazards, readers and contents.

    Raises ConflictError if anything that it is based on has changed.
    """
    left = applier.remaining(plan, await survey(apis))
    if not left.changes:
        return left
    now, inventory = await planner.plan_and_inventory(topology, apis, prune=prune)
    fresh = {change.where: change for change in now.changes}
    changes = [
        renewed
        for change in left.changes
        if (renewed := _renewed(change, fresh.get(change.where), inventory)).entries
        or not applier.is_done(change, plan.seen[change.where], renewed.live)
    ]
    return replace(left, changes=changes, warnings=now.warnings)


def require_as_shown(shown: Plan, now: Plan) -> None:
    """Raise ConflictError if a change would do more harm than what was confirmed."""
    before = {change.where: change for change in shown.changes}
    texts = [text for change in now.changes if change.where in before for text in _worse(before[change.where], change)]
    if texts:
        lines = "\n".join(f"  {text}" for text in texts)
        raise ConflictError(f"The plan is stale:\n{lines}", hint="Create a new plan with `kvctl topology plan`")


def _renewed(change: Change, fresh: Change | None, inventory: Inventory) -> Change:
    live = inventory.places[change.place].infos.get(change.stream)
    if fresh is None:
        return replace(change, live=live, entries=())
    return replace(change, live=live, hazards=fresh.hazards, readers=fresh.readers, entries=fresh.entries)


def _worse(shown: Change, now: Change) -> list[str]:
    texts = [hazard.evidence for hazard in now.hazards if hazard not in shown.hazards]
    texts += [f"`{name}` now replicates from {title(now)}" for name in now.readers if name not in shown.readers]
    if shown.drops is not None and not shown.drops[0] and now.drops is not None and now.drops[0]:
        texts.append(f"{title(now)} was empty and now holds {counted(now.drops[0], 'entry')}")
    return texts
