"""Description of planned changes. [pure]"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from kvctl.errors import UsageError
from kvctl.jetstream.config_diff import UNSET, Difference
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo, sources_of
from kvctl.kv.config import differences as config_differences
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.kv.stream_kind import OWN_METADATA, Kind, begins_somewhere, bucket_name, kind_of
from kvctl.phrases import counted, quoted
from kvctl.topology.hazards.hazards import name_of
from kvctl.topology.model.notation import origin_spec, parse_origin, rules_json, with_rules_text
from kvctl.topology.model.origins import Origin, meaning
from kvctl.topology.plan.change import Action, ResourceChange, TopologyPlan
from kvctl.units import format_size

SIGNS: dict[str, str] = {Action.CREATE: "+", Action.CHANGE: "~", Action.DELETE: "-", Action.RECREATE: "-/+"}

_PLUMBING = """
    subjects retention discard duplicate_window deny_delete allow_direct mirror_direct allow_rollup_hdrs allow_msg_ttl
""".split()
"""Settings that every bucket, mirror or aggregate is created with."""

_OF_OWNERS = ["allow_atomic", "atomic", "first_revision"]
"""Settings that every table or repository is created with."""
_OWN = f"metadata.{OWN_METADATA}"

_NAMED_MAX = 10
"""Largest number of keys that are named."""


def title(change: ResourceChange) -> str:
    """Return kind, name and context: ``mirror `ORDERS_NYC` in `hub` ``."""
    return f"{change.kind} `{change.name}`" + (f" in `{change.place}`" if change.place else "")


def of_stream(after: StreamConfig, live: StreamInfo | None = None) -> ResourceChange:
    """Return the change that creates a stream, or gives `live` another configuration."""
    kind = kind_of(after) or Kind.STREAM
    return ResourceChange(
        kind=kind, name=bucket_name(after, kind), place="", stream=after["name"], live=live, after=after
    )


def differences(change: ResourceChange) -> list[Difference]:
    """Return the differences in terms of a file, origins as SPECs; for something new, only its particular settings."""
    found = [_as_in_file(item, change) for item in change.differences]
    plumbing = _PLUMBING if change.live is None and change.kind is not Kind.STREAM else ()
    if change.kind in (Kind.TABLE, Kind.REPOSITORY):
        plumbing = [*_PLUMBING, *_OF_OWNERS]
    return [item for item in found if item.field not in plumbing and not item.field.startswith(_OWN)]


def remarks(change: ResourceChange) -> list[str]:
    """Return reasons for the change that its differences do not show, and its effect on the data."""
    found = []
    if change.entries:
        found.append(f"creates {counted(len(change.entries), 'entry')}: {quoted(change.entries, _NAMED_MAX)}")
    if change.cascades:
        found.append("recreated with its origin, whose old entries it would keep serving")
    if change.leaving:
        names = quoted(dict.fromkeys(name_of(source) for source in change.leaving))
        found.append(f"removes keys that came only from {names}")
    if change.action is Action.CHANGE and (names := _started(change)):
        audit = f"`kvctl topology audit {change.name}` finds keys that were lost before"
        found.append(f"to replicate {names} from its first entry; {audit}")
    if change.follows:
        origins = change.ahead_of or [name_of(source) for source in sources_of(change.config)]
        found.append(f"changed before its {'origin' if len(origins) == 1 else 'origins'} {quoted(origins)}")
    return [*found, *losses(change)]


def losses(change: ResourceChange) -> list[str]:
    """Return the data that the change deletes."""
    found = []
    if change.drops is not None:
        messages, size = change.drops
        held = f"{counted(messages, 'entry')} ({format_size(size)})"
        found.append(_dropped(change, held) if messages else "is empty")
    if change.action is Action.RECREATE and change.kind is Kind.AGGREGATE and not change.is_copy:
        found.append(f"`kvctl aggregate remove-origin {change.name} ...` removes an origin and keeps the rest")
    if change.readers:
        names = quoted(change.readers)
        found.append(f"{names} {'replicates' if len(change.readers) == 1 else 'replicate'} from it, and would stop")
    return found


def difference_lines(item: Difference, *, new: bool = False) -> list[tuple[str, str]]:
    """Return field and text of one difference; for a list, a line for each item added or removed.

    Of something new, only the value: defaults are not what it was before.
    """
    if isinstance(item.before, list) and isinstance(item.after, list):
        words = _origin_words if item.field == "origins" else str
        gone = [f"- {words(text)}" for text in item.before if text not in item.after]
        lines = [*gone, *(f"+ {words(text)}" for text in item.after if text not in item.before)]
        return [(item.field if number == 0 else "", line) for number, line in enumerate(lines)]
    before, after = item.words
    if item.field == "origin":  # the keys of a mirror keep their names
        before, after = (_origin_words(text).partition(" → ")[0].removesuffix(": >") for text in (before, after))
    return [(item.field, after if new or before == UNSET else f"{before} → {after}")]


def _origin_words(spec: str) -> str:
    """Describe an origin given as SPEC: `EU: NEW.> → eu.>`."""
    try:
        origin = parse_origin(spec)
        row = with_rules_text(rules_json(origin.to_source("A"), f"{STREAM_PREFIX}A"), STREAM_PREFIX)
    except UsageError:
        return spec
    place = (origin.external.domain or origin.external.api) if origin.external else ""
    where = f" in {place}" if place else ""
    lands = f" → {row['lands_as']}" if row["lands_as"] and row["lands_as"] != row["taken"] else ""
    return f"{origin.name}{where}: {row['taken'] or '>'}{lands}"


def renamed(plan: TopologyPlan) -> list[str]:
    """Return notes on new replicas that have origin and settings of one that is no longer in the file."""
    return [
        f"`{change.name}` has the origin and settings of `{old.name}`, no longer in the file: its data is copied again"
        for change in plan.changes
        for old in plan.unlisted
        if change.action is Action.CREATE and change.is_copy and old.is_copy and _is_like(old, change)
    ]


def _is_like(old: ResourceChange, new: ResourceChange) -> bool:
    """Return whether two replicas differ in nothing but their names."""
    before, after = (f'"{SUBJECT_PREFIX}{name}.' for name in (old.name, new.name))
    config = json.loads(json.dumps(old.before).replace(before, after))
    return not config_differences({**config, "name": new.stream}, new.config)


def summary(plan: TopologyPlan) -> str:
    """Return the counts of changes: `2 to create, 1 to change, 0 to delete, 0 to recreate`."""
    return ", ".join(f"{count} to {action}" for action, count in plan.summary.items())


def _started(change: ResourceChange) -> str:
    """Return the origins whose sources have no start position."""
    before = (change.live["config"].get("sources") if change.live else None) or []
    stay = {meaning(source) for source in (change.after or {}).get("sources") or []}
    names = [name_of(source) for source in before if not begins_somewhere(source) and meaning(source) in stay]
    return quoted(dict.fromkeys(names))


def _dropped(change: ResourceChange, held: str) -> str:
    if not change.is_copy:
        return f"drops {held} permanently"
    return (
        f"drops {held} and refills it from its origins"
        if change.action is Action.RECREATE
        else f"deletes a copy of {held}"
    )


def _as_in_file(item: Difference, change: ResourceChange) -> Difference:
    if item.field == "mirror":
        return Difference("origin", _spec(item.before, ""), _spec(item.after, ""))
    if item.field == "sources":
        return Difference("origins", _specs(item.before, change.name), _specs(item.after, change.name))
    if item.field == "subjects" and change.kind is Kind.AGGREGATE and change.live is not None:
        return Difference("writable", bool(item.before), bool(item.after))
    return item


def _specs(sources: Iterable[dict[str, Any]] | None, target: str) -> list[str | None]:
    return [_spec(source, target) for source in sources or ()]


def _spec(source: dict[str, Any] | None, target: str) -> str | None:
    """Return a source as people write it, or only its stream if it cannot be written."""
    if not source:
        return None
    try:
        return origin_spec(Origin.from_source(source, target))
    except UsageError:
        return f"stream={source['name']}"
