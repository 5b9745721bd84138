"""The pipeline: export, load, capture and comparison of buckets with Spark."""

from kvctl.cli.app.command import group
from kvctl.cli.pipeline import audit, capture, check, commit, export, load, run, verify

app = group("pipeline", help="Export, load, capture and compare buckets with Spark")

app.entries.update(
    {
        **export.app.entries,
        **verify.app.entries,
        **load.app.entries,
        **capture.app.entries,
        **audit.app.entries,
        **commit.app.entries,
        **run.app.entries,
        **check.app.entries,
    }
)
