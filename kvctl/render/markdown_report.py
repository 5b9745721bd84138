"""Reports in Markdown, for a pull request or a job summary. [pure]

Names, keys and texts come from others: they are escaped, so that they cannot format, link, mention or break a table.
"""

import re
from collections.abc import Iterable, Sequence

from kvctl.render.escapes import escape

_CODE = re.compile(r"`([^`]*)`")
_ACTIVE = re.compile(r"[\\`*\[\]<>#!|~&@$]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.|^[-=+]")
"""Characters that mean something in Markdown or HTML, begin a mention or a reference, or make a link of a text."""


def plain(text: str) -> str:
    """Escape a text, so that it appears as it is; control characters are escaped as on a terminal."""
    return _ACTIVE.sub(lambda match: f"&#{ord(match[0])};", escape(text.replace("\n", " ")))


def prose(text: str) -> str:
    """Escape a sentence; what stands in backticks becomes code."""
    parts = _CODE.split(text)
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
