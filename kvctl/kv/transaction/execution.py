"""Apply a transaction: read, store as one conditional atomic batch, and resolve lost acknowledgements.

Each attempt is a batch with its own identity, which the server stores with every message: the last entries of the
changed keys show if one of the attempts was applied.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kvctl.errors import (
    Away,
    BucketNotFound,
    ConditionsFailed,
    ConflictError,
    HazardRefused,
    KvctlError,
    NoServer,
    OutcomeUnknown,
    PermissionDenied,
    ServerError,
    StreamNotFound,
    Unanswered,
    UnreachableError,
    WrongRevision,
)
from kvctl.jetstream import direct_get, streams
from kvctl.jetstream.publish import BatchMessage, Busy, MessageTooLarge, publish_batch
from kvctl.kv import resolve as bindings
from kvctl.kv.conditional_write import TTL_SINCE, explained, is_doubtful, no_ttl
from kvctl.kv.entry import Entry
from kvctl.kv.read import bulk_get
from kvctl.kv.resolve import Binding
from kvctl.kv.transaction.transaction import Pins, Transaction, batch_of, refusal, too_large, value_limit
from kvctl.phrases import counted, quoted
from kvctl.wire import header_value

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket

BATCHES_SINCE = (2, 12)
LOST_MESSAGES = 10176
_TRANSIENT = (10008, LOST_MESSAGES, 10210)
"""No leader, a batch that lost messages (the leader changed), too many batches at once: nothing was stored."""


EVICTS_HISTORY = "evicts-history"
"""Safety check of a transaction, which `--force` overrides."""


async def commit(bucket: Bucket, transaction: Transaction, *, evict: bool = False) -> list[int]:
    """See `Bucket.commit`."""
    transaction.check()
    bucket.check_writable(max((change.key for change in transaction.changes), key=len))
    target = await _target(bucket)
    for change in transaction.changes:
        target.check_heard(change.key)
    version = streams.version_of(target.info) if target.info else TTL_SINCE
    if version < TTL_SINCE and any(change.ttl for change in transaction.changes):
        raise no_ttl(version)
    revisions = await _Commit(bucket, target, lambda: transaction, evict=evict).run()
    bucket.own.note_all([change.key for change in transaction.changes], revisions)
    return list(revisions)


async def commit_ready(
    bucket: Bucket, messages: Sequence[BatchMessage], transaction: Callable[[], Transaction]
) -> Sequence[int]:
    """Commit a transaction whose messages are encoded already; return the revisions in their order.

    `transaction` is called only if they are not stored at once. It has one change for each, in their order, and all its
    conditions are revisions, each that of a changed key. Raises as `Bucket.commit`.
    """
    keys = _keys(bucket, messages)
    bucket.check_writable(max(keys, key=len))
    target = await _target(bucket)
    revisions = await _Commit(bucket, target, transaction).run(messages)
    bucket.own.note_all(keys, revisions)
    return revisions


def _keys(bucket: Bucket, messages: Sequence[BatchMessage]) -> list[str]:
    """Return the keys of messages; in one piece, ten times faster than one by one."""
    prefix = bucket.binding.write_prefix
    lines = b"\n".join([b"", *[subject for subject, _, _ in messages]]).decode()
    return lines.split("\n" + prefix)[1:]


async def check(bucket: Bucket, transaction: Transaction, *, evict: bool = False) -> None:
    """See `Bucket.check`."""
    transaction.check()
    target = await _target(bucket)
    for change in transaction.changes:
        target.check_heard(change.key)
    await _found(bucket, transaction, leader=True)
    await _room(target, transaction, evict=evict)


async def _room(target: Binding, transaction: Transaction, *, evict: bool) -> dict[str, int]:
    """Return how often changes can be repeated, to carry conditions, without evicting history; {} if always.

    Raises HazardRefused if they would have to be repeated more often, unless it is allowed to evict.
    """
    history = target.info["config"].get("max_msgs_per_subject", 0) if target.info else 0
    wanted = transaction.copies
    if wanted <= 0 or history <= 1:
        return {}
    room: dict[str, int] = {}
    for change in transaction.by_size:
        stored = 0
        if change.verb != "purge":
            subject = target.subject(change.key)
            stored = (await streams.subjects(target.api, target.stream, subject)).get(subject, 0)
        room[change.key] = max(history - stored - 1, 0)
        if sum(room.values()) >= wanted:
            return room
    if evict:
        return room
    keys = quoted(list(room), 3)
    raise HazardRefused(
        EVICTS_HISTORY,
        f"Repetitions of changes would carry {counted(wanted, 'condition')} on keys that are not changed, and evict "
        f"earlier values of {keys}; nothing was written",
        hint=f"Keep more entries per key with `kvctl bucket edit {target.bucket} --history N`, "
        "or proceed with `evict_history=True`",
    )


async def _target(bucket: Bucket, *, fresh: bool = False) -> Binding:
    """Return the stream that takes the batch. Raises BucketNotFound, ReadOnly, and KvctlError if it takes none.

    The stream's stored configuration decides: servers before 2.12 silently drop the setting and would store the
    messages one by one.
    """
    known = bucket.binding.info if bucket.fixed and not fresh else None
    if known and known["config"].get("allow_atomic") and streams.version_of(known) >= BATCHES_SINCE:
        return bucket.binding  # such servers report it if that has changed since
    binding = await bucket.locate(fresh=True)
    bucket.check_writes_go_somewhere()
    source = binding.source
    info = binding.info if source is binding else await streams.find(source.api, source.stream)
    if info is None:
        raise BucketNotFound(f"Bucket `{source.bucket}`, the origin of mirror `{bucket.name}`, does not exist")
    if not info["config"].get("allow_atomic"):
        version = streams.version_of(info)
        remedy = f"Allow them with `kvctl bucket edit {source.bucket} --atomic`"
        if version < BATCHES_SINCE:
            remedy = f"They need nats-server 2.12; the stream is on {'.'.join(map(str, version))}"
        raise KvctlError(f"Bucket `{source.bucket}` does not allow atomic batches; nothing was sent", hint=remedy)
    return bindings.with_info(source, info)


async def _found(bucket: Bucket, transaction: Transaction, *, leader: bool = False) -> dict[str, Entry | None]:
    """Return the last entries of all keys with conditions. Raises ConditionsFailed, as seen by the leader.

    Without `leader` they may come from a lagging replica: the batch is conditional on the revisions found.
    """
    keys = list(dict.fromkeys(condition.key for condition in transaction.expected))
    found = await bulk_get.get_many(bucket, keys, leader=leader, confirm=False)
    failures = transaction.failures(found)
    if failures and not leader:
        return await _found(bucket, transaction, leader=True)
    if failures:
        raise refusal(bucket.name, failures)
    return found


@dataclass(slots=True)
class _Try:
    """Attempt to store the batch: its identity, and the position in it of each key's last message."""

    identity: bytes
    places: Mapping[str, int]


