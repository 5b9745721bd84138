"""Field-by-field differences of two stream configurations, in the terms of a bucket. [pure]"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kvctl.dataclass import dataclass
from kvctl.jetstream.stream_info import StreamConfig
from kvctl.kv.settings import SETTINGS, Form
from kvctl.kv.stream_kind import FIRST_ENTRY, SERVER_METADATA, TOPOLOGY
from kvctl.units import duration_from_ns, duration_seconds, format_duration

UNSET = "none"
"""Text shown for a field without a value."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One differing field; values as in JSON output: durations in seconds, None for unset."""

    field: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.field}: {shown(self.field, self.before)} -> {shown(self.field, self.after)}"


def differences(before: StreamConfig, after: StreamConfig) -> list[Difference]:
    """Return the fields that differ; defaults and the metadata of server and topology are ignored."""
    first, second = _flat(before), _flat(after)
    names = dict.fromkeys([*first, *second])
    return [
        Difference(name, first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)
    ]


def missing(wanted: StreamConfig, found: StreamConfig) -> list[Difference]:
    """Return the requested fields whose value is another one; fields that were not requested are not compared."""
    asked = _flat(wanted)
    return [difference for difference in differences(wanted, found) if difference.field in asked]


def listed(found: Iterable[Difference]) -> str:
    """Format the differences as indented lines."""
    return "\n".join(f"  {difference}" for difference in found)


def shown(field: str, value: Any) -> str:
    """Format a value for a message."""
    if value in (None, "", [], {}):
        return UNSET
    if isinstance(value, bool):
        return "yes" if value else "no"
    if field in _DURATIONS.values():
        return format_duration(duration_from_ns(round(value * 10**9)))
    if isinstance(value, list):
        return ", ".join(shown("", item) for item in value)
    if isinstance(value, dict):
        return " ".join(f"{name}={shown('', item)}" for name, item in value.items())
    return str(value)


_TOP = [row for row in SETTINGS.values() if "." not in row.stream_field]
_DURATIONS = {
    **{row.stream_field: row.name for row in _TOP if row.form is Form.DURATION},
    "duplicate_window": "duplicate_window",
}
_NAMES = {row.stream_field: row.difference or row.name for row in _TOP}
_UNLIMITED = (
    "max_consumers", "max_msgs", "max_msgs_per_subject", *(row.stream_field for row in _TOP if row.form is Form.SIZE)
)  # fmt: skip
_DEFAULTS = {"retention": "limits", "storage": "file", "num_replicas": 1, "compression": "none", "discard": "old"}


def _flat(stream: StreamConfig) -> dict[str, Any]:
    """Flatten a configuration to fields under a bucket's names."""
    flat: dict[str, Any] = {}
    for name, value in {**_DEFAULTS, **stream}.items():
        if name in _DURATIONS:
            if value:
                flat[_DURATIONS[name]] = duration_seconds(duration_from_ns(value))
        elif name in _NESTED:
            flat |= _NESTED[name](value or {})
        elif value and not (name in _UNLIMITED and value < 0):
            flat[_NAMES.get(name, name)] = value
    return flat


def _metadata(value: dict[str, str]) -> dict[str, Any]:
    return {
        f"metadata.{name}": text
        for name, text in value.items()
        if not name.startswith(SERVER_METADATA) and name != TOPOLOGY
    }


def _placement(value: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in value.items() if part}


def _republish(value: dict[str, Any]) -> dict[str, Any]:
    if not value:
        return {}
    flat = {"republish": f"{value.get('src') or '>'}={value.get('dest', '')}"}
    return flat | ({"republish_headers_only": True} if value.get("headers_only") else {})


def _mirror(value: dict[str, Any]) -> dict[str, Any]:
    source = _source(value) if value else {}
    if source.get("opt_start_seq") == FIRST_ENTRY:  # mirrors start there by default, sources do not
        del source["opt_start_seq"]
    return {"mirror": source} if source else {}


def _sources(value: list[dict[str, Any]]) -> dict[str, Any]:
    return {"sources": [_source(source) for source in value]} if value else {}


def _source(value: dict[str, Any]) -> dict[str, Any]:
    """Return a source without its empty fields: servers add an empty `deliver`."""
    external = {name: text for name, text in (value.get("external") or {}).items() if text}
    return {name: part for name, part in {**value, "external": external}.items() if part}


_NESTED: dict[str, Callable[[Any], dict[str, Any]]] = {
    "metadata": _metadata, "placement": _placement, "republish": _republish, "mirror": _mirror, "sources": _sources,
}  # fmt: skip
