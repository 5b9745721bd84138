"""Comparison of replicas with their origins: every key's last operation and value, read on both sides.

Both sides are read in step and compared as digests. Keys that do not match are read again from the leaders, the replica
first, until they match, are known to differ, or time runs out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

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
from kvctl.jetstream.stream_info import Source, StreamInfo
from kvctl.kv import resolve
from kvctl.kv.read import listing
from kvctl.kv.stream_kind import Kind
from kvctl.topology.audit.confirmation import Feed, Recheck
from kvctl.topology.audit.side import AuditReader
from kvctl.topology.audit.verdict import (
    DELETED,
    ORIGIN,
    REPLICA,
    Ages,
    AuditDifference,
    AuditOutcome,
    LiveKeys,
    Marked,
    SideComparison,
    Verdict,
    mark,
)
from kvctl.topology.hazards.hazards import (
    FILTERED_MIRROR,
    OUTSIDE_PREFIX,
    RECREATED_ORIGIN,
    RENAMING_MIRROR,
    Hazard,
    name_of,
    of_replica,
)
from kvctl.topology.health import arrival
from kvctl.topology.health.arrival import Advance
from kvctl.topology.health.inspection import lineage
from kvctl.topology.model.origins import Origin
from kvctl.topology.model.subjects import KeyMapping
from kvctl.topology.survey.graph import Link, Replica
from kvctl.topology.survey.inventory import servers, silence
from kvctl.topology.survey.origin_lookup import OriginView, exports_to_see

PATIENCE = timedelta(seconds=10)
"""Default time to wait for late entries."""
MAX_READINGS = 3
"""Times that both sides are read when fewer keys were read than exist."""
_STALLED_PATIENCE_S = 1.0
"""Seconds to wait for late keys if the replica has not caught up within the patience."""

Report = Callable[[AuditDifference], None]
"""Called with each difference that is found."""
Names = dict[tuple[int, str], str]
"""Subjects by origin and destination, if they cannot be derived from the destination."""
Name = Callable[[int, str], str | None]
"""Returns the subject in an origin for a destination from which it cannot be derived."""
Compare = Callable[[Replica, Sequence[Feed]], "Awaitable[FirstComparison]"]
"""First comparison of both sides."""


class FirstComparison(NamedTuple):
    """Result of the first comparison of both sides."""

    suspects: Iterable[str]
    """Subjects in the replica that have to be checked again."""
    own: int
    """Number of the replica's own live entries, which no origin has brought or holds."""
    name: Name
    keys: Sequence[int]
    """Number of live keys of each origin."""


def messages_to_read(replica: Replica) -> int:
    """Estimate how many messages an audit reads: the latest of each key, from the replica and from its origins."""
    return 2 * int(replica.info["state"].get("num_subjects") or 0)


async def audit(
    replica: Replica,
    patience: timedelta = PATIENCE,
    *,
    report: Report = lambda _: None,
    advance: Advance = lambda _: None,
    compare: Compare | None = None,
) -> list[AuditOutcome]:
    """Compare a replica with each of its origins, and return one outcome for each.

    `compare` makes the first comparison; without it both sides are read here, in step. An error in reading an origin is
    not raised but stored in its outcome, and the other origins are compared.
    """
    outcomes = [_outcome(replica, link) for link in replica.links]
    try:
        if replica.silent:
            names = servers(replica.info)
            hint = f"Start {', '.join(f'`{name}`' for name in names)}" if names else OFFLINE_HINT
            raise StreamOffline(f"`{replica.name}` is offline: {silence(names)}", hint=hint)
        side = await AuditReader(replica.place.api, replica.stream).ready()
        pairs = enumerate(zip(replica.links, outcomes, strict=True))
        feeds = await asyncio.gather(*(_feed(number, link, outcome) for number, (link, outcome) in pairs))
        readable = [feed for feed in feeds if feed is not None]
        await _ReplicaAudit(replica, side, readable, patience, report, advance, compare).run()
    except KvctlError as error:
        for outcome in outcomes:
            outcome.error = outcome.error or error
    return outcomes


def _outcome(replica: Replica, link: Link) -> AuditOutcome:
    outcome = AuditOutcome(
        name_of(link.source), replica.name, replica.kind, link.elsewhere, replica.place.name, offline=replica.silent
    )
    for hazard in hiding(replica, link):
        outcome.hidden = hazard.evidence
        outcome.causes.add(hazard.name)
    return outcome


