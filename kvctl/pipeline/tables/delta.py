"""Delta tables by delta-rs: files that tasks wrote and their origin are one transaction each, made by the driver."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from kvctl.atomic_file import flush_folder
from kvctl.errors import ConflictError, KvctlError
from kvctl.pipeline.tables.origin import Part, TableOrigin, check_name, damaged, decode, encode
from kvctl.pipeline.tables.parts import hash_in
from kvctl.pipeline.tables.storage import TablePlace

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

LOG = "_delta_log"


class KvTable:
    """Delta table with an origin. All methods raise KvctlErrors for errors of delta-rs and of the storage."""

    def __init__(self, place: TablePlace, table: DeltaTable) -> None:
        self.place = place
        self._table = table

    @classmethod
    def find(cls, place: TablePlace, version: int | None = None) -> KvTable | None:
        """Open the last, or another, version of a table; None if there is none. Raises ConflictError if damaged."""
        from deltalake import DeltaTable

        with explained(place):
            if not DeltaTable.is_deltatable(place.uri, place.delta_options()):
                return None
            return cls(place, DeltaTable(place.uri, version, storage_options=place.delta_options()))

    @classmethod
    def create(
        cls, place: TablePlace, schema: pa.Schema, origin: TableOrigin, parts: Sequence[Part], *, replace: bool = False
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
                storage_options=place.delta_options(),
            )
            table = cls(place, DeltaTable(place.uri, storage_options=place.delta_options()))
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
            raise ConflictError(
                f"`{self.place}` is a Delta table that kvctl did not write", hint="Choose another place"
            )
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
        """Return the rows as a dataset of pyarrow, with the values of partitions."""
        with explained(self.place):
            return self._table.to_pyarrow_dataset(filesystem=self.place.file_system())

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

    with place.explained("use"):
        try:
            yield
        except CommitFailedError as error:
            raise ConflictError(f"The table in `{place}` was changed by another process: {_reason(error)}") from None
        except DeltaProtocolError as error:
            raise damaged(str(place), _reason(error)) from None
        except DeltaError as error:
            if "already exists" in str(error):
                raise ConflictError(f"The table in `{place}` was created by another process") from None
            raise KvctlError(f"Could not use the table in `{place}`: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300].rstrip(".")


def _action(part: Part) -> AddAction:
    import time

    from deltalake.transaction import AddAction

    values: dict[str, Any] = {}
    return AddAction(part.name, part.bytes, values, time.time_ns() // 1_000_000, True, part.stats)
