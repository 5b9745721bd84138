"""The fields of a topology file, each once: how it is read, what it says, which values it takes. [pure]"""

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
    "What the topology is called: the mark of what is made from it",
    {"pattern": r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"},
)

CONTEXT: dict[str, Field] = {
    "context": Field(Reader.text, "Name of a context, see `kvctl context ls`"),
    "url": Field(Reader.text, "Server, or several with commas"),
    "domain": Field(Reader.text, "JetStream domain", _DOMAIN),
    "api_prefix": Field(Reader.text, "JetStream API prefix", _SUBJECT),
}

_SETTINGS: dict[str, Field] = {
    "description": Field(Reader.text, "What it is for"),
    "history": Field(Reader.integer, "Revisions kept of each key", {"minimum": 1, "maximum": MAX_HISTORY}),
    "ttl": Field(Reader.duration, "Entries expire after this"),
    "replicas": Field(Reader.integer, "Servers that each hold all of it", {"minimum": 1, "maximum": 5}),
    "storage": Field(Reader.text, "Where it is kept; chosen once for ever", {"enum": ["file", "memory"]}),
    "max_bytes": Field(Reader.size, "Largest size of the whole"),
    "cluster": Field(Reader.text, "Cluster to place it in"),
    "tags": Field(Reader.texts, "Tags of the servers to place it on"),
    "tag": Field(Reader.texts, "The same as `tags`"),
    "in": Field(Reader.text, "Context of this file that it is in; without one, the context in use"),
}
"""What buckets, mirrors and aggregates have in common."""

BUCKET: dict[str, Field] = {
    **_SETTINGS,
    "marker_ttl": Field(Reader.duration, "Keys may have a ttl of their own; expired ones leave a marker for this long"),
    "max_value_size": Field(Reader.size, "Largest value, headers included"),
    "compress": Field(Reader.flag, "Compress what is stored"),
    "republish": Field(Reader.republish, "Publish again what is stored: SRC=DEST", {"pattern": "^[^=]+=.+$"}),
    "republish_headers_only": Field(Reader.flag, "Republish headers and sizes, without values"),
    "metadata": Field(Reader.text_map, "Names and values of your own", {"propertyNames": {"minLength": 1}}),
    "atomic": Field(Reader.flag, "Several keys may be written as one batch"),
}

_DENY_PURGE = Field(Reader.flag, "Purges at the origin then leave the history readable here")

MIRROR: dict[str, Field] = {
    "origin": Field(Reader.bucket, "Bucket to replicate, or another mirror", NAME),
    "origin_domain": Field(Reader.text, "JetStream domain that the origin is in", _DOMAIN),
    "origin_api": Field(Reader.text, "Prefix under which this account imports the origin's API", _SUBJECT),
    "deliver": Field(Reader.text, "Prefix of the subjects that the origin's account delivers on", _SUBJECT),
    "keys": Field(Reader.filters, "Only these keys, where that harms nobody", _FILTER),
    "deny_purge": _DENY_PURGE,
    **_SETTINGS,
}

ORIGIN: dict[str, Field] = {
    "bucket": Field(Reader.bucket, "Bucket whose keys are taken", NAME),
    "stream": Field(Reader.bucket, "Where to read them, if not from the bucket itself: a mirror of it", NAME),
    "keys": Field(Reader.filters, "Only these keys; they lose the literal head of the filter", _FILTER),
    "prefix": Field(Reader.text, "What goes before the keys"),
    "map": Field(Reader.text_map, "Filters and where their keys land, `$1` for the first wildcard",
                 {"propertyNames": _FILTER, "additionalProperties": {"type": "string", "minLength": 1}}),
    "domain": Field(Reader.text, "JetStream domain that it is in", _DOMAIN),
    "api": Field(Reader.text, "Prefix under which this account imports its API", _SUBJECT),
    "deliver": Field(Reader.text, "Prefix of the subjects that its account delivers on", _SUBJECT),
}  # fmt: skip


def read_origins(reader: Reader, path: Path) -> tuple[Origin, ...]:
    """The origins of an aggregate. Raises UsageError."""
    if not isinstance(reader.at(path), list):
        reader.fail(path, "`origins` is a list")
    return tuple(_origin(reader, (*path, number)) for number in range(len(reader.at(path))))


AGGREGATE: dict[str, Field] = {
    "origins": Field(read_origins, "What feeds it: names of buckets, or what is said of each"),
    "writable": Field(Reader.flag, "Clients may write to it, too"),
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
