"""The topology file: buckets, mirrors and aggregates, and their contexts. [pure]"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

from kvctl.dataclass import dataclass
from kvctl.documents.parser import Document, Path
from kvctl.documents.reader import Reader, read
from kvctl.documents.record import TEXT, Field, Record, Schema, Type, checked, require_version, version_field
from kvctl.errors import UsageError
from kvctl.kv.config import BucketConfig
from kvctl.kv.names import STREAM_PREFIX
from kvctl.topology.file.fields import CONTEXT, NAME, SECTIONS
from kvctl.topology.file.origin_spec import external
from kvctl.topology.model import Aggregate, Mirror, Origin

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


@dataclass(frozen=True, slots=True)
class _Read:
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
    resources: dict[str, dict[str, _Read]] = {section: found.get(section, {}) for section in SECTIONS}
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


def _resource(reader: Reader, path: Path, name: str) -> _Read:
    """Read one bucket, mirror or aggregate."""
    section = str(path[0])
    parts: list[Callable[[Reader, Path], Any]] = [_check_unique, _check_place, SECTIONS[section].read]
    _, _, found = reader.each(parts, lambda part: part(reader, path))
    given, place, entries = frozenset(found), found.pop("in", None), found.pop("entries", {})
    if "tag" in found:
        found["tags"] = (*found.get("tags", ()), *found.pop("tag"))
    if found.pop("republish_headers_only", False):
        found["republish"] = replace(found["republish"], headers_only=True)
    return _Read(reader.checked(path, lambda: _MAKERS[section](name, found)), place, given, entries)


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
    "buckets": _bucket, "mirrors": _mirror, "aggregates": _aggregate,
}  # fmt: skip


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
        raise UsageError(f"`{text}` is not a valid topology name", hint="Use letters, digits, `_`, `-` and `.`")
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
