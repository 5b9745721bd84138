"""Write one key: publish with an identity, by which the outcome is found when the acknowledgement is lost.

Values are never compared: another client may have written an equal one. These outcomes are certain:

- A message of the key has the identity: the write was stored, at that revision.
- A write conditional on revision N is the first message of the key after N, or is not stored. While the key's last
  message is N, it may be sent again with the same condition and identity: at most one of the two is stored. If another
  message is the first one after N, the write was not stored and cannot be any more.
- A refusal by a last revision above N is final. After a partition, the old leader and the new one answer the same
  message for about a second: the old one refuses what the new one stores, by a last revision below N or as busy. Such a
  refusal is held against what the leader has.
- An unconditional write that is not found may still arrive, so it is never sent again.

Everything else is unknown and reported as such.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import timedelta

from kvctl.errors import (
    Away,
    BucketSealed,
    KvctlError,
    OutcomeUnknown,
    PermissionDenied,
    RequestTimeout,
    ServerError,
    StreamNotFound,
    Unanswered,
    UnreachableError,
    UsageError,
    WrongRevision,
)
from kvctl.jetstream import direct_get, streams
from kvctl.jetstream.api import DEFAULT_PREFIX, STREAM_SEALED
from kvctl.jetstream.direct_get import StoredMessage
from kvctl.jetstream.publish import Busy, BusyRefusal, OtherStream, StillBusy, publish
from kvctl.jetstream.stream_info import Source, StreamConfig
from kvctl.kv import identity as identities
from kvctl.kv.identity import identity_of
from kvctl.kv.resolve import Binding
from kvctl.phrases import one_line
from kvctl.units import NEVER, duration_seconds, parse_duration
from kvctl.wire import encode_headers, header_value

TTL_SINCE = (2, 11)
"""First server version with per-message TTLs; older ones ignore the header and keep the key permanently."""
NO_STORAGE = (10023, 10047, 10002)
"""Server errors for exhausted storage of the server or account."""
FULL = 10077
"""Server error for one message more than the bucket's limits allow."""
TOO_LARGE = 10054
"""Server error for a message over the bucket's limit."""
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_OF = "Nats-Expected-Last-Subject-Sequence-Subject"
LOOK_AGAIN_S = 0.1
STALE_LEADER_S = 1.0
"""Seconds in which a leader may not know yet that another one was elected, once they are connected again."""
HISTORY_READS = 128
"""Maximum number of a key's messages to read one by one: more than any bucket's history."""


def write_headers(
    *, operation: str | None = None, expected: int | None = None, ttl: timedelta | None = None, rollup: bool = False
) -> bytes:
    """Return the header block of a put, a conditional write, or a marker."""
    return encode_headers(write_fields(operation=operation, expected=expected, ttl=ttl, rollup=rollup))


def write_fields(
    *, operation: str | None = None, expected: int | None = None, ttl: timedelta | None = None, rollup: bool = False
) -> dict[str, str]:
    """Return the same headers by name."""
    headers: dict[str, str] = {}
    if operation:
        headers["KV-Operation"] = operation
    if rollup:
        headers["Nats-Rollup"] = "sub"
    if expected is not None:
        headers[EXPECTED] = str(expected)
    if ttl is not None:
        headers["Nats-TTL"] = _ttl_text(ttl)
    return headers


def _ttl_text(ttl: timedelta) -> str:
    if ttl < timedelta(seconds=1):
        raise UsageError("The ttl of a key must be at least 1 second")
    if ttl == NEVER:
        return "never"
    seconds = duration_seconds(ttl)
    return str(seconds) if isinstance(seconds, int) else f"{seconds}s"


def fence(subject: str, revision: int) -> bytes:
    """Return the header block of a write conditional on the last revision of another subject."""
    return encode_headers({EXPECTED: str(revision), EXPECTED_OF: subject})


