"""The pipeline file: sources, query and sink; and its JSON Schema."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from kvctl.documents.parser import Document
from kvctl.pipeline.options import OPTIONS, Option, Purpose, parse
from kvctl.topology.file.values import Path, Reader

VERSION = 1
FORMATS = ("parquet", "json", "csv")
MODES = ("error", "overwrite", "append")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_QUERY = re.compile(r"(\s|\(|--[^\n]*\n|/\*.*?\*/)*(select|with|from|values|table)\b", re.IGNORECASE | re.DOTALL)
_ROOT = ("version", "source", "sources", "sql", "select", "where", "sink")
_FILE = ("path", "format")
_FILE_SINK = (*_FILE, "mode")


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
    return _File(Reader(document), folder).read()


class _File:
    def __init__(self, reader: Reader, folder: FilePath) -> None:
        self._reader = reader
        self._folder = folder

    def read(self) -> Declared:
        reader = self._reader
        root = reader.mapping((), _ROOT, "a pipeline file")
        if "version" not in root:
            reader.fail((), "The file has no `version`", hint=f"Add `version: {VERSION}`")
        if root["version"] is True or root["version"] != VERSION:
            reader.fail(("version",), f"This kvctl reads version {VERSION}, not `{root['version']}`")
        sources = self._sources(root)
        if "sink" not in root:
            reader.fail((), "The file has no `sink`", hint="Add `sink: {bucket: NAME}` or `sink: {path: FOLDER}`")
        sink = self._place(("sink",), _WRITE, _FILE_SINK)
        return self._made(root, sources, sink)

    def _sources(self, root: Mapping[str, Any]) -> dict[str, Bucket | Files]:
        reader = self._reader
        if ("source" in root) == ("sources" in root):
            reader.fail((), "The file needs either `source` or `sources`", hint="Add `source: {bucket: NAME}`")
        if "source" in root:
            return {"source": self._place(("source",), _READ, _FILE)}
        if not isinstance(root["sources"], dict) or not root["sources"]:
            reader.fail(("sources",), "`sources` must be a mapping of names")
        for name in root["sources"]:
            if not _NAME.match(name):
                reader.fail(
                    ("sources", name), f"`{name}` is not a valid name in SQL", hint="Use letters, digits and `_`"
                )
        return {name: self._place(("sources", name), _READ, _FILE) for name in root["sources"]}

    def _place(self, path: Path, fields: Mapping[str, Option], of_files: tuple[str, ...]) -> Bucket | Files:
        reader = self._reader
        found = reader.mapping(path, (*fields, *of_files), f"`{path[0]}`")
        if ("bucket" in found) == ("path" in found):
            reader.fail(path, "Give either a `bucket` or a `path`")
        if "path" in found:
            for name in found:
                if name not in of_files:
                    reader.fail((*path, name), f"`{name}` can be used with `bucket`, not with `path`")
            return self._files(path, found)
        for name in found:
            if name in of_files and name not in fields:
                reader.fail((*path, name), f"`{name}` can be used with `path`, not with `bucket`")
        options = {fields[name].name: self._option((*path, name), fields[name]) for name in found}
        reader.checked(path, lambda: parse(options))
        return Bucket(options)

    def _option(self, path: Path, option: Option) -> str:
        """Return the value in the form of a Spark option; a path begins at the file's folder."""
        value = self._reader.at(path)
        if option.form in _PATHS:
            text = self._reader.text(path)
            return text if "://" in text else os.path.abspath(self._folder / text)
        if isinstance(value, bool):
            return str(value).lower()
        return ",".join(self._reader.texts(path))

    def _files(self, path: Path, found: Mapping[str, Any]) -> Files:
        reader = self._reader
        place = self._folder / reader.text((*path, "path"))
        format = self._one_of((*path, "format"), FORMATS) if "format" in found else place.suffix[1:].lower()
        if format not in FORMATS:
            reader.fail(
                path, f"The format of `{place}` is unknown", hint=f"Set `format` to one of {', '.join(FORMATS)}"
            )
        return Files(place, format, self._one_of((*path, "mode"), MODES) if "mode" in found else MODES[0])

    def _one_of(self, path: Path, words: tuple[str, ...]) -> str:
        text = self._reader.text(path)
        if text not in words:
            self._reader.unknown(path, text, f"a {path[-1]}", words)
        return text

    def _made(self, root: Mapping[str, Any], sources: Mapping[str, Bucket | Files], sink: Bucket | Files) -> Declared:
        reader = self._reader
        others = [name for name in ("select", "where") if name in root]
        if "sql" in root:
            if others:
                reader.fail((others[0],), f"`sql` and `{others[0]}` cannot be combined")
            sql = reader.text(("sql",))
            if not _QUERY.match(sql):
                reader.fail(("sql",), "`sql` is not a query", hint="Begin it with SELECT, WITH, FROM, VALUES or TABLE")
            return Declared(sources, sink, sql)
        if len(sources) > 1:
            reader.fail((), "Several sources need a `sql` query that combines them")
        columns = reader.text_map(("select",)) if "select" in root else None
        if columns is not None and not all(columns.values()):
            reader.fail(("select",), "A column needs an expression")
        return Declared(sources, sink, None, columns, reader.text(("where",)) if "where" in root else None)


