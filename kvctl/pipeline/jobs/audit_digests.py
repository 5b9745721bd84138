"""Comparison of origins with their replica in two passes of tasks: of digests, then of the keys where these differ.

In the first pass, a task adds up hashes of a side's live entries in SLOTS sums, by the subjects where they land. Where
the sums of both sides agree, so do the entries. The second pass reads the keys of the other slots again, of both sides.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from kvctl.errors import KvctlError
from kvctl.kv.bucket import Bucket
from kvctl.pipeline import worker_connection
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.read.arrow_decoder import Decoder
from kvctl.pipeline.read.batch_reader import KvPartition, KvReader, read_part
from kvctl.pipeline.read.columns import schema_of
from kvctl.pipeline.spark import tasks
from kvctl.pipeline.spark.tasks import TaskRows
from kvctl.pipeline.tables import file_rows
from kvctl.pipeline.tables.file_rows import FileShare
from kvctl.pipeline.tables.stored_table import StoredTable
from kvctl.topology.audit.audit import FirstComparison
from kvctl.topology.audit.side import Messages, revision_digits
from kvctl.topology.audit.verdict import mark, source_of
from kvctl.topology.model.subjects import KeyMapping, Lander, Transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from kvctl.jetstream.api import Api
    from kvctl.jetstream.direct_get import StoredMessage
    from kvctl.pipeline.spark.engine import Engine
    from kvctl.wire import RawFrame

REPLICA = -1
"""Number of the replica's side."""
SLOTS = 1 << 16
"""Number of sums of a side: of a million keys, 15 share one."""
_LANE = np.dtype("<u8")
_LANES = 2
"""Numbers of a digest, each added up modulo 2**64."""
_DIGEST_BYTES = _LANES * _LANE.itemsize

_ROW = pa.struct(
    {"subject": pa.binary(), "number": pa.int32(), "mark": pa.binary(), "brought": pa.bool_(), "name": pa.binary()}
)
_OF_SUBJECT = (
    "count_if(number < 0) as ours",
    "count_if(number >= 0) as theirs",
    "min(mark) as least",
    "max(mark) as most",
    "max(brought) as brought",
    "max(number) as number",
    "max_by(name, number) as name",
)
"""What both sides have of a subject; the mark of a deletion is empty."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side, as tasks read it."""

    options: SourceOptions
    stream: str
    prefix: str
    """Prefix of its keys' subjects."""
    number: int = REPLICA
    """Number of the origin, or REPLICA."""
    rules: tuple[Transform, ...] = (Transform(">", ""),)
    """Rules that map its subjects to the replica's."""
    revisions: bool = False
    """True if revisions have to agree as well."""
    origins: tuple[str, ...] | None = None
    """Streams of the entries that are not the replica's own; None if it has none of its own."""
    escaped: bool = False
    """True to escape bytes of subjects that are not UTF-8, as the keys of a table on the other side are."""
    table: StoredTable | None = None
    """Table that has its entries, instead of the bucket."""

    def brought(self, header: bytes) -> bool:
        """Return whether an entry with the header is not the replica's own."""
        source = source_of(header)
        return self.origins is None or (source is not None and source.stream in self.origins)


_Item = tuple[Side, KvPartition | FileShare]
"""Part of a side that a task reads."""


@dataclass(frozen=True, slots=True)
class Digest:
    """Sums of one side, or of a part of it, by slot."""

    number: int
    living: int
    sums: np.ndarray[Any, np.dtype[np.uint64]]
    """Lanes of SLOTS numbers."""