async def write(
    binding: Binding,
    key: str,
    payload: bytes,
    header: bytes,
    expected: int | None = None,
    *,
    after: int = 0,
    identity: bytes | None = None,
    config: asyncio.Future[StreamConfig] | None = None,
) -> int:
    """Publish to the key's subject, with an identity, new or given; return the revision.

    `config` is the stream's, where it is read at the same time: it may say that nothing is acknowledged. A lost
    acknowledgement is resolved at the leader by the identity; the write is above the revision `after`. Raises
    WrongRevision, OutcomeUnknown, NoResponders (nothing was stored), ServerError, PermissionDenied, UsageError.
    """
    if b"\r\nNats-TTL:" in header and (version := await streams.version(binding.api, binding.stream)) < TTL_SINCE:
        raise no_ttl(version)
    mark = identity or identities.new()
    marked = identities.stamped(header, mark)
    sent = SentWrite(binding, key, mark, expected, after, _seconds_to_live(header), config=config)
    if identity is not None:
        return await _send(sent, payload, marked)
    bare = replace(sent, identity=None)
    if len(marked) + len(payload) > binding.api.connection.max_payload:
        return await _send(bare, payload, header)
    try:
        return await _send(sent, payload, marked)
    except ServerError as error:
        if error.err_code != TOO_LARGE:
            raise
    return await _send(bare, payload, header)


async def _send(sent: SentWrite, payload: bytes, header: bytes) -> int:
    """Publish until the outcome is certain. Raises OutcomeUnknown, and the error of the first attempt."""
    connection = sent.binding.api.connection
    subject = sent.binding.write_prefix + sent.key
    deadline = time.monotonic() + 2 * connection.timeout
    lost: KvctlError | None = None
    while True:
        try:
            if sent.config is None:
                return await publish(connection, subject, payload, header, stream=sent.binding.stream)
            return await _publish(sent, subject, payload, header)
        except OtherStream as error:
            raise _elsewhere(sent, error) from None
        except Unanswered as error:
            lost = error
        except ServerError as error:
            if lost is None:
                raise explained(error, sent.binding) from None
        except (WrongRevision, UnreachableError) as error:
            named = header_value(header, EXPECTED.encode())  # of this key or of another one
            if lost is None and not await is_doubtful(sent.binding, int(named) if named else None, error):
                raise
            lost = lost or error
        # Regardless of a later attempt's error, the first one may be stored.
        refused = isinstance(lost, WrongRevision | StillBusy)
        try:
            if (revision := await resolve(sent, lost)) is not None:
                return revision
        except OutcomeUnknown:
            raise lost if refused else unknown(sent, lost) from None
        if time.monotonic() > deadline:
            raise lost if refused else unknown(sent, lost)
        await asyncio.sleep(LOOK_AGAIN_S)


async def is_doubtful(binding: Binding, expected: int | None, error: KvctlError) -> bool:
    """Return whether another leader may have stored what this one refused, once both know who leads."""
    if expected is None:
        return False
    if isinstance(error, Busy | BusyRefusal | StillBusy):
        return True
    older = isinstance(error, WrongRevision) and error.found is not None and error.found < expected
    if not older or not binding.api.connection.server_info.get("cluster"):
        return False
    await asyncio.sleep(STALE_LEADER_S)
    return True


async def _publish(sent: SentWrite, subject: str, payload: bytes, header: bytes) -> int:
    """Publish once; raise RequestTimeout as soon as the stream is known to acknowledge nothing."""
    assert sent.config is not None
    connection, stream = sent.binding.api.connection, sent.binding.stream
    sending = asyncio.ensure_future(publish(connection, subject, payload, header, stream=stream))
    try:
        await asyncio.wait((sending, sent.config), return_when=asyncio.FIRST_COMPLETED)
        if not sending.done() and sent.config.result().get("no_ack"):
            await asyncio.wait((sending,), timeout=LOOK_AGAIN_S)
            if not sending.done():
                raise RequestTimeout(f"Stream `{stream}` does not acknowledge writes")
        return await sending
    finally:
        sending.cancel()


def _elsewhere(sent: SentWrite, error: OtherStream) -> KvctlError:
    """Return the error for a write that another stream stored."""
    name = one_line(error.stream)
    return KvctlError(
        f"Stream `{name}` stored the write to `{sent.key}`, not the bucket `{sent.binding.bucket}`",
        hint=f"See its subjects with `kvctl stream show {name}`",
    )


def _seconds_to_live(header: bytes) -> float:
    """Return the ttl in a header block; infinite for none and for the server's `never`."""
    text = header_value(header, b"Nats-TTL")
    if text is None or text == b"never":
        return math.inf
    return parse_duration(text.decode() if not text.isdigit() else f"{text.decode()}s").total_seconds()


