"""Input of a load: its format, its integrity, and its rows from any line on."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from kvctl.errors import ConflictError, KvctlError, UsageError
from kvctl.kv.dump import dump_file
from kvctl.kv.dump.dump_file import DumpFile
from kvctl.kv.load import row_reader
from kvctl.kv.load.row_reader import BLOCK, Batch, Layout

BROKEN_DUMP = "broken-dump"


@dataclass(frozen=True, slots=True)
class LoadInput:
    """File opened for a load."""

    name: str
    file: BinaryIO
    layout: Layout
    dump: DumpFile | None = None
    size: int | None = None
    """Size in bytes; None for a pipe, which is read once."""

    @property
    def repeatable(self) -> bool:
        """True if it can be read twice."""
        return self.size is not None

    def batches(self, after: int = 0) -> Iterator[Batch]:
        """Yield its rows after a line. Raises UsageError for another kind of input."""
        if self.repeatable:
            self.file.seek(0)
        if self.layout.format != "ndjson":
            return _after(row_reader.batches(self.file, self.layout), after)
        after = max(after, 1) if self.dump else after
        for _ in range(after):
            self.file.readline()
        return row_reader.batches(self.file, self.layout, line=after, end=self.dump.end if self.dump else None)


def open_input(
    name: str, file: BinaryIO, *, format: str | None = None, key: str | None = None, value: str | None = None,
    twice: bool = False, forced: bool = False,
) -> LoadInput:  # fmt: skip
    """Open the input from a file at its beginning; a dump is verified. With `twice`, a pipe is spooled to be reread.

    Raises ConflictError for a damaged dump, unless `forced`, and for one of a newer version; UsageError.
    """
    wanted = format or row_reader.format_of(name)
    if wanted not in row_reader.FORMATS:
        raise UsageError(f"`{wanted}` is not a format of rows", hint=f"Use one of {', '.join(row_reader.FORMATS)}")
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
        return LoadInput(name, file, Layout(wanted, *named), None, size)
    if key or value:
        raise UsageError("`--key` and `--value` apply to rows; the input is a dump")
    found = dump_file.inspect(file, name)
    if found.damage and not forced:
        raise ConflictError(
            f"The dump `{name}` is damaged: {found.damage}",
            hint=f"Nothing was written. Load the readable part with `--force {BROKEN_DUMP}`",
        )
    return LoadInput(name, file, Layout(literal=True), found, size)


def _first_line(file: BinaryIO) -> tuple[BinaryIO, bytes]:
    """Return a file at its beginning again, and its first line."""
    first = file.readline(1 << 20)
    if file.seekable():
        file.seek(0)
        return file, first
    return cast(BinaryIO, io.BufferedReader(_Prefixed(first, file), BLOCK)), first


class _Prefixed(io.RawIOBase):
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


def _after(batches: Iterator[Batch], line: int) -> Iterator[Batch]:
    for batch in batches:
        if batch.line > line:
            rows = [row for row in batch.rows if row.line > line]
            yield batch._replace(rows=rows, bad=[bad for bad in batch.bad if bad.line > line])
