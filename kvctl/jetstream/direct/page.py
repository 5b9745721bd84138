"""Pages of messages: the answers to direct gets for many messages, and what keeps a page from coming."""

from __future__ import annotations

from dataclasses import dataclass

from kvctl.errors import NotFoundError, ServerError
from kvctl.jetstream.direct.direct_get import DirectRequest, StoredMessage


class MomentLost(ServerError):
    """Messages of the moment that was asked for were overwritten before they were read."""

    rest: DirectRequest | None = None
    """What is left to read after the pages that came; None where none came."""
    due: int = 0
    """How many messages match that."""


class NotReached(NotFoundError):
    """The replica that answered, or the stream, has not come to the sequence that was asked for."""


@dataclass(slots=True)
class Page:
    """The answer to one request for many messages: what came, and what is left."""

    messages: list[StoredMessage]
    pending: int | None
    """Messages that match and are left, 0 at the end; None where it is not known."""
    last_sequence: int
    """The last message's sequence: the next page begins after it."""
    up_to_sequence: int | None = None
    """For the last messages of subjects: the sequence that they are the last of."""
