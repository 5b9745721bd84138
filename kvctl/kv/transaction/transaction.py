"""Transactions: conditions and changes on several keys that are applied together or not at all. [pure]"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple, Self

from kvctl.errors import ConditionsFailed, UsageError
from kvctl.jetstream.publish import BatchMessage, MessageTooLarge
from kvctl.kv.conditional_write import EXPECTED, EXPECTED_OF, write_fields
from kvctl.kv.entry import Entry, Operation
from kvctl.kv.names import check_key
from kvctl.kv.resolve import Binding
from kvctl.phrases import indented
from kvctl.tokens import encoded, header_lines

LIMIT = 1000
"""Maximum number of messages of a transaction (ADR-50)."""
LIMIT_BYTES = 64 << 20
"""Maximum size of a transaction: servers drop messages of batches they cannot process fast enough (10176)."""
PREVIEW = 60
"""Characters of a value shown in a message."""

_LEAVES = {"delete": Operation.DEL, "purge": Operation.PURGE}

Found = Mapping[str, Entry | None]
"""Last entry by key, deletions included; None for a key never written."""
_EXPECTED = f"{EXPECTED}: %d\r\n".encode()
Pins = Mapping[str, int]
"""Revision at which the server must find each key that has a condition."""


class KeyCondition(NamedTuple):
    """Condition on a key; every field given must hold."""

    key: str
    revision: int | None = None
    """Revision of the key's last entry, deletions included; 0 is a key never written."""
    exists: bool = False
    absent: bool = False
    """Never written, deleted, purged or expired."""
    value: bytes | None = None

    @property
    def looks(self) -> bool:
        """True if the key has to be read first: the server compares revisions only."""
        return self.exists or self.absent or self.value is not None

    def failure(self, entry: Entry | None) -> Failure | None:
        """Return the failed field of the condition for the key's last entry, if any."""
        lives = entry is not None and entry.operation is Operation.PUT
        found = entry.revision if entry else 0
        if self.revision is not None and found != self.revision:
            return Failure(self.key, "revision", self.revision, entry)
        if self.absent and lives:
            return Failure(self.key, "absent", True, entry)
        if self.exists and not lives:
            return Failure(self.key, "exists", True, entry)
        if self.value is not None and (entry is None or not lives or entry.value != self.value):
            return Failure(self.key, "value", self.value, entry)
        return None


class Failure(NamedTuple):
    """Condition that does not hold, and the entry found."""

    key: str
    condition: str
    """`revision`, `exists`, `absent` or `value`."""
    expected: int | bool | bytes
    found: Entry | None
    """Last entry of the key, deletions included; None for a key never written."""

    def __str__(self) -> str:
        entry = self.found
        if entry is None:
            state = "was never written"
        elif entry.operation is not Operation.PUT:
            state = f"is deleted, at revision {entry.revision}"
        elif self.condition == "value":
            state = f"is {shown(entry.value)} at revision {entry.revision}"
        elif self.condition == "absent":
            state = f"exists, at revision {entry.revision}"
        else:
            state = f"is at revision {entry.revision}"
        if isinstance(self.expected, bytes):
            return f"`{self.key}` {state}, not {shown(self.expected)}"
        return f"`{self.key}` {state}" + (f", not {self.expected}" if self.condition == "revision" else "")


class TransactionChange(NamedTuple):
    """One write of a transaction."""

    verb: str
    """`put`, `create`, `update`, `delete` or `purge`."""
    key: str
    value: bytes = b""
    revision: int | None = None
    """Expected last revision of the key."""
    ttl: timedelta | None = None

    @property
    def operation(self) -> Operation:
        """Operation of the key's last entry after the change."""
        return _LEAVES.get(self.verb, Operation.PUT)

    @property
    def condition(self) -> KeyCondition | None:
        """Condition of the change on its own key."""
        if self.verb == "create":
            return KeyCondition(self.key, absent=True)
        return None if self.revision is None else KeyCondition(self.key, revision=self.revision)