class _Commit:
    def __init__(
        self, bucket: Bucket, target: Binding, transaction: Callable[[], Transaction], *, evict: bool = False
    ) -> None:
        self._bucket = bucket
        self._target = target
        self._make = transaction
        self._evict = evict
        self._deadline = time.monotonic() + 2 * target.api.connection.timeout
        self._refused = False
        self._doubtful = False
        """True if another leader may have stored what one refused."""
        self._obstacle: KvctlError | None = None
        """Error of the last attempt, if not a condition."""
        self._looked = False
        """True once the stream's limit was read again."""
        self._lost: KvctlError | None = None
        """Reason why the outcome of an attempt is unknown."""
        self._tries: list[_Try] = []

    @cached_property
    def _transaction(self) -> Transaction:
        return self._make()

    @cached_property
    def _keys(self) -> list[str]:
        return [change.key for change in self._transaction.changes]

    async def run(self, ready: Sequence[BatchMessage] = ()) -> Sequence[int]:
        """Return the revisions, in the order of the changes; `ready` are the messages of the first attempt."""
        try:
            return await self._run(ready)
        except (ConflictError, UnreachableError):
            if self._doubtful and (revisions := await self._stored()):
                return revisions
            raise

    async def _stored(self) -> list[int] | None:
        """Return the revisions if the last entry of a key is of an attempt, which a leader may have refused."""
        found = await self._read_back(self._keys)
        revisions = (self._revisions(entry.header, entry.revision) for entry in found.values() if entry is not None)
        return next(filter(None, revisions), None)

    async def _run(self, ready: Sequence[BatchMessage]) -> Sequence[int]:
        if ready:
            identity = _identity()
            if (last := await self._send(ready, identity)) is not None:
                return range(last - len(ready) + 1, last + 1)
            self._tries.append(_Try(identity, {key: place for place, key in enumerate(self._keys, 1)}))
            pins = self._asked()
        else:
            pins = await self._pin()
            if (revisions := await self._attempt(pins)) is not None:
                return revisions
        while True:
            if self._lost is not None:
                if (revisions := await self._settle(pins)) is not None:
                    return revisions
                await self._pause()
            if self._lost is None:
                pins = await self._pin()
            if (revisions := await self._attempt(pins)) is not None:
                return revisions

    def _asked(self) -> Pins:
        """Return the revisions that the transaction itself expects, 0 where it only looks."""
        return {condition.key: condition.revision or 0 for condition in self._transaction.expected}

    async def _pin(self) -> Pins:
        """Return the revisions to expect. Raises ConditionsFailed.

        Conditions on revisions alone are checked by the server; they are read only after a refusal.
        """
        expected, asked = self._transaction.expected, self._asked()
        contradictory = any((condition.revision or 0) != asked[condition.key] for condition in expected)
        if not self._refused and not contradictory and not any(condition.looks for condition in expected):
            return asked
        try:
            found = await _found(self._bucket, self._transaction, leader=self._refused)
        except PermissionDenied as error:
            if not self._refused:
                raise
            raise ConditionsFailed(
                f"A condition of the transaction on bucket `{self._bucket.name}` does not hold; nothing was written",
                hint=f"The keys cannot be read to find out which one. {error.message}",
            ) from None
        return {key: entry.revision if entry else 0 for key, entry in found.items()}

    async def _attempt(self, pins: Pins) -> list[int] | None:
        """Return the revisions; None if nothing was stored and another attempt may be, or if unknown (`_lost`)."""
        room = await _room(self._target, self._transaction, evict=self._evict)
        messages, places = batch_of(self._transaction, self._target, pins, room)
        self._tries.append(_Try(_identity(), places))
        last = await self._send(messages, self._tries[-1].identity, max(pins.values(), default=0))
        return None if last is None else [last - len(messages) + places[key] for key in self._keys]

    async def _send(self, messages: Sequence[BatchMessage], identity: bytes, newest: int = 0) -> int | None:
        """Send a batch, conditional on revisions up to `newest`, and return the last sequence; None as `_attempt`."""
        try:
            return await publish_batch(self._target.api.connection, messages, identity, value_limit(self._target))
        except MessageTooLarge as error:
            if not await self._is_limit_read_again():
                raise too_large(self._target, messages[error.number][0], error) from None
            return None
        except WrongRevision as error:
            self._obstacle = error if isinstance(error, Busy) else None
            if await is_doubtful(self._target, newest, error):
                self._doubtful = True
            if not self._refused:  # usually a failed condition: reading shows it
                self._refused = True
                return None
        except Unanswered as error:
            self._lost = error
            return None
        except Away as error:
            await self._unreachable(error)
        except ServerError as error:
            if self._lost is None and error.err_code not in _TRANSIENT:
                raise explained(error, self._target) from None
            self._obstacle = error
            if error.err_code == LOST_MESSAGES and self._lost is None:
                await self._is_limit_read_again()
        await self._pause()
        return None

    async def _is_limit_read_again(self) -> bool:
        """Read the stream's limit again, which may have changed; return True the first time."""
        first, self._looked = not self._looked, True
        if first:
            self._target = await _target(self._bucket, fresh=True)
        return first

    async def _unreachable(self, error: UnreachableError) -> None:
        """Handle an attempt that was not stored. Raises the error if no earlier one is open and retrying is useless."""
        if self._lost is not None:
            return
        if isinstance(error, NoServer) or time.monotonic() > self._deadline:
            raise UnreachableError(
                f"Bucket `{self._bucket.name}` does not accept writes at the moment: {error.message}; "
                "nothing was written",
                hint=error.hint or f"Its stream may have no leader; check with `kvctl bucket show {self._bucket.name}`",
            ) from None
        self._target = await _target(self._bucket, fresh=True)

    async def _pause(self) -> None:
        """Wait before another attempt. Raises OutcomeUnknown, UnreachableError or WrongRevision when time is up."""
        if time.monotonic() > self._deadline:
            if self._lost is not None:
                raise self._unknown()
            if self._obstacle is not None:
                raise UnreachableError(
                    f"Bucket `{self._bucket.name}` does not accept batches at the moment: {self._obstacle.message}; "
                    "nothing was written",
                    hint="Try again later, with fewer or smaller concurrent batches",
                )
            raise WrongRevision(
                f"Keys of the transaction on bucket `{self._bucket.name}` are being written concurrently"
            )
        await asyncio.sleep(random.uniform(0.005, 0.05))

    async def _settle(self, pins: Pins) -> list[int] | None:
        """Return the revisions if an attempt was applied; None when another one is safe.

        An attempt conditional on the revision of a key that it changes can be repeated: at most one is applied. Raises
        OutcomeUnknown.
        """
        fences = [key for key in self._keys if key in pins]
        while True:
            found = await self._read_back(list(dict.fromkeys([*self._keys, *pins])))
            for entry in found.values():
                if entry is not None and (revisions := self._revisions(entry.header, entry.revision)):
                    return revisions
            if any(_revision(found[key]) != pin for key, pin in pins.items()):
                return await self._settle_refused(pins, fences, found)
            if fences:
                return None
            await self._pause()

    async def _settle_refused(
        self, pins: Pins, fences: list[str], found: Mapping[str, Entry | None]
    ) -> list[int] | None:
        """Find an attempt that was applied and overwritten, once a failed condition rules out later ones."""
        not_applied = any(_revision(found[key]) == pins[key] for key in fences)
        for key in fences:
            if not_applied:
                break
            if revisions := await self._in_history(key, pins[key]):
                return revisions
            not_applied = await self._held(key, pins[key])
        if not not_applied:
            raise self._unknown()
        self._lost, self._refused = None, True
        self._tries.clear()
        return None

    async def _in_history(self, key: str, pin: int) -> list[int] | None:
        """Return the revisions if the key's first entry after the expected one is still stored and of an attempt."""
        subject = self._target.subject(key)
        message = await self._patiently(subject, next_by_subj=subject, seq=pin + 1)
        return None if message is None else self._revisions(message.header, message.sequence)

    async def _held(self, key: str, pin: int) -> bool:
        """Return True if the expected entry still exists: then no later one has been evicted."""
        subject = self._target.subject(key)
        return bool(pin) and await self._patiently(subject, seq=pin) is not None

    async def _patiently(self, subject: str, **request: object) -> direct_get.StoredMessage | None:
        while True:
            try:
                message = await direct_get.from_leader(self._target.api, self._target.stream, **request)
                return message if message is not None and message.subject == subject else None
            except (PermissionDenied, StreamNotFound):
                raise self._unknown() from None
            except UnreachableError:
                await self._pause()

    async def _read_back(self, keys: list[str]) -> Mapping[str, Entry | None]:
        """Return the keys' last entries from the leader, once it answers. Raises OutcomeUnknown."""
        while True:
            try:
                return await bulk_get.get_many(self._bucket, keys, leader=True)
            except (PermissionDenied, BucketNotFound):
                raise self._unknown() from None
            except (UnreachableError, ServerError):
                await self._pause()

    def _revisions(self, header: bytes, sequence: int) -> list[int] | None:
        """Return the revisions of all changes if the message belongs to one of the attempts."""
        identity = header_value(header, b"Nats-Batch-Id")
        for one in self._tries:
            if identity == one.identity:
                first = sequence - int(header_value(header, b"Nats-Batch-Sequence") or 0)
                return [first + one.places[name] for name in self._keys]
        return None

    def _unknown(self) -> OutcomeUnknown:
        why = self._lost.message if self._lost else "no answer"
        keys = " ".join(self._keys[:3])
        return OutcomeUnknown(
            f"Could not find out if the transaction on bucket `{self._bucket.name}` was applied: {why}",
            hint=f"It was applied completely or not at all; check with `kvctl history {self._bucket.name} {keys}`",
        )


def _identity() -> bytes:
    return os.urandom(12).hex().encode()


def _revision(entry: Entry | None) -> int:
    return entry.revision if entry else 0
