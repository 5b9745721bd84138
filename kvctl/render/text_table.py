"""Tables on terminals, in batches, and documents as lines: the columns shown, their widths, and their cells as text.

Every row is one line. If the table is too wide, free text is truncated first, then long names and keys in the middle.
Then the last columns are hidden. rich draws tables whose rows are all known; importing it takes longer than a light
command.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvctl.render.escapes import escape, utf8
from kvctl.render.terminal import paint
from kvctl.render.view import Column, Row, View
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
DRAWN_ROWS = 1000
"""Maximum number of rows to draw with rich, which takes about a millisecond a row."""
Cell = tuple[str, str]
"""Text and style."""
_KEY_SHARE = 0.6
"""Maximum share of a row that a long key takes of the room for key and value."""
_ACRONYMS = re.compile(r"\b(?:api|id|tls|ttl|url)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of a table, left to right, with their widths, and the columns that are hidden."""

    columns: Sequence[Column]
    widths: list[int]
    hidden: Sequence[Column] = ()


def table_writer(view: View, *, width: int | None, color: bool, complete: bool = True) -> "TableWriter | DetailsWriter":
    """Return the writer of a document, or of a table whose rows are by default all known."""
    if view.single:
        return DetailsWriter(view, width=width, color=color)
    return TableWriter(view, width=width, color=color, complete=complete)


class TableWriter:
    """Table with one line a row, laid out for the first batch. In later batches a long key moves only its own row."""

    def __init__(self, view: View, *, width: int | None, color: bool, complete: bool = False) -> None:
        self.view = view
        self.width = width
        self.color = color
        self.complete = complete
        """True if the first batch has all rows: columns that none of them fills are left out."""
        self.hidden: list[str] = []
        self._layout: Layout | None = None

    def begin(self) -> bytes:
        return b""

    def rows(self, batch: Sequence[Row]) -> bytes:
        if not batch:
            return b""
        begun, layout = self._layout is not None, self._layout or self._laid_out(batch)
        self._layout = layout
        cells = texts(layout.columns, batch, self.width)
        self._grow(layout, cells)
        lines = [] if begun else [[(column.heading, "bold") for column in layout.columns]]
        for row, shown in zip(batch, cells, strict=True):
            styles = [cell_style(column, row.get(column.key)) for column in layout.columns]
            lines.append(list(zip(shown, styles, strict=True)))
        if not self.complete or self.view.light or len(batch) > DRAWN_ROWS:
            drawn = [self._line(layout, line) for line in lines]
        else:
            text = _drawn(layout, [self._fitting(layout, line) for line in lines], color=self.color)
            drawn = text.splitlines(keepends=True)
        return utf8("".join(self._with_remarks(drawn, batch) if self.view.below else drawn))

    def end(self) -> bytes:
        """Render the view's sections."""
        return sections(self)

    def _laid_out(self, batch: Sequence[Row]) -> Layout:
        columns = list(self.view.columns) if self.view.picked else arranged(self.view.columns)
        layout = lay_out(
            columns, texts(columns, batch, self.width), self.width, complete=self.complete and not self.view.picked
        )
        self.hidden = [column.heading for column in layout.hidden]
        return layout

    def _with_remarks(self, lines: list[str], batch: Sequence[Row]) -> Iterator[str]:
        """Yield the lines, each row's with its remark below it."""
        from textwrap import wrap

        yield from lines[: len(lines) - len(batch)]  # the headings
        for line, row in zip(lines[len(lines) - len(batch) :], batch, strict=True):
            yield line
            remark = escape(str(row.get(self.view.below) or ""))
            width = max((self.width or len(remark) + len(GAP)) - len(GAP), NAME_WIDTH)
            yield from (f"{GAP}{part}\n" for part in wrap(remark, width, break_on_hyphens=False))

    def _grow(self, layout: Layout, cells: Sequence[Sequence[str]]) -> None:
        """Widen short columns, such as numbers and ages, for later batches."""
        for index, column in enumerate(layout.columns):
            widest = max(cell_width(row[index]) for row in cells)
            if not column.flex and (column.right or widest <= NAME_WIDTH):
                layout.widths[index] = max(layout.widths[index], widest)

    def _fitting(self, layout: Layout, line: Sequence[Cell]) -> list[Cell]:
        """Truncate the cells of a complete table to their columns."""
        parts = zip(layout.columns, line, layout.widths, strict=True)
        return [(shortened(column, text, width), style) for column, (text, style), width in parts]

    def _line(self, layout: Layout, line: Sequence[Cell]) -> str:
        parts, used = [], 0
        last = len(line) - 1
        for index, (column, (text, style)) in enumerate(zip(layout.columns, line, strict=True)):
            width = layout.widths[index]
            if self.width is not None:
                text = shortened(column, text, self._room(layout, index, used))
            space = " " * (width - cell_width(text))
            used += max(width, cell_width(text)) + len(GAP)
            shown = paint(text, style) if self.color and style else text
            parts.append(space + shown if column.right else shown + ("" if index == last else space))
        return GAP.join(parts).rstrip(" ") + "\n"

    def _room(self, layout: Layout, index: int, used: int) -> int:
        """Return the room for a cell after `used` columns: the last one's is the rest of the line."""
        width = layout.widths[index]
        if self.complete or self.width is None:
            return width
        if index == len(layout.widths) - 1:
            return max(self.width - used, 1)
        if layout.columns[index].flex:
            return width
        others = [width for column, width in zip(layout.columns, layout.widths, strict=True) if not column.flex]
        free = self.width - table_width(others) + width
        return max(width, int(free * (_KEY_SHARE if layout.columns[-1].flex else 1)))


