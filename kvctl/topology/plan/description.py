"""Planned changes in words. [pure]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kvctl.errors import UsageError
from kvctl.kv.config_diff import UNSET, Difference, shown
from kvctl.kv.stream_kind import LEAVING, Kind, begins_somewhere
from kvctl.topology.file.origin_spec import origin_spec
from kvctl.topology.hazards.replica_hazards import name_of
from kvctl.topology.model import Origin
from kvctl.topology.plan.plan import Action, Change, Plan
from kvctl.topology.source import meaning
from kvctl.units import format_size

SIGNS = {Action.CREATE: "+", Action.CHANGE: "~", Action.DELETE: "-", Action.RECREATE: "-/+"}

_PLUMBING = (
    "subjects", "retention", "discard", "duplicate_window", "deny_delete", "allow_direct", "mirror_direct",
    "allow_rollup_hdrs", "allow_msg_ttl",
)  # fmt: skip
"""What every bucket, mirror or aggregate is made with."""


def title(change: Change) -> str:
    """What it is: ``mirror `ORDERS_NYC` in `hub` ``."""
    return f"{change.kind} `{change.name}`" + (f" in `{change.place}`" if change.place else "")


def differences(change: Change) -> list[Difference]:
    """What changes, in the words of a file: origins as SPECs; of something new, what distinguishes it."""
    found = [_told(item, change) for item in change.differences if item.field != f"metadata.{LEAVING}"]
    new = change.live is None
    return [item for item in found if not (new and item.field in _PLUMBING)]


def remarks(change: Change) -> list[str]:
    """Why it changes, where the differences do not tell, and what becomes of the data."""
    found = []
    if change.cascades:
        found.append("as its origin is made anew, whose old entries it would go on serving")
    if change.leaving:
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(name_of(source) for source in change.leaving))
        found.append(f"what came from {names} alone is taken out")
    if change.action is Action.CHANGE and (names := _started(change)):
        audit = f"`kvctl topology audit {change.name}` finds keys lost before"
        found.append(f"so that {names} begins with its first entry; {audit}")
    if change.follows:
        found.append("as its origin changes, and before that")
    return [*found, *losses(change)]


def losses(change: Change) -> list[str]:
    """What goes with it."""
    found = []
    if change.drops is not None:
        messages, size = change.drops
        held = f"{messages:,} {'entry' if messages == 1 else 'entries'} ({format_size(size)})"
        found.append(f"drops {held}{_again(change)}" if messages else "holds nothing")
    if change.action is Action.RECREATE and change.kind is Kind.AGGREGATE and not change.is_copy:
        found.append(f"`kvctl aggregate remove-origin {change.name} ...` takes an origin out and keeps the rest")
    if change.readers:
        names = ", ".join(f"`{name}`" for name in change.readers)
        found.append(f"{names} {'reads' if len(change.readers) == 1 else 'read'} from it, and would get no more")
    return found


def difference_lines(item: Difference) -> list[str]:
    """One difference on a line; of a list, each that comes or goes."""
    if isinstance(item.before, list) and isinstance(item.after, list):
        gone = [f"{item.field}: - {text}" for text in item.before if text not in item.after]
        return [*gone, *(f"{item.field}: + {text}" for text in item.after if text not in item.before)]
    before, after = shown(item.field, item.before), shown(item.field, item.after)
    return [f"{item.field}: {after}" if before == UNSET else f"{item.field}: {before} -> {after}"]


def summary(plan: Plan) -> str:
    """How much there is to do: `2 to create, 1 to change, 0 to delete, 0 to recreate`."""
    return ", ".join(f"{count} to {action}" for action, count in plan.summary.items())


def _started(change: Change) -> str:
    """The origins whose sources did not say where they begin."""
    before = (change.live["config"].get("sources") if change.live else None) or []
    stay = {meaning(source) for source in (change.after or {}).get("sources") or []}
    names = [name_of(source) for source in before if not begins_somewhere(source) and meaning(source) in stay]
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))


def _again(change: Change) -> str:
    if not change.is_copy:
        return " for good"
    return " and fills again from its origins" if change.action is Action.RECREATE else ", a copy"


def _told(item: Difference, change: Change) -> Difference:
    if item.field == "mirror":
        return Difference("origin", _spec(item.before, ""), _spec(item.after, ""))
    if item.field == "sources":
        return Difference("origins", list(_specs(item.before, change.name)), list(_specs(item.after, change.name)))
    if item.field == "subjects" and change.kind is Kind.AGGREGATE and change.live is not None:
        return Difference("writable", bool(item.before), bool(item.after))
    return item


def _specs(sources: Iterable[dict[str, Any]] | None, target: str) -> Iterator[str]:
    for source in sources or ():
        if (text := _spec(source, target)) is not None:
            yield text


def _spec(source: dict[str, Any] | None, target: str) -> str | None:
    """A source as people write it, or its bare stream where they cannot."""
    if not source:
        return None
    try:
        return origin_spec(Origin.from_source(source, target))
    except UsageError:
        return f"stream={source['name']}"
