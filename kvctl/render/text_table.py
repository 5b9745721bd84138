"""Tables and documents in batches of rows, for terminals.

Every row is one line. rich draws tables whose rows are all known; importing it takes longer than a light command.
"""

import re
from collections.abc import Iterator, Sequence

from kvctl.render import cards
from kvctl.render.escapes import escape, utf8
from kvctl.render.layout import (
    GAP,
    NAME_WIDTH,
    Layout,
    cell,
    cell_style,
    lay_out,
    shortened,
    styled,
    table_width,
    texts,
)
from kvctl.render.terminal import paint
from kvctl.render.view import Column, Line, Row, View, arranged
from kvctl.render.widths import cell_width

DRAWN_ROWS = 1000
"""Maximum number of rows to draw with rich, which takes about a millisecond a row."""
_KEY_SHARE = 0.6
"""Maximum share of a row that a long key takes of the room for key and value."""
_ACRONYMS = re.compile(r"\b(?:api|id|tls|ttl|url)\b", re.IGNORECASE)


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
        shown = texts(layout.columns, batch, self.width)
        self._grow(layout, shown)
        lines = styled(layout.columns, batch, shown)
        if self.complete and not (self.view.light or self.view.below or len(batch) > DRAWN_ROWS):
            return utf8(self._drawn(layout, lines))
        head = [] if begun else [*self._heading(layout)]
        if self.view.below:
            return utf8("".join([*head, *self._with_remarks(layout, lines, batch)]))
        return utf8("".join([*head, *(self._line(layout, line) for line in lines)]))

    def end(self) -> bytes:
        """Render the view's sections."""
        return sections(self)

    def _laid_out(self, batch: Sequence[Row]) -> Layout:
        columns = list(self.view.columns) if self.view.picked else arranged(self.view.columns)
        columns = [column for column in columns if not (column.bar and self.width is None)]
        complete = self.complete and not self.view.picked
        layout = lay_out(columns, texts(columns, batch, self.width), self.width, complete=complete)
        self.hidden = [column.heading for column in layout.hidden if column.heading]
        return layout

    def _heading(self, layout: Layout) -> Iterator[str]:
        """Yield the headings and the rule below them."""
        yield self._line(layout, [(column.heading, "dim") for column in layout.columns])
        width = table_width(layout.widths)
        rule = "─" * (width if self.width is None else min(width, self.width))
        yield f"{paint(rule, 'dim') if self.color else rule}\n"

    def _drawn(self, layout: Layout, lines: Sequence[Line], *, headings: bool = True) -> str:
        drawn = cards.table(layout, lines, headings=headings)
        return cards.printed([drawn], width=table_width(layout.widths), color=self.color)

    def _with_remarks(self, layout: Layout, lines: Sequence[Line], batch: Sequence[Row]) -> Iterator[str]:
        """Yield each row, over several lines if it must, with its remark below it."""
        from textwrap import wrap

        for line, row in zip(lines, batch, strict=True):
            yield self._drawn(layout, [line], headings=False)
            remark = escape(str(row.get(self.view.below) or ""))
            width = max((self.width or len(remark) + len(GAP)) - len(GAP), NAME_WIDTH)
            yield from (f"{GAP}{part}\n" for part in wrap(remark, width, break_on_hyphens=False))

    def _grow(self, layout: Layout, cells: Sequence[Sequence[str]]) -> None:
        """Widen short columns, such as numbers and ages, for later batches."""
        for index, column in enumerate(layout.columns):
            widest = max(cell_width(row[index]) for row in cells)
            if not column.flex and (column.right or widest <= NAME_WIDTH):
                layout.widths[index] = max(layout.widths[index], widest)

    def _line(self, layout: Layout, line: Line) -> str:
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
    """Document: a card if its view has a title, else lines of name and value; followed by its sections."""

    def __init__(self, view: View, *, width: int | None, color: bool) -> None:
        self.view = view
        self.width = width
        self.color = color
        self.hidden: list[str] = []

    def begin(self) -> bytes:
        return b""

    def rows(self, batch: Sequence[Row]) -> bytes:
        if self.view.title is None:
            return utf8("".join(line for row in batch for line in self._lines(row)))
        drawn = (cards.Card(self.view.title(row), [(), *self._facts(row)]) for row in batch)
        return utf8(cards.report_text(cards.TextReport([*drawn]), width=self.width, color=self.color))

    def end(self) -> bytes:
        """Render the view's sections."""
        return sections(self)

    def _lines(self, row: Row) -> Iterator[str]:
        shown = [column for column in self.view.columns if _fills(row, column)]
        left = max((cell_width(_label(column)) for column in shown), default=0)
        for column in shown:
            label = _label(column) + " " * (left - cell_width(_label(column)))
            text, style = cell(column, row[column.key]), cell_style(column, row[column.key])
            yield (
                f"{paint(label, 'dim') if self.color else label}{GAP}"
                f"{paint(text, style) if self.color and style else text}\n"
            )

    def _facts(self, row: Row) -> Iterator[Line]:
        """Yield a line for each group of the view: `keys 5,000 · size 682 KiB`, wrapped between fields."""
        room = (self.width or 0) - cards.INDENT
        for group in self.view.groups:
            line: list[tuple[str, str]] = []
            for column in group:
                if not _fills(row, column):
                    continue
                label, text = column.heading, cell(column, row[column.key])
                if not text:
                    continue
                fact = [(f"{label} " if label else "", "dim"), (text, cell_style(column, row[column.key]))]
                separator = [(" · ", "dim")] if line else []
                if self.width and line and _width([*line, *separator, *fact]) > room:
                    yield line
                    line, separator = [], []
                line += [*separator, *fact]
            if line:
                yield line


def sections(writer: TableWriter | DetailsWriter) -> bytes:
    """Render the sections of the writer's view under their headings, without empty ones; those of a card indented."""
    out, indent = "", " " * cards.INDENT if writer.view.title else ""
    for heading, section in writer.view.sections:
        rows = list(section.rows)
        if rows:
            width = writer.width and writer.width - len(indent)
            part = table_writer(section, width=width, color=writer.color)
            lines = [heading if indent or not writer.color else paint(heading, "bold")]
            lines += (part.rows(rows) + part.end()).decode("utf-8", "surrogateescape").splitlines()
            if part.hidden:
                note = f"hidden: {', '.join(part.hidden)}; widen the terminal"
                lines.append(paint(note, "dim") if writer.color else note)
            out += "\n" + "".join(f"{indent}{line}\n" for line in lines)
    return utf8(out)


def _fills(row: Row, column: Column) -> bool:
    return row.get(column.key) not in (None, "", [], {})


def _width(line: Line) -> int:
    return sum(cell_width(text) for text, _ in line)


def _label(column: Column) -> str:
    if column.title is not None:
        return column.title
    return _ACRONYMS.sub(lambda match: match[0].upper(), column.key.replace("_", " ").capitalize())
