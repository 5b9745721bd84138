"""What a command hands over to be shown: columns, rows, a document. Says nothing about how. [pure]"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kvctl.units import (
    format_age,
    format_duration,
    format_size,
    parse_time,
)

Row = Mapping[str, Any]
"""One JSON object: text, numbers, booleans, None, lists and objects, under the API's field names."""

FORMATS = ("table", "tsv", "json", "ndjson", "yaml", "name")


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a row. The order of the columns is the order of the fields in tsv."""

    key: str
    """Field of the row."""
    title: str | None = None
    """Heading on a terminal; without one, the field's name."""
    text: Callable[[Any], str] | None = None
    """Value to words for people: size, age. For tables only; tsv has the plain value."""
    right: bool = False
    """Flush right, for numbers."""
    flex: bool = False
    """May be cut with an ellipsis where the terminal is too narrow. Names never are."""
    table: bool = True
    """Shown in tables."""
    tsv: bool = True
    """Written to tsv."""
    style: str | Callable[[Any], str] = ""
    """Colour, or a function of the value that gives one: `red green yellow cyan bold dim`."""

    @property
    def heading(self) -> str:
        """The title, or the key in capitals."""
        return self.title if self.title is not None else self.key.replace("_", " ").upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Rows with their columns; or, with `single`, one document, which JSON shows as an object."""

    columns: Sequence[Column]
    rows: Iterable[Row] = ()
    single: bool = False
    name: str = "name"
    """The field that `-o name` prints."""
    empty: str = ""
    """What a terminal is told, on stderr, when there are no rows."""
    sections: Sequence[tuple[str, "View"]] = field(default=())
    """Further tables under a heading, for terminals: what the document holds as lists of objects."""


def document(row: Row, *columns: Column, name: str = "name", sections: Sequence[tuple[str, View]] = ()) -> View:
    """A view of one document; without columns, one for each of its fields."""
    return View(columns=columns or [Column(key) for key in row], rows=[row], single=True, name=name, sections=sections)


def age_text(time: str) -> str:
    """An RFC 3339 time as its age: `3m ago`."""
    return format_age(parse_time(time))


def duration_text(seconds: float) -> str:
    """Seconds as a duration: `1h30m`."""
    return format_duration(timedelta(seconds=seconds))


def size_text(size: int) -> str:
    """Bytes as a size: `1.5 KiB`."""
    return format_size(size)
