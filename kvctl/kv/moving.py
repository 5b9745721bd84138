"""Copy and rename a key, within a bucket or to another."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from kvctl.errors import KeyExists, KeyNotFound, KvctlError, NoServer, OutcomeUnknown, UsageError, WrongRevision
from kvctl.jetstream.batch import BatchMessage, publish_batch
from kvctl.jetstream.publish import Busy
from kvctl.kv.entry import Entry, Operation
from kvctl.kv.writing import EXPECTED, OPEN

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket


async def copy(source: Bucket, key: str, target: Bucket, new_key: str, *, overwrite: bool = False) -> int:
    """Write the key's value under another name; what is left of its ttl goes along. Returns the new revision.

    Raises KeyNotFound, KeyExists unless `overwrite`.
    """
    entry = await source.get(key, leader=True)
    return await _place(entry, target, new_key, overwrite)


async def rename(source: Bucket, key: str, target: Bucket, new_key: str, *, overwrite: bool = False) -> int:
    """Move a key: in one atomic batch where the bucket allows it, else the new name first, then the old one's deletion.

    Interrupted half-way it leaves both names, never neither. A key that changes meanwhile keeps its old name too, and
    WrongRevision says so. Raises KeyNotFound, KeyExists unless `overwrite`, OutcomeUnknown.
    """
    same = target.same_as(source)
    if same and key == new_key:
        raise UsageError("The new name is the old one")
    source._check_writable(key)
    target._check_writable(new_key)
    entry = await source.get(key, leader=True)
    binding = await source.readable()
    atomic = binding.info is not None and binding.info["config"].get("allow_atomic")
    if same and atomic and binding.origin is None and entry.ttl is None:
        return await _rename_at_once(source, entry, new_key, overwrite)
    revision = await _place(entry, target, new_key, overwrite)
    try:
        await source.delete(key, revision=entry.revision)
    except (WrongRevision, KeyNotFound) as error:
        raise WrongRevision(
            f"`{key}` changed while it was being renamed: its value of revision {entry.revision} is at `{new_key}`, "
            f"the new one at `{key}`",
            found=getattr(error, "found", None),
        ) from None
    return revision


async def _place(entry: Entry, target: Bucket, new_key: str, overwrite: bool) -> int:
    ttl = ttl_left(entry)
    if not overwrite:
        return await target.create(new_key, entry.value, ttl=ttl)
    if ttl is None:
        return await target.put(new_key, entry.value)
    last = await target.last_revision(new_key)
    return await target.update(new_key, entry.value, last, ttl=ttl)


async def _rename_at_once(bucket: Bucket, entry: Entry, new_key: str, overwrite: bool) -> int:
    last = await bucket.last_entry(new_key, leader=True)
    if last is not None and last.operation is Operation.PUT and not overwrite:
        raise KeyExists(f"`{new_key}` exists", revision=last.revision, hint="`--overwrite` replaces it")
    prefix = bucket.binding.write_prefix
    placed = {EXPECTED: str(last.revision if last else 0)}
    removed = {EXPECTED: str(entry.revision), "KV-Operation": "DEL"}
    batch = [(prefix + new_key, entry.value, placed), (prefix + entry.key, b"", removed)]
    try:
        sequence = await _store(bucket, batch, entry, new_key)
    except WrongRevision as error:
        raise WrongRevision(
            f"`{entry.key}` or `{new_key}` changed while it was being renamed: nothing was done", found=error.found
        ) from None
    bucket.own.note(new_key, sequence - 1)
    bucket.own.note(entry.key, sequence)
    return sequence - 1


async def _store(bucket: Bucket, batch: list[BatchMessage], entry: Entry, new_key: str) -> int:
    """The sequence of the batch's last message. A batch of conditions may be sent again: it is stored once at most."""
    connection = bucket.binding.api.connection
    deadline = time.monotonic() + 2 * connection.timeout
    lost: KvctlError | None = None
    while True:
        try:
            return await publish_batch(connection, batch)
        except WrongRevision as error:
            if lost is not None and (sequence := await _stored(bucket, entry, new_key)):
                return sequence
            if not isinstance(error, Busy) or time.monotonic() > deadline:
                raise
        except OPEN as error:
            lost = error
            if time.monotonic() > deadline:
                raise _unknown(bucket, entry.key, new_key, lost) from None
        except NoServer:
            if lost is not None:
                raise _unknown(bucket, entry.key, new_key, lost) from None
            raise
        await asyncio.sleep(random.uniform(0.01, 0.05))


async def _stored(bucket: Bucket, entry: Entry, new_key: str) -> int | None:
    """The sequence at which the key was renamed, if it was."""
    placed = await bucket.last_entry(new_key, leader=True)
    removed = await bucket.last_entry(entry.key, leader=True)
    if placed is None or removed is None or removed.operation is not Operation.DEL:
        return None
    return removed.revision if placed.value == entry.value and placed.revision == removed.revision - 1 else None


def _unknown(bucket: Bucket, key: str, new_key: str, error: KvctlError) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"It is not known whether `{key}` was renamed to `{new_key}`: {error.message}",
        hint=f"`kvctl keys {bucket.name} {key} {new_key}` shows the name it has; it has one",
    )


def ttl_left(entry: Entry) -> timedelta | None:
    """What is left of the entry's ttl, a second at least."""
    if entry.ttl is None:
        return None
    age = timedelta(microseconds=(time.time_ns() - entry.created_ns) // 1000)
    return max(timedelta(seconds=round((entry.ttl - age).total_seconds())), timedelta(seconds=1))
