"""Repeated comparison of suspect keys on both sides, at the leaders, until a difference is certain or gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from kvctl.jetstream import streams
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.kv.names import SUBJECT_PREFIX
from kvctl.topology.audit.side import MAX_BATCH_KEYS, AuditReader
from kvctl.topology.audit.verdict import (
    LAGGING,
    LOCAL_WRITE,
    Ages,
    AuditDifference,
    AuditOutcome,
    LastEntry,
    Verdict,
    difference,
    held,
    judge,
    known_revision,
)
from kvctl.topology.hazards.hazards import RECREATED_ORIGIN, TTL_NOT_INHERITED
from kvctl.topology.health import arrival
from kvctl.topology.model.subjects import KeyMapping
from kvctl.units import NEVER, parse_time

_PAUSE = 0.05
_LONGEST_PAUSE = 0.5
BLOCK_KEYS = 20_000
"""Keys that are decided together, and held in memory: any number of keys can differ."""
_BLOCK_GRACE_S = 2.0
"""Seconds for late keys of a block after earlier blocks used up the patience."""
_AGREEING_ROUNDS = 2
"""Rounds in which a difference must look the same, as a new leader may lag behind at first."""
_EXPIRY_MARGIN_NS = 3 * 10**9
"""Nanoseconds around a key's expiry in which the two sides may delete it at different moments."""

Report = Callable[[AuditDifference], None]


class Feed(NamedTuple):
    """One origin of the audited replica."""

    number: int
    source: dict[str, Any]
    rules: KeyMapping
    side: AuditReader
    info: StreamInfo
    outcome: AuditOutcome

    @property
    def ages(self) -> Ages:
        """The origin's expiry settings."""
        return Ages.of(self.info["config"])

    @property
    def complete(self) -> bool:
        """True if everything in the origin is replicated."""
        return self.rules.taken == (">",) or {*(self.info["config"].get("subjects") or (">",))} <= {*self.rules.taken}

    @property
    def alone(self) -> bool:
        """True if the origin has only one stream replica."""
        return int(self.info["config"].get("num_replicas") or 1) == 1

    def subject(self, landed: str, here: LastEntry | None) -> str | None:
        """Return the origin's subject that lands there; None if unknown."""
        found = self.rules.origin(landed)
        if found is None and here and here.source and here.source.stream == self.side.stream:
            return here.source.subject or None
        return found


@dataclass(slots=True)
class _Case:
    """A key that is not decided yet."""

    names: dict[int, str] = field(default_factory=dict)
    """Subjects in origins, if they were seen and cannot be derived."""
    goals: dict[int, int] = field(default_factory=dict)
    """The origins' revisions at the first look: a replica that reaches them keeps pace."""
    seen: tuple[object, ...] = ()
    times: int = 0


_Found = tuple[Feed, str, LastEntry | None]
"""An origin, the key's subject there, and its entry."""


