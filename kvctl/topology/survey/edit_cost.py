"""What a change would lose, as the servers count it: data of an edited stream, keys that two origins write."""

from __future__ import annotations

from kvctl.errors import KvctlError, StreamNotFound
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers import admin
from kvctl.jetstream.consumers.ordered_consumer import read
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.jetstream.stream_info import Source, StreamConfig, StreamInfo
from kvctl.jetstream.streams import ServerClock
from kvctl.kv.entry import announced_size
from kvctl.kv.names import SUBJECT_PREFIX, matches
from kvctl.phrases import quoted
from kvctl.topology.hazards.hazards import COLLISION, KEY_COLLISION, Hazard, Landing, name_of, overlaps, whose
from kvctl.topology.hazards.lossy_edit import AGE, HISTORY, SIZE, SUBJECTS, Cost, looks_at
from kvctl.topology.model.subjects import UnknownTransform

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
            warnings.append(f"{whose(one, other)} could write the same keys ({places}); could not check: {error}")
            continue
        if both:
            keys = quoted((key.removeprefix(own) for key in both), _SHOWN_KEYS)
            found.append(Hazard(KEY_COLLISION, f"{whose(one, other)} write the same keys, {keys}: {COLLISION}"))
        else:
            warnings.append(f"{whose(one, other)} could write the same keys ({places}); no stored key does")
    return found, warnings


async def _landed(api: Api, landing: Landing, other: Landing) -> set[str]:
    """Return where the rule's stored keys land, limited to the places that the other rule can write."""
    prefix = Source.parse(landing.source).api
    there = api.at(prefix) if prefix else api
    try:
        subjects = await streams.subjects(there, landing.source["name"], landing.rule.src)
    except StreamNotFound:
        return set()  # about to be created
    landed = (landing.rule.apply(subject) for subject in subjects)
    return {subject for subject in landed if subject is not None and matches(subject, (other.pattern,))}
