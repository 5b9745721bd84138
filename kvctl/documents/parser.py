"""Parse YAML and JSON files to plain data: bounded in size, depth and aliases, duplicate keys refused, errors located.

YAML is read by version 1.2's rules: `no`, `on`, `12:30`, `2026-01-31` are text, and so is `007`. Keys are always text.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from kvctl.errors import UsageError

MAX_BYTES = 16 * 1024 * 1024
MAX_VALUES = 1_000_000
"""Maximum number of values in a document; values repeated by aliases count each time."""
MAX_DEPTH = 64


Path = tuple[str | int, ...]
"""Path to a value: keys and positions, from the root."""
Place = tuple[int, int]
"""Line and column, each from 1."""

_INTEGER = re.compile(r"[-+]?(0|[1-9]\d*)\Z")
_OTHER_INTEGER = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.\d+|(0|[1-9]\d*)(\.\d*)?)([eE][-+]?\d+)?\Z")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_TOO_DEEP = "This is nested too deeply"
_TEXT_TAGS = ("!", "tag:yaml.org,2002:str")


@dataclass(frozen=True, slots=True)
class Document:
    """Content of a file, with the position of each value."""

    data: Any
    """None, booleans, numbers, text, lists, and dicts with text as keys."""
    source: str
    """Name of the file, for messages."""
    places: Mapping[Path, Place] = field(default_factory=dict)
    """Position of each value, or of its key; empty for JSON."""
    text: str = field(default="", repr=False)
    """Source text if positions have not been determined yet: JSON."""

    problems: tuple[tuple[Path, str, str], ...] = ()
    """Errors that were found before its fields are read: path, message and hint."""

    def located(self) -> "Document":
        """Return the document with the positions of its values."""
        return replace(self, places=_places_in(self.text, self.source), text="") if self.text else self

    def place(self, *path: str | int) -> Place | None:
        """Return the position of the value at `path`, or of the nearest one around it."""
        places = self.located().places
        return next((places[path[:length]] for length in range(len(path), -1, -1) if path[:length] in places), None)

    def where(self, *path: str | int) -> str:
        """Return `topology.yaml:12:5`: line and column of the value at `path`, or of the nearest one around it."""
        place = self.place(*path)
        return self.source if place is None else f"{self.source}:{place[0]}:{place[1]}"


def parse(content: bytes, source: str) -> Document:
    """Parse the document in `content`, YAML or JSON. Raises UsageError."""
    text = decoded(content, source)
    if source.endswith(".json"):
        return _parse_json(text, source)
    if text.lstrip()[:1] in ("{", "["):
        # YAML reads nearly all JSON, but not its escapes beyond U+FFFF, nor tabs.
        try:
            return _parse_json(text, source)
        except UsageError:
            pass
    return _parse_yaml(text, source)


def decoded(content: bytes, source: str) -> str:
    """Return the text of a file, which must be UTF-8 of bounded size. Raises UsageError."""
    if len(content) > MAX_BYTES:
        raise UsageError(f"{source} is larger than {MAX_BYTES // 1024**2} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig")
        _fail(source, _place_of(before, len(before)), "This is not UTF-8")


def _parse_json(text: str, source: str) -> Document:
    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except _Repeated as error:
        _parse_yaml(text, source)  # reports it, with its position
        raise UsageError(f"{source}: Key `{error}` appears twice in one object") from None
    except json.JSONDecodeError as error:
        _fail(source, (error.lineno, error.colno), error.msg)
    except RecursionError:
        raise UsageError(f"{source}: {_TOO_DEEP}") from None
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
    if _is_too_deep(data):
        raise UsageError(f"{source}: {_TOO_DEEP}")
    return Document(data, source, text=text)


def _is_too_deep(data: Any) -> bool:
    """Return whether more than MAX_DEPTH lists and dicts are nested in each other."""
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [item for value in level for item in _items(value)]
    return any(isinstance(value, dict | list) for value in level)


def _items(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


class _Repeated(ValueError):
    """A duplicate key in an object."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _Repeated(next(key for key in keys if keys.count(key) > 1))
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON does not allow {name}")


def _parse_yaml(text: str, source: str) -> Document:
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(source, yaml.parse(text, Loader=loader)).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else None
        problem = error.problem or error.context or "This is not YAML"
        # libyaml reads ahead, and has a limit of its own from 0.2.6 on
        _fail(source, place, _TOO_DEEP if "nesting depth" in problem else problem)
    except yaml.reader.ReaderError:
        # libyaml's own position counts bytes
        found = yaml.reader.Reader.NON_PRINTABLE.search(text)
        _fail(source, _place_of(text, found.start()) if found else None, "A control character that YAML does not allow")


