"""Columns of a table on a terminal: which are shown, their widths, and their cells as text. [pure]

If the table is too wide, free text is truncated first, then long names and keys in the middle. Then columns are hidden:
those that yield first, else from the right.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvctl.render.escapes import escape
from kvctl.render.view import Column, Line, Row
from kvctl.render.widths import cell_width, cut, cut_middle

GAP = "  "
TEXT_WIDTH = 16
"""Width, in terminal columns, to which free text is truncated before names are."""
NAME_WIDTH = 24
"""Width to which names are truncated before columns are hidden, and to which a streamed column may grow."""
SHARE = 0.4
"""Share of the table that a name or a text keeps as long as the other has more."""
NARROWEST = 8
"""Width to which text and names are truncated if no column is left to hide."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of a table, left to right, with their widths, and the columns that are hidden."""

    columns: Sequence[Column]
    widths: list[int]
    hidden: Sequence[Column] = ()


def lay_out(columns: Sequence[Column], rows: Sequence[Sequence[str]], total: int | None, *, complete: bool) -> Layout:
    """Choose widths for cells in `total` terminal columns, and hide columns from the right until they fit.

    If the rows are `complete`, columns that none of them fills are left out, except the first.
    """
    filled = [
        (column, max(cell_width(column.heading), *(cell_width(row[index]) for row in rows), 0))
        for index, column in enumerate(columns)
        if index == 0 or not (complete or column.rare) or _tells(column, {row[index] for row in rows})
    ]
    shown = list(filled)
    while True:
        now, widths = [column for column, _ in shown], [width for _, width in shown]
        fitting = fit(now, widths, total)
        optional = [place for place, column in enumerate(now) if place > 0 and not column.keep]
        if total is None or table_width(fitting) <= total or not optional:
            break
        del shown[max(optional, key=lambda place: (now[place].yields, place))]
    if total is not None and table_width(fitting) > total:
        fitting = fit(now, widths, total, text=NARROWEST, name=NARROWEST)
    return Layout(now, fitting, [column for column, _ in filled if column not in now])


def fit(
    columns: Sequence[Column],
    widths: Sequence[int],
    total: int | None,
    *,
    text: int = TEXT_WIDTH,
    name: int = NAME_WIDTH,
) -> list[int]:
    """Shrink columns until all fit into `total`.

    Free text is shrunk first and names second, to a share of the table, then free text to `text`, then names to `name`.
    """
    fitting = list(widths)
    if total is None:
        return fitting
    share = int(total * SHARE)
    for least, free in ((max(text, share), True), (max(name, share), False), (text, True), (name, False)):
        places = [index for index, column in enumerate(columns) if _free(column) is free and not column.right]
        cap = max((fitting[index] for index in places), default=0)
        while cap > least and table_width(fitting) > total:
            cap -= 1
            for index in places:
                fitting[index] = min(fitting[index], cap)
    return fitting


def table_width(widths: Sequence[int]) -> int:
    """Return the width of a row with these columns."""
    return sum(widths) + len(GAP) * (len(widths) - 1)


def texts(columns: Sequence[Column], rows: Sequence[Row], total: int | None) -> list[list[str]]:
    """Return the texts of all cells. Free text can have megabytes, of which only the beginning is used."""
    longest = [4 * total if total and column.flex else None for column in columns]
    return [
        [cell(column, row.get(column.key), most) for column, most in zip(columns, longest, strict=True)] for row in rows
    ]


def cell(column: Column, value: Any, longest: int | None = None) -> str:
    """Return a value's text for a terminal; with `longest`, only that many characters of it."""
    if value is None:
        return ""
    if longest is not None and isinstance(value, str):
        value = value[:longest]
    return escape(column.text(value) if column.text else _plain(value))


def cell_style(column: Column, value: Any) -> str:
    """Return the style of a value."""
    return column.style(value) if callable(column.style) else column.style


def styled(columns: Sequence[Column], rows: Sequence[Row], shown: Sequence[Sequence[str]]) -> list[Line]:
    """Return the cells of rows, whose texts are `shown`, with their styles."""
    lines: list[Line] = []
    for row, line in zip(rows, shown, strict=True):
        styles = [cell_style(column, row.get(column.key)) for column in columns]
        lines.append(list(zip(line, styles, strict=True)))
    return lines


def shortened(column: Column, text: str, width: int) -> str:
    """Truncate a cell: free text at the end, names in the middle, as both of their ends tell them apart."""
    if column.right or column.wrap or cell_width(text) <= width:
        return text
    return cut(text, width) if column.flex else cut_middle(text, width)


def _tells(column: Column, found: set[str]) -> bool:
    """Return True if a column with these cells says anything."""
    return len(found) > 1 if column.differs else any(found)


def _free(column: Column) -> bool:
    """Return True for free text, False for names and numbers."""
    return column.flex or column.wrap


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_plain(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={_plain(item)}" for key, item in value.items())
    return str(value)
