"""Field-by-field differences of two configurations, and their text. [pure]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kvctl.jetstream.config_text import CONSUMER, DURATION, STREAM, TEXT, TIME, WORDS, Config, Schema, is_servers
from kvctl.units import duration_from_ns, duration_seconds, format_duration, format_time, parse_time

UNSET = "none"
"""Text shown for a field without a value."""
WHOLE = "whole"
"""Kind of an object or a list that is one field."""
DEFAULTS = {
    "retention": "limits",
    "storage": "file",
    "num_replicas": 1,
    "compression": "none",
    "discard": "old",
    "deliver_policy": "all",
    "replay_policy": "instant",
    "priority_policy": "none",
    "persist_mode": "default",
}
"""Values that servers spell out, and that mean the same as none."""


class Difference(NamedTuple):
    """One differing field; values as in JSON output: durations in seconds, None for unset."""

    field: str
    before: Any
    after: Any

    @property
    def words(self) -> tuple[str, str]:
        """Format both values for people."""
        return shown(self.field, self.before), shown(self.field, self.after)

    def __str__(self) -> str:
        return f"{self.field}: {' -> '.join(self.words)}"


def differences(before: Config, after: Config, schema: Schema) -> list[Difference]:
    """Return the fields that differ, by path, in the order of the schema; others are compared as they are.

    Missing, empty and unlimited values and defaults are equal. The server's own metadata is ignored.
    """
    first, second = _flat(before, schema), _flat(after, schema)
    return [
        Difference(name, first.get(name, _default(before, name)), second.get(name, _default(after, name)))
        for name in first | second
        if first.get(name) != second.get(name)
    ]


def overlaid(found: Config, wanted: Config) -> Config:
    """Return a configuration with the fields that are requested and not empty replaced.

    Members of an object are replaced one by one, except those of a mirror.
    """
    return found | {
        name: (found.get(name) or {}) | value if isinstance(value, dict) and name != "mirror" else value
        for name, value in wanted.items()
        if value
    }


def shown(field: str, value: Any) -> str:
    """Format a value for a message."""
    if value in (None, "", [], {}):
        return UNSET
    if isinstance(value, bool):
        return "yes" if value else "no"
    if field in _DURATIONS:
        return format_duration(duration_from_ns(round(value * 10**9)))
    if isinstance(value, list):
        return ", ".join(shown("", item) for item in value)
    if isinstance(value, dict):
        return " ".join(f"{name}={shown('', item)}" for name, item in value.items())
    return str(value)


def _durations(schema: Schema, prefix: str = "") -> set[str]:
    nested = [_durations(kind, f"{name}.") for name, kind in schema.items() if isinstance(kind, Mapping)]
    return {f"{prefix}{name}" for name, kind in schema.items() if kind == DURATION}.union(*nested)


_DURATIONS = _durations(STREAM) | _durations(CONSUMER) | {"ttl", "marker_ttl"}
"""Fields in seconds, those of buckets included."""


def _flat(config: Config, schema: Schema, prefix: str = "") -> dict[str, Any]:
    """Return the values by path that are neither empty nor defaults, as in output, in the order of the schema."""
    flat: dict[str, Any] = {}
    for name in dict.fromkeys([*schema, *config]):
        kind, value, path = schema.get(name, WHOLE), config.get(name), f"{prefix}{name}"
        if isinstance(kind, Mapping):
            flat |= _flat(value or {}, kind, f"{path}.")
        elif kind == WORDS:
            flat |= {f"{path}.{word}": text for word, text in (value or {}).items() if not is_servers(word)}
        elif value and DEFAULTS.get(path) != value and not (isinstance(value, int) and value < 0):
            flat[path] = _output(value, kind)
    return {path: value for path, value in flat.items() if value not in ({}, [])}


def _default(config: Config, name: str) -> Any:
    """Return a field's default, as the configuration spells it out: not a difference, but shown."""
    return config.get(name, DEFAULTS[name]) if name in DEFAULTS else None


def _output(value: Any, kind: Any) -> Any:
    if kind == DURATION:
        return duration_seconds(duration_from_ns(value))
    if kind == TIME:
        return format_time(parse_time(value))  # servers omit trailing zeros
    if isinstance(kind, list) and kind != [TEXT]:
        return [_flat(item, kind[0]) if isinstance(kind[0], Mapping) else _output(item, kind[0]) for item in value]
    return _filled(value) if kind == WHOLE else value


def _filled(value: Any) -> Any:
    """Return an object or list without empty fields: servers add some."""
    if isinstance(value, dict):
        return {name: part for name, part in ((name, _filled(part)) for name, part in value.items()) if part}
    return [_filled(item) for item in value] if isinstance(value, list) else value
