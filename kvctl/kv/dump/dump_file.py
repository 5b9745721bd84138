"""Dump files: written with a hash, and verified before use."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, BinaryIO

from kvctl.documents.checksum import Checksum
from kvctl.errors import ConflictError
from kvctl.kv.dump.dump_format import VERSION, header_line, trailer_line

BLOCK = 1 << 20
_LONGEST_TRAILER = 4096
_BEGIN = b'{"kvctl": "dump"'
_MARKS = (b'"kvctl"', b'"dump"', b'"config"', b'"cut"', b'"version"')
"""Parts of a header; a damaged one lacks some of them."""


class DumpWriter:
    """Writer of a dump into a file that can be read and rewritten, from its current position."""

    def __init__(self, file: BinaryIO, header: dict[str, Any]) -> None:
        self._file = file
        self._header = header
        self._begin = file.tell()
        self._checksum = Checksum()
        self.entries = 0
        self._write(header_line(header, exact=True))

    def add(self, lines: bytes, count: int) -> None:
        """Append `count` entries as lines."""
        self.entries += count
        self._write(lines)

    def finish(self, *, exact: bool) -> str:
        """Write the last line and return the hash; rewrite the first line, which says if the dump is exact."""
        if not exact:
            self._file.seek(self._begin)
            self._file.write(header_line(self._header, exact=False))
            self._file.seek(self._begin)
            self._checksum = Checksum()
            for _ in self._checksum.read(self._file):
                pass
        sha256 = self._checksum.sha256
        self._file.write(trailer_line(self.entries, sha256))
        self._file.flush()
        return sha256

    def _write(self, data: bytes) -> None:
        self._checksum.add(data)
        self._file.write(data)


@dataclass(frozen=True, slots=True)
class DumpFile:
    """Header, extent and damage of a dump file."""

    header: dict[str, Any]
    body: int
    """Offset of the first entry in bytes."""
    end: int
    """Offset of the end of the entries."""
    damage: str | None
    """Description of the damage; None for an intact file."""

    @property
    def history(self) -> bool:
        """True if it has every entry rather than the last of each key."""
        return bool(self.header.get("history"))


def is_dump(first_line: bytes) -> bool:
    """Return True if a file that begins with this line is a dump, intact or damaged."""
    marks = sum(mark in first_line for mark in _MARKS)
    return first_line.startswith(_BEGIN) or (marks > 2 and b'"key":' not in first_line)


def inspect(file: BinaryIO, name: str) -> DumpFile:
    """Read the dump's header and last line and compare the hash. Raises ConflictError for one of a newer version."""
    file.seek(0)
    first = file.readline(BLOCK)
    size = file.seek(0, os.SEEK_END)
    header = _parsed(first)
    if not isinstance(header.get("version"), int):
        return DumpFile({}, len(first), size, "its first line is not a header")
    if header["version"] > VERSION:
        raise ConflictError(
            f"The dump `{name}` has version {header['version']}; this kvctl supports version {VERSION}",
            hint="Use a newer kvctl",
        )
    trailer, end = _last_line(file, size)
    if trailer is None:
        return DumpFile(header, len(first), size, "its last line is missing: the file is truncated")
    return DumpFile(header, len(first), end, _difference(file, len(first), end, trailer))


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _last_line(file: BinaryIO, size: int) -> tuple[dict[str, Any] | None, int]:
    """Return the trailer and its offset; None if the last line is not a trailer."""
    start = max(size - _LONGEST_TRAILER, 0)
    file.seek(start)
    tail = file.read(_LONGEST_TRAILER)
    at = tail.rstrip(b"\r\n").rfind(b"\n") + 1
    trailer = _parsed(tail[at:])
    if trailer.keys() != {"entries", "sha256"}:
        return None, size
    return trailer, start + at


def _difference(file: BinaryIO, body: int, end: int, trailer: dict[str, Any]) -> str | None:
    file.seek(0)
    checksum = Checksum(file.read(body))
    lines = sum(block.count(b"\n") for block in checksum.read(file, end - body))
    if lines != trailer["entries"]:
        return f"it holds {lines} entries instead of {trailer['entries']}"
    return None if checksum.sha256 == trailer["sha256"] else "it has been changed"
