"""JSON Schema of the topology file, for editors and other tools, generated from the reader's fields. [pure]

Everything that the reader accepts is valid. Only the reader checks what depends on servers or on several values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvctl.kv.names import STREAM_PREFIX
from kvctl.topology.file.document import VERSION
from kvctl.topology.file.fields import (
    CONTEXT,
    NAME,
    ORIGIN,
    SECTIONS,
    TITLE,
    read_origins,
)
from kvctl.topology.file.values import Field, Reader
from kvctl.units import DURATION_PATTERN, SIZE_PATTERN

Schema = dict[str, Any]


def json_schema() -> Schema:
    """Return the schema, in draft 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvctl topology",
        "description": "NATS key-value buckets, their mirrors and aggregates, see `kvctl help topologies`",
        "type": "object",
        "properties": {
            "version": {"const": VERSION, "description": "Version of the file format"},
            "name": _described(TITLE),
            "contexts": _named(
                {"$ref": "#/$defs/context"}, "Connections to other servers, domains or accounts, by name"
            ),
            **{section: _named({"$ref": f"#/$defs/{section}"}, _SAYS[section]) for section in SECTIONS},
        },
        "required": ["version"],
        "additionalProperties": False,
        "$defs": {
            "context": _object(CONTEXT, allOf=[_one_of("context", "url"), _one_of("domain", "api_prefix")]),
            **{section: _object(fields, **_RULES[section]) for section, (_, fields) in SECTIONS.items()},
            "origin": _object(
                ORIGIN,
                type="object",
                anyOf=[{"required": ["bucket"]}, {"required": ["stream"]}],
                allOf=[_one_of("domain", "api")],
                dependentRequired={"deliver": ["api"]},
            ),
        },
    }


_SAYS = {
    "buckets": "Buckets by name",
    "mirrors": "Local read replicas of buckets, by name",
    "aggregates": "Buckets merged from other buckets, by name",
}


def _one_of(first: str, second: str) -> Schema:
    """Return the schema of an object with at most one of two fields."""
    return {"not": {"type": "object", "required": [first, second]}}


_RULES: Mapping[str, Schema] = {
    "buckets": {"dependentRequired": {"republish_headers_only": ["republish"]}},
    "mirrors": {
        "type": "object",
        "required": ["origin"],
        "allOf": [_one_of("origin_domain", "origin_api")],
        "dependentRequired": {"deliver": ["origin_api"]},
    },
    "aggregates": {
        "type": "object",
        "required": ["origins"],
        "dependentRequired": {"republish_headers_only": ["republish"]},
    },
}


def _named(inside: Schema, says: str) -> Schema:
    """Return the schema of a section, a possibly empty mapping from names to resources."""
    names: Schema = dict(NAME)
    if inside["$ref"].endswith("/mirrors"):
        names["not"] = {"pattern": f"^{STREAM_PREFIX}"}
    elif inside["$ref"].endswith("/context"):
        names = {"minLength": 1}
    return {"description": says, "type": ["object", "null"], "propertyNames": names, "additionalProperties": inside}


def _object(fields: Mapping[str, Field], **rules: Any) -> Schema:
    properties = {name: _described(field) for name, field in fields.items()}
    return {"type": ["object", "null"], "properties": properties, "additionalProperties": False, **rules}


def _described(field: Field) -> Schema:
    return {"description": field.says, **_SHAPES[field.read](dict(field.limits))}


def _text(limits: Schema) -> Schema:
    return limits if "enum" in limits else {"type": ["string", "number"], "minLength": 1, **limits}


def _texts(limits: Schema) -> Schema:
    return {"anyOf": [_text(limits), {"type": "array", "items": _text(limits)}]}


def _text_map(limits: Schema) -> Schema:
    return {"type": "object", "additionalProperties": {"type": ["string", "number"]}, **limits}


def _duration(_: Schema) -> Schema:
    pattern = {"type": "string", "pattern": f"^(({DURATION_PATTERN})|0)$", "examples": ["90s", "15m", "30d"]}
    return {"anyOf": [pattern, {"const": 0}]}


def _size(_: Schema) -> Schema:
    pattern = {"type": "string", "pattern": f"^{SIZE_PATTERN}$", "examples": ["64KiB", "10MB"]}
    return {"anyOf": [pattern, {"type": "integer", "minimum": 1}]}


def _origins(_: Schema) -> Schema:
    shorthand = {
        "type": "string",
        "minLength": 1,
        "description": "A bucket, or fields in the notation of the command line",
        "examples": ["ORDERS", "bucket=ORDERS,keys=NEW.>,prefix=orders.new"],
    }
    return {"type": "array", "minItems": 1, "items": {"anyOf": [shorthand, {"$ref": "#/$defs/origin"}]}}


_SHAPES: Mapping[Callable[..., Any], Callable[[Schema], Schema]] = {
    Reader.text: _text,
    Reader.texts: _texts,
    Reader.bucket: _text,
    Reader.filters: _texts,
    Reader.text_map: _text_map,
    Reader.integer: lambda limits: {"type": "integer", **limits},
    Reader.flag: lambda limits: {"type": "boolean", **limits},
    Reader.duration: _duration,
    Reader.size: _size,
    Reader.republish: lambda limits: {"type": "string", **limits},
    read_origins: _origins,
}
