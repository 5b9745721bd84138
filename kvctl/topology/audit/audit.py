"""Prove that replicas hold what their origins do: every key's last operation and value, read on both sides.

Both sides are read in step and put side by side as digests. What does not match is read again at the leaders, the
replica first, until it does, or is known to differ, or the time for what is late is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import timedelta

from kvctl.errors import (
    JetStreamDisabled,
    KvctlError,
    NotFoundError,
    PermissionDenied,
    StreamOffline,
    StreamReplaced,
    WaitExpired,
)
from kvctl.jetstream import streams
from kvctl.jetstream.api import OFFLINE_HINT
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.jetstream.stream_source import Source
from kvctl.kv.stream_kind import Kind
from kvctl.topology.apply import arrival
from kvctl.topology.audit.comparison import (
    DELETED,
    ORIGIN,
    REPLICA,
    Comparison,
    Marked,
    mark,
)
from kvctl.topology.audit.confirmation import Feed, Settling
from kvctl.topology.audit.coverage import HERE, hiding, unread
from kvctl.topology.audit.findings import Difference, Outcome
from kvctl.topology.audit.side import Side
from kvctl.topology.audit.verdict import Ages, Verdict
from kvctl.topology.discover.inventory import Link
from kvctl.topology.discover.mirror_origin import lineage
from kvctl.topology.discover.origin_lookup import Seen, exports_to_see
from kvctl.topology.discover.replicas import (
    Replica,
    origin_api,
    origin_name,
    where,
)
from kvctl.topology.hazards.replica_hazards import RECREATED_ORIGIN
from kvctl.topology.mapping import Mapping
from kvctl.topology.model import Origin

PATIENCE = timedelta(seconds=10)
"""How long what is late is waited for, unless said otherwise."""
READINGS = 3
"""Times that both sides are read when less came than there is."""
_HOPELESS = 1.0
"""Seconds that late keys have left where the replica has not come so far as its origin in all the time."""

Advance = Callable[[int], None]
"""Told of messages that were read."""
Report = Callable[[Difference], None]
"""Told of differences as they are found."""
Names = dict[tuple[int, str], str]
"""By origin and landing, the subjects that cannot be told from where they land."""
Name = Callable[[int, str], str | None]
"""The subject in an origin of what lands there, where it cannot be told from it."""
Compare = Callable[[Replica, Sequence[Feed]], "Awaitable[Compared]"]
"""A first look at both sides."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What a first look at both sides found."""

    suspects: Iterable[str]
    """Subjects in the replica that have to be looked at closely."""
    own: int
    """How many living entries are the replica's own: no origin has brought them, or holds them."""
    name: Name
    keys: Sequence[int]
    """Living keys of each origin."""


async def audit(
    replica: Replica,
    patience: timedelta = PATIENCE,
    *,
    report: Report = lambda _: None,
    advance: Advance = lambda _: None,
    compare: Compare | None = None,
) -> list[Outcome]:
    """Compare a replica with each of its origins, one outcome an origin.

    `compare` takes the first look at both sides; without it they are read here, in step. Raises nothing of what keeps
    it from reading an origin: that is the outcome's error, and the other origins are compared.
    """
    outcomes = [_outcome(replica, link) for link in replica.links]
    try:
        if replica.silent:
            raise StreamOffline(f"No server that holds `{replica.name}` answers", hint=OFFLINE_HINT)
        side = await Side(replica.place.api, replica.stream).ready()
        feeds = await asyncio.gather(*(
            _feed(number, link, outcome)
            for number, (link, outcome) in enumerate(zip(replica.links, outcomes, strict=True))
        ))  # fmt: skip
        readable = [feed for feed in feeds if feed is not None]
        await _Audit(replica, side, readable, patience, report, advance, compare).run()
    except KvctlError as error:
        for outcome in outcomes:
            outcome.error = outcome.error or error
    return outcomes


def _outcome(replica: Replica, link: Link) -> Outcome:
    outcome = Outcome(origin_name(link), replica.name, replica.kind, where(link), replica.place.name)
    for hazard in hiding(replica, link):
        outcome.hidden = hazard.evidence
        outcome.causes.add(hazard.name)
    return outcome


