"""Updates of a table: changes that are checked once, encoded, and stored together with those of other updates.

A small batch costs a server as much as one of some hundred changes, and a stream applies its batches one after the
other. All changes of a joint batch are applied or none, and so those of each update; if it is refused, only the updates
that are to blame fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kvctl.errors import (
    ConditionsFailed,
    KvctlError,
    OutcomeUnknown,
    PermissionDenied,
    ServerError,
    UsageError,
    WrongRevision,
)
from kvctl.jetstream.publish import BatchMessage
from kvctl.kv.transaction import execution
from kvctl.kv.transaction.group_commit import GroupCommit, GroupedWrite
from kvctl.kv.transaction.transaction import Transaction
from kvctl.tables.changes import NO_VERSION, NOT_EXISTS, Change, Remove, Version, named, refusal, unknown
from kvctl.tables.keys import MAX_KEY, check_key, partition_of, within_family
from kvctl.tokens import token

if TYPE_CHECKING:
    from kvctl.tables.stored_entries import TableLayout

IN_FLIGHT = 4
"""Batches in flight: more would only wait in the server, which accepts 50 for a stream."""
MAX_BATCH = 1000
"""Maximum number of changes in one batch (Pravega: 256)."""
MAX_BATCH_BYTES = 32 << 20
"""Maximum bytes of keys and values in one batch: a server drops batches when some 128 MiB of them wait in memory."""

_EXPECTED = b"Nats-Expected-Last-Subject-Sequence: %d\r\n"
_NEVER_WRITTEN = _EXPECTED % 0
_PURGE = b"KV-Operation: PURGE\r\nNats-Rollup: sub\r\n"


class KeySpace(NamedTuple):
    """Everything of a table that places its entries: prefix of their subjects, instance, and partitions."""

    prefix: str
    life: int
    partitions: int
    apart: bool
    """True if every partition is a separate stream, within which a batch stays."""
    max_value: int
    """Maximum size of a message in bytes."""


@dataclass(slots=True)
class TableBatch:
    """Changes with their messages and partitions, in their order."""

    space: KeySpace
    changes: Sequence[Change]
    messages: list[BatchMessage]
    """They assume that no inserted key was ever written, which needs no reading."""
    partitions: list[int]
    subjects: set[bytes]
    size: int
    """Bytes of keys and values."""
    foreign: bool
    """True if a version cannot belong to its entry."""
    guarded: bool
    """True if a change is only a condition, which has no message of its own."""

    def place(self, at: int) -> str:
        """Return the place of a change."""
        return self.messages[at][0].decode()[len(self.space.prefix) :]

    @property
    def places(self) -> list[str]:
        """Places of the changes, in their order: ends of the entries' subjects."""
        return [self.place(at) for at in range(len(self.messages))]


def prepare(changes: Sequence[Change], space: KeySpace) -> TableBatch:
    """Check the changes of a batch and encode them.

    Raises UsageError for invalid keys, repeated keys, too many changes or bytes, and keys of several partition streams.
    """
    if len(changes) > MAX_BATCH:
        raise UsageError(
            f"The batch has {len(changes):,} changes, the maximum is {MAX_BATCH:,}", hint="Use several batches"
        )
    batch = _encoded(changes, space)
    if len(batch.subjects) < len(changes):
        raise _repeated(changes)
    if batch.size > MAX_BATCH_BYTES:
        raise UsageError(
            f"The batch has {batch.size:,} bytes, the maximum is {MAX_BATCH_BYTES:,}", hint="Use several batches"
        )
    if space.apart and len(set(batch.partitions)) > 1:
        raise UsageError(
            "The batch has keys of several partitions, which are separate streams in this table",
            hint="Use keys of one family, which share a partition, or a table without `--partition-streams`",
        )
    if max([len(value) for _, value, _ in batch.messages], default=0) > space.max_value:
        raise _too_large(batch, space.max_value)
    return batch


def _encoded(changes: Sequence[Change], space: KeySpace) -> TableBatch:
    """Encode the changes in one loop, which takes most of the time of an update."""
    life, foreign, guarded, size = space.life, False, False, 0
    messages: list[BatchMessage] = []
    partitions: list[int] = []
    groups: dict[str, tuple[bytes, int, int]] = {}
    for change in changes:
        family, key, version = change.family, change.key, change.version
        if family is None:
            head, partition, room = _group(space, None, key)
        elif family in groups:
            head, partition, room = groups[family]
        else:
            head, partition, room = groups[family] = _group(space, family, key)
        if not 0 < len(key) <= room:
            check_key(family, key)
        if version.life:
            lines = _EXPECTED % (life + version.number)
            foreign = foreign or version.life != life or version.partition != partition
        else:
            lines = _NEVER_WRITTEN if version == NOT_EXISTS else b""
        if isinstance(change, Remove):
            value, lines, guarded = b"", _PURGE + lines, guarded or version == NOT_EXISTS
        else:
            value = change.value
        size += len(key) + len(value)
        partitions.append(partition)
        messages.append((head + token(key), value, lines))
    return TableBatch(space, changes, messages, partitions, {item[0] for item in messages}, size, foreign, guarded)


def _group(space: KeySpace, family: str | None, key: bytes) -> tuple[bytes, int, int]:
    """Return the beginning of a key's subject, its partition, and the maximum bytes of keys of its family."""
    if family:
        check_key(family, b"\0")  # the shortest key
    partition = partition_of(family, key, space.partitions)
    head = f"{space.prefix}{partition:04x}.{within_family(family)}."
    return head.encode(), partition, MAX_KEY - len((family or "").encode())


