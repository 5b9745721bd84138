"""Outage of a connection: its reason, the pauses between attempts, and when to give up. Times are in seconds."""

from __future__ import annotations

import time

from kvctl.connection.client_options import REFUSED_HINT, START_HINT, explain, is_refusal
from kvctl.contexts import Context
from kvctl.errors import AuthenticationRefused, KvctlError, NoServer
from kvctl.urls import redact

RECONNECT_WAIT_S = 0.1
"""Pause between two attempts at one server."""
LONGEST_WAIT_S = 5.0
"""Pause between two attempts with refused or unreadable credentials."""
REFUSED_PATIENCE_S = 60.0
"""Time during which refused credentials are tried again: they may be renewed in their file, or on the server."""
REFUSALS = 5
"""Minimum number of consecutive refusals before giving up."""
QUIET_S = 5.0
"""Time that a server may be away before it is reported."""


class CredentialsRefused(AuthenticationRefused, NoServer):
    """A connection that ended because its credentials were refused repeatedly."""


class Outage:
    """Obstacles to a reconnect since the connection was lost."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.begin()

    def begin(self) -> None:
        """Record the loss of the connection."""
        self._since = time.monotonic()
        self._refused_since: float | None = None
        self._refusals = 0
        self._setbacks = 0
        self._reason: KvctlError | None = None
        self._reported: set[str] = set()

    def end(self) -> str | None:
        """Record the reconnect; return a message if its loss was reported."""
        reported = bool(self._reported)
        self.begin()
        return f"Reconnected to `{redact(self._context.url)}`" if reported else None

    def met(self, error: Exception) -> str | None:
        """Record a failed attempt; return a message if it is new."""
        now, refused = time.monotonic(), is_refusal(error)
        if refused:
            self._refusals += 1
            self._refused_since = now if self._refused_since is None else self._refused_since
        if refused or isinstance(error, KvctlError):
            self._setbacks += 1
        elif self._setbacks or now - self._since < QUIET_S:
            return None
        self._reason = explain([(error, {})], self._context)
        if self._reason.message in self._reported:
            return None
        self._reported.add(self._reason.message)
        return f"{self._reason.message}; trying again"

    @property
    def pause(self) -> float:
        """Return the seconds until the same server is tried again: longer with each refusal."""
        return min(RECONNECT_WAIT_S * 2.0 ** min(self._setbacks, 10), LONGEST_WAIT_S)

    @property
    def hopeless(self) -> bool:
        """Return True if the credentials have been refused for so long that a renewal is unlikely."""
        if self._refused_since is None or self._refusals < REFUSALS:
            return False
        return time.monotonic() - self._refused_since > REFUSED_PATIENCE_S

    def error(self, last_word: str) -> NoServer:
        """Build the error for the missing connection; `last_word` is the server's last error before it closed it."""
        url = redact(self._context.url)
        if self._reason is not None and self.hopeless:
            return CredentialsRefused(self._reason.message, hint=self._reason.hint)
        if self._reason is not None and self._setbacks:
            return NoServer(f"Not connected to `{url}`: {self._reason.message}", hint=self._reason.hint)
        hint = REFUSED_HINT if is_refusal(Exception(last_word)) else START_HINT
        return NoServer(f"Not connected to `{url}`{f': {last_word}' if last_word else ''}", hint=hint)