async def compare(engine: Engine, sides: Sequence[tuple[Api, Side]]) -> FirstComparison:
    """Compare the replica, the first side, with its origins.

    Raises BucketNotFound, and errors of connections, of Spark and of a full disk.
    """
    items = await _items(sides)
    keys = {side.number: 0 for _, side in sides if side.number != REPLICA}
    sums = _no_sums()
    for digest in await asyncio.to_thread(lambda: tasks.over_items(engine, items, _summed)):
        if digest.number == REPLICA:
            sums -= digest.sums
        else:
            sums += digest.sums
            keys[digest.number] += digest.living
    slots = np.flatnonzero(sums.any(axis=0)).tolist()
    if not slots:
        return FirstComparison((), 0, lambda *_: None, list(keys.values()))
    found, own = await differing(engine, sides, slots), Counter[bool]()
    suspects = await asyncio.to_thread(lambda: Suspects(_not_own(found.toLocalIterator(), own)))
    return FirstComparison(suspects, own[True], suspects.name, list(keys.values()))


async def differing(engine: Engine, sides: Sequence[tuple[Api, Side]], slots: Sequence[int]) -> DataFrame:
    """Return the subjects in these slots whose entries seem to differ between the sides.

    `number` and `name` are an origin, and the subject's name there if it cannot be derived. `own` is true if it comes
    from no origin.
    """
    from pyspark.sql.functions import expr
    from pyspark.sql.pandas.types import from_arrow_schema

    deletions = [(api, replace(side, options=replace(side.options, include_deleted=True))) for api, side in sides]
    rows = TaskRows(await _items(deletions), partial(_rows, frozenset(slots)), from_arrow_schema(pa.schema(_ROW)))
    found = rows.frame(engine).groupBy("subject").agg(*map(expr, _OF_SUBJECT))
    left = found.where("octet_length(most) > 0 and not (ours = 1 and theirs = 1 and least = most)")
    return left.selectExpr("subject", "number", "name", "ours = 1 and theirs = 0 and not brought as own")


def _not_own(rows: Iterable[Row], own: Counter[bool]) -> Iterator[tuple[bytes, int, bytes | None]]:
    """Yield those that are not the replica's own; count both."""
    for row in rows:
        own[row.own] += 1
        if not row.own:
            yield row.subject, row.number, row.name


_HINT = "Set `TMPDIR` to another directory for temporary files"


