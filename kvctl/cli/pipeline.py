"""The pipeline: buckets exported, loaded, captured and compared by Spark."""

from kvctl.cli import pipeline_check
from kvctl.cli.command import group

app = group("pipeline", help="Export, load, capture and compare buckets with Spark")

app.entries.update(
    {
        **pipeline_check.app.entries,
    }
)
