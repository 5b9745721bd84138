"""A folder replaced by another at once: made beside it, and put in its place when it is whole.

.NAME.kvctl-0a1b2c3d/new    what is being made
.NAME.kvctl-0a1b2c3d/old    what it takes the place of, for the moment between two renames
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
    """A place for the folder's successor, on the same disk, which goes at the end. Raises KvctlError.

    What killed processes left there goes first; a folder that one of them had moved away comes back.
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
        raise KvctlError(f"`{folder}` cannot be written: {error.strerror}") from None


def take_place(folder: Path, new: Path) -> None:
    """Put what was made in the folder's place; whoever looks meets one or the other, or for a moment neither."""
    old = new.with_name(OLD)
    if folder.exists():
        os.rename(folder, old)
    os.rename(new, folder)
    flush_folder(folder.parent)


def _tidy(folder: Path) -> None:
    for place in folder.parent.glob(f"{escape(_prefix(folder))}*"):
        with suppress(BlockingIOError, FileNotFoundError), _held(place):  # unless it is of a process that lives
            if (place / OLD).exists() and not folder.exists():
                os.rename(place / OLD, folder)
            shutil.rmtree(place)


@contextmanager
def _held(place: Path) -> Iterator[None]:
    """The place as this process's own. Raises BlockingIOError while it is another's."""
    handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _prefix(folder: Path) -> str:
    return f".{folder.name}.kvctl-"
