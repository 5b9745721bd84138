"""The topology file (COMMANDS.md, section 9): buckets, mirrors and aggregates, and the contexts they are in. [pure]"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

from kvctl.documents import Document
from kvctl.errors import UsageError
from kvctl.kv.config import BucketConfig
from kvctl.kv.fields import Republish
from kvctl.kv.kinds import StreamConfig
from kvctl.quantities import parse_duration, parse_size
from kvctl.topology.model import Aggregate, Mirror, Origin
from kvctl.topology.spec import external, parse_origin

VERSION = 1
DEFAULT_NAME = "default"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Topology:
    """What a file describes, by name."""

    buckets: Mapping[str, BucketConfig] = field(default_factory=dict)
    mirrors: Mapping[str, Mirror] = field(default_factory=dict)
    aggregates: Mapping[str, Aggregate] = field(default_factory=dict)
    contexts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    """The context that something is in, where the file says it."""
    name: str = DEFAULT_NAME
    """What the file calls itself: the mark of what it makes."""
    named: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The fields that the file says, of each bucket, mirror and aggregate: it owns no others."""

    def place_of(self, name: str) -> str:
        """The context that something is in; empty for the one in use."""
        return self.places.get(name, "")

    def streams(self) -> list[StreamConfig]:
        """The stream configurations; what is inherited comes from origins in the file, as far as they stand there."""
        made: dict[str, StreamConfig] = {name: bucket.to_stream() for name, bucket in self.buckets.items()}
        for name, aggregate in self.aggregates.items():
            made[name] = aggregate.to_stream([self._found(made, origin) for origin in aggregate.origins])
        for name, mirror in self.mirrors.items():
            made[name] = mirror.to_stream(self._found(made, mirror.origin))
        return list(made.values())

    @staticmethod
    def _found(made: Mapping[str, StreamConfig], origin: Origin) -> StreamConfig | None:
        return made.get(origin.name) if not origin.stream else made.get(origin.stream)


def read_topology(document: Document) -> Topology:
    """The topology in a document. Raises UsageError with the line, the field, and the nearest one that exists."""
    reader = _Reader(document)
    root = reader.mapping((), _ROOT, "a topology file")
    if "version" not in root:
        reader.fail((), "The file has no `version`", hint=f"`version: {VERSION}`")
    if root["version"] != VERSION:
        reader.fail(("version",), f"This kvctl reads version {VERSION}, not `{root['version']}`")
    contexts = {name: reader.context(name) for name in reader.names("contexts")}
    places: dict[str, str] = {}
    named: dict[str, frozenset[str]] = {}
    found: dict[str, dict[str, Any]] = {}
    for section, make in _SECTIONS.items():
        found[section] = {}
        for name in reader.names(section):
            if name in places or any(name in others for others in found.values()):
                reader.fail((section, name), f"`{name}` stands twice in the file: a name means one thing")
            found[section][name], place = make(reader, (section, name), name)
            named[name] = frozenset(root[section][name] or ())
            if place is not None:
                if place not in contexts:
                    reader.unknown((section, name, "in"), place, "a context of this file", contexts)
                places[name] = place
    title = reader.title() if "name" in root else DEFAULT_NAME
    return Topology(found["buckets"], found["mirrors"], found["aggregates"], contexts, places, title, named)


_ROOT = ("version", "name", "contexts", "buckets", "mirrors", "aggregates")
_TITLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")

Path = tuple[str | int, ...]


