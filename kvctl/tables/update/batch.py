"""Changes of one update, checked once, with their places and their messages. [pure]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvctl.errors import UsageError
from kvctl.jetstream.atomic_batch import BatchMessage
from kvctl.kv.ordered_token import token
from kvctl.tables.changes import NOT_EXISTS, Change, Remove, Version, named
from kvctl.tables.keys import MAX_KEY, check_key, partition_of, within_family

MAX_BATCH = 1000
"""Maximum number of changes in one batch (Pravega: 256)."""
MAX_BATCH_BYTES = 32 << 20
"""Maximum bytes of keys and values in one batch: a server drops batches when some 128 MiB of them wait in memory."""

_EXPECTED = b"Nats-Expected-Last-Subject-Sequence: %d\r\n"
_NEVER_WRITTEN = _EXPECTED % 0
_PURGE = b"KV-Operation: PURGE\r\nNats-Rollup: sub\r\n"


@dataclass(frozen=True, slots=True)
class KeySpace:
    """Everything of a table that places its entries: prefix of their subjects, instance, and partitions."""

    prefix: str
    life: int
    partitions: int
    apart: bool
    """True if every partition is a separate stream, within which a batch stays."""
    max_value: int
    """Maximum size of a message in bytes."""


@dataclass(slots=True)
class Batch:
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


def prepare(changes: Sequence[Change], space: KeySpace) -> Batch:
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


def _encoded(changes: Sequence[Change], space: KeySpace) -> Batch:
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
    return Batch(space, changes, messages, partitions, {item[0] for item in messages}, size, foreign, guarded)


def _group(space: KeySpace, family: str | None, key: bytes) -> tuple[bytes, int, int]:
    """Return the beginning of a key's subject, its partition, and the maximum bytes of keys of its family."""
    if family:
        check_key(family, b"\0")  # the shortest key
    partition = partition_of(family, key, space.partitions)
    head = f"{space.prefix}{partition:04x}.{within_family(family)}."
    return head.encode(), partition, MAX_KEY - len((family or "").encode())


def versions(batch: Batch, revisions: Sequence[int]) -> list[Version | None]:
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


def _too_large(batch: Batch, limit: int) -> UsageError:
    sizes = [len(value) for _, value, _ in batch.messages]
    change, size = next(item for item in zip(batch.changes, sizes, strict=True) if item[1] > limit)
    return UsageError(
        f"The value of {named(change.family, change.key)} is {size:,} bytes, the maximum is {limit:,}",
        hint="The limit is the server's `max_payload`, headers included",
    )
