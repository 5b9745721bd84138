"""Listings of buckets and differences of an edit: the JSON objects and their form on a terminal."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from kvctl.cli.facts import of_stream, origin_rows, row_of
from kvctl.cli.records import BUCKET_ROW
from kvctl.kv import catalog
from kvctl.kv import config as kv_config
from kvctl.render.fields import columns, origins_text
from kvctl.render.view import Column, View
from kvctl.topology.survey import offline

KIND_STYLES = {"aggregate": "cyan", "mirror": "cyan", "stream": "dim", "incomplete": "yellow", "unknown": "red"}
"""Colours of kinds other than an ordinary bucket."""
KIND = Column("kind", style=lambda kind: KIND_STYLES.get(kind, ""))
USUAL = ("bucket", "mirror", "aggregate", "unknown")
"""Kinds that `bucket ls` lists without `--kind` or `--all`."""


def listed_rows(
    listing: "catalog.Listing",
    clues: "Mapping[str, offline.Clue]",
    kinds: Collection[str] | None,
    patterns: Collection[str],
) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of these kinds and names, and which others of these names there are: `2 tables`.

    `unreachable` streams of the listing are those of which only the name is known. Without kinds, the usual ones are
    listed, each name once: a bucket hides a mirror of its name, as it does for reads.
    """
    rows = [_listed(status) for status in listing.statuses]
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
    rows = list(rows)
    clusters = "cluster" if len({row["cluster"] for row in rows}) > 1 else ""
    shown = columns(
        f"name kind values bytes history ttl replicas created origins description last_write {clusters} state",
        kind=KIND,
        origins=Column("origins", text=origins_text, keep=True),
    )
    order = sorted(rows, key=lambda row: (row["name"], row["stream"]))
    empty = "No buckets; create one with `kvctl bucket add NAME`"
    return View(columns=shown, tsv=BUCKET_ROW.columns, rows=order, empty=empty)


def _listed(status: "kv_config.BucketStatus") -> dict[str, Any]:
    return row_of(BUCKET_ROW, of_stream(status.info), name=status.bucket, kind=str(status.kind))


def _offline(status: "kv_config.BucketStatus", clue: "offline.Clue | None") -> dict[str, Any]:
    """Return the row of a stream whose configuration the cluster knows, and whose servers do not answer."""
    cluster = offline.placed_in(status.info) or (clue.cluster if clue else None)
    facts = of_stream(status.info, offline=True)
    return row_of(BUCKET_ROW, facts, name=status.bucket, kind=str(status.kind), cluster=cluster)


def _unknown(stream: str, clue: "offline.Clue | None") -> dict[str, Any]:
    """Return the row of a stream whose servers do not answer, from its name and what its origin reports."""
    return row_of(
        BUCKET_ROW,
        {"name": stream.removeprefix("KV_"), "stream": stream, "state": "offline"},
        kind="mirror" if clue else "unknown",
        origins=origin_rows({"mirror": clue.source}) if clue else [],
        cluster=clue.cluster if clue else None,
    )
