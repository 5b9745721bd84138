"""Size of an ordered reading's pulls, and the number of messages to keep requested."""

from __future__ import annotations

from kvctl.jetstream import single_reply
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers.ordered.list_gaps import SINGLE_STEP_EXPIRES_S, STEP_EXPIRES_S, STEP_HEARTBEAT_S
from kvctl.jetstream.consumers.pull_options import Pull
from kvctl.jetstream.stream_info import StreamState
from kvctl.wire import MAX_CONTROL_LINE

BATCH_MESSAGES = 10_000
MAX_BYTES = 4 << 20
LIST_MAX_BYTES = 64 << 20
"""Maximum bytes of a pull from a list of last entries."""
EXPIRES_S = 30.0
HEARTBEAT_S = 2.0
SMALL_PULLS = 64
"""Pulls in flight where each delivers few messages."""


class PullSize:
    """Messages and bytes per pull. Servers, and imports that pass on a single answer, limit them."""

    def __init__(self, api: Api) -> None:
        self.single = single_reply.known(api)
        """True if a pull may have one answer only."""
        self.pending = 0
        """Number of messages left, by the server's last count."""
        self.overflowed = False
        """True if a list of last entries reached the end of a pull's bytes."""
        self._batch = self._max_bytes = 0
        self._max_payload = self._average = api.connection.max_payload
        self._most = 1 if self.single else BATCH_MESSAGES
        """The server's maximum for a pull."""
        self.reset()

    def reset(self) -> None:
        """Ask for as much as possible."""
        self._ask(BATCH_MESSAGES, MAX_BYTES + self._max_payload)

    def note_state(self, state: StreamState) -> None:
        """Take the average size of messages from the stream's state."""
        self._average = int(state["bytes"]) // max(int(state["messages"]), 1) + 1

    def fit_list(self, *, headers_only: bool, known: bool) -> None:
        """Pull lists of last entries by number rather than size; `known` if the stream's state was readable.

        If a pull's `max_bytes` end before the list of a stream with history, the server drops the message that did not
        fit (2.15; it keeps the message for consumers that go by sequence). So the size is only a safety net, and when
        it is reached, the list is read again by pulls that cannot reach it.
        """
        largest = self._max_payload + MAX_CONTROL_LINE
        most = max(LIST_MAX_BYTES, largest)
        if self.overflowed or not known:
            self._ask(most // largest, most)
        else:
            average = 1 if headers_only else self._average
            self._ask(min(max(MAX_BYTES // average, 1), BATCH_MESSAGES), most)

    def limit(self, most: int | None) -> bool:
        """Limit the number of messages per pull; return True if that is fewer than before."""
        if not most or most >= self._batch:
            return False
        self._most = self._batch = most
        return True

    def take_single_answers(self) -> None:
        """Request one message at a time."""
        self.single = True
        self._most = self._batch = 1

    def outgrow(self, messages: int | None) -> None:
        """Allow more bytes if one message was larger than a complete pull, which returned all its messages."""
        if messages and messages >= self._batch - 1:
            self._max_bytes *= 4

    @property
    def ahead(self) -> int:
        """Number of messages to keep requested: two batches, or more where a pull delivers few."""
        if not self.single and self._most >= SMALL_PULLS:
            return self._batch + 1
        return max(self._batch + 1, min(self.pending, SMALL_PULLS, LIST_MAX_BYTES // self._average))

    def pull(self, *, follow: bool, stepping: bool, requested: int = 0) -> Pull:
        """Build the next pull, after `requested` messages that did not arrive yet.

        One limited to a single answer requests one message and expires before it is missed. A finite reading ends when
        the server has filled a pull in part: the last pull must not be filled exactly. Such pulls expire: others are
        answered by the count of pending messages, which for a moment is too low while keys are overwritten.
        """
        waits = follow or stepping
        if self.single:
            expires = SINGLE_STEP_EXPIRES_S if stepping else HEARTBEAT_S * waits
            return Pull(batch=1, expires=expires, no_wait=not waits)
        if self._most == 1 and not waits:
            return Pull(batch=1, no_wait=True)
        exact = self._batch == self.pending - requested and self._batch > 1
        return Pull(
            batch=self._batch - (exact and not waits),
            max_bytes=self._max_bytes,
            expires=STEP_EXPIRES_S if stepping else EXPIRES_S,
            heartbeat=STEP_HEARTBEAT_S if stepping else HEARTBEAT_S,
            no_wait=not waits,
        )

    def _ask(self, batch: int, max_bytes: int) -> None:
        self._batch = min(batch, self._most)
        self._max_bytes = max_bytes
