"""Fields of a topology file: reader, description and limits of each. [pure]"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvctl.kv.names import BUCKET_PATTERN, FILTER_PATTERN, MAX_BUCKET
from kvctl.kv.settings import SETTINGS, Form, Resource
from kvctl.topology.file.origin_spec import external, parse_origin
from kvctl.topology.file.values import Field, Path, Reader
from kvctl.topology.model import Origin

NAME = {"pattern": f"^({BUCKET_PATTERN})$", "maxLength": MAX_BUCKET}
_FILTER = {"pattern": f"^({FILTER_PATTERN})$"}
_DOMAIN = {"pattern": r"^[^.*>\s]+$"}
_SUBJECT = {"pattern": r"^[^.*>\s]+(\.[^.*>\s]+)*$"}

TITLE = Field(
    Reader.text,
    "Name of the topology, which marks everything created from it",
    {"pattern": r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"},
)

CONTEXT: dict[str, Field] = {
    "context": Field(Reader.text, "Name of a context, see `kvctl context ls`"),
    "url": Field(Reader.text, "Server URL, or several separated by commas"),
    "domain": Field(Reader.text, "JetStream domain", _DOMAIN),
    "api_prefix": Field(Reader.text, "JetStream API prefix", _SUBJECT),
}

_READERS: Mapping[Form, Callable[[Reader, Path], Any]] = {
    Form.TEXT: Reader.text,
    Form.TEXTS: Reader.texts,
    Form.PAIRS: Reader.text_map,
    Form.INTEGER: Reader.integer,
    Form.FLAG: Reader.flag,
    Form.DURATION: Reader.duration,
    Form.SIZE: Reader.size,
    Form.ROUTE: Reader.republish,
}


def _settings(resource: Resource) -> dict[str, Field]:
    """Return the fields of a resource's settings and its place; an option's other name is an alias."""
    rows = [row for row in SETTINGS.values() if resource in row.of]
    found = {row.name: Field(_READERS[row.form], row.file_help or row.help, row.limits) for row in rows}
    found |= {row.option: Field(_READERS[row.form], f"Alias of `{row.name}`", row.limits) for row in rows if row.option}
    return found | {"in": Field(Reader.text, "Context of this file to create it in; default: the context in use")}


BUCKET = _settings("bucket")

_DENY_PURGE = Field(Reader.flag, "Keep history readable here after a purge at the origin")

MIRROR: dict[str, Field] = {
    "origin": Field(Reader.bucket, "Bucket or mirror to replicate", NAME),
    "origin_domain": Field(Reader.text, "JetStream domain of the origin", _DOMAIN),
    "origin_api": Field(Reader.text, "Prefix under which this account imports the origin's API", _SUBJECT),
    "deliver": Field(Reader.text, "Prefix of the subjects that the origin's account delivers on", _SUBJECT),
    "keys": Field(Reader.filters, "Replicate only these keys, where that is safe", _FILTER),
    "deny_purge": _DENY_PURGE,
    **_settings("mirror"),
}

ORIGIN: dict[str, Field] = {
    "bucket": Field(Reader.bucket, "Bucket whose keys are replicated", NAME),
    "stream": Field(Reader.bucket, "Mirror of the bucket to replicate from instead", NAME),
    "keys": Field(Reader.filters, "Replicate only these keys, without the literal head of the filter", _FILTER),
    "prefix": Field(Reader.text, "Prefix of the keys in the aggregate"),
    "map": Field(Reader.text_map, "Destination of the keys of each filter, with `$1` for the first wildcard",
                 {"propertyNames": _FILTER, "additionalProperties": {"type": "string", "minLength": 1}}),
    "domain": Field(Reader.text, "JetStream domain of the origin", _DOMAIN),
    "api": Field(Reader.text, "Prefix under which this account imports the origin's API", _SUBJECT),
    "deliver": Field(Reader.text, "Prefix of the subjects that the origin's account delivers on", _SUBJECT),
}  # fmt: skip


def read_origins(reader: Reader, path: Path) -> tuple[Origin, ...]:
    """Read the origins of an aggregate. Raises UsageError."""
    if not isinstance(reader.at(path), list):
        reader.fail(path, "`origins` must be a list")
    return tuple(_origin(reader, (*path, number)) for number in range(len(reader.at(path))))


AGGREGATE: dict[str, Field] = {
    "origins": Field(read_origins, "Origins: names of buckets, or mappings with details"),
    "writable": Field(Reader.flag, "Allow clients to write to it"),
    "deny_purge": _DENY_PURGE,
    **_settings("aggregate"),
}

SECTIONS: Mapping[str, tuple[str, Mapping[str, Field]]] = {
    "buckets": ("a bucket", BUCKET),
    "mirrors": ("a mirror", MIRROR),
    "aggregates": ("an aggregate", AGGREGATE),
}


def _origin(reader: Reader, path: Path) -> Origin:
    if isinstance(reader.at(path), str):
        return reader.checked(path, lambda: parse_origin(reader.at(path)))
    found: dict[str, Any] = reader.fields(path, ORIGIN, "an origin")

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
