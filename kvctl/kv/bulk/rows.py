"""Rows of a load: parsed into keys, values and headers, or into the reason for rejection. [pure]"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from itertools import count
from typing import Any, NamedTuple, overload

from kvctl.errors import UsageError
from kvctl.kv.conditional_write import write_headers
from kvctl.kv.copied_entry import may_roll_up, writers_own
from kvctl.kv.entry import Operation, operation_of
from kvctl.kv.names import check_key, check_literal
from kvctl.units import NEVER, parse_ttl
from kvctl.wire import encode_headers

SHOWN = 60
"""Characters of a row's text shown in an error."""


UNCHECKED_VALUE, UNCHECKED_KEY = 1 << 15, 1500
"""Bytes of a value, if the server's limit is higher, and of a conforming key that need no check."""


class Mode(StrEnum):
    """Selection of the rows to write."""

    PUT = "put"
    CREATE_ONLY = "create-only"
    IF_DIFFERENT = "if-different"


class Row(NamedTuple):
    """A write: a key, its value, and the headers to write it with."""

    line: int
    """Last line of the row in the input, from 1."""
    key: str
    value: bytes
    header: bytes = b""
    operation: Operation = Operation.PUT


class PlainRows(Sequence[Row]):
    """Puts of conforming keys, without headers, on consecutive lines: as columns, for a third of the cost of rows."""

    __slots__ = ("first", "keys", "values")

    def __init__(self, first: int, keys: Sequence[str], values: Sequence[bytes]) -> None:
        self.first = first
        """Line of the first row."""
        self.keys = keys
        self.values = values

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> PlainRows: ...
    def __getitem__(self, at: int | slice) -> Row | PlainRows:
        """Return a row, or those of a slice without a step."""
        if isinstance(at, slice):
            return PlainRows(self.first + at.indices(len(self))[0], self.keys[at], self.values[at])
        return Row(self.first + range(len(self))[at], self.keys[at], self.values[at])

    def __iter__(self) -> Iterator[Row]:
        return map(Row, count(self.first), self.keys, self.values)


class BadRow(NamedTuple):
    """Row that cannot be written, with the reason."""

    line: int
    reason: str


def row_of(line: int, fields: Mapping[str, Any], *, literal: bool = False) -> Row:
    """Parse an entry object or a bare row; non-conforming keys only if `literal`. Raises UsageError."""
    key = _text(fields, "key")
    (check_literal if literal else check_key)(key)
    operation = _operation(fields.get("operation", "PUT"))
    value = _value(fields, required=operation is Operation.PUT)
    header = header_of(key, operation, fields)
    # As it will be read: dumps of earlier versions have DEL for markers of expired keys.
    return Row(line, key, value, header, operation_of(header)[0])


def header_of(key: str, operation: Operation, fields: Mapping[str, Any]) -> bytes:
    """Build the header block for the fields `headers`, `ttl` and `rollup` in a write of this kind.

    Raises UsageError.
    """
    headers = _headers(fields.get("headers"))
    if operation is not Operation.PUT and not {"KV-Operation", "Nats-Marker-Reason"} & headers.keys():
        headers["KV-Operation"] = str(operation)
    if operation is Operation.PURGE and fields.get("rollup", True) and may_roll_up(key):
        headers["Nats-Rollup"] = "sub"
    ttl = _ttl(fields.get("ttl"))
    header = encode_headers(headers)
    if ttl is not None:
        header = write_headers(ttl=ttl)[:-2] + (header[10:] or b"\r\n")
    return header


def _text(fields: Mapping[str, Any], name: str) -> str:
    if name not in fields:
        raise UsageError(f"The row has no `{name}`")
    text = fields[name]
    if not isinstance(text, str):
        raise UsageError(f"`{name}` is not text")
    return text


def _operation(text: Any) -> Operation:
    try:
        return Operation(text)
    except ValueError:
        raise UsageError(f"`{text}` is not an operation: use PUT, DEL or PURGE") from None


def _value(fields: Mapping[str, Any], *, required: bool) -> bytes:
    if not required and "value" not in fields:
        return b""
    text = _text(fields, "value")
    encoding = fields.get("encoding") or "utf-8"
    try:
        if encoding == "base64":
            return base64.b64decode(text, validate=True)
        if encoding == "utf-8":
            return text.encode()
    except (binascii.Error, ValueError):
        raise UsageError(f"`value` is not {'base64' if encoding == 'base64' else 'UTF-8 text'}") from None
    raise UsageError(f"`{encoding}` is not an encoding: use utf-8 or base64")


def _ttl(value: Any) -> timedelta | None:
    if value is None or value == "":
        return None
    try:
        if isinstance(value, str):
            ttl = timedelta(seconds=float(value)) if value.isdecimal() else parse_ttl(value)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError("`ttl` is neither a number of seconds nor a duration")
        else:
            ttl = NEVER if value == math.inf else timedelta(seconds=value)  # Spark's columns have numbers alone
    except (OverflowError, ValueError):
        raise UsageError(f"`{value}` is not a ttl") from None
    if ttl < timedelta(seconds=1):
        raise UsageError("The ttl of a key must be at least 1 second")
    return ttl


def _headers(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError("`headers` is not an object")
    for name, text in value.items():
        if not isinstance(text, str) or any(c in name for c in ":\r\n ") or not name or "\r" in text or "\n" in text:
            raise UsageError(f"Header `{name}` cannot be sent")
    try:
        "".join([*value, *value.values()]).encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise UsageError("`headers` are not UTF-8 text") from None
    return writers_own(value)