async def _feed(number: int, link: Link, outcome: Outcome) -> Feed | None:
    """An origin as it can be read; None, and the outcome's error, where it cannot."""
    try:
        rules = Mapping.of(link.source)
        side = await Side(origin_api(link), link.source["name"], rules.taken).ready()
        return Feed(number, link.source, rules, side, await streams.info(side.api, side.stream), outcome)
    except NotFoundError:
        outcome.error = NotFoundError(f"Origin `{outcome.origin}` does not exist")
    except KvctlError as error:
        outcome.error = error
        if isinstance(error, JetStreamDisabled | PermissionDenied) and outcome.where is not None:
            error.hint = _way_to_see(link, outcome.where)
    return None


def _way_to_see(link: Link, where: str) -> str:
    prefix = Source.parse(link.source).api
    if where != prefix:
        return f"Check the name of domain `{where}`, and that the leaf node is connected"
    text = exports_to_see(link.source["name"], prefix)
    return f"{text[:1].upper()}{text[1:]}"


class _Unreadable(Exception):
    """An origin that broke off."""

    def __init__(self, feed: Feed, error: KvctlError) -> None:
        super().__init__(error.message)
        self.feed, self.error = feed, error


@dataclass(slots=True)
class _Audit:
    """One replica and those of its origins that can be read."""

    replica: Replica
    side: Side
    feeds: list[Feed]
    patience: timedelta
    report: Report
    advance: Advance
    compare: Compare | None
    names: Names = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    """Messages of each origin that were read; the replica's under -1."""
    own: set[bytes] = field(default_factory=set)
    """Subjects of living entries that none of the origins has brought."""
    keys: dict[int, int] = field(default_factory=dict)

    @property
    def mirror(self) -> bool:
        """Whether revisions have to agree, too."""
        return self.replica.kind is Kind.MIRROR

    async def run(self) -> None:
        """Compare with all origins; one that breaks off is left out."""
        caught_up = await self._catch_up()
        while self.feeds:
            try:
                compared = await (self.compare(self.replica, self.feeds) if self.compare else self._compare_all())
            except _Unreadable as broken:
                broken.feed.outcome.error = broken.error
                self.feeds.remove(broken.feed)
                continue
            await self._settle(compared, self.patience.total_seconds() if caught_up else _HOPELESS)
            await self._check_lineage()
            return

    async def _catch_up(self) -> bool:
        """Wait until the replica has come as far as its origins are now; whether it has."""
        sources = [
            (feed.number, feed.source, Seen(Origin(stream=feed.side.stream), feed.side.api, feed.info, True))
            for feed in self.feeds
        ]
        with suppress(WaitExpired):
            goals = await arrival.goals(sources)
            await arrival.until_filled(self.side.api, self.side.stream, goals, self.patience)
            return True
        return False

    async def _compare_all(self) -> Compared:
        """Compare, and count: a reading that broke off unnoticed proves nothing. Raises _Unreadable, StreamReplaced."""
        for _ in range(READINGS):
            before = await self._infos()
            compared = await self._compare()
            short = unread(before, await self._infos(), self.read)
            if not short:
                return compared
        number, text = short[0]
        for feed in self.feeds:
            if feed.number == number:
                raise _Unreadable(feed, StreamReplaced(text))
        raise StreamReplaced(text)

    async def _infos(self) -> dict[int, StreamInfo]:
        """The infos of those sides that are read as a whole: each origin's under its number, the replica's under -1."""
        whole = {feed.number: feed.side for feed in self.feeds if feed.whole} | {HERE: self.side}
        return {number: await streams.info(side.api, side.stream) for number, side in whole.items()}

    async def _compare(self) -> Compared:
        """Read all sides, that of which less is waiting first."""
        comparison = Comparison()
        self.read = dict.fromkeys((HERE, *(feed.number for feed in self.feeds)), 0)
        self.names.clear()
        self.own.clear()
        self.keys = dict.fromkeys((feed.number for feed in self.feeds), 0)
        origins = [self._origin(feed) for feed in self.feeds]
        sides: list[list[AsyncGenerator[Marked]]] = [origins, [self._held()]]
        try:
            while sides[ORIGIN] or sides[REPLICA]:
                behind = 1 - comparison.ahead
                side = behind if sides[behind] else 1 - behind
                reader = sides[side].pop(0)
                if (batch := await anext(reader, None)) is not None:
                    comparison.take(side, batch)
                    self.advance(len(batch))
                    sides[side].append(reader)
        finally:
            for reader in (*sides[ORIGIN], *sides[REPLICA]):
                await reader.aclose()
        suspects = [_text(subject) for subject in comparison.suspects(self.own)]
        return Compared(suspects, comparison.alone(self.own), self._name, list(self.keys.values()))

    def _name(self, number: int, landed: str) -> str | None:
        return self.names.get((number, landed))

    async def _origin(self, feed: Feed) -> AsyncGenerator[Marked]:
        """What an origin holds, where it lands."""
        land, mirror, lossy = feed.rules.land, self.mirror, feed.rules.lossy
        try:
            async with aclosing(feed.side.messages()) as batches:
                async for batch in batches:
                    self.read[feed.number] += len(batch)
                    found: Marked = []
                    for subject, revision, header, payload in batch:
                        if (landed := land(subject)) is not None:
                            found.append((landed, mark(header, payload, revision if mirror else b"")))
                            if lossy:
                                self.names[feed.number, _text(landed)] = _text(subject)
                    self.keys[feed.number] += sum(1 for _, said in found if said != DELETED)
                    yield found
        except KvctlError as error:
            raise _Unreadable(feed, error) from None

    async def _held(self) -> AsyncGenerator[Marked]:
        """What the replica holds."""
        mirror = self.mirror
        brought = tuple(_brought(feed.side.stream) for feed in self.feeds)
        async with aclosing(self.side.messages()) as batches:
            async for batch in batches:
                self.read[HERE] += len(batch)
                found = [
                    (subject, mark(header, payload, revision if mirror else b""))
                    for subject, revision, header, payload in batch
                ]
                if not mirror:
                    self.own.update(
                        message[0]
                        for message, (_, said) in zip(batch, found, strict=True)
                        if said != DELETED and not any(one in message[2] or two in message[2] for one, two in brought)
                    )
                yield found

    async def _settle(self, compared: Compared, patience: float) -> None:
        for feed, keys in zip(self.feeds, compared.keys, strict=True):
            feed.outcome.keys = keys
        ignored = {link.source["name"] for link in self.replica.links} - {feed.side.stream for feed in self.feeds}
        config = self.replica.info["config"]
        settling = Settling(
            self.side,
            ages=Ages.of(config),
            alone=int(config.get("num_replicas") or 1) == 1,
            mirror=self.mirror,
            feeds=self.feeds,
            ignored=ignored,
            report=self.report,
        )
        await settling.settle(compared.suspects, compared.name, patience)
        own = 0 if ignored else compared.own
        for feed in self.feeds:
            feed.outcome.local = own + settling.local

    async def _check_lineage(self) -> None:
        """For a mirror, whether it was fed by the origin that is there now."""
        if not self.mirror:
            return
        (feed,) = self.feeds
        outcome = feed.outcome
        info = await streams.info(self.side.api, self.side.stream)
        found = lineage(info, await streams.info(feed.side.api, feed.side.stream))
        if found.same is False:
            outcome.evidence = found.evidence
        elif await self._contradicts(feed):
            outcome.evidence = f"`{outcome.replica}` holds revisions that are something else in `{outcome.origin}`"
        if outcome.evidence:
            outcome.causes.add(RECREATED_ORIGIN)

    async def _contradicts(self, feed: Feed) -> bool:
        """Whether what the origin holds at a revision of the mirror's is another entry."""
        for item in feed.outcome.samples:
            if item.revision is None or item.kind is Verdict.STALE:
                continue
            message = await feed.side.at(item.revision)
            if message is not None and message.subject != feed.rules.origin(item.subject):
                return True
        return RECREATED_ORIGIN in feed.outcome.causes


def _brought(stream: str) -> tuple[bytes, bytes]:
    """What is in the headers of messages that the stream has brought; from another account with a hash."""
    told = f"\r\nNats-Stream-Source: {stream}".encode()
    return told + b" ", told + b":"


def _text(subject: bytes) -> str:
    return subject.decode("utf-8", "surrogateescape")
