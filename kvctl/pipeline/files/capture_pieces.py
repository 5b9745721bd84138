"""Write rows of a partition into files of the capture, each a run of revisions of one day (runs on a worker)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvctl.pipeline.files.capture_folder import Piece

PIECES = "staged string, day string, first long, last long, rows long, bytes long"
"""Schema of pieces as rows, for Spark."""
GROUP = 16 << 20
"""Bytes of a row group, before encoding."""
LARGEST = 512 << 20
"""Bytes after which another file is started, before encoding."""


def write_pieces(batches: Iterable[pa.RecordBatch], staging: str) -> Iterator[pa.RecordBatch]:
    """Write the rows, which are sorted by revision, and yield each file. Leftovers of a killed task are ignored."""
    current: _File | None = None
    for batch in batches:
        for day, rows in _by_day(batch):
            if current is None or current.day != day or current.size >= LARGEST:
                if current is not None:
                    yield current.close()
                current = _File(Path(staging), day, batch.schema)
            current.add(rows)
    if current is not None:
        yield current.close()


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[date, pa.RecordBatch]]:
    """Split the batch where the day of `created` (UTC) changes."""
    if not batch.num_rows:
        return
    days = pc.run_end_encode(batch.column("created").cast(pa.timestamp("us")).cast(pa.date32()))
    start = 0
    for day, end in zip(days.values.to_pylist(), days.run_ends.to_pylist(), strict=True):
        yield day, batch.slice(start, end - start)
        start = end


class _File:
    """File that is being written."""

    def __init__(self, staging: Path, day: date, schema: pa.Schema) -> None:
        self.day = day
        self.size = 0
        self._path = staging / f"{secrets.token_hex(8)}.tmp"
        self._writer = pq.ParquetWriter(self._path, schema)
        self._held: list[pa.RecordBatch] = []
        self._held_size = self._rows = 0
        self._first: int | None = None
        self._last = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of higher revisions than those before."""
        revisions = batch.column("revision")
        self._first = self._first or revisions[0].as_py()
        self._last = revisions[-1].as_py()
        self._rows += batch.num_rows
        self.size += batch.nbytes
        self._held.append(batch)
        self._held_size += batch.nbytes
        if self._held_size >= GROUP:
            self._write()

    def close(self) -> pa.RecordBatch:
        """Finish the file and flush it to disk; return its piece."""
        self._write()
        self._writer.close()
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        piece = Piece(self._path.name, self.day.isoformat(), self._first or 0, self._last, self._rows, size)
        return pa.RecordBatch.from_pylist([{name: getattr(piece, name) for name in Piece.__slots__}])

    def _write(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held))
            self._held, self._held_size = [], 0
