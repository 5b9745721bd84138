"""The topology file: buckets, mirrors and aggregates, and their contexts; its fields and its schema. [pure]"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from kvctl.documents.parser import Document, Path
from kvctl.documents.reader import Reader, read
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
    require_version,
    version_field,
)
from kvctl.errors import UsageError
from kvctl.kv.config import BucketConfig
from kvctl.kv.names import (
    BUCKET_PATTERN,
    FILTER_PATTERN,
    KEY_PATTERN,
    MAX_BUCKET,
    STREAM_PREFIX,
    check_bucket,
    check_filter,
    check_key,
)
from kvctl.kv.settings import SETTINGS, Form, Republish, Resource, Setting
from kvctl.topology.model.notation import external, origin_of, parse_origin
from kvctl.topology.model.origins import Aggregate, Mirror, Origin

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
    found |= {
        row.option: Field(_type_of(row), f"Alias of `{row.name}`", row.limits, alias=True) for row in rows if row.option
    }
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
    fields = ORIGIN.read(reader, path)
    fields["map"] = fields.get("map", {}).items()
    return reader.checked(path, lambda: origin_of(fields))


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


VERSION = 1
DEFAULT_NAME = "default"


@dataclass(frozen=True, slots=True)
class Topology:
    """Contents of a topology file, by name."""

    buckets: Mapping[str, BucketConfig] = field(default_factory=dict)
    mirrors: Mapping[str, Mirror] = field(default_factory=dict)
    aggregates: Mapping[str, Aggregate] = field(default_factory=dict)
    contexts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    """Contexts of resources, if the file names them."""
    name: str = DEFAULT_NAME
    """Name of the topology: the mark of everything created from it."""
    named: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Fields that the file sets for each bucket, mirror and aggregate: it owns no others."""
    entries: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """Entries to create in buckets where their keys are absent: values by key."""

    def place_of(self, name: str) -> str:
        """Return the context of a resource; empty for the one in use."""
        return self.places.get(name, "")


class _Resource(NamedTuple):
    """One resource as read."""

    model: Any
    place: str | None
    fields: frozenset[str]
    entries: Mapping[str, str]


def read_topology(document: Document) -> Topology:
    """Read the topology in a document. Raises UsageError with all errors: place, field, and nearest existing word."""
    return read(document, _topology)


def _topology(reader: Reader) -> Topology:
    require_version(reader, VERSION)
    found = ROOT.read(reader, ())
    resources: dict[str, dict[str, _Resource]] = {section: found.get(section, {}) for section in SECTIONS}
    everything = {name: made for inside in resources.values() for name, made in inside.items()}
    buckets, mirrors, aggregates = (
        {name: made.model for name, made in inside.items()} for inside in resources.values()
    )
    return Topology(
        buckets,
        mirrors,
        aggregates,
        found.get("contexts", {}),
        {name: made.place for name, made in everything.items() if made.place is not None},
        found.get("name", DEFAULT_NAME),
        {name: made.fields for name, made in everything.items()},
        {name: made.entries for name, made in everything.items() if made.entries},
    )


# -- resources ---------------------------------------------------------------------------------------------

Make = Callable[[Reader, Path, str], Any]


def _resource(reader: Reader, path: Path, name: str) -> _Resource:
    """Read one bucket, mirror or aggregate."""
    section = str(path[0])
    parts: list[Callable[[Reader, Path], Any]] = [_check_unique, _check_place, SECTIONS[section].read]
    _, _, found = reader.each(parts, lambda part: part(reader, path))
    given, place, entries = frozenset(found), found.pop("in", None), found.pop("entries", {})
    if "tag" in found:
        found["tags"] = (*found.get("tags", ()), *found.pop("tag"))
    if found.pop("republish_headers_only", False):
        found["republish"] = replace(found["republish"], headers_only=True)
    return _Resource(reader.checked(path, lambda: _MAKERS[section](name, found)), place, given, entries)


