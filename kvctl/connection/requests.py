"""Requests that wait for their replies, each with a deadline; subscriptions, and the permissions that they lack."""

from __future__ import annotations

import asyncio
import itertools

from kvctl.errors import KvctlError, PermissionDenied, RequestTimeout
from kvctl.wire import Frame, Inbox

DENIALS = 4096
"""Maximum number of denials kept per subscription."""


class PendingRequests:
    """Futures of requests in flight, by the token that ends their reply subject, each with a timer."""

    def __init__(self) -> None:
        self._open: dict[bytes, tuple[asyncio.Future[Frame], bytes, asyncio.TimerHandle]] = {}
        self._tokens = itertools.count(1)

    def token(self) -> bytes:
        """Return a new token."""
        return b"%d" % next(self._tokens)

    def add(self, token: bytes, subject: bytes, limit: float, left: float) -> asyncio.Future[Frame]:
        """Add a request that had `limit` seconds and has some left; its future ends in a reply or an error."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Frame] = loop.create_future()
        self._open[token] = future, subject, loop.call_later(left, self._expire, token, limit)
        return future

    def remove(self, token: bytes) -> None:
        """Forget a request."""
        self._take(token)

    def reply(self, token: bytes, frame: Frame) -> None:
        """End a request with its reply."""
        if waiting := self._take(token):
            waiting[0].set_result(frame)

    def fail(self, error: KvctlError) -> None:
        """End all requests with an error."""
        for token in list(self._open):
            if waiting := self._take(token):
                waiting[0].set_exception(error)

    def deny(self, subject: str) -> None:
        """End the requests to a subject that may not be published to; denials may have it in lower case."""
        for token, (_, asked, _) in list(self._open.items()):
            exact = asked.decode(errors="surrogateescape")
            if subject in (exact, exact.lower()) and (waiting := self._take(token)):
                waiting[0].set_exception(permission_denied("publish", exact))

    def _take(self, token: bytes) -> tuple[asyncio.Future[Frame], bytes] | None:
        """Remove a request; return its future and subject if it still waits."""
        found = self._open.pop(token, None)
        if found is None:
            return None
        future, subject, alarm = found
        alarm.cancel()
        return None if future.done() else (future, subject)

    def _expire(self, token: bytes, limit: float) -> None:
        if waiting := self._take(token):
            subject = waiting[1].decode(errors="replace")
            waiting[0].set_exception(RequestTimeout(f"No answer on `{subject}` within {round(limit, 1) or limit:g}s"))


class Subscription:
    """Inbox, the subject that fills it, and the server's denials."""

    __slots__ = ("denials", "inbox", "sid", "subject")

    def __init__(self, subject: str, inbox: Inbox) -> None:
        self.subject = subject
        self.inbox = inbox
        self.sid = b""
        """Number of the subscription on the connection."""
        self.denials: dict[tuple[str, str], None] = {}
        """`publish` or `subscription`, and the subject, oldest first; the library's path has it in lower case."""

    def deny(self, kind: str, subject: str) -> None:
        """Record a denial, and wake the reader."""
        self.denials.pop((kind, subject), None)
        self.denials[kind, subject] = None
        if len(self.denials) > DENIALS:
            del self.denials[next(iter(self.denials))]
        self.inbox.wake()

    def denied(self, subject: str) -> PermissionDenied | None:
        """Return the missing permission that leaves a request to `subject` unanswered: its own, or that for replies."""
        if self._has("publish", subject):
            return permission_denied("publish", subject)
        if self._has("subscription", self.subject) or self._has("subscription", f"{self.subject}.*"):
            return permission_denied("subscription", self.subject)
        return None

    def _has(self, kind: str, subject: str) -> bool:
        return (kind, subject) in self.denials or (kind, subject.lower()) in self.denials


def permission_denied(kind: str, subject: str) -> PermissionDenied:
    """Build the error for the server's denial to `publish` to a subject or for the `subscription` of one."""
    verb = "publish to" if kind == "publish" else "subscribe to"
    hint = f"Ask for the permission to {verb} `{subject}`"
    if kind == "subscription":
        hint = "Replies cannot be received; use `--inbox-prefix` with a prefix that the account may subscribe to"
    return PermissionDenied(f"Permission denied: the account may not {verb} `{subject}`", subject=subject, hint=hint)
