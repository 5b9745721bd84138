"""Compare an origin with its replicas on Spark, through the topology's key transforms.

Spark reads both sides, maps the origin's keys to where they land, and compares them. Each key that does not match is
read again at the leaders, as `topology audit` does, so the verdict is the same.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from kvctl.errors import UsageError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.kv.bucket import Bucket
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.kv.stream_kind import Kind
from kvctl.pipeline import worker_connection
from kvctl.pipeline.jobs import audit_digests
from kvctl.pipeline.jobs.audit_digests import Side
from kvctl.pipeline.options import SourceOptions
from kvctl.pipeline.tables import file_rows
from kvctl.pipeline.tables.stored_table import StoredTable
from kvctl.topology.audit.audit import FirstComparison
from kvctl.topology.audit.audit import audit as audit_replica
from kvctl.topology.audit.confirmation import BLOCK_KEYS, Feed, key_of
from kvctl.topology.audit.side import AuditReader
from kvctl.topology.audit.verdict import DELETED, AuditDifference, AuditOutcome, LastEntry, difference, held, mark
from kvctl.topology.hazards.hazards import name_of
from kvctl.topology.model.subjects import KeyMapping, Transform
from kvctl.topology.survey.graph import Replica
from kvctl.topology.survey.inventory import survey

if TYPE_CHECKING:
    from kvctl.kv.client import Client
    from kvctl.pipeline.spark.engine import Engine

LastEntries = Mapping[str, LastEntry | None]
Latest = Callable[[Iterable[str]], Awaitable[LastEntries]]
"""Read of the last entries of subjects; those of subjects without an entry may be left out."""

_ESCAPED = re.compile(rb"\\x([89a-f][0-9a-f])")

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
    table: StoredTable | None = None,
) -> list[AuditOutcome]:
    """Compare `options.bucket` with the replicas of these names; buckets that do not replicate it key by key.

    A `table` of its entries stands in for the bucket.

    Raises BucketNotFound and connection errors; an error that prevents reading a pair is in its outcome.
    """
    return worker_connection.run(_SparkAudit(engine, options, patience, report, table).run(names))


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
    def __init__(
        self, engine: Engine, options: SourceOptions, patience: timedelta, report: Report, table: StoredTable | None
    ) -> None:
        self._engine = engine
        self._options = options
        self._patience = patience
        self._report = report
        self._table = table

    async def run(self, names: Sequence[str]) -> list[AuditOutcome]:
        async with worker_connection.connected(self._options) as client:
            outcomes, bucket = list[AuditOutcome](), self._options.bucket
            pairs = [(name, None) for name in names] if self._table else await find_pairs(client, bucket, names)
            for name, replica in pairs:
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
        origins, api = None if mirror else tuple(feed.side.stream for feed in feeds), replica.place.api
        sides = [(api, await self._side(api, replica.name, revisions=mirror, origins=origins))]
        for feed in feeds:
            name, rules = feed.side.stream.removeprefix(STREAM_PREFIX), feed.rules.rules
            side = await self._side(feed.side.api, name, number=feed.number, revisions=mirror, rules=rules)
            sides.append((feed.side.api, side))
        with self._engine.explaining():
            return await audit_digests.compare(self._engine, sides)

    async def _other(self, api: Api, name: str) -> list[AuditOutcome]:
        """Compare a bucket that does not replicate the origin, or a table of it, key by key.

        An aggregate's sources map the keys of a table as they map those of its bucket.
        """
        table, other = self._table, await self._side(api, name)
        rules: tuple[Transform, ...] = ()
        if table is None:
            origin = await self._side(api, self._options.bucket)
            there: Latest = partial(_in_stream, await AuditReader(api, origin.stream).ready())
        else:
            stream, prefix = f"{STREAM_PREFIX}{table.origin.bucket}", f"{SUBJECT_PREFIX}{table.origin.bucket}."
            origin, there = Side(self._options, stream, prefix, table=table), partial(_in_table, table, prefix)
            config = (await streams.info(api, other.stream))["config"]
            sources = [source for source in config.get("sources") or () if source["name"] == stream]
            rules = tuple(rule for source in sources for rule in KeyMapping.of(source).rules)
            other = replace(other, origins=(stream,) if sources else None, escaped=True)
        mapping = KeyMapping(rules or [Transform(f"{origin.prefix}>", f"{other.prefix}>")])
        if mapping.lossy:
            raise UsageError(f"`{name}` drops parts of the origin's keys: audit the bucket instead of its export")
        with self._engine.explaining():
            origin = replace(origin, number=0, rules=mapping.rules)
            pair = await audit_digests.compare(self._engine, [(api, other), (api, origin)])
        outcome = AuditOutcome(table.place.uri if table else self._options.bucket, name, Kind.BUCKET, keys=pair.keys[0])
        here: Latest = partial(_in_stream, await AuditReader(api, other.stream).ready(), escaped=other.escaped)
        left, end = iter(pair.suspects), time.monotonic() + self._patience.total_seconds()
        while block := list(islice(left, BLOCK_KEYS)):
            names = {subject: str(mapping.origin(subject)) for subject in block}
            await self._settle(outcome, there, here, names, end)
        return [outcome]

    async def _settle(
        self, outcome: AuditOutcome, origin: Latest, other: Latest, names: dict[str, str], end: float
    ) -> None:
        """Look again at what seemed to differ, until it is seen twice to do so in the same way, or time is up."""
        seen: dict[str, tuple[LastEntry | None, LastEntry | None] | None] = dict.fromkeys(names)
        while seen:
            here = await other(seen)
            there = await origin([names[subject] for subject in seen])
            last = time.monotonic() > end
            for subject, before in list(seen.items()):
                one, two = here.get(subject), there.get(names[subject])
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

    async def _side(self, api: Api, name: str, **settings: Any) -> Side:
        """Return a bucket as the workers read it, also in another domain or account."""
        binding = await Bucket(api, name).locate()
        options = replace(self._options, bucket=name, domain=None, api_prefix=api.prefix)
        return Side(options, binding.stream, binding.prefix, **settings)


async def _in_stream(reader: AuditReader, subjects: Iterable[str], *, escaped: bool = False) -> LastEntries:
    """Return the last entries of a stream, from its leader; with `escaped` also of subjects that are escaped."""
    raw = {subject: _raw(subject) if escaped else subject for subject in subjects}
    found = await reader.latest({*raw, *raw.values()})
    return {subject: held(found.get(name) or found.get(subject)) for subject, name in raw.items()}


def _raw(subject: str) -> str:
    raw = _ESCAPED.sub(lambda byte: bytes.fromhex(byte[1].decode()), subject.encode())
    return raw.decode(errors="surrogateescape") if raw.decode(errors="backslashreplace") == subject else subject


async def _in_table(table: StoredTable, prefix: str, subjects: Iterable[str]) -> LastEntries:
    """Return the entries of a table, which do not change. Raises KvctlError."""
    return await asyncio.to_thread(_rows_of, table, prefix, [subject.removeprefix(prefix) for subject in subjects])


def _rows_of(table: StoredTable, prefix: str, keys: Sequence[str]) -> LastEntries:
    import pyarrow as pa
    import pyarrow.compute as pc

    found: dict[str, LastEntry] = {}
    wanted = pa.array(keys, pa.string())
    for share in file_rows.shares(table):
        for batch in file_rows.read_share(share, ("key", "value", "revision", "operation")):
            for row in batch.filter(pc.is_in(batch["key"], value_set=wanted)).to_pylist():
                if row["operation"] == "PUT":
                    found[f"{prefix}{row['key']}"] = LastEntry(mark(b"", row["value"] or b""), row["revision"] or 0, 0)
    return found
