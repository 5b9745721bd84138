"""Fields of a topology file: type, description and limits of each. [pure]"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from kvctl.documents.parser import Path
from kvctl.documents.reader import Reader
from kvctl.documents.record import (
    DURATION,
    EXACT_TEXT,
    FLAG,
    INTEGER,
    PAIRS,
    SIZE,
    TEXT,
    TEXTS,
    Exclusive,
    Field,
    OneAtLeast,
    Record,
    Requires,
    Schema,
    Type,
    checked,
    one_or_several,
)
from kvctl.errors import UsageError
from kvctl.kv.names import (
    BUCKET_PATTERN,
    FILTER_PATTERN,
    KEY_PATTERN,
    MAX_BUCKET,
    check_bucket,
    check_filter,
    check_key,
)
from kvctl.kv.settings import SETTINGS, Form, Republish, Resource, Setting
from kvctl.topology.file.origin_spec import external, parse_origin
from kvctl.topology.model import Origin

NAME = {"pattern": f"^({BUCKET_PATTERN})$", "maxLength": MAX_BUCKET}
_FILTER = {"pattern": f"^({FILTER_PATTERN})$"}
_DOMAIN = {"pattern": r"^[^.*>\s]+$"}
_SUBJECT = {"pattern": r"^[^.*>\s]+(\.[^.*>\s]+)*$"}

_BUCKET = checked(TEXT, check_bucket)
_FILTERS = one_or_several(checked(TEXT, check_filter))


def _route(reader: Reader, path: Path) -> Republish:
    source, equals, destination = reader.text(path).partition("=")
    if not equals or not source or not destination:
        reader.fail(path, f"`{path[-1]}` must be `SRC=DEST`")
    return Republish(source, destination)


_TYPES: Mapping[Form, Type] = {
    Form.TEXT: TEXT,
    Form.TEXTS: TEXTS,
    Form.PAIRS: PAIRS,
    Form.INTEGER: INTEGER,
    Form.FLAG: FLAG,
    Form.DURATION: DURATION,
    Form.SIZE: SIZE,
    Form.ROUTE: Type(_route, lambda limits: {"type": "string", **limits}),
}


def _type_of(row: Setting) -> Type:
    return _TYPES[row.form] if row.part_of else checked(_TYPES[row.form], partial(_checked, row))


def _checked(row: Setting, value: Any) -> Any:
    row.to_stream({}, value)
    return value


def _settings(resource: Resource) -> dict[str, Field]:
    """Return the fields of a resource's settings and its place; an option's other name is an alias."""
    rows = [row for row in SETTINGS.values() if resource in row.of]
    found = {row.name: Field(_type_of(row), row.file_help or row.help, row.limits) for row in rows}
    found |= {row.option: Field(_type_of(row), f"Alias of `{row.name}`", row.limits) for row in rows if row.option}
    return found | {"in": Field(TEXT, "Context of this file to create it in; default: the context in use")}


_DENY_PURGE = Field(FLAG, "Keep history readable here after a purge at the origin")


def _entries(reader: Reader, path: Path) -> dict[str, str]:
    def one(key: str) -> tuple[str, str]:
        reader.checked((*path, key), lambda: check_key(key))
        return key, _VALUE.read(reader, (*path, key))

    return dict(reader.each(reader.mapping(path, "`entries`"), one))


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("The value is not valid Unicode") from None
    return text


_VALUE = checked(EXACT_TEXT, _encodable)
_ENTRIES = Field(
    Type(_entries, lambda limits: {"type": ["object", "null"], **limits}),
    "Entries to create if their keys are absent: values by key",
    {"propertyNames": {"pattern": f"^({KEY_PATTERN})$"}, "additionalProperties": {"type": "string"}},
)
CONTEXT = Record(
    "a context",
    {
        "context": Field(TEXT, "Name of a context, see `kvctl context ls`"),
        "url": Field(TEXT, "Server URL, or several separated by commas"),
        "domain": Field(TEXT, "JetStream domain", _DOMAIN),
        "api_prefix": Field(TEXT, "JetStream API prefix", _SUBJECT),
    },
    [Exclusive("context", "url"), Exclusive("domain", "api_prefix")],
)
BUCKET = Record(
    "a bucket",
    {**_settings("bucket"), "entries": _ENTRIES},
    [Requires(row.name, row.part_of) for row in SETTINGS.values() if row.part_of],
)
MIRROR = Record(
    "a mirror",
    {
        "origin": Field(_BUCKET, "Bucket or mirror to replicate", NAME, required=True),
        "origin_domain": Field(TEXT, "JetStream domain of the origin", _DOMAIN),
        "origin_api": Field(TEXT, "Prefix under which this account imports the origin's API", _SUBJECT),
        "deliver": Field(TEXT, "Prefix of the subjects that the origin's account delivers on", _SUBJECT),
        "keys": Field(_FILTERS, "Replicate only these keys, where that is safe", _FILTER),
        "deny_purge": _DENY_PURGE,
        **_settings("mirror"),
    },
    [Exclusive("origin_domain", "origin_api"), Requires("deliver", "origin_api")],
)
ORIGIN = Record(
    "an origin",
    {
        "bucket": Field(_BUCKET, "Bucket whose keys are replicated", NAME),
        "stream": Field(_BUCKET, "Mirror of the bucket to replicate from instead", NAME),
        "keys": Field(_FILTERS, "Replicate only these keys, without the literal head of the filter", _FILTER),
        "prefix": Field(TEXT, "Prefix of the keys in the aggregate"),
        "map": Field(
            PAIRS,
            "Destination of the keys of each filter, with `$1` for the first wildcard",
            {"propertyNames": _FILTER, "additionalProperties": {"type": "string", "minLength": 1}},
        ),
        "domain": Field(TEXT, "JetStream domain of the origin", _DOMAIN),
        "api": Field(TEXT, "Prefix under which this account imports the origin's API", _SUBJECT),
        "deliver": Field(TEXT, "Prefix of the subjects that the origin's account delivers on", _SUBJECT),
    },
    [OneAtLeast(("bucket", "stream")), Exclusive("domain", "api"), Requires("deliver", "api")],
)


def _origins(reader: Reader, path: Path) -> tuple[Origin, ...]:
    return tuple(reader.each(reader.items(path), partial(_origin, reader)))


def _origin(reader: Reader, path: Path) -> Origin:
    spec = reader.at(path)
    if isinstance(spec, str):
        return reader.checked(path, lambda: parse_origin(spec))
    found = ORIGIN.read(reader, path)

    def make() -> Origin:
        return Origin(
            found.get("bucket", ""),
            stream=found.get("stream", ""),
            keys=found.get("keys", ()),
            prefix=found.get("prefix", ""),
            maps=tuple(found.get("map", {}).items()),
            external=external(found.get("domain"), found.get("api"), found.get("deliver")),
        )

    return reader.checked(path, make)


def _origins_schema(limits: Schema) -> Schema:
    spec = {
        "type": "string",
        "minLength": 1,
        "description": "A bucket, or fields in the notation of the command line",
        "examples": ["ORDERS", "bucket=ORDERS,keys=NEW.>,prefix=orders.new"],
    }
    return {"type": "array", "minItems": 1, "items": {"anyOf": [spec, {"$ref": "#/$defs/origin"}]}, **limits}


AGGREGATE = Record(
    "an aggregate",
    {
        "origins": Field(
            Type(_origins, _origins_schema), "Origins: names of buckets, or mappings with details", required=True
        ),
        "writable": Field(FLAG, "Allow clients to write to it"),
        "deny_purge": _DENY_PURGE,
        **_settings("aggregate"),
    },
    BUCKET.rules,
)
SECTIONS: Mapping[str, Record] = {"buckets": BUCKET, "mirrors": MIRROR, "aggregates": AGGREGATE}
