"""Writes of a store on JetStream: single messages where those are faster, else batches shared by many tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from kvctl.errors import ConditionsFailed, NoResponders, NoServer, ServerError, Unanswered, UsageError, WrongRevision
from kvctl.jetstream.publish import Busy, publish_soon
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import Operation
from kvctl.kv.transaction.transaction import Failure, Transaction
from kvctl.kv.write import conditional_write, outcome
from kvctl.kv.write import identity as identities
from kvctl.versions.store.group_commit import GroupCommit, PendingWrite, Revisions, UnmetConditions
from kvctl.versions.store.protocol import ABSENT, EXISTS, Predicate, PredicateFailed
from kvctl.versions.store.store_subjects import expected_revision, is_read_token

MARKER_TTL = timedelta(hours=1)
"""Time to live of the marker of a traceless deletion.

Once its marker has expired, a server that is killed may bring the value back (nats-server issue 8505).
"""
MOST_AT_ONCE = 32 << 20
"""Maximum bytes of one write: servers drop batches that they cannot accept fast enough."""
MARKERS = 8
"""Retries of a write that requires keys absent, each after concurrent deletions left new markers."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Place as it was read, and the header of a message conditional on it."""

    place: str
    predicate: Predicate
    revision: int
    header: bytes
    sole: bool
    """True if the stream has one replica."""


class BucketWriting:
    """One session's writes, by subject token."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._group_commit = GroupCommit(self._write_batch)
        self._last = 0
        """Highest revision acknowledged for single messages."""
        self._fence: Fence | None = None
        """Last one made."""

    async def write(self, pending: PendingWrite) -> Revisions:
        """Write and return the revisions; see `Store.write`. Raises UsageError if it is too large for a batch."""
        if pending.size > MOST_AT_ONCE:
            size = f"{pending.size:,} bytes; the maximum is {MOST_AT_ONCE:,}"
            raise UsageError(f"An atomic write has {size}", hint="Split it")
        return await self._group_commit.write(pending)

    async def put_while(self, fence: Fence, place: str, value: bytes) -> int:
        """Write one value while the fence holds, and return its revision; see `Store.put_while`."""
        if fence.sole:
            return await self._publish(fence, place, value)
        return (await self._group_commit.write(PendingWrite([(fence.place, fence.predicate)], {place: value})))[place]

    async def fence(self, place: str, predicate: Predicate) -> Fence:
        """Return the fence that a place is as read."""
        known = self._fence
        if known is None or (known.place, known.predicate) != (place, predicate):
            binding = self._bucket.binding
            revision = expected_revision(binding.stream, place, predicate)
            header = conditional_write.fence(binding.subject(place), revision)
            self._fence = known = Fence(place, predicate, revision, header, await self.sole())
        return known

    async def sole(self) -> bool:
        """Return whether the stream has one replica: it allows concurrent conditional writes of the same keys."""
        info = self._bucket.binding.info or (await self._bucket.locate()).info
        return info is not None and info["config"].get("num_replicas", 1) == 1

    async def _publish(self, fence: Fence, place: str, value: bytes) -> int:
        """Write one value conditional on another key as read: one message, where a batch costs several syncs."""
        binding, identity = self._bucket.binding, identities.new()
        before = max(fence.revision, self._last, self._bucket.own.highest)
        subject, header = (binding.write_prefix + place).encode(), identities.stamped(fence.header, identity)
        try:
            made = await publish_soon(binding.api.connection, subject, value, header)
        except (Busy, NoResponders, NoServer):  # nothing was stored
            made = await self._publish_patiently(place, value, fence.place, fence.revision)
        except WrongRevision:
            raise PredicateFailed("The condition does not hold") from None
        except Unanswered as error:
            made = await outcome.resolve(outcome.Write(binding, place, identity, after=before), error) or before
        except ServerError as error:
            raise conditional_write.explained(error, binding) from None
        self._last = max(self._last, made)
        return made

    async def _publish_patiently(self, place: str, value: bytes, other: str, revision: int) -> int:
        try:
            return await self._bucket.put_while(place, value, other, revision)
        except WrongRevision:
            raise PredicateFailed("The condition does not hold") from None

    async def _write_batch(self, group: Sequence[PendingWrite]) -> Revisions:
        """Write several tasks' changes in one batch. Raises UnmetConditions, PredicateFailed, and as a commit."""
        if len(group) == 1 and _is_fenced(group[0]):
            (condition,), ((place, value),) = group[0].conditions, group[0].changes.items()
            return {place: await self._publish(await self.fence(*condition), place, value or b"")}
        absent = {place: 0 for pending in group for place, predicate in pending.conditions if predicate == ABSENT}
        for _ in range(MARKERS):
            try:
                transaction = self._transaction(group, absent)
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

    def _transaction(self, group: Sequence[PendingWrite], absent: Mapping[str, int]) -> Transaction:
        """Create the transaction; `absent` are keys that must not exist, with the revisions of their delete markers."""
        transaction = Transaction()
        for place, predicate in dict.fromkeys(asked for pending in group for asked in pending.conditions):
            if predicate == EXISTS:
                transaction.expect(place, exists=True)
            elif predicate == ABSENT:
                transaction.expect(place, revision=absent[place])
            else:
                transaction.expect(place, revision=expected_revision(self._bucket.binding.stream, place, predicate))
        lasting = {place for pending in group for place in pending.changes.keys() - pending.traceless}
        for place, value in {place: value for pending in group for place, value in pending.changes.items()}.items():
            if value is None:
                transaction.purge(place, ttl=None if place in lasting else MARKER_TTL)
            else:
                transaction.put(place, value)
        return transaction


def _is_fenced(pending: PendingWrite) -> bool:
    """Return whether it is one value conditional on another key as read."""
    if len(pending.conditions) != 1 or len(pending.changes) != 1:
        return False
    ((other, predicate),) = pending.conditions
    ((place, value),) = pending.changes.items()
    return value is not None and place != other and is_read_token(predicate)


def _lives(failure: Failure) -> bool:
    return failure.found is not None and failure.found.operation is Operation.PUT


def _last_of(failure: Failure) -> int:
    """Return the revision that a failing condition found: of a delete marker, or 0 for none."""
    return failure.found.revision if failure.found else 0
