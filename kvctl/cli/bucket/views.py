"""Listings of buckets, and their statistics: `kvctl bucket stats`."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any

from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, option
from kvctl.cli.app.session import Session
from kvctl.cli.facts import of_stream, origin_rows, row_of
from kvctl.cli.records import BUCKET_ROW, BUCKET_STATISTICS, PARTS
from kvctl.kv import catalog
from kvctl.kv import config as kv_config
from kvctl.kv.maintenance import statistics
from kvctl.phrases import counted
from kvctl.render.fields import FIELDS, columns, number_text, title_line
from kvctl.render.view import Column, Line, Row, View, age_text, document, size_text
from kvctl.topology.survey import graph
from kvctl.units import format_time

KIND_STYLES = {"aggregate": "cyan", "mirror": "cyan", "stream": "dim", "incomplete": "yellow", "unknown": "red"}
"""Colours of kinds other than an ordinary bucket."""
KIND = Column("kind", style=lambda kind: KIND_STYLES.get(kind, ""))
USUAL = ("bucket", "mirror", "aggregate", "unknown")
"""Kinds that `bucket ls` lists without `--kind` or `--all`."""


def listed_rows(
    listing: "catalog.Listing",
    clues: "Mapping[str, graph.Clue]",
    kinds: Collection[str] | None,
    patterns: Collection[str],
) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of these kinds and names, and which others of these names there are: `2 tables`.

    `unreachable` streams of the listing are those of which only the name is known. Without kinds, the usual ones are
    listed, each name once: a bucket hides a mirror of its name, as it does for reads.
    """
    rows = [
        row_of(BUCKET_ROW, of_stream(status.info), name=status.bucket, kind=str(status.kind))
        for status in listing.statuses
    ]
    rows += [_offline(status, clues.get(status.stream)) for status in listing.offline]
    rows += [_unknown(stream, clues.get(stream)) for stream in listing.unreachable]
    rows = [row for row in rows if not patterns or any(fnmatchcase(row["name"], pattern) for pattern in patterns)]
    found = [row for row in rows if row["kind"] in (kinds or USUAL)]
    if kinds:
        return found, ""
    rest = Counter(row["kind"] for row in rows if row not in found)
    streams = {row["stream"] for row in found}
    hidden = [row for row in found if row["stream"] == row["name"] and f"KV_{row['name']}" in streams]
    rest.update(row["kind"] for row in hidden)
    words = [_counted(number, kind) for kind, number in sorted(rest.items())]
    return [row for row in found if row not in hidden], ", ".join(words)


def _counted(number: int, kind: str) -> str:
    nouns = {"repository": "repositories", "incomplete": "incomplete", "unknown": "unknown"}
    return f"{number} {kind if number == 1 else nouns.get(kind, f'{kind}s')}"


def listing_view(rows: Iterable[dict[str, Any]]) -> View:
    """Return a view of buckets, by name."""
    order = sorted(rows, key=lambda row: (row["name"], row["stream"]))
    return View(columns=_LISTED, rows=order, empty="No buckets; create one with `kvctl bucket add NAME`")


def _offline(status: "kv_config.BucketStatus", clue: "graph.Clue | None") -> dict[str, Any]:
    """Return the row of a stream whose configuration the cluster knows, and whose servers do not answer."""
    cluster = graph.placed_in(status.info) or (clue.cluster if clue else None)
    facts = of_stream(status.info, offline=True)
    return row_of(BUCKET_ROW, facts, name=status.bucket, kind=str(status.kind), cluster=cluster)


def _unknown(stream: str, clue: "graph.Clue | None") -> dict[str, Any]:
    """Return the row of a stream whose servers do not answer, from its name and what its origin reports."""
    return row_of(
        BUCKET_ROW,
        {"name": stream.removeprefix("KV_"), "stream": stream, "state": "offline"},
        kind="mirror" if clue else "unknown",
        origins=origin_rows({"mirror": clue.source}) if clue else [],
        cluster=clue.cluster if clue else None,
    )


