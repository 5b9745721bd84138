"""Watch for data that a stream loses while a task reads it: entries that expire or are dropped before they are read.

Buckets lose their oldest entries first, and a task reads from the oldest on. So nothing was lost as long as the
bucket's first revision is not above the task's position before its last read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from kvctl.jetstream.consumers.delivery import RawFrame, delivery
from kvctl.kv.bucket import Bucket
from kvctl.pipeline.read import stream_position
from kvctl.pipeline.read.offsets import Offset, check

ROWS = 10_000
"""Number of rows between two checks of the bucket."""


class LossWatch:
    """Watches one read of a range of revisions, which begins after an offset."""

    def __init__(self, bucket: Bucket, start: Offset, last: int) -> None:
        self._bucket = bucket
        self._last = last
        self._whole = start
        """Position up to which everything was read."""
        self._reached = start
        self._left = 0
        """Rows until the next check; the first one comes with the first rows."""

    async def take(self, frames: Sequence[RawFrame]) -> None:
        """Record what was read, in order. Raises HistoryLost, StreamReplaced."""
        if not frames:
            return
        if self._whole is self._reached:
            self._whole = _contiguous(self._whole, frames)
        sequence, _, time_ns, _ = delivery(frames[-1][1])
        whole = self._whole.revision == sequence
        self._reached = self._whole if whole else replace(self._whole, revision=sequence, seen_ns=time_ns, held=0)
        self._left -= len(frames)
        if self._left <= 0:
            await self.look()

    async def look(self) -> None:
        """Compare with the bucket's current first revision. Raises as `take`."""
        if self._whole.revision < self._last:
            _, now = await stream_position.look(self._bucket)
            check(self._whole, now)
        self._whole, self._left = self._reached, ROWS


def _contiguous(offset: Offset, frames: Sequence[RawFrame]) -> Offset:
    """Return the offset moved over the frames, up to the first gap between them."""
    first = delivery(frames[0][1])[0]
    if first > offset.next:
        return offset
    count = bisect_left(range(len(frames)), True, key=lambda at: delivery(frames[at][1])[0] > first + at)
    sequence, _, time_ns, _ = delivery(frames[count - 1][1])
    return replace(offset, revision=sequence, seen_ns=time_ns, held=0)
