"""Write rows into files of an export, hashed while they are written (runs in a task).

A task writes files of its own, under random names: those of a task that was killed, or run twice, are in no result and
belong to no export.
"""

from __future__ import annotations

import io
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvctl.documents.checksum import Checksum
from kvctl.pipeline.files import text_rows
from kvctl.pipeline.files.file_rows import COLUMNS, PREFIX

GROUP_BYTES = 16 << 20
"""Bytes of rows that are written together, before encoding: at most a row group of Parquet."""
OPEN_FILES = 64
"""Files of different prefixes that a task writes at a time; more prefixes get several files."""
_NO_PREFIX = "__HIVE_DEFAULT_PARTITION__"
_SPECIAL = re.compile(r"""["#%'*/:=?\\\x00-\x1f\x7f{}[\]^]""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Form of the files: `staging` is their folder, which all tasks share with the driver."""

    staging: str
    bucket: str
    format: str
    by_prefix: bool = False
    history: bool = False
    """True to write deletions, too."""
    cut: int | None = None


@dataclass(slots=True)
class Written:
    """Files of one task, and counts of its rows."""

    files: list[WrittenFile] = field(default_factory=list)
    newer: int = 0
    """Entries above the cut, deletions included."""
    ttls: int = 0
    headers: int = 0


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """Complete file, flushed to disk."""

    name: str
    """Path in the staging folder."""
    rows: int
    bytes: int
    sha256: str


def write(batches: Iterable[pa.RecordBatch], form: Form) -> Iterator[Written]:
    """Write rows of the columns COLUMNS, and yield one result. Raises OSError."""
    Path(form.staging).mkdir(parents=True, exist_ok=True)  # not later: an interrupted export has removed it by then
    writer = _Writer(form)
    for batch in batches:
        writer.add(batch)
    yield writer.finish()


class _Writer:
    def __init__(self, form: Form) -> None:
        self._form = form
        self._written = Written()
        self._open: dict[str, _File] = {}
        self._held: list[pa.RecordBatch] = []
        self._size = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        if self._form.cut is not None:
            self._written.newer += pc.sum(pc.greater(batch["revision"], self._form.cut)).as_py() or 0
        if not self._form.history:
            batch = batch.filter(pc.equal(batch["operation"], "PUT"))
        self._written.ttls += len(batch) - batch["ttl"].null_count
        self._written.headers += len(batch) - batch["headers"].null_count
        self._held.append(batch)
        self._size += batch.nbytes
        if self._size >= GROUP_BYTES:
            self._write()

    def finish(self) -> Written:
        """Complete all files."""
        self._write()
        while self._open:
            self._close(next(iter(self._open)))
        return self._written

    def _write(self) -> None:
        rows = pa.Table.from_batches(self._held).select(list(COLUMNS)) if self._held else None
        self._held, self._size = [], 0
        if rows is None or not rows.num_rows:
            return
        for folder, some in _by_folder(rows) if self._form.by_prefix else [("", rows)]:
            self._file(folder, rows.schema).add(some)

    def _file(self, folder: str, schema: pa.Schema) -> _File:
        file = self._open.pop(folder, None)
        if file is None:
            if len(self._open) >= OPEN_FILES:
                self._close(next(iter(self._open)))  # the least recently used one
            file = _File(self._form, folder, schema)
        self._open[folder] = file
        return file

    def _close(self, folder: str) -> None:
        self._written.files.append(self._open.pop(folder).close())


def _by_folder(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield rows by the folder of their key's first token."""
    parts = (key.partition(".") for key in rows["key"].to_pylist())
    prefixes = pa.array([head or None if dot else None for head, dot, _ in parts], pa.string())
    ordered = pc.sort_indices(prefixes)
    runs = pc.run_end_encode(prefixes.take(ordered))
    rows, start = rows.take(ordered), 0
    for prefix, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield f"{PREFIX}={_NO_PREFIX if prefix is None else _escaped(prefix)}", rows.slice(start, end - start)
        start = end


def _escaped(prefix: str) -> str:
    """Return a value as Hive writes it into the name of a folder."""
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", prefix)


class _File:
    """File that is being written."""

    def __init__(self, form: Form, folder: str, schema: pa.Schema) -> None:
        self._name = str(Path(folder, f"part-{secrets.token_hex(8)}.{form.format}"))
        self._form = form
        self._rows = 0
        path = Path(form.staging, self._name)
        path.parent.mkdir(exist_ok=True)
        self._out = _Hashed(path)
        self._parquet = pq.ParquetWriter(self._out, schema) if form.format == "parquet" else None
        if form.format == "csv":
            self._out.write(text_rows.CSV_HEADING)

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        self._rows += rows.num_rows
        if self._parquet is not None:
            self._parquet.write_table(rows)
        else:
            self._out.write(text_rows.encoded(rows, self._form.format, self._form.bucket))

    def close(self) -> WrittenFile:
        """Finish the file, and flush it to disk."""
        if self._parquet is not None:
            self._parquet.close()
        self._out.flush()
        os.fsync(self._out.fileno())
        self._out.close()
        checksum = self._out.checksum
        return WrittenFile(self._name, self._rows, checksum.size, checksum.sha256)


class _Hashed(io.BufferedWriter):
    """New file, with the checksum of what is written to it."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "xb"))
        self.checksum = Checksum()

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Write and hash the data."""
        self.checksum.add(data)
        return super().write(data)
