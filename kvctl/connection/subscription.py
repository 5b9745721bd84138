"""Subscriptions: an inbox, the subject that fills it, and the permissions that the server denies it."""

from __future__ import annotations

from kvctl.errors import PermissionDenied
from kvctl.wire import Inbox

DENIALS = 4096
"""Maximum number of denials kept per subscription."""


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
