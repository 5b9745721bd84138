"""Write one key: publish with an identity, and resolve the outcome when the acknowledgement is lost."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from datetime import timedelta

from kvctl.errors import BucketSealed, KvctlError, ServerError, Unanswered, UnreachableError, UsageError, WrongRevision
from kvctl.jetstream.api import STREAM_SEALED
from kvctl.jetstream.publish import publish
from kvctl.kv.resolve import Binding
from kvctl.kv.write import identity as identities
from kvctl.kv.write.outcome import EXPECTED, EXPECTED_OF, LOOK_AGAIN_S, Write, resolve, unknown
from kvctl.units import duration_seconds, parse_duration
from kvctl.wire import encode_headers, header_value

TTL_SINCE = (2, 11)
"""First server version with per-message TTLs; older ones ignore the header and keep the key permanently."""
NO_STORAGE = (10023, 10047, 10002)
"""Server errors for exhausted storage of the server or account."""
TOO_LARGE = 10054
"""Server error for a message over the bucket's limit."""


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
) -> int:
    """Publish to the key's subject, with an identity, new or given; return the revision.

    A lost acknowledgement is resolved at the leader by the identity; the write is above the revision `after`. Raises
    WrongRevision, OutcomeUnknown, NoResponders (nothing was stored), ServerError, PermissionDenied, UsageError.
    """
    version = binding.api.connection.server_version
    if b"\r\nNats-TTL:" in header and version < TTL_SINCE:
        raise no_ttl(version)
    mark = identity or identities.new()
    marked = identities.stamped(header, mark)
    sent = Write(binding, key, mark, expected, after, _seconds_to_live(header))
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


async def _send(sent: Write, payload: bytes, header: bytes) -> int:
    """Publish until the outcome is certain. Raises OutcomeUnknown, and the error of the first attempt."""
    connection = sent.binding.api.connection
    subject = sent.binding.write_prefix + sent.key
    deadline = time.monotonic() + 2 * connection.timeout
    lost: KvctlError | None = None
    while True:
        try:
            return await publish(connection, subject, payload, header)
        except Unanswered as error:
            lost = error
        except ServerError as error:
            if lost is None:
                raise explained(error, sent.binding) from None
        except (WrongRevision, UnreachableError):
            if lost is None:
                raise
        # Regardless of a later attempt's error, the first one may be stored.
        if (revision := await resolve(sent, lost)) is not None:
            return revision
        if time.monotonic() > deadline:
            raise unknown(sent, lost)
        await asyncio.sleep(LOOK_AGAIN_S)


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


def explained(error: ServerError, binding: Binding) -> KvctlError:
    """Add a hint with the bucket's remedy to the server's refusal."""
    bucket = binding.bucket
    if error.err_code == STREAM_SEALED:
        return BucketSealed(
            f"Bucket `{bucket}` is sealed: it is permanently read-only", code=error.code, err_code=error.err_code
        )
    if error.err_code in (10166, 10165):
        error.hint = f"Allow per-key TTLs with `kvctl bucket edit {bucket} --marker-ttl 1s`"
    elif error.err_code == 10077:
        error.hint = (
            f"The bucket is full; raise its limit with `kvctl bucket edit {bucket} --max-bytes SIZE`, or delete keys"
        )
    elif error.err_code in NO_STORAGE:
        error.hint = "Raise the limit of the server or account, or delete data; `kvctl doctor` shows the usage"
    elif error.err_code == 10054:
        error.hint = f"Raise the limit with `kvctl bucket edit {bucket} --max-value-size SIZE`; headers count"
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
