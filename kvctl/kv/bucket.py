"""Bucket: the operations of ADR-8 under the names of ADR-8."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from kvctl.errors import (
    JetStreamDisabled,
    KeyExists,
    KeyNotFound,
    KvctlError,
    NoResponders,
    PermissionDenied,
    RevisionNotFound,
    UnreachableError,
    UsageError,
    WrongRevision,
)
from kvctl.jetstream import direct_get
from kvctl.jetstream.direct_get import DirectRequest
from kvctl.kv import catalog, conditional_write, config, copy_key, lease
from kvctl.kv.bulk import bulk_put
from kvctl.kv.entry import Entry, Operation
from kvctl.kv.handle import Handle
from kvctl.kv.names import check_key, check_keys, check_literal
from kvctl.kv.oddity import loss
from kvctl.kv.read import as_of, bulk_get, listing
from kvctl.kv.read import moment as moments
from kvctl.kv.read import watch as watches
from kvctl.kv.transaction import execution
from kvctl.units import NEVER, format_moment

if TYPE_CHECKING:
    from kvctl.kv.bulk.bulk_put import PutSummary
    from kvctl.kv.config import BucketStatus
    from kvctl.kv.lease import Lease
    from kvctl.kv.read.as_of import Past
    from kvctl.kv.read.moment import Moment
    from kvctl.kv.read.watch import Watcher
    from kvctl.kv.transaction.transaction import Transaction


class Bucket(Handle):
    """Handle on a bucket, mirror or aggregate. Creating one sends no request: a missing bucket is found on first use.

    `stream` and `prefix` (ending in a dot) are for buckets imported under subjects other than ADR-8's. Reads never
    show less than this handle has written.
    """

    # -- reading -----------------------------------------------------------------------------------------

    async def get(self, key: str, *, revision: int | None = None, leader: bool = False) -> Entry:
        """Return the key's latest entry from the nearest replica; with `leader`, never a stale one.

        Raises KeyNotFound (also for deleted and expired keys), RevisionNotFound, BucketNotFound, PermissionDenied.
        """
        check_key(key)
        if revision is not None:
            return await self._at_revision(key, revision, leader)
        return self._living(key, await self.last_entry(key, leader=leader))

    async def get_many(
        self, keys: Sequence[str], *, leader: bool = False, at_least: Mapping[str, int] | None = None
    ) -> list[Entry | None]:
        """Return the entries of many keys in the order given, None for missing keys. Raises as `get`.

        Of the missing keys, `unconfirmed` has those whose absence no leader could confirm.

        `at_least` maps keys to revisions: when the nearest replica is behind one of them, the leader is asked.
        """
        check_keys(keys)
        found = await bulk_get.get_many(self, list(dict.fromkeys(keys)), leader=leader, at_least=at_least)
        return [entry if (entry := found.get(key)) and entry.operation is Operation.PUT else None for key in keys]

    async def as_of(self, moment: Moment | int | datetime | str) -> Past:
        """Return the bucket as it was right after a revision, or at a time (zoned datetime, or text: RFC 3339, `-15m`).

        Raises RevisionNotFound for a revision above the last; reading the result raises HistoryLost.
        """
        return await as_of.at(self, moments.as_moment(moment))

    async def get_literal(self, key: str, *, revision: int | None = None, leader: bool = False) -> Entry:
        """Return the entry of a non-conforming key (not legal in ADR-8), by its literal subject, never as a wildcard.

        Raises as `get`.
        """
        if revision is not None:
            return await self._at_revision(check_literal(key), revision, leader)
        return self._living(key, await bulk_get.literal_entry(self, key, leader=leader))

    def get_matching(
        self, *filters: str, leader: bool = False, confirm: bool = False
    ) -> AsyncGenerator[list[Entry], None]:
        """Yield the entries of live matching keys in batches; from the nearest replica if there are few.

        The leader confirms that nothing matches, and with `confirm` that the replica is not behind: `unconfirmed` has
        the filters if it does not answer.
        """
        return bulk_get.matching_batches(self, filters, leader=leader, confirm=confirm)

    def entries(self, *filters: str, deleted: bool = False) -> AsyncGenerator[Entry, None]:
        """Yield the latest entry of every matching key, of all keys without a filter. No key appears twice."""
        return listing.each(self.entry_batches(*filters, deleted=deleted))

    async def entry_batches(
        self, *filters: str, deleted: bool = False, values: bool = True
    ) -> AsyncGenerator[list[Entry], None]:
        """Yield `entries` in batches, as they arrive."""
        binding = await self.readable(fresh=True)
        async with aclosing(listing.entry_batches(binding, filters, deleted=deleted, values=values)) as batches:
            async for batch in batches:
                yield batch

    async def keys(self, *filters: str, deleted: bool = False) -> AsyncGenerator[str, None]:
        """Yield the names of live keys, none twice; with `deleted`, also keys whose last entry is a deletion."""
        async with aclosing(self.key_batches(*filters, deleted=deleted)) as batches:
            async for batch in batches:
                for key in batch:
                    yield key.decode(errors="surrogateescape")

    async def key_batches(self, *filters: str, deleted: bool = False) -> AsyncGenerator[list[bytes], None]:
        """Yield `keys` in batches as bytes, as they arrive."""
        binding = await self.readable(fresh=True)
        async with aclosing(listing.key_batches(binding, filters, deleted=deleted)) as batches:
            async for batch in batches:
                yield batch

    def history(self, *filters: str, since: Moment | datetime | str | None = None) -> AsyncGenerator[Entry, None]:
        """Yield every stored entry of the matching keys, oldest first, or those written at the time `since` or later.

        A time is a zoned datetime, or text: RFC 3339, or `-15m`, which counts back from the server's time.
        """
        return listing.each(self.history_batches(*filters, since=since))

    async def history_batches(
        self, *filters: str, since: Moment | datetime | str | None = None, literal: bool = False
    ) -> AsyncGenerator[list[Entry], None]:
        """Yield `history` in batches; with `literal`, the arguments are non-conforming keys instead of filters."""
        binding = await self.readable()
        start = None
        if since is not None:
            start = await moments.first_revision(binding, since)
        found = False
        async with aclosing(listing.history_batches(binding, filters, start=start, literal=literal)) as batches:
            async for batch in batches:
                found = True
                yield batch
        if not found and self.judge != binding and await self.newest(filters or [">"]):
            source = self.source_as_own(binding)
            async with aclosing(listing.history_batches(source, filters, start=start, literal=literal)) as batches:
                async for batch in batches:
                    yield batch

    async def watch(
        self,
        *filters: str,
        history: bool = False,
        updates_only: bool = False,
        ignore_deletes: bool = False,
        meta_only: bool = False,
        from_revision: int | None = None,
        since: Moment | datetime | str | None = None,
        follow: bool = True,
        patient: bool | None = None,
    ) -> Watcher:
        """Return a watcher of matching keys, of all keys without a filter. Watches on a mirror read its origin.

        `async with await bucket.watch() as watcher:` yields entries and, once, CURRENT. `follow=False` ends there.
        While following it waits for an unreachable server without limit, with `patient=False` as long as other reads.
        Entering it raises RevisionNotFound for a `from_revision` that is more than one above the last revision.
        `since` is a time as in `history`: the watch begins with every entry written then or later.
        """
        source = (await self.readable()).source
        if since is not None:
            if from_revision is not None:
                raise UsageError("`from_revision` and `since` cannot be combined")
            from_revision = await moments.first_revision(source, since)
        options = watches.WatchOptions(
            history=history,
            updates_only=updates_only,
            ignore_deletes=ignore_deletes,
            meta_only=meta_only,
            from_revision=from_revision,
        )
        return watches.Watcher(source, filters, options, follow=follow, patient=patient)

    # -- writing -----------------------------------------------------------------------------------------

    async def put(self, key: str, value: bytes) -> int:
        """Write the value and return its revision.

        Raises BucketNotFound, ReadOnly, OutcomeUnknown, ServerError, UsageError.
        """
        return await self.write_message(key, value, b"")

    async def put_while(self, key: str, value: bytes, other: str, revision: int) -> int:
        """Write the value if another key's last revision (deletions included) is `revision`, in a single message.

        Raises WrongRevision, and as `put`.
        """
        return await self.write_message(
            key, value, conditional_write.fence(self.binding.source.subject(check_key(other)), revision)
        )

    async def create(self, key: str, value: bytes, *, ttl: timedelta | None = None) -> int:
        """Write a key that does not live: never written, deleted, purged or expired. Raises KeyExists, and as `put`."""
        last = 0
        for _ in range(8):
            try:
                header = conditional_write.write_headers(expected=last, ttl=ttl)
                return await self.write_message(key, value, header, last)
            except WrongRevision as error:
                try:
                    entry = await self.last_entry(check_key(key), leader=True)
                except PermissionDenied:
                    raise KeyExists(f"`{key}` already exists", revision=error.found) from None
                if entry is not None and entry.operation is Operation.PUT:
                    hint = (
                        f"It is at revision {entry.revision}. Overwrite it with `kvctl put`, "
                        f"or conditionally with `kvctl update`"
                    )
                    raise KeyExists(f"`{key}` already exists", revision=entry.revision, hint=hint) from None
                last = entry.revision if entry else 0
        raise WrongRevision(f"`{key}` is being written concurrently and could not be created")

    async def update(self, key: str, value: bytes, revision: int, *, ttl: timedelta | None = None) -> int:
        """Write the value if the key's last revision (deletions included) is `revision` (0: never written).

        In a bucket with history, the previous value comes back when `ttl` expires. Raises WrongRevision, and as `put`.
        """
        return await self._conditional(
            key, value, revision, conditional_write.write_headers(expected=revision, ttl=ttl)
        )

    async def touch(self, key: str, ttl: timedelta) -> int:
        """Write the key's value again with its headers and a new ttl, and return the revision.

        A concurrent write is not overwritten: the newer value is written again instead. In a bucket with history, the
        previous entry comes back when `ttl` ends. Raises KeyNotFound, ServerError for a bucket that does not allow
        per-key TTLs, and as `put`.
        """
        return await copy_key.touch(self, key, ttl)

    async def delete(self, key: str, *, revision: int | None = None) -> int:
        """Mark the key deleted, keep its history, and return the marker's revision.

        Nothing is written for a key that does not live. Raises KeyNotFound, WrongRevision (also when the key was
        deleted after `revision`), and as `put`.
        """
        return await self._mark(key, "DEL", revision, await self._marker_ttl(check_key(key), revision))

    async def purge(self, key: str, *, revision: int | None = None, ttl: timedelta | None = None) -> int:
        """Erase the key's history, leave a marker (removed after `ttl`, if given), and return the marker's revision.

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
        """Mark a non-conforming key (not legal in ADR-8) deleted, taken as its literal subject, never as a wildcard.

        Raises KeyNotFound, and as `put`.
        """
        self.check_writable(None)
        latest = await bulk_get.literal_entry(self, key, leader=True)
        if latest is None:
            raise _absent(self.name, key)
        if latest.operation is not Operation.PUT:
            raise _gone(latest)
        return await self.write_message(key, b"", conditional_write.write_headers(operation="DEL"), literal=True)

    async def revert(self, key: str, revision: int) -> int:
        """Write the value of an older revision again, unless the key changes in the meantime.

        A ttl of NEVER is kept, any other is not.

        Raises RevisionNotFound, WrongRevision, and as `put`.
        """
        old = await self.get(key, revision=revision, leader=True)
        ttl = NEVER if old.ttl == NEVER else None
        return await self.update(key, old.value, await self.last_revision(key), ttl=ttl)

    async def put_many(
        self, items: Iterable[tuple[str, bytes]] | AsyncIterable[tuple[str, bytes]], *, window: int | None = None
    ) -> PutSummary:
        """Write many keys with thousands of messages in flight; failures are in the summary, not raised.

        Names and sizes are checked as items arrive: UsageError ends the run with everything before it written. After a
        lost connection, unacknowledged writes are found by their identity, or sent again on condition that nobody else
        has written the key since. One that a later item of its key replaced, without a trace, counts as written.
        """
        self.check_writable(None)
        return await bulk_put.put_many(self, items, window or bulk_put.WINDOW)

    async def commit(self, transaction: Transaction, *, evict_history: bool = False) -> list[int]:
        """Apply the transaction completely or not at all; return the revision of each change, in order.

        A lost acknowledgement is resolved by reading back. Raises ConditionsFailed, which names every failing
        condition, KvctlError for a bucket that does not allow atomic batches, HazardRefused, unless `evict_history` is
        set, if conditions on other keys would evict history of the changed ones, OutcomeUnknown, and as `put`.
        """
        return await execution.commit(self, transaction, evict=evict_history)

    def lease(
        self, key: str, owner: str, *, ttl: timedelta = timedelta(seconds=30), wait: timedelta | None = None
    ) -> AbstractAsyncContextManager[Lease]:
        """Hold the key while the block runs: `async with bucket.lease("deploy", "me") as lease:`.

        The lease is renewed in the background, and the key is deleted at the end. Losing it cancels the block and
        raises LeaseLost. `lease.token` rises with each holder. Raises LeaseHeld, or with `wait` WaitExpired;
        UsageError.
        """
        return lease.held(self, key, owner, ttl, wait)

    async def check(self, transaction: Transaction, *, evict_history: bool = False) -> None:
        """Check that the transaction could be applied now, without writing. Raises as `commit`."""
        await execution.check(self, transaction, evict=evict_history)

    # -- the bucket itself -------------------------------------------------------------------------------

    async def status(self) -> BucketStatus:
        """Return the bucket's status (ADR-8). Raises BucketNotFound."""
        binding = await self.locate(fresh=True)
        assert binding.info is not None
        return config.BucketStatus.from_info(binding.info)

    async def destroy(self) -> None:
        """Delete the bucket with all its data. Raises BucketNotFound, OutcomeUnknown, ReadOnly."""
        self.check_writable(None)
        await catalog.delete(self._api, (await self.locate()).stream)

    # -- inside ------------------------------------------------------------------------------------------

    def _living(self, key: str, entry: Entry | None) -> Entry:
        if entry is None:
            config = self.binding.info["config"] if self.binding.info else {}
            oddity = loss(config) if config else None
            raise _absent(self.name, key, oddity and oddity.evidence(config), key not in self.unconfirmed)
        if entry.operation is not Operation.PUT:
            raise _gone(entry, key not in self.unconfirmed)
        return entry

    async def _at_revision(self, key: str, revision: int, leader: bool) -> Entry:
        if revision < 1:
            raise UsageError("Revisions start at 1")
        entry, confirmed = None, True
        await self.locate_elsewhere()
        if not leader and self.binding.direct:
            try:
                request = DirectRequest(sequence=revision)
                entry = self.entry(key, await direct_get.get(self.binding.api, self.binding.stream, request))
            except (NoResponders, PermissionDenied):
                leader = True
        if entry is None:
            # The nearest replica may lag, or the name may be a mirror's.
            try:
                entry = self.entry(key, await self._from_leader(key, revision))
            except UnreachableError:
                if leader:
                    raise
                confirmed = False
        if entry is None:
            raise RevisionNotFound(
                f"Bucket `{self.name}` does not hold revision {revision} of `{key}`",
                hint=f"List the stored revisions with `kvctl history {self.name} {key}`",
                confirmed=confirmed,
            )
        if entry.operation is not Operation.PUT:
            raise _gone(entry)
        return entry

    async def _mark(self, key: str, operation: str, revision: int | None, ttl: timedelta | None = None) -> int:
        header = conditional_write.write_headers(
            operation=operation, expected=revision, ttl=ttl, rollup=operation == "PURGE"
        )
        if revision is None:
            return await self.write_message(key, b"", header)
        return await self._conditional(key, b"", revision, header)

    async def _conditional(self, key: str, value: bytes, revision: int, header: bytes) -> int:
        try:
            return await self.write_message(key, value, header, revision)
        except WrongRevision as error:
            if error.found is None or error.found == 0:
                try:
                    error.found = await self.last_revision(key)
                except KvctlError:
                    error.found = error.found or None
            raise conditional_write.mismatch(key, revision, error) from None

    async def _marker_ttl(self, key: str, revision: int | None) -> timedelta | None:
        """Return the ttl of a delete marker: NEVER over a value that never expires, which would come back.

        Raises as `delete`.
        """
        self.check_writable(key)
        try:
            entry = await self.last_entry(key, leader=True)
        except (PermissionDenied, JetStreamDisabled):
            return None  # without permission to read, the marker is written
        if entry is None:
            raise _absent(self.name, key)
        if entry.operation is not Operation.PUT:
            gone = _gone(entry)
            if revision in (None, entry.revision):
                raise gone
            # Of several clients that delete the same revision, all but one get this conflict, whenever they read.
            message = f"`{key}` is at revision {entry.revision}, not {revision}"
            raise WrongRevision(message, found=entry.revision, hint=gone.hint)
        return NEVER if entry.ttl == NEVER else None


def _absent(bucket: str, key: str, reason: str | None = None, confirmed: bool = True) -> KeyNotFound:
    hint = reason or f"List the keys with `kvctl keys {bucket}`"
    return KeyNotFound(f"Key `{key}` is not in bucket `{bucket}`", hint=hint, confirmed=confirmed)


def _gone(entry: Entry, confirmed: bool = True) -> KeyNotFound:
    when = format_moment(entry.created_ns)
    how = {"MaxAge": "expired"}.get(
        entry.reason or "", "was purged" if entry.operation is Operation.PURGE else "was deleted"
    )
    left = f"See its remaining history with `kvctl history {entry.bucket} {entry.key}`"
    return KeyNotFound(
        f"Key `{entry.key}` is not in bucket `{entry.bucket}`",
        hint=f"It {how} {when}, revision {entry.revision}. {left}",
        confirmed=confirmed,
    )
