"""Look again at keys that seemed to differ, on both sides, at the leaders, until it is known whether they do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from kvctl.jetstream import streams
from kvctl.jetstream.stream_info import StreamInfo, StreamState
from kvctl.kv.names import SUBJECT_PREFIX
from kvctl.topology.audit.findings import (
    LAGGING,
    LOCAL_WRITE,
    Difference,
    Outcome,
)
from kvctl.topology.audit.side import AT_ONCE, Side
from kvctl.topology.audit.verdict import (
    Ages,
    Held,
    Verdict,
    difference,
    held,
    judge,
    known_revision,
)
from kvctl.topology.discover.links import live_part
from kvctl.topology.hazards.replica_hazards import RECREATED_ORIGIN, TTL_NOT_INHERITED
from kvctl.topology.mapping import Mapping as Rules
from kvctl.units import parse_time

_PAUSE = 0.05
_LONGEST_PAUSE = 0.5
BLOCK = 20_000
"""Keys that are decided about together, and held: unlike buckets differ in any number."""
_GRACE = 2.0
"""Seconds that late keys of a block have left when the patience is used up by blocks before it."""
_AGREED = 2
"""Rounds in which a difference must look the same, where one might have been asked that has just become a leader."""
_ABOUT = 3 * 10**9
"""Nanoseconds around the end of a key's life in which the two sides may part with it at different moments."""

Report = Callable[[Difference], None]


@dataclass(frozen=True, slots=True)
class Feed:
    """One origin of the replica that is audited."""

    number: int
    source: dict[str, Any]
    rules: Rules
    side: Side
    info: StreamInfo
    outcome: Outcome

    @property
    def ages(self) -> Ages:
        """How the origin lets its entries expire."""
        return Ages.of(self.info["config"])

    @property
    def whole(self) -> bool:
        """Whether all that the origin holds is taken."""
        return self.rules.taken == (">",) or {*(self.info["config"].get("subjects") or (">",))} <= {*self.rules.taken}

    @property
    def alone(self) -> bool:
        """Whether the origin is on one server."""
        return int(self.info["config"].get("num_replicas") or 1) == 1

    def subject(self, landed: str, here: Held | None) -> str | None:
        """What lands there in the replica, as far as that can be told."""
        found = self.rules.origin(landed)
        if found is None and here and here.source and here.source.stream == self.side.stream:
            return here.source.subject or None
        return found


@dataclass(slots=True)
class _Case:
    """A key that is not settled yet."""

    names: dict[int, str] = field(default_factory=dict)
    """What it is called in origins, where that was seen and cannot be told from its name here."""
    goals: dict[int, int] = field(default_factory=dict)
    """The origins' revisions when it was looked at first: a replica that has come so far follows."""
    seen: tuple[object, ...] = ()
    times: int = 0


_Found = tuple[Feed, str, Held | None]
"""An origin, the key's subject there, and what it holds of it."""


