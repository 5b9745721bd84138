"""Fields of a stream configuration under the names and units of another tool, in both directions. [pure]

Reading models what the tool creates, its defaults included. A setting that a format cannot express is therefore one
that differs after writing and reading.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvctl.errors import UsageError
from kvctl.units import MAX_INT64, SECOND_NS, duration_ns, parse_duration


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of values."""

    read: Callable[[Any], Any]
    """Convert from the tool's form. Raises UsageError."""
    write: Callable[[Any], Any] = lambda value: value
    """Convert to the tool's form."""
    zero: Any = None
    """Meaning of an absent setting in a stream configuration; None: it stays absent."""


@dataclass(frozen=True, slots=True)
class Row:
    """One setting in a stream configuration and in the tool's format; `a.b` is the field `b` of `a`."""

    ours: str
    theirs: str
    kind: Kind
    default: Any = None
    """The tool's value when the field is absent, in its own terms, if that is a setting."""
    always: bool = False
    """True if to write it even if it means no setting."""


def written(rows: Sequence[Row], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as the tool writes them, without those that mean nothing to the tool either."""
    found: dict[str, Any] = {}
    for row in rows:
        value = _get(config, row.ours)
        value = row.kind.zero if value in _EMPTY else value
        if value is None:
            continue
        text = row.kind.write(value)
        if row.always or text not in _NEUTRAL or row.default not in (None, text):
            _put(found, row.theirs, text)
    return found


def read(rows: Sequence[Row], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a stream configuration, defaults of the tool included. Raises UsageError."""
    found: dict[str, Any] = {}
    for row in rows:
        value = _get(fields, row.theirs)
        value = row.default if value in _EMPTY else value
        if value in _EMPTY:
            continue
        try:
            _put(found, row.ours, row.kind.read(value))
        except UsageError as error:
            raise UsageError(f"`{row.theirs}` {error.message}") from None
    return found


def unknown(rows: Sequence[Row], fields: Mapping[str, Any], others: Collection[str] = ()) -> list[str]:
    """Return the names of the fields that no row reads."""
    known = {row.theirs.partition(".")[0] for row in rows} | set(others)
    return [name for name, value in fields.items() if name not in known and value not in _EMPTY]


_EMPTY: tuple[Any, ...] = (None, "", [], {})
_NEUTRAL: tuple[Any, ...] = (False, -1, 0, "0s")
"""Values that mean no setting."""


def _get(data: Mapping[str, Any], path: str) -> Any:
    value: Any = data
    for name in path.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise UsageError(f"`{path}` must be a mapping")
        value = value.get(name)
    return value


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    *heads, last = path.split(".")
    for name in heads:
        data = data.setdefault(name, {})
    data[last] = value


# -- kinds of values ---------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError("must be text")
    return value


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise UsageError("must be a list")
    return [_text(item) for item in value]


def _text_map(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise UsageError("must be a mapping")
    return {name: _text(text) for name, text in value.items()}


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError("must be an integer")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError("must be true or false")
    return value


def _seconds(value: Any) -> int:
    number = _number(value)
    if not 0 <= number * SECOND_NS <= MAX_INT64:
        raise UsageError("is out of range")
    return number * SECOND_NS


def _go_duration(nanoseconds: int) -> str:
    """Format as Go's `time.ParseDuration` reads it, which has no unit above the hour."""
    parts = ""
    for unit, size in (("h", 3600 * SECOND_NS), ("m", 60 * SECOND_NS), ("s", SECOND_NS), ("ms", 10**6), ("ns", 1)):
        count, nanoseconds = divmod(nanoseconds, size)
        parts += f"{count}{unit}" if count else ""
    return parts or "0s"


TEXT = Kind(_text)
TEXTS = Kind(_texts)
TEXT_MAP = Kind(_text_map)
NUMBER = Kind(_number)
FLAG = Kind(_flag, zero=False)
SECONDS = Kind(_seconds, lambda value: -(-value // SECOND_NS), 0)
"""Nanoseconds as whole seconds, rounded up: nothing expires early."""
GO_DURATION = Kind(lambda value: duration_ns(parse_duration(_text(value))), _go_duration, 0)
"""Nanoseconds as Go writes durations: `1h30m`."""


def nested(rows: Sequence[Row]) -> Kind:
    """Return the kind of an object with settings of its own; an unknown one is an error."""

    def parse(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise UsageError("must be a mapping")
        if others := unknown(rows, value):
            raise UsageError(f"has the unknown field `{others[0]}`")
        return read(rows, value)

    return Kind(parse, lambda value: written(rows, value))


def transforms(source: str, destination: str) -> Kind:
    """Return the kind of a list of subject transforms; an empty destination keeps the subject."""

    def parse(value: Any) -> dict[str, str]:
        if not isinstance(value, Mapping):
            raise UsageError("must be a mapping")
        return {"src": _text(value.get(source)), "dest": _text(value.get(destination) or "")}

    return several(Kind(parse, lambda rule: {source: rule["src"], destination: rule.get("dest", "")}))


def several(kind: Kind) -> Kind:
    """Return the kind of a list."""

    def parse(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise UsageError("must be a list")
        return [kind.read(item) for item in value]

    return Kind(parse, lambda value: [kind.write(item) for item in value])


def one(kind: Kind) -> Kind:
    """Return the kind of a list with one item, or of the item alone."""

    def parse(value: Any) -> Any:
        items = value if isinstance(value, list) else [value]
        if len(items) != 1:
            raise UsageError("must appear once")
        return kind.read(items[0])

    return Kind(parse, lambda value: [kind.write(value)])
