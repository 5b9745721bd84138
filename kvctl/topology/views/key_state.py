"""State of one key in a replica, compared with its origin's entry. [pure]"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from kvctl.jetstream.direct_get import StoredMessage
from kvctl.topology.audit.verdict import Ages, LastEntry
from kvctl.topology.model.notation import as_key
from kvctl.topology.survey.graph import SILENCE, Upstream
from kvctl.units import duration_from_ns, format_duration


class TraceState(StrEnum):
    """State of a key in a stream, or reason why it is not there."""

    HELD = "held"
    """The stream that the trace begins at has a value."""
    ARRIVED = "arrived"
    """The replica has the origin's entry."""
    DELETED = "deleted"
    """The last entry is a marker, which has arrived."""
    FILTERED_OUT = "filtered out"
    """No filter takes the key."""
    OVERWRITTEN = "overwritten"
    """Another origin, another key or a client wrote the same key of the replica later."""
    EXPIRED = "expired"
    """It had arrived, and its ttl has ended."""
    ON_ITS_WAY = "on its way"
    """The replica has not caught up with the entry."""
    LINK_DOWN = "link down"
    """The same, and nothing arrives from the origin."""
    OFFLINE = "offline"
    """The servers of the stream do not answer."""
    STALE = "stale"
    """The replica holds an entry of an earlier stream instance of its origin."""
    MISSING = "missing"
    """The replica has caught up, but lacks the entry."""
    KEPT = "kept"
    """The replica has an entry that its origin no longer has."""
    ABSENT = "absent"
    """There is nothing to replicate."""
    UNKNOWN = "unknown"


_LOST = tuple(map(TraceState, "overwritten,expired,on its way,link down,stale,missing".split(",")))
"""States in which a stream does not hold the entry that is traced."""


@dataclass(frozen=True, slots=True)
class KeyReading:
    """The last entry on one subject of a stream, or the reason why it cannot be read."""

    held: LastEntry | None = None
    error: str = ""
    offline: bool = False
    message: StoredMessage | None = None
    """The entry with its value and headers."""

    @property
    def known(self) -> bool:
        """True if the entry, or its absence, is known."""
        return not self.error


@dataclass(frozen=True, slots=True)
class Passage:
    """One replication of one key, as observed."""

    origin: str
    """Name of the origin."""
    stream: str
    """Stream of the origin."""
    subject: str
    """Subject of the key in the origin."""
    there: KeyReading
    here: KeyReading
    """The entry in the replica, read after `arrived`."""
    upstream: Upstream
    mirror: bool
    arrived: int | None
    """Revision of the origin up to which everything has arrived; None: unknown."""
    ages: Ages
    """Expiry settings of the replica."""
    now_ns: int
    earlier_instance: str = ""
    """Evidence that the replica holds entries of an earlier stream instance of the origin."""


Judgement = tuple[TraceState, str]
"""A state with its evidence, which may be empty."""


def judge(found: Passage) -> Judgement:
    """Return the state of a key in a replica."""
    here, there = found.here.held, found.there.held
    if not found.here.known:
        return (TraceState.OFFLINE if found.here.offline else TraceState.UNKNOWN), found.here.error
    copied = _copied(found)
    if not found.there.known:
        return _of_unread_origin(found, copied)
    if there is None:
        return _of_missing_entry(found, copied)
    if found.earlier_instance and not (here and here.mark == there.mark and copied == there.revision):
        return TraceState.STALE, found.earlier_instance
    if copied >= there.revision:
        return _arrived(found)
    if found.arrived is None or found.arrived < there.revision:
        return _late(found, there)
    return _lost(found, there, copied)


def inherited(before: TraceState | None, stream: str, judged: Judgement) -> Judgement:
    """Return the state of a key beyond a stream in which its state is `before`: what is not there cannot arrive."""
    if before in _LOST and judged[0] in (TraceState.ARRIVED, TraceState.DELETED, TraceState.ABSENT):
        return before, f"in `{stream}`"
    return judged


