"""Data that an edit of a stream would delete, as far as it can be counted."""

from __future__ import annotations

from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers import admin
from kvctl.jetstream.consumers.ordered_consumer import read
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.jetstream.streams import ServerClock
from kvctl.kv.entry import announced_size
from kvctl.kv.names import matches
from kvctl.topology.hazards.lossy_edit import AGE, HISTORY, SIZE, SUBJECTS, Cost, looks_at


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
