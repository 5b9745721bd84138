"""`kvctl pipeline audit`: comparison of replicas with their origin by Spark."""

from functools import partial
from typing import Annotated

import typer

from kvctl.cli.app.command import command
from kvctl.cli.app.options import bucket_names
from kvctl.cli.app.session import Session
from kvctl.cli.pipeline.runner import OnSpark, run_job, source_options
from kvctl.cli.records import AUDIT, AUDIT_DIFFERENCE
from kvctl.cli.topology import audit_views
from kvctl.cli.topology.audit import All, WaitFor, Work, exit_code, say
from kvctl.kv import names as kv_names
from kvctl.pipeline import options as pipeline_options
from kvctl.pipeline.jobs import audit as audit_job
from kvctl.topology.audit import verdict


@command(
    "pipeline audit",
    examples=[
        "kvctl pipeline audit ORDERS ORDERS_NYC",
        "kvctl pipeline audit ORDERS ORDERS_NYC EU --all -o ndjson",
        "kvctl pipeline audit ORDERS ORDERS_NYC --master spark://spark.example.com:7077",
    ],
    see=["topology audit", "bucket diff", "help pipeline"],
    prints=(AUDIT, AUDIT_DIFFERENCE),
)
async def audit(
    session: Session,
    origin: Annotated[
        str, typer.Argument(metavar="ORIGIN", help="Bucket to compare with", autocompletion=bucket_names)
    ],
    names: Annotated[
        list[str],
        typer.Argument(metavar="REPLICA...", help="Mirrors, aggregates or buckets", autocompletion=bucket_names),
    ],
    list_all: All = False,
    wait_for: WaitFor = None,
    *,
    target: OnSpark,
) -> int:
    """Compare replicas with their origin, key by key, with Spark.

    Works like `kvctl topology audit`, with its output and exit codes. Compares each key's last operation and value
    through the topology's transforms, and in mirrors its revision too. Spark reads and compares both sides, and
    differences are read again from the leaders before they are reported. A bucket that does not replicate ORIGIN is
    compared key by key.

    On one machine, `topology audit` is as fast. Use this command for larger buckets and on clusters.
    """
    for name in (origin, *names):
        kv_names.check_bucket(name)
    options = pipeline_options.parse({**source_options(session, target), "bucket": origin})
    await audit_job.find_pairs(await session.client(), origin, names)
    found: list[verdict.AuditDifference] = []
    keep = found.append if list_all else lambda _: None
    patience = audit_job.DEFAULT_WAIT if wait_for is None else wait_for
    job = partial(audit_job.audit, options=options, names=names, patience=patience, report=keep)
    work = Work([], [], await run_job(session, target, f"Comparing with {origin}", job))
    if list_all:
        rows = [audit_views.difference_row(item) for item in sorted(found, key=lambda item: (item.replica, item.key))]
        session.show(audit_views.differences_view()._replace(rows=rows))
    say(session, work, list_all=list_all)
    return exit_code(work)