class DetailsWriter:
    """Document as lines of name and value, followed by its sections."""

    def __init__(self, view: View, *, width: int | None, color: bool) -> None:
        self.view = view
        self.width = width
        self.color = color
        self.hidden: list[str] = []

    def begin(self) -> bytes:
        return b""

    def rows(self, batch: Sequence[Row]) -> bytes:
        lines = []
        for row in batch:
            shown = [column for column in self.view.columns if row.get(column.key) not in (None, "", [], {})]
            left = max((cell_width(_label(column)) for column in shown), default=0)
            for column in shown:
                label = _label(column) + " " * (left - cell_width(_label(column)))
                text, style = cell(column, row[column.key]), cell_style(column, row[column.key])
                lines.append(
                    f"{paint(label, 'bold') if self.color else label}{GAP}"
                    f"{paint(text, style) if self.color and style else text}\n"
                )
        return utf8("".join(lines))

    def end(self) -> bytes:
        """Render the view's sections."""
        return sections(self)


def sections(writer: TableWriter | DetailsWriter) -> bytes:
    """Render the sections of the writer's view under their headings, without empty ones."""
    out = b""
    for heading, section in writer.view.sections:
        rows = list(section.rows)
        if rows:
            part = table_writer(section, width=writer.width, color=writer.color)
            title = paint(heading, "bold") if writer.color else heading
            out += utf8(f"\n{title}\n") + part.rows(rows) + part.end()
            writer.hidden += part.hidden
    return out


def _label(column: Column) -> str:
    if column.title is not None:
        return column.title
    return _ACRONYMS.sub(lambda match: match[0].upper(), column.key.replace("_", " ").capitalize())


def _drawn(layout: Layout, lines: Sequence[Sequence[tuple[str, str]]], *, color: bool) -> str:
    """Draw a table without borders with rich: each line has a text and a style for each column, headings first."""
    import io

    from rich.console import Console, JustifyMethod, OverflowMethod
    from rich.table import Table
    from rich.text import Text

    heading, *rows = [[Text(text, style) for text, style in line] for line in lines]
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, len(GAP), 0, 0), header_style="")
    for column, title, width in zip(layout.columns, heading, layout.widths, strict=True):
        side: JustifyMethod = "right" if column.right else "default"  # "left" would colour the padding
        wrap: OverflowMethod = "fold" if column.wrap else "crop"
        table.add_column(title, width=width, justify=side, no_wrap=not column.wrap, overflow=wrap)
    for row in rows:
        table.add_row(*row)
    out = io.StringIO()
    console = Console(
        file=out,
        width=table_width(layout.widths),
        force_terminal=True,
        legacy_windows=False,
        no_color=False,
        color_system="standard" if color else None,
        markup=False,
        emoji=False,
        highlight=False,
    )
    console.print(table)
    return "".join(f"{line.rstrip(' ')}\n" for line in out.getvalue().split("\n")[:-1])


def arranged(columns: Iterable[Column]) -> list[Column]:
    """Return the columns of a table, free text last."""
    return sorted(columns, key=_free)


def lay_out(columns: Sequence[Column], rows: Sequence[Sequence[str]], total: int | None, *, complete: bool) -> Layout:
    """Choose widths for cells in `total` terminal columns, and hide columns from the right until they fit.

    If the rows are `complete`, columns that none of them fills are left out, except the first.
    """
    filled = [
        (column, max(cell_width(column.heading), *(cell_width(row[index]) for row in rows), 0))
        for index, column in enumerate(columns)
        if index == 0 or not complete or any(row[index] for row in rows)
    ]
    shown = list(filled)
    while True:
        now, widths = [column for column, _ in shown], [width for _, width in shown]
        fitting = fit(now, widths, total)
        optional = [place for place, column in enumerate(now) if place > 0 and not column.keep]
        if total is None or table_width(fitting) <= total or not optional:
            break
        del shown[optional[-1]]
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


def shortened(column: Column, text: str, width: int) -> str:
    """Truncate a cell: free text at the end, names in the middle, as both of their ends tell them apart."""
    if column.right or column.wrap or cell_width(text) <= width:
        return text
    return cut(text, width) if column.flex else cut_middle(text, width)


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
