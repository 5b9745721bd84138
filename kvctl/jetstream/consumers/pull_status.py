"""Statuses of pulls: ADR-37's table, and those it lacks. [pure]"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from kvctl.wire import header_value, status

_LIMIT = re.compile(r"Exceeded MaxRequest(Batch|Expires|MaxBytes) of (\S+)")


class Meaning(Enum):
    """Meaning of a status for its pull."""

    ALIVE = "alive"
    """Idle heartbeat: nothing has ended."""
    ENDED = "ended"
    """Ordinary end of the pull: not reported."""
    REFUSED = "refused"
    """The pull exceeds a limit of the consumer: a warning."""
    BAD = "bad"
    """The server does not understand the pull: an error."""
    GONE = "gone"
    """No pull will be answered any more: an error that ends consuming."""
    UNPINNED = "unpinned"
    """The consumer is now pinned to another client: not reported, pull again without the pin."""
    LOST = "lost"
    """The server that kept the pulls dropped them: a warning, and a reason to pull again."""


@dataclass(frozen=True, slots=True)
class Status:
    """Status of a pull; `messages` and `bytes` are the remainder of the pull, None where not reported."""

    code: int
    text: str
    meaning: Meaning
    messages: int | None
    bytes: int

    @property
    def exceeded(self) -> tuple[str, str]:
        """Limit that the pull exceeded, `Batch`, `Expires` or `MaxBytes`, and its value; empty for none."""
        named = _LIMIT.match(self.text)
        return (named[1], named[2]) if named else ("", "")

    def most(self, what: str) -> int:
        """Return the limit of that name as a number; 0 if the pull did not exceed it."""
        name, text = self.exceeded
        return int(text) if name == what and text.isdigit() else 0

    def __str__(self) -> str:
        return f"{self.text} ({self.code})" if self.text else _WORDS.get(self.code, f"status {self.code}")


def read_status(header: bytes) -> Status:
    """Parse the status in a header block."""
    code, text = status(header)
    left = header_value(header, b"Nats-Pending-Messages")
    size = header_value(header, b"Nats-Pending-Bytes")
    return Status(code, text, meaning_of(code, text), None if left is None else int(left), int(size or 0))


def meaning_of(code: int, text: str) -> Meaning:
    """Return the meaning of a code and its text: many of 409 differ by their text alone."""
    if code == 409:
        return next((meaning for begin, meaning in _CONFLICTS.items() if text.startswith(begin)), Meaning.LOST)
    return _CODES.get(code, Meaning.LOST)


_CODES = {100: Meaning.ALIVE, 400: Meaning.BAD, 404: Meaning.ENDED, 408: Meaning.ENDED, 423: Meaning.UNPINNED}
_CONFLICTS = {
    "Message Size Exceeds": Meaning.ENDED,
    "Batch Completed": Meaning.ENDED,
    "Exceeded": Meaning.REFUSED,
    "Consumer Deleted": Meaning.GONE,
    "Consumer is push": Meaning.GONE,
}
_WORDS = {503: "nobody answers (503)"}
