"""Write rows into Parquet files of an export, hashed while they are written (runs in a task).

A task writes files of its own, under random names: those of a task that was killed, or run twice, are in no result and
belong to no export.
"""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvctl.documents.checksum import Checksum
from kvctl.pipeline.files.file_rows import COLUMNS

GROUP_BYTES = 16 << 20
"""Bytes of rows that are written together, before encoding: at most a row group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportForm:
    """Rows of the files: `staging` is their folder, which all tasks share with the driver."""

    staging: str
    history: bool = False
    """True to write deletions, too."""
    cut: int | None = None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """Complete file, flushed to disk."""

    name: str
    """Name in the staging folder."""
    rows: int
    bytes: int
    sha256: str


@dataclass(slots=True)
class WrittenRows:
    """File of one task, if it had rows, and counts of these."""

    file: WrittenFile | None = None
    newer: int = 0
    """Entries above the cut, deletions included."""
    ttls: int = 0
    headers: int = 0


def write(batches: Iterable[pa.RecordBatch], form: ExportForm) -> Iterator[WrittenRows]:
    """Write rows of the columns COLUMNS, and yield one result. Raises OSError."""
    Path(form.staging).mkdir(parents=True, exist_ok=True)  # not later: an interrupted export has removed it by then
    writer = _Writer(form)
    for batch in batches:
        writer.add(batch)
    yield writer.finish()


class _Writer:
    def __init__(self, form: ExportForm) -> None:
        self._form = form
        self._written = WrittenRows()
        self._file: _ExportFile | None = None
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

    def finish(self) -> WrittenRows:
        """Complete the file."""
        self._write()
        self._written.file = self._file.close() if self._file else None
        return self._written

    def _write(self) -> None:
        rows = pa.Table.from_batches(self._held).select(list(COLUMNS)) if self._held else None
        self._held, self._size = [], 0
        if rows is not None and rows.num_rows:
            self._file = self._file or _ExportFile(self._form.staging, rows.schema)
            self._file.add(rows)


class _ExportFile:
    """File that is being written."""

    def __init__(self, staging: str, schema: pa.Schema) -> None:
        self._name = f"part-{secrets.token_hex(8)}.parquet"
        self._rows = 0
        self._out = _HashedFile(Path(staging, self._name))
        self._parquet = pq.ParquetWriter(self._out, schema)

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        self._rows += rows.num_rows
        self._parquet.write_table(rows)

    def close(self) -> WrittenFile:
        """Finish the file, and flush it to disk."""
        self._parquet.close()
        self._out.flush()
        os.fsync(self._out.fileno())
        self._out.close()
        checksum = self._out.checksum
        return WrittenFile(self._name, self._rows, checksum.size, checksum.sha256)


class _HashedFile(io.BufferedWriter):
    """New file, with the checksum of what is written to it."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "xb"))
        self.checksum = Checksum()

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Write and hash the data."""
        self.checksum.add(data)
        return super().write(data)
