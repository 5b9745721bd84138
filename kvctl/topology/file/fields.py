"""Fields of a topology file: reader, description and limits of each. [pure]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvctl.kv.config_edit import MAX_HISTORY
from kvctl.kv.names import BUCKET_PATTERN, FILTER_PATTERN, MAX_BUCKET
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

_SETTINGS: dict[str, Field] = {
    "description": Field(Reader.text, "Description"),
    "history": Field(Reader.integer, "Revisions to keep per key", {"minimum": 1, "maximum": MAX_HISTORY}),
    "ttl": Field(Reader.duration, "Time until entries expire"),
    "replicas": Field(Reader.integer, "Number of stream replicas", {"minimum": 1, "maximum": 5}),
    "storage": Field(Reader.text, "Storage backend, which cannot be changed later", {"enum": ["file", "memory"]}),
    "max_bytes": Field(Reader.size, "Maximum total size"),
    "cluster": Field(Reader.text, "Cluster to place it in"),
    "tags": Field(Reader.texts, "Tags of the servers to place it on"),
    "tag": Field(Reader.texts, "Alias of `tags`"),
    "in": Field(Reader.text, "Context of this file to create it in; default: the context in use"),
}
"""Fields that buckets, mirrors and aggregates share."""

BUCKET: dict[str, Field] = {
    **_SETTINGS,
    "marker_ttl": Field(Reader.duration, "Allow per-key TTLs, and keep markers of expired keys for this time"),
    "max_value_size": Field(Reader.size, "Maximum size of a value, headers included"),
    "compress": Field(Reader.flag, "Compress stored data"),
    "republish": Field(Reader.republish, "Republish stored entries: SRC=DEST", {"pattern": "^[^=]+=.+$"}),
    "republish_headers_only": Field(Reader.flag, "Republish headers and sizes, without values"),
    "metadata": Field(Reader.text_map, "Custom names and values", {"propertyNames": {"minLength": 1}}),
    "atomic": Field(Reader.flag, "Allow atomic writes of several keys"),
}

_DENY_PURGE = Field(Reader.flag, "Keep history readable here after a purge at the origin")

MIRROR: dict[str, Field] = {
    "origin": Field(Reader.bucket, "Bucket or mirror to replicate", NAME),
    "origin_domain": Field(Reader.text, "JetStream domain of the origin", _DOMAIN),
    "origin_api": Field(Reader.text, "Prefix under which this account imports the origin's API", _SUBJECT),
    "deliver": Field(Reader.text, "Prefix of the subjects that the origin's account delivers on", _SUBJECT),
    "keys": Field(Reader.filters, "Replicate only these keys, where that is safe", _FILTER),
    "deny_purge": _DENY_PURGE,
    **_SETTINGS,
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
    **BUCKET,
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
