"""Copy, rename and touch a key: its value is written again, within a bucket or to another."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from kvctl.errors import ConditionsFailed, KeyExists, KeyNotFound, OutcomeUnknown, UsageError, WrongRevision
from kvctl.kv import conditional_write
from kvctl.kv.copied_entry import own_headers, remaining_ttl
from kvctl.kv.entry import Entry, Operation
from kvctl.kv.transaction.transaction import Transaction
from kvctl.units import NEVER
from kvctl.wire import encode_headers

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket

ATTEMPTS = 8
"""Maximum number of attempts for a key that others write concurrently."""


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
    transaction.delete(entry.key, revision=entry.revision, ttl=ttl if ttl == NEVER else None)
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


async def touch(bucket: Bucket, key: str, ttl: timedelta) -> int:
    """Write the key's current value with its headers and a new ttl; return the revision. Raises as `Bucket.touch`."""
    conditional_write.write_fields(ttl=ttl)  # raises for a ttl that is too short before anything is sent
    bucket.check_writable(key)
    for _ in range(ATTEMPTS):
        entry = await bucket.get(key, leader=True)
        fields = conditional_write.write_fields(expected=entry.revision, ttl=ttl)
        header = encode_headers({**own_headers(entry), **fields})
        try:
            return await bucket.write_message(key, entry.value, header, entry.revision)
        except WrongRevision:
            continue
    raise WrongRevision(f"`{key}` is being written concurrently and could not be touched", hint="Try again")
