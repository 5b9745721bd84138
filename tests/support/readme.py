"""README's examples: the fenced blocks of the file, with their language and the heading they stand under."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One example."""

    heading: str
    language: str
    text: str
    line: int
    """Where it begins in the file, for messages."""


def blocks(page: str = README) -> list[Block]:
    """All examples of a page, in order."""
    return [_block(page, match) for match in BLOCK.finditer(page)]


def setup_commands() -> list[str]:
    """The two commands that do all the set-up: try it, and test it."""
    return [block.text.strip() for block in blocks() if block.heading == "Try it"]


def _block(page: str, match: re.Match[str]) -> Block:
    before = page[: match.start()]
    headings = _HEADING.findall(BLOCK.sub("", before))
    return Block(headings[-1] if headings else "", match[1], match[2], before.count("\n") + 1)
