"""Message readers that open themselves: iterating over one outside a `with` block opens and closes it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Self

from kvctl.jetstream.consumers.message import Message


class MessageIteration:
    """Async context manager that also iterates over messages, in batches or one by one."""

    _opened = False

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Begin, and set `_opened`."""

    @abstractmethod
    async def __aexit__(self, *exit: object) -> None: ...

    @abstractmethod
    def batches(self) -> AsyncGenerator[list[Message], None]:
        """Yield messages in batches, as they arrive."""

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._one_by_one() if self._opened else self._by_itself()

    async def _one_by_one(self) -> AsyncIterator[Message]:
        async for batch in self.batches():
            for message in batch:
                yield message

    async def _by_itself(self) -> AsyncIterator[Message]:
        async with self:
            async for message in self._one_by_one():
                yield message
