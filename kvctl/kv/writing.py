"""One write of a key: published, acknowledged, and resolved by reading back when the acknowledgement is lost."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from kvctl.errors import (
    ConnectionLost,
    JetStreamDisabled,
    KvctlError,
    NoResponders,
    NoServer,
    OutcomeUnknown,
    PermissionDenied,
    RequestTimeout,
    ServerError,
    StreamNotFound,
    UsageError,
    WrongRevision,
)
from kvctl.jetstream import direct
from kvctl.jetstream.direct import StoredMessage
from kvctl.jetstream.publish import publish
from kvctl.kv.binding import Binding
from kvctl.kv.entry import operation_of
from kvctl.quantities import duration_seconds
from kvctl.wire import encode_headers, header_value

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_OF = "Nats-Expected-Last-Subject-Sequence-Subject"
TTL_SINCE = (2, 11)
"""Servers before store the header like any other, and the key for ever."""
MESSAGE_ID = b"Nats-Msg-Id"
"""Tells apart equal values of different writers, where they set it."""
OPEN = (RequestTimeout, ConnectionLost)
"""Errors after which a write may or may not have been stored."""


def write_headers(
    *, operation: str | None = None, expected: int | None = None, ttl: timedelta | None = None, rollup: bool = False
) -> bytes:
    """The header block of a put, a conditional write, or a marker."""
    return encode_headers(write_fields(operation=operation, expected=expected, ttl=ttl, rollup=rollup))


def write_fields(
    *, operation: str | None = None, expected: int | None = None, ttl: timedelta | None = None, rollup: bool = False
) -> dict[str, str]:
    """The same, name by name."""
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
        raise UsageError("The ttl of a key is one second at least")
    seconds = duration_seconds(ttl)
    return str(seconds) if isinstance(seconds, int) else f"{seconds}s"


def fence(subject: str, revision: int) -> bytes:
    """The header block of a write that insists on the last revision of another subject."""
    return encode_headers({EXPECTED: str(revision), EXPECTED_OF: subject})


async def write(
    binding: Binding, key: str, payload: bytes, header: bytes, expected: int | None = None, *, after: int = 0
) -> int:
    """Publish to the key's subject; returns the revision.

    A lost acknowledgement is resolved at the leader, where what is not newer than `after` is none of ours. Raises
    WrongRevision, OutcomeUnknown, NoResponders (nothing was stored), ServerError, PermissionDenied, UsageError.
    """
    connection = binding.api.connection
    deadline = time.monotonic() + connection.timeout
    subject = binding.write_prefix + key
    if b"\r\nNats-TTL:" in header and connection.server_version < TTL_SINCE:
        raise no_ttl(connection.server_version)
    lost: KvctlError | None = None
    while True:
        try:
            return await publish(connection, subject, payload, header)
        except ServerError as error:
            raise explained(error, binding) from None
        except WrongRevision:
            if lost is None:
                raise
            # What was sent first may have come to be stored after all.
            if (revision := await resolve(binding, key, payload, header, expected, after, lost)) is None:
                raise
            return revision
        except OPEN as error:
            lost = error
            revision = await resolve(binding, key, payload, header, expected, after, lost)
            if revision is not None:
                return revision
            if time.monotonic() > deadline + connection.timeout:
                raise _unknown(binding, key, error) from None


async def resolve(
    binding: Binding, key: str, payload: bytes, header: bytes, expected: int | None, after: int, error: KvctlError
) -> int | None:
    """What became of a write without an answer: its revision when it is there, None when it may be sent again.

    Only a write on condition of its own key may be; another is waited for. Raises OutcomeUnknown.
    """
    deadline = time.monotonic() + binding.api.connection.timeout
    while True:
        found = await _read_back(binding, key, deadline, error)
        sequence = found.sequence if found else 0
        same = (
            found is not None
            and found.payload == payload
            and operation_of(found.header)[0] == operation_of(header)[0]
            and header_value(found.header, MESSAGE_ID) == header_value(header, MESSAGE_ID)
        )
        if same and sequence > (after if expected is None else expected):
            return sequence
        if expected is not None and sequence <= expected:
            return None
        # An unconditional write may still be on its way; a conditional one may have been stored and overwritten.
        if expected is not None or time.monotonic() > deadline:
            raise _unknown(binding, key, error)
        await asyncio.sleep(0.1)


async def _read_back(binding: Binding, key: str, deadline: float, error: KvctlError) -> StoredMessage | None:
    """The key's last message at the leader, as soon as it can be read. Raises OutcomeUnknown."""
    while True:
        try:
            return await direct.from_leader(binding.api, binding.stream, last_by_subj=binding.subject(key))
        except (PermissionDenied, StreamNotFound):
            raise _unknown(binding, key, error) from None
        except (*OPEN, NoServer, NoResponders, JetStreamDisabled):
            if time.monotonic() > deadline:
                raise _unknown(binding, key, error) from None
            await asyncio.sleep(0.1)


def no_ttl(version: tuple[int, ...]) -> KvctlError:
    """The error for a ttl on a server that would not heed it."""
    return KvctlError(
        f"nats-server {'.'.join(map(str, version))} would ignore the ttl of a key; nothing was written",
        hint="Use a server from 2.11 on, or let all keys of a bucket expire: `kvctl bucket edit --ttl`",
    )


def _unknown(binding: Binding, key: str, error: KvctlError) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"It is not known whether the write to `{key}` was stored: {error.message}",
        hint=f"`kvctl get {binding.bucket} {key} --leader -o json` shows what is there now",
    )


def explained(error: ServerError, binding: Binding) -> KvctlError:
    """The server's refusal with the way out that a bucket has."""
    bucket = binding.bucket
    if error.err_code in (10166, 10165):
        error.hint = f"Keys with a ttl of their own need `kvctl bucket edit {bucket} --marker-ttl 1s`"
    elif error.err_code == 10077:
        error.hint = f"The bucket is full: `kvctl bucket edit {bucket} --max-bytes SIZE`, or delete keys"
    elif error.err_code == 10054:
        error.hint = f"Headers count; `kvctl bucket edit {bucket} --max-value-size SIZE` allows larger values"
    return error


def mismatch(key: str, expected: int, error: WrongRevision) -> WrongRevision:
    """The conflict, naming key and revisions."""
    if expected and error.found == 0:
        return WrongRevision(
            f"`{key}` is not at revision {expected}, it has none",
            found=0,
            hint="`kvctl create` writes a key that does not exist",
        )
    found = "" if error.found is None else f", its last is {error.found}"
    return WrongRevision(
        f"Revision {expected} of `{key}` is not the last{found}" if expected else f"`{key}` has been written{found}",
        found=error.found,
        hint="Read it again, then update with the revision found",
    )
