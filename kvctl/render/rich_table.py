"""Tables drawn with rich. Importing it takes longer than a light command, so only `text_table` does, when needed."""

import io
from collections.abc import Sequence

from rich.console import Console, JustifyMethod, OverflowMethod
from rich.table import Table
from rich.text import Text

from kvctl.render.table_layout import GAP, Layout, table_width


def draw(layout: Layout, lines: Sequence[Sequence[tuple[str, str]]], *, color: bool) -> str:
    """Draw a table without borders: each line has a text and a style for each column, headings first."""
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
        file=out, width=table_width(layout.widths), force_terminal=True, legacy_windows=False, no_color=False,
        color_system="standard" if color else None, markup=False, emoji=False, highlight=False,
    )  # fmt: skip
    console.print(table)
    return "".join(f"{line.rstrip(' ')}\n" for line in out.getvalue().split("\n")[:-1])
