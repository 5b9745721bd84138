"""What is bounded, drawn with rich: tables, cards, and reports, which end with the answer."""

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, NamedTuple

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvctl.render.escapes import escape
from kvctl.render.layout import GAP, Layout, lay_out, shortened, styled, texts
from kvctl.render.view import Column, Line, Row, View, arranged

_INDENTS = " │├└─▶◀"
"""Characters of trees, and spaces, before the first word of a line."""
INDENT = 2
"""Terminal columns by which a card's body is indented."""
_HEIGHT = 1000
"""Height of a console of a given width, which means nothing; without one, rich takes 80 columns if TERM is dumb."""
_UNBOUNDED = 20_000
"""Width of the console for pipes, where no line is wrapped."""


class Sentence(NamedTuple):
    """Sentence of a report, such as a problem with its sign, wrapped below its first word."""

    text: str
    sign: str = ""
    style: str = ""
    """Colour of the sign."""


class Card(NamedTuple):
    """One thing of a report: the line that names it, if it has one, then tables and lines, then sentences."""

    title: Line = ()
    body: Sequence[View | Line] = ()
    sentences: Sequence[Sentence] = ()


class TextReport(NamedTuple):
    """Cards, then the answer: a count, a sentence for each thing that is not ok, and the command that acts on it.

    Tables with the same columns share their widths, and only the first has headings.
    """

    cards: Sequence[Card]
    closing: Sequence[Sentence] = ()


def report_text(report: TextReport, *, width: int | None, color: bool) -> str:
    """Return a report as text; without a width, as in a pipe, lines are not wrapped and bars are left out."""
    return printed(parts(report, width), width=width, color=color)


def parts(report: TextReport, width: int | None) -> Iterator[RenderableType]:
    """Yield what rich draws for a report, a part for each card and one for the answer, with empty lines between."""
    layouts = _shared_layouts(report, width)
    begun: set[tuple[Column, ...]] = set()
    for number, card in enumerate(report.cards):
        if number:
            yield ""
        yield Group(
            *([text(card.title)] if card.title else []),
            *(_below(part, layouts, begun, width) for part in card.body),
            *([_sentences(card.sentences)] if card.sentences else []),
        )
    if report.cards and report.closing:
        yield ""
    if report.closing:
        yield _sentences(report.closing)


def printed(drawn: Iterable[RenderableType], *, width: int | None, color: bool) -> str:
    """Print what rich draws into a text, without spaces at the ends of lines."""
    out = io.StringIO()
    printer = console(color=color, file=out, width=width or _UNBOUNDED)
    for part in drawn:
        printer.print(part)
    return "".join(f"{line.rstrip(' ')}\n" for line in out.getvalue().split("\n")[:-1])


def console(*, color: bool, file: IO[str] | None = None, width: int | None = None) -> Console:
    """Return a console that prints texts as they are: on a terminal's stdout, or into a file of a width."""
    return Console(
        file=file,
        width=width,
        height=None if width is None else _HEIGHT,
        force_terminal=True,
        legacy_windows=False,
        no_color=False,
        color_system="standard" if color else None,
        markup=False,
        emoji=False,
        highlight=False,
    )


def table(layout: Layout, lines: Iterable[Line], *, headings: bool = True) -> Table:
    """Return a table with a rule below dim headings, in the widths of the layout."""
    drawn = Table(
        box=box.SIMPLE_HEAD if headings else None,
        show_edge=False,
        pad_edge=False,
        padding=(0, len(GAP) - headings, 0, 0),
        header_style="dim",
        border_style="dim",
        show_header=headings,
    )
    for column, width in zip(layout.columns, layout.widths, strict=True):
        drawn.add_column(
            Text(column.heading),
            width=width,
            justify="right" if column.right else "default",  # "left" would colour the padding
            no_wrap=not column.wrap,
            overflow="fold" if column.wrap else "crop",
        )
    for line in lines:
        cells = zip(layout.columns, line, layout.widths, strict=True)
        drawn.add_row(*(Text(shortened(column, shown, width), style) for column, (shown, style), width in cells))
    return drawn


def text(line: Line) -> Text:
    """Return a line of text with styles, escaped."""
    return Text.assemble(*((escape(part), style) for part, style in line))


def painted_text(shown: str) -> Text:
    """Return what rich draws for a text that is escaped and has its colours."""
    return Text.from_ansi(shown)


def folded(shown: str, *, width: int, color: bool) -> str:
    """Fold the lines of a painted text that are longer than the width, each below its first word."""
    drawn: list[RenderableType] = []
    for line in map(Text.from_ansi, shown.splitlines()):
        indent = len(line.plain) - len(line.plain.lstrip(_INDENTS))
        grid = Table.grid()
        grid.add_column(width=indent)
        grid.add_column(overflow="fold")
        if line.cell_len > width > indent:
            grid.add_row(line[:indent], line[indent:])
        drawn.append(grid if grid.row_count else line)
    return printed(drawn, width=width, color=color)


def _shared_layouts(report: TextReport, width: int | None) -> dict[tuple[Column, ...], Layout]:
    """Return a layout for each set of columns, for the rows of all tables that have it."""
    together: dict[tuple[Column, ...], list[Row]] = {}
    for card in report.cards:
        for part in card.body:
            if isinstance(part, View):
                together.setdefault(tuple(part.columns), []).extend(part.rows)
    room = None if width is None else width - INDENT
    found = {}
    for columns, rows in together.items():
        shown = [column for column in arranged(columns) if not (column.bar and width is None)]
        found[columns] = lay_out(shown, texts(shown, rows, room), room, complete=True)
    return found


def _below(
    part: View | Line, layouts: dict[tuple[Column, ...], Layout], begun: set[tuple[Column, ...]], width: int | None
) -> RenderableType:
    if not part:
        return ""
    if not isinstance(part, View):
        return Padding(text(part), (0, 0, 0, INDENT), expand=False)
    columns = tuple(part.columns)
    layout = layouts[columns]
    headings = columns not in begun
    begun.add(columns)
    rows = list(part.rows)
    drawn = table(layout, styled(layout.columns, rows, texts(layout.columns, rows, width)), headings=headings)
    return Padding(drawn, (0, 0, 0, INDENT), expand=False)


def _sentences(closing: Sequence[Sentence]) -> RenderableType:
    """Return sentences; those from the first one with a sign on are indented by the room for it."""
    signed = next((number for number, item in enumerate(closing) if item.sign), len(closing))
    drawn = Table.grid(padding=(0, 1, 0, 0))
    drawn.add_column(width=1)
    drawn.add_column(overflow="fold")
    for item in closing[signed:]:
        indent = len(item.text) - len(item.text.lstrip(" "))
        drawn.add_row(Text(item.sign, item.style), Padding(Text(escape(item.text[indent:])), (0, 0, 0, indent)))
    return Group(*(Text(escape(item.text)) for item in closing[:signed]), *([drawn] if signed < len(closing) else []))