@dataclass(slots=True)
class Recheck:
    """The suspect keys of one replica."""

    replica: AuditReader
    ages: Ages
    """The replica's expiry settings."""
    alone: bool
    """True if the replica has only one stream replica: a mirror there does not hold what it has skipped."""
    mirror: bool
    feeds: Sequence[Feed]
    ignored: Collection[str]
    """Source streams that cannot be read: their keys are not judged."""
    report: Report
    local: int = 0
    """Number of keys that turned out to be the replica's own."""
    _arrived: dict[int, int | None] = field(default_factory=dict)
    """For each origin, the revision up to which everything has arrived; None: unknown."""
    _infos: dict[int, StreamInfo] = field(default_factory=dict)
    """Infos of the origins in this round."""

    async def settle(self, subjects: Iterable[str], name: Callable[[int, str], str | None], patience: float) -> None:
        """Decide on all subjects; late ones are waited for up to `patience` seconds."""
        left, end = iter(subjects), time.monotonic() + patience
        while block := list(islice(left, BLOCK_KEYS)):
            cases = {subject: _Case(self._names(subject, name)) for subject in block}
            await self._decide(cases, max(end, time.monotonic() + min(patience, _BLOCK_GRACE_S)))

    def _names(self, subject: str, name: Callable[[int, str], str | None]) -> dict[int, str]:
        """Return the subjects in origins where they cannot be derived."""
        found = {feed.number: name(feed.number, subject) for feed in self.feeds if feed.rules.lossy}
        return {number: text for number, text in found.items() if text is not None}

    async def _decide(self, cases: dict[str, _Case], deadline: float) -> None:
        pause = _PAUSE
        while cases:
            last = time.monotonic() > deadline
            wanted = list(cases)
            for start in range(0, len(wanted), MAX_BATCH_KEYS):
                await self._look(wanted[start : start + MAX_BATCH_KEYS], cases, last=last)
            if cases:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _look(self, wanted: Sequence[str], cases: dict[str, _Case], *, last: bool) -> None:
        """Check some keys once, and drop those that are decided."""
        await self._ask_streams()
        # The replica first: it can only be older than its origin, which is read later.
        here = {subject: held(message) for subject, message in (await self.replica.latest(wanted)).items()}
        there: dict[str, list[_Found]] = {subject: [] for subject in wanted}
        for feed in self.feeds:
            named = {landed: feed.subject(landed, here.get(landed)) for landed in wanted}
            subjects = {landed: name or cases[landed].names.get(feed.number) for landed, name in named.items()}
            found = await feed.side.latest(name for name in subjects.values() if name)
            for landed, name in subjects.items():
                if name:
                    there[landed].append((feed, name, held(found.get(name))))
        for subject in wanted:
            if self._is_decided(subject, cases[subject], here.get(subject), there[subject], last=last):
                del cases[subject]

    async def _ask_streams(self) -> None:
        info = await streams.info(self.replica.api, self.replica.stream)
        for feed in self.feeds:
            self._arrived[feed.number] = arrival.reported(info, feed.source)
            self._infos[feed.number] = await streams.info(feed.side.api, feed.side.stream)

    def _is_decided(
        self, subject: str, case: _Case, here: LastEntry | None, there: list[_Found], *, last: bool
    ) -> bool:
        """Return whether the key is decided; a difference is then reported."""
        if self._collide(here, there):
            return True
        chosen = self._counterpart(here, there)
        if chosen is None:
            return True
        feed, name, origin = chosen
        known = known_revision(here, feed.side.stream, mirror=self.mirror)
        verdict = judge(here, origin, known, self._arrived[feed.number], mirror=self.mirror)
        if verdict is Verdict.AGREES or (verdict is Verdict.LATE and _follows(case, feed, known, origin)):
            return True
        if verdict is Verdict.EXTRA and self._expires(feed, here, origin):
            feed.outcome.expiring += 1
            return True
        if not (self._certain(case, feed, verdict, here, origin) or last):
            return False
        kind = difference(here, origin, known) if verdict is Verdict.LATE else verdict
        cause = LAGGING if verdict is Verdict.LATE else self._cause(feed, here, origin)
        found = AuditDifference(
            feed.outcome.origin,
            feed.outcome.replica,
            key_of(subject),
            kind,
            key_of(name) if name else None,
            origin.revision if origin else None,
            here.revision if here else None,
            cause,
            subject,
        )
        feed.outcome.add(found)
        self.report(found)
        return True

    def _collide(self, here: LastEntry | None, there: list[_Found]) -> bool:
        """Return whether several origins hold the key, and the replica agrees with one of them."""
        present = [item for item in there if item[2] is not None]
        agrees = [judge(here, origin, 0, 0, mirror=self.mirror) is Verdict.AGREES for _, _, origin in present]
        if len(present) < 2 or not any(agrees):
            return False
        for feed, _, _ in present:
            feed.outcome.collisions += 1
        return True

    def _counterpart(self, here: LastEntry | None, there: list[_Found]) -> _Found | None:
        """Return the origin to compare with: the entry's source, else one that holds the key. None: there is none."""
        source = here.source.stream if here and here.source else None
        if source in self.ignored:
            return None
        living = [item for item in there if item[2] is not None and item[2].lives]
        feeds = [feed for feed in self.feeds if self.mirror or feed.side.stream == source]
        lives = here is not None and here.lives
        if not feeds and not living:
            self.local += lives
            return None
        bringing = [item for item in there if item[0] in feeds]
        found = [*(item for item in bringing if item[2] is not None), *living, *bringing]
        if found:
            return found[0]
        return (feeds[0], "", None) if feeds and lives else None

    def _certain(
        self, case: _Case, feed: Feed, verdict: Verdict, here: LastEntry | None, origin: LastEntry | None
    ) -> bool:
        """Return whether a difference is certain: repeated, and not about a key that is just expiring."""
        if verdict is Verdict.LATE:
            return False
        seen = (verdict, here, origin)
        case.times = case.times + 1 if case.seen == seen else 1
        case.seen = seen
        ends = [here.ends(self.ages) if here else None, origin.ends(feed.ages) if origin else None]
        now = self._now(feed)
        enough = 1 if self.mirror and self.alone and feed.alone else _AGREEING_ROUNDS
        return case.times >= enough and not any(end is not None and abs(now - end) < _EXPIRY_MARGIN_NS for end in ends)

    def _expires(self, feed: Feed, here: LastEntry | None, origin: LastEntry | None) -> bool:
        """Return whether the key has expired in the origin, and will expire in the replica."""
        if here is None or origin is not None or here.ends(self.ages) is None:
            return False
        if self.mirror:
            end = here.ends(feed.ages)
            return end is not None and end <= self._now(feed)
        gone = here.source is not None and here.source.sequence < self._infos[feed.number]["state"]["first_seq"]
        return (here.ttl not in (None, NEVER) and feed.ages.own) or bool(feed.ages.max_age and gone)

    def _now(self, feed: Feed) -> int:
        """Return the time of the origin's server in ns: this machine's clock may be wrong."""
        timestamp = self._infos[feed.number].get("ts")
        return parse_time(timestamp) if timestamp else time.time_ns()

    def _cause(self, feed: Feed, here: LastEntry | None, origin: LastEntry | None) -> str | None:
        """Return the cause of a difference, if known."""
        if here is None:
            return None
        if not self.mirror and (here.source is None or here.source.stream != feed.side.stream):
            return None if here.source else LOCAL_WRITE
        info = self._infos[feed.number]
        state = info["state"]
        revision = known_revision(here, feed.side.stream, mirror=self.mirror)
        first = parse_time(state["first_ts"]) if state["messages"] else inf
        older = here.time_ns < parse_time(info["created"]) <= first
        if older or revision > state["last_seq"] or (origin is not None and revision == origin.revision):
            return RECREATED_ORIGIN
        if here.lives and here.ends(self.ages) is None and here.ends(feed.ages) is not None:
            return TTL_NOT_INHERITED
        return None


def key_of(subject: str) -> str:
    """Return the key of a subject: everything after the bucket's prefix."""
    parts = subject.split(".", 2)
    return parts[2] if len(parts) == 3 and f"{parts[0]}." == SUBJECT_PREFIX else subject


def _follows(case: _Case, feed: Feed, known: int, origin: LastEntry | None) -> bool:
    """Return whether the replica keeps pace with a key that is overwritten faster than it can be compared."""
    assert origin is not None
    return known >= case.goals.setdefault(feed.number, origin.revision)