def _places_in(text: str, source: str) -> Mapping[Path, Place]:
    """Return the positions of the values of a JSON text, as far as YAML's rules can read it."""
    if not text:
        return {}
    try:
        return _parse_yaml(text, source).places
    except UsageError:
        return {}


def _place_of(text: str, position: int) -> Place:
    return text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)


def _fail(source: str, place: Place | None, problem: str) -> NoReturn:
    where = source if place is None else f"{source}:{place[0]}:{place[1]}"
    raise UsageError(f"{where}: {problem[:1].upper()}{problem[1:].rstrip('.')}")


class _Builder:
    """Builder of plain data from the parser's events; PyYAML's own would follow aliases without bound."""

    def __init__(self, source: str, events: Iterator[Any]) -> None:
        self._source = source
        self._events = events
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._places: dict[Path, Place] = {}
        self._count = 0

    def document(self) -> Document:
        """Build the stream's only document; an empty one is None."""
        next(self._events)
        event = next(self._events)
        if _kind(event) == "StreamEnd":
            return Document(None, self._source)
        document = self._document()
        event = next(self._events)
        if _kind(event) != "StreamEnd":
            self._refuse(event, "A second document; a file can have only one")
        return document

    def _document(self) -> Document:
        data = self._value(next(self._events), ())
        next(self._events)
        return Document(data, self._source, self._places)

    def _value(self, event: Any, path: Path) -> Any:
        self._places.setdefault(path, _begin(event))
        kind = _kind(event)
        if kind == "Alias":
            return self._aliased(event)
        before = self._count
        self._add(event, 1)
        if kind == "Scalar":
            value = self._scalar(event)
        elif len(path) >= MAX_DEPTH:
            self._refuse(event, _TOO_DEEP)
        else:
            self._check_tag(event)
            value = self._sequence(path) if kind == "SequenceStart" else self._mapping(path)
        if event.anchor:
            self._anchors[event.anchor] = (value, self._count - before)
        return value

    def _sequence(self, path: Path) -> list[Any]:
        items: list[Any] = []
        while _kind(event := next(self._events)) != "SequenceEnd":
            items.append(self._value(event, (*path, len(items))))
        return items

    def _mapping(self, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        merged: list[dict[str, Any]] = []
        while _kind(event := next(self._events)) != "MappingEnd":
            key = self._key(event)
            if key in result:
                first, _ = self._places[(*path, key)]
                self._refuse(event, f"Key `{key}` appears twice, first in line {first}")
            self._places[(*path, key)] = _begin(event)
            value = self._value(next(self._events), (*path, key))
            if key == "<<" and _kind(event) == "Scalar" and event.implicit[0]:
                merged.extend(self._merged(event, value))
            else:
                result[key] = value
        for other in merged:
            result = {**other, **result}
        return result

    def _key(self, event: Any) -> str:
        if _kind(event) == "Alias":
            key = self._aliased(event)
        elif _kind(event) == "Scalar":
            key = event.value
            if event.anchor:
                self._anchors[event.anchor] = (key, 1)
        else:
            key = None
        if not isinstance(key, str):
            self._refuse(event, "A key must be text")
        self._add(event, 1)
        return key

    def _merged(self, event: Any, value: Any) -> list[dict[str, Any]]:
        maps = value if isinstance(value, list) else [value]
        if not all(isinstance(item, dict) for item in maps):
            self._refuse(event, "`<<` must be a mapping, or a list of mappings")
        return maps

    def _aliased(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            self._refuse(event, f"`*{event.anchor}` does not refer to an earlier value")
        value, count = self._anchors[event.anchor]
        self._add(event, count)
        return value

    def _scalar(self, event: Any) -> Any:
        if event.tag is not None:
            self._check_tag(event)
            return event.value
        return plain(event.value) if event.implicit[0] else event.value

    def _check_tag(self, event: Any) -> None:
        if event.tag is not None and not (event.tag in _TEXT_TAGS and _kind(event) == "Scalar"):
            self._refuse(event, f"Tag `{event.tag}` is not supported")

    def _add(self, event: Any, count: int) -> None:
        self._count += count
        if self._count > MAX_VALUES:
            self._refuse(event, f"With its aliases this holds more than {MAX_VALUES:,} values")

    def _refuse(self, event: Any, problem: str) -> NoReturn:
        _fail(self._source, _begin(event), problem)


def _kind(event: Any) -> str:
    return type(event).__name__.removesuffix("Event")


def _begin(event: Any) -> Place:
    return event.start_mark.line + 1, event.start_mark.column + 1


def plain(text: str) -> Any:
    """Convert an unquoted scalar by YAML 1.2's core schema; numbers with a leading zero are text."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        if _INTEGER.match(text):
            return int(text)
        if _OTHER_INTEGER.match(text):
            return int(text, 0)
    except ValueError:  # more digits than Python converts
        return text
    return float(text) if _FLOAT.match(text) else text
