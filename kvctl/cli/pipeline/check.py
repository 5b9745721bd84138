"""`kvctl pipeline check`: test of Spark and its workers."""

from dataclasses import asdict

from kvctl.cli.app.command import command
from kvctl.cli.app.session import Session
from kvctl.cli.pipeline.runner import OnSpark, run_job
from kvctl.cli.records import SPARK
from kvctl.pipeline.jobs import check as check_job
from kvctl.render.fields import columns
from kvctl.render.view import Column, View, document

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
    found = asdict(await run_job(session, target, "Checking Spark", check_job.check))
    sections = [("Workers", View(columns=WORKERS, rows=found["workers"]))]
    session.show(document(found, *columns("spark java master"), tsv=SPARK.columns, name="spark", sections=sections))
