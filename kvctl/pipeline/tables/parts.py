"""Parquet files that tasks write: hashed while they are written, named by their hash, with Delta's statistics.

A task writes files of its own. Those of a task that was killed, or run twice, are in no result and belong to no table.
"""

from __future__ import annotations

import io
import json
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvctl.documents.checksum import Checksum
from kvctl.errors import KvctlError
from kvctl.pipeline.error_transport import crossing
from kvctl.pipeline.spark import tasks
from kvctl.pipeline.tables.origin import Part
from kvctl.pipeline.tables.storage import TablePlace

COLUMNS = ("key", "value", "revision", "created", "operation", "ttl", "headers")
"""Columns of an entry in a file, as in the data source; ttl of an export is the time left."""
GROUP_BYTES = 16 << 20
"""Bytes of rows that are written together, before encoding: at most a row group."""
FILE_BYTES = 256 << 20
"""Bytes of a file after which another one is started."""
LONGEST_TEXT = 64
"""Maximum characters of a text in the statistics; a longer one has none."""
_OF_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_NAME = re.compile(r"part-[0-9a-f]{16}-[0-9a-f]{16}-([0-9a-f]{64})\.parquet")
_DELTA_RS = re.compile(r"part-\d{5}-[0-9a-f-]{36}-c\d{3}\.\w+\.parquet")


def is_data(name: str) -> bool:
    """Return whether kvctl or delta-rs writes files of such a name: without a version, a job that ended left it."""
    return bool(_NAME.fullmatch(name) or _DELTA_RS.fullmatch(name))


def hash_in(name: str) -> str | None:
    """Return the SHA-256 that a file's name tells; None for a file that kvctl did not write."""
    found = _NAME.fullmatch(name)
    return found and found[1]


@dataclass(frozen=True, slots=True)
class PartForm:
    """Rows and place of the files of one job."""

    place: TablePlace
    job: str
    """Id of the job, in the names of all its files."""
    folder: str = ""
    """Folder below the place, with a slash at its end."""
    deletions: bool = True
    """False to leave out deletions."""
    cut: int | None = None

    @classmethod
    def of(cls, place: TablePlace, **settings: Any) -> PartForm:
        """Return the form of a new job."""
        return cls(place, secrets.token_hex(8), **settings)


@dataclass(slots=True)
class WrittenRows:
    """Files of one task, and counts of their rows."""

    parts: tuple[Part, ...] = ()
    newer: int = 0
    """Entries above the cut, deletions included."""
    ttls: int = 0
    headers: int = 0


def write(batches: Iterable[pa.RecordBatch], form: PartForm) -> Iterator[WrittenRows]:
    """Write rows, and yield one result. Raises KvctlError."""
    with crossing():
        written = WrittenRows()
        file: _PartFile | None = None
        for rows in tasks.groups(_counted(batches, form, written), GROUP_BYTES):
            file = file or _PartFile(rows.schema)
            file.add(rows)
            if file.size >= FILE_BYTES:
                written.parts += (file.store(form),)
                file = None
        if file is not None:
            written.parts += (file.store(form),)
        yield written


def _counted(batches: Iterable[pa.RecordBatch], form: PartForm, written: WrittenRows) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the form, and count them."""
    for batch in batches:
        if form.cut is not None:
            written.newer += pc.sum(pc.greater(batch["revision"], form.cut)).as_py() or 0
        if not form.deletions:
            batch = batch.filter(pc.equal(batch["operation"], "PUT"))
        written.ttls += len(batch) - batch["ttl"].null_count
        written.headers += len(batch) - batch["headers"].null_count
        yield batch


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type of texts and bytes instead of that of views of them, which few functions of Arrow know."""
    return _OF_VIEWS.get(kind, kind)


def rows_in(file: Any, columns: Sequence[str], rows: int, *, number: int = 0, of: int = 1) -> Iterator[pa.RecordBatch]:
    """Yield rows of a data file: those of every `of`-th row group, from `number` on. Raises ArrowException."""
    data = pq.ParquetFile(file)
    fields = [data.schema_arrow.field(name) for name in columns]
    schema = pa.schema([field.with_type(plain(field.type)) for field in fields])
    groups = range(number, data.num_row_groups, of)
    for batch in data.iter_batches(rows, row_groups=groups, columns=list(columns)):
        yield batch.select(list(columns)).cast(schema)


def require_visible(place: TablePlace, parts: Iterable[Part]) -> None:
    """Raises KvctlError if files of the tasks are not visible on this machine, in full."""
    wanted = {part.name: part for part in parts}
    sizes = place.sizes(wanted)
    there = [part for name, part in wanted.items() if sizes.get(name) == part.bytes]
    if len(there) < len(wanted):
        rows, found = (sum(part.rows for part in some) for some in (wanted.values(), there))
        raise KvctlError(
            f"{rows} rows were written, but `{place}` has files with {found}",
            hint="On a cluster the folder must be shared by all its machines and this one",
        )


class _PartFile:
    """File that is being written, in a temporary file of the worker that disappears with it."""

    def __init__(self, schema: pa.Schema) -> None:
        self._rows = 0
        self._out = _HashedFile()
        self._parquet = pq.ParquetWriter(self._out, schema, compression="zstd")

    @property
    def size(self) -> int:
        """Return the bytes written."""
        return self._out.checksum.size

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        self._rows += rows.num_rows
        self._parquet.write_table(rows)

    def store(self, form: PartForm) -> Part:
        """Finish the file, and copy it to its place."""
        self._parquet.close()
        self._out.flush()
        checksum = self._out.checksum
        name = f"part-{form.job}-{secrets.token_hex(8)}-{checksum.sha256}.parquet"
        with self._out.file as file:
            file.seek(0)
            stats = statistics(pq.read_metadata(file))
            file.seek(0)
            form.place.write(form.folder + name, file)
        return Part(form.folder + name, checksum.size, self._rows, checksum.sha256, json.dumps(stats))


class _HashedFile(io.BufferedWriter):
    """Temporary file, with the checksum of what is written to it."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        super().__init__(self.file)
        self.checksum = Checksum()

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Write and hash the data."""
        self.checksum.add(data)
        return super().write(data)


def statistics(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Return Delta's statistics of a file: number of rows, and smallest and largest values of its plain columns."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    unknown = set()
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            name, found = column.path_in_schema, column.statistics
            if "." in name or found is None:
                continue
            if found.has_null_count:
                nulls[name] = nulls.get(name, 0) + found.null_count
            if not found.has_min_max or not (_plain(found.min) and _plain(found.max)):
                unknown |= {name} if found.null_count != group.num_rows else set()
                continue
            least[name] = min(found.min, least.get(name, found.min))
            most[name] = max(found.max, most.get(name, found.max))
    known = [name for name in least if name not in unknown]
    return {
        "numRecords": metadata.num_rows,
        "minValues": {name: _json(least[name]) for name in known},
        "maxValues": {name: _json(most[name]) for name in known},
        "nullCount": nulls,
    }


def _plain(value: object) -> bool:
    """Return whether the statistics may have the value: a text in full, a number that is one, a time."""
    if isinstance(value, str):
        return len(value) <= LONGEST_TEXT
    return isinstance(value, int | datetime | date) and not isinstance(value, bool)


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value.isoformat() if isinstance(value, date) else value
