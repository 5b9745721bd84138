"""Deferred parts of the client library: its JetStream half, and the randomness behind its own inbox names.

Import this before the client library.
"""

from typing import Any

from kvctl.deferred import defer, function


class _Names:
    """Stand-in for `NUID`, whose names are used only by calls of the library that kvctl does not use."""

    def __getattr__(self, name: str) -> Any:
        if name != "_names":
            self._names = function("nats.nuid", "NUID")()
        return getattr(self._names, name)


defer({"nats.js": {}, "nats.nuid": {"NUID": _Names}})
