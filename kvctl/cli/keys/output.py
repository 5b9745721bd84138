"""Output of the key commands: entries as rows and streams, and warnings about TTLs."""

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import timedelta
from functools import partial
from json.encoder import encode_basestring
from typing import Any

import kvctl
from kvctl.cli.app.session import Session
from kvctl.cli.records import WRITE
from kvctl.errors import KvctlError
from kvctl.kv import copied_entry
from kvctl.phrases import counted
from kvctl.render.escapes import text_of, utf8
from kvctl.render.fields import columns
from kvctl.render.view import Column, Row, View, duration_text, moment_text
from kvctl.units import NEVER, SECOND_NS, duration_ns, format_duration, format_size, format_time, ttl_field

ENCODINGS = ("utf-8", "base64")
_FRACTION = 9
"""Digits of a time in nanoseconds that are below the second."""


class Shape:
    """Fields of the rows of one output."""

    def __init__(
        self,
        *,
        encoding: str | None = None,
        headers: bool = False,
        meta_only: bool = False,
        table: bool = False,
        live: bool = False,
    ) -> None:
        self.encoding = encoding
        self.headers = headers
        self.meta_only = meta_only
        self.table = table
        self.live = live
        """Table of changes, with the time first."""

    def row(self, entry: "kvctl.Entry") -> Row:
        """Return the entry's JSON object, or with `table` its row for a terminal. Raises KvctlError."""
        return self._table_row(entry) if self.table else self._object(entry)

    def lines(self, entries: "Sequence[kvctl.Entry]") -> bytes:
        """Encode entries as ndjson, identical to the ndjson writer but five times as fast. Raises as `row`."""
        plain = not (self.meta_only or self.headers or self.encoding == "base64")
        if plain:
            return utf8("".join(self._lines(entries)))
        return utf8("".join([self._line(entry) for entry in entries]))

    def records(self, entries: "Sequence[kvctl.Entry]") -> list[Row]:
        """Return rows with the columns of `view` alone, twice as fast as `row`. Raises as `row`."""
        if self.meta_only or self.headers or self.encoding == "base64":
            return [self._object(entry) for entry in entries]
        return [
            self._object(entry)
            if text is None
            else {
                "bucket": entry.bucket, "key": entry.key, "revision": entry.revision, "created": created,
                "operation": "PUT", "value": text, "encoding": "utf-8",
            }
            for entry, created, text in _plain(entries)
        ]  # fmt: skip

    def _lines(self, entries: "Sequence[kvctl.Entry]") -> list[str]:
        """Format entries with only the basic fields and a text value directly, others by way of their object."""
        lines, bucket, begin = [], None, ""
        for entry, created, text in _plain(entries):
            if text is None:
                lines.append(self._line(entry))
                continue
            if entry.bucket is not bucket:
                bucket, begin = entry.bucket, f'{{"bucket": {encode_basestring(entry.bucket)}, "key": '
            lines.append(
                f'{begin}{encode_basestring(entry.key)}, "revision": {entry.revision}, '
                f'"created": "{created}", "operation": "PUT", "value": {encode_basestring(text)}, '
                f'"encoding": "utf-8", "delta": {entry.delta}}}\n'
            )
        return lines

    def _line(self, entry: "kvctl.Entry") -> str:
        return f"{_encode(self._object(entry))}\n"

    def view(self, **settings: Any) -> View:
        """Return a view of such rows."""
        shown = _table_columns(self) if self.table else _record_columns(self)
        return View(columns=shown, name="key", **settings)

    def document(self, entry: "kvctl.Entry") -> View:
        """Return a view of one entry: an object in JSON, one field per line on a terminal."""
        self.table = False
        record = _record_columns(self)
        told = {"created": Column("created", text=moment_text), "ttl": Column("ttl", text=partial(_lifetime, entry))}
        shown = columns(" ".join([*(column.key for column in record), *"reason delta stream ttl".split()]), **told)
        tsv = [column.key for column in record]
        return View(columns=shown, tsv=tsv, name="key", rows=[self.row(entry)], single=True)

    def _object(self, entry: "kvctl.Entry") -> dict[str, Any]:
        row: dict[str, Any] = {
            "bucket": entry.bucket,
            "key": entry.key,
            "revision": entry.revision,
            "created": format_time(entry.created_ns),
            "operation": str(entry.operation),
        }
        if self.meta_only:
            row["size"] = entry.size
        else:
            row["value"], row["encoding"] = encode(entry, self.encoding)
        if entry.reason is not None:
            row["reason"] = entry.reason
        if entry.delta is not None:
            row["delta"] = entry.delta
        if entry.stream is not None:
            row["stream"] = entry.stream
        if not entry.bare:
            self._add_headers(row, entry)
        elif self.headers:
            row["headers"] = {}
        return row

    def _add_headers(self, row: dict[str, Any], entry: "kvctl.Entry") -> None:
        ttl = entry.ttl
        if ttl is not None:
            row["ttl"] = ttl_field(ttl)
        if self.headers:
            row["headers"] = entry.headers

    def _table_row(self, entry: "kvctl.Entry") -> dict[str, Any]:
        row: dict[str, Any] = {
            "created": format_time(entry.created_ns),
            "operation": str(entry.operation),
            "key": entry.key,
            "revision": entry.revision,
        }
        if self.meta_only:
            row["size"] = entry.size
        else:
            row["value"] = _words(entry, self.encoding)
        if not self.live:
            row["expires"] = time_left(entry)
        if self.headers:
            row["headers"] = entry.headers
        return row


