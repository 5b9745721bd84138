"""Current state of the keys of a load, read from the leader in chunks that fit in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing

from kvctl.errors import Away, NoResponders, PermissionDenied
from kvctl.jetstream import multi_get, streams
from kvctl.jetstream.direct_get import CannotAnswerMany, DirectRequest, StoredMessage, from_leader
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.kv.bulk.rows import Mode, Row
from kvctl.kv.entry import Operation, operation_of
from kvctl.kv.names import is_plain
from kvctl.kv.read.listing import entry_batches, history_batches
from kvctl.kv.resolve import Binding

LEADER_DEADLINE_S = 15.0
"""Seconds to wait for an unavailable server."""
KEYS_PER_REQUEST = 1000
SINGLE_READ_KEYS = 8
"""Number of keys that are as fast to read one by one."""
MAX_BYTES = 8 << 20
"""Maximum size of the answers, estimated by the bucket's average."""
ARRIVAL_LOOKS, ARRIVAL_PAUSE_S = 10, 0.1


class Current:
    """Reader that compares rows with the stored state."""

    def __init__(self, binding: Binding, info: StreamInfo) -> None:
        self.binding = binding
        self.config = config = info["config"]
        state = info["state"]
        self.last_revision = int(state["last_seq"])
        """Last revision when the info was read."""
        self.first_revision = int(state["first_seq"])
        """First revision when the info was read."""
        self._sole = bool(config.get("allow_direct")) and config.get("num_replicas", 1) == 1
        """True if a direct get answered by the stream itself is as good as asking its leader."""
        self._known: StoredMessage | None = None
        """A small message that exists, or did when it was read."""
        average = state["bytes"] // max(state["messages"], 1) + 1
        self._at_once = max(1, min(KEYS_PER_REQUEST, MAX_BYTES // average))

    def chunks(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        """Split the rows, in order, into chunks for one request each, with no key twice in a chunk."""
        chunk: dict[str, Row] = {}
        for row in rows:
            if row.key in chunk or len(chunk) == self._at_once:
                yield list(chunk.values())
                chunk = {}
            chunk[row.key] = row
        if chunk:
            yield list(chunk.values())

    async def unchanged(self, rows: Sequence[Row]) -> set[int]:
        """Return the lines of rows that change nothing: an equal value, or the deletion of a key not live."""
        found = await self.last(rows)
        return {row.line for row in rows if changes_nothing(row, found.get(row.key))}

    async def living(self, rows: Sequence[Row]) -> set[int]:
        """Return the lines of rows whose keys live."""
        found = await self.last(rows)
        return {row.line for row in rows if lives(found.get(row.key))}

    async def last(self, rows: Sequence[Row]) -> dict[str, StoredMessage | None]:
        """Return the last message of each key, None for none; keys without an answer are omitted."""
        binding = self.binding
        plain = {binding.subject(row.key): row.key for row in rows if is_plain(row.key)}
        found: dict[str, StoredMessage | None] = {}
        for key in (row.key for row in rows if not is_plain(row.key)):
            found[key] = next(reversed(await _literal(binding, key)), None)
        messages = await self._at_once_from(list(plain)) if self._sole else {}
        deadline = time.monotonic() + LEADER_DEADLINE_S
        while True:
            try:
                left = [subject for subject in plain if subject not in messages]
                messages |= await multi_get.last_of_each(binding.api, binding.stream, left, leader=True)
                return found | {plain[subject]: message for subject, message in messages.items()}
            except Away:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    async def earlier(
        self,
        last: Mapping[str, StoredMessage],
        after: Mapping[str, int],
        enough: Callable[[str, StoredMessage], bool] = lambda _, __: False,
    ) -> dict[str, list[StoredMessage]]:
        """Return each key's messages above a revision and below its last one, oldest first, up to one that is `enough`.

        All keys are asked at once, for one message each: as many round trips as a key has messages, at most.
        """
        binding = self.binding
        found = {key: [] if is_plain(key) else await _literal(binding, key, after[key] + 1) for key in last}
        found = {key: [m for m in messages if m.sequence < last[key].sequence] for key, messages in found.items()}
        starts = {key: after[key] + 1 for key in last if is_plain(key)}
        while starts:
            subjects = {binding.subject(key): key for key in starts}
            asked = {subject: starts[key] for subject, key in subjects.items()}
            answers = await multi_get.next_of_each(binding.api, binding.stream, asked)
            if len(answers) < len(asked):
                raise NoResponders("The stream has no leader")
            starts = {}
            for subject, message in answers.items():
                key = subjects[subject]
                if message is not None and message.sequence < last[key].sequence:
                    found[key].append(message)
                    if not enough(key, message):
                        starts[key] = message.sequence + 1
        return found

    async def _at_once_from(self, subjects: list[str]) -> dict[str, StoredMessage | None]:
        """Return the last messages by one request, ten times faster; nothing if a mirror answered, or nobody.

        Messages name the stream that answered. Where all keys may be missing, a key that exists is requested, too.
        """
        found: dict[str, StoredMessage | None] = dict.fromkeys(subjects)
        if len(subjects) < SINGLE_READ_KEYS or sum(map(len, subjects)) + 4 * len(subjects) > multi_get.REQUEST_BYTES:
            return {}
        try:
            known = self._known or await self._first()
            if known is None:
                return found  # the bucket is empty
            request = DirectRequest(last_of=(*subjects, known.subject))
            async with aclosing(multi_get.pages(self.binding.api, self.binding.stream, request)) as answers:
                async for page in answers:
                    if not page.messages or page.messages[0].stream != self.binding.stream:
                        self._known = None  # it may have been deleted
                        return {}
                    found |= {message.subject: message for message in page.messages}
                    self._known = min((known, *page.messages), key=lambda message: len(message.payload))
        except (CannotAnswerMany, PermissionDenied, Away):
            return {}
        return {subject: found[subject] for subject in subjects}

    async def _first(self) -> StoredMessage | None:
        """Return the bucket's oldest message, from the leader."""
        subjects = self.binding.subject(">")
        return await from_leader(self.binding.api, self.binding.stream, seq=1, next_by_subj=subjects)


async def _literal(binding: Binding, key: str, start: int | None = None) -> list[StoredMessage]:
    """Return the last message, or all from a revision on, of a key that a request cannot name without wildcards."""
    if start is None:
        found = entry_batches(binding, [key], deleted=True, literal=True)
    else:
        found = history_batches(binding, [key], start=start, literal=True)
    subject = binding.subject(key)
    async with aclosing(found) as batches:
        entries = [entry async for batch in batches for entry in batch]
    return [StoredMessage(binding.stream, subject, e.revision, e.created_ns, e.header, e.value) for e in entries]


async def all_arrived(binding: Binding, looks: int = ARRIVAL_LOOKS, *, quiet: int = 1) -> None:
    """Wait until the server has stored the last messages of a killed process.

    It returns when the stream did not grow for `quiet` intervals of 0.1 s, and after `looks` intervals if others keep
    writing.
    """
    before, same = -1, 0
    for _ in range(looks):
        last = await streams.last_sequence(binding.api, binding.stream)
        same = same + 1 if last == before else 0
        if same == quiet:
            return
        before = last
        await asyncio.sleep(ARRIVAL_PAUSE_S)


def needed(mode: Mode, row: Row, last: StoredMessage | None) -> bool:
    """Return True if a load writes the row, given the last message of its key."""
    if mode is Mode.CREATE_ONLY:
        return not lives(last)
    return mode is Mode.PUT or not changes_nothing(row, last)


def changes_nothing(row: Row, last: StoredMessage | None) -> bool:
    """Return True if the key already has the row's value, or is not live and the row deletes it."""
    if row.operation is not Operation.PUT:
        return not lives(last)
    return last is not None and lives(last) and last.payload == row.value


def lives(message: StoredMessage | None) -> bool:
    """Return True if the last message of a key is a value."""
    return message is not None and operation_of(message.header)[0] is Operation.PUT
