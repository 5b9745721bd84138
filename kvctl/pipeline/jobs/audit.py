"""Compare an origin with its replicas on Spark, through the topology's key transforms.

Spark reads both sides, maps the origin's keys to where they land, and compares digests of them; it joins the keys whose
digests differ. Each key that does not match is read again at the leaders, as `topology audit` does, so the verdict is
the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING

from kvctl.jetstream.api import Api
from kvctl.kv.bucket import Bucket
from kvctl.kv.names import STREAM_PREFIX
from kvctl.kv.stream_kind import Kind
from kvctl.pipeline import worker_connection
from kvctl.pipeline.jobs import audit_digests
from kvctl.pipeline.jobs.audit_digests import REPLICA, Side
from kvctl.pipeline.jobs.audit_join import OriginSide, Readable, put_side_by_side
from kvctl.pipeline.options import SourceOptions
from kvctl.topology.audit.audit import FirstComparison
from kvctl.topology.audit.audit import audit as audit_replica
from kvctl.topology.audit.confirmation import BLOCK_KEYS, Feed, key_of
from kvctl.topology.audit.side import AuditReader
from kvctl.topology.audit.verdict import DELETED, AuditDifference, AuditOutcome, LastEntry, difference, held
from kvctl.topology.hazards.hazards import name_of
from kvctl.topology.model.subjects import KeyMapping, Transform
from kvctl.topology.survey.graph import Replica
from kvctl.topology.survey.inventory import survey

if TYPE_CHECKING:
    from kvctl.kv.client import Client
    from kvctl.pipeline.spark.engine import Engine

DEFAULT_WAIT = timedelta(seconds=10)
"""Default time to wait for late entries."""

REREAD_PAUSE_S = 0.05
"""Seconds between two reads of keys of buckets that are not replicas of each other."""

Report = Callable[[AuditDifference], None]


def audit(
    engine: Engine,
    options: SourceOptions,
    names: Sequence[str],
    patience: timedelta = DEFAULT_WAIT,
    *,
    report: Report = lambda _: None,
) -> list[AuditOutcome]:
    """Compare `options.bucket` with the replicas of these names; buckets that do not replicate it key by key.

    Raises BucketNotFound and connection errors; an error that prevents reading a pair is in its outcome.
    """
    return worker_connection.run(_SparkAudit(engine, options, patience, report).run(names))


async def find_pairs(client: Client, origin: str, names: Sequence[str]) -> list[tuple[str, Replica | None]]:
    """Pair each name with the replica that reads from the origin under it; None for any other bucket.

    Raises BucketNotFound.
    """
    known = (await survey({"": client.api})).replicas()
    reading = {item.name: item for item in known if any(name_of(link.source) == origin for link in item.links)}
    for name in dict.fromkeys(name for name in names if name not in reading):
        await client.bucket(origin).locate()
        await client.bucket(name).locate()
    return [(name, reading.get(name)) for name in names]


class _SparkAudit:
    def __init__(self, engine: Engine, options: SourceOptions, patience: timedelta, report: Report) -> None:
        self._engine = engine
        self._options = options
        self._patience = patience
        self._report = report

    async def run(self, names: Sequence[str]) -> list[AuditOutcome]:
        async with worker_connection.connected(self._options) as client:
            outcomes: list[AuditOutcome] = []
            for name, replica in await find_pairs(client, self._options.bucket, names):
                outcomes += await (self._replica(replica) if replica else self._other(client.api, name))
        return outcomes

    async def _replica(self, replica: Replica) -> list[AuditOutcome]:
        """Compare one replica of the origin with all its sources: keys from the others are not extra."""
        origin = self._options.bucket
        outcomes = await audit_replica(
            replica,
            self._patience,
            compare=self._compare,
            report=lambda item: self._report(item) if item.origin == origin else None,
        )
        return [outcome for outcome in outcomes if outcome.origin == origin]

    async def _compare(self, replica: Replica, feeds: Sequence[Feed]) -> FirstComparison:
        mirror = replica.kind is Kind.MIRROR
        held = await self._readable(replica.place.api, replica.name)
        origins = [await self._fed(feed) for feed in feeds]
        apis = [replica.place.api, *(feed.side.api for feed in feeds)]
        return await self._compared(apis, held, origins, revisions=mirror, own=not mirror)

    async def _compared(
        self, apis: Sequence[Api], held: Readable, origins: Sequence[OriginSide], *, revisions: bool, own: bool
    ) -> FirstComparison:
        """Compare digests of both sides, and join the keys whose digests differ; `apis` are the replica's first."""
        sides = [Side(REPLICA, held.options, revisions=revisions)]
        sides += [Side(number, one.options, one.rules.rules, revisions) for number, one in enumerate(origins)]
        with self._engine.explaining():
            digested = await audit_digests.compare(self._engine, list(zip(apis, sides, strict=True)))
            if not digested.slots:
                return FirstComparison((), 0, lambda *_: None, digested.keys)
            spark = await asyncio.to_thread(lambda: self._engine.spark)
            return await asyncio.to_thread(
                put_side_by_side, spark, held, origins, digested, revisions=revisions, own=own
            )

    async def _other(self, api: Api, name: str) -> list[AuditOutcome]:
        """Compare a bucket that does not replicate the origin, key by key."""
        origin, other = await self._readable(api, self._options.bucket), await self._readable(api, name)
        rules = KeyMapping([Transform(f"{origin.prefix}>", f"{other.prefix}>")])
        fed = OriginSide(origin.options, origin.stream, origin.prefix, rules)
        found = await self._compared([api, api], other, [fed], revisions=False, own=False)
        outcome = AuditOutcome(self._options.bucket, name, Kind.BUCKET, keys=found.keys[0])
        sides = [await AuditReader(api, item.stream).ready() for item in (origin, other)]
        left, end = iter(found.suspects), time.monotonic() + self._patience.total_seconds()
        while block := list(islice(left, BLOCK_KEYS)):
            names = {subject: str(rules.origin(subject)) for subject in block}
            await self._settle(outcome, sides[0], sides[1], names, end)
        return [outcome]

    async def _settle(
        self, outcome: AuditOutcome, origin: AuditReader, other: AuditReader, names: dict[str, str], end: float
    ) -> None:
        """Look again at what seemed to differ, until it is seen twice to do so in the same way, or time is up."""
        seen: dict[str, tuple[LastEntry | None, LastEntry | None] | None] = dict.fromkeys(names)
        while seen:
            here = await other.latest(seen)
            there = await origin.latest(names[subject] for subject in seen)
            last = time.monotonic() > end
            for subject, before in list(seen.items()):
                one, two = held(here.get(subject)), held(there.get(names[subject]))
                if (one.mark if one else DELETED) == (two.mark if two else DELETED):
                    del seen[subject]
                elif before is not None and (before == (one, two) or last):
                    del seen[subject]
                    self._add(outcome, subject, names[subject], one, two)
                else:
                    seen[subject] = one, two
            await asyncio.sleep(REREAD_PAUSE_S)

    def _add(
        self, outcome: AuditOutcome, subject: str, name: str, here: LastEntry | None, there: LastEntry | None
    ) -> None:
        found = AuditDifference(
            outcome.origin,
            outcome.replica,
            key_of(subject),
            difference(here, there, 0),
            key_of(name),
            there.revision if there else None,
            here.revision if here else None,
            subject=subject,
        )
        outcome.add(found)
        self._report(found)

    async def _fed(self, feed: Feed) -> OriginSide:
        held = await self._readable(feed.side.api, feed.side.stream.removeprefix(STREAM_PREFIX))
        return OriginSide(held.options, held.stream, held.prefix, feed.rules)

    async def _readable(self, api: Api, name: str) -> Readable:
        """Return a bucket as the workers read it, also in another domain or account."""
        binding = await Bucket(api, name).locate()
        options = replace(self._options, bucket=name, domain=None, api_prefix=api.prefix)
        return Readable(options, binding.stream, binding.prefix)
