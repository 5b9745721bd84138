"""Ordered reader of a stream's messages: each once, in order (ADR-37's ordered consumer)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Self

from kvctl.errors import UsageError
from kvctl.jetstream.api import Api
from kvctl.jetstream.auto_open import MessageIteration
from kvctl.jetstream.consumers.delivery import delivery
from kvctl.jetstream.consumers.message import Message
from kvctl.jetstream.consumers.ordered.ordered_consumer import OrderedConsumer
from kvctl.jetstream.consumers.ordered.server_consumer import Selection
from kvctl.tokens import check_filter_subject, check_name

_POLICIES = ("all", "last_per_subject", "new", "by_start_sequence")


class StreamReading(MessageIteration):
    """Async context manager and iterator. Raises StreamNotFound, StreamReplaced, PermissionDenied."""

    def __init__(
        self,
        api: Api,
        stream: str,
        subjects: Sequence[str] = (),
        deliver: str = "all",
        start: int = 0,
        follow: bool = False,
        headers_only: bool = False,
    ) -> None:
        if deliver not in _POLICIES:
            raise UsageError(f"`deliver` must be one of {', '.join(_POLICIES)}, not `{deliver}`")
        if (deliver == "by_start_sequence") != bool(start):
            raise UsageError("`start` and `by_start_sequence` must be used together")
        check_name(stream, "stream")
        for subject in subjects:
            check_filter_subject(subject)
        selection = Selection(
            subjects=tuple(subjects) or (">",), deliver=deliver, start=start, headers_only=headers_only
        )
        self._connection = api.connection
        self._ordered = OrderedConsumer(api, stream, selection, follow=follow)
        self._last = 0

    async def __aenter__(self) -> Self:
        await self._ordered.__aenter__()
        self._opened = True
        return self

    async def __aexit__(self, *exit: object) -> None:
        await self._ordered.__aexit__(*exit)

    async def batches(self) -> AsyncGenerator[list[Message], None]:
        """Yield messages in batches, as they arrive."""
        async for frames in self._ordered.batches():
            fresh = []
            for frame in frames:
                sequence = delivery(frame[1])[0]
                if sequence > self._last:  # messages repeat when the consumer is recreated
                    self._last = sequence
                    fresh.append(Message(frame, self._connection))
            if fresh:
                yield fresh