class _Reader:
    """Takes values from a document, and says where they are wrong."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def at(self, path: Path) -> Any:
        """The value at a path."""
        value = self._document.data
        for step in path:
            value = value[step]
        return value

    def mapping(self, path: Path, known: tuple[str, ...], what: str) -> dict[str, Any]:
        """The mapping at a path, whose keys are all known; nothing at all is an empty one."""
        value = self.at(path)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.fail(path, f"{what[:1].upper()}{what[1:]} is a mapping")
        for name in value:
            if name not in known:
                self.unknown((*path, name), name, f"a field of {what}", known)
        return value

    def names(self, section: str) -> list[str]:
        """The names in a section, which may be missing."""
        value = (self.at(()) or {}).get(section)
        if value is not None and not isinstance(value, dict):
            self.fail((section,), f"`{section}` is a mapping of names")
        return list(value or ())

    def title(self) -> str:
        """The topology's own name."""
        text = self.text(("name",))
        if not _TITLE.match(text):
            self.fail(("name",), f"`{text}` is not a topology's name", hint="Letters, digits, `_`, `-` and `.`")
        return text

    def context(self, name: str) -> dict[str, str]:
        """How to reach what is in a context: a named one, or a URL; with neither the one in use, maybe in another domain."""
        found = self.mapping(("contexts", name), ("context", "url", "domain", "api_prefix"), "a context")
        for one, other in (("context", "url"), ("domain", "api_prefix")):
            if one in found and other in found:
                self.fail(("contexts", name), f"`{one}` and `{other}` exclude each other")
        return {key: self.text(("contexts", name, key)) for key in found}

    def fields(self, path: Path, parsers: Mapping[str, _Parser], what: str) -> dict[str, Any]:
        """The fields at a path, parsed."""
        found = self.mapping(path, tuple(parsers), what)
        return {name: parsers[name](self, (*path, name)) for name in found}

    def text(self, path: Path) -> str:
        """Text; a number will do."""
        value = self.at(path)
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
            self.fail(path, f"`{path[-1]}` is text")
        return str(value)

    def texts(self, path: Path) -> tuple[str, ...]:
        """A list of texts, or one."""
        if not isinstance(self.at(path), list):
            return (self.text(path),)
        return tuple(self.text((*path, number)) for number in range(len(self.at(path))))

    def text_map(self, path: Path) -> dict[str, str]:
        """A mapping of texts."""
        if not isinstance(self.at(path), dict):
            self.fail(path, f"`{path[-1]}` is a mapping")
        return {name: self.text((*path, name)) for name in self.at(path)}

    def integer(self, path: Path) -> int:
        """A whole number."""
        value = self.at(path)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(path, f"`{path[-1]}` is a whole number")
        return value

    def flag(self, path: Path) -> bool:
        """Yes or no."""
        value = self.at(path)
        if not isinstance(value, bool):
            self.fail(path, f"`{path[-1]}` is true or false")
        return value

    def duration(self, path: Path) -> timedelta:
        """A duration as `30d`."""
        return self.checked(path, lambda: parse_duration(self.text(path)))

    def size(self, path: Path) -> int:
        """A size as `10MiB`, or bytes."""
        return self.checked(path, lambda: parse_size(self.text(path)))

    def republish(self, path: Path) -> Republish:
        """SRC=DEST."""
        source, equals, destination = self.text(path).partition("=")
        if not equals or not source or not destination:
            self.fail(path, "`republish` is `SRC=DEST`")
        return Republish(source, destination)

    def checked(self, path: Path, make: Callable[[], T]) -> T:
        """What `make` gives, its complaint with the place where it belongs."""
        try:
            return make()
        except UsageError as error:
            self.fail(path, error.message, hint=error.hint)

    def unknown(self, path: Path, name: str, what: str, known: Any) -> NoReturn:
        """A word that means nothing here."""
        near = get_close_matches(name, list(known), n=1)
        hint = f"Did you mean `{near[0]}`?" if near else f"One of {', '.join(f'`{item}`' for item in known)}"
        self.fail(path, f"`{name}` is not {what}", hint=hint)

    def fail(self, path: Path, problem: str, hint: str | None = None) -> NoReturn:
        """Raises UsageError that says where."""
        trail = ".".join(str(step) for step in path)
        where = f"{self._document.where(*path)}: " + (f"{trail}: " if trail else "")
        raise UsageError(f"{where}{problem}", hint=hint)


_Parser = Callable[[_Reader, Path], Any]

