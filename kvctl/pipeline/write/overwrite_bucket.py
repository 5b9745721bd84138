"""Overwrite a bucket: all rows are staged in a bucket beside it and counted, then its content is exchanged.

Tasks write into the stage, so that a job that fails leaves the bucket unchanged. The exchange is one process on the
driver: it writes the staged rows, key by key, then deletes other keys (markers; their history stays). It is not atomic:
until it ends, a reader sees some keys new and some old. Killed half-way it has to be run again, which stages all rows
again; the leftover stage is replaced, and a job that still writes into it fails.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import kvctl
from kvctl.errors import Away, KvctlError, PartlyDone, RefusedError, StreamNotFound, UsageError, WrongRevision
from kvctl.jetstream import streams
from kvctl.jetstream.publish import PublishWindow
from kvctl.kv.bucket import Bucket
from kvctl.kv.config import BucketConfig
from kvctl.kv.entry import Entry, Operation, operation_of
from kvctl.kv.load.bulk_writer import RowCounts
from kvctl.kv.load.leader_state import Current
from kvctl.kv.load.rows import Row, header_of
from kvctl.kv.load.target import Target, target_of
from kvctl.kv.names import MAX_BUCKET, RESERVED, STREAM_PREFIX, is_plain
from kvctl.kv.read import listing
from kvctl.kv.write.conditional_write import write_headers
from kvctl.kv.write.copied_headers import own_headers
from kvctl.pipeline.write.arrow_rows import Chunk
from kvctl.pipeline.write.publisher import Plan, Publisher
from kvctl.pipeline.write.row_ids import RowIds
from kvctl.pipeline.write.write_summary import SHOWN, Written

SUFFIX = "-overwrite"
MARK = "kvctl.overwrites"
TTL, STAGED_TTL = "Nats-TTL", "Kvctl-TTL"
"""A ttl does not run in the stage."""
PASSES = 5
"""Number of passes to find keys to delete, if connections are lost."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Staging bucket, identified by name and creation time."""

    bucket: str
    created: str


@dataclass(slots=True)
class Exchanged:
    """Result of an exchange."""

    counts: RowCounts
    removed: int = 0
    first_removed: tuple[str, ...] = ()
    """A few of the keys."""


async def begin(client: kvctl.Client, bucket: str) -> Stage:
    """Create the stage; one left by an earlier overwrite is removed. Raises as a put, RefusedError, UsageError."""
    target = await target_of(client.bucket(bucket))
    name = bucket + SUFFIX
    if len(name) > MAX_BUCKET:
        raise UsageError(
            f"The bucket's name is too long to overwrite: the staging bucket `{name}` would exceed the limit"
        )
    await discard(client, bucket)
    info = await streams.create(client.api, _stage_of(target, bucket, name))
    return Stage(name, info["created"])


async def discard(client: kvctl.Client, bucket: str, created: str | None = None) -> None:
    """Remove the stage of a bucket, of one stream instance or any. Raises RefusedError for another kind of bucket."""
    stream = STREAM_PREFIX + bucket + SUFFIX
    found = await streams.find(client.api, stream)
    if found is None or (created and found["created"] != created):
        return
    if (found["config"].get("metadata") or {}).get(MARK) != bucket:
        raise RefusedError(
            f"Staging bucket `{bucket + SUFFIX}` already exists and was not created by kvctl",
            hint="Rename it, or write to another bucket",
        )
    with suppress(StreamNotFound):
        await streams.delete(client.api, stream)


async def opened(client: kvctl.Client, stage: Stage, bucket: str) -> Target:
    """Open the stage to write into or read. Raises KvctlError if another overwrite has replaced it."""
    info = await streams.find(client.api, STREAM_PREFIX + stage.bucket)
    if info is None or info["created"] != stage.created:
        raise KvctlError(
            f"Another overwrite of `{bucket}` has started: this one ends",
            hint="Run only one overwrite of a bucket at a time",
        )
    return await target_of(client.bucket(stage.bucket))


def to_stage(chunk: Chunk, target: Target) -> Chunk:
    """Return the chunk as staged: rows that the bucket itself would not accept are bad, ttls do not run."""
    if not chunk.headers:
        return chunk
    for at in list(chunk.places()):
        if b"\r\nNats-TTL:" in chunk.headers[at]:
            try:
                target.check(chunk.asked(at).row)
            except UsageError as error:
                chunk.bad[at] = error.message
            chunk.headers[at] = chunk.headers[at].replace(f"\r\n{TTL}:".encode(), f"\r\n{STAGED_TTL}:".encode(), 1)
    return chunk


