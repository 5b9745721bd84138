"""Find the rows of an interrupted load that were in flight when it ended and are stored."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvctl.jetstream import streams
from kvctl.jetstream.consumers.ordered.ordered_consumer import read
from kvctl.jetstream.consumers.ordered.server_consumer import Selection
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.kv.entry import Operation, from_frame
from kvctl.kv.load.checkpoint import Position
from kvctl.kv.load.reconcile import Outcome
from kvctl.kv.load.row_reader import Batch
from kvctl.kv.resolve import Binding
from kvctl.kv.write.identity import Series, identity_of

ARRIVAL_LOOKS, ARRIVAL_PAUSE_S = 10, 0.1


@dataclass(frozen=True, slots=True)
class Stored:
    """Rows after the checkpoint that are not due: they are stored, or must not be written any more."""

    outcomes: Mapping[int, Outcome] = field(default_factory=dict)
    """Outcomes by line."""
    until: int = 0
    """Last line that may have been sent."""


class _Write(NamedTuple):
    """A row, or an entry of its key."""

    line: int
    """0 for an entry without an identity of the load."""
    content: int | None
    """Hash of operation and value if it has no identity, which is all that tells whose it is."""
    purge: bool = False
    expires: bool = False


async def stored_rows(
    target: Binding, info: StreamInfo, ids: Series, position: Position, batches: Iterator[Batch]
) -> Stored:
    """Find the rows that follow the position, in order, among the entries of their keys since."""
    await all_arrived(target)
    stored = await _stored_since(target, ids, position.revision)
    outcomes: dict[int, Outcome] = {}
    for key, rows in _coming(batches, ids, stored, position.until).items():
        outcomes |= _outcomes(rows, stored[key], evicted=_evicted(info, stored[key]))
    return Stored(outcomes, position.until)


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


async def _stored_since(target: Binding, ids: Series, revision: int) -> dict[str, list[_Write]]:
    """Return every entry above the revision, by key."""
    cut = len(target.prefix.encode())
    stored: dict[str, list[_Write]] = defaultdict(list)
    selection = Selection(subjects=(target.prefix + ">",), deliver="by_start_sequence", start=revision + 1)
    last = revision
    async for batch in read(target.api, target.stream, selection):
        for frame in batch:
            entry = from_frame(target.bucket, cut, frame)
            if entry.revision > last:
                last = entry.revision
                line = ids.number(entry.header) or 0
                content = None if line or identity_of(entry.header) else hash((entry.operation, entry.value))
                stored[entry.key].append(_Write(line, content, purge=entry.operation is Operation.PURGE))
    return stored


def _coming(batches: Iterator[Batch], ids: Series, keys: Container[str], until: int) -> dict[str, list[_Write]]:
    """Return the rows of these keys up to the line `until`."""
    coming: dict[str, list[_Write]] = defaultdict(list)
    for batch in batches:
        for row in batch.rows:
            if row.key in keys and row.line <= until:
                content = None if ids.fits(row.header, row.value) else hash((row.operation, row.value))
                coming[row.key].append(_Write(row.line, content, expires=b"\r\nNats-TTL:" in row.header))
        if batch.line >= until:
            break
    return coming


def _evicted(info: StreamInfo, stored: Sequence[_Write]) -> bool:
    """Return True if entries before these may have been evicted since the position."""
    config = info["config"]
    limited = config.get("max_bytes", -1) > 0 or config.get("max_msgs", -1) > 0
    fades = config.get("max_age", 0) > 0 or (limited and config.get("discard") != "new")
    return fades or stored[0].purge or 0 < config.get("max_msgs_per_subject", 0) <= len(stored)


def _outcomes(rows: Sequence[_Write], stored: Sequence[_Write], *, evicted: bool) -> dict[int, Outcome]:
    """Return the outcomes of a key's rows that are not due.

    Rows of a key are stored in order, and the oldest entries are evicted first: above a stored row, nothing is missing.
    """
    lines, unclear = [entry.line for entry in stored], False
    equal, found = _by_content(rows), _by_content(stored)
    for content in equal.keys() & found.keys():
        if len(equal[content]) == len(found[content]):
            for at, number in zip(found[content], equal[content], strict=True):
                lines[at] = rows[number].line
        else:
            unclear = True
    known = set(lines) - {0}
    first, last = min(known, default=math.inf), max(known, default=0)
    outcomes = {}
    for row in rows:
        vanished = row.expires or (evicted and row.line < first)
        if row.line in known:
            outcomes[row.line] = Outcome.WRITTEN
        elif unclear:
            outcomes[row.line] = Outcome.UNKNOWN
        elif row.line < last:
            outcomes[row.line] = Outcome.SUPERSEDED if vanished else Outcome.MISSED
        elif vanished and not lines[-1]:
            outcomes[row.line] = Outcome.OVERTAKEN
    return outcomes


def _by_content(writes: Sequence[_Write]) -> dict[int, list[int]]:
    """Return the positions of writes without an identity, by content."""
    found: dict[int, list[int]] = defaultdict(list)
    for at, write in enumerate(writes):
        if write.content is not None:
            found[write.content].append(at)
    return found
