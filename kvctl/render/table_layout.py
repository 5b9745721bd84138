"""Layout of tables on terminals: the columns shown, their widths, and the text of their cells. [pure]

Every row is one line. If the table is too wide, free text is truncated first, then long names and keys in the middle.
Then the last columns are hidden.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvctl.render.escapes import escape
from kvctl.render.view import Column, Row

GAP = "  "
TEXT_WIDTH = 16
"""Width, in terminal columns, to which free text is truncated before names are."""
NAME_WIDTH = 24
"""Width to which names are truncated before columns are hidden, and to which a streamed column may grow."""
SHARE = 0.4
"""Share of the table that a name or a text keeps as long as the other has more."""
NARROWEST = 8
"""Width to which text and names are truncated if no column is left to hide."""
_WORDS = re.compile(r"( *)([^ ]+)")
_PHRASES = re.compile(r"( *)((?:`[^`]*`|[^ ])+)")
"""Words, or code in backticks, which is best copied from one line."""
_COLOR = re.compile("\x1b\\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of a table, left to right, with their widths, and the columns that are hidden."""

    columns: Sequence[Column]
    widths: list[int]
    hidden: Sequence[Column] = ()


def arranged(columns: Iterable[Column]) -> list[Column]:
    """Return the columns of a table, free text last."""
    return sorted((column for column in columns if column.table), key=_free)


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


def cell_width(text: str) -> int:
    """Return the terminal columns of a text: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def plain_width(text: str) -> int:
    """Return the terminal columns of a text that has escape sequences for colour."""
    return cell_width(_COLOR.sub("", text))


def shortened(column: Column, text: str, width: int) -> str:
    """Truncate a cell: free text at the end, names in the middle, as both of their ends tell them apart."""
    if column.right or column.wrap or cell_width(text) <= width:
        return text
    return cut(text, width) if column.flex else cut_middle(text, width)


def cut(text: str, width: int) -> str:
    """Truncate to `width` terminal columns, with an ellipsis at the end."""
    return text if cell_width(text) <= width else f"{_head(text, width - 1)}…"


def cut_middle(text: str, width: int) -> str:
    """Truncate to `width` terminal columns, with an ellipsis in the middle."""
    if cell_width(text) <= width:
        return text
    head = _head(text, (width - 1) // 2)
    tail = _head(text[::-1], width - 1 - cell_width(head))[::-1]
    return f"{head}…{tail}"


def wrapped(text: str, width: int, indent: int) -> str:
    """Wrap lines at spaces. Each continues under its first word, or `indent` columns further right.

    Code in backticks stays on one line if it fits. Longer words are not split. Colours take no room.
    """
    return "\n".join(_wrapped_line(line, width, indent) for line in text.split("\n"))


def _wrapped_line(line: str, width: int, indent: int) -> str:
    margin = " " * (indent + len(line) - len(line.lstrip(" ")))
    done, current = [], ""
    for space, word in _phrases(line, width - len(margin)):
        if current.strip(" ") and plain_width(current + space + word) > width:
            done.append(current)
            current = margin + word
        else:
            current += space + word
    return "\n".join([*done, current + line[len(line.rstrip(" ")) :]])


def _phrases(line: str, room: int) -> Iterator[tuple[str, str]]:
    """Yield spaces and what follows them: a word, or code that fits into `room`."""
    for space, phrase in _PHRASES.findall(line):
        if plain_width(phrase) <= room:
            yield space, phrase
        else:
            first, *others = _WORDS.findall(phrase)
            yield from [(space, first[1]), *others]


def _free(column: Column) -> bool:
    """Return True for free text, False for names and numbers."""
    return column.flex or column.wrap


def _head(text: str, width: int) -> str:
    taken = 0
    for index, character in enumerate(text):
        taken += _character_width(character)
        if taken > width:
            return text[:index]
    return text


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


def _character_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
