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

Pins = Mapping[str, int]
"""Revision at which the server must find each key that has a condition."""


def batch_of(transaction: Transaction, target: Binding, pins: Pins) -> tuple[list[BatchMessage], dict[str, int]]:
    """Return the messages, and the position, from 1, of each key's last message.

    A message has one condition. Conditions without a change to carry them are put on copies of the smallest change.
    """
    guards = deque(transaction.guards)
    messages = []
    for change in transaction.changes:
        headers = _headers(change)
        if change.key in pins:
            headers[EXPECTED] = str(pins[change.key])
        elif guards:
            headers |= _guard(target, guards.popleft(), pins)
        messages.append((target.write_prefix + change.key, change.value, headers))
    places = {change.key: place for place, change in enumerate(transaction.changes, 1)}
    carrier = min(transaction.changes, key=lambda change: len(change.value))
    for key in guards:
        again = _headers(carrier)
        again.pop("Nats-Rollup", None)  # a batch may have only one (10111), and nothing is left to erase
        messages.append((target.write_prefix + carrier.key, carrier.value, again | _guard(target, key, pins)))
        places[carrier.key] = len(messages)
    return messages, places


def _headers(change: Change) -> dict[str, str]:
    if change.ttl is None and change.operation is Operation.PUT:
        return {}
    rollup = change.verb == "purge"
    operation = None if change.operation == "PUT" else str(change.operation)
    return write_fields(operation=operation, ttl=change.ttl, rollup=rollup)


def _guard(target: Binding, key: str, pins: Pins) -> dict[str, str]:
    return {EXPECTED: str(pins[key]), EXPECTED_OF: target.subject(key)}


def value_limit(target: Binding) -> int:
    """Return the bucket's limit on a message in bytes, headers included, as far as known; 0 for none."""
    config = target.info["config"] if target.info else {}
    return max(int(config.get("max_msg_size", 0)), 0)


def too_large(target: Binding, subject: str, error: MessageTooLarge) -> UsageError:
    """Build the error that names the key and the limit."""
    whose, hint = "server", "The limit is the server's `max_payload`, headers included"
    if error.most == value_limit(target):
        whose = f"bucket `{target.bucket}`"
        hint = f"Raise the limit with `kvctl bucket edit {target.bucket} --max-value-size SIZE`; headers count"
    key = subject.removeprefix(target.write_prefix)
    return UsageError(
        f"`{key}` takes {error.size} bytes with its headers, the limit of the {whose} is {error.most}; "
        "nothing was written",
        hint=hint,
    )
