"""A bucket: ADR-8's operations under ADR-8's names."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from kvctl.errors import (
    BucketNotFound,
    JetStreamDisabled,
    KeyExists,
    KeyNotFound,
    KvctlError,
    NoResponders,
    PermissionDenied,
    RevisionNotFound,
    StreamNotFound,
    UnreachableError,
    UsageError,
    WrongRevision,
)
from kvctl.jetstream import streams
from kvctl.jetstream.direct import direct_get
from kvctl.jetstream.direct.direct_get import DirectRequest
from kvctl.kv.entry import Entry, Operation
from kvctl.kv.handle import Handle
from kvctl.kv.names import check_key, check_keys, check_literal
from kvctl.kv.stream_kind import renaming
from kvctl.units import format_time

if TYPE_CHECKING:
    from kvctl.kv.config import BucketStatus
    from kvctl.kv.lease import Lease
    from kvctl.kv.point_in_time.as_of import Past
    from kvctl.kv.point_in_time.moment import Moment
    from kvctl.kv.read.watch import Watcher
    from kvctl.kv.transaction.transaction import Transaction
    from kvctl.kv.write.bulk_put import PutSummary


class Bucket(Handle):
    """A handle on a bucket, mirror or aggregate. Making one asks nothing: what does not exist is found when it is used.

    `stream` and `prefix` (ending in a dot) are for buckets imported under other subjects than ADR-8's. Reads never
    show less than this handle has written.
    """

    # -- reading -----------------------------------------------------------------------------------------

    async def get(self, key: str, *, revision: int | None = None, leader: bool = False) -> Entry:
        """The key's value, from the nearest replica; with `leader` never a stale one.

        Raises KeyNotFound (also for deleted and expired keys), RevisionNotFound, BucketNotFound, PermissionDenied.
        """
        check_key(key)
        if revision is not None:
            return await self._at_revision(key, revision, leader)
        return self._living(key, await self.last_entry(key, leader=leader))

    async def get_many(
        self, keys: Sequence[str], *, leader: bool = False, at_least: Mapping[str, int] | None = None
    ) -> list[Entry | None]:
        """The values of many keys in the order asked, None for those that are not there. Raises as `get`.

        `at_least` has revisions by key: where the nearest replica has not come so far, the leader is asked.
        """
        from kvctl.kv.read import bulk_get

        check_keys(keys)
        found = await bulk_get.get_many(self, list(dict.fromkeys(keys)), leader=leader, at_least=at_least)
        return [entry if (entry := found.get(key)) and entry.operation is Operation.PUT else None for key in keys]

    async def as_of(self, moment: Moment | int | datetime | str) -> Past:
        """The bucket as it was right after a revision, or at a time (with its zone, or text: RFC 3339, `-15m`).

        Raises RevisionNotFound for a revision above the last; reading from it HistoryLost.
        """
        from kvctl.kv.point_in_time import as_of
        from kvctl.kv.point_in_time.moment import as_moment

        return await as_of.at(self, as_moment(moment))

    async def get_literal(self, key: str, *, revision: int | None = None, leader: bool = False) -> Entry:
        """The value of a foreign key: one that ADR-8 does not allow, taken as its literal subject, never as a wildcard.

        Raises as `get`.
        """
        from kvctl.kv.read import selection

        if revision is not None:
            return await self._at_revision(check_literal(key), revision, leader)
        return self._living(key, await selection.literal_entry(self, key, leader=leader))

    async def get_matching(self, *filters: str, leader: bool = False) -> AsyncGenerator[list[Entry], None]:
        """The entries of the living keys that match, in batches; from the nearest replica if they are few."""
        from kvctl.kv.read import selection

        async with aclosing(selection.matching_batches(self, filters, leader=leader)) as batches:
            async for batch in batches:
                yield batch

    async def entries(self, *filters: str, deleted: bool = False) -> AsyncGenerator[Entry, None]:
        """The latest entry of every key that matches; all of them without a filter. No key twice."""
        async with aclosing(self.entry_batches(*filters, deleted=deleted)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def entry_batches(
        self, *filters: str, deleted: bool = False, values: bool = True
    ) -> AsyncGenerator[list[Entry], None]:
        """`entries`, as many at a time as have come."""
        from kvctl.kv.read import listing

        binding = await self.readable()
        async with aclosing(listing.entry_batches(binding, filters, deleted=deleted, values=values)) as batches:
            async for batch in batches:
                yield batch

    async def keys(self, *filters: str, deleted: bool = False) -> AsyncGenerator[str, None]:
        """The names of the keys that live, none twice; with `deleted` also of those whose last entry is a deletion."""
        async with aclosing(self.key_batches(*filters, deleted=deleted)) as batches:
            async for batch in batches:
                for key in batch:
                    yield key.decode(errors="surrogateescape")

    async def key_batches(self, *filters: str, deleted: bool = False) -> AsyncGenerator[list[bytes], None]:
        """`keys` as bytes, as many at a time as have come."""
        from kvctl.kv.read import listing

        binding = await self.readable()
        async with aclosing(listing.key_batches(binding, filters, deleted=deleted)) as batches:
            async for batch in batches:
                yield batch

    async def history(self, *filters: str) -> AsyncGenerator[Entry, None]:
        """Every entry held for the keys that match, oldest first."""
        async with aclosing(self.history_batches(*filters)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def history_batches(self, *filters: str, literal: bool = False) -> AsyncGenerator[list[Entry], None]:
        """`history`, as many at a time as have come; with `literal`, of foreign keys, which are then no filters."""
        from kvctl.kv.read import listing

        binding = await self.readable()
        async with aclosing(listing.history_batches(binding, filters, literal=literal)) as batches:
            async for batch in batches:
                yield batch

    async def watch(
        self, *filters: str, history: bool = False, updates_only: bool = False, ignore_deletes: bool = False,
        meta_only: bool = False, from_revision: int | None = None, follow: bool = True, patient: bool | None = None,
    ) -> Watcher:  # fmt: skip
        """A watcher of the keys that match, of the whole bucket without a filter; watches on a mirror go to its origin.

        `async with await bucket.watch() as watcher:` yields entries and, once, CURRENT. `follow=False` ends there.
        A server that is gone is waited for while it follows, for ever; with `patient=False` as long as in any reading.
        Entering it raises RevisionNotFound for a `from_revision` that is more than one above the last revision.
        """
        from kvctl.kv.read.watch import Watcher, WatchOptions

        options = WatchOptions(
            history=history, updates_only=updates_only, ignore_deletes=ignore_deletes,
            meta_only=meta_only, from_revision=from_revision,
        )  # fmt: skip
        return Watcher((await self.readable()).source, filters, options, follow=follow, patient=patient)

    # -- writing -----------------------------------------------------------------------------------------

    async def put(self, key: str, value: bytes) -> int:
        """Write the value; returns the revision.

        Raises BucketNotFound, ReadOnly, OutcomeUnknown, ServerError, UsageError.
        """
        return await self.write_message(key, value, b"")

    async def put_while(self, key: str, value: bytes, other: str, revision: int) -> int:
        """Write the value while another key's last revision, deletions included, is this one; in one message.

        Raises WrongRevision, and as `put`.
        """
        from kvctl.kv.write import conditional_write

        return await self.write_message(
            key, value, conditional_write.fence(self.binding.source.subject(check_key(other)), revision)
        )

    async def create(self, key: str, value: bytes, *, ttl: timedelta | None = None) -> int:
        """Write a key that does not live: never written, deleted, purged or expired. Raises KeyExists, and as `put`."""
        from kvctl.kv.write import conditional_write

        last = 0
        for _ in range(8):
            try:
                header = conditional_write.write_headers(expected=last, ttl=ttl)
                return await self.write_message(key, value, header, last)
            except WrongRevision as error:
                try:
                    entry = await self.last_entry(check_key(key), leader=True)
                except PermissionDenied:
                    raise KeyExists(f"`{key}` exists", revision=error.found) from None
                if entry is not None and entry.operation is Operation.PUT:
                    hint = (
                        f"It is at revision {entry.revision}; `kvctl put` overwrites, `kvctl update` does on condition"
                    )
                    raise KeyExists(f"`{key}` exists", revision=entry.revision, hint=hint) from None
                last = entry.revision if entry else 0
        raise WrongRevision(f"`{key}` changes faster than it can be created")

    async def update(self, key: str, value: bytes, revision: int, *, ttl: timedelta | None = None) -> int:
        """Write if the key's last revision, deletions included, is `revision` (0: never written).

        In a bucket with a history the value before comes back when `ttl` is over. Raises WrongRevision, and as `put`.
        """
        from kvctl.kv.write import conditional_write

        return await self._conditional(
            key, value, revision, conditional_write.write_headers(expected=revision, ttl=ttl)
        )

    async def delete(self, key: str, *, revision: int | None = None) -> int:
        """Mark the key deleted, keeping its history; returns the marker's revision.

        A key that does not live writes nothing. Raises KeyNotFound, WrongRevision (also where the key was deleted after
        `revision`), and as `put`.
        """
        await self._require_live(check_key(key), revision)
        return await self._mark(key, "DEL", revision)

    async def purge(self, key: str, *, revision: int | None = None, ttl: timedelta | None = None) -> int:
        """Erase the key's history, leaving a marker, which `ttl` removes later; returns the marker's revision.

        Raises KeyNotFound for a key without any entry, WrongRevision, and as `put`.
        """
        self.check_writable(check_key(key))
        try:
            if await self.last_entry(key, leader=True) is None:
                raise _absent(self.name, key)
        except PermissionDenied:
            pass
        return await self._mark(key, "PURGE", revision, ttl)

    async def delete_literal(self, key: str) -> int:
        """Mark a foreign key deleted: one that ADR-8 does not allow, taken as its literal subject, never as a wildcard.

        Raises KeyNotFound, and as `put`.
        """
        from kvctl.kv.read import selection
        from kvctl.kv.write import conditional_write

        self.check_writable(None)
        latest = await selection.literal_entry(self, key, leader=True)
        if latest is None:
            raise _absent(self.name, key)
        if latest.operation is not Operation.PUT:
            raise _gone(latest)
        return await self.write_message(key, b"", conditional_write.write_headers(operation="DEL"), literal=True)

    async def revert(self, key: str, revision: int) -> int:
        """Write the value of an older revision again, if the key does not change meanwhile.

        Raises RevisionNotFound, WrongRevision, and as `put`.
        """
        old = await self.get(key, revision=revision, leader=True)
        return await self.update(key, old.value, await self.last_revision(key))

    async def put_many(
        self, items: Iterable[tuple[str, bytes]] | AsyncIterable[tuple[str, bytes]], *, window: int | None = None
    ) -> PutSummary:
        """Write many keys, thousands in flight, each with a deadline; what fails is in the summary, not raised.

        Names and sizes are checked as they come: UsageError ends it, with all before it written. After a lost
        connection what was not acknowledged is found by its identity, or sent again on condition that nobody else has
        written the key since.
        """
        from kvctl.kv.write import bulk_put

        self.check_writable(None)
        return await bulk_put.put_many(self, items, window or bulk_put.WINDOW)

    async def commit(self, transaction: Transaction) -> list[int]:
        """Carry out the transaction, whole or not at all; returns the revision of each change, in their order.

        A lost answer is settled by reading back. Raises ConditionsFailed, which names every condition that does not
        hold, KvctlError for a bucket that takes no atomic batches, OutcomeUnknown, and as `put`.
        """
        from kvctl.kv.transaction import execution

        return await execution.commit(self, transaction)

    def lease(
        self, key: str, owner: str, *, ttl: timedelta = timedelta(seconds=30), wait: timedelta | None = None
    ) -> AbstractAsyncContextManager[Lease]:
        """Hold the key while the block runs: `async with bucket.lease("deploy", "me") as lease:`.

        The lease is renewed, and the key deleted at the end. One that is lost cancels the block and raises LeaseLost.
        `lease.token` rises with each holder. Raises LeaseHeld, or with `wait` WaitExpired; UsageError.
        """
        from kvctl.kv import lease_queue

        return lease_queue.held(self, key, owner, ttl, wait)

    async def check(self, transaction: Transaction) -> None:
        """Whether the transaction could be carried out now; writes nothing. Raises as `commit`."""
        from kvctl.kv.transaction import execution

        await execution.check(self, transaction)

    # -- the bucket itself -------------------------------------------------------------------------------

    async def status(self) -> BucketStatus:
        """ADR-8's Status. Raises BucketNotFound."""
        from kvctl.kv.config import BucketStatus

        binding = await self.locate(fresh=True)
        assert binding.info is not None
        return BucketStatus.from_info(binding.info)

    async def destroy(self) -> None:
        """Delete the bucket with all it holds. Raises BucketNotFound, ReadOnly."""
        self.check_writable(None)
        try:
            await streams.delete(self._api, (await self.locate()).stream)
        except StreamNotFound:
            raise BucketNotFound(f"Bucket `{self.name}` does not exist") from None

    # -- inside ------------------------------------------------------------------------------------------

    def _living(self, key: str, entry: Entry | None) -> Entry:
        if entry is None:
            info = self.binding.info
            renamed = renaming(info["config"]) if info else None
            hint = renamed or f"`kvctl keys {self.name}` lists those that are"
            raise KeyNotFound(f"Key `{key}` is not in bucket `{self.name}`", hint=hint)
        if entry.operation is not Operation.PUT:
            raise _gone(entry)
        return entry

    async def _at_revision(self, key: str, revision: int, leader: bool) -> Entry:
        if revision < 1:
            raise UsageError("Revisions count from 1")
        entry = None
        if not leader and self.binding.direct:
            try:
                request = DirectRequest(sequence=revision)
                entry = self.entry(key, await direct_get.get(self.binding.api, self.binding.stream, request))
            except (NoResponders, PermissionDenied):
                leader = True
        if entry is None:
            # The nearest replica may lag, or the name be a mirror's.
            try:
                entry = self.entry(key, await self._from_leader(key, revision))
            except UnreachableError:
                if leader:
                    raise
        if entry is None:
            raise RevisionNotFound(
                f"Bucket `{self.name}` holds no revision {revision} of `{key}`",
                hint=f"`kvctl history {self.name} {key}` lists those it holds",
            )
        return self._living(key, entry)

    async def _mark(self, key: str, operation: str, revision: int | None, ttl: timedelta | None = None) -> int:
        from kvctl.kv.write import conditional_write

        header = conditional_write.write_headers(
            operation=operation, expected=revision, ttl=ttl, rollup=operation == "PURGE"
        )
        if revision is None:
            return await self.write_message(key, b"", header)
        return await self._conditional(key, b"", revision, header)

    async def _conditional(self, key: str, value: bytes, revision: int, header: bytes) -> int:
        from kvctl.kv.write import conditional_write

        try:
            return await self.write_message(key, value, header, revision)
        except WrongRevision as error:
            if error.found is None or error.found == 0:
                try:
                    error.found = await self.last_revision(key)
                except KvctlError:
                    error.found = error.found or None
            raise conditional_write.mismatch(key, revision, error) from None

    async def _require_live(self, key: str, revision: int | None) -> None:
        self.check_writable(key)
        try:
            entry = await self.last_entry(key, leader=True)
        except (PermissionDenied, JetStreamDisabled):
            return  # without permission to read, the marker is written
        if entry is None:
            raise _absent(self.name, key)
        if entry.operation is not Operation.PUT:
            gone = _gone(entry)
            if revision in (None, entry.revision):
                raise gone
            # Of several who delete the same revision, all but one meet this conflict, whenever they look.
            message = f"Revision {revision} of `{key}` is not the last, its last is {entry.revision}"
            raise WrongRevision(message, found=entry.revision, hint=gone.hint)


def _absent(bucket: str, key: str) -> KeyNotFound:
    return KeyNotFound(f"Key `{key}` is not in bucket `{bucket}`", hint="Nothing was written")


def _gone(entry: Entry) -> KeyNotFound:
    when = format_time(entry.created_ns)
    how = {"MaxAge": "expired"}.get(
        entry.reason or "", "was purged" if entry.operation is Operation.PURGE else "was deleted"
    )
    left = f"`kvctl history {entry.bucket} {entry.key}` shows what is left"
    return KeyNotFound(
        f"Key `{entry.key}` is not in bucket `{entry.bucket}`",
        hint=f"It {how} at {when} (revision {entry.revision}); {left}",
    )
