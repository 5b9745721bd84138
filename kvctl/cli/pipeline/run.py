"""`kvctl pipeline audit`, `commit`, `run` and `check`: further jobs on Spark, and a test of Spark and its workers."""

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Annotated

from kvctl.cli.app.command import command
from kvctl.cli.app.options import DryRun, argument, bucket_names, option
from kvctl.cli.app.session import Session
from kvctl.cli.bucket.options import parse_pairs
from kvctl.cli.flows import show_result
from kvctl.cli.pipeline.load import KeyColumn, TableFormat, ValueColumn, open_input
from kvctl.cli.pipeline.runner import OnSpark, StorageOptions, given_options, run_job, source_options
from kvctl.cli.records import AUDIT, AUDIT_DIFFERENCE, NEW_COMMIT, PIPELINE_COMMIT_PLAN, PIPELINE_PLAN, RAN, SPARK
from kvctl.cli.repo import views
from kvctl.cli.repo.commit import Meta
from kvctl.cli.repo.options import AtBranch, Author, Message, open_branch, parse_branch
from kvctl.cli.topology import audit_views
from kvctl.cli.topology.audit import All, WaitFor, Work, exit_code, say
from kvctl.errors import UsageError
from kvctl.kv import names as kv_names
from kvctl.phrases import counted
from kvctl.pipeline import options as pipeline_options
from kvctl.pipeline import require_spark
from kvctl.pipeline.jobs import audit as audit_job
from kvctl.pipeline.jobs import check as check_job
from kvctl.pipeline.jobs import commit as commit_job
from kvctl.pipeline.jobs import run as jobs_run
from kvctl.pipeline.tables import stored_table
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.render.escapes import escape
from kvctl.render.fields import columns
from kvctl.render.view import Column, View, document
from kvctl.topology.audit import verdict
from kvctl.versions import commits


@command(
    "pipeline audit",
    examples=[
        "kvctl pipeline audit ORDERS ORDERS_NYC",
        "kvctl pipeline audit ORDERS ORDERS_NYC EU --all -o ndjson",
        "kvctl pipeline audit s3://lake/orders ORDERS",
        "kvctl pipeline audit ORDERS ORDERS_NYC --master spark://spark.example.com:7077",
    ],
    see=["topology audit", "bucket diff", "help pipeline"],
    prints=(AUDIT, AUDIT_DIFFERENCE),
)
async def audit(
    session: Session,
    origin: Annotated[str, argument("ORIGIN", "Bucket to compare with, or folder or URL of an export", bucket_names)],
    names: Annotated[list[str], argument("REPLICA...", "Mirrors, aggregates or buckets", bucket_names)],
    list_all: All = False,
    wait_for: WaitFor = None,
    storage_option: StorageOptions = None,
    *,
    target: OnSpark,
) -> int:
    """Compare replicas with their origin, key by key, with Spark.

    Works like `kvctl topology audit`, with its output and exit codes. Compares each key's last operation and value
    through the topology's transforms, and in mirrors its revision too. Spark reads and compares both sides, and
    differences are read again from the leaders before they are reported. A bucket that does not replicate ORIGIN is
    compared key by key, and so is any bucket with an export, if ORIGIN contains a `/`, `./FOLDER` for example. The
    files of an export are verified first.

    On one machine, `topology audit` is as fast. Use this command for larger buckets and on clusters.
    """
    table = await _opened_export(session, TablePlace.parse(origin, storage_option or ())) if "/" in origin else None
    for name in names if table else (origin, *names):
        kv_names.check_bucket(name)
    bucket = table.origin.bucket if table else origin
    options = pipeline_options.parse({**source_options(session, target), "bucket": bucket})
    await audit_job.find_pairs(await session.client(), names[0] if table else origin, names)
    found: list[verdict.AuditDifference] = []
    keep = found.append if list_all else lambda _: None
    patience = audit_job.DEFAULT_WAIT if wait_for is None else wait_for
    job = partial(audit_job.audit, options=options, names=names, patience=patience, report=keep, table=table)
    outcomes, _ = await run_job(session, target, f"Comparing with {origin}", job)
    work = Work([], [], outcomes)
    if list_all:
        rows = [audit_views.difference_row(item) for item in sorted(found, key=lambda item: (item.replica, item.key))]
        session.show(audit_views.differences_view()._replace(rows=rows))
    say(session, work, list_all=list_all)
    return exit_code(work)