def encode(entry: "kvctl.Entry", wanted: str | None = None) -> tuple[str, str]:
    """Return the value as text with its encoding, UTF-8 or else base64. Raises KvctlError if `wanted` UTF-8 fails."""
    try:
        return text_of(entry.value, wanted)
    except KvctlError:
        hint = "Use `--encoding base64` to show any value"
        raise KvctlError(f"The value of `{entry.key}` is not UTF-8", hint=hint) from None


def _plain(entries: "Sequence[kvctl.Entry]") -> "Iterator[tuple[kvctl.Entry, str, str | None]]":
    """Yield entries, with time and text of those that have only the basic fields and a text value."""
    second = begin = ""
    for entry in entries:
        _, _, value, _, created_ns, operation, delta, stream, reason, header = entry
        time = str(created_ns)
        if (
            operation == "PUT" and delta is not None and stream is reason is None
            and len(time) > _FRACTION and (not header or entry.bare)
        ):  # fmt: skip
            try:
                text = value.decode()
            except UnicodeDecodeError:
                yield entry, "", None
                continue
            if time[:-_FRACTION] != second:
                second, begin = time[:-_FRACTION], format_time(created_ns)[: -_FRACTION - 1]
            yield entry, f"{begin}{time[-_FRACTION:]}Z", text
        else:
            yield entry, "", None


_encode = json.JSONEncoder(ensure_ascii=False).encode


def writing_view(rows: Sequence[Row], *, single: bool) -> View:
    """Return a view of written keys: only the revisions in a pipe, in JSON `{bucket, key, revision}`."""
    shown = columns("revision" if single else "key revision")
    return View(columns=shown, tsv=WRITE.columns, rows=rows, single=single, name="key", light=True)


def revision_view(bucket: str, key: str, revision: int) -> View:
    """Show the new revision of one key."""
    return writing_view([{"bucket": bucket, "key": key, "revision": revision}], single=True)


def time_left(entry: "kvctl.Entry") -> int | None:
    """Return the nanoseconds until an entry expires by its own ttl, None if it has none."""
    ttl = None if entry.bare else entry.ttl
    return None if ttl in (None, NEVER) else entry.created_ns + duration_ns(ttl) - time.time_ns()


