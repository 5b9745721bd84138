"""How a field looks on a terminal, by its name, wherever it is shown: heading, text, style and room. [pure]"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvctl.render.view import Column, age_text, duration_text, elapsed_text, size_text

_HEALTH_STYLES = {"ok": "green", "unconfirmed": "yellow", "behind": "yellow"}
_SIGNS = {"added": "+", "removed": "-", "changed": "~", "conflict": "*"}
_CHANGE_STYLES = {"added": "green", "removed": "red", "changed": "yellow", "conflict": "red bold"}
_SHORT = 12
"""Characters of a shortened id."""


def change_sign(change: str) -> str:
    """Return the sign of a change: `+`, `-`, `~` or `*`."""
    return _SIGNS[change]


def short(identity: str) -> str:
    """Shorten an id."""
    return identity[:_SHORT]


def first_line(message: str) -> str:
    """Return the first line of a message."""
    return message.partition("\n")[0]


def health_style(state: str) -> str:
    """Return the colour of a state."""
    return _HEALTH_STYLES.get(state, "red")


def last_seen_text(seconds: float) -> str:
    """Format the seconds since a message: `3s ago`."""
    return "just now" if seconds < 1.5 else f"{duration_text(int(seconds))} ago"


def headers_text(headers: Mapping[str, str]) -> str:
    """Format headers: `Name: value, Other: value`."""
    return ", ".join(f"{name}: {text}" for name, text in headers.items())


def origins_text(origins: Sequence[Mapping[str, Any]]) -> str:
    """Name origins, each once, with the API prefix of another account or the domain."""
    places = [(origin["name"], origin["domain"] or origin["api"]) for origin in origins]
    return ", ".join(dict.fromkeys(f"{name} ({place})" if place else name for name, place in places))


def history_text(history: int) -> str:
    """Return the number of revisions kept per key, in words."""
    return str(history) if history > 0 else "unlimited"


operation_style: Callable[[Any], str] = {"PUT": "green", "DEL": "red", "PURGE": "red bold"}.__getitem__
"""Colours of operations."""
_NUMBERS = (
    "ack_pending collisions consumers deleted delivered differing entries expiring extra keys local messages missing "
    "origin_revision overwrite partition partitions pending purge refill replicas revision sequence staged stale values"
)
"""Fields that are plain numbers: aligned right in tables, and never truncated."""
FIELDS: dict[str, Column] = {
    column.key: column
    for column in (
        *(Column(name, right=True) for name in _NUMBERS.split()),
        Column("after", style="green", wrap=True),
        Column("before", style="red", wrap=True),
        Column("bytes", "Size", text=size_text, right=True),
        Column("change", "", text=change_sign, style=_CHANGE_STYLES.__getitem__),
        Column("commit", text=short, style="yellow"),
        Column("created", text=age_text),
        Column("data", flex=True),
        Column("description", flex=True),
        Column("error", style="red", flex=True),
        Column("headers", text=headers_text, flex=True),
        Column("history", text=history_text, right=True),
        Column("id", "Commit", text=short, style="yellow"),
        Column("lag", right=True, keep=True),
        Column("last_seen", text=last_seen_text),
        Column("last_write", text=age_text, keep=True),
        Column("message", text=first_line, flex=True),
        Column("newest", text=age_text),
        Column("operation", style=operation_style),
        Column("origins", text=origins_text),
        Column("seconds", "Time", text=elapsed_text),
        Column("state", style=health_style, keep=True),
        Column("ttl", text=duration_text, right=True),
        Column("value", flex=True),
    )
}


def columns(names: str, **changes: Column | str) -> tuple[Column, ...]:
    """Return the columns of these fields, in order.

    A field that looks different in one place is a keyword there: with a column of its own, or with its heading.
    """
    return tuple(_column(name, changes.get(name)) for name in names.split())


def _column(name: str, change: Column | str | None) -> Column:
    if isinstance(change, Column):
        return change
    column = FIELDS.get(name) or Column(name)
    return column if change is None else replace(column, title=change)