_BUCKET: dict[str, _Parser] = {
    "description": _Reader.text, "history": _Reader.integer, "ttl": _Reader.duration, "marker_ttl": _Reader.duration,
    "replicas": _Reader.integer, "storage": _Reader.text, "max_value_size": _Reader.size, "max_bytes": _Reader.size,
    "compress": _Reader.flag, "cluster": _Reader.text, "tags": _Reader.texts, "tag": _Reader.texts,
    "metadata": _Reader.text_map, "republish": _Reader.republish, "republish_headers_only": _Reader.flag,
    "atomic": _Reader.flag, "in": _Reader.text,
}  # fmt: skip
_MIRROR: dict[str, _Parser] = {
    "origin": _Reader.text, "origin_domain": _Reader.text, "origin_api": _Reader.text, "deliver": _Reader.text,
    "keys": _Reader.texts, "deny_purge": _Reader.flag,
    **{name: _BUCKET[name] for name in (
        "description", "history", "ttl", "replicas", "storage", "max_bytes", "cluster", "tags", "tag", "in",
    )},
}  # fmt: skip
_ORIGIN: dict[str, _Parser] = {
    "bucket": _Reader.text, "stream": _Reader.text, "keys": _Reader.texts, "prefix": _Reader.text,
    "map": _Reader.text_map, "domain": _Reader.text, "api": _Reader.text, "deliver": _Reader.text,
}  # fmt: skip


def _bucket(reader: _Reader, path: Path, name: str) -> tuple[BucketConfig, str | None]:
    found, place = _settings(reader, path, _BUCKET, "a bucket")
    config = reader.checked(path, lambda: BucketConfig(name, **found))
    reader.checked(path, config.to_stream)
    return config, place


def _mirror(reader: _Reader, path: Path, name: str) -> tuple[Mirror, str | None]:
    found, place = _settings(reader, path, _MIRROR, "a mirror")
    if "origin" not in found:
        reader.fail(path, f"Mirror `{name}` has no `origin`")
    way = (found.pop("origin_domain", None), found.pop("origin_api", None), found.pop("deliver", None))
    bucket, keys = found.pop("origin"), found.pop("keys", ())

    def make() -> Mirror:
        mirror = Mirror(name, Origin(bucket, keys=keys, external=external(*way)), **found)
        mirror.to_stream()
        return mirror

    return reader.checked(path, make), place


def _aggregate(reader: _Reader, path: Path, name: str) -> tuple[Aggregate, str | None]:
    parsers: dict[str, _Parser] = {"origins": _origins, "writable": _Reader.flag, "deny_purge": _Reader.flag, **_BUCKET}
    found, place = _settings(reader, path, parsers, "an aggregate")
    origins = found.pop("origins", ())

    def make() -> Aggregate:
        aggregate = Aggregate(name, origins, **found)
        aggregate.to_stream()
        return aggregate

    return reader.checked(path, make), place


_SECTIONS: dict[str, Callable[[_Reader, Path, str], tuple[Any, str | None]]] = {
    "buckets": _bucket, "mirrors": _mirror, "aggregates": _aggregate,
}  # fmt: skip


def _origins(reader: _Reader, path: Path) -> tuple[Origin, ...]:
    if not isinstance(reader.at(path), list):
        reader.fail(path, "`origins` is a list")
    return tuple(_origin(reader, (*path, number)) for number in range(len(reader.at(path))))


def _origin(reader: _Reader, path: Path) -> Origin:
    if isinstance(reader.at(path), str):
        return reader.checked(path, lambda: parse_origin(reader.at(path)))
    found = reader.fields(path, _ORIGIN, "an origin")

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


def _settings(
    reader: _Reader, path: Path, parsers: Mapping[str, _Parser], what: str
) -> tuple[dict[str, Any], str | None]:
    """The fields as the model has them, and the context."""
    found = reader.fields(path, parsers, what)
    if "tag" in found:
        found["tags"] = (*found.get("tags", ()), *found.pop("tag"))
    if found.pop("republish_headers_only", False):
        if "republish" not in found:
            reader.fail((*path, "republish_headers_only"), "`republish_headers_only` needs `republish`")
        found["republish"] = Republish(found["republish"].source, found["republish"].destination, headers_only=True)
    place = found.pop("in", None)
    return found, place
