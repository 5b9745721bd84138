"""JetStream that is imported from another account as a plain service, which passes on one answer to each request.

The exporting account decides: `response_type: stream` lets all answers through. Without it a pull brings its first
message and a request for many messages the first of them. What comes of the rest, nobody is told. So a reading that
finds answers missing notes it here, and whoever reads through the same import asks for one message at a time.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from kvctl.connection import Connection
from kvctl.jetstream.api import Api

SILENCE_S = 0.5
"""How long more answers are waited for after the first, which servers send in one go with it."""
HINT = "The account that exports the service can set `response_type: stream`"


def suspicion(asked: int, answers: int) -> str | None:
    """Return the hint for pulls that had no more than one answer each, None for others."""
    return (
        f"If JetStream is imported from another account: {HINT[:1].lower()}{HINT[1:]}" if 0 < answers <= asked else None
    )


_prefixes: WeakKeyDictionary[Connection, set[str]] = WeakKeyDictionary()


def known(api: Api) -> bool:
    """Return whether requests through this API have one answer each, as far as was noticed."""
    return api.prefix in _prefixes.get(api.connection, ())


def note(api: Api) -> None:
    """Remember that requests through this API have one answer each."""
    _prefixes.setdefault(api.connection, set()).add(api.prefix)
