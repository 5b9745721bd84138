"""Find the rows of an interrupted load that were in flight when it ended and are stored."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from kvctl.jetstream import streams
from kvctl.jetstream.consumers.ordered.ordered_consumer import read
from kvctl.jetstream.consumers.ordered.server_consumer import Selection
from kvctl.kv.entry import Operation, from_frame
from kvctl.kv.load.checkpoint import Position
from kvctl.kv.load.row_reader import Batch
from kvctl.kv.resolve import Binding

ARRIVAL_LOOKS, ARRIVAL_PAUSE_S = 10, 0.1
_PURGED = hash((Operation.PURGE, b""))


@dataclass(frozen=True, slots=True)
class Stored:
    """Stored rows after the checkpoint."""

    counts: dict[str, int] = field(default_factory=dict)
    """Number of a key's rows that are stored; only keys that have any."""
    doubtful: frozenset[str] = frozenset()
    """Keys written by others since, whose rows may be stored and overwritten."""
    until: int = 0
    """Last line that may have been sent."""


async def stored_rows(target: Binding, position: Position, batches: Iterator[Batch], history: int) -> Stored:
    """Compare the entries of each key since the checkpoint with the rows that follow it, in order."""
    await all_arrived(target)
    stored = await _stored_since(target, position.revision)
    if not stored:
        return Stored()
    coming, until = _coming(batches, stored.keys(), position.until)
    found = {key: _aligned(coming[key], digests, history) for key, digests in stored.items() if key in coming}
    doubtful = frozenset(key for key, count in found.items() if count is None)
    return Stored({key: count for key, count in found.items() if count}, doubtful, until)


async def all_arrived(target: Binding, looks: int = ARRIVAL_LOOKS, *, quiet: int = 1) -> None:
    """Wait until the server has stored the last messages of a killed process.

    It returns when the stream did not grow for `quiet` intervals of 0.1 s, and after `looks` intervals if others keep
    writing.
    """
    before, same = -1, 0
    for _ in range(looks):
        last = int((await streams.info(target.api, target.stream))["state"]["last_seq"])
        same = same + 1 if last == before else 0
        if same == quiet:
            return
        before = last
        await asyncio.sleep(ARRIVAL_PAUSE_S)


async def _stored_since(target: Binding, revision: int) -> dict[str, list[int]]:
    """Return digests of every entry above the revision, by key."""
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


def _coming(batches: Iterator[Batch], keys: Container[str], until: int) -> tuple[dict[str, list[int]], int]:
    """Return digests of these keys' rows up to the batch that contains the line `until`, and that batch's last line."""
    coming: dict[str, list[int]] = defaultdict(list)
    line = 0
    for batch in batches:
        for row in batch.rows:
            if row.key in keys:
                coming[row.key].append(hash((row.operation, row.value)))
        line = batch.line
        if line >= until:
            break
    return coming, line


def _aligned(rows: Sequence[int], stored: Sequence[int], history: int) -> int | None:
    """Return how many of the rows the key received despite other writers; None if that cannot be known."""
    if list(rows[: len(stored)]) == list(stored):
        return len(stored)
    if len(stored) >= history or stored[0] == _PURGED:  # older ones may have been evicted
        for end in range(len(stored), len(rows) + 1):
            if list(rows[end - len(stored) : end]) == list(stored):
                return end
        return rows.index(stored[-1]) + 1 if stored[-1] in rows else None
    count = at = 0  # others have written the key, too
    while count < len(rows) and rows[count] in stored[at:]:
        at = stored.index(rows[count], at) + 1
        count += 1
    return count