class Suspects:
    """Subjects in order, some with their name at an origin. All methods raise KvctlError if the disk is full."""

    def __init__(self, rows: Iterable[tuple[bytes, int, bytes | None]]) -> None:
        """Store rows of a subject, the number of an origin and the subject's name there, each subject once."""
        # A database without a name is a private temporary file. It is filled in one thread and read in another.
        self._base = sqlite3.connect("", check_same_thread=False)
        try:
            self._base.execute("create table suspects (subject blob primary key, number int, name blob) without rowid")
            self._base.executemany("insert into suspects values (?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise KvctlError(f"Could not store the keys that seem to differ: {error}", hint=_HINT) from None

    def __iter__(self) -> Iterator[str]:
        for (subject,) in self._base.execute("select subject from suspects order by subject"):
            yield subject.decode("utf-8", "surrogateescape")

    def name(self, number: int, landed: str) -> str | None:
        """Return the subject's name at an origin, if stored."""
        query = "select name from suspects where subject = ? and number = ?"
        found = self._base.execute(query, (landed.encode("utf-8", "surrogateescape"), number)).fetchone()
        return found[0].decode("utf-8", "surrogateescape") if found and found[0] is not None else None


async def _items(sides: Sequence[tuple[Api, Side]]) -> list[_Item]:
    items: list[_Item] = []
    for api, side in sides:
        if side.table is not None:
            items += [(replace(side, table=None), share) for share in file_rows.shares(side.table)]
            continue
        _, parts = await KvReader(schema_of(()), side.options).planned(Bucket(api, side.options.bucket))
        items += [(side, part) for part in parts]
    return items


def slot_of(subject: bytes) -> int:
    """Return the slot of a subject."""
    return crc32(subject) % SLOTS


def _summed(item: _Item) -> Iterator[Digest]:
    """Add up the live entries of one part of a side (runs in a task)."""
    sums = _Sums(item[0])
    for _ in sums.read(item[1]):
        pass
    yield Digest(item[0].number, sums.living, sums.sums)


def _rows(slots: frozenset[int], item: _Item) -> Iterator[pa.RecordBatch]:
    """Yield the entries of one part of a side that land in the slots (runs in a task)."""
    return _SlotRows(item[0], slots).read(item[1])


class _LandedEntries(Decoder):
    """Decoder of a side's entries, by the subjects where they land."""

    def __init__(self, side: Side) -> None:
        self.schema = pa.schema([("value", pa.binary())])
        self.side = side
        self.rules = KeyMapping(side.rules)
        self.land: Lander = partial(_escaped, self.rules.land) if side.escaped else self.rules.land

    def read(self, part: KvPartition | FileShare) -> Iterator[pa.RecordBatch]:
        """Read a part of the side, and yield what is made of its entries."""
        if isinstance(part, FileShare):
            return map(self._of_table, file_rows.read_share(part, ("key", "value", "operation")))
        return worker_connection.iterate(partial(read_part, self.side.options, part, self))

    def of_frames(self, frames: Sequence[RawFrame]) -> pa.RecordBatch:
        """Take entries of a consumer."""
        return self.take([(subject, revision_digits(reply), header, value) for subject, reply, header, value in frames])

    def of_messages(self, messages: Sequence[StoredMessage]) -> pa.RecordBatch:
        """Take entries of direct gets."""
        return self.take(
            [
                (_bytes(message.subject), b"%d" % message.sequence, message.header, message.payload)
                for message in messages
            ]
        )

    def _of_table(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = zip(*(batch[name].to_pylist() for name in ("key", "value", "operation")), strict=True)
        prefix = self.side.prefix
        return self.take([(_bytes(prefix + key), b"", b"", value or b"") for key, value, kind in rows if kind == "PUT"])

    def take(self, entries: Messages) -> pa.RecordBatch:
        """Return what is made of entries."""
        raise NotImplementedError


class _Sums(_LandedEntries):
    """Sums of the live entries."""

    def __init__(self, side: Side) -> None:
        super().__init__(side)
        self.living = 0
        self.sums = _no_sums()

    def take(self, entries: Messages) -> pa.RecordBatch:
        """Add entries; return no rows."""
        land, exact = self.land, self.side.revisions
        landed = [
            (name, revision if exact else b"", value)
            for subject, revision, _, value in entries
            if (name := land(subject)) is not None
        ]
        digests = b"".join([blake2b(b"%b %b %b" % row, digest_size=_DIGEST_BYTES).digest() for row in landed])
        places = np.array([slot_of(name) for name, _, _ in landed], np.intp)
        lanes = np.frombuffer(digests, _LANE).reshape(-1, _LANES).T
        for total, lane in zip(self.sums, lanes, strict=True):
            np.add.at(total, places, lane)
        self.living += len(landed)
        return pa.RecordBatch.from_pydict({"value": pa.array([], pa.binary())})


class _SlotRows(_LandedEntries):
    """Rows of the entries that land in some slots, deletions included."""

    def __init__(self, side: Side, slots: frozenset[int]) -> None:
        super().__init__(side)
        self._slots = slots

    def take(self, entries: Messages) -> pa.RecordBatch:
        """Return the rows of entries."""
        side, lossy = self.side, self.rules.lossy
        rows = [
            (
                landed,
                side.number,
                mark(header, value, revision if side.revisions else b""),
                side.brought(header),
                subject if lossy else None,
            )
            for subject, revision, header, value in entries
            if (landed := self.land(subject)) is not None and slot_of(landed) in self._slots
        ]
        return pa.RecordBatch.from_struct_array(pa.array(rows, _ROW))


def _escaped(land: Lander, subject: bytes) -> bytes | None:
    landed = land(subject)
    return landed if landed is None else landed.decode(errors="backslashreplace").encode()


def _bytes(subject: str) -> bytes:
    return subject.encode(errors="surrogateescape")


def _no_sums() -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.zeros((_LANES, SLOTS), _LANE)