def no_ttl(version: tuple[int, ...]) -> KvctlError:
    """Build the error for a ttl on a server that would ignore it."""
    return KvctlError(
        f"nats-server {'.'.join(map(str, version))} would ignore the ttl of a key; nothing was written",
        hint="Use nats-server 2.11 or later, or set a ttl for the bucket: `kvctl bucket edit --ttl`",
    )


_REMEDIES = (
    ((10165, 10166), "", "Allow per-key TTLs with `kvctl bucket edit {bucket} --marker-ttl 1s`"),
    (
        (FULL,),
        "per subject",
        "The stream keeps the first entries of each key, and then accepts only purges; "
        "change that with `{edit} discard_new_per_subject=false`",
    ),
    ((FULL,), "messages", "The bucket has a maximum number of entries; raise it with `{edit} max_msgs=NUMBER`"),
    (
        (FULL,),
        "",
        "The bucket is full: raise its limit with `kvctl bucket edit {bucket} --max-bytes SIZE`. Deletions need space, "
        "too; `kvctl stream purge {stream} --subject FILTER` does not",
    ),
    (NO_STORAGE, "", "Raise the limit of the server or account, or delete data; `kvctl doctor` shows the usage"),
    ((TOO_LARGE,), "", "Raise the limit with `kvctl bucket edit {bucket} --max-value-size SIZE`; headers count"),
    (
        (10111,),
        "",
        "Allow purges with `{edit} allow_rollup_hdrs=true`, unless the stream denies them permanently; "
        "`kvctl delete` keeps the history",
    ),
    ((10169,), "", "The values of the bucket are counters, which only increments change"),
)
"""Codes of the server's errors, a part of their text, and the remedy; the first that fits is meant."""


def explained(error: ServerError, binding: Binding) -> KvctlError:
    """Add a hint with the bucket's remedy to the server's refusal."""
    bucket = binding.bucket
    if error.err_code == STREAM_SEALED:
        return BucketSealed(
            f"Bucket `{bucket}` is sealed: it is permanently read-only", code=error.code, err_code=error.err_code
        )
    stream, text = binding.stream, error.message
    hints = (hint for codes, part, hint in _REMEDIES if error.err_code in codes and part in text)
    if hint := next(hints, None):
        error.hint = hint.format(bucket=bucket, stream=stream, edit=f"kvctl stream edit {stream} --set")
    return error


def mismatch(key: str, expected: int, error: WrongRevision) -> WrongRevision:
    """Rewrite the conflict to name key and revisions."""
    if expected and error.found == 0:
        return WrongRevision(
            f"`{key}` does not exist; expected revision {expected}", found=0, hint="Write a new key with `kvctl create`"
        )
    if not expected:
        message = f"`{key}` was written before" + (f", last at revision {error.found}" if error.found else "")
    elif error.found is None:
        message = f"`{key}` is no longer at revision {expected}"
    else:
        message = f"`{key}` is at revision {error.found}, not {expected}"
    hint = "Read the key again and retry with its current revision"
    return WrongRevision(message, found=error.found, hint=hint)


@dataclass(slots=True)
class SentWrite:
    """Write that was sent, with what is needed to find it again."""

    binding: Binding
    key: str
    identity: bytes | None
    """None for a value that left no room for one."""
    expected: int | None = None
    """Expected revision of the key, if the write is conditional."""
    after: int = 0
    """A revision that the write is certainly above."""
    ttl: float = math.inf
    """Seconds after which it may have expired."""
    config: asyncio.Future[StreamConfig] | None = None
    """Configuration of the stream, if it is read at the same time."""
    begun: float = field(default_factory=time.monotonic)
    looked: int = 0
    """Revision up to which the key's messages have been checked."""

    def may_have_expired(self) -> bool:
        """Return True if its own ttl may have expired."""
        return time.monotonic() - self.begun >= self.ttl


async def resolve(write: SentWrite, error: KvctlError) -> int | None:
    """Return the revision of an unacknowledged write; None if it is not stored and may be sent again unchanged.

    Raises WrongRevision when its condition failed before it was stored, OutcomeUnknown; `error` is why it is open.
    """
    refused = write.expected is None and isinstance(error, WrongRevision | StillBusy)
    deadline = time.monotonic() + (STALE_LEADER_S if refused else write.binding.api.connection.timeout)
    while True:
        last = await _read(write, deadline, error, last_by_subj=write.binding.subject(write.key))
        sequence = last.sequence if last else 0
        if last is not None and _is(write, last):
            return sequence
        if write.expected is None:
            if found := await _in_history(write, sequence, deadline, error):
                return found
        elif sequence == write.expected:
            if write.may_have_expired():
                raise unknown(write, error)
            return None
        else:
            return await _overtaken(write, sequence, deadline, error)
        if time.monotonic() > deadline:
            raise unknown(write, error)
        await asyncio.sleep(LOOK_AGAIN_S)


