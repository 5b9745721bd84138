"""A finding of doctor. [pure]"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    """Data is lost, hidden, duplicated or inaccessible, or will be."""
    WARNING = "warning"
    """Everything works, but something is likely to fail."""
    NOTE = "note"
    """Worth knowing."""


ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a subject, with its evidence and remedy."""

    severity: Severity
    check: str
    """Name of the kind of finding; for a hazard, its name."""
    subject: str
    """The bucket, mirror, aggregate or stream as users type it, or `connection` or `account`."""
    evidence: str
    remedy: str = ""
    """A command, or a sentence; empty if there is none."""


def ordered(found: Iterable[Finding]) -> list[Finding]:
    """Return the findings without duplicates, errors first, then by check and subject."""
    order = list(Severity)
    return sorted(
        dict.fromkeys(found), key=lambda item: (order.index(item.severity), item.check, item.subject, item.evidence)
    )
