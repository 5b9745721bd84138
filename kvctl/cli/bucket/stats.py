"""`kvctl bucket stats`: what a bucket holds, without Spark."""

from typing import Annotated, Any

import typer

from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName
from kvctl.cli.app.session import Session
from kvctl.cli.records import BUCKET_STATISTICS
from kvctl.kv.maintenance import statistics
from kvctl.phrases import counted
from kvctl.render.fields import columns
from kvctl.render.view import Column, View, age_text, document, size_text
from kvctl.units import format_time


@command(
    "bucket stats",
    examples=["kvctl bucket stats orders", "kvctl bucket stats orders --by-prefix 1 -o json | jq .keys"],
    see=["bucket show", "help scale"],
    prints=(BUCKET_STATISTICS,),
)
async def stats(
    session: Session,
    bucket: BucketName,
    by_prefix: Annotated[
        int | None, typer.Option("--by-prefix", metavar="N", min=1, help="Group keys by their first N tokens")
    ] = None,
    largest: Annotated[
        int | None, typer.Option("--largest", metavar="N", min=1, max=1000, help="List the N largest values")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="Maximum number of prefixes to list", show_default=True)
    ] = 20,
) -> None:
    """Count keys, deletions, entries and bytes of a bucket.

    DELETED are deleted keys that still have a marker, ENTRIES all stored entries, SIZE the bytes of the latest values,
    WITH HISTORY those of all values. WRITES A DAY is empty for less than an hour of stored history. With --by-prefix,
    the same is listed for each prefix, the largest first; with --largest the keys of the largest values.

    Reads the headers of all entries, not their values, in bounded memory. Keys that are written in the meantime may be
    missing.
    """
    opened = (await session.client()).bucket(bucket)
    with session.progress(f"Reading {bucket}") as bar:
        found = await statistics.statistics(opened, tokens=by_prefix, largest=largest or 0, advance=bar.advance)
    groups = sorted(found.prefixes.values(), key=lambda item: (-item.bytes, item.prefix))
    prefixes = [{"prefix": item.prefix, **_row(item)} for item in groups[:limit]]
    more = len(groups) - len(prefixes)
    row = {
        "name": bucket,
        "last_revision": found.last_revision,
        "history": found.history,
        **_row(found.total),
        "prefixes": prefixes,
        "more_prefixes": more,
        "largest": [{"key": key, "bytes": size} for size, key in found.largest],
    }
    sections = [
        ("Prefixes", View(columns=_GROUP, rows=prefixes, name="prefix")),
        ("Largest values", View(columns=columns("key bytes"), rows=row["largest"], name="key")),
    ]
    session.show(document(row, *_SUMMARY, tsv=BUCKET_STATISTICS.columns, sections=sections))
    if more:
        session.note(f"Not listed: {counted(more, 'smaller group')}; list more with `--limit`")


def _row(group: "statistics.KeyGroup") -> dict[str, Any]:
    rate = group.writes_a_day
    return {
        "keys": group.keys,
        "deleted": group.deleted,
        "entries": group.entries,
        "bytes": group.bytes,
        "held": group.held,
        "changed_today": group.changed_today,
        "oldest": None if group.oldest is None else format_time(group.oldest),
        "newest": None if group.newest is None else format_time(group.newest),
        "writes_a_day": None if rate is None else round(rate, 3),
    }


def _rate_text(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.1f}"


_RATE = Column("writes_a_day", text=_rate_text, right=True)
_SUMMARY = columns(
    "name last_revision history keys deleted entries bytes held changed_today oldest newest writes_a_day",
    last_revision="Revision",
    held=Column("held", "With history", text=size_text),
    oldest=Column("oldest", text=age_text),
    writes_a_day=_RATE,
)
_GROUP = columns(
    "prefix keys deleted entries bytes changed_today newest writes_a_day",
    prefix=Column("prefix", text=lambda prefix: prefix or "without a dot"),
    changed_today=Column("changed_today", "Today", right=True),
    writes_a_day=_RATE,
)
