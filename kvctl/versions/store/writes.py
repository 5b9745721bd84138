"""Writes of a store on JetStream: single messages where those are faster, shared batches, and bulk writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, Self

from kvctl.errors import (
    Away,
    ConditionsFailed,
    ConnectionLost,
    KeyExists,
    KvctlError,
    NoResponders,
    NoServer,
    OutcomeUnknown,
    PermissionDenied,
    ServerError,
    Unanswered,
    UnreachableError,
    UsageError,
    WrongRevision,
)
from kvctl.jetstream.publish import Busy, PublishWindow, publish_soon
from kvctl.jetstream.request_window import WINDOW
from kvctl.kv import conditional_write
from kvctl.kv import identity as identities
from kvctl.kv.bucket import Bucket
from kvctl.kv.bulk.leader_state import LEADER_DEADLINE_S, all_arrived
from kvctl.kv.entry import Operation
from kvctl.kv.resolve import Binding
from kvctl.kv.transaction.group_commit import GroupCommit, GroupedWrite
from kvctl.kv.transaction.transaction import Failure, Transaction
from kvctl.tokens import token
from kvctl.versions.store.protocol import ABSENT, MissingArgument, PredicateFailed, check_size

MARKER_TTL = timedelta(hours=1)
"""Time to live of the marker of a traceless deletion.

Once its marker has expired, a server that is killed may bring the value back (nats-server issue 8505).
"""
MAX_WRITE_BYTES = 32 << 20
"""Maximum bytes of one write: servers drop batches that they cannot accept fast enough."""
MARKER_ATTEMPTS = 8
"""Retries of a write that requires keys absent, each after concurrent deletions left new markers."""
STREAM_FULL = 10077
RESEND_PAUSE_S = 0.1

Revisions = Mapping[str, int]
"""Revisions of the changed keys."""
KeyValue = tuple[bytes, bytes]


class PendingWrite(GroupedWrite[Revisions]):
    """One task's atomic write. Keys are partition and key as subject tokens."""

    def __init__(
        self,
        conditions: Sequence[tuple[str, int]],
        changes: Mapping[str, bytes | None],
        traceless: Set[str] = frozenset(),
    ) -> None:
        super().__init__(len(changes) + len(conditions), sum(len(value) for value in changes.values() if value))
        self.conditions = conditions
        self.changes = changes
        """A value, or None to delete the key."""
        self.traceless = traceless
        """Keys whose deletion may be undone after a while."""


class UnmetConditions(KvctlError):
    """Conditions of a batch do not hold; nothing was written."""

    def __init__(self, keys: Set[str]) -> None:
        super().__init__("A condition does not hold")
        self.keys = keys
        """Keys of the failing conditions; empty if not known."""


class Fence(NamedTuple):
    """Place as it was read, and the header of a message conditional on it."""

    place: str
    revision: int
    header: bytes
    sole: bool
    """True if the stream has one replica."""


