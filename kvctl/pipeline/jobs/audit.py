"""Compare an origin with its replicas on Spark, through the topology's key transforms.

Spark reads both sides, maps the origin's keys to where they land, and compares digests of them; it joins the keys whose
digests differ. Each key that does not match is read again at the leaders, as `topology audit` does, so the verdict is
the same.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING

from kvctl.errors import KvctlError, UsageError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.kv.bucket import Bucket
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.kv.stream_kind import Kind
from kvctl.pipeline import worker_connection
from kvctl.pipeline.jobs import audit_digests
from kvctl.pipeline.jobs.audit_digests import REPLICA, SLOTS, Side, SlotComparison
from kvctl.pipeline.jobs.contents import read
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
    from pyspark.sql import Column, DataFrame, Row

    from kvctl.kv.client import Client
    from kvctl.pipeline.spark.engine import Engine


MOST_SLOTS = 2_000
"""Maximum number of slots in a condition; with more, all keys are joined."""
COLUMNS = ("key", "value", "revision", "operation", "origin")
_ESCAPED = re.compile(r"\\x([89a-f][0-9a-f])")


@dataclass(frozen=True, slots=True)
class Readable:
    """Bucket as the data source reads it."""

    options: SourceOptions
    stream: str
    prefix: str
    """Prefix of its keys' subjects."""
    table: StoredTable | None = field(default=None, kw_only=True)
    """Table that has its entries, instead of a bucket."""


@dataclass(frozen=True, slots=True)
class OriginSide(Readable):
    """Origin, and the rules that map its subjects to the replica."""

    rules: KeyMapping


def put_side_by_side(
    engine: Engine,
    replica: Readable,
    origins: Sequence[OriginSide],
    digested: SlotComparison,
    *,
    revisions: bool,
    own: bool,
) -> FirstComparison:
    """Return the replica's subjects in differing slots whose values seem to differ between the sides.

    With `revisions` these must match, too. With `own`, keys that come from no origin are the replica's own.
    """
    from pyspark.sql.functions import coalesce, col, collect_set, count, count_if, crc32, encode, first, lit, max, size

    rows = _replica(engine, replica, origins if own else None, revisions)
    for number, origin in enumerate(origins):
        rows = rows.unionByName(_origin(engine, origin, revisions).withColumn("number", lit(number)))
    if len(digested.slots) <= MOST_SLOTS:
        rows = rows.where((crc32(encode("subject", "utf-8")) % SLOTS).isin(digested.slots))
    ours, other = count_if(col("number") < 0), count_if(col("number") >= 0)
    found = rows.groupBy("subject").agg(
        ours.alias("ours"),
        other.alias("theirs"),
        count("mark").alias("living"),
        size(collect_set(coalesce(col("mark"), lit("")))).alias("marks"),
        max("brought").alias("brought"),
        max("number").alias("number"),
        first("name", ignorenulls=True).alias("name"),
    )
    alone = (col("theirs") == 0) & (col("ours") == 1) & ~col("brought")
    agree = (col("theirs") == 1) & (col("ours") == 1) & (col("marks") == 1)
    left = found.where((col("living") > 0) & ~agree).select("subject", "number", "name", alone.alias("own"))
    counted = Counter[bool]()
    suspects = Suspects(_differing(left.toLocalIterator(), counted))
    return FirstComparison(suspects, counted[True], suspects.name, digested.keys)


def _differing(rows: Iterable[Row], counted: Counter[bool]) -> Iterator[tuple[str, int, str | None]]:
    """Yield those that are not the replica's own; count both.

    An escape in a subject may stand for a byte or be its text: both subjects are yielded.
    """
    for row in rows:
        counted[row.own] += 1
        if not row.own:
            names = {form(row.subject): row.name and form(row.name) for form in (str, _raw)}
            yield from ((subject, row.number, name) for subject, name in names.items())


def _origin(engine: Engine, origin: OriginSide, revisions: bool) -> DataFrame:
    """Return the subject and mark where its entries land, and its own name if it cannot be derived from the subject."""
    from pyspark.sql.functions import col, concat, lit, udf

    rules = origin.rules.rules

    def land(name: str) -> str | None:
        landed = KeyMapping(rules).land(_raw(name).encode("utf-8", "surrogateescape"))
        return None if landed is None else landed.decode("utf-8", "backslashreplace")

    landed = udf(land, "string", useArrow=True)
    rows = _entries(engine, origin, revisions).withColumn("own", concat(lit(origin.prefix), col("key")))
    rows = rows.withColumn("subject", landed(col("own"))).where(col("subject").isNotNull())
    name = col("own") if origin.rules.lossy else lit(None).cast("string")
    return rows.select("subject", "mark", lit(True).alias("brought"), name.alias("name"))


