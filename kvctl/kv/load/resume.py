"""Find the rows of an interrupted load that were in flight when it ended and are stored."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvctl.errors import ConnectionLost, PermissionDenied, ServerError, WrongRevision
from kvctl.jetstream import streams
from kvctl.jetstream.consumers.ordered.ordered_consumer import read
from kvctl.jetstream.consumers.ordered.server_consumer import Selection
from kvctl.jetstream.direct.direct_get import StoredMessage
from kvctl.jetstream.publish import publish
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.kv.entry import Operation, from_frame
from kvctl.kv.load.bulk_writer import with_expected
from kvctl.kv.load.checkpoint import Position
from kvctl.kv.load.leader_state import KEYS_PER_REQUEST, Current
from kvctl.kv.load.reconcile import Outcome
from kvctl.kv.load.row_reader import Batch
from kvctl.kv.load.rows import Row
from kvctl.kv.names import is_plain
from kvctl.kv.resolve import Binding
from kvctl.kv.write.identity import Series, identity_of

ARRIVAL_LOOKS, ARRIVAL_PAUSE_S = 10, 0.1
FIRST_ROW_ATTEMPTS = 20
"""Attempts to write the first row on condition, where other clients write the same keys."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Rows after the checkpoint that are not due: they are stored, or must not be written any more."""

    outcomes: Mapping[int, Outcome] = field(default_factory=dict)
    """Outcomes by line."""
    until: int = 0
    """Last line that may have been sent."""
    revision: int = 0
    """Revision up to which the stream was read: a row that is due is above it, once it is stored."""


Needed = Callable[[Row, StoredMessage | None], bool]
"""Whether a load writes a row, given the last message of its key."""


class _Write(NamedTuple):
    """A row, or an entry of its key."""

    line: int
    """0 for an entry without an identity of the load."""
    content: int | None
    """Hash of operation and value if it has no identity, which is all that tells whose it is."""
    purge: bool = False
    expires: bool = False


async def stored_rows(
    target: Binding,
    info: StreamInfo,
    ids: Series,
    position: Position,
    batches: Callable[[], Iterator[Batch]],
    needed: Needed,
) -> Stored:
    """Find the rows that follow the position, in order, among the entries of their keys since.

    A killed process may leave rows that the server has received and not stored, for as long as its cluster has no
    majority. So the first row that is due is written here, on condition that its key does not change: the server stores
    it after those rows, or refuses it while one of them is of its key. Raises UnreachableError if it does so for long.
    """
    barrier = attempts = 0
    while True:
        await all_arrived(target)
        stored, newest, last = await _stored_since(target, ids, position.revision)
        outcomes: dict[int, Outcome] = {}
        for key, rows in _coming(batches(), ids, stored, position.until).items():
            outcomes |= _outcomes(rows, stored[key], evicted=_evicted(info, stored[key]))
        found = Stored(outcomes, position.until, last)
        if barrier:
            if newest <= barrier:
                return found
            barrier = newest  # rows of the killed process arrived after it
        else:
            revision = await _write_first_due(Current(target, info), ids, _due(batches(), ids, found), last, needed)
            attempts += 1
            if revision is None or (attempts == FIRST_ROW_ATTEMPTS and not revision):
                return found
            barrier = revision


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


def _due(batches: Iterator[Batch], ids: Series, found: Stored) -> list[Row]:
    """Return the first rows of keys that are due, as far as they have no header and room for a condition."""
    due: dict[str, Row] = {}
    for batch in batches:
        for row in batch.rows:
            if row.line <= found.until and row.line not in found.outcomes:
                due.setdefault(row.key, row)
        if batch.line >= found.until or len(due) >= KEYS_PER_REQUEST:
            break
    return [row for row in due.values() if is_plain(row.key) and not row.header and ids.repeatable(b"", row.value)]


async def _write_first_due(current: Current, ids: Series, due: Sequence[Row], after: int, needed: Needed) -> int | None:
    """Write the first needed row of a key that was not written after a revision.

    Returns the row's revision, 0 if its key was written in the meantime, None if no row is needed or it is refused.
    """
    if not due:
        return None
    target = current.binding
    try:
        last = await current.last(next(current.chunks(due)))
        needed_rows = [row for row in due if row.key in last and needed(row, last[row.key])]
        for row in needed_rows:
            message = last[row.key]
            sequence = message.sequence if message else 0
            if sequence <= after:
                header = with_expected(ids.block(row.line, row.header, row.value), sequence)
                subject = target.write_prefix + row.key
                return await publish(target.api.connection, subject, row.value, header)
        return 0 if needed_rows else None
    except (WrongRevision, ConnectionLost):
        return 0
    except (ServerError, PermissionDenied):
        return None  # the load meets the same error, and reports it


async def _stored_since(target: Binding, ids: Series, revision: int) -> tuple[dict[str, list[_Write]], int, int]:
    """Return every entry above the revision, by key, the revision of the load's last one, and that of the last."""
    cut = len(target.prefix.encode())
    stored: dict[str, list[_Write]] = defaultdict(list)
    selection = Selection(subjects=(target.prefix + ">",), deliver="by_start_sequence", start=revision + 1)
    newest, last = 0, revision
    async for batch in read(target.api, target.stream, selection):
        for frame in batch:
            entry = from_frame(target.bucket, cut, frame)
            if entry.revision > last:
                last = entry.revision
                line = ids.number(entry.header) or 0
                content = None if line or identity_of(entry.header) else hash((entry.operation, entry.value))
                stored[entry.key].append(_Write(line, content, purge=entry.operation is Operation.PURGE))
                newest = entry.revision if line else newest
    return stored, newest, last


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