class BucketWriting:
    """One session's writes, by subject token."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._group_commit = GroupCommit(self._write_batch, admission)
        self._last = 0
        """Highest revision acknowledged for single messages."""
        self._fence: Fence | None = None
        """Last one made."""

    async def write(self, pending: PendingWrite) -> Revisions:
        """Write and return the revisions; see `Store.write`. Raises UsageError if it is too large for a batch."""
        if pending.size > MAX_WRITE_BYTES:
            size = f"{pending.size:,} bytes; the maximum is {MAX_WRITE_BYTES:,}"
            raise UsageError(f"An atomic write has {size}", hint="Split it")
        if (single := _single(pending)) is not None and single[2] in (None, single[0]):
            return {single[0]: await self._alone(*single)}
        return await self._grouped(pending)

    async def put_while(self, fence: Fence, place: str, value: bytes) -> int:
        """Write one value while the fence holds, and return its revision; see `Store.put_while`."""
        if fence.sole:
            return await self._publish(fence, place, value)
        return (await self._grouped(PendingWrite([(fence.place, fence.revision)], {place: value})))[place]

    async def _grouped(self, pending: PendingWrite) -> Revisions:
        self._group_commit.add(pending)
        return await pending.done

    async def fence(self, place: str, revision: int) -> Fence:
        """Return the fence that a place is as read."""
        known = self._fence
        if known is None or (known.place, known.revision) != (place, revision):
            header = conditional_write.fence(self._bucket.binding.subject(place), revision)
            info = self._bucket.binding.info or (await self._bucket.locate()).info
            sole = info is not None and info["config"].get("num_replicas", 1) == 1
            self._fence = known = Fence(place, revision, header, sole)
        return known

    async def _publish(self, fence: Fence, place: str, value: bytes) -> int:
        """Write one value conditional on another key as read: one message, where a batch costs several syncs."""
        binding, identity = self._bucket.binding, identities.new()
        before = max(fence.revision, self._last, self._bucket.own.highest)
        subject, header = (binding.write_prefix + place).encode(), identities.stamped(fence.header, identity)
        try:
            made = await publish_soon(binding.api.connection, subject, value, header)
        except (Busy, NoResponders, NoServer):  # nothing was stored
            made = await self._alone(place, value, fence.place, fence.revision)
        except WrongRevision:
            raise PredicateFailed from None
        except Unanswered as error:
            write = conditional_write.SentWrite(binding, place, identity, after=before)
            made = await conditional_write.resolve(write, error) or before
        except ServerError as error:
            raise conditional_write.explained(error, binding) from None
        self._last = max(self._last, made)
        return made

    async def _alone(self, place: str, value: bytes, other: str | None, revision: int) -> int:
        """Write one value in one message, patiently, conditional on a place as read, if any; return its revision."""
        try:
            if other is None:
                return await self._bucket.put(place, value)
            if other != place:
                return await self._bucket.put_while(place, value, other, revision)
            if revision == ABSENT:
                return await self._bucket.create(place, value)
            return await self._bucket.update(place, value, revision)
        except (KeyExists, WrongRevision):
            raise PredicateFailed from None

    async def _write_batch(self, group: Sequence[PendingWrite]) -> None:
        """Write several tasks' changes in one batch; fail those whose conditions do not hold, and retry the others."""
        try:
            revisions = await self._batch(group)
        except UnmetConditions as error:
            lost = [one for one in group if not error.keys or any(key in error.keys for key, _ in one.conditions)]
            for one in lost or group:
                one.fail(PredicateFailed())
            if others := [one for one in group if not one.done.done()]:
                await self._write_batch(others)
        else:
            for one in group:
                one.succeed(revisions)

    async def _batch(self, group: Sequence[PendingWrite]) -> Revisions:
        """Write a batch. Raises UnmetConditions, PredicateFailed, and as a commit."""
        if len(group) == 1 and (single := _single(group[0])) is not None:
            place, value, other, revision = single
            assert other is not None  # `write` does those without
            return {place: await self._publish(await self.fence(other, revision), place, value)}
        absent = {place: 0 for pending in group for place, revision in pending.conditions if revision == ABSENT}
        for _ in range(MARKER_ATTEMPTS):
            try:
                transaction = _transaction(group, absent)
                revisions = await self._bucket.commit(transaction)
                return dict(zip((change.key for change in transaction.changes), revisions, strict=True))
            except ConditionsFailed as error:
                gone = {item.key: _last_of(item) for item in error.failures if item.key in absent and not _lives(item)}
                if len(gone) < len(error.failures) or not gone:
                    raise UnmetConditions({item.key for item in error.failures} - gone.keys()) from None
                absent |= gone
            except WrongRevision:
                break
        raise UnmetConditions(set())


def admission() -> Callable[[PendingWrite], bool]:
    """Return a function that adds independent writes to a batch.

    A write depends on others if it changes or checks their keys, or checks the same keys differently. Equal changes of
    a key that nobody checks are made once for all of them.
    """
    checked: dict[str, int] = {}
    changed: dict[str, bytes | None] = {}

    def admit(one: PendingWrite) -> bool:
        if any(key in checked or changed.get(key, value) != value for key, value in one.changes.items()):
            return False
        if any(key in changed or checked.get(key, revision) != revision for key, revision in one.conditions):
            return False
        checked.update(one.conditions)
        changed.update(one.changes)
        return True

    return admit


