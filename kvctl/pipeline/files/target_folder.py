"""Target folder of an export: written aside, and taken over once the export is complete.

The folder's old content is removed only when the new export is there, and the manifest comes last: a folder without one
was left by an interrupted export.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvctl import atomic_file
from kvctl.atomic_file import flush_folder
from kvctl.errors import ConflictError, KvctlError, UsageError
from kvctl.pipeline.files.export_files import has_manifest
from kvctl.pipeline.files.export_manifest import MANIFEST, ExportManifest, Part, encode

if TYPE_CHECKING:
    from kvctl.pipeline.files.export_writer import WrittenFile

STAGING = "_incomplete"
"""Subfolder; readers skip such names."""


@dataclass(frozen=True, slots=True)
class RemovedFiles:
    """Files that an export replaced."""

    files: int = 0
    bytes: int = 0
    whole: bool = False
    """True if it was an export with its manifest, rather than an interrupted one."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """Written file, and the part of the export that it becomes."""

    path: Path
    part: Part


def check_vacant(folder: Path, *, overwrite: bool) -> None:
    """Raises ConflictError for a folder that is not empty, UsageError for a file or a folder never to be emptied."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"`{folder}` is not a folder")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not overwrite:
        what = "an export" if has_manifest(folder) else "files that are not a complete export"
        raise ConflictError(
            f"`{folder}` contains {what}", hint="Choose another folder, or pass `--overwrite` to remove its content"
        )
    if folder in (Path.home(), Path.cwd(), *Path.cwd().parents):
        raise UsageError(f"Refusing to empty `{folder}` for an export", hint="Choose a subfolder")


@contextmanager
def taken(folder: Path) -> Iterator[Path]:
    """Lock the folder for this process; return a temporary place below it to write to.

    Raises ConflictError while another process exports into it, KvctlError if it cannot be written.
    """
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise KvctlError(f"Could not write `{folder}`: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(f"Another export is being written into `{folder}`") from None
        except OSError:
            pass  # no locks on this file system
        shutil.rmtree(folder / STAGING, ignore_errors=True)
        yield folder / STAGING / secrets.token_hex(4)
    finally:
        shutil.rmtree(folder / STAGING, ignore_errors=True)
        if made:
            with suppress(OSError):
                folder.rmdir()  # if the export failed
        os.close(handle)


def staged(staging: Path, files: Iterable[WrittenFile]) -> list[StagedFile]:
    """Give the written files short names: `part-00000.parquet`."""
    return [
        StagedFile(staging / file.name, Part(f"part-{number:05}.parquet", file.bytes, file.rows, file.sha256))
        for number, file in enumerate(files)
    ]


def size_of(path: Path) -> int | None:
    """Return the size of a file; None if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def occupants(folder: Path) -> RemovedFiles:
    """Return the files that an export into the folder removes."""
    if not folder.is_dir():
        return RemovedFiles()
    files = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    return RemovedFiles(len(files), sum(path.lstat().st_size for path in files), has_manifest(folder))


def take_over(folder: Path, files: Sequence[StagedFile], manifest: ExportManifest) -> None:
    """Replace the folder's content by an export. Raises KvctlError."""
    try:
        _clear(folder)
        for file in files:
            os.replace(file.path, folder / file.part.name)
        flush_folder(folder)  # before a manifest promises them
        atomic_file.replace(folder / MANIFEST, encode(manifest), mode=atomic_file.PUBLIC, beside=folder / STAGING)
        flush_folder(folder)
    except OSError as error:
        raise KvctlError(f"Could not move the export into `{folder}`: {error.strerror}") from None


def _clear(folder: Path) -> None:
    """Remove all but the staged files, the manifest first."""
    (folder / MANIFEST).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.name == STAGING:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
