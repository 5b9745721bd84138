"""The topology file: buckets, mirrors and aggregates, and their contexts. [pure]"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kvctl.documents.parser import Document
from kvctl.kv.config import BucketConfig
from kvctl.kv.config_edit import edited
from kvctl.kv.settings import FIELDS, Republish
from kvctl.topology.file.fields import CONTEXT, SECTIONS, TITLE
from kvctl.topology.file.origin_spec import external
from kvctl.topology.file.values import Path, Reader
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

    def place_of(self, name: str) -> str:
        """Return the context of a resource; empty for the one in use."""
        return self.places.get(name, "")


def read_topology(document: Document) -> Topology:
    """Read the topology in a document. Raises UsageError with the line, the field, and the nearest existing one."""
    reader = Reader(document)
    root = reader.mapping((), _ROOT, "a topology file")
    if "version" not in root:
        reader.fail((), "The file has no `version`", hint=f"Add `version: {VERSION}`")
    if root["version"] is True or root["version"] != VERSION:
        reader.fail(("version",), f"This kvctl reads version {VERSION}, not `{root['version']}`")
    contexts = {name: _context(reader, name) for name in _names(reader, "contexts")}
    places: dict[str, str] = {}
    named: dict[str, frozenset[str]] = {}
    found: dict[str, dict[str, Any]] = {}
    for section, make in _MAKERS.items():
        found[section] = {}
        for name in _names(reader, section):
            if name in places or any(name in others for others in found.values()):
                reader.fail((section, name), f"`{name}` appears twice in the file: names must be unique")
            found[section][name], place = make(reader, (section, name), name)
            named[name] = frozenset(root[section][name] or ())
            if place is not None:
                if place not in contexts:
                    reader.unknown((section, name, "in"), place, "a context of this file", contexts)
                places[name] = place
    title = _title(reader) if "name" in root else DEFAULT_NAME
    return Topology(found["buckets"], found["mirrors"], found["aggregates"], contexts, places, title, named)


_ROOT = ("version", "name", "contexts", "buckets", "mirrors", "aggregates")


def _names(reader: Reader, section: str) -> list[str]:
    """Return the names in a section, which may be missing."""
    value = (reader.at(()) or {}).get(section)
    if value is not None and not isinstance(value, dict):
        reader.fail((section,), f"`{section}` must be a mapping of names")
    return list(value or ())


def _title(reader: Reader) -> str:
    text = reader.text(("name",))
    if not re.fullmatch(TITLE.limits["pattern"], text):
        reader.fail(("name",), f"`{text}` is not a valid topology name", hint="Use letters, digits, `_`, `-` and `.`")
    return text


def _context(reader: Reader, name: str) -> dict[str, str]:
    """Read the connection of a context: a named one, a URL, or the one in use, possibly in another domain."""
    path = ("contexts", name)
    found = reader.fields(path, CONTEXT, "a context")
    for one, other in (("context", "url"), ("domain", "api_prefix")):
        if one in found and other in found:
            reader.fail(path, f"`{one}` and `{other}` cannot be combined")
    return found


def _bucket(reader: Reader, path: Path, name: str) -> tuple[BucketConfig, str | None]:
    found, place = _settings(reader, path, "buckets")
    config = reader.checked(path, lambda: BucketConfig(name, **found))
    reader.checked(path, config.to_stream)
    return config, place


def _mirror(reader: Reader, path: Path, name: str) -> tuple[Mirror, str | None]:
    found, place = _settings(reader, path, "mirrors")
    if "origin" not in found:
        reader.fail(path, f"Mirror `{name}` has no `origin`")
    way = (found.pop("origin_domain", None), found.pop("origin_api", None), found.pop("deliver", None))
    bucket, keys = found.pop("origin"), found.pop("keys", ())

    def make() -> Mirror:
        mirror = Mirror(name, Origin(bucket, keys=keys, external=external(*way)), **found)
        mirror.to_stream()
        return mirror

    return reader.checked(path, make), place


def _aggregate(reader: Reader, path: Path, name: str) -> tuple[Aggregate, str | None]:
    found, place = _settings(reader, path, "aggregates")
    origins = found.pop("origins", ())

    def make() -> Aggregate:
        aggregate = Aggregate(name, origins, **found)
        aggregate.to_stream()
        return aggregate

    return reader.checked(path, make), place


_MAKERS: dict[str, Callable[[Reader, Path, str], tuple[Any, str | None]]] = {
    "buckets": _bucket, "mirrors": _mirror, "aggregates": _aggregate,
}  # fmt: skip


def _settings(reader: Reader, path: Path, section: str) -> tuple[dict[str, Any], str | None]:
    """Read the fields as the model has them, and the context."""
    what, known = SECTIONS[section]
    found = reader.fields(path, known, what)
    if "tag" in found:
        found["tags"] = (*found.get("tags", ()), *found.pop("tag"))
    if found.pop("republish_headers_only", False):
        if "republish" not in found:
            reader.fail((*path, "republish_headers_only"), "`republish_headers_only` requires `republish`")
        found["republish"] = Republish(found["republish"].source, found["republish"].destination, headers_only=True)
    place = found.pop("in", None)
    for name, value in found.items():
        if name in FIELDS:
            reader.checked((*path, name), partial(edited, {}, {name: value}))
    return found, place
