"""Comparison of both sides of an audit: all keys in step, then the last entries of one key; its results. [pure]

Replicas hold their entries in roughly the order of their origins. Read in step, few keys wait for their counterpart, so
memory stays small at any size; with entirely different orders, each waiting key takes about 200 bytes.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import Any, NamedTuple

from kvctl.errors import KvctlError, NoResponders, NotFoundError, RequestTimeout
from kvctl.jetstream.direct_get import StoredMessage
from kvctl.kv.entry import from_message, is_tombstone
from kvctl.kv.stream_kind import Kind
from kvctl.topology.health.health import Health
from kvctl.units import NEVER, duration_ns
from kvctl.wire import header_value

ORIGIN, REPLICA = 0, 1
"""The two sides."""

DELETED = b""
"""Mark of an entry that deletes its key; it is equal to no entry at all."""

_DIGEST = 16

Marked = list[tuple[bytes, bytes]]
"""Subjects where they land, each with the mark of its last entry."""


def mark(header: bytes, payload: bytes, revision: bytes = b"") -> bytes:
    """Return a digest that agreeing entries share: operation and value, and the revision if given."""
    if header and is_tombstone(header):
        return DELETED
    return blake2b(payload, digest_size=_DIGEST).digest() + revision


class SideComparison:
    """Comparison of entries of both sides, in any order; keeps those that do not match."""

    def __init__(self) -> None:
        self._waiting: tuple[dict[bytes, bytes], dict[bytes, bytes]] = {}, {}
        self._suspects: set[bytes] = set()

    @property
    def ahead(self) -> int:
        """The side with more entries that wait for the other one."""
        return REPLICA if len(self._waiting[REPLICA]) > len(self._waiting[ORIGIN]) else ORIGIN

    @property
    def waiting(self) -> int:
        """Number of keys that wait for their counterpart."""
        return len(self._waiting[ORIGIN]) + len(self._waiting[REPLICA])

    def take(self, side: int, entries: Marked) -> None:
        """Add entries of one side. A subject that comes twice has moved, or has two origins: it is suspect."""
        mine, other = self._waiting[side], self._waiting[1 - side]
        for subject, found in entries:
            match = other.pop(subject, None)
            if match is None:
                if subject in mine:
                    self._suspects.add(subject)
                mine[subject] = found
            elif match != found:
                self._suspects.add(subject)

    def suspects(self, expected: Iterable[bytes] = ()) -> list[bytes]:
        """Return the subjects to check again after both sides were read; `expected` may be the replica's own."""
        left = {subject for side in self._waiting for subject, found in side.items() if found != DELETED}
        own = {subject for subject in expected if subject not in self._waiting[ORIGIN]}
        return sorted(self._suspects | (left - own))

    def alone(self, expected: Iterable[bytes]) -> int:
        """Return the number of these subjects that only the replica holds."""
        return sum(1 for subject in expected if subject in self._waiting[REPLICA] and subject not in self._suspects)


class LiveKeys:
    """Number of live keys of a stream that is read while it is written; a key written since the start may come twice.

    Keeps 8 bytes of each key, and those that were written since.
    """

    def __init__(self, start: int) -> None:
        self._start, self._held, self._written = start, array("q"), dict[bytes, bool]()

    def add(self, subject: bytes, revision: int, *, lives: bool) -> None:
        """Take the last entry of a key, in the order of the stream."""
        if revision > self._start:
            self._written[subject] = lives
        elif lives:
            self._held.append(hash(subject))

    def count(self) -> int:
        """Return the number of keys whose last entry was a value."""
        again = set(map(hash, self._written))
        return sum(self._written.values()) + sum(1 for key in self._held if key not in again)


_SOURCE_HEADER = b"Nats-Stream-Source"


class Verdict(StrEnum):
    """Relation of a key in a replica to its origin."""

    AGREES = "agrees"
    LATE = "late"
    """The origin's entry may still arrive."""
    MISSING = "missing"
    """The key lives in the origin, but not in the replica."""
    EXTRA = "extra"
    """The key lives in the replica, but not in the origin."""
    STALE = "stale"
    """The replica holds an earlier entry than the origin."""
    DIFFERING = "differing"
    """The replica holds another entry."""


KINDS = (Verdict.MISSING, Verdict.EXTRA, Verdict.STALE, Verdict.DIFFERING)
"""The verdicts that are differences."""