async def _opened_export(session: Session, place: TablePlace) -> "stored_table.StoredTable":
    """Open an export of last values after verifying it. Raises UsageError for another one, and as `load`."""
    found = (await open_input(session, place, None, None, None)).table
    assert found is not None
    if found.origin.history:
        raise UsageError(
            "The export holds every entry, but an audit compares last values", hint="Export without `--mode history`"
        )
    return found


@command(
    "pipeline commit",
    examples=[
        "kvctl pipeline commit config@main --from config.export -m 'From the lake'",
        "kvctl pipeline commit stock@main --from stock.parquet --key sku --value count -m 'Tonight'",
    ],
    see=["repo commit", "pipeline export", "load", "help versions"],
    prints=(NEW_COMMIT, PIPELINE_COMMIT_PLAN),
)
async def commit(
    session: Session,
    at: AtBranch,
    uri: Annotated[str, option("--from", "URI", "Export, or file, folder or URL of a table")],
    message: Message,
    meta: Meta = None,
    key: KeyColumn = None,
    value: ValueColumn = None,
    format: TableFormat = None,
    author: Author = None,
    dry_run: DryRun = False,
    storage_option: StorageOptions = None,
    *,
    target: OnSpark,
) -> None:
    """Record an export or a table as one commit of a versioned bucket.

    The commit contains exactly these rows, with the same tree and root as after loading and committing them. Spark's
    tasks sort and store the leaves, then the branch moves atomically. The branch must have no staged changes (4). The
    rows are those of `kvctl pipeline load`. TTLs and headers are left out.

    After a crash, run the command again: it makes one commit in total. If the branch already holds the rows under this
    message, that commit is shown. Otherwise a commit without changes exits 1.

    --dry-run sorts and checks all rows and stores nothing.
    """
    place = parse_branch(at)
    if not message.strip():
        raise UsageError("The message is empty", hint="Describe the commit with `-m`")
    named = parse_pairs(meta or ())
    options = pipeline_options.parse({"bucket": place.repository, **source_options(session, target)})
    repository = await open_branch(session, place, author=author, write=not dry_run)
    source = await open_input(session, TablePlace.parse(uri, storage_option or ()), key, value, format)
    if source.history:
        raise UsageError(
            "The export holds every entry, but a commit holds one value per key", hint="Export without `--mode history`"
        )
    await commits.read_clean(repository, place.ref, dry_run=dry_run)
    if dry_run:
        work = partial(commit_job.rehearse, source=source, options=options, branch=place.ref)
        rows, _ = await run_job(session, target, f"Checking rows for {place}", work)
        row = {"repository": place.repository, "branch": place.ref, "rows": rows}
        show_result(session, row, f"Would commit {counted(rows, 'row')} onto `{place}`")
        return
    job = partial(commit_job.commit, source=source, options=options, branch=place.ref, message=message, meta=named)
    left = f"Interrupted: `{place}` was not changed; run the command again"
    made, _ = await run_job(
        session, target, f"Committing to {place}", partial(job, author=repository.author), incomplete=left
    )
    if not made.recorded:
        session.note(f"`{place}` already holds these {made.rows} rows", always=True)
    views.show_made(session, place.ref, made.commit)


