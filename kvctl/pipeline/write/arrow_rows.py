"""Rows to write: their columns, and Arrow batches converted to keys, values and headers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvctl.errors import UsageError
from kvctl.kv.bulk.rows import PlainRows, Row, header_of
from kvctl.kv.entry import OPERATION_HEADER, Operation, operation_of
from kvctl.kv.names import check_key, check_keys
from kvctl.pipeline.read.columns import PROBLEM, TYPES
from kvctl.pipeline.write.decision import RowToWrite, WriteMode
from kvctl.suggest import did_you_mean, nearest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_NUMBERS = ("tinyint", "smallint", "int", "bigint")
WRITTEN = {
    "key": ("string",),
    "value": ("binary", "string"),
    "revision": _NUMBERS,
    "operation": ("string",),
    "headers": ("map<string,string>",),
    "ttl": ("double", "float", *_NUMBERS),
}
"""Columns that are used, and their types; text is written as UTF-8, a ttl is in seconds."""
_SPECIAL = ("operation", "headers", "ttl")


def check_columns(schema: StructType, mode: WriteMode) -> None:
    """Raises UsageError for unknown, mistyped or missing columns.

    Other columns of a read (created, bucket, origin; revision except in mode update) are ignored.
    """
    columns = [column for column in schema.fields if column.name != PROBLEM]
    names = [column.name for column in columns]
    for column in columns:
        _check_column(column.name, column.dataType.simpleString())
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UsageError(f"Column `{twice}` occurs twice")
    needed = ["key", *(["value"] if "operation" not in names else [])]
    needed += ["revision"] if mode is WriteMode.UPDATE else []
    for name in needed:
        if name not in names:
            near = nearest(name, names)
            guess = f"Rename `{near}`? " if near else ""
            raise UsageError(f"Column `{name}` is missing", hint=f"{guess}{_WANTED}")


def _check_column(name: str, kind: str) -> None:
    if name not in TYPES:
        raise UsageError(f"Unknown column `{name}`", hint=did_you_mean(name, TYPES, _WANTED))
    wanted = WRITTEN.get(name, (kind,))
    if kind not in wanted:
        raise UsageError(
            f"Column `{name}` has type {kind}, not {' or '.join(wanted[:2])}", hint=f"Cast it to {wanted[0]}"
        )


_WANTED = "Columns are key, value and optionally operation, headers, ttl; in mode update also revision"


@dataclass(slots=True)
class RowChunk:
    """One Arrow batch as parallel lists. Rows of a partition count from 0."""

    batch: pa.RecordBatch
    first: int
    keys: list[str]
    values: list[bytes]
    headers: list[bytes] | None
    """Header block of each row without an id, if some row has one."""
    expected: list[int] | None
    """Revisions that rows depend on."""
    bad: dict[int, str] = field(default_factory=dict)
    """Rows of this batch that cannot be written, with the reason; counted within the batch."""
    largest: int = 0
    """Bytes of the largest value."""
    floor: int = 0
    """Last revision acknowledged before any of these rows was sent."""

    @property
    def end(self) -> int:
        """Number of the row after the last."""
        return self.first + len(self.keys)

    def places(self) -> Iterator[int]:
        """Yield the rows that can be written, as counted within the batch."""
        return (at for at in range(len(self.keys)) if at not in self.bad)

    def rows(self) -> Sequence[Row]:
        """Return the rows that can be written; those of keys and values only cost half the time."""
        if self.headers or self.bad:
            return [self.asked(at).row for at in self.places()]
        return PlainRows(self.first, self.keys, self.values)

    def header(self, at: int) -> bytes:
        """Return the header block of a row, without an id; empty for none."""
        return self.headers[at] if self.headers else b""

    def asked(self, at: int) -> RowToWrite:
        """Return the row with the revision it depends on."""
        header = self.header(at)
        row = Row(self.first + at, self.keys[at], self.values[at], header, _operation_in(header))
        return RowToWrite(row, self.expected[at] if self.expected else None)


def chunk_of(batch: pa.RecordBatch, first: int, mode: WriteMode) -> RowChunk:
    """Convert a batch, which begins with this row of the partition."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    problems = columns[PROBLEM].to_pylist() if PROBLEM in columns else ()
    if problems:
        batch = batch.drop_columns([PROBLEM])
    keys: list[str | None] = columns["key"].to_pylist()
    chunk = RowChunk(
        batch, first, ["" if key is None else key for key in keys], _values(columns, len(keys)), None, None
    )
    chunk.bad = {at: problem for at, problem in enumerate(problems) if problem is not None}
    chunk.largest = max(map(len, chunk.values), default=0)
    _check_keys(chunk, keys)
    if any(name in columns for name in _SPECIAL):
        _add_headers(chunk, columns)
    _check_values(chunk, columns)
    if mode is WriteMode.UPDATE:
        _add_expected(chunk, columns["revision"].to_pylist())
    elif mode is WriteMode.CREATE:
        for at in list(chunk.places()):
            if _operation_in(chunk.header(at)) is not Operation.PUT:
                chunk.bad[at] = "Mode create does not allow deletions"
    return chunk


