"""Write any number of keys of a partition, thousands in flight; survives lost connections and changes of leader.

Nobody else writes these keys with other values. So a write without an answer is simply sent again. Only its order to a
later write of the same key matters: that one is sent when all before it are stored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from kvctl.errors import Away, ConnectionLost, KvctlError, ServerError, UnreachableError
from kvctl.jetstream.publish import PublishWindow
from kvctl.jetstream.request_window import WINDOW
from kvctl.kv import conditional_write
from kvctl.kv.bulk.leader_state import LEADER_DEADLINE_S, all_arrived
from kvctl.kv.ordered_token import token
from kvctl.kv.resolve import Binding
from kvctl.versions.store.protocol import MissingArgument, check_size
from kvctl.versions.store.writes import map_store_errors

PAUSE_S = 0.1

_Item = tuple[bytes, bytes]


class BulkWrites:
    """See `Filling`."""

    def __init__(self, binding: Binding, head: str, largest: int) -> None:
        self._binding = binding
        self._head = (binding.write_prefix + head).encode()
        self._largest = largest
        self._window = PublishWindow(self._binding.api.connection, lambda *_: None, self._failed)
        self._recent: set[bytes] = set()
        """Keys of the last writes, together with `_earlier` at least as many as can be in flight."""
        self._earlier: set[bytes] = set()
        self._left: list[_Item] = []
        """Writes to send again."""
        self._cause: KvctlError | None = None
        """Last reason for that."""
        self._lost = False
        """True if the connection was lost, on which writes may still be under way."""
        self._error: KvctlError | None = None

    async def __aenter__(self) -> Self:
        await self._window.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self._window.__aexit__(kind, *rest)

    async def add(self, values: Mapping[bytes, bytes]) -> None:
        """See `Filling.add`."""
        if not values:
            return
        if b"" in values:
            raise MissingArgument("The key is missing")
        check_size(max(values.values(), key=len), self._largest)
        if not (self._recent.isdisjoint(values) and self._earlier.isdisjoint(values)):
            await self.flush()
        self._recent.update(values)
        if len(self._recent) > WINDOW:
            self._recent, self._earlier = set(), self._recent
        await self._send(iter(values.items()))

    async def flush(self) -> None:
        """See `Filling.flush`."""
        await self._window.finish()
        await self._settle()
        self._recent.clear()
        self._earlier.clear()

    async def _send(self, items: Iterator[_Item]) -> None:
        messages = self._messages(items)
        while True:
            await self._window.send_all(messages, self._in_trouble)
            if not self._in_trouble():
                return
            await self._window.finish()
            await self._settle()

    def _messages(self, items: Iterable[_Item]) -> Iterator[tuple[_Item, bytes, bytes, bytes]]:
        head = self._head
        for item in items:
            yield item, head + token(item[0]), item[1], b""

    def _in_trouble(self) -> object:
        return self._left or self._error

    def _failed(self, item: _Item, error: KvctlError) -> None:
        if isinstance(error, Away):
            self._left.append(item)
            self._cause = error
            self._lost = self._lost or isinstance(error, ConnectionLost)
        else:
            self._error = self._error or error

    async def _settle(self) -> None:
        """Send writes without an answer again. Raises UnreachableError if the server stays unavailable."""
        deadline = time.monotonic() + LEADER_DEADLINE_S
        while self._left and self._error is None:
            before = len(self._left)
            try:
                await self._send_again()
            except Away as error:
                self._cause = error
            if len(self._left) < before:
                deadline = time.monotonic() + LEADER_DEADLINE_S
            elif time.monotonic() > deadline:
                raise UnreachableError(f"Could not write all keys: {self._cause.message if self._cause else ''}")
            else:
                await asyncio.sleep(PAUSE_S)
        if self._error is not None:
            with map_store_errors(self._binding):
                raise self._explained(self._error)

    async def _send_again(self) -> None:
        """Send them until one has no answer again. Raises Away."""
        connection = self._binding.api.connection
        await connection.wait_online(connection.timeout)
        if self._lost:
            await all_arrived(self._binding)
            self._lost = False
        left, self._left = iter(self._left), []
        try:
            await self._window.send_all(self._messages(left), self._in_trouble)
            await self._window.finish()
        finally:
            self._left += left

    def _explained(self, error: KvctlError) -> KvctlError:
        return conditional_write.explained(error, self._binding) if isinstance(error, ServerError) else error
