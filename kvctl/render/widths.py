"""Widths of text in terminal columns: truncation and wrapping. [pure]"""

import re
import unicodedata
from collections.abc import Iterator

_WORDS = re.compile(r"( *)([^ ]+)")
_PHRASES = re.compile(r"( *)((?:`[^`]*`|[^ ])+)")
"""Words, or code in backticks, which is best copied from one line."""
_COLOR = re.compile("\x1b\\[[0-9;]*m")


def cell_width(text: str) -> int:
    """Return the terminal columns of a text: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def plain_width(text: str) -> int:
    """Return the terminal columns of a text that has escape sequences for colour."""
    return cell_width(_COLOR.sub("", text))


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


_CODE = " " * 4


def wrapped(text: str, width: int, indent: int) -> str:
    """Wrap lines at spaces. Each continues `indent` columns from the left, an indented one below its first word.

    Code in backticks stays on one line if it fits, and a line that begins as code does, with four spaces, is one to
    copy. Longer words are not split. Colours take no room.
    """
    lines = text.split("\n")
    return "\n".join(line if line.startswith(_CODE) else _wrapped_line(line, width, indent) for line in lines)


def _wrapped_line(line: str, width: int, indent: int) -> str:
    own = len(line) - len(line.lstrip(" "))
    margin = " " * (own or indent)
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


def _head(text: str, width: int) -> str:
    taken = 0
    for index, character in enumerate(text):
        taken += _character_width(character)
        if taken > width:
            return text[:index]
    return text


def _character_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
