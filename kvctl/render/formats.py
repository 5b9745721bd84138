"""Rows as bytes: json, ndjson, yaml, tab-separated, fields, names. Tables for terminals are in text_table.py."""

import json
from collections.abc import Iterable, Iterator, Sequence
from json.encoder import encode_basestring
from typing import Any, Protocol

from kvctl.deferred import pattern
from kvctl.render.escapes import escape, escape_unicode, raw_bytes, utf8
from kvctl.render.view import Row, View, arranged


class Writer(Protocol):
    """Protocol of a format, which renders one view in batches of rows."""

    def begin(self) -> bytes:
        """Return the bytes before the first row."""

    def rows(self, batch: Sequence[Row]) -> bytes:
        """Render one batch of rows."""

    def end(self) -> bytes:
        """Return the bytes after the last row."""


class Lines:
    """Base of formats with nothing before the first row or after the last."""

    def __init__(self, view: View, *, terminal: bool = False) -> None:
        self.view = view
        self.terminal = terminal

    def begin(self) -> bytes:
        return b""

    def end(self) -> bytes:
        return b""


class NdjsonWriter(Lines):
    """One object a line."""

    def rows(self, batch: Sequence[Row]) -> bytes:
        return _json_bytes("".join([f"{text}\n" for text in _objects(batch)]), self.terminal)


class JsonWriter(Lines):
    """One document: an array with a row a line, or one object over several lines."""

    def __init__(self, view: View, *, terminal: bool = False) -> None:
        super().__init__(view, terminal=terminal)
        self._separator = "[\n  "

    def rows(self, batch: Sequence[Row]) -> bytes:
        if self.view.single:
            return b"".join(_json_bytes(f"{_encode_over_lines(row)}\n", self.terminal) for row in batch)
        if not batch:
            return b""
        text = self._separator + ",\n  ".join(_objects(batch))
        self._separator = ",\n  "
        return _json_bytes(text, self.terminal)

    def end(self) -> bytes:
        if self.view.single:
            return b""
        return b"[]\n" if self._separator.startswith("[") else b"\n]\n"


class TsvWriter(Lines):
    r"""One record a line; tab, newline, carriage return and backslash as `\t \n \r \\`."""

    def __init__(self, view: View, *, terminal: bool = False, header: bool = False) -> None:
        super().__init__(view, terminal=terminal)
        columns = view.columns if view.picked else arranged(column for column in view.columns if not column.bar)
        self.keys = [column.key for column in columns] if view.tsv is None else [*view.tsv]
        words = [column.key if column.title is None else column.heading for column in columns]
        self._header = (words if view.picked else self.keys) if header else []

    def begin(self) -> bytes:
        return raw_bytes("\t".join(self._header)) + b"\n" if self._header else b""

    def rows(self, batch: Sequence[Row]) -> bytes:
        keys = self.keys
        if not batch:
            return b""
        records = list(zip(*[_fields([row.get(key) for row in batch]) for key in keys], strict=True))
        text = "\n".join(map("\t".join, records))
        # Checking the batch at once is cheaper than checking each field, and it rarely needs escapes.
        if (
            "\\" in text
            or "\r" in text
            or text.count("\t") != len(records) * (len(keys) - 1)
            or text.count("\n") != len(records) - 1
        ):
            text = "\n".join(["\t".join(map(_tsv_escaped, record)) for record in records])
        return raw_bytes(escape(text, keep="\t\n") if self.terminal else text) + b"\n"


class FieldsWriter(Lines):
    """Lines of a document's fields: `name<TAB>value`; a list has a line for each element, with its name or record."""

    def rows(self, batch: Sequence[Row]) -> bytes:
        lines = [[name, *map(_field, values)] for row in batch for name, *values in _single_fields(row)]
        text = "".join(["\t".join(map(_tsv_escaped, line)) + "\n" for line in lines])
        return raw_bytes(escape(text, keep="\t\n") if self.terminal else text)


class NameWriter(Lines):
    """One name a line."""

    def rows(self, batch: Sequence[Row]) -> bytes:
        names = _fields([row.get(self.view.name) for row in batch])
        return raw_bytes("".join([f"{name}\n" for name in (map(escape, names) if self.terminal else names)]))


