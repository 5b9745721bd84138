"""What an audit found: for each pair of an origin and a replica, counts, samples, and what explains them. [pure]"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kvctl.errors import KvctlError
from kvctl.kv.stream_kind import Kind
from kvctl.topology.audit.verdict import KINDS, Verdict

SAMPLES = 10
"""Differences of each kind that are kept."""

LOCAL_WRITE = "local-write"
"""The key was written in the aggregate itself."""
LAGGING = "lagging"
"""The origin's entry has not arrived in time."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One key in which a replica does not hold what its origin does."""

    origin: str
    replica: str
    key: str
    """As the replica has it."""
    kind: Verdict
    origin_key: str | None
    """As the origin has it; None where that cannot be told."""
    origin_revision: int | None
    """None: the origin holds nothing of it."""
    revision: int | None
    """In the replica; None: it holds nothing."""
    cause: str | None = None
    """What is known to have brought it about."""
    subject: str = ""
    """Of the key in the replica's stream."""


@dataclass(slots=True)
class Outcome:
    """One pair of an origin and a replica, audited."""

    origin: str
    replica: str
    kind: Kind
    where: str | None = None
    """Domain or API prefix of the origin, where that is another one than the replica's."""
    place: str = ""
    """The context of a file that the replica is in."""
    keys: int = 0
    """Living keys of the origin that were compared; about, while it is written to."""
    counts: Counter[Verdict] = field(default_factory=Counter)
    collisions: int = 0
    """Keys that another origin or key writes too: they agree with one of them."""
    local: int = 0
    """Living keys of the aggregate that none of its origins has brought."""
    expiring: int = 0
    """Keys that have expired in the origin, and will in the replica, where their time began later."""
    causes: set[str] = field(default_factory=set)
    evidence: str = ""
    """Of an earlier stream instance of the origin, in words."""
    hidden: str = ""
    """Why clients do not find the keys, whatever the replica holds: its configuration, which no repair changes."""
    samples: list[Difference] = field(default_factory=list)
    error: KvctlError | None = None
    """Why the pair could not be audited."""

    @property
    def differences(self) -> int:
        """All keys in which the two differ."""
        return self.counts.total()

    @property
    def consistent(self) -> bool | None:
        """Whether the replica holds what its origin does; None when that could not be found out."""
        if self.error is not None:
            return None
        return not self.drifts and not self.hidden

    @property
    def drifts(self) -> bool:
        """Whether the replica holds something else than its origin: what a repair mends."""
        return bool(self.differences or self.evidence)

    def add(self, difference: Difference) -> None:
        """Count a difference, and keep it among the samples while there are few of its kind."""
        self.counts[difference.kind] += 1
        if difference.cause:
            self.causes.add(difference.cause)
        if self.counts[difference.kind] <= SAMPLES:
            self.samples.append(difference)

    def sorted_samples(self) -> list[Difference]:
        """The samples by kind, then by key."""
        return sorted(self.samples, key=lambda item: (KINDS.index(item.kind), item.key))
