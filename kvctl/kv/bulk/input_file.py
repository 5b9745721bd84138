"""Input of a load: its format, its integrity, and its rows from any line on, in batches of rows and of errors."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple, cast

from kvctl.errors import ConflictError, KvctlError, UsageError
from kvctl.kv.bulk import dump_file
from kvctl.kv.bulk.dump_file import DumpFile
from kvctl.kv.bulk.rows import BadRow, PlainRows, Row, row_of
from kvctl.kv.names import check_keys
from kvctl.phrases import quoted

FORMATS = ("ndjson", "csv", "tsv")
_EXTENSIONS = {".csv": "csv", ".tsv": "tsv", ".tab": "tsv"}

BLOCK = 256 << 10
LONGEST_LINE = 128 << 20
"""Bytes: twice the largest message that a server can be configured to accept."""
ROWS = 2000
"""Rows of a table in one batch."""

_scan: Any = getattr(json.JSONDecoder(), "scan_once")  # noqa: B009  # `json.loads` takes twice its time


PARTS = 16
"""Parts of a block of rows that is parsed again, since some rows are not of the simplest form."""
_NOT_PLAIN = (StopIteration, ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError)
"""Errors of rows that are not of the simplest form."""
_ESCAPED = re.compile(r"\\(.?)", re.DOTALL)
_MEANT = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}
BROKEN_DUMP = "broken-dump"


class RowBatch(NamedTuple):
    """Consecutive rows of the input."""

    rows: Sequence[Row]
    bad: list[BadRow]
    line: int
    """Last line of the batch."""
    size: int
    """Bytes of input in the batch."""


@dataclass(frozen=True, slots=True)
class InputLayout:
    """Layout of the input: its format, and the names of the fields for key and value."""

    format: str = "ndjson"
    key: str = "key"
    value: str = "value"
    literal: bool = False
    """Allow non-conforming keys, as in a dump."""


def format_of(name: str) -> str:
    """Return the format for a file's extension; else ndjson."""
    return _EXTENSIONS.get(os.path.splitext(name)[1].lower(), "ndjson")


def batches(file: BinaryIO, layout: InputLayout, *, line: int = 0, end: int | None = None) -> Iterator[RowBatch]:
    """Yield the rows of a file from its position, after `line` lines, up to the offset `end`.

    Raises UsageError for another kind of input: a table without these columns, one JSON document.
    """
    if layout.format == "ndjson":
        return _Ndjson(layout, line).batches(file, end)
    return _Table(layout).batches(file)


class _Ndjson:
    def __init__(self, layout: InputLayout, line: int) -> None:
        self._key, self._value = layout.key, layout.value
        self._meant = bool({"encoding", "operation", "ttl", "headers"} & {layout.key, layout.value})
        """Whether a field with a meaning of its own is the key or the value."""
        self._literal = layout.literal
        self._line = line

    def batches(self, file: BinaryIO, end: int | None) -> Iterator[RowBatch]:
        held: list[bytes] = []
        size, left = 0, None if end is None else end - file.tell()
        first = self._line == 0
        while block := _read(file, left):
            left = None if left is None else left - len(block)
            if first:
                block, first = block.removeprefix(b"\xef\xbb\xbf"), False
            head, newline, tail = block.rpartition(b"\n")
            size += len(block)
            if not newline:
                held.append(block)
                if size > LONGEST_LINE:
                    raise UsageError(f"Line {self._line + 1} is longer than {LONGEST_LINE >> 20} MiB")
                continue
            yield self._batch(b"".join([*held, head]), size)
            held, size = [tail] if tail else [], 0
        if held:
            yield self._batch(b"".join(held), size)

    def _batch(self, data: bytes, size: int) -> RowBatch:
        try:
            texts = data.decode().split("\n")
        except UnicodeDecodeError:
            texts = [_decoded(line) for line in data.split(b"\n")]
        before, self._line = self._line, self._line + len(texts)
        try:
            return RowBatch(PlainRows(before + 1, *self._columns(texts)), [], self._line, size)
        except _NOT_PLAIN:
            rows: list[Row] = []
            bad: list[BadRow] = []
            self._parse_parts(texts, before + 1, rows, bad)
            return RowBatch(rows, bad, self._line, size)

    def _parse_parts(self, texts: list[str], line: int, rows: list[Row], bad: list[BadRow]) -> None:
        """Parse rows, some of which are not of the simplest form, in smaller and smaller parts."""
        step = len(texts) // PARTS + 1
        for at in range(0, len(texts), step):
            part = texts[at : at + step]
            try:
                rows.extend(PlainRows(line + at, *self._columns(part)))
            except _NOT_PLAIN:
                if len(part) > 1:
                    self._parse_parts(part, line + at, rows, bad)
                else:
                    self._look_closer(line + at, part[0], rows, bad)

    def _columns(self, texts: list[str]) -> tuple[list[str], list[bytes]]:
        """Parse rows that are all of the simplest form; raises some error if one is not."""
        found = [_scan(text, 0) for text in texts]
        fields = [row for row, _ in found]
        keys, values = [row[self._key] for row in fields], [row[self._value] for row in fields]
        if [end for _, end in found] != list(map(len, texts)) or set(map(type, keys)) != {str}:
            raise ValueError
        check_keys(keys)
        if set(map(len, fields)) == {2}:
            return keys, [value.encode() for value in values]
        if self._meant or not all(map(_is_plain, fields)):
            raise ValueError
        return keys, [
            base64.b64decode(value, validate=True) if row.get("encoding") == "base64" else value.encode()
            for row, value in zip(fields, values, strict=True)
        ]

    def _look_closer(self, line: int, text: str, rows: list[Row], bad: list[BadRow]) -> None:
        """Parse a row that is not of the simplest form, or report it."""
        if not text.strip():
            return
        try:
            rows.append(row_of(line, self._fields(text, line), literal=self._literal))
        except _NotRows:
            raise
        except UsageError as error:
            bad.append(BadRow(line, error.message))

    def _fields(self, text: str, line: int) -> dict[str, Any]:
        if line == 1 and (text.startswith("[") or text.strip() == "{"):
            raise _NotRows(
                "The input is one JSON document, not one row per line", hint="Convert an array with `jq -c '.[]'`"
            )
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "the line cannot be read"
            raise UsageError(f"The row is not JSON: {reason}") from None
        if not isinstance(fields, dict):
            raise UsageError("The row is not a JSON object")
        sources = {"key": self._key, "value": self._value}
        rest = {name: content for name, content in fields.items() if name not in {*sources, *sources.values()}}
        for name, source in sources.items():
            if source in fields:
                rest[name] = fields[source]
            elif source != name:
                raise UsageError(f"The row has no `{source}`")
        return rest


