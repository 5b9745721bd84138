"""Scan of a table in the order of its keys, page by page (PDP-39's key and entry iterators).

Servers do not sort: the keys of the range are listed, sorted here, and their entries are fetched page by page. A key
that lives through the scan appears once; others may or may not, and values may be newer than the listing.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from kvctl.jetstream.consumers.delivery import delivery
from kvctl.jetstream.consumers.ordered.ordered_consumer import OrderedConsumer
from kvctl.jetstream.consumers.ordered.server_consumer import Selection
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import is_tombstone
from kvctl.tables.changes import Version
from kvctl.tables.entry import Entry, Key
from kvctl.tables.keys import partition_of, read_group, read_key
from kvctl.tables.ranges import Range, continuation, resume

if TYPE_CHECKING:
    from kvctl.tables.table import Table

PAGE_ENTRIES = 1000
"""Default number of entries per page."""

PAGES_AHEAD = 4
"""Pages that are fetched concurrently."""

_TAIL = 8 + 4 + 2
"""Bytes of a record after the tokens: zero, partition, sequence, and whether it lives."""
_SUBJECT = -9
"""End of the part of a record that identifies the subject."""
_GONE, _LIVE = b"\0", b"\1"


@dataclass(frozen=True, slots=True)
class Page:
    """Some entries, or keys, in order."""

    entries: Sequence[Entry | Key]
    next: str | None
    """Token that resumes after them; None for the last page."""


async def pages(
    table: Table,
    of: Range,
    *,
    values: bool = True,
    size: int = PAGE_ENTRIES,
    after: str | None = None,
    limit: int | None = None,
) -> AsyncGenerator[Page, None]:
    """Yield the entries of a range (without `values` their keys), `size` per page, each full except the last.

    `after` is the token of a page of any scan of the same range; `limit` is the maximum number of entries. Holds about
    100 bytes per key of the range, or of `limit` if given. Raises UsageError for a token of another scan.
    """
    await table.layout.check_life()
    begin = resume(after, table.name, table.life, of) if after is not None else b""
    records = await _listed(table, of, begin, None if limit is None else limit + 1)
    cut = limit is not None and len(records) > limit
    waiting = iter(records)
    left = len(records) if limit is None else limit
    found: list[tuple[bytes, Entry | Key]] = []
    while True:
        wanted = min(size, left) + 1  # one more than shown, to know whether anything follows
        while len(found) < wanted and (some := list(islice(waiting, PAGES_AHEAD * size))):
            found += await _entries(table, some) if values else list(_keys(table, some))
        shown, found = found[: wanted - 1], found[wanted - 1 :]
        left -= len(shown)
        last = shown[-1][0] if found else _tokens(records[-1]) if cut else None
        next_token = None if last is None else continuation(table.name, table.life, of, last)
        yield Page([entry for _, entry in shown], next_token)
        if not found or not left:
            return


async def _listed(table: Table, of: Range, begin: bytes, most: int | None) -> list[bytes]:
    """Return the first `most` records of a range after `begin`, sorted.

    A record is the family and key tokens, a zero byte, the partition token, the sequence, and whether the entry lives:
    it sorts as the key.
    """
    smallest = _Smallest(most) if most is not None else None
    records: list[bytes] = []
    take = smallest.add if smallest else records.extend

    async def read(bucket: Bucket, subject: str) -> None:
        cut = len(bucket.binding.prefix) + 5  # partition and dot
        selection = Selection(subjects=(subject,), headers_only=True)
        async with OrderedConsumer(bucket.binding.api, bucket.binding.stream, selection) as consumer:
            async for batch in consumer.batches():
                take(_records(batch, cut, of, begin))

    await asyncio.gather(*(read(bucket, subject) for bucket, subject in table.layout.readings(of)))
    if smallest:
        records = smallest.found
    records.sort()
    return [record for record in _newest(records) if record.endswith(_LIVE)]


def _records(batch: Iterable[tuple[bytes, bytes, bytes, bytes]], cut: int, of: Range, begin: bytes) -> list[bytes]:
    complete = of.complete
    found = []
    for subject, reply, header, _ in batch:
        tokens = subject[cut:]
        if tokens > begin and (complete or of.takes(tokens.partition(b".")[2])):
            mark = _GONE if is_tombstone(header) else _LIVE
            partition = subject[cut - 5 : cut - 1]
            found.append(b"%b\0%b%b%b" % (tokens, partition, delivery(reply)[0].to_bytes(8), mark))
    return found


def _newest(records: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the last of each key's adjacent records: a key written during the listing may appear twice."""
    before = b""
    for record in records:
        if before and record[:_SUBJECT] != before[:_SUBJECT]:
            yield before
        before = record
    if before:
        yield before


class _Smallest:
    """The smallest `most` records of any number that are added.

    Removed entries are left out immediately: none is listed again as live with an older sequence.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.found: list[bytes] = []

    def add(self, records: Iterable[bytes]) -> None:
        living = (record for record in records if record.endswith(_LIVE))
        self.found = heapq.nsmallest(self._most, _newest(sorted([*self.found, *living])))


def _tokens(record: bytes) -> bytes:
    return record[:-_TAIL]


def _keys(table: Table, records: Iterable[bytes]) -> Iterator[tuple[bytes, Key]]:
    life = table.life
    for record, tokens, partition, family, key in _decoded(table, records):
        yield tokens, Key(key, Version(life, partition, _sequence(record) - life), family)


async def _entries(table: Table, records: Sequence[bytes]) -> list[tuple[bytes, Entry | Key]]:
    """Return the entries of records that still live; if a replica is behind the listing, ask the leader."""
    decoded = list(_decoded(table, records))
    places = [f"{partition:04x}.{tokens.decode()}" for _, tokens, partition, *_ in decoded]
    names = [(family, key) for *_, family, key in decoded]
    entries = await table.entries_at(places, names)
    listed = [_sequence(record) for record, *_ in decoded]
    behind = [
        at for at, (entry, sequence) in enumerate(zip(entries, listed, strict=True))
        if entry is None or table.layout.sequence(entry.version) < sequence
    ]  # fmt: skip
    if behind:
        asked = await table.entries_at([places[at] for at in behind], [names[at] for at in behind], leader=True)
        for at, entry in zip(behind, asked, strict=True):
            entries[at] = entry
    return [(tokens, entry) for (_, tokens, *_), entry in zip(decoded, entries, strict=True) if entry is not None]


def _decoded(table: Table, records: Iterable[bytes]) -> Iterator[tuple[bytes, bytes, int, str | None, bytes]]:
    """Yield record, tokens, partition, family and key, without messages that others put among the entries."""
    count = table.config.partitions
    for record in records:
        tokens = record[:-_TAIL]
        family, _, key = tokens.partition(b".")
        try:
            partition, name = read_group(record[-13:-9], family)
            found = read_key(key)
        except ValueError:
            continue
        if partition_of(name, found, count) == partition:
            yield record, tokens, partition, name, found


def _sequence(record: bytes) -> int:
    return int.from_bytes(record[_SUBJECT:-1])
