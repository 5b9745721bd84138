"""`kvctl topology destroy`: delete everything in a topology file."""

from collections.abc import Mapping
from typing import Annotated

import typer

from kvctl.cli.app.command import command
from kvctl.cli.app.options import DryRun, Force, Yes
from kvctl.cli.app.session import Session
from kvctl.cli.records import APPLIED_CHANGE, PLAN, PLANNED_CHANGE
from kvctl.cli.topology.apply import confirm_plan, preview, show_report
from kvctl.cli.topology.file import File, open_places, read_document
from kvctl.jetstream import api as jetstream_api
from kvctl.phrases import counted
from kvctl.topology.apply import applier
from kvctl.topology.model import file as model_file
from kvctl.topology.plan import change as plan_change
from kvctl.topology.plan import plan_hazards, planner, saved


@command(
    "topology destroy",
    examples=["kvctl topology destroy -f topology.yaml --dry-run", "kvctl topology destroy -f topology.yaml"],
    see=["topology apply", "help topologies", "help confirmation"],
    prints=(APPLIED_CHANGE, PLANNED_CHANGE, PLAN),
    forces=lambda: plan_hazards.OF_PLANS,
)
async def destroy(
    session: Session,
    file: File,
    yes: Yes = False,
    confirm: Annotated[
        list[str] | None,
        typer.Option("--confirm", metavar="NAME", help="Confirm the deletion of what others replicate; repeatable"),
    ] = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Delete the buckets, mirrors and aggregates of a file, with their data.

    Replicas are deleted before their origins. What does not exist is ignored, and what the file does not name stays.
    If something outside the file replicates from a bucket, it would turn stale with a new bucket of that name: the
    deletion is refused without --force recreated-origin, and the name has to be typed or given with --confirm.

    If a deletion fails after others were made, the exit code is 7. Run the command again to complete it.
    """
    topology = model_file.read_topology(read_document(session, file))
    apis = await open_places(session, topology)
    found = await planner.destruction(topology, apis)
    for warning in found.warnings:
        session.warn(warning)
    forced = force or ()
    if dry_run:
        preview(session, found, forced)
        return
    if found.changes:
        question = f"Delete {counted(len(found.changes), 'resource')}?"
        await confirm_plan(session, found, apis, forced=forced, yes=yes, confirmed=confirm or (), question=question)
        if session.interactive and not yes:
            saved.require_as_shown(found, await planner.destruction(topology, apis))
    report = await _delete(session, topology, apis, found)
    show_report(session, found, forced, report)
    if report.error is not None:
        raise report.error
    deleted = f"Deleted {counted(len(found.changes), 'resource')} of `{file}`"
    session.note(deleted if found.changes else "Nothing to delete", always=not found.changes)


async def _delete(
    session: Session,
    topology: "model_file.Topology",
    apis: "Mapping[str, jetstream_api.Api]",
    found: "plan_change.TopologyPlan",
) -> "applier.Report":
    """Make the deletions and look again; errors are in the report."""
    with session.progress("Deleting", len(found.changes), unit="changes") as progress:
        report = await applier.apply(apis, found, applier.ReplicaFilling(None), progress.advance)
    if found.changes and report.error is None:
        patience = max(api.connection.timeout for api in apis.values())
        report.error = await applier.verify(lambda: planner.destruction(topology, apis), patience)
    return report
