"""Copy and rename a key, within a bucket or to another."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kvctl.errors import ConditionsFailed, KeyExists, KeyNotFound, OutcomeUnknown, UsageError, WrongRevision
from kvctl.jetstream.streams import ServerClock
from kvctl.kv.entry import Entry, Operation
from kvctl.kv.transaction.transaction import Transaction

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket


async def copy(source: Bucket, key: str, target: Bucket, new_key: str, *, overwrite: bool = False) -> int:
    """Write the key's value under another name with its remaining ttl; return the new revision.

    Raises KeyNotFound, KeyExists unless `overwrite`.
    """
    entry = await source.get(key, leader=True)
    return await _place(source, entry, target, new_key, overwrite)


async def rename(source: Bucket, key: str, target: Bucket, new_key: str, *, overwrite: bool = False) -> int:
    """Move a key: in one atomic batch if the bucket allows it, else write the new name, then delete the old one.

    An interruption may leave both names, never neither. A key that changes in the meantime also keeps its old name and
    raises WrongRevision. Raises KeyNotFound, KeyExists unless `overwrite`, OutcomeUnknown.
    """
    same = target.same_as(source)
    if same and key == new_key:
        raise UsageError("The new name equals the old one")
    source.check_writable(key)
    target.check_writable(new_key)
    entry = await source.get(key, leader=True)
    binding = await source.readable()
    atomic = binding.info is not None and binding.info["config"].get("allow_atomic")
    if same and atomic and binding.origin is None:
        return await _rename_at_once(source, entry, new_key, overwrite)
    revision = await _place(source, entry, target, new_key, overwrite)
    try:
        await source.delete(key, revision=entry.revision)
    except (WrongRevision, KeyNotFound) as error:
        raise WrongRevision(
            f"`{key}` changed while it was being renamed: its value of revision {entry.revision} is at `{new_key}`, "
            f"the new one at `{key}`",
            found=getattr(error, "found", None),
        ) from None
    return revision


async def _place(source: Bucket, entry: Entry, target: Bucket, new_key: str, overwrite: bool) -> int:
    ttl = await remaining_ttl(source, entry)
    if not overwrite:
        return await target.create(new_key, entry.value, ttl=ttl)
    if ttl is None:
        return await target.put(new_key, entry.value)
    last = await target.last_revision(new_key)
    return await target.update(new_key, entry.value, last, ttl=ttl)


async def _rename_at_once(bucket: Bucket, entry: Entry, new_key: str, overwrite: bool) -> int:
    last = await bucket.last_entry(new_key, leader=True)
    if last is not None and last.operation is Operation.PUT and not overwrite:
        raise KeyExists(f"`{new_key}` already exists", revision=last.revision, hint="Replace it with `--overwrite`")
    ttl = await remaining_ttl(bucket, entry)
    transaction = Transaction().update(new_key, entry.value, last.revision if last else 0, ttl=ttl)
    transaction.delete(entry.key, revision=entry.revision)
    try:
        return (await bucket.commit(transaction))[0]
    except ConditionsFailed as error:
        found = [failure.found.revision for failure in error.failures if failure.found is not None]
        raise WrongRevision(
            f"`{entry.key}` or `{new_key}` changed while it was being renamed: nothing was changed",
            found=found[0] if found else None,
        ) from None
    except OutcomeUnknown as error:
        raise OutcomeUnknown(
            f"Could not find out if `{entry.key}` was renamed to `{new_key}`: {error.message}",
            hint=f"It has one of the two names; check with `kvctl keys {bucket.name} {entry.key} {new_key}`",
        ) from None


async def remaining_ttl(bucket: Bucket, entry: Entry) -> timedelta | None:
    """Return the remaining ttl of an entry read from the bucket's leader. Raises as `ServerClock.read`."""
    if entry.ttl is None:
        return None
    source = bucket.binding.source
    clock = await ServerClock.read(source.api, source.stream)
    return ttl_left(entry, clock.now_ns())


def ttl_left(entry: Entry, now_ns: int) -> timedelta | None:
    """Return the remaining ttl by the server's clock, at least one second."""
    if entry.ttl is None:
        return None
    age = timedelta(microseconds=(now_ns - entry.created_ns) // 1000)
    return max(timedelta(seconds=round((entry.ttl - age).total_seconds())), timedelta(seconds=1))