def versions(batch: TableBatch, revisions: Sequence[int]) -> list[Version | None]:
    """Return the versions that the changes made, None for removals."""
    life = batch.space.life
    return [
        None if isinstance(change, Remove) else Version(life, partition, revision - life)
        for change, partition, revision in zip(batch.changes, batch.partitions, revisions, strict=True)
    ]


def _repeated(changes: Sequence[Change]) -> UsageError:
    seen: set[tuple[str | None, bytes]] = set()
    for change in changes:
        if (change.family, change.key) in seen:
            break
        seen.add((change.family, change.key))
    return UsageError(f"{named(change.family, change.key)} appears twice in the batch")


def _too_large(batch: TableBatch, limit: int) -> UsageError:
    sizes = [len(value) for _, value, _ in batch.messages]
    change, size = next(item for item in zip(batch.changes, sizes, strict=True) if item[1] > limit)
    return UsageError(
        f"The value of {named(change.family, change.key)} is {size:,} bytes, the maximum is {limit:,}",
        hint="The limit is the server's `max_payload`, headers included",
    )


Versions = list[Version | None]


class TableUpdate(GroupedWrite[Versions]):
    """A caller's batch, and its outcome."""

    def __init__(self, batch: TableBatch, absent: frozenset[str]) -> None:
        super().__init__(len(batch.messages), batch.size)
        self.batch = batch
        self.absent = absent
        """Places of removals without an entry: they must stay absent instead of being removed."""

    @property
    def ready(self) -> bool:
        """True if the messages of the batch can be sent as they are."""
        return not self.absent and not self.batch.guarded


def update_queue(layout: TableLayout) -> GroupCommit[TableUpdate]:
    """Return the queue of updates of one stream."""
    return GroupCommit(lambda group: store(layout, group), admission, in_flight=IN_FLIGHT)


def admission() -> Callable[[TableUpdate], bool]:
    """Return a function that adds updates to a batch which share no entry."""
    subjects: set[bytes] = set()

    def admit(update: TableUpdate) -> bool:
        independent = subjects.isdisjoint(update.batch.subjects)
        if independent:
            subjects.update(update.batch.subjects)
        return independent

    return admit


async def store(layout: TableLayout, group: Sequence[TableUpdate], *, fresh: bool = True) -> None:
    """Apply updates of one stream in one batch; if it is refused, only those that are to blame fail.

    `fresh` assumes that no inserted key was ever written. If only markers of removed entries conflict, or an absent
    entry has appeared, the update is repeated without.
    """
    try:
        made = await _commit(layout, group, fresh=fresh)
    except ConditionsFailed as error:
        await _refused(layout, group, error, fresh=fresh)
    except OutcomeUnknown:
        for update in group:
            first = update.batch.changes[0]
            update.fail(unknown(layout.config.name, first.family, first.key))
    except (UsageError, ServerError, PermissionDenied, WrongRevision) as error:
        if len(group) == 1:
            group[0].fail(error)
        else:  # one of them may be to blame
            await asyncio.gather(*(store(layout, [update]) for update in group))
    except KvctlError as error:
        for update in group:
            update.fail(error)
    else:
        for update, own in zip(group, made, strict=True):
            update.succeed(own)


async def _refused(layout: TableLayout, group: Sequence[TableUpdate], error: ConditionsFailed, *, fresh: bool) -> None:
    """Fail the updates whose conditions do not hold, and apply the others."""
    found = {failure.key: layout.entry(failure.key, failure.found) for failure in error.failures}
    others = []
    for update in group:
        places = update.batch.places
        if len(group) > 1 and found.keys().isdisjoint(places):
            others.append(update)
            continue
        problem = refusal(layout.config.name, zip(places, update.batch.changes, strict=True), found)
        if problem.failed or not fresh:
            update.fail(problem)
        else:
            await store(layout, [update], fresh=False)
    if len(others) == len(group):  # the keys cannot be read
        await asyncio.gather(*(store(layout, [update]) for update in others))
    elif others:
        await store(layout, others)


async def _commit(layout: TableLayout, group: Sequence[TableUpdate], *, fresh: bool) -> list[Versions]:
    """Commit updates together, and return the versions of each."""

    def transaction() -> Transaction:
        made = Transaction()
        for update in group:
            for place, change in zip(update.batch.places, update.batch.changes, strict=True):
                if fresh and place in update.absent:
                    made.expect(place, absent=True)
                else:
                    _add(layout, made, place, change, fresh=fresh)
        return made

    first = group[0].batch.place(0)
    bucket = layout.bucket(first)
    try:
        if fresh and all(update.ready for update in group):
            messages = [message for update in group for message in update.batch.messages]
            committed = execution.commit_ready(bucket, messages, transaction)
            revisions = iter(await layout.mapped(committed, first))
            return [versions(update.batch, [next(revisions) for _ in update.batch.messages]) for update in group]
        whole = transaction()
        written = await layout.mapped(bucket.commit(whole), first)
    except WrongRevision:
        await layout.check_life(now=True)
        raise
    at = dict(zip((change.key for change in whole.changes), written, strict=True))
    return [versions(update.batch, [at.get(place, 0) for place in update.batch.places]) for update in group]


def _add(layout: TableLayout, transaction: Transaction, place: str, change: Change, *, fresh: bool) -> None:
    """Add a change to the transaction."""
    version = change.version
    revision = None if version.special else layout.sequence(version)
    if isinstance(change, Remove):
        if version == NOT_EXISTS:
            transaction.expect(place, absent=True)
        else:
            transaction.purge(place, revision=revision)
    elif revision is not None:
        transaction.update(place, change.value, revision)
    elif version == NO_VERSION:
        transaction.put(place, change.value)
    elif fresh:
        transaction.update(place, change.value, 0)
    else:
        transaction.create(place, change.value)