def _fields(*purposes: Purpose) -> dict[str, Option]:
    return {option.field: option for option in OPTIONS if option.purpose in purposes and option.field not in _INNER}


_INNER = ("write_id", "message_ids", "report")
_PATHS = ("FILE", "PATH")
"""Forms of options that name a file or a folder."""
_READ = _fields(Purpose.CONNECTION, Purpose.READ)
_WRITE = _fields(Purpose.CONNECTION, Purpose.WRITE)


# -- the schema ------------------------------------------------------------------------------------------


def json_schema() -> dict[str, Any]:
    """Return the schema, in draft 2020-12: everything that is read is valid."""
    source = {"oneOf": [_bucket(_READ), _files(_FILE)]}
    sink = {"oneOf": [_bucket(_WRITE), _files(_FILE_SINK)]}
    text = {"type": ["string", "number"], "minLength": 1}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvctl pipeline",
        "description": "Sources, query and sink of a Spark pipeline over buckets and files, see `kvctl help pipeline`",
        "type": "object",
        "properties": {
            "version": {"const": VERSION, "description": "Version of the file format"},
            "source": {"$ref": "#/$defs/source"},
            "sources": {
                "description": "Sources, by the names that `sql` uses",
                "type": "object",
                "minProperties": 1,
                "propertyNames": {"pattern": "^" + _NAME.pattern.replace(r"\Z", "$")},
                "additionalProperties": {"$ref": "#/$defs/source"},
            },
            "sql": {**text, "description": "A query over the sources"},
            "select": {
                "description": "Columns, each with its SQL expression",
                "type": "object",
                "additionalProperties": text,
            },
            "where": {**text, "description": "Condition for rows, as a SQL expression"},
            "sink": {"$ref": "#/$defs/sink"},
        },
        "required": ["version", "sink"],
        "additionalProperties": False,
        "oneOf": [{"required": ["source"]}, {"required": ["sources"]}],
        "$defs": {"source": source, "sink": sink},
    }


def _bucket(fields: Mapping[str, Option]) -> dict[str, Any]:
    value = {"type": ["string", "number", "boolean", "array"], "items": {"type": ["string", "number"]}}
    properties = {name: {**value, "description": f"{option.help} ({option.form})"} for name, option in fields.items()}
    return {"type": "object", "properties": properties, "required": ["bucket"], "additionalProperties": False}


def _files(names: tuple[str, ...]) -> dict[str, Any]:
    known: dict[str, Any] = {
        "path": {
            "type": "string",
            "minLength": 1,
            "description": "File or folder, relative to the folder of this file",
        },
        "format": {"enum": list(FORMATS), "description": "Format of the files; default: by extension"},
        "mode": {"enum": list(MODES), "description": "Action if the path already exists"},
    }
    properties = {name: known[name] for name in names}
    return {"type": "object", "properties": properties, "required": ["path"], "additionalProperties": False}