def _left_text(nanoseconds: int) -> str:
    """Format what is left of a ttl in its largest unit: `34m`, `2d`."""
    seconds = max(nanoseconds // SECOND_NS, 1)
    unit = next((size for size in (86400, 3600, 60) if seconds >= 2 * size), 1)
    return duration_text(seconds - seconds % unit)


def _lifetime(entry: "kvctl.Entry", ttl: float | str) -> str:
    """Return the ttl of a key and what is left of it: `1h, expires in 34m`."""
    if isinstance(ttl, str):
        return ttl
    left = entry.created_ns + int(ttl * SECOND_NS) - time.time_ns()
    return f"{duration_text(ttl)}, " + (f"expires in {_left_text(left)}" if left > 0 else "expired")


def _words(entry: "kvctl.Entry", encoding: str | None) -> str:
    if entry.reason is not None:
        return f"({entry.reason})"
    text, kind = encode(entry, encoding)
    return text if kind == "utf-8" or encoding else f"({format_size(len(entry.value))} of binary data)"


def _record_columns(shape: Shape) -> list[Column]:
    names = ["bucket", "key", "revision", "created", "operation"]
    names += ["size"] if shape.meta_only else ["value", "encoding"]
    return [Column(name) for name in [*names, *(["headers"] if shape.headers else [])]]


def _table_columns(shape: Shape) -> Sequence[Column]:
    size = Column("size", text=format_size, right=True)
    looks = {"created": Column("created", "Time", text=lambda time: f"{time[:19]}Z")} if shape.live else {}
    names = "created operation revision" if shape.live else "revision created operation expires"
    names += " size key" if shape.meta_only else " key value"
    return columns(f"{names} headers" if shape.headers else names, size=size, expires=EXPIRES, **looks)


EXPIRES = Column("expires", "Expires in", text=_left_text, rare=True)
MARK = {"event": "current"}
"""Event that marks the end of the initial entries."""


async def show_entries(
    session: Session,
    shape: Shape,
    batches: AsyncGenerator[list["kvctl.Entry"], None],
    *,
    endless: bool = False,
    empty: str = "",
    marked: str | None = None,
) -> None:
    """Print batches of entries, and take the next batch when the last one is written.

    With `marked`, an empty batch marks the end of the initial entries: an event for programs, the note for a terminal.
    """
    shape.table = session.output == "table"
    if session.output in (("ndjson", "json") if endless else ("ndjson",)) and not session.terminal.is_terminal:
        await session.stream_bytes(_lines(shape, batches, marked))
    else:
        rows = _rows(session, shape, batches, marked)
        await session.stream(shape.view(empty=empty), rows, endless=endless)


async def _lines(
    shape: Shape, batches: AsyncGenerator[list["kvctl.Entry"], None], marked: str | None
) -> AsyncIterator[bytes]:
    async with aclosing(batches):
        async for batch in batches:
            yield shape.lines(batch) if batch or marked is None else b'{"event": "current"}\n'


async def _rows(
    session: Session, shape: Shape, batches: AsyncGenerator[list["kvctl.Entry"], None], marked: str | None
) -> AsyncIterator[Sequence[Row]]:
    records = session.output == "tsv" and not session.options.columns
    async with aclosing(batches):
        async for batch in batches:
            if batch or marked is None:
                yield shape.records(batch) if records else [shape.row(entry) for entry in batch]
            elif session.output in ("json", "ndjson", "yaml"):
                yield [MARK]
            elif shape.table and marked:
                session.note(marked)


NAMED = 10
"""Maximum number of keys to name in warnings."""


async def warn_of_return(session: Session, bucket: "kvctl.Bucket", keys: Sequence[str]) -> None:
    """Warn about keys just written with a ttl whose previous values will reappear; silent if they are unreadable."""
    with suppress(KvctlError):
        found = await copied_entry.returning(bucket, keys)
        _warn_of_each(
            session,
            [
                f"When `{entry.key}` expires, its value at revision {entry.revision} reappears, because bucket "
                f"`{bucket.name}` keeps history"
                for entry in found
            ],
        )


async def warn_of_other_life(session: Session, bucket: "kvctl.Bucket", ttls: Mapping[str, timedelta]) -> None:
    """Warn about keys just written with a ttl that expire earlier or later; silent if that cannot be read."""
    with suppress(KvctlError):
        most = await copied_entry.bucket_ttl(bucket)
        entries = await bucket.get_many(list(ttls), leader=True)
        living = [entry for entry in entries if entry is not None]
        texts = [text for entry in living if (text := _other_life(bucket.name, entry, ttls[entry.key], most))]
        _warn_of_each(session, texts)


def _warn_of_each(session: Session, texts: Sequence[str]) -> None:
    """Warn of the first keys, and of the number of the others."""
    for text in texts[:NAMED]:
        session.warn(text)
    if (more := len(texts) - NAMED) > 0:
        session.warn(f"{counted(more, 'more key')} {'is' if more == 1 else 'are'} affected")


def _other_life(bucket: str, entry: "kvctl.Entry", ttl: timedelta, most: timedelta | None) -> str | None:
    lives = ttl if entry.ttl is None else entry.ttl
    if lives == NEVER:
        return None
    if most is not None and most < lives:
        return f"`{entry.key}` expires after {format_duration(most)}, the ttl of bucket `{bucket}`"
    if lives > ttl:
        return (
            f"`{entry.key}` expires after {format_duration(lives)}, the marker ttl of bucket `{bucket}`, "
            "because the bucket keeps history"
        )
    return None


async def warn_of_shorter_life(
    session: Session, source: "kvctl.Bucket", key: str, target: "kvctl.Bucket", new_key: str
) -> None:
    """Warn if the ttl of the target bucket ends a value earlier than in its own; silent if that cannot be read."""
    if source is target:
        return
    with suppress(KvctlError):
        most = await copied_entry.bucket_ttl(target)
        if most is None:
            return
        left = await copied_entry.time_left(source, await source.get(key, leader=True))
        if left is None or left > most:
            session.warn(
                f"`{new_key}` expires after {format_duration(most)}, the ttl of bucket `{target.name}`; "
                f"in bucket `{source.name}` it would {_end(left)}"
            )


def _end(left: timedelta | None) -> str:
    if left is None:
        return "not expire"
    return f"live for {format_duration(timedelta(seconds=round(left.total_seconds())))}"
