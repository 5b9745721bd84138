"""Stored tables: publish files as a table, open one, and compare its files with what was written.

A Delta table is one transaction. A folder of Parquet files is complete once its manifest is there, which is written
last; it is replaced by removing the manifest, then the files.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from kvctl.documents.checksum import Checksum
from kvctl.errors import ConflictError, KvctlError, NotFoundError, UsageError
from kvctl.pipeline.tables.delta import LOG, KvTable
from kvctl.pipeline.tables.origin import Part, TableOrigin, damaged, decode, encode
from kvctl.pipeline.tables.parts import is_data, plain
from kvctl.pipeline.tables.storage import TablePlace

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST = "_manifest.json"
"""Spark, pyarrow and similar tools skip files of a folder whose names begin with `_`."""
STAGING = "_incomplete/"
"""Folder of the files of an unfinished export to Parquet."""
DELTA, PARQUET = FORMATS = ("delta", "parquet")
_MANIFEST_BYTES = 64 << 20
_IN = TypeVar("_IN")
_OUT = TypeVar("_OUT")

Advance = Callable[[int], None]
"""Callback that receives the number of further bytes done."""


@dataclass(frozen=True, slots=True)
class StoredTable:
    """Table as it is stored at one time."""

    place: TablePlace
    format: str
    origin: TableOrigin
    parts: tuple[Part, ...]
    version: int | None = None
    """Version of a Delta table."""
    counted: int | None = None
    """Number of rows that were committed to a Delta table; None if not known."""

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        """Return the size of all files."""
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True, slots=True, order=True)
class Damage:
    """Damage to one file of a table."""

    file: str
    problem: str
    """`missing`, `extra`, `truncated`, `longer`, `changed` or `unreadable`."""
    detail: str
    """Description, with the file's name."""


@dataclass(frozen=True, slots=True)
class RemovedFiles:
    """Files that a table replaces."""

    files: int = 0
    bytes: int = 0
    what: str = ""
    """Description of the former content; empty for none."""


def occupants(place: TablePlace, *, overwrite: bool) -> RemovedFiles:
    """Return the files that a new table replaces.

    Raises ConflictError unless there are none or `overwrite`, UsageError for a file, or a folder never to be emptied.
    """
    if place.path is not None and place.path.exists():
        place.require_existing()
    found = place.listing()
    if not found:
        return RemovedFiles()
    data = [size for name, size in found.items() if not name.startswith(f"{LOG}/")]
    what = "files that are not a complete export"
    if any(name.startswith(f"{LOG}/") for name in found):
        what = "a Delta table"
    elif MANIFEST in found:
        what = "an export"
    if not overwrite:
        raise ConflictError(
            f"`{place}` contains {what}", hint="Choose another folder, or pass `--overwrite` to remove its content"
        )
    if place.precious:
        raise UsageError(f"Refusing to empty `{place}` for an export", hint="Choose a subfolder")
    return RemovedFiles(len(data), sum(data), what)


def publish(
    place: TablePlace, format: str, schema: pa.Schema, origin: TableOrigin, parts: Sequence[Part], *, overwrite: bool
) -> StoredTable:
    """Make a table of files that are there, in place of former content. Raises KvctlError, ConflictError."""
    place.flush(STAGING if format == PARQUET else "")
    if format == DELTA:
        before = place.listing() if overwrite else {}
        existing = KvTable.find(place) if overwrite else None
        table = KvTable.create(place, schema, origin, parts, replace=existing is not None)
        if existing is None:
            kept = {part.name for part in parts}
            place.remove(name for name in before if name not in kept and not name.startswith(f"{LOG}/"))
        return StoredTable(place, DELTA, origin, tuple(parts), table.version, table.counted)
    staged = {part.name for part in parts}
    former = [name for name in place.listing() if name not in staged]
    place.remove(sorted(former, key=lambda name: name != MANIFEST))
    named = tuple(replace(part, name=f"part-{number:05}.parquet") for number, part in enumerate(parts))
    for old, new in zip(parts, named, strict=True):
        place.move(old.name, new.name)
    place.flush()
    place.write(MANIFEST, io.BytesIO(encode(origin, named).encode() + b"\n"))
    place.flush()
    return StoredTable(place, PARQUET, origin, named)


def discard(place: TablePlace, job: str) -> None:
    """Remove the files of a job that failed, unless a table has them: its transaction may have succeeded."""
    kept = {part.name for part in open_table(place).parts} if is_own(place) else set()
    names = [name for name in place.listing() if name.rpartition("/")[2].startswith(f"part-{job}-")]
    place.remove(name for name in names if name not in kept)


def is_table(place: TablePlace) -> bool:
    """Return whether kvctl, or another writer of Delta tables, made a table there, complete or damaged."""
    if place.path is not None and not place.path.is_dir():
        return False
    return bool(place.sizes([MANIFEST])) or KvTable.find(place) is not None


def is_own(place: TablePlace) -> bool:
    """Return whether kvctl wrote the table there."""
    with suppress(ConflictError):
        return is_table(place) and bool(open_table(place))
    return bool(place.sizes([MANIFEST]))