def _values(columns: dict[str, Any], count: int) -> list[bytes]:
    if "value" not in columns:
        return [b""] * count
    values: list[bytes] = columns["value"].cast("large_binary").fill_null(b"").to_pylist()
    return values


def _check_keys(chunk: RowChunk, keys: Sequence[str | None]) -> None:
    if None not in keys:
        try:
            check_keys(chunk.keys)
        except UsageError:
            pass
        else:
            return
    for at, key in enumerate(keys):
        try:
            if key is None:
                raise UsageError("The key is null")
            check_key(key)
        except UsageError as error:
            chunk.bad.setdefault(at, error.message)


def _check_values(chunk: RowChunk, columns: dict[str, Any]) -> None:
    """Check the values: a put needs one, a deletion does not."""
    if "value" in columns and not columns["value"].null_count:
        return
    missing = columns["value"].is_null().to_pylist() if "value" in columns else [True] * len(chunk.keys)
    for at, absent in enumerate(missing):
        if absent and _operation_in(chunk.header(at)) is Operation.PUT:
            chunk.bad.setdefault(at, "The value is null, and the row does not delete its key")


def _add_headers(chunk: RowChunk, columns: dict[str, Any]) -> None:
    nothing = [None] * len(chunk.keys)
    lists = [columns[name].to_pylist() if name in columns else nothing for name in _SPECIAL]
    chunk.headers = [b""] * len(chunk.keys)
    for at, (operation, headers, ttl) in enumerate(zip(*lists, strict=True)):
        if headers or ttl is not None or operation not in (None, "PUT"):
            try:
                chunk.headers[at] = _header(chunk.keys[at], operation, headers, ttl)
            except UsageError as error:
                chunk.bad.setdefault(at, error.message)


def _header(key: str, operation: str | None, headers: list[tuple[str, str]] | None, ttl: float | None) -> bytes:
    if operation is not None and operation not in Operation.__members__:
        raise UsageError(f"`{operation}` is not an operation: use PUT, DEL or PURGE")
    named, asked = dict(headers or ()), Operation(operation or "PUT")
    header = header_of(key, asked, {"headers": named, "ttl": ttl})
    stored = _operation_in(header)
    # Earlier exports have DEL for markers of expired keys, which a reason tells.
    if stored is not asked and (asked is Operation.PUT or OPERATION_HEADER.decode() in named):
        raise UsageError(f"The operation is {asked}, but its headers make it a {stored}")
    return header


def _add_expected(chunk: RowChunk, revisions: list[int | None]) -> None:
    chunk.expected = [0 if revision is None else revision for revision in revisions]
    for at, revision in enumerate(revisions):
        if revision is None or revision < 0:
            chunk.bad.setdefault(at, "The revision is null" if revision is None else f"Invalid revision {revision}")


def _operation_in(header: bytes) -> Operation:
    return operation_of(header)[0] if header else Operation.PUT
