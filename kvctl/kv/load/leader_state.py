"""What a bucket holds for the rows of a load at the moment, asked of the leader, few enough at a time for memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing

from kvctl.errors import ConnectionLost, JetStreamDisabled, NoResponders, NoServer, PermissionDenied, RequestTimeout
from kvctl.jetstream.direct.direct_get import (
    DirectRequest,
    NotUnderstood,
    StoredMessage,
    TooManySubjects,
    from_leader,
)
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.kv.entry import Operation, operation_of
from kvctl.kv.load.rows import Row
from kvctl.kv.names import is_plain
from kvctl.kv.resolve import Binding

AWAY = (ConnectionLost, RequestTimeout, NoResponders, NoServer, JetStreamDisabled)
"""Errors after which the server is asked again: it, its leader or the connection is missing for the moment."""
PATIENCE = 15.0
"""Seconds for which a server that is away is waited for."""
AT_ONCE = 1000
FEW = 8
"""Keys that are as quickly asked for one by one."""
MAX_BYTES = 8 << 20
"""What the answers may come to, by the bucket's average."""


class Current:
    """Compares rows with what is there."""

    def __init__(self, binding: Binding, info: StreamInfo) -> None:
        self.binding = binding
        state, config = info["state"], info["config"]
        self._sole = bool(config.get("allow_direct")) and config.get("num_replicas", 1) == 1
        """Whether a direct get that the stream itself answers is as good as asking its leader."""
        self._known: StoredMessage | None = None
        """A small one that is there, or was when it was read."""
        average = state["bytes"] // max(state["messages"], 1) + 1
        self._at_once = max(1, min(AT_ONCE, MAX_BYTES // average))

    def chunks(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        """The rows in order, as many as may be asked for at once, and no key twice."""
        chunk: dict[str, Row] = {}
        for row in rows:
            if row.key in chunk or len(chunk) == self._at_once:
                yield list(chunk.values())
                chunk = {}
            chunk[row.key] = row
        if chunk:
            yield list(chunk.values())

    async def unchanged(self, rows: Sequence[Row]) -> set[int]:
        """Lines of the rows that would change nothing: the same value, or the deletion of what does not live."""
        found = await self.last(rows)
        return {row.line for row in rows if changes_nothing(row, found.get(row.key))}

    async def living(self, rows: Sequence[Row]) -> set[int]:
        """Lines of the rows whose keys live."""
        found = await self.last(rows)
        return {row.line for row in rows if _lives(found.get(row.key))}

    async def last(self, rows: Sequence[Row]) -> dict[str, StoredMessage | None]:
        """The last message of each key, None for none; a key of which nobody knew anything is left out."""
        from kvctl.jetstream.direct.per_subject import last_of_each

        binding = self.binding
        plain = {binding.subject(row.key): row.key for row in rows if is_plain(row.key)}
        found = {row.key: await last_literal(binding, row.key) for row in rows if not is_plain(row.key)}
        messages = await self._at_once_from(list(plain)) if self._sole else {}
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                left = [subject for subject in plain if subject not in messages]
                messages |= await last_of_each(binding.api, binding.stream, left, leader=True)
                return found | {plain[subject]: message for subject, message in messages.items()}
            except AWAY:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    async def _at_once_from(self, subjects: list[str]) -> dict[str, StoredMessage | None]:
        """The last messages in one request, in a tenth of the time; nothing where a mirror answered, or nobody.

        Messages say who answered. Where none of the keys need be there, one that is there is asked for, too.
        """
        from kvctl.jetstream.direct.multi_get import REQUEST_BYTES, pages
        from kvctl.jetstream.direct.page import MomentLost

        found: dict[str, StoredMessage | None] = dict.fromkeys(subjects)
        if len(subjects) < FEW or sum(map(len, subjects)) + 4 * len(subjects) > REQUEST_BYTES:
            return {}
        try:
            known = self._known or await self._first()
            if known is None:
                return found  # there is nothing at all
            request = DirectRequest(last_of=(*subjects, known.subject))
            async with aclosing(pages(self.binding.api, self.binding.stream, request)) as answers:
                async for page in answers:
                    if not page.messages or page.messages[0].stream != self.binding.stream:
                        self._known = None  # it may be gone
                        return {}
                    found |= {message.subject: message for message in page.messages}
                    self._known = min((known, *page.messages), key=lambda message: len(message.payload))
        except (NotUnderstood, TooManySubjects, MomentLost, PermissionDenied, *AWAY):
            return {}
        return {subject: found[subject] for subject in subjects}

    async def _first(self) -> StoredMessage | None:
        """The bucket's oldest message, from the leader."""
        subjects = self.binding.subject(">")
        return await from_leader(self.binding.api, self.binding.stream, seq=1, next_by_subj=subjects)


async def last_literal(binding: Binding, key: str) -> StoredMessage | None:
    """The last message of a key that a request would take for a wildcard, or cannot name."""
    from kvctl.kv.read.listing import entry_batches

    found = None
    async for batch in entry_batches(binding, [key], deleted=True, literal=True):
        entry = batch[-1]
        found = StoredMessage(
            binding.stream, binding.subject(key), entry.revision, entry.created_ns, entry.header, entry.value
        )
    return found


def changes_nothing(row: Row, last: StoredMessage | None) -> bool:
    """Whether the key, by its last message, has the row's value, or does not live where the row deletes it."""
    if row.operation is not Operation.PUT:
        return not _lives(last)
    return last is not None and _lives(last) and last.payload == row.value


def _lives(message: StoredMessage | None) -> bool:
    return message is not None and operation_of(message.header)[0] is Operation.PUT
