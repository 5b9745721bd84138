"""Which rows of an interrupted load are stored though it could not note it: those that were in flight when it ended."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence

from kvctl.jetstream import streams
from kvctl.jetstream.ordered import Selection, read
from kvctl.kv.binding import Binding
from kvctl.kv.entry import from_frame
from kvctl.kv.load_progress import Position
from kvctl.kv.row_input import Batch

LOOKS, PAUSE = 10, 0.1
MOST_ROWS = 100_000
MOST_BYTES = 64 << 20
"""More than a load sends between two notes of its position, and has in flight."""


async def stored_rows(target: Binding, position: Position, batches: Iterator[Batch], history: int) -> dict[str, int]:
    """How many of a key's rows after the position are stored; only keys that have any.

    Found by comparing what each key got since then with the rows that follow, in their order.
    """
    await all_arrived(target)
    stored = await _stored_since(target, position.revision)
    if not stored:
        return {}
    coming = _coming(batches, stored.keys())
    counts = {key: _aligned(coming[key], digests, history) for key, digests in stored.items() if key in coming}
    return {key: count for key, count in counts.items() if count}


async def all_arrived(target: Binding) -> None:
    """Wait until the server has stored what a killed process sent last: it grows no more, or others write anyway."""
    before = -1
    for _ in range(LOOKS):
        last = int((await streams.info(target.api, target.stream))["state"]["last_seq"])
        if last == before:
            return
        before = last
        await asyncio.sleep(PAUSE)


async def _stored_since(target: Binding, revision: int) -> dict[str, list[int]]:
    """A digest of every entry above the revision, by key."""
    cut = len(target.prefix.encode())
    stored: dict[str, list[int]] = defaultdict(list)
    selection = Selection(subjects=(target.prefix + ">",), deliver="by_start_sequence", start=revision + 1)
    last = revision
    async for batch in read(target.api, target.stream, selection):
        for frame in batch:
            entry = from_frame(target.bucket, cut, frame)
            if entry.revision > last:
                last = entry.revision
                stored[entry.key].append(hash((entry.operation, entry.value)))
    return stored


def _coming(batches: Iterator[Batch], keys: Container[str]) -> dict[str, list[int]]:
    coming: dict[str, list[int]] = defaultdict(list)
    rows = size = 0
    for batch in batches:
        for row in batch.rows:
            if row.key in keys:
                coming[row.key].append(hash((row.operation, row.value)))
        rows, size = rows + len(batch.rows), size + batch.size
        if rows > MOST_ROWS or size > MOST_BYTES:
            break
    return coming


def _aligned(rows: Sequence[int], stored: Sequence[int], history: int) -> int:
    """How many of the rows are stored, if the last so many of them, or all, are what the key got."""
    if list(rows[: len(stored)]) == list(stored):
        return len(stored)
    if len(stored) >= history:  # older ones may have been pushed out
        for end in range(len(stored), len(rows) + 1):
            if list(rows[end - len(stored) : end]) == list(stored):
                return end
    count = at = 0  # others have written the key too
    while count < len(rows) and rows[count] in stored[at:]:
        at = stored.index(rows[count], at) + 1
        count += 1
    return count
