"""Make a live bucket equal to a commit: differing keys are written on condition that they are still as read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from kvctl.errors import (
    ConditionsFailed,
    ConnectionLost,
    KvctlError,
    NoResponders,
    OutcomeUnknown,
    PartlyDone,
    RequestTimeout,
    WrongRevision,
)
from kvctl.jetstream.consumers.message import delivery
from kvctl.jetstream.consumers.ordered_consumer import OrderedConsumer
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.jetstream.publish import PublishWindow
from kvctl.kv import conditional_write
from kvctl.kv.bucket import Bucket
from kvctl.kv.conditional_write import write_headers
from kvctl.kv.entry import Entry, Operation
from kvctl.kv.identity import Series, identity_of, most_bytes
from kvctl.kv.read import bulk_get
from kvctl.kv.resolve import Binding
from kvctl.kv.transaction.transaction import LIMIT, Transaction
from kvctl.units import NEVER
from kvctl.versions import refs
from kvctl.versions.model import VersionedEntry
from kvctl.versions.ref_diff import ChangeKind
from kvctl.versions.repository import Repository
from kvctl.versions.transfer.record_bucket import Live, is_legal, read_bucket
from kvctl.versions.tree.chunks import object_id

TOGETHER_BYTES = 16 << 20
"""Maximum bytes of one batch."""

_OPEN = (WrongRevision, RequestTimeout, ConnectionLost, NoResponders)
"""Errors after which the key itself shows the result of the write."""

Advance = Callable[[int], None]
"""Callback that receives the number of further keys done."""


@dataclass(frozen=True, slots=True)
class Step:
    """One key that differs."""

    kind: ChangeKind
    key: str
    value: bytes
    revision: int
    """Revision of the key's last entry when read, deletions included; 0 for none. It is the condition of the write."""

    ttl: timedelta | None = None
    """NEVER for a key that must not expire; a commit does not hold ttls, so that the bucket's is kept."""

    @property
    def header(self) -> bytes:
        """Return the header block of its message."""
        operation = "DEL" if self.kind is ChangeKind.REMOVED else None
        return write_headers(operation=operation, expected=self.revision, ttl=self.ttl)

    def is_done_in(self, entry: Entry | None) -> bool:
        """Return whether the key is in the state that the step produces; `entry` is its last entry, if any."""
        lives = entry is not None and entry.operation is Operation.PUT
        return (
            not lives if self.kind is ChangeKind.REMOVED else entry is not None and lives and entry.value == self.value
        )


@dataclass(frozen=True, slots=True)
class CheckoutPlan:
    """Changes that make a bucket equal to a commit."""

    commit: str
    bucket: str
    revision: int
    """Revision at which the bucket was read."""
    steps: Sequence[Step]
    """Changes, by key."""
    unchanged: int
    foreign: Sequence[str]
    """Keys of the bucket that no commit can hold; they stay."""
    adorned: Sequence[str]
    """Keys that have a ttl or headers now, and lose them."""


@dataclass(slots=True)
class CheckoutResult:
    """Result of a checkout."""

    done: int = 0
    changed_meanwhile: list[str] = field(default_factory=list)
    """Keys that others changed after they were read; they were left unchanged."""
    done_by_others: list[str] = field(default_factory=list)
    """Keys to which others wrote the commit's value after they were read."""
    at_once: bool = False
    """True if all changes were one atomic batch."""
    written_by_others: list[str] = field(default_factory=list)
    """Other keys written after the bucket was read and before the last change: it differs from the commit."""
    revisions: set[int] = field(default_factory=set)
    """Revisions of the changes."""


async def plan(repository: Repository, ref: str, bucket: Bucket, *, dry_run: bool = False) -> CheckoutPlan:
    """Compare a commit with a live bucket. Raises RefNotFound, BucketNotFound, ReadOnly, HazardRefused.

    With `dry_run` the bucket may be read-only.
    """
    commit = await refs.committed(repository.store, ref)
    found = await read_bucket(bucket, object_id)
    if not dry_run:
        bucket.check_writable(None)
    bucket.check_writes_go_somewhere()
    left = set(found.keys)
    steps: list[Step] = []
    async for batch in repository.entry_batches(commit):
        for entry in batch:
            left.discard(entry.key)
            if step := _step(entry, found):
                steps.append(step)
    steps += (Step(ChangeKind.REMOVED, key, b"", found.keys[key][0]) for key in left)
    touched = {step.key for step in steps}
    return CheckoutPlan(
        commit,
        bucket.name,
        found.revision,
        sorted(steps, key=lambda step: step.key.encode()),
        unchanged=len(found.keys) - sum(step.kind is not ChangeKind.ADDED for step in steps),
        foreign=sorted(found.foreign),
        adorned=sorted(found.adorned & touched),
    )


async def apply(rollout: CheckoutPlan, bucket: Bucket, *, advance: Advance = lambda _: None) -> CheckoutResult:
    """Apply a plan; up to 1,000 changes atomically if the bucket allows atomic batches, else each by itself.

    After a failure, planning and applying again completes it. Raises PartlyDone, and as `Bucket.put` if nothing was
    done.
    """
    if not rollout.steps:
        return CheckoutResult()
    if await _takes_batches(bucket) and _fits(rollout.steps):
        done = await _at_once(rollout, bucket, advance)
    else:
        done = await _Each(bucket, (await bucket.locate()).source, advance).run(rollout.steps)
    done.written_by_others = await _written_by_others(rollout, done, bucket)
    return done


