"""Delta tables by delta-rs: the files that tasks wrote become a table in one transaction, made by the driver.

The table of a capture is its own checkpoint. Delta's log keeps one number for each application that writes, as part of
the transaction: four such numbers are the offset up to which the bucket is in the table. Another one is the number of
rows, because the log may be changed so that it names fewer files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import TYPE_CHECKING, Any

from kvctl.atomic_file import flush_folder
from kvctl.errors import ConflictError, KvctlError, UsageError
from kvctl.pipeline.read.offsets import Offset
from kvctl.pipeline.tables.origin import Part, TableOrigin, check_name, damaged, decode, encode, reading_hint
from kvctl.pipeline.tables.parts import hash_in, is_data, rows_in
from kvctl.pipeline.tables.storage import TablePlace

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable, Field, WriterProperties
    from deltalake.transaction import AddAction, CommitProperties

LOG = "_delta_log"
REVISION, SEEN, HELD, LOSS, ROWS = (f"kvctl.{name}" for name in ("revision", "seen", "held", "loss", "rows"))
"""Applications of Delta's log: the fields of an offset, from where on changes may be missing, and the rows."""
COMMITS = 5
"""Number of attempts at a transaction that a compaction got ahead of."""
UNFINISHED = timedelta(days=1)
"""Age at which a file that no version names is taken for the rest of a job that was killed."""


@dataclass(frozen=True, slots=True)
class CompactedFiles:
    """Result of a compaction."""

    added: int
    removed: int
    """Number of small files that others replace."""
    vacuumed: int
    """Number of files deleted, which only earlier versions or no version named."""
    version: int


class CommitConflict(ConflictError):
    """Failure of a transaction because of another one."""


