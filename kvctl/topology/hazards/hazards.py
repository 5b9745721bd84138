"""Changes that lose, hide or strand data without a word from the server, each with its evidence. [pure]"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from kvctl.errors import HazardRefused
from kvctl.jetstream.stream_info import StreamConfig
from kvctl.kv import reserved_streams
from kvctl.kv.config_diff import shown
from kvctl.units import duration_from_ns, format_size

LOSSY_EDIT = "lossy-edit"
LAGGING_REPLICA = "lagging-replica"
UNREACHABLE_STREAM = "unreachable-stream"
"""A stream does not answer, and may read from the one that is to go or to be changed."""
FOREIGN_KIND = reserved_streams.FOREIGN_KIND

HISTORY, AGE, SUBJECTS, BYTES, SIZE = "history", "age", "subjects", "bytes", "size"
"""In what a change of configuration can cost data."""


@dataclass(frozen=True, slots=True)
class Hazard:
    """One reason not to go on; `--force NAME` overrides it."""

    name: str
    evidence: str
    remedy: str = ""
    """What to do instead, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a stream holds, and how much of it a change would touch."""

    messages: int = 0
    bytes: int = 0
    over_history: int = 0
    keys_over_history: int = 0
    keys_outside: int = 0
    expired: int = 0
    oversized: int = 0

    def having(self, **measured: int) -> Cost:
        """The same with more measured."""
        return replace(self, **measured)


def looks_at(before: StreamConfig, after: StreamConfig) -> set[str]:
    """In what the change is one to smaller limits or other subjects."""
    found = {
        HISTORY: _smaller(before, after, "max_msgs_per_subject"),
        AGE: _smaller(before, after, "max_age"),
        BYTES: _smaller(before, after, "max_bytes"),
        SIZE: _smaller(before, after, "max_msg_size"),
        SUBJECTS: bool(before.get("subjects")) and before.get("subjects") != after.get("subjects"),
    }
    return {name for name, changes in found.items() if changes}


def lossy(before: StreamConfig, after: StreamConfig, cost: Cost) -> list[Hazard]:
    """Why the change would lose data; empty when it would not."""
    aspects = looks_at(before, after)
    texts = [_EVIDENCE[aspect](before, after, cost) for aspect in _EVIDENCE if aspect in aspects]
    return [Hazard(LOSSY_EDIT, text) for text in texts if text]


def of_foreign(stream: StreamConfig) -> list[Hazard]:
    """The hazard of a bucket command on the stream of a table or a repository."""
    text = reserved_streams.evidence(stream)
    return [Hazard(FOREIGN_KIND, text, reserved_streams.remedy(stream))] if text else []


def of_silent(streams: Iterable[str]) -> list[Hazard]:
    """Return the hazard of a change while streams do not answer that may read from what is changed."""
    names = ", ".join(f"`{name}`" for name in streams)
    if not names:
        return []
    text = f"Streams that do not answer may be mirrors or aggregates of it: {names}"
    return [Hazard(UNREACHABLE_STREAM, text, "Start the servers that hold them")]


def refuse(found: Iterable[Hazard], forced: Iterable[str] | None, what: str) -> None:
    """Raises HazardRefused with all hazards that are not forced; `what` begins the message."""
    left = [hazard for hazard in found if hazard.name not in (forced or ())]
    if left:
        reasons = "\n".join(f"  {hazard.evidence}" for hazard in left)
        names = " ".join(f"--force {name}" for name in dict.fromkeys(hazard.name for hazard in left))
        remedies = [f"{remedy}. " for remedy in dict.fromkeys(hazard.remedy for hazard in left) if remedy]
        hint = f"{''.join(remedies)}`{names}` does it all the same"
        raise HazardRefused(left[0].name, f"{what}:\n{reasons}", hint=hint)


def _smaller(before: StreamConfig, after: StreamConfig, name: str) -> bool:
    old, new = before.get(name) or 0, after.get(name) or 0
    return bool(new > 0 and not 0 < old <= new)


def _history(before: StreamConfig, after: StreamConfig, cost: Cost) -> str | None:
    if not cost.over_history:
        return None
    change = f"history {before.get('max_msgs_per_subject')} -> {after['max_msgs_per_subject']}"
    return f"{change} removes {_count(cost.over_history, 'revision')} of {_count(cost.keys_over_history, 'key')}"


def _age(before: StreamConfig, after: StreamConfig, cost: Cost) -> str | None:
    if not cost.messages:
        return None
    old, new = (
        shown("ttl", duration_from_ns(config.get("max_age", 0)).total_seconds() or None) for config in (before, after)
    )
    if cost.expired == cost.messages:
        return f"ttl {old} -> {new} removes all {_count(cost.messages, 'revision')} at once"
    later = cost.messages - cost.expired
    if not cost.expired:
        return f"ttl {old} -> {new} removes {_count(later, 'revision')} at that age"
    return f"ttl {old} -> {new} removes {_count(cost.expired, 'revision')} at once and {later} more at that age"


def _subjects(before: StreamConfig, after: StreamConfig, cost: Cost) -> str | None:
    if not cost.keys_outside:
        return None
    change = f"subjects {shown('', before.get('subjects'))} -> {shown('', after.get('subjects'))}"
    return f"{change} puts {_count(cost.keys_outside, 'key')} out of reach"


def _bytes(_: StreamConfig, after: StreamConfig, cost: Cost) -> str | None:
    if cost.bytes <= after["max_bytes"]:
        return None
    over = f"max_bytes {after['max_bytes']} is {format_size(cost.bytes - after['max_bytes'])} below what is in use"
    consequence = "no new key fits" if after.get("discard") == "new" else "the oldest go"
    return f"{over} by {_count(cost.messages, 'revision')}: {consequence}"


def _size(_: StreamConfig, after: StreamConfig, cost: Cost) -> str | None:
    if not cost.oversized:
        return None
    limit = f"max_value_size {after['max_msg_size']}"
    return f"{limit} is below {_count(cost.oversized, 'revision')}, which could not be written again"


_EVIDENCE: dict[str, Any] = {HISTORY: _history, AGE: _age, SUBJECTS: _subjects, BYTES: _bytes, SIZE: _size}


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
