"""Data that an edit of a bucket or a stream would lose, as servers count it and in words; keys that origins share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvctl.errors import KvctlError, StreamNotFound
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.config_diff import shown
from kvctl.jetstream.consumers import admin
from kvctl.jetstream.consumers.ordered_consumer import read
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.jetstream.stream_info import Source, StreamConfig, StreamInfo
from kvctl.jetstream.streams import ServerClock
from kvctl.kv.entry import announced_size
from kvctl.kv.names import SUBJECT_PREFIX, matches
from kvctl.phrases import counted, quoted
from kvctl.topology.hazards.hazards import (
    COLLISION,
    KEY_COLLISION,
    LOSSY_EDIT,
    Hazard,
    Landing,
    name_of,
    overlaps,
    whose,
)
from kvctl.topology.model.subjects import UnknownTransform
from kvctl.units import duration_from_ns, format_size

HISTORY, AGE, SUBJECTS, BYTES, SIZE = "history", "age", "subjects", "bytes", "size"
"""Aspects in which a change of configuration can lose data."""


class Cost(NamedTuple):
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
        return self._replace(**measured)


class Words(NamedTuple):
    """Names of settings and contents."""

    entry: str
    key: str
    history: str
    age: str
    outside: str
    """Keys that the new subjects do not cover, `{keys}`."""
    full: str
    """The limit of bytes is exceeded, by `{entries}`, and new ones are refused."""
    shrunk: str
    """It is exceeded, and the oldest are deleted."""
    oversized: str
    """The limit of a message, `{limit}`, is exceeded by `{entries}`."""


BUCKET = Words(
    "revision",
    "key",
    "history",
    "ttl",
    "makes {keys} inaccessible",
    " by {entries}: no new key fits",
    " by {entries}: the oldest are deleted",
    "max_value_size {limit} is below {entries}, which could not be rewritten",
)
STREAM = Words(
    "message",
    "subject",
    "max_msgs_per_subject",
    "max_age",
    "no longer covers {keys} of stored messages",
    ": nothing new fits",
    ": the oldest messages are deleted",
    "max_msg_size {limit} is below the size of {entries}",
)


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


def lossy(before: StreamConfig, after: StreamConfig, cost: Cost, words: Words = BUCKET) -> list[Hazard]:
    """Return the hazards of data that the change would lose."""
    texts = [*_limits(before, after, cost, words), *(_of_streams(before, after, cost) if words is STREAM else ())]
    return [Hazard(LOSSY_EDIT, text) for text in texts]


def _limits(before: StreamConfig, after: StreamConfig, cost: Cost, words: Words) -> Iterator[str]:
    aspects = looks_at(before, after)
    if HISTORY in aspects and cost.over_history:
        change = f"{words.history} {_limit(before, 'max_msgs_per_subject')} -> {after['max_msgs_per_subject']}"
        keys = counted(cost.keys_over_history, words.key)
        yield f"{change} removes {counted(cost.over_history, words.entry)} of {keys}"
    if AGE in aspects and cost.messages:
        yield f"{words.age} {_age(before)} -> {_age(after)} removes {_expiring(cost, words)}"
    if SUBJECTS in aspects and cost.keys_outside:
        change = (
            f" {shown('', before.get('subjects'))} -> {shown('', after.get('subjects'))}" if words is BUCKET else ""
        )
        yield f"subjects{change} {words.outside.format(keys=counted(cost.keys_outside, words.key))}"
    if BYTES in aspects and cost.bytes > after["max_bytes"]:
        over = f"max_bytes {after['max_bytes']} is {format_size(cost.bytes - after['max_bytes'])} below what is in use"
        consequence = words.full if after.get("discard") == "new" else words.shrunk
        yield over + consequence.format(entries=counted(cost.messages, words.entry))
    if before.get("subject_delete_marker_ttl") and not after.get("subject_delete_marker_ttl"):
        yield (
            "marker_ttl cannot be turned off completely: per-key TTLs stay allowed, keys then expire without a marker, "
            "and other clients cannot edit the bucket any more"
        )
    if SIZE in aspects and cost.oversized:
        yield words.oversized.format(limit=after["max_msg_size"], entries=counted(cost.oversized, words.entry))


def _expiring(cost: Cost, words: Words) -> str:
    later = cost.messages - cost.expired
    if not later:
        return f"all {counted(cost.messages, words.entry)} immediately"
    if not cost.expired:
        return f"{counted(later, words.entry)} at that age"
    return f"{counted(cost.expired, words.entry)} immediately and {later} more at that age"


def _of_streams(before: StreamConfig, after: StreamConfig, cost: Cost) -> Iterator[str]:
    """Yield the losses by settings that buckets do not have."""
    stored, limit = counted(cost.messages, "message"), after.get("max_msgs") or -1
    if 0 <= limit < cost.messages and limit != before.get("max_msgs"):
        change = f"max_msgs {_limit(before, 'max_msgs')} -> {limit}"
        refused = after.get("discard") == "new"
        yield (
            f"{change} is below the {stored} stored: nothing new fits"
            if refused
            else f"{change} removes {counted(cost.messages - limit, 'message')}"
        )
    kept, wanted = before.get("retention", "limits"), after.get("retention", "limits")
    if wanted not in (kept, "limits") and cost.messages:
        yield f"retention {kept} -> {wanted} removes messages that no consumer waits for, out of {stored}"
    if after.get("sealed") and not before.get("sealed"):
        yield "sealing is permanent: nothing can be written, deleted or changed afterwards"


def _smaller(before: StreamConfig, after: StreamConfig, name: str) -> bool:
    old, new = before.get(name) or 0, after.get(name) or 0
    return bool(new > 0 and not 0 < old <= new)


def _limit(config: StreamConfig, name: str) -> str:
    value = config.get(name) or -1
    return "none" if value < 0 else str(value)


def _age(config: StreamConfig) -> str:
    return shown("ttl", duration_from_ns(config.get("max_age", 0)).total_seconds() or None)


_SHOWN_KEYS = 3
"""Number of colliding keys to name."""


async def cost(api: Api, before: StreamConfig, info: StreamInfo, after: StreamConfig) -> Cost:
    """Return the cost of the change; only the aspects that it affects are measured."""
    state, stream = info["state"], before["name"]
    aspects = looks_at(before, after) if state["messages"] else set()
    measured = Cost(messages=state["messages"], bytes=state["bytes"])
    if aspects & {HISTORY, SUBJECTS}:
        counts = await streams.subjects(api, stream)
        keep, wanted = after.get("max_msgs_per_subject", -1), tuple(after.get("subjects") or ())
        if HISTORY in aspects:
            over = [count - keep for count in counts.values() if count > keep]
            measured = measured.having(keys_over_history=len(over), over_history=sum(over))
        if SUBJECTS in aspects:
            outside = [count for subject, count in counts.items() if not matches(subject, wanted)]
            measured = measured.having(keys_outside=len(outside))
    if AGE in aspects:
        from kvctl.jetstream.multi_get import first_since

        clock = await ServerClock.read(api, stream)  # the info may be as old as a prompt
        first = await first_since(api, stream, clock.now_ns() - after["max_age"])
        younger = await admin.count(api, stream, deliver_policy="by_start_sequence", opt_start_seq=first)
        measured = measured.having(expired=max(state["messages"] - younger, 0))
    if SIZE in aspects:
        measured = measured.having(oversized=await _count_larger(api, stream, after["max_msg_size"]))
    return measured


async def _count_larger(api: Api, stream: str, size: int) -> int:
    count = 0
    async for batch in read(api, stream, Selection(subjects=(">",), deliver="all", headers_only=True)):
        count += sum(1 for _, _, header, _ in batch if announced_size(header) > size)
    return count


async def stored_collisions(api: Api, config: StreamConfig, since: int = 0) -> tuple[list[Hazard], list[str]]:
    """Return collisions among the stored keys of the origins, and warnings about possible collisions.

    Rules that land in exactly the same place are a hazard without reading keys (`of_aggregate`). For an existing
    aggregate, only sources from number `since` on are examined.
    """
    found: list[Hazard] = []
    warnings: list[str] = []
    own = f"{SUBJECT_PREFIX}{name_of(config)}."
    for one, other in overlaps(config):
        if one.pattern == other.pattern or max(one.number, other.number) < since:
            continue
        places = f"`{one.pattern.removeprefix(own)}`, `{other.pattern.removeprefix(own)}`"
        try:
            both = sorted(await _landed(api, one, other) & await _landed(api, other, one))
        except (KvctlError, UnknownTransform) as error:
            warnings.append(f"{whose(one, other)} can collide ({places}); could not check: {error}")
            continue
        if both:
            keys = quoted((key.removeprefix(own) for key in both), _SHOWN_KEYS)
            found.append(Hazard(KEY_COLLISION, f"{whose(one, other)} write the same keys, {keys}: {COLLISION}"))
        else:
            warnings.append(f"{whose(one, other)} can collide ({places}); no stored keys do")
    return found, warnings


async def _landed(api: Api, landing: Landing, other: Landing) -> set[str]:
    """Return where the rule's stored keys land, limited to the places that the other rule can write."""
    there = api.at(Source.parse(landing.source).api)
    try:
        subjects = await streams.subjects(there, landing.source["name"], landing.rule.src)
    except StreamNotFound:
        return set()  # about to be created
    landed = (landing.rule.apply(subject) for subject in subjects)
    return {subject for subject in landed if subject is not None and matches(subject, (other.pattern,))}