async def _feed(number: int, link: Link, outcome: AuditOutcome) -> Feed | None:
    """Return an origin as it can be read; None, with the outcome's error, if it cannot."""
    try:
        rules = KeyMapping.of(link.source)
        side = await AuditReader(link.api, link.source["name"], rules.taken).ready()
        return Feed(number, link.source, rules, side, await streams.info(side.api, side.stream), outcome)
    except NotFoundError:
        outcome.error = NotFoundError(f"Origin `{outcome.origin}` does not exist")
    except KvctlError as error:
        outcome.error = error
        if isinstance(error, JetStreamDisabled | PermissionDenied) and outcome.where is not None:
            error.hint = _access_hint(link, outcome.where)
    return None


def _access_hint(link: Link, where: str) -> str:
    prefix = Source.parse(link.source).api
    if where != prefix:
        return f"Check the name of domain `{where}` and the leaf node connection"
    text = exports_to_see(link.source["name"], prefix)
    return f"{text[:1].upper()}{text[1:]}"


class _Unreadable(Exception):
    """Interrupted reading of an origin."""

    def __init__(self, feed: Feed, error: KvctlError) -> None:
        super().__init__(error.message)
        self.feed, self.error = feed, error


@dataclass(slots=True)
class _ReplicaAudit:
    """One replica and its readable origins."""

    replica: Replica
    side: AuditReader
    feeds: list[Feed]
    patience: timedelta
    report: Report
    advance: Advance
    compare: Compare | None
    names: Names = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    """Number of messages read of each origin; the replica's under -1."""
    own: set[bytes] = field(default_factory=set)
    """Subjects of live entries that no origin has brought."""
    keys: dict[int, LiveKeys] = field(default_factory=dict)

    @property
    def mirror(self) -> bool:
        """True if revisions have to agree as well."""
        return self.replica.kind is Kind.MIRROR

    async def run(self) -> None:
        """Compare with all origins; leave out one whose reading is interrupted."""
        caught_up = await self._catch_up()
        while self.feeds:
            try:
                compared = await (self.compare(self.replica, self.feeds) if self.compare else self._compare_all())
            except _Unreadable as broken:
                broken.feed.outcome.error = broken.error
                self.feeds.remove(broken.feed)
                continue
            await self._settle(compared, self.patience.total_seconds() if caught_up else _STALLED_PATIENCE_S)
            await self._check_lineage()
            await asyncio.gather(*map(self._check_origin, self.feeds))
            return

    async def _catch_up(self) -> bool:
        """Wait until the replica is up to date with its origins' current state, and return whether it is."""
        sources = [
            (feed.source, OriginView(Origin(stream=feed.side.stream), feed.side.api, feed.info, True))
            for feed in self.feeds
        ]
        with suppress(WaitExpired):
            goals = await arrival.goals(sources)
            await arrival.until_filled(self.side.api, self.side.stream, goals, self.patience)
            return True
        return False

    async def _compare_all(self) -> FirstComparison:
        """Compare, and count: an unnoticed interruption proves nothing. Raises _Unreadable, StreamReplaced."""
        for _ in range(MAX_READINGS):
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
        """Return the infos of the sides that are read completely, by number of the origin; the replica's under -1."""
        complete = {feed.number: feed.side for feed in self.feeds if feed.complete} | {HERE: self.side}
        return {number: await streams.info(side.api, side.stream) for number, side in complete.items()}

    async def _compare(self) -> FirstComparison:
        """Read all sides, the one with fewer waiting keys first."""
        comparison = SideComparison()
        self.read = dict.fromkeys((HERE, *(feed.number for feed in self.feeds)), 0)
        self.names.clear()
        self.own.clear()
        self.keys = {feed.number: LiveKeys(feed.info["state"]["last_seq"]) for feed in self.feeds}
        origins = [self._origin(feed) for feed in self.feeds]
        sides: list[list[AsyncGenerator[Marked]]] = [origins, [self._replica_messages()]]
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
        return FirstComparison(
            suspects, comparison.alone(self.own), self._name, [keys.count() for keys in self.keys.values()]
        )

    def _name(self, number: int, landed: str) -> str | None:
        return self.names.get((number, landed))

    async def _origin(self, feed: Feed) -> AsyncGenerator[Marked]:
        """Yield an origin's messages with their destinations."""
        land, mirror, lossy, keys = feed.rules.land, self.mirror, feed.rules.lossy, self.keys[feed.number]
        try:
            async with aclosing(feed.side.messages()) as batches:
                async for batch in batches:
                    self.read[feed.number] += len(batch)
                    found: Marked = []
                    for subject, revision, header, payload in batch:
                        if (landed := land(subject)) is not None:
                            digest = mark(header, payload, revision if mirror else b"")
                            found.append((landed, digest))
                            keys.add(subject, int(revision), lives=digest != DELETED)
                            if lossy:
                                self.names[feed.number, _text(landed)] = _text(subject)
                    yield found
        except KvctlError as error:
            raise _Unreadable(feed, error) from None

    async def _replica_messages(self) -> AsyncGenerator[Marked]:
        """Yield the replica's messages."""
        mirror = self.mirror
        markers = tuple(_source_markers(feed.side.stream) for feed in self.feeds)
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
                        for message, (_, digest) in zip(batch, found, strict=True)
                        if digest != DELETED and not any(one in message[2] or two in message[2] for one, two in markers)
                    )
                yield found

    async def _settle(self, compared: FirstComparison, patience: float) -> None:
        for feed, keys in zip(self.feeds, compared.keys, strict=True):
            feed.outcome.keys = keys
        ignored = {link.source["name"] for link in self.replica.links} - {feed.side.stream for feed in self.feeds}
        config = self.replica.info["config"]
        recheck = Recheck(
            self.side,
            ages=Ages.of(config),
            alone=int(config.get("num_replicas") or 1) == 1,
            mirror=self.mirror,
            feeds=self.feeds,
            ignored=ignored,
            report=self.report,
        )
        await recheck.settle(compared.suspects, compared.name, patience)
        own = 0 if ignored else compared.own
        for feed in self.feeds:
            feed.outcome.local = own + recheck.local

    async def _check_lineage(self) -> None:
        """Check whether a mirror was filled from the current stream instance of its origin."""
        if not self.mirror:
            return
        (feed,) = self.feeds
        outcome = feed.outcome
        info = await streams.info(self.side.api, self.side.stream)
        found = lineage(info, await streams.info(feed.side.api, feed.side.stream))
        if found.same is False:
            outcome.evidence = found.evidence
        elif await self._contradicts(feed):
            outcome.evidence = f"`{outcome.replica}` holds revisions that are other entries in `{outcome.origin}`"
        if outcome.evidence:
            outcome.causes.add(RECREATED_ORIGIN)

    async def _check_origin(self, feed: Feed) -> None:
        """Doubt an origin that lacks entries of its own origins, or has keys that servers leave out of aggregates."""
        if not feed.outcome.consistent:
            return
        late, unread = await arrival.behind(feed.side.api, feed.info)
        doubts = [*(hazard.evidence for hazard in late), *unread]
        name = name_of(feed.info["config"])
        if not self.mirror and await listing.leaves_out(await resolve.bind(feed.side.api, name, feed.info)):
            doubts.append(f"`{name}` has keys with the byte 0x7f, which do not reach aggregates")
        feed.outcome.doubt = "; ".join(doubts)

    async def _contradicts(self, feed: Feed) -> bool:
        """Return whether the origin holds another entry at a revision of the mirror's."""
        for item in feed.outcome.samples:
            if item.revision is None or item.kind is Verdict.STALE:
                continue
            message = await feed.side.at(item.revision)
            if message is not None and message.subject != feed.rules.origin(item.subject):
                return True
        return RECREATED_ORIGIN in feed.outcome.causes


