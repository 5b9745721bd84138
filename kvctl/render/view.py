"""Views, the data that commands pass to the renderer: columns and rows, or one document. [pure]"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from kvctl.units import format_age, format_duration, format_limit, format_moment, format_size, parse_time

Line = Sequence[tuple[str, str]]
"""Parts of a line of text, each with its style."""
Row = Mapping[str, Any]
"""JSON object with the API's field names: text, numbers, booleans, None, lists and objects."""

FORMATS = ("table", "tsv", "json", "ndjson", "yaml", "name")
DOCUMENTS = ("json", "ndjson")
"""Formats with which errors and warnings are JSON objects too."""


class Column(NamedTuple):
    """Field of a row, as a terminal shows it."""

    key: str
    """Name of the field in the row."""
    title: str | None = None
    """Name on a terminal, by default the field's; headings of tables are in lower case."""
    text: Callable[[Any], str] | None = None
    """Format for tables, such as a size or an age; tsv has the plain value."""
    right: bool = False
    """Align right, for numbers."""
    flex: bool = False
    """Free text: shown last, and truncated at its end. Names and keys are truncated in the middle."""
    wrap: bool = False
    """Free text that is never truncated: continued on further lines."""
    keep: bool = False
    """Never hidden, however narrow the terminal is."""
    rare: bool = False
    """Left out of tables whose first rows do not fill it, also if more rows follow."""
    differs: bool = False
    """Left out of tables in which all rows have the same value."""
    yields: int = 0
    """Order of hiding where a terminal is too narrow: the highest first, of equal ones the last."""
    bar: bool = False
    """Bar or sparkline: on terminals only."""
    style: str | Callable[[Any], str] = ""
    """Colour, or a function of the value that gives one: `red green yellow cyan bold dim`."""

    @property
    def heading(self) -> str:
        """Return the title, or the key as words, in lower case."""
        return (self.title if self.title is not None else self.key.replace("_", " ")).lower()


class View(NamedTuple):
    """Rows with their columns, or with `single` one document, a single object in JSON."""

    columns: Sequence[Column]
    rows: Iterable[Row] = ()
    tsv: Sequence[str] | None = None
    """Fields of tsv in their order, by default the columns of the table."""
    single: bool = False
    name: str = "name"
    """Field that `-o name` prints."""
    empty: str = ""
    """Note on a terminal's stderr if there are no rows."""
    below: str = ""
    """Field with a remark, which tables without wrapped columns print below its row."""
    light: bool = False
    """Rows of a key command, which does not load rich to draw them."""
    picked: bool = False
    """The user chose the columns: a table shows all of them, in their order."""
    title: Callable[[Row], Line] | None = None
    """First line of a document that is drawn as a card."""
    groups: Sequence[Sequence[Column]] = ()
    """Fields of a card, a line for each group."""
    sections: Sequence[tuple[str, "View"]] = ()
    """Further tables with headings, for terminals: the lists of objects in the document."""


def document(
    row: Row,
    *columns: Column,
    name: str = "name",
    tsv: Sequence[str] | None = None,
    title: Callable[[Row], Line] | None = None,
    groups: Sequence[Sequence[Column]] = (),
    sections: Sequence[tuple[str, View]] = (),
) -> View:
    """Return a view of one document, by default with the columns of its card, or one for each field."""
    shown = columns or [column for group in groups for column in group] or [Column(key) for key in row]
    return View(
        columns=shown, rows=[row], tsv=tsv, single=True, name=name, title=title, groups=groups, sections=sections
    )


def arranged(columns: Iterable[Column]) -> list[Column]:
    """Return the columns of a table, free text last."""
    return sorted(columns, key=lambda column: column.flex or column.wrap)


def picked(view: View, fields: Mapping[str, str | None]) -> View:
    """Return the view with the columns of these fields in this order, without sections.

    Each has the heading that the user chose it by, or its name. A field without a column gets one.
    """
    shown = {column.key: column for column in view.columns}
    columns = [shown.get(name, Column(name))._replace(title=word, keep=True) for name, word in fields.items()]
    return view._replace(columns=columns, tsv=None, sections=(), picked=True)


def ordered(view: View, by: str) -> list[Row]:
    """Return rows in the order of a field: numbers and times from the top, texts from A, unknown values last.

    `-` before the field turns the order round.
    """
    name = by.removeprefix("-")
    rows, times = list(view.rows), any(column.key == name and column.text is age_text for column in view.columns)
    known = [row for row in rows if row.get(name) is not None]
    numbers = all(isinstance(row[name], int | float) for row in known)
    known.sort(
        key=lambda row: row[name] if numbers else str(row[name]).lower(), reverse=(numbers or times) != (by != name)
    )
    return [*known, *(row for row in rows if row.get(name) is None)]


def age_text(time: str) -> str:
    """Format an RFC 3339 time as its age: `3m ago`."""
    return format_age(parse_time(time))


def moment_text(time: str) -> str:
    """Format an RFC 3339 time as its age and the time: `3m ago (20:24:03)`."""
    return format_moment(parse_time(time))


def duration_text(seconds: float) -> str:
    """Format seconds as a duration: `1h30m`."""
    return format_duration(timedelta(seconds=seconds))


def elapsed_text(seconds: float) -> str:
    """Format the seconds that something took: `0.4 s`, `16.6 s`, `2m5s`."""
    return f"{seconds:.1f} s" if seconds < 59.95 else duration_text(round(seconds))


def limit_text(size: int) -> str:
    """Format a limit exactly where a unit allows it, in the unit that it was given in: `10 MB`, `64 KiB`."""
    return format_limit(size)


def size_text(size: int) -> str:
    """Format bytes as a size: `1.5 KiB`."""
    return format_size(size)
