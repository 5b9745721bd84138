"""Dumps: a header line, one line for each entry, and a footer with the count and a checksum; written from a bucket."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Any, BinaryIO

from kvctl.documents.checksum import Checksum
from kvctl.errors import ConflictError, RefusedError
from kvctl.jetstream.streams import ServerClock
from kvctl.kv.bucket import Bucket
from kvctl.kv.copied_entry import own_headers, ttl_left
from kvctl.kv.entry import Entry, Operation, from_frame, from_message
from kvctl.kv.identity import is_bare
from kvctl.kv.read.moment import Moment
from kvctl.kv.read.snapshot_reader import SnapshotReading
from kvctl.kv.resolve import Binding
from kvctl.kv.stream_kind import Kind, kind_of
from kvctl.units import format_time, ttl_field
from kvctl.wire import RawFrame, header_value

VERSION = 1
_FRACTION = 9
"""Digits of a time in nanoseconds that are below the second."""
_text = json.JSONEncoder(ensure_ascii=False).encode
BLOCK = 1 << 20
_LONGEST_TRAILER = 4096
_BEGIN = b'{"kvctl": "dump"'
_MARKS = (b'"kvctl"', b'"dump"', b'"config"', b'"cut"', b'"version"')
"""Parts of a header; a damaged one lacks some of them."""


def header_line(header: dict[str, Any], *, exact: bool) -> bytes:
    """Return the first line; its length does not depend on `exact`, so that it can be rewritten in place."""
    return _text({"kvctl": "dump", "version": VERSION, **header})[:-1].encode("utf-8", "backslashreplace") + (
        b', "exact": true }\n' if exact else b', "exact": false}\n'
    )


def trailer_line(entries: int, sha256: str) -> bytes:
    """Return the last line: the number of entries and the hash of every byte before it."""
    return _text({"entries": entries, "sha256": sha256}).encode() + b"\n"


def entry_line(bucket: str, key: str, value: bytes) -> bytes:
    """Return the line of an entry that has only key and value."""
    row: dict[str, Any] = {"bucket": bucket, "key": key, "operation": str(Operation.PUT)}
    _add_value(row, value)
    return f"{_text(row)}\n".encode("utf-8", "backslashreplace")


class EntryLines:
    """Formatter of a bucket's messages as the lines of a dump."""

    def __init__(self, bucket: str, prefix: str, clock: ServerClock) -> None:
        self._bucket = bucket
        self._clock = clock
        self._cut = len(prefix.encode())
        self._begin = f'{{"bucket": {encode_basestring(bucket)}, "key": '
        self._seconds, self._shown = "", ""

    def of_frames(self, frames: Sequence[RawFrame]) -> bytes:
        """Format a consumer's messages."""
        try:
            text = "".join(self._lines(frames))
        except UnicodeDecodeError:
            text = "".join([self._full_line(from_frame(self._bucket, self._cut, frame)) for frame in frames])
        return text.encode("utf-8", "backslashreplace")

    def of_entries(self, entries: Sequence[Entry]) -> bytes:
        """Format entries."""
        return "".join([self._full_line(entry) for entry in entries]).encode("utf-8", "backslashreplace")

    def _lines(self, frames: Sequence[RawFrame]) -> list[str]:
        """Format messages without headers directly, others by way of their entry.

        Raises UnicodeDecodeError for a value that is not text.
        """
        begin, cut, seconds, shown = self._begin, self._cut, self._seconds, self._shown
        lines = []
        for frame in frames:
            subject, reply, header, payload = frame
            tokens = reply.decode().split(".")
            sequence, time = (tokens[5], tokens[7]) if len(tokens) == 9 else (tokens[7], tokens[9])
            if (header and not is_bare(header)) or len(time) <= _FRACTION:
                lines.append(self._full_line(from_frame(self._bucket, cut, frame)))
                continue
            if time[:-_FRACTION] != seconds:
                seconds = time[:-_FRACTION]
                shown = format_time(int(time))[: -_FRACTION - 1]
            lines.append(
                f'{begin}{encode_basestring(subject[cut:].decode(errors="surrogateescape"))}, "revision": {sequence}, '
                f'"created": "{shown}{time[-_FRACTION:]}Z", "operation": "PUT", '
                f'"value": {encode_basestring(payload.decode())}, "encoding": "utf-8"}}\n'
            )
        self._seconds, self._shown = seconds, shown
        return lines

    def _full_line(self, entry: Entry) -> str:
        row: dict[str, Any] = {
            "bucket": entry.bucket,
            "key": entry.key,
            "revision": entry.revision,
            "created": format_time(entry.created_ns),
            "operation": str(entry.operation),
        }
        _add_value(row, entry.value)
        if entry.header:
            _add_headers(row, entry, self._clock)
        return f"{_text(row)}\n"