def _source_markers(stream: str) -> tuple[bytes, bytes]:
    """Return the texts in the headers of messages from the stream: the second one if it is in another account."""
    prefix = f"\r\nNats-Stream-Source: {stream}".encode()
    return prefix + b" ", prefix + b":"


def _text(subject: bytes) -> str:
    return subject.decode("utf-8", "surrogateescape")


HERE = -1
"""Number of the replica, among those of its origins."""
_HIDING = (FILTERED_MIRROR, RENAMING_MIRROR, OUTSIDE_PREFIX)


def unread(
    before: Mapping[int, StreamInfo], after: Mapping[int, StreamInfo], read: Mapping[int, int]
) -> list[tuple[int, str]]:
    """Return the sides of which fewer keys were read than certainly existed: the current ones, without newer ones."""
    found = []
    for number in before:
        then, now = before[number]["state"], after[number]["state"]
        least = (now.get("num_subjects") or 0) - (now["last_seq"] - then["last_seq"])
        if read[number] < least:
            name = name_of(after[number]["config"])
            found.append((number, f"Could read only {read[number]} of {least} keys of `{name}`"))
    return found


def hiding(replica: Replica, link: Link) -> list[Hazard]:
    """Return the hazards by which a replica's configuration hides the keys of a link from clients."""
    config, origin = replica.info["config"], link.origin["config"] if link.origin else None
    if not config.get("mirror"):
        config = {**config, "sources": [link.source]}
    return [hazard for hazard in of_replica(config, [origin]) if hazard.name in _HIDING]