@dataclass(slots=True)
class Transaction:
    """Conditions and changes, for `Bucket.commit`; each method adds one and returns the transaction.

    Names and combinations are checked as they are added. Raises UsageError for an invalid key, a key changed twice, a
    ttl below one second, and more than 1,000 messages.
    """

    conditions: list[KeyCondition] = field(default_factory=list)
    changes: list[TransactionChange] = field(default_factory=list)
    _changed: set[str] = field(default_factory=set, repr=False)

    def expect(
        self,
        key: str,
        *,
        revision: int | None = None,
        exists: bool = False,
        absent: bool = False,
        value: bytes | None = None,
    ) -> Self:
        """Add a condition on a key, which need not be changed by the transaction."""
        if revision is not None and revision < 0:
            raise UsageError("Revisions start at 1; 0 stands for a key never written")
        if revision is None and not exists and not absent and value is None:
            raise UsageError(
                f"The condition on `{key}` is empty", hint="Give `revision`, `exists`, `absent` or `value`"
            )
        if absent and (exists or value is not None):
            raise UsageError(f"The condition on `{key}` contradicts itself")
        self.conditions.append(KeyCondition(check_key(key), revision, exists, absent, value))
        return self

    def put(self, key: str, value: bytes, *, ttl: timedelta | None = None) -> Self:
        """Write a key. In a bucket with history, the previous value comes back when `ttl` expires."""
        return self._add(TransactionChange("put", key, value, None, ttl))

    def create(self, key: str, value: bytes, *, ttl: timedelta | None = None) -> Self:
        """Write a key that must not live."""
        return self._add(TransactionChange("create", key, value, None, ttl))

    def update(self, key: str, value: bytes, revision: int, *, ttl: timedelta | None = None) -> Self:
        """Write a key whose last revision, deletions included, must be this one."""
        return self._add(TransactionChange("update", key, value, revision, ttl))

    def delete(self, key: str, *, revision: int | None = None, ttl: timedelta | None = None) -> Self:
        """Mark a key deleted, even one that does not live; `ttl` is that of the marker."""
        return self._add(TransactionChange("delete", key, b"", revision, ttl))

    def purge(self, key: str, *, revision: int | None = None, ttl: timedelta | None = None) -> Self:
        """Erase a key with its history, leaving a marker, which is removed after `ttl`."""
        return self._add(TransactionChange("purge", key, b"", revision, ttl))

    @property
    def expected(self) -> list[KeyCondition]:
        """Return all conditions: explicit ones, then those of changes."""
        return [*self.conditions, *(own for change in self.changes if (own := change.condition) is not None)]

    @property
    def guards(self) -> list[str]:
        """Return keys with conditions that are not changed."""
        return list(dict.fromkeys(item.key for item in self.conditions if item.key not in self._changed))

    @property
    def messages(self) -> int:
        """Return the number of messages: one per change, and one per further condition that no change can carry.

        A message has one condition, on its own key or on another.
        """
        bound = {condition.key for condition in self.expected}
        free = sum(change.key not in bound for change in self.changes)
        return len(self.changes) + max(len(self.guards) - free, 0)

    @property
    def copies(self) -> int:
        """Return the number of messages that repeat a change to carry a condition."""
        return self.messages - len(self.changes)

    @property
    def by_size(self) -> list[TransactionChange]:
        """Return the changes, the smallest value first."""
        return sorted(self.changes, key=lambda change: len(change.value))

    def check(self) -> None:
        """Raise UsageError for a transaction without changes, with too many messages, or too large."""
        if not self.changes:
            raise UsageError("The transaction has no changes")
        if self.messages > LIMIT:
            guards = f", {self.copies} of them for conditions on keys that are not changed" if self.copies else ""
            raise UsageError(
                f"The transaction takes {self.messages:,} messages{guards}; the maximum is {LIMIT:,}",
                hint="Split it; two transactions are not atomic together",
            )

        size = sum(len(change.key) + len(change.value) for change in self.changes)
        if size > LIMIT_BYTES:
            raise UsageError(
                f"The transaction takes {size:,} bytes; the maximum is {LIMIT_BYTES:,}",
                hint="Split it; two transactions are not atomic together",
            )

    def failures(self, found: Found) -> list[Failure]:
        """Return the conditions that do not hold, among those on keys in `found`."""
        known = (item for item in self.expected if item.key in found)
        return list(dict.fromkeys(failure for item in known if (failure := item.failure(found[item.key])) is not None))

    def _add(self, change: TransactionChange) -> Self:
        check_key(change.key)
        if change.key in self._changed:
            raise UsageError(f"`{change.key}` is changed twice", hint="A transaction can change a key only once")
        if change.ttl is not None and change.ttl < timedelta(seconds=1):
            raise UsageError("The ttl of a key must be at least 1 second")
        if change.revision is not None and change.revision < 0:
            raise UsageError("Revisions start at 1; 0 stands for a key never written")
        self._changed.add(change.key)
        self.changes.append(change)
        return self


def refusal(bucket: str, failures: list[Failure]) -> ConditionsFailed:
    """Build the conflict that names every failing condition and the entry found."""
    count = "A condition" if len(failures) == 1 else f"{len(failures)} conditions"
    verb = "does" if len(failures) == 1 else "do"
    first = f"{count} of the transaction on bucket `{bucket}` {verb} not hold; nothing was written"
    return ConditionsFailed(indented(first, failures), failures=tuple(failures))


def shown(value: bytes) -> str:
    """Format a value for a message: quoted, truncated if long."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"{len(value)} bytes of binary data"
    return f'"{text}"' if len(text) <= PREVIEW else f'"{text[:PREVIEW]}…" ({len(value)} bytes)'


def batch_of(
    transaction: Transaction, target: Binding, pins: Pins, room: Mapping[str, int] | None = None
) -> tuple[list[BatchMessage], dict[str, int]]:
    """Return the messages, and the position, from 1, of each key's last message.

    A message has one condition. Conditions without a change to carry them are put on copies of changes, the smallest
    first; `room` is the number of copies that a key takes without losing history, where that is limited.
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
    carriers = transaction.by_size
    left = dict(room or {carriers[0].key: len(guards)})
    for key in guards:
        carrier = next((change for change in carriers if left.get(change.key, 0) > 0), carriers[0])
        left[carrier.key] = left.get(carrier.key, 0) - 1
        again = _lines(carrier, erase=False)  # a subject may be rolled up once (10111), and nothing is left to erase
        subject = (target.write_prefix + carrier.key).encode()
        messages.append((subject, carrier.value, again + _guard(target, key, pins)))
        places[carrier.key] = len(messages)
    return messages, places


def expecting(revision: int) -> bytes:
    """Return the header line that makes a message conditional on its key's last revision."""
    return _EXPECTED % revision


def _lines(change: TransactionChange, *, erase: bool = True) -> bytes:
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
