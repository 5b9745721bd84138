"""One thing that doctor found. [pure]"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """Data is lost, hidden, duplicated or out of reach, or will be."""
    WARNING = "warning"
    """It works, and something is likely to go wrong."""
    NOTE = "note"
    """Worth knowing."""


ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


@dataclass(frozen=True, slots=True)
class Finding:
    """What is amiss, with whom, what shows it, and what mends it."""

    severity: Severity
    check: str
    """Name of the kind of finding: a hazard's where it is one."""
    subject: str
    """The bucket, mirror, aggregate or stream as users type it, or `connection` or `account`."""
    evidence: str
    remedy: str = ""
    """A command, or a sentence; empty where nothing helps."""


def ordered(found: Iterable[Finding]) -> list[Finding]:
    """Errors first, then by check and subject; each once."""
    order = list(Severity)
    return sorted(
        dict.fromkeys(found), key=lambda item: (order.index(item.severity), item.check, item.subject, item.evidence)
    )