def _replica(engine: Engine, replica: Readable, origins: Sequence[OriginSide] | None, revisions: bool) -> DataFrame:
    """Return the replica's entries; without `origins` all count as replicated."""
    from pyspark.sql.functions import coalesce, col, concat, lit

    names = [origin.stream.removeprefix(STREAM_PREFIX) for origin in origins or ()]
    brought = lit(True) if origins is None else coalesce(col("origin").isin(names), lit(False))
    return _entries(engine, replica, revisions).select(
        concat(lit(replica.prefix), col("key")).alias("subject"),
        "mark",
        brought.alias("brought"),
        lit(None).cast("string").alias("name"),
        lit(-1).alias("number"),
    )


def _entries(engine: Engine, held: Readable, revisions: bool) -> DataFrame:
    """Return the last entry of each key, with the parts that two sides must share; null for a deletion."""
    from pyspark.sql.functions import col, concat, lit, sha2, when

    if held.table is not None:
        rows = file_rows.read(engine, held.table)
    else:
        rows = read(engine.spark, replace(held.options, columns=COLUMNS, include_deleted=True))
    mark: Column = sha2(col("value"), 256)
    if revisions:
        mark = concat(mark, lit("@"), col("revision"))
    return rows.withColumn("mark", when(col("operation") == "PUT", mark))


def _raw(name: str) -> str:
    """Return a subject as on the server: the data source escapes bytes that are not UTF-8 as Python does."""
    if "\\" not in name:
        return name
    raw = _ESCAPED.sub(lambda match: chr(0xDC00 + int(match[1], 16)), name)
    return raw if raw.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") == name else name


_HINT = "Set `TMPDIR` to another directory for temporary files"


