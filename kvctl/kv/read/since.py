"""Start of a reading at a time: the first revision that was written then or later."""

from __future__ import annotations

from datetime import datetime

from kvctl.errors import UsageError
from kvctl.jetstream.multi_get import first_since
from kvctl.jetstream.streams import ServerClock
from kvctl.kv.point_in_time.moment import Moment, as_moment
from kvctl.kv.resolve import Binding


async def first_revision(binding: Binding, since: Moment | datetime | str) -> int:
    """Return the first revision of this time or later, one more than the last if there is none.

    An age counts back from the server's time. Raises UsageError for a revision, BucketNotFound, UnreachableError.
    """
    moment = as_moment(since)
    if moment.revision is not None:
        raise UsageError(f"`{moment.revision}` is a revision, not a time")
    if moment.ago is not None:
        moment = moment.at((await ServerClock.read(binding.api, binding.stream)).now_ns())
    assert moment.time_ns is not None
    return await first_since(binding.api, binding.stream, moment.time_ns)
