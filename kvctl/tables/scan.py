"""Scan of a table in the order of its keys, page by page (PDP-39's key and entry iterators).

Servers do not sort: the range is read once, with its values, and sorted here, in bounded memory. With a limit only the
names are read, the first ones are kept, and their entries are fetched. A key that lives through the scan appears once;
others may or may not, and values may be newer than the beginning of the scan.
"""

from __future__ import annotations

import asyncio
import marshal
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self

from kvctl.jetstream.consumers.message import sequence_token
from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import any_tombstone, is_tombstone
from kvctl.tables.changes import Entry, TableEntry, Version
from kvctl.tables.keys import partition_of, read_group, read_key
from kvctl.tables.ranges import Range, continuation, resume
from kvctl.wire import RawFrame

if TYPE_CHECKING:
    from kvctl.tables.table import Table

PAGE_ENTRIES = 1000
"""Default number of entries per page."""
READ_ENTRIES = 4000
"""Entries that are fetched at once."""
PRUNE_RECORDS = 10_000
"""Records beyond the limit that are held before the largest are dropped."""

RUN_BYTES = 64 << 20
"""Bytes of records that are held in memory."""
BLOCK_RECORDS, BLOCK_BYTES = 4000, 512 << 10
"""Records, and bytes of them, that are written and read together: one block of each run is held in memory."""
RECORD_OVERHEAD = 64
"""Bytes that a record takes in memory beside its own."""

_END = b"\0"
"""End of a record's tokens, below every character of a token.

A record is the family and key tokens, this, the partition token, the sequence, whether the entry lives, and its value:
it sorts as the key, and the newest of a key last.
"""
_ABOVE_END = b"\1"
_GONE, _LIVE = b"\0", b"\1"

TokenEntry = tuple[bytes, Entry]
"""Family and key tokens of an entry, and the entry."""


class TablePage(NamedTuple):
    """Some entries, or keys, in order."""

    entries: Sequence[Entry]
    next: str | None
    """Token that resumes after them; None for the last page."""


async def pages(
    table: Table[Any, Any],
    of: Range,
    *,
    values: bool = True,
    size: int = PAGE_ENTRIES,
    after: str | None = None,
    limit: int | None = None,
) -> AsyncGenerator[TablePage, None]:
    """Yield the entries of a range (without `values` their keys), `size` per page, each full except the last.

    `after` is the token of a page of any scan of the same range; `limit` is the maximum number of entries. What does
    not fit into 64 MiB of memory is sorted in a temporary file; with a limit, about 100 bytes are held for each key up
    to it. Raises UsageError for a token of another scan.
    """
    await table.layout.check_life()
    begin = resume(after, table.name, table.life, of) if after is not None else b""
    with SortedRuns() as runs:
        listing = _Listing(runs, of, begin, limit)
        written = table.layout.written
        await _list(table, of, listing, values=values and limit is None)
        found: list[TokenEntry] = []
        left = limit
        for some in _decoded(table, runs.blocks(), values=values, most=size if limit is None else READ_ENTRIES):
            if values:
                some = await (_current(table, some, written) if limit is None else _fetched(table, some))
            found += some
            while len(found) > (wanted := size if left is None else min(size, left)):
                shown, found = found[:wanted], found[wanted:]
                yield TablePage([entry for _, entry in shown], continuation(table.name, table.life, of, shown[-1][0]))
                left = None if left is None else left - wanted
                if left == 0:
                    return
        more = None if listing.cut is None else continuation(table.name, table.life, of, listing.cut)
        yield TablePage([entry for _, entry in found], more)


async def _list(table: Table[Any, Any], of: Range, listing: _Listing, *, values: bool) -> None:
    """Read the range once, from all its streams."""

    async def read(bucket: Bucket, subject: str) -> None:
        cut = len(bucket.binding.prefix) + 5  # partition and dot
        selection = Selection(subjects=(subject,), headers_only=not values)
        async with OrderedConsumer(bucket.binding.api, bucket.binding.stream, selection) as consumer:
            async for batch in consumer.batches():
                if batch:
                    listing.add(batch, cut)

    await asyncio.gather(*(read(bucket, subject) for bucket, subject in table.layout.readings(of)))
    listing.end()


class _Listing:
    """Records of a range after `begin`, in the order of their arrival; with a limit the first ones, and one more."""

    def __init__(self, runs: SortedRuns, of: Range, begin: bytes, limit: int | None) -> None:
        self._runs = runs
        self._takes = None if of.complete else of.bounds.take
        self._begin = begin
        self._limit = limit
        self._first: list[bytes] = []
        self._last = b""
        """Tokens above which nothing is wanted, if known."""
        self.cut: bytes | None = None
        """Tokens of the entry after the last one within the limit, if any follows."""

    def add(self, batch: Sequence[RawFrame], cut: int) -> None:
        """Add messages; `cut` is the length of the subject before the tokens."""
        begin, last, takes = self._begin, self._last, self._takes
        at = sequence_token(batch[0][1])
        marks = any_tombstone([header for _, _, header, _ in batch])
        records = []
        for subject, reply, header, value in batch:
            tokens = subject[cut:]
            if tokens <= begin or (last and tokens > last) or _END in tokens:
                continue
            if takes is not None and not takes(tokens.partition(b".")[2]):
                continue
            gone = marks and is_tombstone(header)
            if gone and self._limit is not None:
                continue  # so that none is listed again as live with an older sequence
            sequence = int(reply.split(b".", at + 1)[at]).to_bytes(8)
            mark = _GONE if gone else _LIVE
            records.append(b"%b\0%b%b%b%b" % (tokens, subject[cut - 5 : cut - 1], sequence, mark, value))
        if self._limit is None:
            self._runs.add(records)
            return
        self._first += records
        if len(self._first) > self._limit + PRUNE_RECORDS:
            self._prune(self._limit + 1)

    def end(self) -> None:
        """Pass what is left on to be sorted."""
        if self._limit is not None:
            self._prune(self._limit + 1)
            self.cut = self._last or None
            self._runs.add(self._first)

    def _prune(self, most: int) -> None:
        """Keep the newest record of each key and partition (others may put some into wrong ones), for `most` keys."""
        self._first.sort()
        self._first = list({record[: record.index(_END) + 5]: record for record in self._first}.values())
        names = list(dict.fromkeys(record.partition(_END)[0] for record in self._first))
        if len(names) >= most:
            self._last = names[most - 1]
            del self._first[bisect_left(self._first, self._last + _ABOVE_END) :]


