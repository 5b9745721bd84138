"""What of an entry goes along when it is written again, in another bucket: the writer's headers, and a rollup."""

from __future__ import annotations

from kvctl.kv.entry import Entry
from kvctl.wire import decode_headers

_NOT_THE_WRITERS = (
    "nats-expected-", "nats-batch-", "nats-msg-id", "nats-stream-source", "nats-rollup", "nats-ttl",
    "kvctl-row", "kvctl-id",
)  # fmt: skip
"""Headers that make a server do something, or say what it did or who wrote; what of them has to be is set anew."""


def own_headers(entry: Entry) -> dict[str, str]:
    """The entry's headers that go along; the operation and a marker's reason are among them."""
    return writers_own(decode_headers(entry.header)) if entry.header else {}


def writers_own(headers: dict[str, str]) -> dict[str, str]:
    """The headers without those that make a server do something."""
    return {name: value for name, value in headers.items() if not name.lower().startswith(_NOT_THE_WRITERS)}


def may_roll_up(key: str) -> bool:
    """Whether a rollup on the key erases its own history alone: of a foreign `a.*` it would erase what that matches."""
    return not any(token in ("*", ">") for token in key.split("."))