def open_table(place: TablePlace) -> StoredTable:
    """Open a table that kvctl wrote.

    Raises NotFoundError without a folder, ConflictError for an incomplete or damaged one.
    """
    place.require_existing()
    if MANIFEST in (sizes := place.sizes([MANIFEST])):
        if sizes[MANIFEST] > _MANIFEST_BYTES:
            raise damaged(str(place), f"`{MANIFEST}` is too large")
        with place.explained("read"), place.opened(MANIFEST) as file:
            origin, parts = decode(file.read(), str(place))
        return StoredTable(place, PARQUET, origin, parts)
    table = KvTable.find(place)
    if table is not None:
        return StoredTable(place, DELTA, table.origin, table.parts, table.version, table.counted)
    if place.path is None and not place.listing():
        raise NotFoundError(f"`{place}` does not exist")
    raise ConflictError(
        f"`{place}` is not a complete export: it has neither a Delta log nor `{MANIFEST}`",
        hint="The export was interrupted: run it again with `--overwrite`",
    )


def damages(table: StoredTable, advance: Advance = lambda _: None) -> list[Damage]:
    """Return all differences between the files and what was written, by file; empty for a complete table."""
    place, known = table.place, {part.name for part in table.parts}
    stored, types = place.listing(), dict[str, Any]()
    opened = KvTable.find(place) if table.format == DELTA else None
    if opened is not None:
        types = {name: opened.type_of(name) for name in table.origin.columns}
        known |= opened.removed() | {name for name in stored if is_data(name)}  # of other versions, and unfinished ones
    extra = [name for name in stored if name not in known and not hidden(name)]
    found = [Damage(name, "extra", f"`{name}` does not belong to it") for name in extra]
    empty = [name for name in stored if name.startswith(LOG) and not stored[name]]
    found += [Damage(name, "truncated", f"`{name}` is empty") for name in empty]
    compared = in_parallel(lambda part: _compared(place, part, types, advance), table.parts)
    if table.counted not in (None, table.rows):
        detail = f"`{LOG}` names files with {table.rows} rows instead of {table.counted}"
        found.append(Damage(LOG, "changed", detail))
    return sorted([*found, *(damage for damage in compared if damage)])


def require_whole(table: StoredTable, advance: Advance = lambda _: None) -> None:
    """Raises ConflictError that names each file that is not as written."""
    found = damages(table, advance)
    if found:
        raise damaged(str(table.place), in_words(found))


def in_words(found: list[Damage], shown: int = 20) -> str:
    """Return the damages as one text."""
    more = f" and {len(found) - shown} more" if len(found) > shown else ""
    return ", ".join(damage.detail for damage in found[:shown]) + more


def in_parallel(work: Callable[[_IN], _OUT], items: Iterable[_IN]) -> list[_OUT]:
    """Apply the work to each item, on all cores: hashing and disk waits release other threads."""
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 16), "files") as pool:
        return list(pool.map(work, items))


def hidden(name: str) -> bool:
    """Return whether readers skip the file: its name, or that of a folder, begins with `_` or `.`."""
    return any(part.startswith(("_", ".")) for part in name.split("/"))


def _compared(place: TablePlace, expected: Part, types: Mapping[str, Any], advance: Advance) -> Damage | None:
    name, checksum = expected.name, Checksum()
    try:
        size = place.sizes([name]).get(name)
        if size is None:
            return Damage(name, "missing", f"`{name}` is missing")
        if size != expected.bytes:
            problem = "truncated" if size < expected.bytes else "longer"
            return Damage(name, problem, f"`{name}` has {size} bytes instead of {expected.bytes}")
        with place.opened(name) as file:
            if expected.sha256 is None:
                return _decoded(file, expected, types, advance)
            for block in checksum.read(file):
                advance(len(block))
    except (OSError, KvctlError) as error:
        return Damage(name, "unreadable", f"`{name}` cannot be read: {getattr(error, 'strerror', None) or error}")
    if checksum.sha256 != expected.sha256:
        return Damage(name, "changed", f"`{name}` has been changed")
    return None


def _decoded(file: Any, expected: Part, types: Mapping[str, Any], advance: Advance) -> Damage | None:
    """Read a file that delta-rs wrote: it has no hash, but a checksum of each page."""
    from pyarrow import ArrowException, parquet

    name, rows = expected.name, 0
    try:
        found = parquet.ParquetFile(file)
        present = {field.name: plain(field.type) for field in found.schema_arrow}
        if any(present.get(column) != kind for column, kind in types.items()):
            return Damage(name, "changed", f"`{name}` has other columns")
        for batch in found.iter_batches():
            rows += batch.num_rows
    except (ArrowException, UnicodeDecodeError):
        return Damage(name, "changed", f"`{name}` is not a complete Parquet file")
    advance(expected.bytes)
    if rows != expected.rows:
        return Damage(name, "changed", f"`{name}` has {rows} rows instead of {expected.rows}")
    return None
