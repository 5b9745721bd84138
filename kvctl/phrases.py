"""Phrases of messages: counts with their nouns, lists of names, articles. [pure]"""

from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """Format a number with its noun: `1 key`, `2 entries`, `1,200 replicas`."""
    if number != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("y") and not noun.endswith("ey") else f"{noun}s"
    return f"{number:,} {noun}"


def one_line(text: str) -> str:
    """Write line ends in a foreign text as `\\n`: a message must not begin a line that somebody else chose."""
    return text.replace("\n", "\\n")


class MessageLines(str):
    """Message of several lines, in which each line end is ours: printing escapes those of any other text."""


def lines(*texts: str) -> MessageLines:
    """Return a message of these lines."""
    return MessageLines("\n".join(text if isinstance(text, MessageLines) else one_line(text) for text in texts))


def indented(first: str, others: Iterable[object]) -> MessageLines:
    """Return a message with a line, and others indented below it."""
    return lines(first, *(f"  {other}" for other in others))


def quoted(names: Iterable[str], limit: int | None = None) -> str:
    """List names in backticks, and beyond `limit` only how many more there are."""
    listed = [one_line(f"`{name}`") for name in names]
    if limit is None or len(listed) <= limit:
        return ", ".join(listed)
    return f"{', '.join(listed[:limit])} and {len(listed) - limit} more"


def joined(words: Iterable[str], conjunction: str = "and") -> str:
    """Join words for a sentence: `a`, `a and b`, `a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def with_article(noun: str) -> str:
    """Return a noun with its indefinite article: `a bucket`, `an aggregate`."""
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"
