"""Pages of messages: answers to multi-message gets, and their errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from kvctl.errors import NotFoundError
from kvctl.jetstream.direct.direct_get import CannotAnswerMany, DirectRequest

Read = TypeVar("Read")


class MomentLost(CannotAnswerMany):
    """Messages of the requested moment were overwritten before they were read."""

    rest: DirectRequest | None = None
    """Request for the rest after the pages received; None before the first page."""
    due: int = 0
    """Number of messages that it matches."""


class NotReached(NotFoundError):
    """The replica that answered, or the stream, has not reached the requested sequence."""


@dataclass(slots=True)
class Page(Generic[Read]):
    """Answer to one request for many messages: messages, or what was built of them, and the number left."""

    messages: list[Read]
    pending: int | None
    """Number of matching messages left, 0 at the end; None if unknown."""
    last_sequence: int
    """Sequence of the last message: the next page begins after it."""
    up_to_sequence: int | None = None
    """For the last messages of subjects: the sequence as of which they are the last."""