def _check_unique(reader: Reader, path: Path) -> None:
    section, name = path
    root = reader.at(())
    for other in SECTIONS:
        if other == section:
            return
        if isinstance(root.get(other), dict) and name in root[other]:
            reader.fail(path, f"`{name}` appears twice in the file: names must be unique")


def _check_place(reader: Reader, path: Path) -> None:
    given, contexts = reader.at(path), reader.at(()).get("contexts") or {}
    name = given.get("in") if isinstance(given, dict) else None
    if isinstance(name, str | int) and isinstance(contexts, dict) and str(name) not in contexts:
        reader.unknown((*path, "in"), str(name), "a context of this file", contexts)


def _bucket(name: str, found: dict[str, Any]) -> BucketConfig:
    config = BucketConfig(name, **found)
    config.to_stream()
    return config


def _mirror(name: str, found: dict[str, Any]) -> Mirror:
    way = (found.pop("origin_domain", None), found.pop("origin_api", None), found.pop("deliver", None))
    origin = Origin(found.pop("origin"), keys=found.pop("keys", ()), external=external(*way))
    mirror = Mirror(name, origin, **found)
    mirror.to_stream()
    return mirror


def _aggregate(name: str, found: dict[str, Any]) -> Aggregate:
    aggregate = Aggregate(name, found.pop("origins"), **found)
    aggregate.to_stream()
    return aggregate


_MAKERS: Mapping[str, Callable[[str, dict[str, Any]], Any]] = {
    "buckets": _bucket,
    "mirrors": _mirror,
    "aggregates": _aggregate,
}


# -- the file ----------------------------------------------------------------------------------------------


def _named(reference: str, make: Make, names: Schema) -> Type:
    """Return the type of a mapping from names to resources, which may be empty."""

    def read_all(reader: Reader, path: Path) -> dict[str, Any]:
        given = reader.at(path)
        if given is not None and not isinstance(given, dict):
            reader.fail(path, f"`{path[-1]}` must be a mapping of names")
        return dict(reader.each(given or {}, lambda name: (name, make(reader, (*path, name), name))))

    inside = {"additionalProperties": {"$ref": f"#/$defs/{reference}"}}
    return Type(read_all, lambda _: {"type": ["object", "null"], "propertyNames": names, **inside})


def _check_title(text: str) -> str:
    if not re.fullmatch(TITLE["pattern"], text):
        raise UsageError(f"`{text}` is not a valid topology name", hint="Use `A-Z a-z 0-9 _ - .`")
    return text


TITLE = {"pattern": r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"}
_MIRROR_NAME = {**NAME, "not": {"pattern": f"^{STREAM_PREFIX}"}}

ROOT = Record(
    "a topology file",
    {
        "version": version_field(VERSION),
        "name": Field(
            checked(TEXT, _check_title), "Name of the topology, which marks everything created from it", TITLE
        ),
        "contexts": Field(
            _named("context", lambda reader, path, _: CONTEXT.read(reader, path), {"minLength": 1}),
            "Connections to other servers, domains or accounts, by name",
        ),
        "buckets": Field(_named("buckets", _resource, NAME), "Buckets by name"),
        "mirrors": Field(_named("mirrors", _resource, _MIRROR_NAME), "Local read replicas of buckets, by name"),
        "aggregates": Field(_named("aggregates", _resource, NAME), "Buckets merged from other buckets, by name"),
    },
)
"""The fields of the file itself."""


def json_schema() -> Schema:
    """Return the schema, in draft 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvctl topology",
        "description": "NATS key-value buckets, their mirrors and aggregates, see `kvctl help deploying`",
        **ROOT.schema(),
        "$defs": {
            "context": CONTEXT.schema(),
            **{section: record.schema() for section, record in SECTIONS.items()},
            "origin": ORIGIN.schema(),
        },
    }