def _add_value(row: dict[str, Any], value: bytes) -> None:
    try:
        row["value"], row["encoding"] = value.decode(), "utf-8"
    except UnicodeDecodeError:
        row["value"], row["encoding"] = base64.b64encode(value).decode(), "base64"


def _add_headers(row: dict[str, Any], entry: Entry, clock: ServerClock) -> None:
    """Add what the headers say: reason, remaining ttl, the writer's own headers, and a purge that erased nothing."""
    if entry.reason is not None:
        row["reason"] = entry.reason
    left = ttl_left(entry, clock.now_ns())
    if left is not None:
        row["ttl"] = ttl_field(left)
    headers = own_headers(entry)
    if headers.get("KV-Operation") == entry.operation:
        del headers["KV-Operation"]
    if headers:
        row["headers"] = headers
    if entry.operation is Operation.PURGE and header_value(entry.header, b"Nats-Rollup") is None:
        row["rollup"] = False


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
    except (ValueError, RecursionError):
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


Advance = Callable[[int], None]
"""Called with the number of entries done."""


@dataclass(frozen=True, slots=True)
class DumpSummary:
    """Result of a dump."""

    entries: int
    cut: int | str
    """Snapshot revision; for a repository, a commit's id."""
    sha256: str
    lost: list[str] = field(default_factory=list)
    """Keys with entries that were, or may have been, overwritten before they could be read."""
    vanished: int = 0
    """Number of entries that were removed without a trace."""
    caveat: str | None = None
    """For a dump of the past: a sentence on entries that may nevertheless be missing."""

    @property
    def exact(self) -> bool:
        """True if it equals the bucket at the snapshot revision, except for entries that expired during the dump."""
        return not (self.lost or self.vanished or self.caveat)


async def dump(
    bucket: Bucket,
    file: BinaryIO,
    filters: Sequence[str] = (),
    *,
    history: bool = False,
    advance: Advance = lambda _: None,
    expecting: Callable[[int | None], None] = lambda _: None,
) -> DumpSummary:
    """Write the live keys, or with `history` every entry, as of the bucket's last revision, into an empty file.

    `expecting` is called once with the expected number of entries, if known.
    Raises BucketNotFound, RefusedError for the leftovers of an interrupted restore, OSError.
    """
    binding = await bucket.locate(fresh=True)
    assert binding.info is not None
    clock = ServerClock.from_info(binding.info)
    if kind_of(binding.info["config"]) is Kind.INCOMPLETE:
        raise RefusedError(f"`{bucket.name}` is incomplete: an interrupted restore or copy left it")
    cut = int(binding.info["state"]["last_seq"])
    writer = DumpWriter(file, header(binding, filters, cut, clock, history=history))
    lines = EntryLines(bucket.name, binding.prefix, clock)
    reading = SnapshotReading(binding, filters, cut, history=history)
    expecting(reading.expected)
    async with aclosing(reading.batches()) as batches:
        async for frames in batches:
            writer.add(lines.of_frames(frames), len(frames))
            advance(len(frames))
    async with aclosing(reading.missed()) as found:
        async for messages in found:
            entries = [from_message(binding.bucket, len(binding.prefix), message) for message in messages]
            living = [entry for entry in entries if entry.operation is Operation.PUT]
            writer.add(lines.of_entries(living), len(living))
    lost = [subject[len(binding.prefix.encode()) :].decode(errors="surrogateescape") for subject in reading.lost]
    sha256 = writer.finish(exact=not (lost or reading.vanished))
    return DumpSummary(writer.entries, cut, sha256, lost, reading.vanished)


async def dump_past(
    bucket: Bucket, moment: Moment, file: BinaryIO, filters: Sequence[str] = (), *, advance: Advance = lambda _: None
) -> DumpSummary:
    """Write the keys that lived at a past moment into an empty file.

    Raises HistoryLost if the bucket no longer has them all, RevisionNotFound, BucketNotFound, OSError.
    """
    past = await bucket.as_of(moment)
    writer = DumpWriter(file, header(bucket.binding, filters, past.revision, past.clock, history=False))
    lines = EntryLines(bucket.name, bucket.binding.prefix, past.clock)
    async with aclosing(past.entry_batches(*filters)) as batches:
        async for entries in batches:
            writer.add(lines.of_entries(entries), len(entries))
            advance(len(entries))
    sha256 = writer.finish(exact=past.caveat is None)
    return DumpSummary(writer.entries, past.revision, sha256, caveat=past.caveat)


def header(binding: Binding, filters: Sequence[str], cut: int, clock: ServerClock, *, history: bool) -> dict[str, Any]:
    """Build the fields of a dump's first line, except its kind and version."""
    assert binding.info is not None
    return {
        "bucket": binding.bucket,
        "config": binding.info["config"],
        "cut": cut,
        "created": format_time(clock.now_ns()),
        "history": history,
        **({"filters": list(filters)} if filters else {}),
    }