class Suspects:
    """Subjects in order, some with their name at an origin. All methods raise KvctlError if the disk is full."""

    def __init__(self, rows: Iterable[tuple[str, int, str | None]]) -> None:
        """Store rows of a subject, the number of an origin and the subject's name there, each subject once."""
        # A database without a name is a private temporary file. It is filled in one thread and read in another.
        self._base = sqlite3.connect("", check_same_thread=False)
        try:
            self._base.execute("create table suspects (subject blob primary key, number int, name blob) without rowid")
            rows = ((_bytes_of(subject), number, name and _bytes_of(name)) for subject, number, name in rows)  # type: ignore[misc]
            self._base.executemany("insert into suspects values (?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise KvctlError(f"Could not store the keys that seem to differ: {error}", hint=_HINT) from None

    def __iter__(self) -> Iterator[str]:
        for (subject,) in self._base.execute("select subject from suspects order by subject"):
            yield subject.decode("utf-8", "surrogateescape")

    def __len__(self) -> int:
        return int(self._base.execute("select count(*) from suspects").fetchone()[0])

    def name(self, number: int, landed: str) -> str | None:
        """Return the subject's name at an origin, if stored."""
        query = "select name from suspects where subject = ? and number = ?"
        found = self._base.execute(query, (_bytes_of(landed), number)).fetchone()
        return found[0].decode("utf-8", "surrogateescape") if found and found[0] is not None else None


def _bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class _LiveReader:
    """Last entries of a stream, from its leader."""

    def __init__(self, reader: AuditReader) -> None:
        self._reader = reader

    @classmethod
    async def of(cls, api: Api, stream: str) -> _LiveReader:
        return cls(await AuditReader(api, stream).ready())

    async def latest(self, subjects: Iterable[str]) -> dict[str, LastEntry | None]:
        return {subject: held(message) for subject, message in (await self._reader.latest(subjects)).items()}


class TableReader:
    """Last entries of a table, which do not change."""

    def __init__(self, table: StoredTable, prefix: str) -> None:
        self._table = table
        self._prefix = prefix

    async def latest(self, subjects: Iterable[str]) -> dict[str, LastEntry | None]:
        """Return the entries of those subjects that have one. Raises KvctlError."""
        return await asyncio.to_thread(self._latest, [subject.removeprefix(self._prefix) for subject in subjects])

    def _latest(self, keys: list[str]) -> dict[str, LastEntry | None]:
        import pyarrow as pa
        import pyarrow.compute as pc

        found: dict[str, LastEntry | None] = {}
        wanted = pa.array(keys, pa.string())
        for share in file_rows.shares(self._table):
            for batch in file_rows.read_share(share, ("key", "value", "revision", "operation")):
                for row in batch.filter(pc.is_in(batch["key"], value_set=wanted)).to_pylist():
                    if row["operation"] == "PUT":
                        entry = LastEntry(mark(b"", row["value"] or b""), row["revision"] or 0, 0)
                        found[f"{self._prefix}{row['key']}"] = entry
        return found


_Reader = _LiveReader | TableReader

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
            outcomes: list[AuditOutcome] = []
            if self._table is not None:
                for name in names:
                    outcomes += await self._other(client.api, name)
                return outcomes
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
        sides += [
            Side(number, one.options, one.rules.rules, revisions, one.table, one.prefix)
            for number, one in enumerate(origins)
        ]
        with self._engine.explaining():
            digested = await audit_digests.compare(self._engine, list(zip(apis, sides, strict=True)))
            if not digested.slots:
                return FirstComparison((), 0, lambda *_: None, digested.keys)
            return await asyncio.to_thread(
                put_side_by_side, self._engine, held, origins, digested, revisions=revisions, own=own
            )

    async def _other(self, api: Api, name: str) -> list[AuditOutcome]:
        """Compare a bucket that does not replicate the origin, or a table of it, key by key.

        An aggregate's sources map the keys of a table as they map those of its bucket.
        """
        table, other = self._table, await self._readable(api, name)
        sources = []
        if table is None:
            origin = await self._readable(api, self._options.bucket)
        else:
            stream, prefix = f"{STREAM_PREFIX}{table.origin.bucket}", f"{SUBJECT_PREFIX}{table.origin.bucket}."
            origin = Readable(self._options, stream, prefix, table=table)
            config = (await streams.info(api, other.stream))["config"]
            sources = [source for source in config.get("sources") or () if source["name"] == stream]
        same = Transform(f"{origin.prefix}>", f"{other.prefix}>")
        rules = KeyMapping([rule for source in sources for rule in KeyMapping.of(source).rules] or [same])
        if rules.lossy:
            raise UsageError(f"`{name}` drops parts of the origin's keys: audit the bucket instead of its export")
        fed = OriginSide(origin.options, origin.stream, origin.prefix, rules, table=table)
        found = await self._compared([api, api], other, [fed], revisions=False, own=bool(sources))
        first = table.place.uri if table else self._options.bucket
        outcome = AuditOutcome(first, name, Kind.BUCKET, keys=found.keys[0])
        sides = [
            TableReader(table, origin.prefix) if table else await _LiveReader.of(api, origin.stream),
            await _LiveReader.of(api, other.stream),
        ]
        left, end = iter(found.suspects), time.monotonic() + self._patience.total_seconds()
        while block := list(islice(left, BLOCK_KEYS)):
            names = {subject: str(rules.origin(subject)) for subject in block}
            await self._settle(outcome, sides[0], sides[1], names, end)
        return [outcome]

    async def _settle(
        self, outcome: AuditOutcome, origin: _Reader, other: _Reader, names: dict[str, str], end: float
    ) -> None:
        """Look again at what seemed to differ, until it is seen twice to do so in the same way, or time is up."""
        seen: dict[str, tuple[LastEntry | None, LastEntry | None] | None] = dict.fromkeys(names)
        while seen:
            here = await other.latest(seen)
            there = await origin.latest([names[subject] for subject in seen])
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

    async def _fed(self, feed: Feed) -> OriginSide:
        held = await self._readable(feed.side.api, feed.side.stream.removeprefix(STREAM_PREFIX))
        return OriginSide(held.options, held.stream, held.prefix, feed.rules)

    async def _readable(self, api: Api, name: str) -> Readable:
        """Return a bucket as the workers read it, also in another domain or account."""
        binding = await Bucket(api, name).locate()
        options = replace(self._options, bucket=name, domain=None, api_prefix=api.prefix)
        return Readable(options, binding.stream, binding.prefix)
