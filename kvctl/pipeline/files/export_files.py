"""Files of an export: listed, hashed in parallel, and compared with the manifest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kvctl.documents.checksum import Checksum
from kvctl.errors import ConflictError, KvctlError, NotFoundError, UsageError
from kvctl.pipeline.files.export_manifest import MANIFEST, ExportManifest, Part, damaged, decode

_LARGEST = 64 << 20
_IN = TypeVar("_IN")
_OUT = TypeVar("_OUT")

Advance = Callable[[int], None]
"""Callback that receives the number of further bytes done."""


@dataclass(frozen=True, slots=True, order=True)
class Damage:
    """Damage to one file of an export."""

    file: str
    problem: str
    """`missing`, `extra`, `truncated`, `longer`, `changed` or `unreadable`."""
    detail: str
    """Description, with the file's name."""


def folder_of(text: str) -> Path:
    """Return the folder of a path. Raises UsageError for a URL: kvctl itself lists, hashes and renames the files."""
    if not text:
        raise UsageError("The path is empty")
    if "://" in text:
        raise UsageError(
            f"`{text}` is not a path", hint="Mount the storage under the same path for kvctl and all executors"
        )
    return Path(os.path.abspath(text))


def has_manifest(folder: Path) -> bool:
    """Return whether the folder is an export, complete or damaged."""
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> ExportManifest:
    """Read the manifest of an export. Raises NotFoundError without a folder, ConflictError for an incomplete export."""
    path = folder / MANIFEST
    try:
        if path.stat().st_size > _LARGEST:
            raise damaged(str(folder), f"`{MANIFEST}` is too large")
        return decode(path.read_bytes(), str(folder))
    except (FileNotFoundError, NotADirectoryError):
        if not folder.exists():
            raise NotFoundError(f"`{folder}` does not exist") from None
        raise ConflictError(
            f"`{folder}` is not a complete export: `{MANIFEST}` is missing",
            hint="The export was interrupted: run it again with `--overwrite`",
        ) from None
    except OSError as error:
        raise KvctlError(f"Could not read `{path}`: {error.strerror}") from None


def data_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that readers take for data: no name, or folder name, begins with `_` or `.`."""
    yield from _data_files(folder, frozenset({folder.resolve()}))


def _data_files(folder: Path, above: frozenset[Path]) -> Iterator[Path]:
    """Yield them through linked folders, too, as Spark does; links to folders above are not followed."""
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith(("_", ".")))
    except OSError:
        return
    yield from (path for path in paths if not path.is_dir())
    for path in paths:
        if path.is_dir() and (place := path.resolve()) not in above:
            yield from _data_files(path, above | {place})


def damages(folder: Path, manifest: ExportManifest, advance: Advance = lambda _: None) -> list[Damage]:
    """Return all differences between an export and its manifest, by file; empty for a complete one."""
    known = {part.name for part in manifest.files}
    extra = [str(path.relative_to(folder)) for path in data_files(folder)]
    found = [Damage(name, "extra", f"`{name}` does not belong to it") for name in extra if name not in known]
    compared = in_parallel(lambda part: _compared(folder, part, advance), manifest.files)
    return sorted([*found, *(damage for damage in compared if damage)])


def require_whole(folder: Path, manifest: ExportManifest, advance: Advance = lambda _: None) -> None:
    """Raises ConflictError that names each file that is not as written."""
    found = damages(folder, manifest, advance)
    if found:
        raise damaged(str(folder), in_words(found))


def in_words(found: list[Damage], shown: int = 20) -> str:
    """Return the damages as one text."""
    more = f" and {len(found) - shown} more" if len(found) > shown else ""
    return ", ".join(damage.detail for damage in found[:shown]) + more


def in_parallel(work: Callable[[_IN], _OUT], items: Iterable[_IN]) -> list[_OUT]:
    """Apply the work to each item, on all cores: hashing and disk waits release other threads."""
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 16), "files") as pool:
        return list(pool.map(work, items))


def _compared(folder: Path, expected: Part, advance: Advance) -> Damage | None:
    name, checksum = expected.name, Checksum()
    try:
        with (folder / name).open("rb", buffering=0) as file:
            found = os.fstat(file.fileno()).st_size
            if found != expected.bytes:
                problem = "truncated" if found < expected.bytes else "longer"
                return Damage(name, problem, f"`{name}` has {found} bytes instead of {expected.bytes}")
            for block in checksum.read(file):
                advance(len(block))
    except FileNotFoundError:
        return Damage(name, "missing", f"`{name}` is missing")
    except OSError as error:
        return Damage(name, "unreadable", f"`{name}` cannot be read: {error.strerror}")
    if checksum.sha256 != expected.sha256:
        return Damage(name, "changed", f"`{name}` has been changed")
    return None