class YamlWriter(Lines):
    """A sequence with a mapping for each row, or one mapping."""

    def __init__(self, view: View, *, terminal: bool = False) -> None:
        super().__init__(view, terminal=terminal)
        self._empty = True

    def rows(self, batch: Sequence[Row]) -> bytes:
        if not batch:
            return b""
        self._empty = False
        plain = [row and dict(row) for row in batch]
        return yaml_bytes(plain[0] if self.view.single else plain, terminal=self.terminal)

    def end(self) -> bytes:
        return b"[]\n" if self._empty and not self.view.single else b""


WRITERS: dict[str, type[NdjsonWriter | JsonWriter | TsvWriter | FieldsWriter | NameWriter | YamlWriter]] = {
    "fields": FieldsWriter,
    "ndjson": NdjsonWriter,
    "json": JsonWriter,
    "tsv": TsvWriter,
    "name": NameWriter,
    "yaml": YamlWriter,
}


def yaml_bytes(value: Any, *, terminal: bool = False) -> bytes:
    """Encode as YAML that means the same to readers of versions 1.1 and 1.2."""
    from kvctl.render.yaml_text import dump

    text = dump(value)
    return utf8(escape_unicode(text) if terminal else text)


def render(writer: Writer, rows: Iterable[Row]) -> bytes:
    """Render the complete output for rows that are already in memory."""
    return writer.begin() + writer.rows(list(rows)) + writer.end()


def _objects(batch: Sequence[Row]) -> Iterable[str]:
    """Return the JSON text of each row, null for None. Rows of one shape are encoded by column, three times as fast."""
    keys = list(batch[0]) if batch and None not in batch else []
    if not keys or set(map(len, batch)) != {len(keys)}:
        return map(_encode, batch)
    try:
        columns = [_members(key, [row[key] for row in batch]) for key in keys]
    except KeyError:
        return map(_encode, batch)
    return [f"{{{members}}}" for members in map(", ".join, zip(*columns, strict=True))]


def _members(key: str, values: list[Any]) -> list[str]:
    name = _encode(key)
    kinds = set(map(type, values))
    if kinds == {str}:
        if _NEEDS_ESCAPE.search("".join(values)):
            return [f"{name}: {text}" for text in map(encode_basestring, values)]
        return [f'{name}: "{value}"' for value in values]
    texts = values if kinds == {int} else map(_encode, values)
    return [f"{name}: {text}" for text in texts]


def _fields(values: list[Any]) -> Iterable[str]:
    kinds = set(map(type, values))
    if kinds == {str}:
        return values
    return map(str if kinds == {int} else _field, values)


def _single_fields(row: Row) -> Iterator[tuple[Any, ...]]:
    """Yield each field that is not a list, and for each element of a list the singular of its name, with values."""
    for name, value in row.items():
        if not isinstance(value, list | tuple):
            yield name, value
            continue
        one = _SINGULARS.get(name, name.removesuffix("s"))
        for item in value:
            if not isinstance(item, dict):
                yield one, item
            elif name in _RECORDS:
                yield one, *(item[key] for key in _RECORDS[name])
            else:
                yield one, _name(item)


_SINGULARS = {"dependents": "replica", "branches": "branch", "partition_details": "partition", "prefixes": "prefix"}
_RECORDS = {
    "largest": ("key", "bytes"),
    "permissions": ("action", "allowed", "subject", "reason"),
    "prefixes": ("prefix", "keys", "deleted", "entries", "bytes"),
}
"""Lists whose elements are listings of their own: the fields on the line of each."""
_NAMING = ("served_by", "name", "key", "prefix", "partition", "stream")
"""Fields that name an element of a list."""
_NEEDS_ESCAPE = pattern(r'["\\\x00-\x1f]')
_encode = json.JSONEncoder(ensure_ascii=False).encode
_encode_over_lines = json.JSONEncoder(ensure_ascii=False, indent=2).encode


def _json_bytes(text: str, terminal: bool) -> bytes:
    return utf8(escape_unicode(text) if terminal else text)


def _field(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or value == []:
        return ""
    return (_names(value) if isinstance(value, list | tuple) else None) or _encode(value)


def _names(items: Sequence[Any]) -> str | None:
    """Return what a list names, joined by commas; None if that is not all that it says, or a name has a comma."""
    names = [item if isinstance(item, str) else _name(item) for item in items]
    return ",".join(names) if all(isinstance(name, str) and "," not in name for name in names) else None


def _name(item: Any) -> Any:
    """Return the field that names an object, else the object."""
    return next((item[key] for key in _NAMING if key in item), item) if isinstance(item, dict) else item


def _tsv_escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\t", r"\t").replace("\n", r"\n").replace("\r", r"\r")
