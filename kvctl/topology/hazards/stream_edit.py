"""Data that an edit of a stream would lose, in terms of stream settings."""

from __future__ import annotations

from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.phrases import counted
from kvctl.topology.hazards import hazards, inspection
from kvctl.topology.hazards.hazards import (
    AGE,
    BYTES,
    FOREIGN_KIND,
    HISTORY,
    LOSSY_EDIT,
    SIZE,
    SUBJECTS,
    Cost,
    Hazard,
    looks_at,
)
from kvctl.topology.hazards.replica_hazards import (
    DUPLICATE_WINDOW,
    KEY_COLLISION,
    OF_EDITS,
    ORIGIN_NOT_DIRECT,
    OUTSIDE_PREFIX,
)
from kvctl.topology.survey import edit_cost
from kvctl.units import duration_from_ns, format_duration, format_size

OF_STREAM_EDITS = (
    LOSSY_EDIT, *OF_EDITS, ORIGIN_NOT_DIRECT, DUPLICATE_WINDOW, OUTSIDE_PREFIX, KEY_COLLISION, FOREIGN_KIND,
)  # fmt: skip
"""Hazards that can block an edit, and that can be overridden."""


async def hazards_of(api: Api, info: StreamInfo, after: StreamConfig) -> list[Hazard]:
    """Return the hazards of giving the stream this configuration: data lost, foreign owners, replicas harmed."""
    before: StreamConfig = info["config"]
    cost = await edit_cost.cost(api, before, info, after)
    found = [*hazards.of_foreign(before), *(Hazard(LOSSY_EDIT, text) for text in lossy(before, after, cost))]
    return [*found, *await inspection.of_edit(api, before, after)]


def lossy(before: StreamConfig, after: StreamConfig, cost: Cost) -> list[str]:
    """Return the data that the change would lose, one sentence each."""
    aspects = looks_at(before, after)
    texts = [
        _limits(before, after, cost, aspect) for aspect in (HISTORY, AGE, SUBJECTS, BYTES, SIZE) if aspect in aspects
    ]
    texts += [_count_limit(before, after, cost), _retention(before, after, cost), _sealed(before, after)]
    return [text for text in texts if text]


def _limits(before: StreamConfig, after: StreamConfig, cost: Cost, aspect: str) -> str | None:
    if aspect == HISTORY and cost.over_history:
        change = f"max_msgs_per_subject {_limit(before, 'max_msgs_per_subject')} -> {after['max_msgs_per_subject']}"
        return f"{change} removes {_messages(cost.over_history)} of {counted(cost.keys_over_history, 'subject')}"
    if aspect == AGE and cost.messages:
        ages = " -> ".join(format_duration(duration_from_ns(config.get("max_age", 0))) for config in (before, after))
        now = f"{_messages(cost.expired)} immediately" if cost.expired else ""
        later = f"{_messages(cost.messages - cost.expired)} at that age" if cost.messages > cost.expired else ""
        return f"max_age {ages} removes {' and '.join(filter(None, (now, later)))}".replace(
            "max_age 0s", "max_age none"
        )
    if aspect == SUBJECTS and cost.keys_outside:
        return f"subjects no longer covers {counted(cost.keys_outside, 'subject')} of stored messages"
    if aspect == BYTES and cost.bytes > after["max_bytes"]:
        consequence = "nothing new fits" if after.get("discard") == "new" else "the oldest messages are deleted"
        over = format_size(cost.bytes - after["max_bytes"])
        return f"max_bytes {after['max_bytes']} is {over} below what is in use: {consequence}"
    if aspect == SIZE and cost.oversized:
        return f"max_msg_size {after['max_msg_size']} is below the size of {_messages(cost.oversized)}"
    return None


def _count_limit(before: StreamConfig, after: StreamConfig, cost: Cost) -> str | None:
    limit = after.get("max_msgs") or -1
    if limit < 0 or limit >= cost.messages or limit == before.get("max_msgs"):
        return None
    change = f"max_msgs {_limit(before, 'max_msgs')} -> {limit}"
    if after.get("discard") == "new":
        return f"{change} is below the {_messages(cost.messages)} stored: nothing new fits"
    return f"{change} removes {_messages(cost.messages - limit)}"


def _retention(before: StreamConfig, after: StreamConfig, cost: Cost) -> str | None:
    kept, wanted = before.get("retention", "limits"), after.get("retention", "limits")
    if wanted == kept or wanted == "limits" or not cost.messages:
        return None
    return (
        f"retention {kept} -> {wanted} removes messages that no consumer waits for, out of {_messages(cost.messages)}"
    )


def _sealed(before: StreamConfig, after: StreamConfig) -> str | None:
    if after.get("sealed") and not before.get("sealed"):
        return "sealing is permanent: nothing can be written, deleted or changed afterwards"
    return None


def _limit(config: StreamConfig, name: str) -> str:
    value = config.get(name) or -1
    return "none" if value < 0 else str(value)


def _messages(count: int) -> str:
    return counted(count, "message")
