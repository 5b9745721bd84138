"""Markdown: styled for a terminal, and reports for a pull request or a job summary. [pure]

Names, keys and texts in reports come from others: they are escaped, so that they cannot format, link, mention or break
a table.
"""

import re
from collections.abc import Iterable, Sequence

from kvctl.render.escapes import escape
from kvctl.render.terminal import paint

_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_STRONG = re.compile(r"\*\*([^*\n]+)\*\*")
_QUOTED = re.compile(r"`([^`]*)`")
_ACTIVE = re.compile(r"[\\`*\[\]<>#!|~&@$]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.|^[-=+]")
"""Characters that mean something in Markdown or HTML, begin a mention or a reference, or make a link of a text."""


def styled(markdown: str) -> str:
    """Add ANSI colours to Markdown. Indented blocks of code stay unchanged."""
    return "\n".join(line if line.startswith("    ") else _line(line) for line in markdown.split("\n"))


def _line(line: str) -> str:
    heading = _HEADING.match(line)
    if heading:
        return paint(heading[1], "bold")
    line = _STRONG.sub(lambda match: paint(match[1], "bold"), line)
    return _CODE.sub(lambda match: paint(match[0], "cyan"), line)


def plain(text: str) -> str:
    """Escape a text, so that it appears as it is; control characters are escaped as on a terminal."""
    return _ACTIVE.sub(lambda match: f"&#{ord(match[0])};", escape(text.replace("\n", " ")))


def prose(text: str) -> str:
    """Escape a sentence; what stands in backticks becomes code."""
    parts = _QUOTED.split(text)
    return "".join(f"<code>{plain(part)}</code>" if at % 2 else plain(part) for at, part in enumerate(parts))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; cells are given in Markdown, and None is an empty one."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join('' if cell is None else str(cell) for cell in line)} |\n" for line in lines)


def heading(text: str) -> str:
    """Return a heading of the report."""
    return f"### {prose(text)}\n"


def document(*blocks: str) -> str:
    """Join paragraphs, tables and headings, without the empty ones."""
    return "\n".join(block if block.endswith("\n") else f"{block}\n" for block in blocks if block)
