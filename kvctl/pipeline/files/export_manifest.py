"""Manifest of an export: its source, its snapshot revision, and a hash of every file. [pure]"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from kvctl.documents import checksum
from kvctl.errors import ConflictError

MANIFEST = "_manifest.json"
"""Spark, pyarrow and similar tools skip files of a folder whose names begin with `_`."""
VERSION = 1

FORMATS = ("parquet",)
LATEST, HISTORY = MODES = ("latest", "history")
_KIND = "export"


@dataclass(frozen=True, slots=True)
class Part:
    """One file of an export."""

    name: str
    """Name relative to the folder, with `/`."""
    bytes: int
    rows: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportManifest:
    """Description of an export; times as RFC 3339."""

    bucket: str
    ref: str | None = None
    """Commit id, for a versioned bucket."""
    incarnation: str
    """Creation time of the bucket's stream, which identifies the stream instance: another one has other revisions."""
    config: Mapping[str, Any]
    """Stream configuration of the bucket."""
    cut: int | None
    """Snapshot revision: the one at which the export equals the bucket."""
    newer: int = 0
    """Rows newer than the cut, because the bucket no longer had their values at the cut."""
    mode: str
    filters: tuple[str, ...] = ()
    format: str
    columns: tuple[str, ...] = ()
    """Columns that are not empty: most buckets have neither ttls nor headers."""
    created: str
    rows: int
    bytes: int
    files: tuple[Part, ...]

    @property
    def history(self) -> bool:
        """True if it has every entry rather than the last of each key."""
        return self.mode == HISTORY

    @property
    def exact(self) -> bool:
        """True if it equals the bucket as it was at the cut."""
        return not self.newer

    def document(self) -> dict[str, Any]:
        """Return the JSON form; its checksum covers everything else in it."""
        document = {"kvctl": _KIND, "version": VERSION, **asdict(self)}
        return {**document, "checksum": checksum.of_document(document)}


def encode(manifest: ExportManifest) -> bytes:
    """Return the manifest as a file's content."""
    return json.dumps(manifest.document(), indent=2).encode() + b"\n"


def decode(data: bytes, folder: str) -> ExportManifest:
    """Read the manifest in a file's content.

    Raises ConflictError if it was changed, has a newer version, or is not a manifest.
    """
    document = _document(data, folder)
    version = document.get("version")
    if document.get("kvctl") != _KIND or isinstance(version, bool) or not isinstance(version, int):
        raise damaged(folder, f"`{MANIFEST}` is not an export manifest")
    if version > VERSION:
        raise ConflictError(
            f"The export in `{folder}` has version {version}, but this kvctl supports {VERSION}", hint="Upgrade kvctl"
        )
    expected = document.pop("checksum", None)
    if expected != checksum.of_document(document):
        raise damaged(folder, f"`{MANIFEST}` has been changed")
    try:
        known = {field.name: document[field.name] for field in fields(ExportManifest) if field.name in document}
        known["files"] = tuple(Part(**part) for part in known["files"])
        known |= {name: tuple(known.get(name, ())) for name in ("filters", "columns")}
        manifest = ExportManifest(**known)
    except (TypeError, KeyError) as error:
        raise damaged(folder, f"`{MANIFEST}`: {error}") from None
    _check(manifest, folder)
    return manifest


def damaged(folder: str, how: str) -> ConflictError:
    """Return the error for a damaged export."""
    return ConflictError(f"The export in `{folder}` is damaged: {how}", hint="Export again or use another export")


def _document(data: bytes, folder: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise damaged(folder, f"`{MANIFEST}` is not JSON") from None
    if not isinstance(document, dict):
        raise damaged(folder, f"`{MANIFEST}` is not a JSON object")
    return document


def _check(manifest: ExportManifest, folder: str) -> None:
    """Raises ConflictError for values that no export has, such as files outside the folder."""
    for part in manifest.files:
        if part.name.startswith("/") or {"", ".", ".."} & {*part.name.split("/")}:
            raise damaged(folder, f"`{MANIFEST}` names the file `{part.name}`")
    if manifest.format not in FORMATS or manifest.mode not in MODES:
        raise damaged(folder, f"`{MANIFEST}` has format `{manifest.format}` and mode `{manifest.mode}`")
