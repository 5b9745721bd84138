"""Origin of a table: the bucket, its stream instance, and what was read of it. [pure]

It is the description of a Delta table, and the manifest of a folder of Parquet files, with the files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from kvctl.documents import checksum
from kvctl.documents.record import check_types
from kvctl.errors import ConflictError
from kvctl.phrases import quoted

VERSION = 1
EXPORT, CAPTURE = KINDS = ("export", "capture")
LATEST, HISTORY, CHANGES = MODES = ("latest", "history", "changes")


@dataclass(frozen=True, slots=True)
class Part:
    """One data file."""

    name: str
    """Name in the table's folder."""
    bytes: int
    rows: int
    sha256: str | None
    """None for files that delta-rs wrote."""
    stats: str = ""
    """Statistics of the rows in Delta's form, known when the file is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOrigin:
    """Origin of a table; times as RFC 3339."""

    kind: str
    bucket: str
    ref: str | None = None
    """Commit id, for a versioned bucket."""
    instance: str
    """Creation time of the bucket's stream, which identifies the stream instance: another one has other revisions."""
    config: Mapping[str, Any]
    """Stream configuration of the bucket."""
    cut: int | None = None
    """Snapshot revision of an export: the one at which it equals the bucket."""
    newer: int = 0
    """Rows newer than the cut, because the bucket no longer had their values at the cut."""
    mode: str
    filters: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    """Columns that are not empty: most buckets have neither ttls nor headers."""
    values: str | None = None
    """Schema of the decoded values, in SQL."""
    marks: bool = False
    """True if deleted keys stay, marked."""
    created: str = ""
    """Time at which the table was written."""

    @property
    def history(self) -> bool:
        """True if it has every entry rather than the last of each key."""
        return self.mode != LATEST

    @property
    def exact(self) -> bool:
        """True if it equals the bucket as it was at the cut."""
        return not self.newer


def encode(origin: TableOrigin, parts: Sequence[Part] | None = None) -> str:
    """Return the JSON form; its checksum covers everything else in it."""
    document: dict[str, Any] = {"kvctl": origin.kind, "version": VERSION, **asdict(origin)}
    if parts is not None:
        names = ("name", "bytes", "rows", "sha256")
        document["files"] = [{name: getattr(part, name) for name in names} for part in parts]
    return json.dumps({**document, "checksum": checksum.of_document(document)})


def decode(text: str | bytes, place: str) -> tuple[TableOrigin, tuple[Part, ...]]:
    """Read the JSON form.

    Raises ConflictError if it was changed, has a newer version, or is not the origin of a table.
    """
    document = _document(text, place)
    version = document.get("version")
    if document.get("kvctl") not in KINDS or isinstance(version, bool) or not isinstance(version, int):
        raise damaged(place, "its origin is not one of kvctl")
    if version > VERSION:
        raise ConflictError(
            f"The table in `{place}` has version {version}, but this kvctl supports {VERSION}", hint="Upgrade kvctl"
        )
    expected = document.pop("checksum", None)
    if expected != checksum.of_document(document):
        raise damaged(place, "its origin has been changed")
    try:
        known = {field.name: document[field.name] for field in fields(TableOrigin) if field.name in document}
        known |= {name: tuple(known.get(name, ())) for name in ("filters", "columns")}
        check_types(known, TableOrigin)
        for part in document.get("files", ()):
            check_types(part, Part)
        origin, parts = TableOrigin(**known), tuple(Part(**part) for part in document.get("files", ()))
    except (TypeError, KeyError) as error:
        raise damaged(place, f"its origin: {error}") from None
    if origin.kind not in KINDS or origin.mode not in MODES:
        raise damaged(place, f"its origin has kind `{origin.kind}` and mode `{origin.mode}`")
    for part in parts:
        check_name(part.name, place)
    return origin, parts


def check_name(name: str, place: str) -> None:
    """Raises ConflictError for a file that no table of kvctl has: each one is in the table's folder."""
    if not name or name.startswith((".", "_")) or {"/", "\\", "\0"} & {*name} or not name.isprintable():
        raise damaged(place, f"it names the file `{name}`")


def damaged(place: str, how: str) -> ConflictError:
    """Return the error for a damaged table."""
    hint = "Export or capture again into another place, or use a copy of the table"
    return ConflictError(f"The table in `{place}` is damaged: {how}", hint=hint)


def reading_hint(columns: Sequence[str]) -> str:
    """Return the hint for a table that kvctl did not write; its columns may not be known."""
    shown = f" to two of its columns {quoted(columns[:20])}" if columns else ""
    return f"`load` and `commit` read it with `--key` and `--value` set{shown}"


def _document(text: str | bytes, place: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise damaged(place, "its origin is not JSON") from None
    if not isinstance(document, dict):
        raise damaged(place, "its origin is not a JSON object")
    return document