def _is_plain(fields: dict[str, Any]) -> bool:
    return (
        "ttl" not in fields
        and "headers" not in fields
        and fields.get("operation", "PUT") == "PUT"
        and fields.get("encoding", "utf-8") in ("utf-8", "base64")
    )


class _NotRows(UsageError):
    """Another kind of file, rather than an invalid row."""


def _read(file: BinaryIO, left: int | None) -> bytes:
    wanted = BLOCK if left is None else min(BLOCK, left)
    return file.read1(wanted) if isinstance(file, io.BufferedReader) else file.read(wanted)


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return "\ufffd"  # not JSON


@dataclass
class _TableColumns:
    """Positions of the columns of a table."""

    names: list[str]
    key: int
    value: int
    more: dict[str, int] = field(default_factory=dict)


class _Table:
    def __init__(self, layout: InputLayout) -> None:
        self._layout = layout
        self._columns: _TableColumns | None = None

    def batches(self, file: BinaryIO) -> Iterator[RowBatch]:
        csv.field_size_limit(LONGEST_LINE)
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        try:
            records = _csv(text) if self._layout.format == "csv" else _tsv(text)
            before = 0
            while batch := self._batch(records):
                position = file.tell() if file.seekable() else 0
                yield batch._replace(size=position - before)
                before = position
        finally:
            text.detach()

    def _batch(self, records: Iterator[tuple[int, list[str] | str]]) -> RowBatch | None:
        rows: list[Row] = []
        bad: list[BadRow] = []
        line = 0
        for line, record in records:
            if isinstance(record, str):
                bad.append(BadRow(line, record))
            elif self._columns is None:
                self._columns = self._heading(record)
            elif record:
                try:
                    rows.append(self._row(line, record, self._columns))
                except UsageError as error:
                    bad.append(BadRow(line, error.message))
            if len(rows) + len(bad) >= ROWS:
                break
        return RowBatch(rows, bad, line, 0) if line else None

    def _heading(self, names: list[str]) -> _TableColumns:
        found = []
        for wanted, option in ((self._layout.key, "--key"), (self._layout.value, "--value")):
            if names.count(wanted) != 1:
                problem = "no column" if wanted not in names else "more than one column"
                shown = quoted(names)
                raise UsageError(
                    f"The table has {problem} `{wanted}`", hint=f"Name it with `{option}`; the heading has {shown}"
                )
            found.append(names.index(wanted))
        key, value = found
        more = {name: names.index(name) for name in ("encoding", "ttl") if names.count(name) == 1}
        return _TableColumns(names, key, value, {name: at for name, at in more.items() if at not in found})

    def _row(self, line: int, record: list[str], columns: _TableColumns) -> Row:
        if len(record) != len(columns.names):
            raise UsageError(f"The row has {len(record)} fields, the heading has {len(columns.names)}")
        more = {name: record[at] for name, at in columns.more.items() if record[at]}
        key, value = record[columns.key], record[columns.value]
        if more.get("encoding") == "base64":
            return row_of(line, {"key": key, "value": value, **more})
        row = row_of(line, {"key": key, "value": "", **more})
        return row._replace(value=value.encode(errors="surrogateescape"))


def _csv(text: io.TextIOWrapper) -> Iterator[tuple[int, list[str] | str]]:
    """Yield records with their last line, or a description of the error."""
    reader = csv.reader(text, strict=True)
    while True:
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield reader.line_num, f"The row is not csv: {error}"
        else:
            yield reader.line_num, record


