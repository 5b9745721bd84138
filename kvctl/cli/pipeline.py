"""The pipeline: buckets exported, loaded, captured and compared by Spark."""

from kvctl.cli import (
    pipeline_audit,
    pipeline_capture,
    pipeline_check,
    pipeline_commit,
    pipeline_export,
    pipeline_load,
    pipeline_run,
    pipeline_stats,
    pipeline_verify,
)
from kvctl.cli.command import group

app = group("pipeline", help="Export, load, capture and compare buckets with Spark")

app.entries.update(
    {
        **pipeline_export.app.entries,
        **pipeline_verify.app.entries,
        **pipeline_load.app.entries,
        **pipeline_capture.app.entries,
        **pipeline_audit.app.entries,
        **pipeline_commit.app.entries,
        **pipeline_run.app.entries,
        **pipeline_stats.app.entries,
        **pipeline_check.app.entries,
    }
)
