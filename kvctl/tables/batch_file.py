"""Changes of a table in a file: NDJSON, or a list in YAML or JSON. [pure]"""

from __future__ import annotations

import codecs
import json
from collections import Counter
from typing import Any

from kvctl.documents import parser
from kvctl.documents.parser import Document, Path
from kvctl.documents.reader import Reader, read
from kvctl.documents.record import ENCODING, EXACT_TEXT, Choice, Field, Record, checked, or_null
from kvctl.errors import UsageError
from kvctl.tables.changes import NO_VERSION, Change, Insert, Put, Remove, Version, named
from kvctl.tables.keys import check_key


def read_changes(content: bytes, source: str) -> list[Change]:
    """Return the changes in a file, in their order. Raises UsageError with all errors, each with its place."""
    return read(_document(content, source), _changes)


def _document(content: bytes, source: str) -> Document:
    """Parse a file to a list of changes. Raises UsageError."""
    lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if _is_ndjson([line.strip() for line in lines if line.strip()]):
        numbers = [number for number, line in enumerate(lines, 1) if line.strip()]
        items = [_object(lines[number - 1], f"{source}:{number}") for number in numbers]
        return Document(items, source, {(at,): (number, 1) for at, number in enumerate(numbers)})
    if len(content) > parser.MAX_BYTES:
        text = f"{source} is larger than {parser.MAX_BYTES >> 20} MiB, the maximum of a JSON or YAML list"
        raise UsageError(text, hint="Write one change per line (NDJSON): then a batch may have 32 MiB")
    document = parser.parse(content, source)
    if isinstance(document.data, dict):
        return document
    if not isinstance(document.data, list) or not document.data:
        raise UsageError(f"{source}: A batch must be a list of changes", hint="For example `[{put: KEY, value: TEXT}]`")
    return document


def _is_ndjson(lines: list[bytes]) -> bool:
    """Return whether these non-empty lines are one object per line, not one object over several lines."""
    return len(lines) > 1 and lines[0].startswith(b"{") and (lines[0].endswith(b"}") or lines[1].startswith(b"{"))


def _object(line: bytes, where: str) -> Any:
    try:
        return json.loads(line, object_pairs_hook=_unique)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{where}: The line is not a JSON object") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise UsageError(f"`{name}` appears twice in one object")
    return dict(pairs)


def _changes(reader: Reader) -> list[Change]:
    """Read the changes, each key once."""
    found: dict[tuple[str | None, bytes], Path] = {}

    def one(path: Path) -> Change:
        change = _change(reader, path)
        first = found.setdefault((change.family, change.key), path)
        if first != path:
            reader.fail(
                path, f"{named(change.family, change.key)} appears twice in the batch, first at {reader.where(first)}"
            )
        return change

    return reader.each([()] if isinstance(reader.at(()), dict) else reader.items(()), one)


def _change(reader: Reader, path: Path) -> Change:
    verb, found = _CHANGE.read(reader, path)
    key = reader.decoded((*path, verb), found[verb], found.get("key_encoding", "utf-8"))
    family, version = found.get("family"), found.get("version") or NO_VERSION
    reader.checked((*path, verb), lambda: check_key(family, key))
    if verb == "remove":
        return Remove(key, version, family)
    value = reader.decoded((*path, "value"), found["value"], found.get("encoding", "utf-8"))
    return Insert(key, value, family) if verb == "insert" else Put(key, value, version, family)


_KEY = {"key_encoding": Field(ENCODING, "Encoding of the key"), "family": Field(or_null(EXACT_TEXT), "Key family")}
_VALUE = {
    "value": Field(EXACT_TEXT, "Value", required=True, missing="Use `''` for an empty value"),
    "encoding": Field(ENCODING, "Encoding of the value"),
}
_VERSION = {"version": Field(or_null(checked(EXACT_TEXT, Version.parse)), "Required version of the entry")}
_CHANGE = Choice(
    "a change",
    {
        verb: Record("a change", {verb: Field(EXACT_TEXT, "Key", required=True), **_KEY, **fields})
        for verb, fields in {"insert": _VALUE, "put": {**_VALUE, **_VERSION}, "remove": _VERSION}.items()
    },
)
