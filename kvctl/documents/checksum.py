"""SHA-256 checksums of files, of data as it is written, and of JSON documents."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Protocol

BLOCK_BYTES = 1 << 20
"""Number of bytes to read from a file at once: large enough that hashing takes most of the time."""


class _Readable(Protocol):
    """Protocol for files that are open for reading, buffered or not."""

    def read(self, size: int, /) -> bytes | None:
        """Return at most `size` bytes, none at the end."""


class Checksum:
    """SHA-256 and size of data that is added block by block."""

    def __init__(self, data: bytes = b"") -> None:
        self._digest = hashlib.sha256(data)
        self.size = len(data)
        """Number of bytes added."""

    @property
    def sha256(self) -> str:
        """SHA-256 of all data so far, in hexadecimal."""
        return self._digest.hexdigest()

    def add(self, block: bytes) -> None:
        """Add the next block."""
        self._digest.update(block)
        self.size += len(block)

    def read(self, file: "BinaryIO | _Readable", limit: int | None = None) -> Iterator[bytes]:
        """Read a file from its position to its end, or at most `limit` bytes, and add and yield each block."""
        left = limit
        while block := file.read(BLOCK_BYTES if left is None else min(BLOCK_BYTES, left)):
            self.add(block)
            left = None if left is None else left - len(block)
            yield block


def of_document(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a document's canonical JSON, in hexadecimal."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