async def exchange(
    client: kvctl.Client, bucket: str, stage: Stage, written: int, ids: RowIds, *, if_different: bool = False
) -> Exchanged:
    """Replace the bucket's content by the staged rows, of which `written` were acknowledged.

    Raises KvctlError, with the bucket unchanged, if rows are missing or do not fit; PartlyDone half-way.
    """
    staged, target = await opened(client, stage, bucket), await target_of(client.bucket(bucket))
    _check(staged, target, written)
    before = int(target.info["state"]["last_seq"])
    result = Written(ids.job)
    publisher = Publisher(target, Plan(ids=ids, if_different=if_different, since=before), result.take)
    try:
        counts = await publisher.run(_staged_chunks(client.bucket(stage.bucket)))
        if counts.rejected:
            key, cause = result.samples[0]
            raise KvctlError(f"`{key}`: {cause}")
        await opened(client, stage, bucket)
        removed = await _remove_others(client, stage, target, staged, before)
    except KvctlError as error:
        raise PartlyDone(
            f"`{bucket}` is partly overwritten ({publisher.counts.written} entries written): {error.message}",
            hint="Run the same write again to complete it",
        ) from None
    return Exchanged(counts, len(removed), tuple(removed[:SHOWN]))


def unchanged(bucket: str) -> str:
    """Return the beginning of the message when an overwrite fails before the exchange."""
    return f"Bucket `{bucket}` is unchanged"


def _stage_of(target: Target, bucket: str, name: str) -> dict[str, Any]:
    config = target.info["config"]
    like = BucketConfig.from_stream(config)
    stage = BucketConfig(
        name, history=min(max(like.history, 1), 64), replicas=like.replicas, storage=like.storage,
        compress=like.compress, cluster=like.cluster, tags=like.tags, max_value_size=like.max_value_size,
        description=f"Staged rows that will replace the content of bucket {bucket}; a leftover if the job was killed",
    ).to_stream()  # fmt: skip
    if stage.get("max_msg_size", -1) > 0:
        stage["max_msg_size"] += len(STAGED_TTL) - len(TTL)
    return stage | {"metadata": {MARK: bucket}}


def _check(staged: Target, target: Target, written: int) -> None:
    stage, state, config = staged.info["state"], target.info["state"], target.info["config"]
    bucket = target.binding.bucket
    if stage["last_seq"] < written:
        raise KvctlError(f"{unchanged(bucket)}: only {stage['last_seq']} of {written} rows are staged")
    most = config.get("max_bytes", -1)
    if 0 < most < stage["bytes"] + state["bytes"]:
        raise KvctlError(
            f"{unchanged(bucket)}: no room for the staged {stage['bytes']} bytes",
            hint=f"`kvctl bucket edit {bucket} --max-bytes {stage['bytes'] + state['bytes']}` makes room",
        )


async def _staged_chunks(stage: Bucket) -> AsyncIterator[Chunk]:
    first = 0
    async for entries in stage.history_batches():
        chunk = Chunk(None, first, [e.key for e in entries], [e.value for e in entries], None, None)
        headers = [_header(entry) for entry in entries]
        if any(headers):
            chunk.headers = headers
        chunk.largest = max(map(len, chunk.values), default=0)
        first = chunk.end
        yield chunk


def _header(entry: Entry) -> bytes:
    """Return the headers to write a staged entry with, except its id."""
    if not entry.header or (b"\r\nKvctl-Row: " in entry.header and entry.header.count(b"\r\n") == 3):
        return b""
    headers = own_headers(entry)
    ttl = headers.pop(STAGED_TTL, None)
    return header_of(entry.key, entry.operation, {"headers": headers, "ttl": ttl})


async def _remove_others(client: kvctl.Client, stage: Stage, target: Target, staged: Target, before: int) -> list[str]:
    """Delete the keys that exist since before the exchange and are not staged; return their names.

    Concurrent writes by others stay. Raises KvctlError if another overwrite has started.
    """
    bucket = client.bucket(target.binding.bucket)
    removed: list[str] = []
    for _ in range(PASSES):
        lost: list[KvctlError] = []
        async for entries in listing.entry_batches(target.binding, [], values=False):
            old = [e for e in entries if e.revision <= before and not e.key.startswith(RESERVED)]
            missing = await _not_staged(staged, old)
            await opened(client, stage, bucket.name)  # missing keys in another's stage prove nothing
            await _remove(bucket, target, missing, removed, lost)
        if not lost:
            return removed
    raise lost[0]


async def _not_staged(staged: Target, entries: Sequence[Entry]) -> list[Entry]:
    """Return entries whose keys are not in the stage; all staged ones have been written since, if they differed."""
    current, missing = Current(staged.binding, staged.info), []
    for chunk in current.chunks([Row(at, entry.key, b"") for at, entry in enumerate(entries)]):
        last = await current.last(chunk)
        for row in chunk:
            found = last.get(row.key)
            if found is None or operation_of(found.header)[0] is not Operation.PUT:
                missing.append(entries[row.line])
    return missing


async def _remove(
    bucket: Bucket, target: Target, entries: Sequence[Entry], removed: list[str], lost: list[KvctlError]
) -> None:
    def done(entry: Entry, _: int) -> None:
        removed.append(entry.key)

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
                removed.append(entry.key)
