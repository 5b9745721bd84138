"""`kvctl pipeline commit`: commit of an export or a table to a versioned bucket."""

from functools import partial
from typing import Annotated

import typer

from kvctl.cli.app.command import command
from kvctl.cli.app.options import DryRun
from kvctl.cli.app.session import Session
from kvctl.cli.bucket import options as bucket_options
from kvctl.cli.flows import show_result
from kvctl.cli.pipeline.load import KeyColumn, TableFormat, ValueColumn, open_input
from kvctl.cli.pipeline.runner import OnSpark, run_job, source_options
from kvctl.cli.records import NEW_COMMIT, PIPELINE_COMMIT_PLAN
from kvctl.cli.repo import views
from kvctl.cli.repo.commit import Meta
from kvctl.cli.repo.options import At, AtBranch, Author, Message, open_branch, parse_branch
from kvctl.errors import UsageError
from kvctl.phrases import counted
from kvctl.pipeline import options as pipeline_options
from kvctl.pipeline.jobs import commit as commit_job
from kvctl.pipeline.jobs import load as load_job
from kvctl.pipeline.spark import engine
from kvctl.versions import commits


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
    path: Annotated[str, typer.Option("--from", metavar="PATH", help="Folder of an export, or a table")],
    message: Message,
    meta: Meta = None,
    key: KeyColumn = None,
    value: ValueColumn = None,
    format: TableFormat = None,
    author: Author = None,
    dry_run: DryRun = False,
    *,
    target: OnSpark,
) -> None:
    """Record an export or a table as one commit of a versioned bucket.

    The commit contains exactly these rows, with the same tree and root as after loading and committing them. Spark's
    tasks sort and store the leaves, then the branch moves atomically. The branch must have no staged changes (4). PATH
    is an export or a table as for `kvctl pipeline load`. TTLs and headers are left out.

    After a crash, run the command again: it makes one commit in total. If the branch already holds the rows under this
    message, that commit is shown. Otherwise a commit without changes exits 1.

    --dry-run sorts and checks all rows and stores nothing.
    """
    place = parse_branch(at)
    if not message.strip():
        raise UsageError("The message is empty", hint="Describe the commit with `-m`")
    named = bucket_options.parse_metadata(meta or ())
    options = pipeline_options.parse({"bucket": place.repository, **source_options(session, target)})
    repository = await open_branch(session, place, author=author, write=not dry_run)
    source = await open_input(session, path, key, value, format)
    _check_state(source)
    await commits.read_clean(repository, place.ref, dry_run=dry_run)
    if dry_run:
        await _rehearse(session, target, place, source, options)
        return
    made = await run_job(
        session,
        target,
        f"Committing to {place}",
        partial(
            commit_job.commit,
            source=source,
            options=options,
            branch=place.ref,
            message=message,
            meta=named,
            author=repository.author,
        ),
        incomplete=f"Interrupted: `{place}` was not changed; run the command again",
    )
    if not made.recorded:
        session.note(f"`{place}` already holds these {made.rows} rows", always=True)
    views.show_made(session, place.ref, made.commit)


async def _rehearse(
    session: Session,
    target: "engine.SparkTarget",
    place: At,
    source: "load_job.Input",
    options: "pipeline_options.SourceOptions",
) -> None:
    work = partial(commit_job.rehearse, source=source, options=options, branch=place.ref)
    rows = await run_job(session, target, f"Checking rows for {place}", work)
    row = {"repository": place.repository, "branch": place.ref, "rows": rows}
    show_result(session, row, f"Would commit {counted(rows, 'row')} onto `{place}`", always=True)


def _check_state(source: "load_job.Input") -> None:
    if source.history:
        raise UsageError(
            "The export holds every entry, but a commit holds one value per key", hint="Export without `--mode history`"
        )
