"""The pipeline file: sources, query and sink; and its JSON Schema."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path as FilePath

from kvctl.documents.parser import Document, Path
from kvctl.documents.reader import Reader, read
from kvctl.documents.record import (
    PAIRS,
    TEXT,
    TEXTS,
    Choice,
    Exclusive,
    Field,
    OneAtLeast,
    Record,
    Schema,
    Type,
    checked,
    one_of,
    require_version,
    version_field,
)
from kvctl.errors import UsageError
from kvctl.pipeline.options import OPTIONS, Purpose, parse

VERSION = 1
FORMATS = ("parquet", "json", "csv")
MODES = ("error", "overwrite", "append")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_QUERY = re.compile(r"(\s|\(|--[^\n]*\n|/\*.*?\*/)*(select|with|from|values|table)\b", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Rows of a bucket, read or written with these options of the data source."""

    options: Mapping[str, str]

    @property
    def title(self) -> str:
        """Description in words."""
        return f"bucket {self.options['bucket']}"


@dataclass(frozen=True, slots=True)
class Files:
    """Rows in files."""

    path: FilePath
    format: str
    mode: str = "error"
    """Action if files already exist at the path, for a sink."""

    @property
    def title(self) -> str:
        """Description in words."""
        return f"{self.format} files in {self.path}"


@dataclass(frozen=True, slots=True)
class Declared:
    """A pipeline as read from a file."""

    sources: Mapping[str, Bucket | Files]
    sink: Bucket | Files
    sql: str | None = None
    """A query over the sources, by name; None: columns of the only source."""
    columns: Mapping[str, str] | None = None
    """Names of columns, each with its expression; None: all."""
    where: str | None = None


def read_declared(document: Document, folder: FilePath) -> Declared:
    """Read the pipeline in a document; relative paths begin at `folder`. Raises UsageError with line and field."""
    return read(document, lambda reader: _declared(reader, folder))


def _declared(reader: Reader, folder: FilePath) -> Declared:
    require_version(reader, VERSION)
    found = _ROOT.read(reader, ())
    given = found.get("sources") or {"source": found["source"]}
    sources = {name: _place(folder, place) for name, place in given.items()}
    if len(sources) > 1 and "sql" not in found:
        reader.fail((), "Several sources need a `sql` query that combines them")
    sink = _place(folder, found["sink"])
    return Declared(sources, sink, found.get("sql"), found.get("select"), found.get("where"))


def _place(folder: FilePath, place: Bucket | Files) -> Bucket | Files:
    """Return a place whose relative paths begin at the folder."""
    if isinstance(place, Files):
        return replace(place, path=folder / place.path)
    forms = {option.name: option.form for option in OPTIONS}
    return Bucket(
        {
            name: os.path.abspath(folder / text) if forms[name] in _PATHS and "://" not in text else text
            for name, text in place.options.items()
        }
    )


# -- the fields ------------------------------------------------------------------------------------------


def _option(reader: Reader, path: Path) -> str:
    """Read a value in the form of a Spark option."""
    value = reader.at(path)
    return str(value).lower() if isinstance(value, bool) else ",".join(TEXTS.read(reader, path))


def _options(name: str, *purposes: Purpose) -> Record:
    found = {item.field: item for item in OPTIONS if item.purpose in purposes and item.field not in _INNER}
    fields = {field: Field(_OPTION, f"{item.help} ({item.form})") for field, item in found.items()}
    return Record(f"`{name}`", fields)


def _check_query(text: str) -> str:
    if not _QUERY.match(text):
        raise UsageError("`sql` is not a query", hint="Begin it with SELECT, WITH, FROM, VALUES or TABLE")
    return text


def _check_columns(columns: Mapping[str, str]) -> Mapping[str, str]:
    if not all(columns.values()):
        raise UsageError("A column needs an expression")
    return columns


