"""Replace a folder by another atomically: it is built beside it, and moved into place once it is complete.

.NAME.kvctl-0a1b2c3d/new    the new folder in progress
.NAME.kvctl-0a1b2c3d/old    the replaced folder, between two renames
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from kvctl.atomic_file import flush_folder
from kvctl.errors import KvctlError

NEW, OLD = "new", "old"


@contextmanager
def beside(folder: Path) -> Iterator[Path]:
    """Return a temporary place for the folder's successor, on the same disk. Raises KvctlError.

    Leftovers of killed processes are removed first; a folder that one of them had moved away is restored.
    """
    place = folder.parent / f"{_prefix(folder)}{secrets.token_hex(4)}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _tidy(folder)
        place.mkdir()
        with _held(place):
            try:
                yield place / NEW
            finally:
                shutil.rmtree(place, ignore_errors=True)
    except OSError as error:
        raise KvctlError(f"Could not write `{folder}`: {error.strerror}") from None


def take_place(folder: Path, new: Path) -> None:
    """Move the new folder into place; readers see one or the other, or for a moment neither."""
    old = new.with_name(OLD)
    if folder.exists():
        os.rename(folder, old)
    os.rename(new, folder)
    flush_folder(folder.parent)


def _tidy(folder: Path) -> None:
    for place in folder.parent.glob(f"{escape(_prefix(folder))}*"):
        with suppress(BlockingIOError, FileNotFoundError), _held(place):  # unless its process is still running
            if (place / OLD).exists() and not folder.exists():
                os.rename(place / OLD, folder)
            shutil.rmtree(place)


@contextmanager
def _held(place: Path) -> Iterator[None]:
    """Lock the place for this process. Raises BlockingIOError while another one holds it."""
    handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _prefix(folder: Path) -> str:
    return f".{folder.name}.kvctl-"
