"""Past moments of a bucket: after a revision, at a time, or some time ago."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kvctl.errors import UsageError
from kvctl.jetstream import multi_get, streams
from kvctl.kv import resolve
from kvctl.units import duration_ns, format_duration, format_moment, parse_duration, parse_time, time_hint

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Moment:
    """Moment right after a revision, or at a time (nanoseconds since the epoch), inclusive.

    `ago` counts back from the server's time when the moment is used.
    """

    revision: int | None = None
    time_ns: int | None = None
    ago: timedelta | None = None

    def __post_init__(self) -> None:
        if (self.revision, self.time_ns, self.ago).count(None) != 2:
            raise UsageError("A moment is a revision or a time")
        if self.revision is not None and self.revision < 1:
            raise UsageError("Revisions start at 1")

    def at(self, now_ns: int) -> Moment:
        """Return the same moment without `ago`, given the server's time."""
        return self if self.ago is None else Moment(time_ns=now_ns - duration_ns(self.ago))

    def __str__(self) -> str:
        if self.ago is not None:
            return f"{format_duration(self.ago)} ago"
        return f"revision {self.revision}" if self.time_ns is None else format_moment(self.time_ns)


def parse_moment(text: str) -> Moment:
    """Parse a revision, an RFC 3339 time, or `-15m` (ago). Raises UsageError."""
    if text.isdecimal() and len(text) < 20:
        return Moment(revision=int(text))
    try:
        return Moment(ago=parse_duration(text[1:])) if text.startswith("-") else Moment(time_ns=parse_time(text))
    except UsageError:
        raise UsageError(f"`{text}` is neither a revision nor a time", hint=time_hint(text, "`1042`, ")) from None


def as_moment(value: Moment | int | datetime | str) -> Moment:
    """Convert a revision, a time with its zone, or text to a moment. Raises UsageError."""
    if isinstance(value, Moment):
        return value
    if isinstance(value, str):
        return parse_moment(value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise UsageError("The time has no time zone")
        return Moment(time_ns=(value - _EPOCH) // timedelta(microseconds=1) * 1000)
    return Moment(revision=value)


async def first_revision(binding: resolve.Binding, since: Moment | datetime | str) -> int:
    """Return the first revision of this time or later, one more than the last if there is none.

    An age counts back from the server's time. Raises UsageError for a revision, BucketNotFound, UnreachableError.
    """
    moment = as_moment(since)
    if moment.revision is not None:
        raise UsageError(f"`{moment.revision}` is a revision, not a time")
    if moment.ago is not None:
        moment = moment.at((await streams.ServerClock.read(binding.api, binding.stream)).now_ns())
    assert moment.time_ns is not None
    return await multi_get.first_since(binding.api, binding.stream, moment.time_ns)