async def _overtaken(write: SentWrite, last: int, deadline: float, error: KvctlError) -> int:
    """Return the revision of a conditional write under later ones. Raises WrongRevision when it cannot be there."""
    assert write.expected is not None
    if last < write.expected:  # the key expired, or never had that revision
        raise _refusal(write, last, error, certain=last > 0)
    first = True
    async with aclosing(_messages(write, write.expected, last, deadline, error)) as messages:
        async for message in messages:
            if _is(write, message):
                return message.sequence
            if write.identity is not None and _expects(message) == write.expected:
                raise _refusal(write, last, error)
            if first and write.expected and await _is_held(write, deadline, error):
                raise _refusal(write, last, error, certain=write.identity is not None)
            first = False
    raise unknown(write, error)


def _refusal(write: SentWrite, last: int, error: KvctlError, *, certain: bool = True) -> KvctlError:
    """Return the conflict, or OutcomeUnknown if the write may have been stored and have expired."""
    if not certain or write.may_have_expired():
        return unknown(write, error)
    return WrongRevision(f"Wrong last revision: the last one is {last}", found=last)


async def _in_history(write: SentWrite, last: int, deadline: float, error: KvctlError) -> int | None:
    """Return the revision of an unconditional write among the messages not checked yet."""
    after = write.after if write.after <= last else 0  # of an earlier stream of the name
    start = max(after, write.looked)
    async with aclosing(_messages(write, start, last, deadline, error)) as messages:
        async for message in messages:
            if _is(write, message):
                return message.sequence
            write.looked = message.sequence
    return None


async def _messages(
    write: SentWrite, after: int, last: int, deadline: float, error: KvctlError
) -> AsyncGenerator[StoredMessage, None]:
    """Return the key's messages between two revisions, in order. Raises OutcomeUnknown for too many."""
    subject = write.binding.subject(write.key)
    for _ in range(HISTORY_READS):
        if after >= last:
            return
        message = await _read(write, deadline, error, seq=after + 1, next_by_subj=subject)
        if message is None:
            return
        yield message
        after = message.sequence
    raise unknown(write, error)


async def _is_held(write: SentWrite, deadline: float, error: KvctlError) -> bool:
    """Return True if the message of the expected revision still exists: then no later one has been evicted."""
    message = await _read(write, deadline, error, seq=write.expected)
    return message is not None and message.subject == write.binding.subject(write.key)


async def _read(write: SentWrite, deadline: float, error: KvctlError, **request: object) -> StoredMessage | None:
    """Read one message from the leader, once it answers. Raises OutcomeUnknown."""
    while True:
        try:
            return await direct_get.from_leader(write.binding.api, write.binding.stream, **request)
        except (PermissionDenied, StreamNotFound):
            raise unknown(write, error) from None
        except Away:
            if time.monotonic() > deadline:
                raise unknown(write, error) from None
            await asyncio.sleep(LOOK_AGAIN_S)


def _is(write: SentWrite, message: StoredMessage) -> bool:
    return write.identity is not None and identity_of(message.header) == write.identity


def _expects(message: StoredMessage) -> int | None:
    """Return the expected revision of its own key with which a message was stored."""
    if header_value(message.header, EXPECTED_OF.encode()) is not None:
        return None
    text = header_value(message.header, EXPECTED.encode())
    return int(text) if text and text.isdigit() else None


def unknown(write: SentWrite, error: KvctlError) -> OutcomeUnknown:
    """Build the error for a write whose outcome is uncertain."""
    bucket, key, api = write.binding.bucket, write.key, write.binding.api.prefix
    there = "" if api == DEFAULT_PREFIX else f" {Source('', api).way}"
    return OutcomeUnknown(
        f"Could not find out if the write to `{key}` was stored: {error.message}",
        hint=f"Check its current value with `kvctl get {bucket} {key} --leader -o json{there}`",
    )
