"""`kvctl pipeline run` and `check`: SQL scripts on Spark, and a test of Spark and its workers."""

from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from kvctl.cli.app.command import command
from kvctl.cli.app.options import DryRun
from kvctl.cli.app.session import Session
from kvctl.cli.bucket.options import parse_metadata
from kvctl.cli.pipeline.runner import OnSpark, given_options, run_job
from kvctl.cli.records import PIPELINE_PLAN, RAN, SPARK
from kvctl.errors import UsageError
from kvctl.pipeline.jobs import run as jobs_run
from kvctl.render.escapes import escape
from kvctl.render.fields import columns
from kvctl.render.view import Column, View, document


@command(
    "pipeline run",
    examples=[
        "kvctl pipeline run totals.sql --set day=2026-01-31",
        "kvctl pipeline run totals.sql --dry-run --set day=2026-01-31",
    ],
    see=["pipeline load", "help pipeline"],
    prints=(RAN, PIPELINE_PLAN),
)
async def run(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="SQL script, `-` for standard input")],
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Value of the variable `${NAME}` in the script; repeatable"),
    ] = None,
    dry_run: DryRun = False,
    *,
    target: OnSpark,
) -> None:
    """Run a SQL script on Spark.

        create temporary view orders using `nats-kv` options (bucket 'ORDERS', filter 'NEW.>');
        create temporary view totals using `nats-kv` options (bucket 'TOTALS', columns 'key,value');
        insert into totals select concat('total.', key), value from orders;

    Statements end with a semicolon, and may read and write buckets, files and tables. The result of a SELECT is not
    shown. The connection options of this command, such as `--server`, are variables of the script with the names of the
    data source's options, such as `${url}`.

    A row that cannot be written ends the script with exit code 7, unless `deadLetter` is set. --dry-run changes nothing
    and shows Spark's plan of each statement.
    """
    if not dry_run:
        session.context.require_writable()
    values = {**given_options(session), **parse_metadata(set or ())}
    script = jobs_run.statements(_text(session, file), values)
    what = f"Running {'the script' if file == '-' else file}"
    if dry_run:
        _show_plan(session, await run_job(session, target, what, partial(jobs_run.plan, script=script)))
        return
    left = "Interrupted: rows that were written stay; run the command again to complete the script"
    ran = await run_job(session, target, what, partial(jobs_run.run, script=script), incomplete=left)
    session.show(
        document({**asdict(ran), "seconds": round(ran.seconds, 3)}, *columns("statements seconds"), name="statements")
    )


def _text(session: Session, file: str) -> str:
    try:
        return session.read_input(file).decode()
    except UnicodeDecodeError:
        raise UsageError(f"`{file}` is not text in UTF-8") from None


def _show_plan(session: Session, planned: list["jobs_run.PlannedStatement"]) -> None:
    """Show the statements; on a terminal also Spark's plans."""
    rows = [asdict(item) for item in planned]
    session.show(View(columns=columns("statement"), tsv=PIPELINE_PLAN.columns, rows=rows, name="statement"))
    if session.output == "table":
        for item in planned:
            session.write(f"\n{escape(item.plan, keep=chr(10))}\n".encode() if item.plan else b"")


WORKERS = [Column("host"), Column("python"), Column("kvctl")]


@command(
    "pipeline check",
    examples=["kvctl pipeline check", "kvctl pipeline check --master spark://spark.example.com:7077"],
    see=["doctor"],
    prints=(SPARK,),
)
async def check(session: Session, *, target: OnSpark) -> None:
    """Start Spark, run a task on its workers and describe them.

    Fails with a hint if Spark or Java is missing, a cluster cannot be reached, or its workers lack kvctl. The jobs of
    `kvctl pipeline` start Spark the same way.
    """
    found = asdict(await run_job(session, target, "Checking Spark", jobs_run.check))
    sections = [("Workers", View(columns=WORKERS, rows=found["workers"]))]
    session.show(document(found, *columns("spark java master"), tsv=SPARK.columns, name="spark", sections=sections))
