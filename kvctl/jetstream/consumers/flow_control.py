"""Flow control of consume: amount in flight and time of the next pull, by ADR-37's limits and thresholds. [pure]"""

from __future__ import annotations

from datetime import timedelta

from kvctl.errors import UsageError
from kvctl.jetstream.consumers.pull_options import PLENTY, SHORTEST, ConsumeOptions, Pull, default_heartbeat
from kvctl.jetstream.consumers.pull_status import Status
from kvctl.units import parse_duration


class Buffer:
    """Buffer of a consume: by number of messages, or by their size."""

    def __init__(self, options: ConsumeOptions) -> None:
        self.heartbeat = options.heartbeat.total_seconds()
        self.cautious = False
        """True if the last pull was too small for the next message: then only an empty buffer pulls again, for all."""
        self._expires = options.expires
        self._messages = options.most
        self._batch = PLENTY if options.max_bytes else options.most
        """Maximum of one pull."""
        self._bytes = options.max_bytes or 0
        self.low = -1 if self._bytes else _half(options.threshold_messages, self._messages)
        """Number of messages left at which more are requested; none if limited by size."""
        self.low_bytes = _half(options.threshold_bytes, self._bytes) if self._bytes else -1
        self._group = options.group

    def next_pull(self, messages: int, size: int, left: int | None = None, pin: str = "") -> Pull | None:
        """Return the next pull in addition to the pending ones; None while they suffice. `left` bounds the total."""
        if self._bytes:
            if not size:
                messages = 0  # pulls without bytes left have ended, whatever number of messages was left
            missing, batch = self._bytes - size, self._batch
            enough = size > (0 if self.cautious else self.low_bytes)
        else:
            missing, batch = 0, self._messages - messages
            enough = messages > self.low
        if left is not None:
            batch = min(batch, left - messages)
        if enough or batch < 1:
            return None
        return Pull(
            batch=batch,
            max_bytes=missing,
            expires=self._expires.total_seconds(),
            heartbeat=self.heartbeat,
            group=self._group,
            pin=pin,
        )

    def never_fits(self, status: Status) -> bool:
        """Return True if the next message is larger than the entire buffer."""
        return bool(self._bytes) and status.bytes >= self._bytes

    def adapt(self, status: Status) -> bool:
        """Adapt to the consumer's limit that a refusal names; return True if another pull may succeed."""
        what, text = status.exceeded
        if what == "Expires":
            return self._shorten(text)
        limit = int(text or 0)
        if what == "Batch" and 0 < limit < self._batch:
            self._batch = limit
            if not self._bytes:
                self._messages, self.low = limit, min(self.low, limit // 2)
            return True
        if what == "MaxBytes" and 0 < limit < self._bytes:
            self._bytes, self.low_bytes = limit, min(self.low_bytes, limit // 2)
            return True
        return False

    def _shorten(self, text: str) -> bool:
        try:
            longest = parse_duration(text)
        except UsageError:
            return False
        if not timedelta(0) < longest < self._expires:
            return False
        self._expires = longest
        shorter = min(self.heartbeat, default_heartbeat(longest).total_seconds())
        self.heartbeat = shorter if longest >= SHORTEST else longest.total_seconds() / 2
        return True


def _half(threshold: int | None, limit: int) -> int:
    return limit // 2 if threshold is None else threshold
