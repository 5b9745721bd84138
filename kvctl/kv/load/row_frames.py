"""Rows of a bulk write as runs of frames: some hundred messages encoded, sent and acknowledged together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from kvctl.kv.load.rows import PlainRows, Row
from kvctl.kv.write.identity import Series
from kvctl.wire import publish_frame

RUN_ROWS, RUN_BYTES = 250, 1 << 20
"""Maximum number of rows in a run, and of bytes if it has more than one row."""

Rows = TypeVar("Rows", bound=Sequence[Any])


def runs(rows: Rows, largest: int, most: int = RUN_ROWS) -> Iterator[Rows]:
    """Split rows into runs of at most this number, by the bytes of the largest value."""
    size = max(1, min(most, RUN_BYTES // (largest + 1)))
    for at in range(0, len(rows), size):
        yield rows[at : at + size]  # type: ignore[misc]


def separated(rows: Sequence[Row], ids: Series) -> Iterator[Sequence[Row]]:
    """Split a run so that rows without room for an identity are alone: they are known by their own answers."""
    if isinstance(rows, PlainRows) and ids.fits(b"", max(rows.values, key=len)):
        yield rows
        return
    for recognizable, group in groupby(rows, lambda row: ids.fits(row.header, row.value)):
        found = list(group)
        yield from [found] if recognizable else ([row] for row in found)


def encoder(prefix: str, ids: Series, rows: Sequence[Row]) -> Callable[[bytes], bytes]:
    """Return a function that encodes the rows as messages, each with its identity, for a reply subject."""
    if isinstance(rows, PlainRows) and ids.fits(b"", max(rows.values, key=len)):
        digits = len(f"{rows.first + len(rows):x}")
        return partial(encode_plain, prefix, ids.opening, digits, rows.first, rows.keys, rows.values)

    return partial(encode_rows, prefix, lambda row: ids.block(row.line, row.header, row.value), rows)


def encode_rows(prefix: str, block: Callable[[Row], bytes], rows: Sequence[Row], reply: bytes) -> bytes:
    """Encode rows as messages; `block` returns a row's header block."""
    return b"".join([
        publish_frame((prefix + row.key).encode(errors="surrogateescape"), reply, block(row), row.value) for row in rows
    ])  # fmt: skip


def encode_plain(
    prefix: str, opening: bytes, digits: int, first: int, keys: Sequence[str], values: Sequence[bytes], reply: bytes
) -> bytes:
    """Encode messages with header blocks that have only an opening and the row's number, in hexadecimal digits."""
    size = len(opening) + digits + 4
    start, answer, begin = (part.replace(b"%", b"%%") for part in (prefix.encode(), reply, opening))
    form = b"HPUB %b%%b %b %d %%d\r\n%b%%0%dx\r\n\r\n%%b\r\n" % (start, answer, size, begin, digits)
    names = "\n".join(keys).encode().split(b"\n")
    rows = enumerate(zip(names, values, strict=True), first)
    return b"".join([form % (key, size + len(value), number, value) for number, (key, value) in rows])
