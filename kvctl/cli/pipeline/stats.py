"""`kvctl pipeline stats`: statistics of a bucket."""

import os
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import BucketName
from kvctl.cli.app.session import Session
from kvctl.cli.pipeline.runner import Conf, Master, Remote, run_job, source_options, spark_target
from kvctl.errors import KvctlError, UsageError
from kvctl.kv.names import check_bucket
from kvctl.render.view import Column, View, age_text, document, elapsed_text, size_text
from kvctl.units import format_time

if TYPE_CHECKING:
    from kvctl.pipeline.jobs.stats import Group, Key, Stats

app = group()

ByPrefix = Annotated[
    int, typer.Option("--by-prefix", metavar="N", min=1, help="Number of key tokens in a prefix", show_default=True)
]
Limit = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, help="Maximum number of prefixes and keys", show_default=True)
]
Picture = Annotated[str | None, typer.Option("--picture", metavar="FILE", help="SVG file to draw the statistics to")]


@command(
    app,
    "stats",
    examples=["kvctl pipeline stats orders", "kvctl pipeline stats orders --by-prefix 2 --picture orders.svg"],
    see=["bucket show", "help scale"],
)
async def stats(
    session: Session,
    bucket: BucketName,
    by_prefix: ByPrefix = 1,
    limit: Limit = 20,
    picture: Picture = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Show statistics of a bucket: sizes, churn and age by prefix.

    Reads the complete bucket, including its history, as of one revision. Shows totals and, for each prefix, the numbers
    of keys, deleted keys and entries, the size of the latest values, the keys that changed within a day, and the times
    of the last changes. Lists the largest keys, and the hottest keys: those with the most writes per day in the stored
    history. The hottest keys require a bucket with history.
    """
    if picture is not None:
        _check_picture(picture)
    target = spark_target(master, remote, conf)
    from kvctl.pipeline.jobs import stats as job
    from kvctl.pipeline.options import parse

    options = parse({"bucket": check_bucket(bucket), **source_options(session, target)})
    await (await session.client()).bucket(bucket).locate()
    work = partial(job.stats, options=options, tokens=by_prefix, limit=limit)
    found = await run_job(session, target, f"Reading {bucket}", work)
    if picture is not None:
        _draw(found, picture)
    _show(session, found)


def _check_picture(file: str) -> None:
    if not file.endswith(".svg"):
        raise UsageError(f"`{file}` is not an SVG file", hint="Use a name that ends in `.svg`")
    if not os.path.isdir(os.path.dirname(file) or "."):
        raise KvctlError(f"`{file}` cannot be written: its folder does not exist")


def _draw(found: "Stats", file: str) -> None:
    from kvctl.pipeline.jobs.stats_picture import picture

    try:
        with open(file, "w", encoding="utf-8") as stream:
            stream.write(picture(found))
    except OSError as error:
        raise KvctlError(f"`{file}` cannot be written: {error.strerror}") from None


def _show(session: Session, found: "Stats") -> None:
    total = {name: value for name, value in _group_row(found.total).items() if name != "prefix"}
    prefixes = [_group_row(group) for group in found.prefixes]
    largest, hottest = [_key_row(key) for key in found.largest], [_key_row(key) for key in found.hottest]
    row = {
        "name": found.bucket, "cut": found.cut, "history": found.history, "full": found.full, **total,
        "prefixes": prefixes, "more_prefixes": found.more, "largest": largest, "hottest": hottest,
        "seconds": round(found.seconds, 3),
    }  # fmt: skip
    sections = [
        (title, View(columns=columns, rows=rows, name=name))
        for title, columns, rows, name in (
            ("Prefixes", GROUP, prefixes, "prefix"),
            ("Largest keys", KEY, largest, "key"),
            ("Hottest keys", KEY, hottest, "key"),
        )
        if rows
    ]
    session.show(document(row, *SUMMARY, sections=sections))
    if found.more:
        session.note(f"{found.more} smaller prefixes are not listed; list more with `--limit`")


_TIMES = ("oldest", "median", "newest")


def _group_row(group: "Group") -> dict[str, Any]:
    row = asdict(group)
    return {**row, **{name: row[name] and format_time(row[name] * 1000) for name in _TIMES}}


def _key_row(key: "Key") -> dict[str, Any]:
    row = asdict(key)
    return {**row, "a_day": key.a_day and round(key.a_day, 3)}


SUMMARY = (
    Column("name"), Column("cut", "Revision"), Column("keys"), Column("deleted"), Column("entries"),
    Column("history"), Column("full", table=False), Column("bytes", "Size", text=size_text),
    Column("held", "With history", text=size_text), Column("changed_today", "Changed today"),
    *(Column(name, text=age_text) for name in _TIMES), Column("more_prefixes", table=False),
    Column("prefixes", table=False, tsv=False), Column("largest", table=False, tsv=False),
    Column("hottest", table=False, tsv=False), Column("seconds", "Time", text=elapsed_text),
)  # fmt: skip
GROUP = (
    Column("prefix", text=lambda prefix: prefix or "without a dot"), Column("keys", right=True),
    Column("deleted", right=True), Column("entries", right=True),
    Column("bytes", "SIZE", text=size_text, right=True), Column("changed_today", "TODAY", right=True),
    Column("median", "LAST CHANGE", text=age_text), Column("newest", text=age_text),
)  # fmt: skip
KEY = (
    Column("key"), Column("revision", right=True), Column("bytes", "SIZE", text=size_text, right=True),
    Column("entries", right=True),
    Column("a_day", "WRITES PER DAY", text=lambda rate: "" if rate is None else f"{rate:,.1f}", right=True),
)  # fmt: skip