def _transaction(group: Sequence[PendingWrite], absent: Mapping[str, int]) -> Transaction:
    """Create the transaction; `absent` are keys that must not exist, with the revisions of their delete markers."""
    transaction = Transaction()
    for place, revision in dict.fromkeys(asked for pending in group for asked in pending.conditions):
        transaction.expect(place, revision=absent[place] if revision == ABSENT else revision)
    lasting = {place for pending in group for place in pending.changes.keys() - pending.traceless}
    for place, value in {place: value for pending in group for place, value in pending.changes.items()}.items():
        if value is None:
            transaction.purge(place, ttl=None if place in lasting else MARKER_TTL)
        else:
            transaction.put(place, value)
    return transaction


def _single(pending: PendingWrite) -> tuple[str, bytes, str | None, int] | None:
    """Return place and value of a write that one message can do, and the place and revision of its condition, if any.

    The condition that another key is absent takes a batch: the revision of a marker there has to be found.
    """
    ((place, value), *others) = pending.changes.items()
    if others or value is None or len(pending.conditions) > 1:
        return None
    other, revision = next(iter(pending.conditions), (None, ABSENT))
    return None if revision == ABSENT and other not in (None, place) else (place, value, other, revision)


def _lives(failure: Failure) -> bool:
    return failure.found is not None and failure.found.operation is Operation.PUT


def _last_of(failure: Failure) -> int:
    """Return the revision that a failing condition found: of a delete marker, or 0 for none."""
    return failure.found.revision if failure.found else 0


class BulkWrites:
    """Writes any number of keys of a partition, thousands in flight, over lost connections and changes of leader.

    Nobody else writes these keys with other values. So a write without an answer is simply sent again. Only its order
    to a later write of the same key matters: that one is sent when all before it are stored. See `StoreFilling`.
    """

    def __init__(self, binding: Binding, head: str, largest: int) -> None:
        self._binding = binding
        self._head = (binding.write_prefix + head).encode()
        self._largest = largest
        self._window = PublishWindow(self._binding.api.connection, lambda *_: None, self._failed)
        self._recent: set[bytes] = set()
        """Keys of the last writes, together with `_earlier` at least as many as can be in flight."""
        self._earlier: set[bytes] = set()
        self._left: list[KeyValue] = []
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

    async def _send(self, items: Iterator[KeyValue]) -> None:
        messages = self._messages(items)
        while True:
            await self._window.send_all(messages, self._in_trouble)
            if not self._in_trouble():
                return
            await self._window.finish()
            await self._settle()

    def _messages(self, items: Iterable[KeyValue]) -> Iterator[tuple[KeyValue, bytes, bytes, bytes]]:
        head = self._head
        for item in items:
            yield item, head + token(item[0]), item[1], b""

    def _in_trouble(self) -> object:
        return self._left or self._error

    def _failed(self, item: KeyValue, error: KvctlError) -> None:
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
                await asyncio.sleep(RESEND_PAUSE_S)
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


@contextmanager
def map_store_errors(binding: Binding) -> Iterator[None]:
    """Map errors of a write to messages and hints for users of a repository, to whom subjects mean nothing."""
    try:
        yield
    except OutcomeUnknown as error:
        cause = error.message.partition(": ")[2] or "no answer"
        raise OutcomeUnknown(
            f"Could not confirm that the write to repository `{binding.bucket}` was stored: {cause}",
            hint="`kvctl repo log` and `kvctl repo status` show the current state",
        ) from None
    except PermissionDenied as error:
        if error.subject is not None and error.subject.startswith(binding.write_prefix):
            error.hint = f"Ask for permission to publish to `{binding.write_prefix}>`: its subjects vary"
        raise
    except ServerError as error:
        if error.err_code == STREAM_FULL:
            edit = f"kvctl stream edit {binding.stream} --set max_bytes=BYTES --force foreign-kind"
            error.hint = f"The repository is full: `{edit}` raises the limit; `kvctl repo gc` needs free space, too"
        raise