def _decoded(
    table: Table[Any, Any], blocks: Iterable[list[bytes]], *, values: bool, most: int
) -> Iterator[list[TokenEntry]]:
    """Yield the newest of each key's records that live, without messages that others put among the entries."""
    life, count, make = table.life, table.config.partitions, tuple.__new__
    newest: TokenEntry | None = None
    at = b""
    found: list[TokenEntry] = []
    for block in blocks:
        for record in block:
            tokens, _, rest = record.partition(_END)
            group, _, name = tokens.partition(b".")
            try:
                partition, family = read_group(rest[:4], group)
                key = read_key(name)
            except ValueError:
                continue
            if partition_of(family, key, count) != partition:
                continue
            if tokens != at and newest is not None:
                found.append(newest)
                if len(found) == most:
                    yield found
                    found = []
            at = tokens
            if rest[12:13] == _GONE:
                newest = None
                continue
            version = make(Version, (life, partition, int.from_bytes(rest[4:12]) - life))
            newest = tokens, make(TableEntry, (key, rest[13:] if values else b"", version, family))
    yield [*found, newest] if newest is not None else found


async def _current(table: Table[Any, Any], found: list[TokenEntry], written: int) -> list[TokenEntry]:
    """Return entries as this session has written them since, if it has written anything after `written`."""
    if table.layout.written == written:
        return found
    places = [table.layout.place(entry.family, entry.key) for _, entry in found]
    stale = [
        at
        for at, (place, (_, entry)) in enumerate(zip(places, found, strict=True))
        if table.layout.bucket(place).own.stale(place, table.layout.sequence(entry.version))
    ]
    again = await table.entries_at([places[at] for at in stale])
    fresh = dict(zip(stale, again, strict=True))
    current = ((tokens, fresh.get(at, entry)) for at, (tokens, entry) in enumerate(found))
    return [(tokens, entry) for tokens, entry in current if entry is not None]


async def _fetched(table: Table[Any, Any], found: list[TokenEntry]) -> list[TokenEntry]:
    """Return the entries that still live, with their values, none older than listed."""
    places = [table.layout.place(entry.family, entry.key) for _, entry in found]
    listed = {place: table.layout.sequence(entry.version) for place, (_, entry) in zip(places, found, strict=True)}
    names = [(entry.family, entry.key) for _, entry in found]
    entries = await table.entries_at(places, names, at_least=listed)
    return [(tokens, entry) for (tokens, _), entry in zip(found, entries, strict=True) if entry is not None]


class SortedRuns:
    """Records in the order of their bytes; a context manager that removes its file."""

    def __init__(self) -> None:
        self._records: list[bytes] = []
        self._size = 0
        self._runs: list[list[int]] = []
        """Positions of the blocks of each run."""
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, records: list[bytes]) -> None:
        """Add records; if they do not fit into memory, write a sorted run of all so far."""
        self._records += records
        self._size += sum(map(len, records)) + len(records) * RECORD_OVERHEAD
        if self._size > RUN_BYTES:
            self._spill()

    def blocks(self) -> Iterator[list[bytes]]:
        """Return all records in order, some at a time; called once, after the last `add`."""
        self._records.sort()
        runs = [self._read(positions) for positions in self._runs]
        return merged([*runs, _blocks(self._records)])

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="kvctl-")  # noqa: SIM115 - closed by `__exit__`
        self._records.sort()
        positions = []
        for block in _blocks(self._records):
            positions.append(self._file.tell())
            marshal.dump(block, self._file)
        self._runs.append(positions)
        self._records, self._size = [], 0

    def _read(self, positions: list[int]) -> Iterator[list[bytes]]:
        assert self._file is not None
        for position in positions:
            self._file.seek(position)
            yield marshal.load(self._file)


def merged(runs: Iterable[Iterator[list[bytes]]]) -> Iterator[list[bytes]]:
    """Merge sorted runs of sorted blocks. Each step takes what is below the first end of a block, and sorts that."""
    heads = [(run, block) for run in runs for block in (next(run, []),) if block]
    while heads:
        bound = min(block[-1] for _, block in heads)
        taken: list[bytes] = []
        left = []
        for run, block in heads:
            cut = bisect_right(block, bound)
            taken += block[:cut]
            block = block[cut:] or next(run, [])
            if block:
                left.append((run, block))
        heads = left
        taken.sort()
        yield taken


def _blocks(records: list[bytes]) -> Iterator[list[bytes]]:
    start = size = 0
    for at, record in enumerate(records, 1):
        size += len(record)
        if size >= BLOCK_BYTES or at - start == BLOCK_RECORDS:
            yield records[start:at]
            start, size = at, 0
    if start < len(records):
        yield records[start:]
