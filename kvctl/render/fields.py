"""How a field looks on a terminal, by its name, wherever it is shown: heading, text, style and room. [pure]"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvctl.phrases import counted
from kvctl.render.view import Column, Line, Row, age_text, duration_text, elapsed_text, size_text
from kvctl.units import format_elapsed

_HEALTH_STYLES = {"ok": "green", "consistent": "green", "unconfirmed": "dim", "unknown": "dim", "behind": "yellow"}
_HEALTH_SIGNS = {"ok": "✓", "consistent": "✓", "unconfirmed": "?", "unknown": "?", "behind": "▲"}
_BAR = 10
"""Characters of a bar."""
_SPARKS = "▁▂▃▄▅▆▇█"
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


def health_sign(state: str) -> str:
    """Return the sign of a state: `✓`, `▲`, `?` or `✗`."""
    return _HEALTH_SIGNS.get(state, "✗")


def health_text(state: str) -> str:
    """Return a state after its sign: `✓ ok`, `✗ offline`."""
    return f"{health_sign(state)} {state}"


def number_text(number: int) -> str:
    """Format a count: `10,006`."""
    return f"{number:,}"


def bar_text(part: float) -> str:
    """Draw a part of 1 as a bar: `━━━───────`."""
    filled = min(max(round(part * _BAR), 1 if part > 0 else 0), _BAR)
    return "━" * filled + "─" * (_BAR - filled)


def spark_text(numbers: Sequence[float]) -> str:
    """Draw numbers as a line of bars, against the largest: `▁▂▅█`."""
    most = max(numbers, default=0) or 1
    return "".join(_SPARKS[round(number / most * (len(_SPARKS) - 1))] for number in numbers)


def last_seen_text(seconds: float) -> str:
    """Format the seconds since a message: `3s ago`."""
    return "just now" if seconds < 1.5 else format_elapsed(seconds)


def title_line(name: str, *facts: str | None, state: str | None = None) -> Line:
    """Return the first line of a card: `ORDERS  bucket in lon · ✓ ok`."""
    line = [(name, "bold"), ("  " + " · ".join(filter(None, facts)), "dim")]
    return [*line, (" · ", "dim"), (health_text(state), health_style(state))] if state else line


def title_in(row: Row, what: str, *facts: str | None) -> Line:
    """Return the first line of the card of a stream or consumer: `ORDERS  bucket in lon · ✓ ok`."""
    cluster = (row["cluster"] or {}).get("name")
    return title_line(row["name"], f"{what} in {cluster}" if cluster else what, *facts, state=row.get("state"))


def stored(replicas: int, storage: str) -> Column:
    """Return the column of a card for where a stream is stored: `3 stream replicas on file`."""
    where = "in memory" if storage == "memory" else "on file"
    return Column("replicas", "", text=lambda _: f"{counted(replicas, 'stream replica')} {where}")


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


LEADER = Column("cluster", "leader", text=lambda cluster: str(cluster["leader"] or "none"))
"""Column of a card for the leader of a stream or consumer, from the JSON object of its servers."""
operation_style: Callable[[Any], str] = {"PUT": "green", "DEL": "red", "PURGE": "red bold"}.__getitem__
"""Colours of operations."""
_COUNTS = (
    "ack_pending changed_today collisions consumers deleted delivered differing entries expiring extra "
    "keys local messages missing overwrite partitions pending purge refill rejected replicas rows staged "
    "stale unchanged written"
)
"""Fields that count: aligned right in tables, and never truncated."""
_POSITIONS = "origin_revision partition revision sequence"
"""Fields that are numbers to copy, without separators of thousands."""
FIELDS: dict[str, Column] = {
    column.key: column
    for column in (
        *(Column(name, text=number_text, right=True) for name in _COUNTS.split()),
        *(Column(name, right=True) for name in _POSITIONS.split()),
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
        Column("lag", "Behind", text=number_text, right=True, keep=True),
        Column("last_seen", "Seen", text=last_seen_text, yields=3),
        Column("last_write", text=age_text, keep=True),
        Column("message", text=first_line, flex=True),
        Column("newest", text=age_text),
        Column("operation", style=operation_style),
        Column("origins", text=origins_text),
        Column("seconds", "Time", text=elapsed_text),
        Column("state", text=health_text, style=health_style, keep=True),
        Column("taken", "Keys", text=lambda taken: "all" if taken in ("", ">") else taken, yields=1),
        Column("lands_as", "Land as", text=lambda lands: lands or "as they are", yields=1),
        Column("ttl", text=lambda ttl: ttl if ttl == "never" else duration_text(ttl), right=True),
        Column("value", flex=True),
        Column("values", "Entries", text=number_text, right=True),
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
    return column if change is None else column._replace(title=change)
