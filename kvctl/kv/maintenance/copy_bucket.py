"""Copy a bucket: its configuration, and its current values or its full history with operations and order."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from kvctl.errors import BucketExists, ConflictError, KvctlError, RefusedError, StreamNotFound, UsageError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.publish import PublishWindow
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.jetstream.streams import ServerClock
from kvctl.kv import catalog
from kvctl.kv.bucket import Bucket
from kvctl.kv.conditional_write import write_fields
from kvctl.kv.config import DUPLICATE_WINDOW
from kvctl.kv.copied_entry import may_roll_up, own_headers, ttl_left
from kvctl.kv.entry import Entry
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX, check_bucket
from kvctl.kv.stream_kind import UNFINISHED, Kind, kind_of, own_metadata
from kvctl.units import duration_ns
from kvctl.wire import encode_headers, header_value

Advance = Callable[[int], None]
"""Called with the number of entries done."""

LATEST, HISTORY = "latest", "history"

_NOT_OF_A_BUCKET = ("mirror", "sources", "mirror_direct", "first_seq", "sealed", "deny_purge", "subject_transform")
_ATTEMPTS = 3
_CLEANUP_TIMEOUT_S = 2.0
"""Seconds for one request during cleanup: the server may be what failed."""
_DIGEST = 16


@dataclass(frozen=True, slots=True)
class CopySummary:
    """Result of a copy."""

    info: StreamInfo
    created: bool
    """False if the target existed with the same configuration and was empty."""
    entries: int


def copied_config(stream: StreamConfig, name: str, changes: StreamConfig | None = None) -> StreamConfig:
    """Build the stream configuration of a copy: an ordinary bucket, even from a mirror or aggregate."""
    check_bucket(name)
    source = f"{SUBJECT_PREFIX}{stream['name'].removeprefix(STREAM_PREFIX)}."
    target = f"{SUBJECT_PREFIX}{name}."
    kept = {field: value for field, value in stream.items() if field not in _NOT_OF_A_BUCKET}
    window = stream.get("duplicate_window") or min(duration_ns(DUPLICATE_WINDOW), stream.get("max_age") or 2**62)
    copied: StreamConfig = {
        **kept,
        "name": STREAM_PREFIX + name,
        "subjects": [target + ">"],
        "discard": "new",
        "duplicate_window": window,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "metadata": own_metadata(stream),
        **(changes or {}),
    }
    if stream.get("republish"):
        src = stream["republish"].get("src", "")
        copied["republish"] = {**stream["republish"], "src": src.replace(source, target, 1)}
    return copied


async def copy(
    source: Bucket,
    api: Api,
    name: str,
    *,
    data: str | None = None,
    changes: StreamConfig | None = None,
    advance: Advance = lambda _: None,
) -> CopySummary:
    """Create the bucket `name` like the source, and with `data` (`latest` or `history`) fill it.

    Revisions and times are the copy's own; a key keeps its remaining ttl, the bucket's ttl starts over. A failed copy
    is removed. Raises BucketExists (with another configuration, or with entries), BucketNotFound, UsageError.
    """
    binding = await source.locate(fresh=True)
    assert binding.info is not None
    clock = ServerClock.from_info(binding.info)
    _require_bucket(source.name, binding.info["config"])
    wanted = copied_config(binding.info["config"], name, changes)
    if (
        wanted["name"] == binding.stream
        and api.prefix == binding.api.prefix
        and api.connection is binding.api.connection
    ):
        raise UsageError(f"`{name}` is the source bucket", hint="Use another name")
    existing = await streams.find(api, wanted["name"])
    if existing is not None and mark_of(existing):
        await clear_away(api, existing)
        existing = None
    if data is None:
        made = await catalog.create_like(api, wanted)
        return CopySummary(made.info, made.created, 0)
    if existing is not None:
        _require_empty(name, existing, wanted)
    return await _fill(source, api, wanted, existing, data, clock, advance)


async def _fill(
    source: Bucket,
    api: Api,
    wanted: StreamConfig,
    existing: StreamInfo | None,
    data: str,
    clock: ServerClock,
    advance: Advance,
) -> CopySummary:
    token = new_token()
    try:
        if existing is None:
            await catalog.refuse_namesake(api, wanted["name"].removeprefix(STREAM_PREFIX))
            info = await catalog.create_stream(api, marked(wanted, token))
        else:
            info = await catalog.apply_edit(api, catalog.Edit(existing, marked(existing["config"], token)))
        count = await _transfer(source, api, wanted["name"], data, clock, advance)
        info = await _unmark(api, info)
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and not api.connection.online:
            raise  # a signal does not wait for the server: the next attempt clears what stays
        if existing is None:
            await remove(api, wanted["name"], token)
        else:
            await _empty_again(api, existing)
        raise
    return CopySummary(info, existing is None, count)


async def _unmark(api: Api, info: StreamInfo) -> StreamInfo:
    finished = {**info["config"], "metadata": own_metadata(info["config"])}
    return await catalog.apply_edit(api, catalog.Edit(info, finished))


async def _empty_again(api: Api, info: StreamInfo) -> None:
    with suppress(KvctlError):  # leftovers then carry the mark
        await streams.purge(api, info["config"]["name"])
        await _unmark(api, await streams.info(api, info["config"]["name"]))


def _require_bucket(name: str, config: StreamConfig) -> None:
    kind = kind_of(config)
    if kind is Kind.INCOMPLETE:
        raise RefusedError(f"`{name}` is incomplete: an interrupted restore or copy left it")
    if kind is Kind.STREAM:
        raise RefusedError(f"`{name}` is not a bucket, although its stream is named like one")


def _require_empty(name: str, existing: StreamInfo, wanted: StreamConfig) -> None:
    catalog.require_same(existing["config"], wanted)
    if existing["state"]["messages"]:
        raise BucketExists(
            f"Bucket `{name}` is not empty: it has {existing['state']['messages']} entries",
            hint="Copy into a new bucket, or omit `--data`",
        )


async def _transfer(source: Bucket, api: Api, stream: str, data: str, clock: ServerClock, advance: Advance) -> int:
    """Send every entry, wait for every acknowledgement, and return their number. Raises ConflictError, KvctlError."""
    target = f"{api.write_prefix}{SUBJECT_PREFIX}{stream.removeprefix(STREAM_PREFIX)}."
    failures: list[tuple[str, KvctlError]] = []
    done = 0

    def acknowledged(_: str, __: int) -> None:
        nonlocal done
        done += 1

    window = PublishWindow(api.connection, acknowledged, lambda key, error: failures.append((key, error)))
    sent = 0
    async with window, aclosing(_batches(source, data)) as batches:
        async for batch in batches:
            for entry in batch:
                subject = (target + entry.key).encode(errors="surrogateescape")
                await window.send(entry.key, subject, entry.value, headers_to_keep(entry, clock))
            sent += len(batch)
            advance(len(batch))
            if failures:
                break
    if failures:
        key, error = failures[0]
        raise type(error)(f"`{key}` could not be copied: {error.message}", hint=error.hint)
    if done != sent:
        raise ConflictError(f"Only {done} of {sent} entries were acknowledged")
    return done


def _batches(source: Bucket, data: str) -> AsyncGenerator[list[Entry]]:
    return source.history_batches() if data == HISTORY else source.entry_batches()


def headers_to_keep(entry: Entry, clock: ServerClock) -> bytes:
    """Build the headers of a copied entry: the writer's own, the operation, and the remaining ttl."""
    if not entry.header:
        return b""
    headers = own_headers(entry)
    left: timedelta | None = ttl_left(entry, clock.now_ns())
    if left is not None:
        headers |= write_fields(ttl=left)
    if header_value(entry.header, b"Nats-Rollup") is not None and may_roll_up(entry.key):
        headers["Nats-Rollup"] = "sub"
    return encode_headers(headers)


