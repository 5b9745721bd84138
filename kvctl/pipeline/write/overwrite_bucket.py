"""Overwrite a bucket: all rows are written as in an append, then the keys that are not among them are deleted.

An overwrite that fails deletes nothing, but may have replaced values. It is not atomic: until it ends, a reader sees
some keys new and some old. Run it again to complete it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvctl.errors import Away, KvctlError, WrongRevision
from kvctl.jetstream.publish import PublishWindow
from kvctl.kv.bucket import Bucket
from kvctl.kv.bulk.bulk_writer import WriteTarget, target_of
from kvctl.kv.conditional_write import write_headers
from kvctl.kv.entry import Entry
from kvctl.kv.names import RESERVED, is_plain
from kvctl.kv.read import listing
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.worker_connection import connected

PASSES = 5
"""Number of passes to delete keys, if connections are lost."""


async def remove_others(options: SourceOptions, since: int) -> int:
    """Delete the keys that were last written at this revision or before; return their number.

    All rows were written since, and so were keys that other clients wrote in the meantime: those stay.
    """
    async with connected(options) as client:
        bucket = client.bucket(options.bucket)
        target = await target_of(bucket)
        removed: set[str] = set()
        for _ in range(PASSES):
            lost: list[KvctlError] = []
            async for entries in listing.entry_batches(target.binding, [], values=False):
                old = [e for e in entries if e.revision <= since and not e.key.startswith(RESERVED)]
                await _remove(bucket, target, old, removed, lost)
            if not lost:
                return len(removed)
        raise lost[0]


async def _remove(
    bucket: Bucket, target: WriteTarget, entries: Sequence[Entry], removed: set[str], lost: list[KvctlError]
) -> None:
    """Delete entries on condition of their revisions."""

    def done(entry: Entry, _: int) -> None:
        removed.add(entry.key)

    def failed(_: Entry, error: KvctlError) -> None:
        if isinstance(error, Away):
            lost.append(error)
        elif not isinstance(error, WrongRevision):  # else it was written concurrently
            raise error

    prefix = target.binding.write_prefix
    async with PublishWindow(target.binding.api.connection, done, failed) as window:
        for entry in entries:
            if is_plain(entry.key):
                subject = (prefix + entry.key).encode(errors="surrogateescape")
                header = write_headers(operation="DEL", expected=entry.revision)
                await window.send(entry, subject, b"", header)
            else:
                await bucket.delete_literal(entry.key)
                removed.add(entry.key)
