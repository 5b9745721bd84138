"""Store on JetStream: a key is a subject, its predicate the sequence of its last message.

Partition and key are a token each, so that neither two partitions nor two keys can meet. Reads are as new as the
leader: others may lag behind a write that succeeded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache

from kvctl.errors import (
    ConditionsFailed,
    KeyExists,
    KeyNotFound,
    KvctlError,
    NoResponders,
    NoServer,
    OutcomeUnknown,
    ServerError,
    WrongRevision,
)
from kvctl.jetstream import streams
from kvctl.jetstream.publish import Busy, PublishWindow, publish_soon
from kvctl.kv import writing
from kvctl.kv.bucket import Bucket
from kvctl.kv.entry import Entry, Operation
from kvctl.kv.ordered import token
from kvctl.kv.transaction import Failure, Transaction
from kvctl.versions import bucket_reading
from kvctl.versions.bucket_entries import BucketEntries
from kvctl.versions.grouping import Failing, Grouping, Wish, in_batches
from kvctl.versions.store import (
    ABSENT,
    EXISTS,
    Change,
    Condition,
    EntryNotFound,
    Found,
    Place,
    Predicate,
    PredicateFailed,
    StoreClosed,
    check_partition,
    check_place,
    check_value,
    check_write,
)

MARKER_TTL = timedelta(hours=1)
"""How long a deletion leaves a trace."""
MARKERS = 8
"""Deletions of keys under a write that needs them absent, after which it fails."""
HEADERS = 1024
"""Bytes that the headers of a message may come to: conditions on the longest names, and its place in a batch."""


class BucketStore:
    """The keys of a bucket whose stream takes atomic batches and ttls of messages, one revision a key."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._closed = False
        self._grouping = Grouping(self._carry_out)
        self._last = 0
        """The highest revision that single writes were acknowledged."""
        self._fence: tuple[str, int, bytes] = ("", 0, b"")
        """The header of the last fenced write, and what of."""

    @property
    def largest(self) -> int:
        """See `Store.largest`."""
        return self.bucket.binding.api.connection.max_payload - HEADERS

    # -- reading -------------------------------------------------------------------------------------------

    async def get(self, partition: bytes, key: bytes) -> Found:
        """See `Store.get`."""
        place = self._place(partition, key)
        entry = await self.bucket.last_entry(place, leader=True)
        if not _lives(entry):
            raise EntryNotFound("There is no such key")
        assert entry is not None
        return Found(entry.value, self.predicate(place, entry.revision))

    async def get_many(self, places: Sequence[Place], *, lasting: bool = False) -> list[Found | None]:
        """See `Store.get_many`."""
        names = [self._place(*place) for place in places]
        read = bucket_reading.lasting if lasting else bucket_reading.latest
        stored = await read(self.bucket, names)
        return [
            None if (one := stored.get(name)) is None else Found(one[1], self.predicate(name, one[0])) for name in names
        ]

    def scan(self, partition: bytes, start: bytes = b"", *, batch: int = 0, values: bool = True) -> BucketEntries:
        """See `Store.scan`."""
        self.check_open()
        check_partition(partition)
        return BucketEntries(self, _head(bytes(partition)), bytes(partition), bytes(start), batch, values)

    # -- writing -------------------------------------------------------------------------------------------

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        """See `Store.set`."""
        await self.bucket.put(self._place(partition, key), check_value(value, self.largest))

    async def set_many(
        self, partition: bytes, values: Mapping[bytes, bytes], *, fence: Condition | None = None
    ) -> None:
        """See `Store.set_many`: a window of messages, but with a fence on several replicas a batch after the other."""
        self.check_open()
        check_partition(partition)
        self.bucket._check_writable(None)
        if not values:
            return
        if fence is None or await self._sole():
            await self._set_each(partition, values, b"" if fence is None else self._fence_of(*self._wanted(fence)))
            return
        changes = [Change(partition, *item) for item in values.items()]
        for some in in_batches(changes):
            await self.write([fence], some)

    async def _set_each(self, partition: bytes, values: Mapping[bytes, bytes], header: bytes) -> None:
        errors: list[KvctlError] = []
        binding, largest = self.bucket.binding, self.largest

        def failed(_: object, error: KvctlError) -> None:
            errors.append(error)

        def messages() -> Iterator[tuple[object, bytes, bytes, bytes]]:
            head = (binding.write_prefix + _head(bytes(partition))).encode()
            for key, value in values.items():
                check_place(partition, key)
                yield None, head + token(key), check_value(value, largest), header

        async with PublishWindow(binding.api.connection, lambda *_: None, failed, resend=True) as window:
            await window.send_all(messages(), lambda: errors)
        for error in errors:
            if isinstance(error, writing.OPEN):
                raise OutcomeUnknown(f"It is not known whether all keys were written: {error.message}")
            if not isinstance(error, WrongRevision):
                raise error
        if errors:
            raise PredicateFailed("The condition does not hold")

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> None:
        """See `Store.set_if`."""
        place, value = self._place(partition, key), check_value(value, self.largest)
        try:
            if predicate == ABSENT:
                await self.bucket.create(place, value)
            elif predicate == EXISTS:
                await self.bucket.commit(Transaction().expect(place, exists=True).put(place, value))
            else:
                await self.bucket.update(place, value, self._revision(place, predicate))
        except (KeyExists, WrongRevision, ConditionsFailed):
            raise PredicateFailed("The condition does not hold") from None

    async def delete(self, partition: bytes, key: bytes) -> None:
        """See `Store.delete`."""
        with suppress(KeyNotFound):
            await self.bucket.purge(self._place(partition, key), ttl=MARKER_TTL)

    async def clear(self, partition: bytes) -> None:
        """See `Store.clear`."""
        self.check_open()
        check_partition(partition)
        self.bucket._check_writable(None)
        binding = self.bucket.binding
        await streams.purge(binding.api, binding.stream, filter=binding.subject(f"{_head(bytes(partition))}*"))

    async def write(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> None:
        """See `Store.write`."""
        self.check_open()
        self.bucket._check_writable(None)
        check_write(conditions, changes, self.largest)
        wish = Wish(
            [self._wanted(item) for item in conditions],
            {_name(item.partition, item.key): None if item.value is None else bytes(item.value) for item in changes},
        )
        if _is_fenced(wish) and await self._sole():
            await self._publish(wish)
        else:
            await self._grouping.write(wish)

    async def close(self) -> None:
        """See `Store.close`."""
        self._closed = True

    # -- inside --------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises StoreClosed."""
        if self._closed:
            raise StoreClosed("The store was closed")

    def predicate(self, place: str, revision: int) -> Predicate:
        """That the last revision of a key, partition and key as tokens, is this one."""
        return Predicate((self.bucket.binding.stream, place, revision))

    def _place(self, partition: bytes, key: bytes) -> str:
        self.check_open()
        check_place(partition, key)
        return _name(partition, key)

    def _wanted(self, condition: Condition) -> tuple[str, Predicate]:
        """The condition of a key. Raises PredicateFailed for one that was read of another key or store."""
        place = _name(condition.partition, condition.key)
        if _was_read(condition.predicate):
            self._revision(place, condition.predicate)
        return place, condition.predicate

    def _revision(self, place: str, predicate: Predicate) -> int:
        """The revision that a predicate insists on. Raises PredicateFailed for one of another key or store."""
        held = predicate.token
        if isinstance(held, tuple) and held[:2] == (self.bucket.binding.stream, place):
            return int(held[2])
        raise PredicateFailed("The condition is of another key or store")

    def _fence_of(self, place: str, predicate: Predicate) -> bytes:
        """The header of a write on condition of another key."""
        revision = self._revision(place, predicate)
        if self._fence[:2] != (place, revision):
            self._fence = place, revision, writing.fence(self.bucket.binding.subject(place), revision)
        return self._fence[2]

    async def _sole(self) -> bool:
        """Whether there is one replica: there, checked writes of the same keys may be in flight together."""
        info = self.bucket.binding.info or (await self.bucket.locate()).info
        return info is not None and info["config"].get("num_replicas", 1) == 1

    async def _carry_out(self, group: Sequence[Wish]) -> None:
        """Several tasks' writes as one batch. Raises Failing, PredicateFailed, and what a commit raises."""
        if len(group) == 1 and _is_fenced(group[0]):
            return await self._publish(group[0])
        gone: dict[str, int] = {}
        for _ in range(MARKERS):
            try:
                await self.bucket.commit(self._transaction(group, gone))
                return None
            except ConditionsFailed as error:
                markers = {item.key: item.found.revision for item in error.failures if _is_marker(item)}
                if len(markers) < len(error.failures) or not markers:
                    raise Failing({item.key for item in error.failures} - markers.keys()) from None
                gone |= markers
            except WrongRevision:
                break
        raise Failing(set())

    def _transaction(self, group: Sequence[Wish], gone: Mapping[str, int]) -> Transaction:
        """`gone` are the revisions of markers that deletions left: their keys are absent."""
        transaction = Transaction()
        for place, predicate in dict.fromkeys(asked for wish in group for asked in wish.conditions):
            if predicate == EXISTS:
                transaction.expect(place, exists=True)
            else:
                revision = gone.get(place, 0) if predicate == ABSENT else self._revision(place, predicate)
                transaction.expect(place, revision=revision)
        for place, value in {place: value for wish in group for place, value in wish.changes.items()}.items():
            if value is None:
                transaction.purge(place, ttl=MARKER_TTL)
            else:
                transaction.put(place, value)
        return transaction

    async def _publish(self, wish: Wish) -> None:
        """One value on condition of another key as it was read: one message, where a batch costs several syncs."""
        ((other, predicate),) = wish.conditions
        ((place, value),) = wish.changes.items()
        assert value is not None
        binding, revision = self.bucket.binding, self._revision(other, predicate)
        before = max(revision, self._last, self.bucket.own.highest)
        header = self._fence_of(other, predicate)
        try:
            made = await publish_soon(binding.api.connection, (binding.write_prefix + place).encode(), value, header)
            self._last = max(self._last, made)
        except (Busy, NoResponders, NoServer):  # nothing was stored
            await self._publish_patiently(place, value, other, revision)
        except WrongRevision:
            raise PredicateFailed("The condition does not hold") from None
        except writing.OPEN as error:
            await writing.resolve(binding, place, value, header, None, before, error)
        except ServerError as error:
            raise writing.explained(error, binding) from None

    async def _publish_patiently(self, place: str, value: bytes, other: str, revision: int) -> None:
        try:
            await self.bucket.put_while(place, value, other, revision)
        except WrongRevision:
            raise PredicateFailed("The condition does not hold") from None


@lru_cache(maxsize=1024)
def _head(partition: bytes) -> str:
    """What the keys of a partition begin with."""
    return f"p{token(partition).decode()}."


def _name(partition: bytes, key: bytes) -> str:
    return _head(bytes(partition)) + token(key).decode()


def _is_fenced(wish: Wish) -> bool:
    """Whether it is one value on condition of another key as it was read."""
    if len(wish.conditions) != 1 or len(wish.changes) != 1:
        return False
    ((other, predicate),) = wish.conditions
    ((place, value),) = wish.changes.items()
    return value is not None and place != other and _was_read(predicate)


def revision_of(predicate: Predicate) -> int | None:
    """The revision that a predicate stands for which a store on JetStream gave out; None for any other."""
    held = predicate.token
    return int(held[2]) if isinstance(held, tuple) else None


def _was_read(predicate: Predicate) -> bool:
    return predicate is not ABSENT and predicate is not EXISTS and predicate not in (ABSENT, EXISTS)


def _is_marker(failure: Failure) -> bool:
    """Whether a key is in the way that was deleted."""
    return failure.expected == 0 and failure.found is not None and not _lives(failure.found)


def _lives(entry: Entry | None) -> bool:
    return entry is not None and entry.operation is Operation.PUT
