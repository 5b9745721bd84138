"""What an export holds and the proof that it is whole: where it comes from, its cut, a hash of every file. [pure]"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from kvctl.errors import ConflictError

MANIFEST = "_manifest.json"
"""Spark, pyarrow and their like read no file of a folder whose name begins so."""
VERSION = 1

FORMATS = ("parquet", "json", "csv")
LATEST, HISTORY = MODES = ("latest", "history")
_KIND = "export"


@dataclass(frozen=True, slots=True)
class Part:
    """One file of an export."""

    name: str
    """Relative to the folder, with `/`."""
    bytes: int
    rows: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """An export's description; times as RFC 3339."""

    bucket: str
    ref: str | None = None
    """What of a versioned bucket it is of, as a commit's id."""
    incarnation: str
    """When the bucket's stream was created: another one has other revisions."""
    config: Mapping[str, Any]
    """The bucket's stream configuration."""
    cut: int | None
    """The revision at which it is the bucket."""
    newer: int = 0
    """Rows that are newer than the cut, as the bucket did not hold their values at the cut any more."""
    mode: str
    filters: tuple[str, ...] = ()
    format: str
    partitioned_by: str | None = None
    columns: tuple[str, ...] = ()
    """Those that hold something: of most buckets neither ttls nor headers."""
    created: str
    rows: int
    bytes: int
    files: tuple[Part, ...]

    @property
    def history(self) -> bool:
        """Whether it holds every entry rather than the last of each key."""
        return self.mode == HISTORY

    @property
    def exact(self) -> bool:
        """Whether it is the bucket as it was at the cut."""
        return not self.newer

    def document(self) -> dict[str, Any]:
        """The JSON form; its checksum is over everything else in it."""
        document = {"kvctl": _KIND, "version": VERSION, **asdict(self)}
        return {**document, "checksum": _checksum(document)}


def encode(manifest: Manifest) -> bytes:
    """The manifest as a file's content."""
    return json.dumps(manifest.document(), indent=2).encode() + b"\n"


def decode(data: bytes, folder: str) -> Manifest:
    """The manifest in a file's content.

    Raises ConflictError for one that was changed or is of a newer version, and for what is none.
    """
    document = _document(data, folder)
    version = document.get("version")
    if document.get("kvctl") != _KIND or isinstance(version, bool) or not isinstance(version, int):
        raise damaged(folder, f"`{MANIFEST}` is no manifest of an export")
    if version > VERSION:
        raise ConflictError(
            f"The export in `{folder}` has version {version}, this kvctl knows {VERSION}", hint="Use a newer kvctl"
        )
    told = document.pop("checksum", None)
    if told != _checksum(document):
        raise damaged(folder, f"`{MANIFEST}` has been changed")
    try:
        known = {field.name: document[field.name] for field in fields(Manifest) if field.name in document}
        known["files"] = tuple(Part(**part) for part in known["files"])
        known |= {name: tuple(known.get(name, ())) for name in ("filters", "columns")}
        manifest = Manifest(**known)
    except (TypeError, KeyError) as error:
        raise damaged(folder, f"`{MANIFEST}`: {error}") from None
    _check(manifest, folder)
    return manifest


def damaged(folder: str, how: str) -> ConflictError:
    """The error for an export that is not what was written."""
    return ConflictError(f"The export in `{folder}` is damaged: {how}", hint="Export again, or take another export")


def _document(data: bytes, folder: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise damaged(folder, f"`{MANIFEST}` is not JSON") from None
    if not isinstance(document, dict):
        raise damaged(folder, f"`{MANIFEST}` holds no object")
    return document


def _check(manifest: Manifest, folder: str) -> None:
    """Raises ConflictError for what no export says, above all files elsewhere."""
    for part in manifest.files:
        if part.name.startswith("/") or {"", ".", ".."} & {*part.name.split("/")}:
            raise damaged(folder, f"`{MANIFEST}` names the file `{part.name}`")
    if manifest.format not in FORMATS or manifest.mode not in MODES:
        raise damaged(folder, f"`{MANIFEST}` says format `{manifest.format}`, mode `{manifest.mode}`")


def _checksum(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
