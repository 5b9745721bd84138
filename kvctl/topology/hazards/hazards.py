"""Changes that silently lose, hide or strand data, each with its evidence. [pure]"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kvctl.dataclass import dataclass
from kvctl.errors import HazardRefused
from kvctl.jetstream.config_diff import shown
from kvctl.jetstream.stream_info import StreamConfig
from kvctl.kv import reserved_streams
from kvctl.phrases import counted, quoted
from kvctl.units import duration_from_ns, format_size

LOSSY_EDIT = "lossy-edit"
LAGGING_REPLICA = "lagging-replica"
UNREACHABLE_STREAM = "unreachable-stream"
"""A stream does not answer, and may read from the one that is to be deleted or changed."""
FOREIGN_KIND = reserved_streams.FOREIGN_KIND

HISTORY, AGE, SUBJECTS, BYTES, SIZE = "history", "age", "subjects", "bytes", "size"
"""Aspects in which a change of configuration can lose data."""


@dataclass(frozen=True, slots=True)
class Hazard:
    """One reason to stop; `--force NAME` overrides it."""

    name: str
    evidence: str
    remedy: str = ""
    """Suggested alternative, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Contents of a stream that a change would affect, as counts and bytes."""

    messages: int = 0
    bytes: int = 0
    over_history: int = 0
    keys_over_history: int = 0
    keys_outside: int = 0
    expired: int = 0
    oversized: int = 0

    def having(self, **measured: int) -> Cost:
        """Return the same cost with more fields measured."""
        return replace(self, **measured)


def looks_at(before: StreamConfig, after: StreamConfig) -> set[str]:
    """Return the aspects in which the change lowers limits or changes subjects."""
    found = {
        HISTORY: _smaller(before, after, "max_msgs_per_subject"),
        AGE: _smaller(before, after, "max_age"),
        BYTES: _smaller(before, after, "max_bytes"),
        SIZE: _smaller(before, after, "max_msg_size"),
        SUBJECTS: bool(before.get("subjects")) and before.get("subjects") != after.get("subjects"),
    }
    return {name for name, changes in found.items() if changes}


def lossy(before: StreamConfig, after: StreamConfig, cost: Cost) -> list[Hazard]:
    """Return the hazards of data that the change would lose."""
    aspects = looks_at(before, after)
    texts = [_EVIDENCE[aspect](before, after, cost) for aspect in _EVIDENCE if aspect in aspects]
    return [Hazard(LOSSY_EDIT, text) for text in texts if text]


def of_foreign(stream: StreamConfig) -> list[Hazard]:
    """Return the hazard of a bucket command on the stream of a table or a repository."""
    text = reserved_streams.evidence(stream)
    return [Hazard(FOREIGN_KIND, text, reserved_streams.remedy(stream))] if text else []


def of_silent(streams: Iterable[str]) -> list[Hazard]:
    """Return the hazard of a change while streams that may read from the changed one do not answer."""
    names = quoted(streams)
    if not names:
        return []
    text = f"Unreachable streams may be mirrors or aggregates of it: {names}"
    return [Hazard(UNREACHABLE_STREAM, text, "Start the servers that hold them")]


def refuse(found: Iterable[Hazard], forced: Iterable[str] | None, what: str) -> None:
    """Raise HazardRefused with all hazards that are not forced; `what` begins the message."""
    left = [hazard for hazard in found if hazard.name not in (forced or ())]
    if left:
        reasons = "\n".join(f"  {hazard.evidence}" for hazard in left)
        names = " ".join(f"--force {name}" for name in dict.fromkeys(hazard.name for hazard in left))
        remedies = [f"{remedy}. " for remedy in dict.fromkeys(hazard.remedy for hazard in left) if remedy]
        hint = f"{''.join(remedies)}Use `{names}` to proceed anyway"
        raise HazardRefused(left[0].name, f"{what}:\n{reasons}", hint=hint)


def _smaller(before: StreamConfig, after: StreamConfig, name: str) -> bool:
    old, new = before.get(name) or 0, after.get(name) or 0
    return bool(new > 0 and not 0 < old <= new)


def _history(before: StreamConfig, after: StreamConfig, cost: Cost) -> str | None:
    if not cost.over_history:
        return None
    change = f"history {before.get('max_msgs_per_subject')} -> {after['max_msgs_per_subject']}"
    return f"{change} removes {counted(cost.over_history, 'revision')} of {counted(cost.keys_over_history, 'key')}"


def _age(before: StreamConfig, after: StreamConfig, cost: Cost) -> str | None:
    if not cost.messages:
        return None
    old, new = (
        shown("ttl", duration_from_ns(config.get("max_age", 0)).total_seconds() or None) for config in (before, after)
    )
    if cost.expired == cost.messages:
        return f"ttl {old} -> {new} removes all {counted(cost.messages, 'revision')} immediately"
    later = cost.messages - cost.expired
    if not cost.expired:
        return f"ttl {old} -> {new} removes {counted(later, 'revision')} at that age"
    return f"ttl {old} -> {new} removes {counted(cost.expired, 'revision')} immediately and {later} more at that age"


def _subjects(before: StreamConfig, after: StreamConfig, cost: Cost) -> str | None:
    if not cost.keys_outside:
        return None
    change = f"subjects {shown('', before.get('subjects'))} -> {shown('', after.get('subjects'))}"
    return f"{change} makes {counted(cost.keys_outside, 'key')} inaccessible"


def _bytes(_: StreamConfig, after: StreamConfig, cost: Cost) -> str | None:
    if cost.bytes <= after["max_bytes"]:
        return None
    over = f"max_bytes {after['max_bytes']} is {format_size(cost.bytes - after['max_bytes'])} below what is in use"
    consequence = "no new key fits" if after.get("discard") == "new" else "the oldest are deleted"
    return f"{over} by {counted(cost.messages, 'revision')}: {consequence}"


def _size(_: StreamConfig, after: StreamConfig, cost: Cost) -> str | None:
    if not cost.oversized:
        return None
    limit = f"max_value_size {after['max_msg_size']}"
    return f"{limit} is below {counted(cost.oversized, 'revision')}, which could not be rewritten"


_EVIDENCE: dict[str, Any] = {HISTORY: _history, AGE: _age, SUBJECTS: _subjects, BYTES: _bytes, SIZE: _size}
