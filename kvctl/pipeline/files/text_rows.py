"""Rows as lines of JSON and CSV: text as it is, other values as base64."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

CSV_HEADING = b"key,revision,created,operation,value,encoding,ttl,headers\n"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PLAIN = re.compile(r"[\w./=+:-]+", re.ASCII)
"""Text that CSV does not put in quotes."""

_Row = tuple[str, bytes | None, int | None, str, str, float | None, Sequence[tuple[str, str]] | None]


def encoded(rows: pa.Table, format: str, bucket: str) -> bytes:
    """Return the rows, of the columns of an export, as lines of `json` or `csv`."""
    moments = pc.strftime(rows["created"].cast(pa.timestamp("us")), format="%Y-%m-%dT%H:%M:%SZ")
    names = ("key", "value", "revision", "operation", "ttl", "headers")
    key, value, revision, operation, ttl, headers = (rows[name].to_pylist() for name in names)
    found: Iterator[_Row] = zip(key, value, revision, moments.to_pylist(), operation, ttl, headers, strict=True)
    lines = _json_lines(found, bucket) if format == "json" else _csv_lines(found)
    return "".join(lines).encode()


def _json_lines(rows: Iterator[_Row], bucket: str) -> Iterator[str]:
    head = f'{{"bucket":{encode_basestring(bucket)},"key":'
    for key, value, revision, created, operation, ttl, headers in rows:
        text, encoding = _text(value)
        numbered = "" if revision is None else f',"revision":{revision}'
        rest = "" if ttl is None else f',"ttl":{ttl!r}'
        if headers is not None:
            rest += f',"headers":{_object(headers)}'
        yield (
            f'{head}{encode_basestring(key)}{numbered},"created":"{created}","operation":"{operation}",'
            f'"value":{encode_basestring(text)},"encoding":"{encoding}"{rest}}}\n'
        )


def _csv_lines(rows: Iterator[_Row]) -> Iterator[str]:
    """Yield records; those with control characters in a value have it as base64, so a record is a line."""
    for key, value, revision, created, operation, ttl, headers in rows:
        text, encoding = _text(value)
        if encoding == "utf-8" and _CONTROL.search(text):
            text, encoding = _base64(value or b""), "base64"
        fields = (
            _field(key), "" if revision is None else str(revision), created, operation, _field(text), encoding,
            "" if ttl is None else repr(ttl), "" if headers is None else _field(_object(headers)),
        )  # fmt: skip
        yield f"{','.join(fields)}\n"


def _text(value: bytes | None) -> tuple[str, str]:
    """Return a value as text, and its encoding; a marker usually has no value."""
    try:
        return (value or b"").decode(), "utf-8"
    except UnicodeDecodeError:
        return _base64(value or b""), "base64"


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _field(text: str) -> str:
    """Return a text as a field; an empty one in quotes, as without them it is null."""
    return text if _PLAIN.fullmatch(text) else '"' + text.replace('"', '""') + '"'


def _object(headers: Any) -> str:
    return json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":"))