@command(
    "bucket stats",
    examples=["kvctl bucket stats orders", "kvctl bucket stats orders --by-prefix 1 -o json | jq .keys"],
    see=["bucket show", "help scale"],
    prints=(BUCKET_STATISTICS,),
    in_pipe="fields",
)
async def stats(
    session: Session,
    bucket: BucketName,
    by_prefix: Annotated[int | None, option("--by-prefix", "N", "Group keys by their first N tokens", min=1)] = None,
    largest: Annotated[int | None, option("--largest", "N", "List the N largest values", min=1, max=1000)] = None,
    limit: Annotated[int, option("--limit", "N", "Maximum number of prefixes to list", min=1, show_default=True)] = 20,
) -> None:
    """Count keys, deletions, entries and bytes of a bucket.

    DELETED are deleted keys that still have a marker, ENTRIES all stored entries, VALUES the bytes of the latest
    values, ALL REVISIONS those of all values, STORED those of the stream, with subjects and headers. WRITES A DAY is
    empty if the history covers less than an hour. With --by-prefix, the numbers are listed per prefix, the largest
    first; with --largest the keys of the largest values.

    Reads the headers of all entries, not their values, in bounded memory. Keys that are written in the meantime may be
    missing, and entries that they push out of the history.
    """
    opened = (await session.client()).bucket(bucket)
    with session.progress(f"Reading {bucket}") as bar:
        found = await statistics.statistics(opened, tokens=by_prefix, largest=largest or 0, advance=bar.advance)
    groups = sorted(found.prefixes.values(), key=lambda item: (-item.bytes, item.prefix))
    prefixes = [row_of(PARTS["prefixes"][0], item, **_facts(item)) for item in groups[:limit]]
    more = len(groups) - len(prefixes)
    biggest = [{"key": key, "bytes": size} for size, key in found.largest]
    known = {"name": bucket, "last_revision": found.last_revision, "history": found.history, **_facts(found.total)}
    known |= {"prefixes": prefixes, "more_prefixes": more, "largest": biggest, "stored": found.stored}
    row = row_of(BUCKET_STATISTICS, found.total, **known)
    sections = [
        ("Prefixes", View(columns=_GROUP, rows=prefixes, name="prefix")),
        ("Largest values", View(columns=columns("key bytes"), rows=biggest, name="key")),
    ]
    fields = BUCKET_STATISTICS.columns
    session.show(document(row, tsv=fields, title=_statistics_title, groups=_SUMMARY, sections=sections))
    if more:
        session.note(f"Not listed: {counted(more, 'smaller group')}; list more with `--limit`")


def _statistics_title(row: Row) -> Line:
    return title_line(row["name"], "statistics of a bucket")


def _facts(group: "statistics.KeyGroup") -> dict[str, Any]:
    rate = group.writes_a_day
    return {
        "oldest": None if group.oldest is None else format_time(group.oldest),
        "newest": None if group.newest is None else format_time(group.newest),
        "writes_a_day": None if rate is None else round(rate, 3),
    }


_LISTED = columns(
    "name kind values bytes history ttl replicas last_write state cluster created description",
    kind=KIND,
    history=FIELDS["history"]._replace(yields=1),
    ttl=FIELDS["ttl"]._replace(yields=1),
    replicas=FIELDS["replicas"]._replace(yields=2),
    cluster=Column("cluster", differs=True, yields=3),
    description=FIELDS["description"]._replace(yields=4),
    created=FIELDS["created"]._replace(yields=5),
)
_RATE = Column("writes_a_day", text=lambda rate: "" if rate is None else f"{rate:,.1f}", right=True)
_SUMMARY = (
    columns(
        "keys deleted entries last_revision history",
        last_revision=Column("last_revision", "revision", text=number_text),
    ),
    columns(
        "bytes held stored",
        bytes="values",
        held=Column("held", "all revisions", text=size_text),
        stored=Column("stored", text=size_text),
    ),
    columns("changed_today writes_a_day oldest newest", oldest=Column("oldest", text=age_text), writes_a_day=_RATE),
)
_GROUP = columns(
    "prefix keys deleted entries bytes changed_today newest writes_a_day",
    prefix=Column("prefix", text=lambda prefix: prefix or "without a dot"),
    changed_today=Column("changed_today", "Today", text=number_text, right=True),
    writes_a_day=_RATE,
)