def _place_type(name: str, purpose: Purpose, files: Record) -> tuple[Type, Schema]:
    """Return the type of a source or a sink, and its JSON Schema."""
    options = _options(name, Purpose.CONNECTION, purpose)
    names = {item.field: item.name for item in OPTIONS}
    choice = Choice(f"`{name}`", {"bucket": options, "path": files})

    def read_place(reader: Reader, path: Path) -> Bucket | Files:
        chosen, found = choice.read(reader, path)
        if chosen == "path":
            place = FilePath(found["path"])
            format = found.get("format", place.suffix[1:].lower())
            if format not in FORMATS:
                hint = f"Set `format` to one of {', '.join(FORMATS)}"
                reader.fail(path, f"The format of `{place}` is unknown", hint=hint)
            return Files(place, format, found.get("mode", MODES[0]))
        given = {names[field]: value for field, value in found.items()}
        reader.checked(path, lambda: parse(given))
        return Bucket(given)

    return Type(read_place, lambda _: {"$ref": f"#/$defs/{name}"}), choice.schema()


def _sources(reader: Reader, path: Path) -> dict[str, Bucket | Files]:
    given = reader.at(path)
    if not isinstance(given, dict) or not given:
        reader.fail(path, "`sources` must be a mapping of names")

    def one(name: str) -> tuple[str, Bucket | Files]:
        if not _NAME.match(name):
            reader.fail((*path, name), f"`{name}` is not a valid name in SQL", hint="Use letters, digits and `_`")
        return name, _SOURCE.read(reader, (*path, name))

    return dict(reader.each(given, one))


_INNER = ("write_id", "report")
_PATHS = ("FILE", "PATH")
"""Forms of options that name a file or a folder."""
_OPTION = Type(
    _option, lambda _: {"type": ["string", "number", "boolean", "array"], "items": {"type": ["string", "number"]}}
)
_FILE = {
    "path": Field(TEXT, "File or folder, relative to the folder of this file", {"type": "string"}),
    "format": Field(one_of(FORMATS), "Format of the files; default: by extension"),
}
_MODE = {"mode": Field(one_of(MODES), "Action if the path already exists")}
_SOURCE, _SOURCE_SCHEMA = _place_type("source", Purpose.READ, Record("`source`", _FILE))
_SINK, _SINK_SCHEMA = _place_type("sink", Purpose.WRITE, Record("`sink`", {**_FILE, **_MODE}))
_SOURCES_SCHEMA: Schema = {
    "type": "object",
    "minProperties": 1,
    "propertyNames": {"pattern": "^" + _NAME.pattern.replace(r"\Z", "$")},
    "additionalProperties": {"$ref": "#/$defs/source"},
}
_ROOT = Record(
    "a pipeline file",
    {
        "version": version_field(VERSION),
        "source": Field(_SOURCE, "The only source"),
        "sources": Field(Type(_sources, lambda _: _SOURCES_SCHEMA), "Sources, by the names that `sql` uses"),
        "sql": Field(checked(TEXT, _check_query), "A query over the sources"),
        "select": Field(
            checked(PAIRS, _check_columns), "Columns, each with its SQL expression",
            {"additionalProperties": {"type": ["string", "number"], "minLength": 1}},
        ),
        "where": Field(TEXT, "Condition for rows, as a SQL expression"),
        "sink": Field(
            _SINK, "Destination of the rows", required=True,
            missing="Add `sink: {bucket: NAME}` or `sink: {path: FOLDER}`",
        ),
    },
    [OneAtLeast(("source", "sources")), Exclusive("source", "sources"), Exclusive("sql", "select"),
     Exclusive("sql", "where")],
)  # fmt: skip


def json_schema() -> Schema:
    """Return the schema, in draft 2020-12: everything that is read is valid."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvctl pipeline",
        "description": "Sources, query and sink of a Spark pipeline over buckets and files, see `kvctl help pipeline`",
        **_ROOT.schema(),
        "$defs": {"source": _SOURCE_SCHEMA, "sink": _SINK_SCHEMA},
    }