def of_start(reading: KeyReading) -> Judgement:
    """Return the state of a key in the stream that a trace begins at."""
    if not reading.known:
        return (TraceState.OFFLINE if reading.offline else TraceState.UNKNOWN), reading.error
    if reading.held is None:
        return TraceState.ABSENT, ""
    return (TraceState.HELD if reading.held.lives else TraceState.DELETED), ""


def _copied(found: Passage) -> int:
    """Return the origin's revision that the replica's entry is a copy of; 0 if it is not one of this key."""
    here = found.here.held
    if here is None:
        return 0
    if found.mirror:
        return here.revision
    source = here.source
    same = source is not None and source.stream == found.stream and source.subject in ("", found.subject)
    return source.sequence if source is not None and same else 0


def _arrived(found: Passage) -> Judgement:
    here = found.here.held
    return (TraceState.ARRIVED if here is None or here.lives else TraceState.DELETED), ""


def _of_unread_origin(found: Passage, copied: int) -> Judgement:
    if copied:
        state, _ = _arrived(found)
        return state, f"revision {copied} of `{found.origin}`: {found.there.error}"
    if found.there.offline:
        return TraceState.LINK_DOWN, found.there.error
    return TraceState.UNKNOWN, found.there.error


def _of_missing_entry(found: Passage, copied: int) -> Judgement:
    here = found.here.held
    if here is not None and copied:
        if not here.lives:
            return TraceState.DELETED, ""
        if found.earlier_instance:
            return TraceState.STALE, found.earlier_instance
        return TraceState.KEPT, f"`{found.origin}` no longer holds its revision {copied}"
    return TraceState.ABSENT, ""


def _late(found: Passage, there: LastEntry) -> Judgement:
    if (link := _trouble(found.upstream)) is not None:
        return TraceState.LINK_DOWN, link
    if found.arrived is None:
        other = _writer(found)
        text = f"an entry of {other} hides whether revision {there.revision} has arrived"
        return TraceState.UNKNOWN, text if other else "its progress cannot be read"
    return TraceState.ON_ITS_WAY, f"at revision {found.arrived} of {there.revision}"


def _lost(found: Passage, there: LastEntry, copied: int) -> Judgement:
    """Return the state of a key whose entry has arrived, but is not the last one here."""
    if other := _writer(found):
        return TraceState.OVERWRITTEN, f"by {other}"
    remedy = f"run `kvctl topology audit {found.origin}`"
    if found.here.held is None:
        if (age := _expired(found, there)) is not None:
            return TraceState.EXPIRED, f"after {format_duration(duration_from_ns(age))}"
        if not there.lives:
            return TraceState.DELETED, "the marker has expired here"
        return TraceState.MISSING, f"caught up, but lacks the key; {remedy}"
    return TraceState.MISSING, f"caught up, but holds revision {copied} instead of {there.revision}; {remedy}"


def _writer(found: Passage) -> str:
    """Return the writer of the replica's entry in words; empty if the entry is of this key of this origin."""
    here = found.here.held
    if here is None or found.mirror:
        return ""
    if here.source is None:
        return "a client of the aggregate"
    if here.source.stream != found.stream:
        return f"`{here.source.stream.removeprefix('KV_')}`"
    return "" if here.source.subject in ("", found.subject) else f"`{as_key(here.source.subject)}` of `{found.origin}`"


def _expired(found: Passage, there: LastEntry) -> int | None:
    """Return the ttl in ns that has ended in the replica, where the entry arrived no earlier than in the origin."""
    ends = there.ends(found.ages)
    return ends - there.time_ns if ends is not None and ends <= found.now_ns else None


def _trouble(upstream: Upstream) -> str | None:
    """Return why nothing arrives, as the server reports it; None for a working link."""
    if upstream.error:
        return upstream.error
    if upstream.last_seen is None:
        return "it was never connected"
    if upstream.last_seen > SILENCE:
        return f"no message from the origin for {format_duration(timedelta(seconds=round(upstream.last_seen)))}"
    return None
