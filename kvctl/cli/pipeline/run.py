"""`kvctl pipeline run` and `schema`: pipelines declared in a file."""

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import DryRun
from kvctl.cli.app.session import Session
from kvctl.cli.pipeline.load import rejected
from kvctl.cli.pipeline.runner import Conf, Master, Remote, run_job, source_options, spark_target
from kvctl.render.escapes import escape
from kvctl.render.view import Column, View, document, elapsed_text

if TYPE_CHECKING:
    from pathlib import Path

    from kvctl.pipeline.jobs.run import Planned

app = group()

RAN = (
    Column("sink"), Column("written"), Column("unchanged"), Column("rejected"),
    Column("seconds", "Time", text=elapsed_text),
)  # fmt: skip


@command(
    app,
    "run",
    examples=["kvctl pipeline run totals.yaml --dry-run", "kvctl pipeline run totals.yaml -o json"],
    see=["pipeline schema", "pipeline load", "help pipeline"],
)
async def run(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Pipeline file, `-` for standard input")],
    dry_run: DryRun = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Run a pipeline declared in a file: sources, a query and a sink.

        version: 1
        sources:
          orders: {bucket: ORDERS, filter: "NEW.>"}
          prices: {path: prices.parquet}
        sql: |
          SELECT concat('total.', o.key) AS key, string(p.price * 2) AS value
          FROM orders o JOIN prices p ON o.key = p.key
        sink: {bucket: TOTALS, if_different: true}

    With one `source`, `select` (columns, each with an expression) and `where` replace SQL. Buckets take the options of
    the data source in snake_case, and are on the server of this command unless the file sets `context` or `url`. Paths
    are relative to the file's folder. CSV files need a header line, and Spark infers types: `0012` is the number 12. A
    malformed row ends the run. --dry-run reads no rows and shows the sources, the resulting columns and Spark's plan.

    Rows that cannot be written are counted and listed, and the command exits 7. Set `dead_letter` in the sink to keep
    them.
    """
    from kvctl.documents import parser
    from kvctl.pipeline.jobs import run as job
    from kvctl.pipeline.pipeline_file import Bucket, read_declared

    content = parser.parse(session.read_input(file), "standard input" if file == "-" else file)
    declared = read_declared(content, _folder_of(file))
    if isinstance(declared.sink, Bucket) and not dry_run:
        session.context.require_writable()
    target = spark_target(master, remote, conf)
    connection = source_options(session, target)
    await job.check(declared, connection, dry_run=dry_run)
    what = f"Running {'the pipeline' if file == '-' else file}"
    if dry_run:
        planned = await run_job(session, target, what, partial(job.plan, declared=declared, connection=connection))
        _show_plan(session, planned)
        return
    incomplete = (
        f"Interrupted: {declared.sink.title} may hold only part of the rows; run the command again to complete it"
    )
    ran = await run_job(
        session, target, what, partial(job.run, declared=declared, connection=connection), incomplete=incomplete
    )
    row = {name: value for name, value in asdict(ran).items() if name != "samples"}
    session.show(document({**row, "seconds": round(ran.seconds, 3)}, *RAN, name="sink"))
    if ran.rejected:
        folder = declared.sink.options.get("deadLetter") if isinstance(declared.sink, Bucket) else None
        raise rejected(ran, folder, "`dead_letter` in the sink")


def _folder_of(file: str) -> "Path":
    from pathlib import Path

    return Path.cwd() if file == "-" else Path(file).resolve().parent


def _show_plan(session: Session, planned: "Planned") -> None:
    """Show sources, columns and sink; on a terminal also Spark's plan."""
    rows = [{"name": name, "type": kind} for name, kind in planned.columns.items()]
    sources = [{"name": name, "source": title} for name, title in planned.sources.items()]
    sections = [
        ("Sources", View(columns=[Column("name"), Column("source")], rows=sources)),
        ("Columns", View(columns=[Column("name"), Column("type")], rows=rows)),
    ]
    row = {"sink": planned.sink, "sources": sources, "columns": rows, "plan": planned.plan}
    hidden = (Column(name, table=False, tsv=False) for name in ("sources", "columns", "plan"))
    session.show(document(row, Column("sink"), *hidden, name="sink", sections=sections))
    if session.output == "table":
        session.write(f"\n{escape(planned.plan, keep=chr(10))}\n".encode())


@command(app, "schema", examples=["kvctl pipeline schema > pipeline.schema.json"], see=["pipeline run"])
def schema(session: Session) -> None:
    """Print the JSON Schema of pipeline files.

    Editors use it to complete and check a file that begins with

        # yaml-language-server: $schema=pipeline.schema.json
    """
    from kvctl.pipeline.pipeline_file import json_schema

    if session.options.output is None:
        session.output = "json"
    session.show(document(json_schema()))
