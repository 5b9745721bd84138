"""Results of an audit: counts, samples and causes for each pair of an origin and a replica. [pure]"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kvctl.errors import KvctlError, NoResponders, NotFoundError, RequestTimeout
from kvctl.kv.stream_kind import Kind
from kvctl.topology.audit.verdict import KINDS, Verdict
from kvctl.topology.health.health import Health

MAX_SAMPLES = 10
"""Number of differences of each kind to keep."""

LOCAL_WRITE = "local-write"
"""The key was written in the aggregate itself."""
LAGGING = "lagging"
"""The origin's entry did not arrive in time."""


@dataclass(frozen=True, slots=True)
class AuditDifference:
    """One key in which a replica differs from its origin."""

    origin: str
    replica: str
    key: str
    """Key in the replica."""
    kind: Verdict
    origin_key: str | None
    """Key in the origin; None if unknown."""
    origin_revision: int | None
    """None: the origin has no entry."""
    revision: int | None
    """Revision in the replica; None: it has no entry."""
    cause: str | None = None
    """Known cause."""
    subject: str = ""
    """Subject of the key in the replica's stream."""


@dataclass(slots=True)
class AuditOutcome:
    """Result for one pair of an origin and a replica."""

    origin: str
    replica: str
    kind: Kind
    where: str | None = None
    """Domain or API prefix of the origin, if it differs from the replica's."""
    place: str = ""
    """Context of the replica in a file."""
    keys: int = 0
    """Number of the origin's live keys that were compared; approximate during writes."""
    counts: Counter[Verdict] = field(default_factory=Counter)
    collisions: int = 0
    """Keys with several origins or source keys: they agree with one of them."""
    local: int = 0
    """Live keys of the aggregate that no origin has brought."""
    expiring: int = 0
    """Keys that have expired in the origin, and will expire in the replica, where their age began later."""
    causes: set[str] = field(default_factory=set)
    evidence: str = ""
    """Evidence of an earlier stream instance of the origin, in words."""
    hidden: str = ""
    """Reason why clients do not find the keys: the replica's configuration, which no repair changes."""
    samples: list[AuditDifference] = field(default_factory=list)
    error: KvctlError | None = None
    """Reason why the pair could not be audited."""
    offline: bool = False
    """True if the servers of the replica do not answer."""

    @property
    def state(self) -> Health | None:
        """State of a pair that could not be audited, in the words of `topology status`; None: it was audited."""
        if self.error is None:
            return None
        if self.offline:
            return Health.OFFLINE
        if isinstance(self.error, NotFoundError):
            return Health.MISSING_ORIGIN
        silent = isinstance(self.error, NoResponders | RequestTimeout)
        return Health.OFFLINE_ORIGIN if silent else Health.UNCONFIRMED

    @property
    def differences(self) -> int:
        """Number of keys in which the two differ."""
        return self.counts.total()

    @property
    def consistent(self) -> bool | None:
        """True if the replica has the contents of its origin; None if unknown."""
        if self.error is not None:
            return None
        return not self.drifts and not self.hidden

    @property
    def drifts(self) -> bool:
        """True if the contents differ, which a repair fixes."""
        return bool(self.differences or self.evidence)

    def add(self, difference: AuditDifference) -> None:
        """Count a difference, and keep the first ones of each kind as samples."""
        self.counts[difference.kind] += 1
        if difference.cause:
            self.causes.add(difference.cause)
        if self.counts[difference.kind] <= MAX_SAMPLES:
            self.samples.append(difference)

    def sorted_samples(self) -> list[AuditDifference]:
        """Return the samples by kind, then by key."""
        return sorted(self.samples, key=lambda item: (KINDS.index(item.kind), item.key))
