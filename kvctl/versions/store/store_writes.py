"""Writes of a store on JetStream: single messages where those are quicker, else batches that many tasks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from kvctl.errors import (
    ConditionsFailed,
    KvctlError,
    NoResponders,
    NoServer,
    OutcomeUnknown,
    ServerError,
    UsageError,
    WrongRevision,
)
from kvctl.jetstream.publish import Busy, PublishWindow, publish_soon
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import Operation
from kvctl.kv.transaction.transaction import Failure, Transaction
from kvctl.kv.write import conditional_write, outcome
from kvctl.kv.write import identity as identities
from kvctl.versions.fenced_writes import FencedWrites
from kvctl.versions.store.group_commit import (
    Failing,
    Grouping,
    Revisions,
    Wish,
)
from kvctl.versions.store.protocol import (
    ABSENT,
    EXISTS,
    Predicate,
    PredicateFailed,
)
from kvctl.versions.store.store_subjects import insisted, place_of, was_read

MARKER_TTL = timedelta(hours=1)
"""How long a traceless deletion leaves a trace.

Once its marker has expired, a server that is killed may bring the value back (nats-server issue 8505).
"""
MOST_AT_ONCE = 32 << 20
"""Bytes of one write: servers drop batches that they cannot take in fast enough."""
MARKERS = 8
"""Deletions of keys under a write that needs them absent, after which it fails."""


class BucketWriting:
    """One session's writes, by places."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._grouping = Grouping(self._carry_out)
        self._last = 0
        """The highest revision that single messages were acknowledged."""
        self._fence: tuple[str, int, bytes] = ("", 0, b"")
        """The header of the last fenced message, and what of."""

    async def write(self, wish: Wish) -> Revisions:
        """The revisions; see `Store.write`. Raises UsageError for what is too much for a batch."""
        if wish.size > MOST_AT_ONCE:
            size = f"{wish.size:,} bytes, {MOST_AT_ONCE:,} are the most"
            raise UsageError(f"What is to be written together is {size}", hint="Split it")
        if _is_fenced(wish) and await self.sole():
            return await self._publish(wish)
        return await self._grouping.write(wish)

    async def sole(self) -> bool:
        """Whether there is one replica: there, checked writes of the same keys may be in flight together."""
        info = self._bucket.binding.info or (await self._bucket.locate()).info
        return info is not None and info["config"].get("num_replicas", 1) == 1

    async def write_each(self, partition: bytes, values: Mapping[bytes, bytes]) -> None:
        """Write many values, thousands in flight, whatever is there. Raises as `Store.set_many`.

        After a cut they are sent again, so only for what nobody else gives another value.
        """
        binding, errors = self._bucket.binding, list[KvctlError]()

        def failed(_: object, error: KvctlError) -> None:
            errors.append(error)

        prefix = binding.write_prefix
        messages = ((None, (prefix + place_of(partition, key)).encode(), values[key], b"") for key in values)
        async with PublishWindow(binding.api.connection, lambda *_: None, failed, resend=True) as window:
            await window.send_all(messages, lambda: errors)
        for error in errors:
            if isinstance(error, outcome.OPEN):
                raise OutcomeUnknown(f"It is not known whether all keys were written: {error.message}")
            raise conditional_write.explained(error, binding) if isinstance(error, ServerError) else error

    async def write_each_fenced(
        self, partition: bytes, values: Mapping[bytes, bytes], fence: tuple[str, Predicate]
    ) -> None:
        """Write many values, each while a place is as it was read, where there is one replica. Raises the same."""
        revision = insisted(self._bucket.binding.stream, *fence)
        await FencedWrites(self._bucket, partition, values, (fence[0], revision)).run()

    def _fence_of(self, place: str, predicate: Predicate) -> bytes:
        """The header of a message on condition of another key."""
        binding = self._bucket.binding
        revision = insisted(binding.stream, place, predicate)
        if self._fence[:2] != (place, revision):
            self._fence = place, revision, conditional_write.fence(binding.subject(place), revision)
        return self._fence[2]

    async def _publish(self, wish: Wish) -> Revisions:
        """One value on condition of another key as it was read: one message, where a batch costs several syncs."""
        ((other, predicate),) = wish.conditions
        ((place, value),) = wish.changes.items()
        assert value is not None
        binding, identity = self._bucket.binding, identities.new()
        header = identities.stamped(self._fence_of(other, predicate), identity)
        revision = self._fence[1]
        before = max(revision, self._last, self._bucket.own.highest)
        try:
            made = await publish_soon(binding.api.connection, (binding.write_prefix + place).encode(), value, header)
        except (Busy, NoResponders, NoServer):  # nothing was stored
            made = await self._publish_patiently(place, value, other, revision)
        except WrongRevision:
            raise PredicateFailed("The condition does not hold") from None
        except outcome.OPEN as error:
            made = await outcome.resolve(outcome.Write(binding, place, identity, after=before), error) or before
        except ServerError as error:
            raise conditional_write.explained(error, binding) from None
        self._last = max(self._last, made)
        return {place: made}

    async def _publish_patiently(self, place: str, value: bytes, other: str, revision: int) -> int:
        try:
            return await self._bucket.put_while(place, value, other, revision)
        except WrongRevision:
            raise PredicateFailed("The condition does not hold") from None

    async def _carry_out(self, group: Sequence[Wish]) -> Revisions:
        """Several tasks' writes as one batch. Raises Failing, PredicateFailed, and what a commit raises."""
        if len(group) == 1 and _is_fenced(group[0]):
            return await self._publish(group[0])
        absent = {place: 0 for wish in group for place, predicate in wish.conditions if predicate == ABSENT}
        for _ in range(MARKERS):
            try:
                transaction = self._transaction(group, absent)
                revisions = await self._bucket.commit(transaction)
                return dict(zip((change.key for change in transaction.changes), revisions, strict=True))
            except ConditionsFailed as error:
                gone = {item.key: _last_of(item) for item in error.failures if item.key in absent and not _lives(item)}
                if len(gone) < len(error.failures) or not gone:
                    raise Failing({item.key for item in error.failures} - gone.keys()) from None
                absent |= gone
            except WrongRevision:
                break
        raise Failing(set())

    def _transaction(self, group: Sequence[Wish], absent: Mapping[str, int]) -> Transaction:
        """`absent` are keys that must not be there, with the revisions of markers that deletions left."""
        transaction = Transaction()
        for place, predicate in dict.fromkeys(asked for wish in group for asked in wish.conditions):
            if predicate == EXISTS:
                transaction.expect(place, exists=True)
            elif predicate == ABSENT:
                transaction.expect(place, revision=absent[place])
            else:
                transaction.expect(place, revision=insisted(self._bucket.binding.stream, place, predicate))
        lasting = {place for wish in group for place in wish.changes.keys() - wish.traceless}
        for place, value in {place: value for wish in group for place, value in wish.changes.items()}.items():
            if value is None:
                transaction.purge(place, ttl=None if place in lasting else MARKER_TTL)
            else:
                transaction.put(place, value)
        return transaction


def _is_fenced(wish: Wish) -> bool:
    """Whether it is one value on condition of another key as it was read."""
    if len(wish.conditions) != 1 or len(wish.changes) != 1:
        return False
    ((other, predicate),) = wish.conditions
    ((place, value),) = wish.changes.items()
    return value is not None and place != other and was_read(predicate)


def _lives(failure: Failure) -> bool:
    return failure.found is not None and failure.found.operation is Operation.PUT


def _last_of(failure: Failure) -> int:
    """The revision of what a failing condition found: of a marker that a deletion left, or 0 for nothing at all."""
    return failure.found.revision if failure.found else 0
