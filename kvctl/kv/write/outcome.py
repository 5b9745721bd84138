"""Outcome of one write whose acknowledgement was lost, found at the leader by the write's identity.

Values are never compared: another client may have written an equal one. These outcomes are certain:

- A message of the key has the identity: the write was stored, at that revision.
- A write conditional on revision N is the first message of the key after N, or is not stored. While the key's last
  message is N, it may be sent again with the same condition and identity: at most one of the two is stored. If another
  message is the first one after N, the write was not stored and cannot be any more.
- An unconditional write that is not found may still arrive, so it is never sent again.

Everything else is unknown and reported as such.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from kvctl.errors import Away, KvctlError, OutcomeUnknown, PermissionDenied, StreamNotFound, WrongRevision
from kvctl.jetstream import direct_get
from kvctl.jetstream.direct_get import StoredMessage
from kvctl.kv.resolve import Binding
from kvctl.kv.write.identity import identity_of
from kvctl.wire import header_value

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_OF = "Nats-Expected-Last-Subject-Sequence-Subject"
LOOK_AGAIN_S = 0.1
HISTORY_READS = 128
"""Maximum number of a key's messages to read one by one: more than any bucket's history."""


@dataclass(slots=True)
class Write:
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
    begun: float = field(default_factory=time.monotonic)
    looked: int = 0
    """Revision up to which the key's messages have been checked."""

    def may_have_expired(self) -> bool:
        """Return True if its own ttl may have expired."""
        return time.monotonic() - self.begun >= self.ttl


async def resolve(write: Write, error: KvctlError) -> int | None:
    """Return the revision of an unacknowledged write; None if it is not stored and may be sent again unchanged.

    Raises WrongRevision when its condition failed before it was stored, OutcomeUnknown; `error` is why it is open.
    """
    patience = write.binding.api.connection.timeout
    deadline = time.monotonic() + patience
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


async def _overtaken(write: Write, last: int, deadline: float, error: KvctlError) -> int:
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


def _refusal(write: Write, last: int, error: KvctlError, *, certain: bool = True) -> KvctlError:
    """Return the conflict, or OutcomeUnknown if the write may have been stored and have expired."""
    if not certain or write.may_have_expired():
        return unknown(write, error)
    return WrongRevision(f"Wrong last revision: the last one is {last}", found=last)


async def _in_history(write: Write, last: int, deadline: float, error: KvctlError) -> int | None:
    """Return the revision of an unconditional write among the messages not checked yet."""
    start = max(write.after, write.looked)
    async with aclosing(_messages(write, start, last, deadline, error)) as messages:
        async for message in messages:
            if _is(write, message):
                return message.sequence
            write.looked = message.sequence
    return None


async def _messages(
    write: Write, after: int, last: int, deadline: float, error: KvctlError
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


async def _is_held(write: Write, deadline: float, error: KvctlError) -> bool:
    """Return True if the message of the expected revision still exists: then no later one has been evicted."""
    message = await _read(write, deadline, error, seq=write.expected)
    return message is not None and message.subject == write.binding.subject(write.key)


async def _read(write: Write, deadline: float, error: KvctlError, **request: object) -> StoredMessage | None:
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


def _is(write: Write, message: StoredMessage) -> bool:
    return write.identity is not None and identity_of(message.header) == write.identity


def _expects(message: StoredMessage) -> int | None:
    """Return the expected revision of its own key with which a message was stored."""
    if header_value(message.header, EXPECTED_OF.encode()) is not None:
        return None
    text = header_value(message.header, EXPECTED.encode())
    return int(text) if text and text.isdigit() else None


def unknown(write: Write, error: KvctlError) -> OutcomeUnknown:
    """Build the error for a write whose outcome is uncertain."""
    bucket, key = write.binding.bucket, write.key
    return OutcomeUnknown(
        f"Could not find out if the write to `{key}` was stored: {error.message}",
        hint=f"Check its current value with `kvctl get {bucket} {key} --leader -o json`",
    )
