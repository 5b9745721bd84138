"""What a server says about a pull instead of a message: ADR-37's table, and the statuses that it lacks. [pure]"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from kvctl.wire import header_value, status

_LIMIT = re.compile(r"Exceeded MaxRequest(Batch|Expires|MaxBytes) of (\S+)")


class Meaning(Enum):
    """What a status says of the pull that it answers."""

    ALIVE = "alive"
    """An idle heartbeat: nothing has ended."""
    ENDED = "ended"
    """The pull is over, as pulls are: nobody needs to know."""
    REFUSED = "refused"
    """A limit of the consumer stands against the pull: a warning."""
    BAD = "bad"
    """The server does not understand the pull: an error."""
    GONE = "gone"
    """No pull will ever be answered again: an error that ends consuming."""
    UNPINNED = "unpinned"
    """The consumer is pinned to another client now: nobody needs to know, pull anew without the pin."""
    LOST = "lost"
    """Whoever kept the pulls keeps them no more: a warning, and a reason to pull anew."""


@dataclass(frozen=True, slots=True)
class Status:
    """One status; `messages` and `bytes` are what was left of the pull, None where it does not say."""

    code: int
    text: str
    meaning: Meaning
    messages: int | None
    bytes: int

    @property
    def exceeded(self) -> tuple[str, str]:
        """The limit that the pull was over, `Batch`, `Expires` or `MaxBytes`, and its value; empty for none."""
        named = _LIMIT.match(self.text)
        return (named[1], named[2]) if named else ("", "")

    def most(self, what: str) -> int:
        """The limit of that name as a number; 0 where the pull was not over it."""
        name, text = self.exceeded
        return int(text) if name == what and text.isdigit() else 0

    def __str__(self) -> str:
        return f"{self.text} ({self.code})" if self.text else _WORDS.get(self.code, f"status {self.code}")


def read_status(header: bytes) -> Status:
    """The status that a header block holds."""
    code, text = status(header)
    left = header_value(header, b"Nats-Pending-Messages")
    size = header_value(header, b"Nats-Pending-Bytes")
    return Status(code, text, meaning_of(code, text), None if left is None else int(left), int(size or 0))


def meaning_of(code: int, text: str) -> Meaning:
    """What a code and its text say: many of 409 are told apart by their text alone."""
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