def _tsv(text: io.TextIOWrapper) -> Iterator[tuple[int, list[str] | str]]:
    r"""Yield records with their lines: fields between tabs, with `\t \n \r \\` in them."""
    for number, line in enumerate(_lines(text), 1):
        fields = line.split("\t") if line else []
        if "\\" in line:
            fields = [_ESCAPED.sub(lambda match: _MEANT.get(match[1], match[0]), value) for value in fields]
        yield number, fields


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    """Yield lines that end in LF or CR LF: nothing else ends a line."""
    held: list[str] = []
    length = 0
    while block := text.read(BLOCK):
        first, *others = block.split("\n")
        held.append(first)
        length += len(first)
        if length > LONGEST_LINE:
            raise UsageError(f"A line is longer than {LONGEST_LINE >> 20} MiB")
        if others:
            *whole, last = ["".join(held), *others]
            held, length = [last], len(last)
            for line in whole:
                yield line.removesuffix("\r")
    if any(held):
        yield "".join(held).removesuffix("\r")


@dataclass(frozen=True, slots=True)
class LoadInput:
    """File opened for a load."""

    name: str
    file: BinaryIO
    layout: InputLayout
    dump: DumpFile | None = None
    size: int | None = None
    """Size in bytes; None for a pipe, which is read once."""

    @property
    def repeatable(self) -> bool:
        """True if it can be read twice."""
        return self.size is not None

    def batches(self, after: int = 0) -> Iterator[RowBatch]:
        """Yield its rows after a line. Raises UsageError for another kind of input."""
        if self.repeatable:
            self.file.seek(0)
        if self.layout.format != "ndjson":
            return _after(batches(self.file, self.layout), after)
        after = max(after, 1) if self.dump else after
        for _ in range(after):
            self.file.readline()
        return batches(self.file, self.layout, line=after, end=self.dump.end if self.dump else None)


def open_input(
    name: str,
    file: BinaryIO,
    *,
    format: str | None = None,
    key: str | None = None,
    value: str | None = None,
    twice: bool = False,
    forced: bool = False,
) -> LoadInput:
    """Open the input from a file at its beginning; a dump is verified. With `twice`, a pipe is spooled to be reread.

    Raises ConflictError for a damaged dump, unless `forced`, and for one of a newer version; UsageError.
    """
    wanted = format or format_of(name)
    if wanted not in FORMATS:
        raise UsageError(f"`{wanted}` is not a format of rows", hint=f"Use one of {', '.join(FORMATS)}")
    named = (key or "key", value or "value")
    if named[0] == named[1]:
        raise UsageError(f"`{named[0]}` cannot be both key and value")
    first = b""
    if format in (None, "ndjson"):
        file, first = _first_line(file)
    dump = dump_file.is_dump(first)
    if not file.seekable() and (dump or twice):
        file = _spooled(file)
    size = file.seek(0, io.SEEK_END) if file.seekable() else None
    if not dump:
        return LoadInput(name, file, InputLayout(wanted, *named), None, size)
    if key or value:
        raise UsageError("`--key` and `--value` apply to rows; the input is a dump")
    found = dump_file.inspect(file, name)
    if found.damage and not forced:
        raise ConflictError(
            f"The dump `{name}` is damaged: {found.damage}",
            hint=f"Nothing was written. Load the readable part with `--force {BROKEN_DUMP}`",
        )
    return LoadInput(name, file, InputLayout(literal=True), found, size)


def _first_line(file: BinaryIO) -> tuple[BinaryIO, bytes]:
    """Return a file at its beginning again, and its first line."""
    first = file.readline(1 << 20)
    if file.seekable():
        file.seek(0)
        return file, first
    return cast(BinaryIO, io.BufferedReader(_PrefixedStream(first, file), BLOCK)), first


class _PrefixedStream(io.RawIOBase):
    """Stream whose beginning has already been read."""

    def __init__(self, begin: bytes, rest: BinaryIO) -> None:
        self._begin = begin
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._begin[: len(buffer)]
        if data:
            self._begin = self._begin[len(data) :]
        else:
            read1 = getattr(self._rest, "read1", self._rest.read)
            data = read1(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _spooled(file: BinaryIO) -> BinaryIO:
    """Return a temporary file with the same content."""
    try:
        spool = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process or by its last reader
        shutil.copyfileobj(file, spool, 1 << 20)
        spool.flush()
    except OSError as error:
        raise KvctlError(
            f"The input does not fit into the temporary directory `{tempfile.gettempdir()}`: {error.strerror}",
            hint="Set `TMPDIR` to another directory",
        ) from None
    return cast(BinaryIO, spool)


def _after(batches: Iterator[RowBatch], line: int) -> Iterator[RowBatch]:
    for batch in batches:
        if batch.line > line:
            rows = [row for row in batch.rows if row.line > line]
            yield batch._replace(rows=rows, bad=[bad for bad in batch.bad if bad.line > line])
