"""Digests of origins and their replica, compared before any keys are: sides that agree need no join.

A task reads one side and adds up hashes of its live entries in SLOTS sums, by the subjects where they land. Where the
sums of both sides agree, so do the entries; the keys of other slots are read again and joined.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import repeat
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import any_tombstone, is_tombstone
from kvctl.pipeline import worker_connection
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.read.arrow_decoder import Decoder
from kvctl.pipeline.read.batch_reader import KvPartition, KvReader, read_part
from kvctl.pipeline.read.columns import schema_of
from kvctl.pipeline.spark import tasks
from kvctl.pipeline.tables import file_rows
from kvctl.pipeline.tables.file_rows import FileShare
from kvctl.pipeline.tables.stored_table import StoredTable
from kvctl.topology.audit.side import revision_digits
from kvctl.topology.model.subjects import KeyMapping, Transform

if TYPE_CHECKING:
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


@dataclass(frozen=True, slots=True)
class Side:
    """One side, as tasks read it."""

    number: int
    """Number of the origin, or REPLICA."""
    options: SourceOptions
    rules: tuple[Transform, ...] = (Transform(">", ""),)
    """Rules that map its subjects to the replica's."""
    revisions: bool = False
    """True if revisions have to agree as well."""
    table: StoredTable | None = None
    """Table that has its entries, instead of the bucket."""
    prefix: str = ""
    """Prefix of the subjects of a table's keys."""


@dataclass(frozen=True, slots=True)
class Digest:
    """Sums of one side, or of a part of it, by slot."""

    number: int
    living: int
    sums: np.ndarray[Any, np.dtype[np.uint64]]
    """Lanes of SLOTS numbers."""


@dataclass(frozen=True, slots=True)
class SlotComparison:
    """Comparison of the sums."""

    keys: list[int]
    """Number of live keys of each origin that it sends to the replica."""
    slots: list[int]
    """Slots whose sums differ."""


async def compare(engine: Engine, sides: Sequence[tuple[Api, Side]]) -> SlotComparison:
    """Read all sides, the origins in their order. Raises BucketNotFound, and errors of connections and of Spark."""
    items: list[tuple[Side, KvPartition | FileShare]] = []
    for api, side in sides:
        if side.table is not None:
            items += [(replace(side, table=None), share) for share in file_rows.shares(side.table)]
            continue
        _, parts = await KvReader(schema_of(()), side.options).planned(Bucket(api, side.options.bucket))
        items += [(side, part) for part in parts]
    found = await asyncio.to_thread(lambda: tasks.over_items(engine, items, _digest))
    keys = {side.number: 0 for _, side in sides if side.number != REPLICA}
    sums = _no_sums()
    for digest in found:
        if digest.number == REPLICA:
            sums -= digest.sums
        else:
            sums += digest.sums
            keys[digest.number] += digest.living
    return SlotComparison(list(keys.values()), np.flatnonzero(sums.any(axis=0)).tolist())


def slot_of(subject: bytes) -> int:
    """Return the slot of a subject; bytes that are not UTF-8 count as the data source escapes them."""
    if not subject.isascii():
        subject = subject.decode(errors="backslashreplace").encode()
    return crc32(subject) % SLOTS


def _digest(item: tuple[Side, KvPartition | FileShare]) -> Iterator[Digest]:
    """Read one part of a side (runs in a task)."""
    side, part = item
    summing = _Sums(side)
    if isinstance(part, FileShare):
        for batch in file_rows.read_share(part, ("key", "value", "operation")):
            summing.of_rows(batch, side.prefix)
        yield Digest(side.number, summing.living, summing.sums)
        return
    for _ in worker_connection.iterate(partial(read_part, side.options, part, summing)):
        pass
    yield Digest(side.number, summing.living, summing.sums)


class _Sums(Decoder):
    """Decoder that adds up entries instead of returning their rows."""

    def __init__(self, side: Side) -> None:
        self.schema = pa.schema([("value", pa.binary())])
        self.living = 0
        self.sums = _no_sums()
        self._land = KeyMapping(side.rules).land
        self._revisions = side.revisions

    def of_frames(self, frames: Sequence[RawFrame]) -> pa.RecordBatch:
        """Add entries; return no rows."""
        subjects, replies, headers, payloads = zip(*frames, strict=True)
        return self._add(subjects, map(revision_digits, replies), headers, payloads)

    def of_messages(self, messages: Sequence[StoredMessage]) -> pa.RecordBatch:
        """Add entries; return no rows."""
        return self._add(
            [message.subject.encode(errors="surrogateescape") for message in messages],
            (b"%d" % message.sequence for message in messages),
            [message.header for message in messages],
            [message.payload for message in messages],
        )

    def of_rows(self, batch: pa.RecordBatch, prefix: str) -> None:
        """Add the entries of a table."""
        keys, values, operations = (batch[name].to_pylist() for name in ("key", "value", "operation"))
        rows = [(key, value or b"") for key, value, kind in zip(keys, values, operations, strict=True) if kind == "PUT"]
        subjects = [f"{prefix}{key}".encode() for key, _ in rows]
        self._add(subjects, repeat(b""), [b""] * len(rows), [value for _, value in rows])

    def _add(
        self, subjects: Sequence[bytes], revisions: Iterable[bytes], headers: Sequence[bytes], payloads: Sequence[bytes]
    ) -> pa.RecordBatch:
        values = [b" " + payload for payload in payloads]
        if any_tombstone(headers):
            values = [b"" if is_tombstone(header) else value for header, value in zip(headers, values, strict=True)]
        rows = zip(map(self._land, subjects), revisions if self._revisions else repeat(b""), values, strict=False)
        landed = [(subject, revision, value) for subject, revision, value in rows if subject is not None]
        digests = b"".join([blake2b(b"%b %b%b" % row, digest_size=_DIGEST_BYTES).digest() for row in landed])
        places = np.array([slot_of(subject) for subject, _, _ in landed], np.intp)
        lanes = np.frombuffer(digests, _LANE).reshape(-1, _LANES).T
        for total, lane in zip(self.sums, lanes, strict=True):
            np.add.at(total, places, lane)
        self.living += len(landed)
        return pa.RecordBatch.from_pydict({"value": pa.array([], pa.binary())})


def _no_sums() -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.zeros((_LANES, SLOTS), _LANE)
