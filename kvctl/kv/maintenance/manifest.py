"""Manifest of a backup, which proves it complete: counts, last revision, a hash of every file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvctl.documents import checksum
from kvctl.errors import ConflictError, UsageError

MANIFEST = "manifest.json"
CONFIG = "backup.json"
DATA = "stream.tar.s2"
"""The last two have the names and format of the `nats` CLI, which can restore them, too."""

VERSION = 1
_LARGEST = 16 << 20


@dataclass(frozen=True, slots=True)
class File:
    """One file of a backup."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupManifest:
    """Description of a backup; times as RFC 3339."""

    bucket: str
    stream: str
    created: str
    server: str
    messages: int
    bytes: int
    keys: int
    first_revision: int
    last_revision: int
    files: tuple[File, ...]

    def document(self) -> dict[str, Any]:
        """Return the JSON form; its checksum covers every other field."""
        document = {"kvctl": "backup", "version": VERSION, **asdict(self)}
        return {**document, "checksum": checksum.of_document(document)}


def hashed(path: Path) -> File:
    """Return the file with its size and hash."""
    found = checksum.of_file(path)
    return File(path.name, found.size, found.sha256)


def read(directory: Path) -> BackupManifest:
    """Read the manifest of a backup and compare it with its files.

    Raises UsageError if the directory has no backup, ConflictError if it is damaged or made by a newer kvctl.
    """
    document = _document(directory / MANIFEST)
    version = document.get("version")
    if document.get("kvctl") != "backup" or not isinstance(version, int):
        raise UsageError(f"`{directory / MANIFEST}` is not the manifest of a backup")
    if version > VERSION:
        raise ConflictError(
            f"The backup in `{directory}` has version {version}; this kvctl supports version {VERSION}",
            hint="Use a newer kvctl",
        )
    manifest = _parse(document, directory)
    for file in manifest.files:
        _compare(directory, file)
    return manifest


def load(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a backup. Raises UsageError, ConflictError."""
    return _document(path)


def _document(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST:
            raise _damaged(path.parent, f"`{path.name}` is too large")
        document = json.loads(path.read_bytes())
    except OSError as error:
        hint = "Create one with `kvctl bucket backup BUCKET DIR`"
        raise UsageError(f"`{path.parent}` is not a backup: `{path.name}`: {error.strerror}", hint=hint) from None
    except ValueError:
        raise _damaged(path.parent, f"`{path.name}` is not JSON") from None
    if not isinstance(document, dict):
        raise _damaged(path.parent, f"`{path.name}` is not a JSON object")
    return document


def _parse(document: dict[str, Any], directory: Path) -> BackupManifest:
    fields = {name: value for name, value in document.items() if name not in ("kvctl", "version", "checksum")}
    if document.get("checksum") != checksum.of_document(
        {name: value for name, value in document.items() if name != "checksum"}
    ):
        raise _damaged(directory, f"`{MANIFEST}` has been changed")
    try:
        files = tuple(File(**file) for file in fields.pop("files"))
        manifest = BackupManifest(files=files, **fields)
    except (TypeError, KeyError) as error:
        raise _damaged(directory, f"`{MANIFEST}`: {error}") from None
    if {file.name for file in files} != {CONFIG, DATA}:
        raise _damaged(directory, f"`{MANIFEST}` names files that a backup does not have")
    return manifest


def _compare(directory: Path, expected: File) -> None:
    try:
        found = hashed(directory / expected.name)
    except OSError as error:
        raise _damaged(directory, f"`{expected.name}`: {error.strerror}") from None
    if found.bytes != expected.bytes:
        raise _damaged(directory, f"`{expected.name}` has {found.bytes} bytes instead of {expected.bytes}")
    if found.sha256 != expected.sha256:
        raise _damaged(directory, f"`{expected.name}` has been changed")


def _damaged(directory: Path, how: str) -> ConflictError:
    return ConflictError(
        f"The backup in `{directory}` is damaged: {how}", hint="Nothing was restored; use another backup"
    )
