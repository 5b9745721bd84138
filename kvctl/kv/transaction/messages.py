"""A transaction as the messages of one atomic batch (ADR-50)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from kvctl.errors import UsageError
from kvctl.jetstream.atomic_batch import BatchMessage, MessageTooLarge
from kvctl.kv.entry import Operation
from kvctl.kv.resolve import Binding
from kvctl.kv.transaction.transaction import Change, Transaction
from kvctl.kv.write.conditional_write import write_fields
from kvctl.kv.write.outcome import EXPECTED, EXPECTED_OF
from kvctl.tokens import encoded, header_lines

_EXPECTED = f"{EXPECTED}: %d\r\n".encode()

Pins = Mapping[str, int]
"""Revision at which the server must find each key that has a condition."""


def batch_of(transaction: Transaction, target: Binding, pins: Pins) -> tuple[list[BatchMessage], dict[str, int]]:
    """Return the messages, and the position, from 1, of each key's last message.

    A message has one condition. Conditions without a change to carry them are put on copies of the smallest change.
    """
    guards = deque(transaction.guards)
    messages = []
    for change in transaction.changes:
        lines = _lines(change)
        if change.key in pins:
            lines += expecting(pins[change.key])
        elif guards:
            lines += _guard(target, guards.popleft(), pins)
        messages.append(((target.write_prefix + change.key).encode(), change.value, lines))
    places = {change.key: place for place, change in enumerate(transaction.changes, 1)}
    carrier = min(transaction.changes, key=lambda change: len(change.value))
    for key in guards:
        again = _lines(carrier, erase=False)  # a subject may be rolled up once (10111), and nothing is left to erase
        subject = (target.write_prefix + carrier.key).encode()
        messages.append((subject, carrier.value, again + _guard(target, key, pins)))
        places[carrier.key] = len(messages)
    return messages, places


def expecting(revision: int) -> bytes:
    """Return the header line that makes a message conditional on its key's last revision."""
    return _EXPECTED % revision


def _lines(change: Change, *, erase: bool = True) -> bytes:
    if change.ttl is None and change.operation is Operation.PUT:
        return b""
    rollup = change.verb == "purge" and erase
    operation = None if change.operation == "PUT" else str(change.operation)
    return encoded(header_lines(write_fields(operation=operation, ttl=change.ttl, rollup=rollup)))


def _guard(target: Binding, key: str, pins: Pins) -> bytes:
    return expecting(pins[key]) + encoded(header_lines({EXPECTED_OF: target.subject(key)}))


def value_limit(target: Binding) -> int:
    """Return the bucket's limit on a message in bytes, headers included, as far as known; 0 for none."""
    config = target.info["config"] if target.info else {}
    return max(int(config.get("max_msg_size", 0)), 0)


def too_large(target: Binding, subject: bytes, error: MessageTooLarge) -> UsageError:
    """Build the error that names the key and the limit."""
    whose, hint = "server", "The limit is the server's `max_payload`, headers included"
    if error.most == value_limit(target):
        whose = f"bucket `{target.bucket}`"
        hint = f"Raise the limit with `kvctl bucket edit {target.bucket} --max-value-size SIZE`; headers count"
    key = subject.decode().removeprefix(target.write_prefix)
    return UsageError(
        f"`{key}` takes {error.size} bytes with its headers, the limit of the {whose} is {error.most}; "
        "nothing was written",
        hint=hint,
    )
