"""Headers that are kept when an entry is written again in another bucket: the writer's own, and a rollup."""

from __future__ import annotations

from kvctl.kv.entry import Entry
from kvctl.wire import decode_headers

_NOT_THE_WRITERS = (
    "nats-expected-", "nats-batch-", "nats-msg-id", "nats-stream-source", "nats-rollup", "nats-ttl",
    "kvctl-row", "kvctl-id",
)  # fmt: skip
"""Headers that control the server, or report its or a writer's action; necessary ones are set again."""


def own_headers(entry: Entry) -> dict[str, str]:
    """Return the entry's headers to keep, including the operation and a marker's reason."""
    return writers_own(decode_headers(entry.header)) if entry.header else {}


def writers_own(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers without those that control a server."""
    return {name: value for name, value in headers.items() if not name.lower().startswith(_NOT_THE_WRITERS)}


def may_roll_up(key: str) -> bool:
    """Return True if a rollup on the key erases only its own history: on `a.*` it erases every key that matches."""
    return not any(token in ("*", ">") for token in key.split("."))
