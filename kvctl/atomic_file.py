"""Atomic file writes: under a random name, flushed to disk, then renamed.

Readers see the previous file or the new one. The random name is created exclusively: nobody can plant a file or a link
under it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".part"
"""Suffix of the temporary names, which a killed process leaves behind."""
PRIVATE = 0o600
"""Mode of a file that may hold secrets or values."""
PUBLIC = 0o666
"""Mode of a file that the umask alone restricts."""


@contextmanager
def replacing(
    path: Path, *, mode: int = PRIVATE, beside: Path | None = None, buffering: int = -1
) -> Iterator[BinaryIO]:
    """Open a temporary file that becomes `path` when the block ends; removed if the block raises.

    The temporary file is created in the folder of `path`, or in `beside` on the same file system. Raises OSError.
    """
    temporary = (beside or path.parent) / f".{path.name}.{os.urandom(4).hex()}{PARTIAL}"
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "w+b", buffering=buffering) as file:
            yield file
            file.flush()
            os.fsync(descriptor)
            os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    with suppress(OSError):
        flush_folder(path.parent)


def replace(path: Path, data: bytes, *, mode: int = PRIVATE, beside: Path | None = None) -> None:
    """Replace the content of a file atomically. Raises OSError."""
    with replacing(path, mode=mode, beside=beside) as file:
        file.write(data)


def open_regular(path: Path, *, buffering: int = -1) -> BinaryIO:
    """Open a file to read. Raises OSError, also for a pipe, on which it would wait, and for a link."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(errno.EINVAL, "It is not a regular file")
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb", buffering=buffering)


def flush_folder(folder: Path) -> None:
    """Make renames, creations and removals in a folder survive a power failure, where its file system supports that."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
