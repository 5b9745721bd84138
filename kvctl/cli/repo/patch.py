"""Differences of keys as a patch: lines with `-` and `+`, as git shows them. [pure]"""

import difflib
from collections.abc import Iterator, Sequence

from kvctl.units import format_size

CONTEXT = 3
"""Unchanged lines around a change."""
COMPARED_LINES = 4000
"""Maximum number of lines to compare; of more, between the first and the last change, all are shown as replaced."""

Line = tuple[str, str]
"""A line without its newline, and its style."""


def patch_lines(key: str, before: bytes | None, after: bytes | None, *, conflict: bool = False) -> Iterator[Line]:
    """Yield the lines of one key's difference; None stands for a key that does not exist."""
    if conflict:
        yield f"conflict: both sides changed `{key}`", "red bold"
    yield f"--- a/{key}" if before is not None else "--- /dev/null", "bold"
    yield f"+++ b/{key}" if after is not None else "+++ /dev/null", "bold"
    old, new = _text(before), _text(after)
    if old is None or new is None:
        yield f"Binary values: {_size(before)} -> {_size(after)}", ""
        return
    if old == new == "":
        return
    both_open = _is_open(old) == _is_open(new) or not (old and new)
    yield from _hunks(_lines(old, mark=not both_open), _lines(new, mark=not both_open))


def _text(value: bytes | None) -> str | None:
    """Return the value as text, empty for a missing key; None for binary data."""
    try:
        text = (value or b"").decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _is_open(text: str) -> bool:
    return not text.endswith("\n")


def _lines(text: str, *, mark: bool) -> list[str]:
    """Split into lines; with `mark`, a note follows a last line that has no newline."""
    lines = text.removesuffix("\n").split("\n") if text else []
    if mark and lines and _is_open(text):
        lines[-1] += "\n\\ No newline at end of value"
    return lines


def _hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[Line]:
    for group in _groups(old, new):
        (_, first, _, second, _), (_, _, last, _, end) = group[0], group[-1]
        yield f"@@ -{_range(first, last)} +{_range(second, end)} @@", "cyan"
        for tag, a, b, c, d in group:
            if tag == "equal":
                yield from ((f" {line}", "") for line in old[a:b])
            else:
                yield from ((f"-{line}", "red") for line in old[a:b])
                yield from ((f"+{line}", "green") for line in new[c:d])


def _groups(old: Sequence[str], new: Sequence[str]) -> Iterator[list[tuple[str, int, int, int, int]]]:
    """Yield groups of changes with their context. What both begin and end with is not compared."""
    most = min(len(old), len(new))
    head = next((at for at in range(most) if old[at] != new[at]), most)
    tail = next((at for at in range(most - head) if old[-1 - at] != new[-1 - at]), most - head)
    start, one, other = max(head - CONTEXT, 0), len(old) - tail, len(new) - tail
    if max(one, other) - head > COMPARED_LINES:
        after = min(tail, CONTEXT)
        yield [
            ("equal", start, head, start, head),
            ("replace", head, one, head, other),
            ("equal", one, one + after, other, other + after),
        ]
        return
    after = min(tail, CONTEXT)
    matcher = difflib.SequenceMatcher(None, old[start : one + after], new[start : other + after], autojunk=False)
    for group in matcher.get_grouped_opcodes(CONTEXT):
        yield [(tag, a + start, b + start, c + start, d + start) for tag, a, b, c, d in group]


def _range(first: int, end: int) -> str:
    """Return the lines of a hunk as in a unified diff: `3,7`, `3` for one line, `0,0` for none."""
    length = end - first
    return f"{first + 1}" if length == 1 else f"{first + (1 if length else 0)},{length}"


def _size(value: bytes | None) -> str:
    return "none" if value is None else format_size(len(value))