def new_token() -> str:
    """Create the name of an attempt."""
    return secrets.token_hex(8)


def marked(config: StreamConfig, token: str) -> StreamConfig:
    """Return the configuration with the attempt's mark."""
    return {**config, "metadata": {**(config.get("metadata") or {}), UNFINISHED: token}}


def mark_of(info: StreamInfo | None) -> str | None:
    """Return the attempt that left the stream incomplete, if any."""
    return ((info["config"].get("metadata") or {}) if info else {}).get(UNFINISHED)


async def clear_away(api: Api, info: StreamInfo) -> None:
    """Delete leftovers of an attempt. Raises ConflictError while it is still running."""
    stream = info["config"]["name"]
    await asyncio.sleep(1)
    later = await streams.find(api, stream)
    if later is None:
        return
    if later["state"] != info["state"] or mark_of(later) != mark_of(info):
        raise ConflictError(f"`{stream.removeprefix(STREAM_PREFIX)}` is being filled by another process")
    await streams.delete(api, stream)


async def remove(api: Api, stream: str, token: str) -> bool:
    """Delete the stream if it carries this attempt's mark; return True if so. Raises nothing."""
    for _ in range(_ATTEMPTS):
        try:
            if mark_of(await streams.info(api, stream, timeout=_CLEANUP_TIMEOUT_S)) != token:
                return False
            await streams.delete(api, stream)
            return True
        except StreamNotFound:
            return False
        except KvctlError:
            pass
        await asyncio.sleep(0.2)
    return False


class DifferenceKind(StrEnum):
    """Difference of a key in the second bucket."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """Difference in one key; its revision in each bucket, None where it does not live."""

    key: str
    difference: DifferenceKind
    revision: int | None
    other_revision: int | None


async def compare(first: Bucket, second: Bucket) -> list[KeyDifference]:
    """Return the keys in which the second bucket differs from the first, by name; deleted keys count as absent.

    Uses some 250 bytes of memory for each key of the first. Raises BucketNotFound.
    """
    known: dict[str, tuple[bytes, int]] = {}
    async for batch in first.entry_batches():
        known.update((entry.key, (_digest(entry.value), entry.revision)) for entry in batch)
    found: list[KeyDifference] = []
    async for batch in second.entry_batches():
        for entry in batch:
            digest, revision = known.pop(entry.key, (b"", None))
            if revision is None:
                found.append(KeyDifference(entry.key, DifferenceKind.EXTRA, None, entry.revision))
            elif digest != _digest(entry.value):
                found.append(KeyDifference(entry.key, DifferenceKind.DIFFERS, revision, entry.revision))
    found += [KeyDifference(key, DifferenceKind.MISSING, revision, None) for key, (_, revision) in known.items()]
    return sorted(found, key=lambda item: item.key)


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=_DIGEST).digest()