class KvTable:
    """Delta table with an origin. All methods raise KvctlErrors for errors of delta-rs and of the storage."""

    def __init__(self, place: TablePlace, table: DeltaTable) -> None:
        self.place = place
        self._table = table

    @classmethod
    def find(cls, place: TablePlace) -> KvTable | None:
        """Open the last version of a table; None if there is none. Raises ConflictError if damaged."""
        from deltalake import DeltaTable

        if place.path is not None and (place.path / LOG).is_symlink():
            raise damaged(str(place), f"its `{LOG}` is a link")
        with explained(place):
            _require_files(place)
            if not DeltaTable.is_deltatable(place.uri, dict(place.options)):
                return None
            return cls(place, DeltaTable(place.uri, storage_options=dict(place.options)))

    @classmethod
    def create(
        cls,
        place: TablePlace,
        schema: pa.Schema,
        origin: TableOrigin,
        parts: Sequence[Part] = (),
        *,
        offset: Offset | None = None,
        replace: bool = False,
    ) -> KvTable:
        """Create a table with these files, or a version of an existing one. Raises ConflictError."""
        from deltalake import DeltaTable, Schema
        from deltalake.transaction import create_table_with_add_actions

        mode = "overwrite" if replace else "error"
        with explained(place):
            create_table_with_add_actions(
                place.uri,
                Schema.from_arrow(schema),
                [_action(part) for part in parts],
                mode=mode,  # type: ignore[arg-type]
                description=encode(origin),
                storage_options=dict(place.options),
                commit_properties=_numbers(offset, None, sum(part.rows for part in parts)),
            )
            table = cls(place, DeltaTable(place.uri, storage_options=dict(place.options)))
        table.flush()
        return table

    @property
    def version(self) -> int:
        """Return the version of the table that was read, or written last."""
        return int(self._table.version())

    @property
    def origin(self) -> TableOrigin:
        """Return the origin. Raises ConflictError for a table that kvctl did not write."""
        description = self._table.metadata().description
        if not description or not description.startswith('{"kvctl"'):
            names = [field.name for field in self._table.schema().fields]
            hint = f"{reading_hint(names)}; kvctl writes to places of its own"
            raise ConflictError(f"`{self.place}` is a Delta table that kvctl did not write", hint=hint)
        return decode(description, str(self.place))[0]

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the files of the version. Raises ConflictError for names outside of the table's folder."""
        import pyarrow as pa

        with explained(self.place):
            actions = pa.table(self._table.get_add_actions(flatten=True))
        names = ("path", "size_bytes", "num_records")
        found = zip(*(actions[name].to_pylist() for name in names), strict=True)
        parts = tuple(Part(name, size, rows or 0, hash_in(name)) for name, size, rows in found)
        for part in parts:
            check_name(part.name, str(self.place))
        return parts

    def dataset(self) -> Any:
        """Return the rows as a dataset of pyarrow, with the values of partitions. Raises ConflictError."""
        with explained(self.place):
            found = self._table.to_pyarrow_dataset(filesystem=self.place.file_system())
        path = self.place.path
        for name in found.files:
            if ".." in name.split("/") or (path is not None and not (path / name).is_file()):
                raise damaged(str(self.place), f"it names `{name}`, which is not a file in it")
        return found

    @property
    def offset(self) -> Offset:
        """Return the offset up to which the bucket is in the table."""
        number = self._table.transaction_version
        with explained(self.place):
            fields = [number(name) or 0 for name in (REVISION, SEEN, HELD)]
        return Offset(fields[0], self.origin.instance, *fields[1:])

    @property
    def loss(self) -> int | None:
        """Return the revision from which changes may be missing, because a capture continued after a loss."""
        return self._table.transaction_version(LOSS)

    @property
    def counted(self) -> int | None:
        """Return the number of rows that were committed; None for a table of an earlier version of kvctl."""
        with explained(self.place):
            return self._table.transaction_version(ROWS)

    def type_of(self, column: str) -> pa.DataType | None:
        """Return the Arrow type of a column; None if the table lacks it."""
        import pyarrow as pa

        schema = pa.schema(self._table.schema().to_arrow())
        return schema.field(column).type if column in schema.names else None

    def append(self, parts: Sequence[Part], end: Offset, *, loss: int | None = None) -> None:
        """Add the files and move the offset to `end`. Raises ConflictError if another capture moved it."""
        numbers = _numbers(end, loss, self._rows + sum(part.rows for part in parts))

        def write() -> None:
            self._table.create_write_transaction(
                [_action(part) for part in parts], "append", self._table.schema(), commit_properties=numbers
            )

        self._commit(write, end)

    def merge(self, rows: pa.Table, end: Offset, *, keep_deleted: bool, loss: int | None = None) -> None:
        """Update the row of each key, delete those of deleted keys or mark them, and move the offset to `end`.

        Raises as `append`.
        """
        numbers = _numbers(end, loss, self._rows + self._growth(rows, keep_deleted=keep_deleted))

        def write() -> None:
            merger = self._table.merge(
                rows,
                "target.key = source.key",
                source_alias="source",
                target_alias="target",
                commit_properties=numbers,
                writer_properties=_with_checksums(),
            )
            if not keep_deleted:
                merger = merger.when_matched_delete("source.operation != 'PUT'")
            exists = None if keep_deleted else "source.operation = 'PUT'"
            merger.when_matched_update_all().when_not_matched_insert_all(exists).execute()

        self._commit(write, end)
        if self.offset.revision != end.revision:  # nothing changed, so delta-rs wrote nothing
            self.append((), end, loss=loss)

    @property
    def _rows(self) -> int:
        counted = self.counted
        return sum(part.rows for part in self.parts) if counted is None else counted

    def _growth(self, rows: pa.Table, *, keep_deleted: bool) -> int:
        """Return by how many rows a merge makes the table larger: those of keys that it lacks, minus deleted ones."""
        import pyarrow as pa
        import pyarrow.compute as pc

        keys, there = rows["key"].combine_chunks(), pa.array([False] * len(rows))
        for part in self.parts:
            with explained(self.place), self.place.opened(part.name) as file:
                for batch in rows_in(file, ["key"], 1 << 20):
                    there = pc.or_(there, pc.is_in(keys, value_set=batch["key"]))
        lives = pc.equal(rows["operation"], "PUT").combine_chunks()
        added = pc.invert(there) if keep_deleted else pc.and_not(lives, there)
        removed = 0 if keep_deleted else pc.and_not(there, lives).true_count
        return int(added.true_count - removed)

    def evolve(self, schema: pa.Schema) -> None:
        """Add the columns, and fields of columns, that the table lacks. Raises UsageError for another type."""
        from deltalake import Schema

        more = _lacking(self._table.schema().fields, Schema.from_arrow(schema).fields)
        if more:
            with explained(self.place):
                self._table.alter.add_columns(more)
            self._refresh()

    def compact(self, retention: timedelta) -> CompactedFiles:
        """Combine small files, and delete files of versions older than the retention, and those of killed jobs.

        Delta's retention has full hours: a longer one is kept. Raises ConflictError for files of another folder.
        """
        hours = max(ceil(retention.total_seconds() / 3600), 0)
        _ = self.parts
        with explained(self.place):
            counts = self._table.optimize.compact(writer_properties=_with_checksums())
            self._refresh()
            unfinished = max(hours, int(UNFINISHED.total_seconds() // 3600))
            old = {*self._table.vacuum(hours, enforce_retention_duration=False)}
            old |= {*self._table.vacuum(unfinished, enforce_retention_duration=False, full=True)}
            # Not by delta-rs, which would follow links to folders elsewhere, and delete files of others, too.
            removed = [name for name in self.place.listing() if name in old and is_data(name)]
            self.place.remove(removed)
            self._table.create_checkpoint()
            self._table.cleanup_metadata()
        self._refresh()
        return CompactedFiles(counts["numFilesAdded"], counts["numFilesRemoved"], len(removed), self.version)

    def _commit(self, write: Callable[[], None], end: Offset) -> None:
        """Make a transaction that moves the offset; it is repeated if only files were combined concurrently."""
        start = self.offset
        for attempt in range(COMMITS):
            try:
                with explained(self.place):
                    write()
                    break
            except CommitConflict:
                self._refresh()
                if self.offset != start or attempt == COMMITS - 1:
                    raise self._other() from None
        self._refresh()
        if self.offset.revision not in (start.revision, end.revision):
            raise self._other()
        self.flush()

    def _refresh(self) -> None:
        with explained(self.place):
            self._table.update_incremental()

    def _other(self) -> ConflictError:
        return ConflictError(
            f"Another capture is writing into `{self.place}`",
            hint="This one has stopped; no revision is in the table twice",
        )

    def removed(self) -> set[str]:
        """Return the files of earlier versions that are still stored."""
        with explained(self.place):
            return set(self._table.vacuum(retention_hours=0, enforce_retention_duration=False))

    def flush(self) -> None:
        """Make the last version survive a power failure, on this machine."""
        if self.place.path is None:
            return
        with suppress(OSError):
            log = self.place.path / LOG
            descriptor = os.open(log / f"{self.version:020}.json", os.O_RDONLY | os.O_NOFOLLOW)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            flush_folder(log)


@contextmanager
def explained(place: TablePlace) -> Iterator[None]:
    """Convert errors of delta-rs, and of a file system, to KvctlErrors."""
    from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError
    from pyarrow import ArrowException, ArrowInvalid

    with place.explained("use"):
        try:
            yield
        except CommitFailedError as error:
            raise CommitConflict(f"The table in `{place}` was changed by another process: {_reason(error)}") from None
        except (DeltaProtocolError, ArrowInvalid) as error:
            raise damaged(str(place), _reason(error)) from None
        except (DeltaError, ArrowException) as error:
            if "already exists" in str(error):
                raise ConflictError(f"The table in `{place}` was created by another process") from None
            kernel, found, why = _reason(error).partition("Kernel error: ")  # of the log; those of a store are OSErrors
            if found and not kernel and not why.startswith("Unsupported"):
                raise damaged(str(place), f"its `{LOG}`: {why.partition(': ParsedLogPath')[0]}") from None
            raise KvctlError(f"Could not use the table in `{place}`: {_reason(error)}") from None


def _require_files(place: TablePlace) -> None:
    """Raises ConflictError if a log of this machine has more than files and folders: delta-rs waits for a pipe."""
    if place.path is None or not (place.path / LOG).is_dir():
        return
    for entry in os.scandir(place.path / LOG):
        if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
            raise damaged(str(place), f"`{LOG}/{entry.name}` is not a file")


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300].rstrip(".")


def _lacking(present: Sequence[Field], wanted: Sequence[Field], above: str = "") -> list[Field]:
    """Return the wanted fields that are not there, or lack fields. Raises UsageError for one of another type."""
    types = {field.name: field.type for field in present}
    return [
        field
        for field in wanted
        if field.name not in types or not _covers(types[field.name], field.type, f"{above}{field.name}")
    ]


def _covers(present: Any, wanted: Any, name: str) -> bool:
    """Return whether a type of Delta has all fields of another one. Raises UsageError for different types."""
    if present.type != wanted.type:
        raise UsageError(
            f"Column `{name}` has the type {present.type} in the table, not {wanted.type}",
            hint="Add a field of another name",
        )
    if wanted.type == "array":
        return _covers(present.element_type, wanted.element_type, name)
    return wanted.type != "struct" or not _lacking(present.fields, wanted.fields, f"{name}.")


def _numbers(end: Offset | None, loss: int | None, rows: int) -> CommitProperties:
    from deltalake.transaction import CommitProperties, Transaction

    numbers = {ROWS: rows}
    if end is not None:
        numbers |= {REVISION: end.revision, SEEN: end.seen_ns, HELD: end.held}
    if loss is not None:
        numbers[LOSS] = loss
    return CommitProperties(app_transactions=[Transaction(name, number) for name, number in numbers.items()])


def _with_checksums() -> WriterProperties:
    """Return the settings of files that delta-rs writes: only gzip has a checksum of each page, which readers check."""
    from deltalake import WriterProperties

    return WriterProperties(compression="GZIP", compression_level=1)


def _action(part: Part) -> AddAction:
    from deltalake.transaction import AddAction

    return AddAction(part.name, part.bytes, {}, time.time_ns() // 1_000_000, True, part.stats)