async def _written_by_others(rollout: CheckoutPlan, done: CheckoutResult, bucket: Bucket) -> list[str]:
    """Return keys legal by ADR-8 that were written between the read and the last change, other than by the changes."""
    last = max(done.revisions, default=0)
    if last - rollout.revision <= len(done.revisions):
        return []
    binding = (await bucket.locate()).source
    start = Selection(
        subjects=(binding.subject(">"),), deliver="by_start_sequence", start=rollout.revision + 1, headers_only=True
    )
    keys: set[str] = set()
    async with OrderedConsumer(binding.api, binding.stream, start) as consumer:
        async for batch in consumer.batches():
            for subject, reply, _, _ in batch:
                sequence = delivery(reply)[0]
                if sequence < last and sequence not in done.revisions:
                    keys.add(subject.decode()[len(binding.prefix) :])
            if batch and delivery(batch[-1][1])[0] >= last:
                break
    reported = {*done.changed_meanwhile, *done.done_by_others}
    return sorted(key for key in keys - reported if is_legal(key))


def _step(entry: VersionedEntry, found: Live[bytes]) -> Step | None:
    known = found.keys.get(entry.key)
    if known is None:
        return Step(ChangeKind.ADDED, entry.key, entry.value, found.deleted.get(entry.key, 0))
    if known[1] == object_id(entry.value):
        return None
    return Step(ChangeKind.CHANGED, entry.key, entry.value, known[0], NEVER if entry.key in found.lasting else None)


async def _takes_batches(bucket: Bucket) -> bool:
    binding = await bucket.locate()
    return binding.source is binding and bool(binding.info and binding.info["config"].get("allow_atomic"))


def _fits(steps: Sequence[Step]) -> bool:
    return len(steps) <= LIMIT and sum(len(step.value) for step in steps) <= TOGETHER_BYTES


async def _at_once(rollout: CheckoutPlan, bucket: Bucket, advance: Advance) -> CheckoutResult:
    transaction = Transaction()
    for step in rollout.steps:
        if step.kind is ChangeKind.REMOVED:
            transaction.delete(step.key, revision=step.revision)
        else:
            transaction.update(step.key, step.value, step.revision, ttl=step.ttl)
    try:
        revisions = await bucket.commit(transaction)
    except ConditionsFailed as error:
        return CheckoutResult(0, sorted({failure.key for failure in error.failures}), at_once=True)
    advance(len(rollout.steps))
    return CheckoutResult(len(rollout.steps), at_once=True, revisions=set(revisions))


class _Each:
    """Writes the changes key by key, thousands in flight; unresolved ones are found by their identity.

    Each change is conditional on its key's revision, so that of those sent again at most one is stored.
    """

    def __init__(self, bucket: Bucket, binding: Binding, advance: Advance) -> None:
        self._bucket = bucket
        self._binding = binding
        self._advance = advance
        config = binding.info["config"] if binding.info else {}
        self._connection = binding.api.connection
        self._ids = Series(most_bytes(self._connection.max_payload, config))
        self._epoch = self._connection.epoch
        self._result = CheckoutResult()
        self._open: list[tuple[int, Step, KvctlError]] = []
        self._fatal: KvctlError | None = None

    async def run(self, steps: Sequence[Step]) -> CheckoutResult:
        async with PublishWindow(self._connection, self._done, self._failed, resend=True) as window:
            await window.send_all(self._messages(steps), lambda: self._fatal)
        if self._open and self._fatal is None:
            await self._settle()
        if self._fatal is not None:
            raise self._broken_off(len(steps), self._fatal)
        return self._result

    def _messages(self, steps: Sequence[Step]) -> Iterator[tuple[tuple[int, Step], bytes, bytes, bytes]]:
        prefix = self._binding.write_prefix
        for number, step in enumerate(steps):
            header = self._ids.block(number, step.header, step.value)
            yield (number, step), (prefix + step.key).encode(), step.value, header

    def _done(self, tag: tuple[int, Step], revision: int) -> None:
        key = tag[1].key
        self._result.done += 1
        self._result.revisions.add(revision)
        self._bucket.own.note(key, revision)
        self._advance(1)

    def _failed(self, tag: tuple[int, Step], error: KvctlError) -> None:
        if isinstance(error, _OPEN):
            self._open.append((*tag, error))
        else:
            self._fatal = self._fatal or error

    async def _settle(self) -> None:
        """Read the keys whose writes were refused or not acknowledged."""
        try:
            found = await bulk_get.get_many(self._bucket, [step.key for _, step, _ in self._open], leader=True)
            for number, step, cause in self._open:
                await self._settle_one(number, step, found.get(step.key), cause)
        except KvctlError as error:
            self._fatal = error

    async def _settle_one(self, number: int, step: Step, entry: Entry | None, cause: KvctlError) -> None:
        revision = entry.revision if entry else 0
        if entry is not None and self._ids.number(entry.header) == number:
            self._done((number, step), revision)
        elif revision == step.revision:
            self._fatal = self._fatal or cause
        elif stored := await self._under_others(number, step, cause):
            self._done((number, step), stored)
        elif step.is_done_in(entry):
            self._result.done_by_others.append(step.key)
        else:
            self._result.changed_meanwhile.append(step.key)

    async def _under_others(self, number: int, step: Step, cause: KvctlError) -> int:
        """Return the revision of a change that others have overwritten; 0 if it apparently was not stored."""
        if isinstance(cause, WrongRevision) and self._connection.epoch == self._epoch:
            return 0  # the response to the only message
        identity = identity_of(self._ids.block(number, step.header, step.value))
        write = conditional_write.SentWrite(self._binding, step.key, identity, step.revision)
        try:
            return await conditional_write.resolve(write, cause) or 0
        except (WrongRevision, OutcomeUnknown):
            return 0

    def _broken_off(self, total: int, error: KvctlError) -> KvctlError:
        if not self._result.done:
            return error
        return PartlyDone(
            f"Stopped after {self._result.done} of {total} keys: {error.message}", hint="Run it again to complete it"
        )
