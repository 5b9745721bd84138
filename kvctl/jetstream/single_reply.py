"""JetStream imported from another account as a plain service, which passes on one answer per request.

The exporting account decides: `response_type: stream` lets all answers through. Without it a pull delivers only its
first message, and so does a request for many messages; nobody learns that the others are dropped. So a reader that
finds answers missing records it here, and readers through the same import then request one message at a time.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from kvctl.connection import Connection
from kvctl.jetstream.api import Api

SILENCE_S = 0.5
"""Seconds to wait for more answers after the first, which servers send together with it."""
HINT = "The account that exports the service can set `response_type: stream`"


def suspicion(asked: int, answers: int) -> str | None:
    """Return the hint for pulls that had no more than one answer each, None for others."""
    return (
        f"If JetStream is imported from another account: {HINT[:1].lower()}{HINT[1:]}" if 0 < answers <= asked else None
    )


_prefixes: WeakKeyDictionary[Connection, set[str]] = WeakKeyDictionary()


def known(api: Api) -> bool:
    """Return True if requests through this API get one answer each, as far as noticed."""
    return api.prefix in _prefixes.get(api.connection, ())


def note(api: Api) -> None:
    """Record that requests through this API get one answer each."""
    _prefixes.setdefault(api.connection, set()).add(api.prefix)