@dataclass(slots=True)
class Settling:
    """The keys of one replica that seemed to differ."""

    replica: Side
    ages: Ages
    """How the replica lets its entries expire."""
    alone: bool
    """Whether the replica is on one server: what a mirror there has passed by, it does not hold."""
    mirror: bool
    feeds: Sequence[Feed]
    ignored: Collection[str]
    """Streams that feed it and cannot be read: nothing is said about their keys."""
    report: Report
    local: int = 0
    """Keys that turned out to be the replica's own."""
    _arrived: dict[int, int | None] = field(default_factory=dict)
    """For each origin, up to which of its revisions everything has come; None: not known."""
    _infos: dict[int, StreamInfo] = field(default_factory=dict)
    """Of the origins, in this round."""

    async def settle(self, subjects: Iterable[str], name: Callable[[int, str], str | None], patience: float) -> None:
        """Decide about all of them; late ones are waited for as long as `patience` says, in seconds."""
        left, end = iter(subjects), time.monotonic() + patience
        while block := list(islice(left, BLOCK)):
            cases = {subject: _Case(self._names(subject, name)) for subject in block}
            await self._decide(cases, max(end, time.monotonic() + min(patience, _GRACE)))

    def _names(self, subject: str, name: Callable[[int, str], str | None]) -> dict[int, str]:
        """What it is called in those origins in which that cannot be told."""
        found = {feed.number: name(feed.number, subject) for feed in self.feeds if feed.rules.lossy}
        return {number: text for number, text in found.items() if text is not None}

    async def _decide(self, cases: dict[str, _Case], deadline: float) -> None:
        pause = _PAUSE
        while cases:
            last = time.monotonic() > deadline
            wanted = list(cases)
            for start in range(0, len(wanted), AT_ONCE):
                await self._look(wanted[start : start + AT_ONCE], cases, last=last)
            if cases:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _look(self, wanted: Sequence[str], cases: dict[str, _Case], *, last: bool) -> None:
        """Look at some of them once; what is settled goes."""
        await self._ask_streams()
        # The replica first: what it held then can only be older than what its origin holds after.
        here = {subject: held(message) for subject, message in (await self.replica.latest(wanted)).items()}
        there: dict[str, list[_Found]] = {subject: [] for subject in wanted}
        for feed in self.feeds:
            named = {landed: feed.subject(landed, here.get(landed)) for landed in wanted}
            told = {landed: name or cases[landed].names.get(feed.number) for landed, name in named.items()}
            found = await feed.side.latest(name for name in told.values() if name)
            for landed, name in told.items():
                if name:
                    there[landed].append((feed, name, held(found.get(name))))
        for subject in wanted:
            if self._settled(subject, cases[subject], here.get(subject), there[subject], last=last):
                del cases[subject]

    async def _ask_streams(self) -> None:
        info = await streams.info(self.replica.api, self.replica.stream)
        live = info.get("sources") or []
        for feed in self.feeds:
            told = info["state"]["last_seq"] if self.mirror else live_part(feed.source, live).get("seq")
            self._arrived[feed.number] = told
            self._infos[feed.number] = await streams.info(feed.side.api, feed.side.stream)

    def _settled(self, subject: str, case: _Case, here: Held | None, there: list[_Found], *, last: bool) -> bool:
        """Whether it is known how the key stands; a difference is reported then."""
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
        found = Difference(
            feed.outcome.origin, feed.outcome.replica, key_of(subject), kind, key_of(name) if name else None,
            origin.revision if origin else None, here.revision if here else None, cause, subject,
        )  # fmt: skip
        feed.outcome.add(found)
        self.report(found)
        return True

    def _collide(self, here: Held | None, there: list[_Found]) -> bool:
        """Whether several origins hold the key, and the replica agrees with one of them."""
        present = [item for item in there if item[2] is not None]
        agrees = [judge(here, origin, 0, 0, mirror=self.mirror) is Verdict.AGREES for _, _, origin in present]
        if len(present) < 2 or not any(agrees):
            return False
        for feed, _, _ in present:
            feed.outcome.collisions += 1
        return True

    def _counterpart(self, here: Held | None, there: list[_Found]) -> _Found | None:
        """The origin to compare with: what brought the entry, else what holds the key. None: it is nobody's."""
        brought = here.source.stream if here and here.source else None
        if brought in self.ignored:
            return None
        living = [item for item in there if item[2] is not None and item[2].lives]
        feeds = [feed for feed in self.feeds if self.mirror or feed.side.stream == brought]
        lives = here is not None and here.lives
        if not feeds and not living:
            self.local += lives
            return None
        bringing = [item for item in there if item[0] in feeds]
        found = [*(item for item in bringing if item[2] is not None), *living, *bringing]
        if found:
            return found[0]
        return (feeds[0], "", None) if feeds and lives else None

    def _certain(self, case: _Case, feed: Feed, verdict: Verdict, here: Held | None, origin: Held | None) -> bool:
        """Whether a difference is one: it looked the same before, and is not about a key that expires just now."""
        if verdict is Verdict.LATE:
            return False
        seen = (verdict, here, origin)
        case.times = case.times + 1 if case.seen == seen else 1
        case.seen = seen
        ends = [here.ends(self.ages) if here else None, origin.ends(feed.ages) if origin else None]
        now = self._now(feed)
        enough = 1 if self.mirror and self.alone and feed.alone else _AGREED
        return case.times >= enough and not any(end is not None and abs(now - end) < _ABOUT for end in ends)

    def _expires(self, feed: Feed, here: Held | None, origin: Held | None) -> bool:
        """Whether the key has expired in the origin, and will do so in the replica."""
        if here is None or origin is not None or here.ends(self.ages) is None:
            return False
        if self.mirror:
            end = here.ends(feed.ages)
            return end is not None and end <= self._now(feed)
        gone = here.source is not None and here.source.sequence < self._infos[feed.number]["state"]["first_seq"]
        return (here.ttl is not None and feed.ages.own) or bool(feed.ages.max_age and gone)

    def _now(self, feed: Feed) -> int:
        """The time of the origin's server in ns: this machine's clock may be wrong."""
        told = self._infos[feed.number].get("ts")
        return parse_time(told) if told else time.time_ns()

    def _cause(self, feed: Feed, here: Held | None, origin: Held | None) -> str | None:
        """What has brought a difference about, where that can be told."""
        if here is None:
            return None
        if not self.mirror and (here.source is None or here.source.stream != feed.side.stream):
            return None if here.source else LOCAL_WRITE
        info = self._infos[feed.number]
        state = info["state"]
        revision = known_revision(here, feed.side.stream, mirror=self.mirror)
        older = here.time_ns < parse_time(info["created"]) <= _first_time(state)
        if older or revision > state["last_seq"] or (origin is not None and revision == origin.revision):
            return RECREATED_ORIGIN
        if here.lives and here.ends(self.ages) is None and here.ends(feed.ages) is not None:
            return TTL_NOT_INHERITED
        return None


def key_of(subject: str) -> str:
    """The key that lives on a subject: what follows the bucket's prefix."""
    parts = subject.split(".", 2)
    return parts[2] if len(parts) == 3 and f"{parts[0]}." == SUBJECT_PREFIX else subject


def _follows(case: _Case, feed: Feed, known: int, origin: Held | None) -> bool:
    """Whether the key is overwritten faster than it can be looked at on both sides, and the replica keeps pace."""
    assert origin is not None
    return known >= case.goals.setdefault(feed.number, origin.revision)


def _first_time(state: StreamState) -> int:
    """When the first message that is there was stored; far in the future without one."""
    return parse_time(state["first_ts"]) if state["messages"] else 1 << 63