@command(
    "pipeline run",
    examples=[
        "kvctl pipeline run totals.sql --set day=2026-01-31",
        "kvctl pipeline run totals.sql --dry-run --set day=2026-01-31",
        "kvctl pipeline run prices.sql --table prices=s3://lake/prices",
    ],
    see=["pipeline load", "help pipeline"],
    prints=(RAN, PIPELINE_PLAN),
)
async def run(
    session: Session,
    file: Annotated[str, argument("FILE", "SQL script, `-` for standard input")],
    set: Annotated[
        list[str] | None, option("--set", "NAME=VALUE", "Value of the variable `${NAME}` in the script; repeatable")
    ] = None,
    table: Annotated[
        list[str] | None,
        option("--table", "NAME=URI", "Delta table or Parquet files that statements read as NAME; repeatable"),
    ] = None,
    storage_option: StorageOptions = None,
    dry_run: DryRun = False,
    *,
    target: OnSpark,
) -> None:
    """Run a SQL script on Spark.

        create temporary view orders using `nats-kv`
          options (bucket 'ORDERS', filter 'NEW.>');
        create temporary view totals using `nats-kv`
          options (bucket 'TOTALS', columns 'key,value');
        insert into totals select concat('total.', key), value from orders;

    Statements end with a semicolon, and may read and write buckets, files and Spark's tables. The result of a SELECT is
    not shown. With `--table prices=/lake/prices` they read a Delta table, or Parquet files, as it is at the start.

    The connection options of this command, such as `--server`, are variables of the script with the names of the data
    source's options, such as `${url}`.

    A row that cannot be written ends the script with exit code 7, unless `deadLetter` is set. --dry-run changes nothing
    and shows Spark's plan of each statement. Errors name the statement and its line.
    """
    if not dry_run:
        session.context.require_writable()
    values = {**given_options(session), **parse_pairs(set or (), repeated=True)}
    script = jobs_run.statements(_text(session, file), values)
    tables = await asyncio.to_thread(jobs_run.open_tables, parse_pairs(table or ()), storage_option or ())
    what = f"Running {'the script' if file == '-' else file}"
    if dry_run:
        planned, _ = await run_job(session, target, what, partial(jobs_run.plan, script=script, tables=tables))
        rows = [asdict(item) for item in planned]
        session.show(View(columns=columns("statement"), rows=rows, name="statement"))
        if session.output == "table":
            for item in planned:
                session.write(f"\n{escape(item.plan, keep=chr(10))}\n".encode() if item.plan else b"")
        return
    left = "Interrupted: rows that were written stay; run the command again to complete the script"
    job = partial(jobs_run.run, script=script, tables=tables)
    count, seconds = await run_job(session, target, what, job, incomplete=left)
    row = {"statements": count, "seconds": seconds}
    session.show(document(row, *columns("statements seconds"), name="statements"))


def _text(session: Session, file: str) -> str:
    try:
        return session.read_input(file).decode()
    except UnicodeDecodeError:
        raise UsageError(f"`{file}` is not text in UTF-8") from None


WORKERS = [Column("host"), Column("python"), Column("kvctl")]


@command(
    "pipeline check",
    examples=[
        "kvctl pipeline check",
        "kvctl pipeline check --master spark://spark.example.com:7077 --to /lake",
        "kvctl pipeline check --to s3://lake/scratch",
    ],
    see=["doctor"],
    prints=(SPARK,),
)
async def check(
    session: Session,
    to: Annotated[str | None, option("--to", "URI", "Folder or URL into which all workers write a file")] = None,
    storage_option: StorageOptions = None,
    *,
    target: OnSpark,
) -> None:
    """Start Spark, plan and run a read on its workers, and describe them.

    Fails with a hint if Spark or Java is missing, a cluster cannot be reached, or its workers lack kvctl. The jobs of
    `kvctl pipeline` start Spark the same way. With --to, every worker writes a file, which this machine then has to
    see: on a cluster, tables need a folder that all machines share, or an object store.
    """
    require_spark()
    place = TablePlace.parse(to, storage_option or ()) if to is not None else None
    checked, _ = await run_job(session, target, "Checking Spark", partial(check_job.check, place=place))
    found = asdict(checked)
    sections = [("Workers", View(columns=WORKERS, rows=found["workers"]))]
    shown = columns("spark java master to" if to else "spark java master")
    session.show(document(found, *shown, tsv=SPARK.columns, name="spark", sections=sections))
