"""Borderless tables for terminals: headings, aligned columns, colour; rendered in batches."""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from kvctl.render.escapes import escape, utf8
from kvctl.render.terminal import paint
from kvctl.render.view import Column, Row, View

GAP = "  "
NARROWEST = 8
"""Minimum width of a flexible column, in terminal columns."""
_ACRONYMS = re.compile(r"\b(?:api|id|tls|ttl|url)\b", re.IGNORECASE)


class TableWriter:
    """Table whose columns are as wide as the rows so far; a wider row affects only those after it."""

    def __init__(self, view: View, *, width: int | None, color: bool) -> None:
        self.columns = [column for column in view.columns if column.table]
        self.view = view
        self.width = width
        self.color = color
        self._widths = [0] * len(self.columns)
        self._begun = False

    def begin(self) -> bytes:
        return b""

    def rows(self, batch: Sequence[Row]) -> bytes:
        if not batch:
            return b""
        cells = [[self._cell(column, row.get(column.key)) for column in self.columns] for row in batch]
        headings = [] if self._begun else [[column.heading for column in self.columns]]
        self._measure(headings + cells)
        widths = fit(self.columns, self._widths, self.width)
        lines = [self._line(heading, ["bold"] * len(heading), widths) for heading in headings]
        lines += [self._line(texts, self._styles(row), widths) for texts, row in zip(cells, batch, strict=True)]
        self._begun = True
        return utf8("".join(lines))

    def end(self) -> bytes:
        return sections(self.view, width=self.width, color=self.color)

    def _cell(self, column: Column, value: Any) -> str:
        # Values can hold megabytes: do not measure text that is truncated anyway.
        longest = 4 * self.width if self.width and column.flex else None
        return _cell(column, value[:longest] if isinstance(value, str) else value)

    def _measure(self, lines: list[list[str]]) -> None:
        self._widths = [
            max(width, *(cell_width(line[index]) for line in lines)) for index, width in enumerate(self._widths)
        ]

    def _styles(self, row: Row) -> list[str]:
        return [_style(column, row.get(column.key)) for column in self.columns]

    def _line(self, texts: list[str], styles: list[str], widths: list[int]) -> str:
        parts = []
        for index, (column, text, style) in enumerate(zip(self.columns, texts, styles, strict=True)):
            text = cut(text, widths[index])
            space = " " * (widths[index] - cell_width(text))
            last = index == len(texts) - 1
            shown = paint(text, style) if self.color and style else text
            parts.append(space + shown if column.right else shown + ("" if last else space))
        return GAP.join(parts).rstrip(" ") + "\n"


class DetailsWriter:
    """Document as lines of name and value, followed by its sections."""

    def __init__(self, view: View, *, width: int | None, color: bool) -> None:
        self.view = view
        self.width = width
        self.color = color

    def begin(self) -> bytes:
        return b""

    def rows(self, batch: Sequence[Row]) -> bytes:
        lines = []
        columns = [column for column in self.view.columns if column.table]
        for row in batch:
            shown = [column for column in columns if row.get(column.key) not in (None, "", [], {})]
            left = max((cell_width(_label(column)) for column in shown), default=0)
            for column in shown:
                label = _label(column) + " " * (left - cell_width(_label(column)))
                text, style = _cell(column, row[column.key]), _style(column, row[column.key])
                lines.append(
                    f"{paint(label, 'bold') if self.color else label}{GAP}"
                    f"{paint(text, style) if self.color and style else text}\n"
                )
        return utf8("".join(lines))

    def end(self) -> bytes:
        return sections(self.view, width=self.width, color=self.color)


def sections(view: View, *, width: int | None, color: bool) -> bytes:
    """Render the view's sections under their headings, without empty ones."""
    out = b""
    for heading, section in view.sections:
        rows = list(section.rows)
        if rows:
            writer = (DetailsWriter if section.single else TableWriter)(section, width=width, color=color)
            title = paint(heading, "bold") if color else heading
            out += utf8(f"\n{title}\n") + writer.rows(rows) + writer.end()
    return out


def cell_width(text: str) -> int:
    """Return the terminal columns of a text: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(_character_width(character) for character in text)


def cut(text: str, width: int) -> str:
    """Truncate to `width` terminal columns, with an ellipsis at the end."""
    if cell_width(text) <= width:
        return text
    taken = 0
    for index, character in enumerate(text):
        taken += _character_width(character)
        if taken >= width:
            return f"{text[:index]}…"
    return text


def fit(columns: Sequence[Column], widths: Sequence[int], total: int | None) -> list[int]:
    """Fit widths into `total` terminal columns by limiting flexible columns to one common width of 8 or more."""
    flexible = [width for column, width in zip(columns, widths, strict=True) if column.flex]
    if total is None or not flexible:
        return list(widths)
    room = total - len(GAP) * (len(widths) - 1) - (sum(widths) - sum(flexible))
    cap = max(flexible)
    while cap > NARROWEST and sum(min(width, cap) for width in flexible) > room:
        cap -= 1
    return [min(width, cap) if column.flex else width for column, width in zip(columns, widths, strict=True)]


def _label(column: Column) -> str:
    if column.title is not None:
        return column.title
    return _ACRONYMS.sub(lambda match: match[0].upper(), column.key.replace("_", " ").capitalize())


def _cell(column: Column, value: Any) -> str:
    if value is None:
        return ""
    text = column.text(value) if column.text else _plain(value)
    return escape(text)


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


def _style(column: Column, value: Any) -> str:
    return column.style(value) if callable(column.style) else column.style


def _character_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
