"""Markdown on a terminal: coloured headings and code, unchanged text."""

import re

from kvctl.render.terminal import paint

_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_STRONG = re.compile(r"\*\*([^*\n]+)\*\*")


def styled(markdown: str) -> str:
    """Add ANSI colours to Markdown. Indented blocks of code stay unchanged."""
    return "\n".join(line if line.startswith("    ") else _line(line) for line in markdown.split("\n"))


def _line(line: str) -> str:
    heading = _HEADING.match(line)
    if heading:
        return paint(heading[1], "bold")
    line = _STRONG.sub(lambda match: paint(match[1], "bold"), line)
    return _CODE.sub(lambda match: paint(match[0], "cyan"), line)