class EntrySource(NamedTuple):
    """Source of an aggregate's entry, as servers write it into its headers."""

    stream: str
    sequence: int
    subject: str


class Ages(NamedTuple):
    """Expiry settings of a stream."""

    max_age: int
    """Its ttl in ns; 0: none."""
    own: bool
    """True if per-key TTLs are allowed."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Ages:
        """Return the settings of a stream's configuration."""
        return cls(int(config.get("max_age") or 0), bool(config.get("allow_msg_ttl")))


class LastEntry(NamedTuple):
    """The last entry of a key, without its value."""

    mark: bytes
    revision: int
    time_ns: int
    source: EntrySource | None = None
    """Set for an entry that came from another stream."""
    ttl: timedelta | None = None
    """Per-key TTL."""

    @property
    def lives(self) -> bool:
        """True if it is a value, not a deletion."""
        return self.mark != DELETED

    def ends(self, ages_of: Ages) -> int | None:
        """Return its time of expiry in a stream, in ns since the epoch; None: never. Disallowed TTLs are ignored."""
        if self.ttl == NEVER and ages_of.own:
            return None
        own = duration_ns(self.ttl) if self.ttl and ages_of.own else 0
        ages = [age for age in (ages_of.max_age, own) if age]
        return self.time_ns + min(ages) if ages else None


def held(message: StoredMessage | None) -> LastEntry | None:
    """Return a message's entry; None if there is none."""
    if message is None:
        return None
    header, ttl = message.header, from_message("", 0, message).ttl
    return LastEntry(mark(header, message.payload), message.sequence, message.time_ns, source_of(header), ttl)


def source_of(header: bytes) -> EntrySource | None:
    """Return the source of an aggregate's message; None if it was written here, or by an old server."""
    found = (header_value(header, _SOURCE_HEADER) or b"").split(b" ")
    if len(found) < 2 or not found[1].isdigit():
        return None
    stream = found[0].partition(b":")[0].decode("utf-8", "surrogateescape")
    subject = found[4].decode("utf-8", "surrogateescape") if len(found) > 4 else ""
    return EntrySource(stream, int(found[1]), subject)


def known_revision(replica: LastEntry | None, stream: str, *, mirror: bool) -> int:
    """Return the origin's revision that the replica's entry is a copy of; 0 if it is not one of this origin."""
    if replica is None:
        return 0
    if mirror:
        return replica.revision
    return replica.source.sequence if replica.source and replica.source.stream == stream else 0


def judge(
    replica: LastEntry | None, origin: LastEntry | None, known: int, arrived: int | None, *, mirror: bool
) -> Verdict:
    """Compare an entry of a replica with its origin's, which was read later.

    `known` is the origin's revision that the replica's entry is a copy of, `arrived` the one up to which everything had
    arrived before the replica was read (None: unknown). Mirrors share the revisions of their origins.
    """
    lives, ought = replica is not None and replica.lives, origin is not None and origin.lives
    if not lives and not ought:
        return Verdict.AGREES
    if replica and origin and replica.mark == origin.mark and (not mirror or replica.revision == origin.revision):
        return Verdict.AGREES
    if origin is not None and known < origin.revision and (arrived is None or arrived < origin.revision):
        return Verdict.LATE
    return difference(replica, origin, known)


def difference(replica: LastEntry | None, origin: LastEntry | None, known: int) -> Verdict:
    """Return the kind of a difference between the two."""
    if origin is not None and 0 < known < origin.revision:
        return Verdict.STALE
    if replica is None or not replica.lives:
        return Verdict.MISSING
    if origin is None or not origin.lives:
        return Verdict.EXTRA
    return Verdict.DIFFERING


MAX_SAMPLES = 10
"""Number of differences of each kind to keep."""

LOCAL_WRITE = "local-write"
"""The key was written in the aggregate itself."""
LAGGING = "lagging"
"""The origin's entry did not arrive in time."""


class AuditDifference(NamedTuple):
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
    """Number of the origin's live keys that were compared."""
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
    doubt: str = ""
    """Reason why a replica with the contents of its origin may lack entries all the same."""
    offline: bool = False
    """True if the servers of the replica do not answer."""

    @property
    def state(self) -> Health | None:
        """State of a pair that could not be audited or confirmed, in the words of `topology status`; None: it was."""
        if self.error is None:
            return Health.UNCONFIRMED if self.doubt else None
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
        if self.error is not None or self.doubt:
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
