"""`kvctl topology plan`: show pending changes and their hazards."""

import os
from typing import Annotated

import typer

from kvctl.cli.app.command import command
from kvctl.cli.app.options import Force, MarkdownFormat, check_markdown
from kvctl.cli.app.session import Session
from kvctl.cli.records import PLAN, PLANNED_CHANGE
from kvctl.cli.topology.file import File, open_places, read_document
from kvctl.cli.topology.plan_view import plan_markdown, show_plan
from kvctl.errors import UsageError
from kvctl.phrases import quoted
from kvctl.topology.hazards import hazards
from kvctl.topology.model import file as model_file
from kvctl.topology.plan import change as plan_change
from kvctl.topology.plan import plan_hazards, planner, saved

CHANGES_PENDING = 8
_NAMED_MAX = 10
"""Largest number of unlisted streams named in a note."""

Prune = Annotated[bool, typer.Option("--prune", help="Delete what the topology created and the file no longer lists")]


@command(
    "topology plan",
    examples=[
        "kvctl topology plan -f topology.yaml",
        "kvctl topology plan -f topology.yaml --out topology.plan",
        "kvctl topology plan -f topology.yaml --exit-code",
        "kvctl topology plan -f topology.yaml --format markdown >> $GITHUB_STEP_SUMMARY",
    ],
    see=["topology apply", "help topologies", "help hazards"],
    prints=(PLANNED_CHANGE, PLAN),
    forces=lambda: plan_hazards.OF_PLANS,
)
async def plan(
    session: Session,
    file: File,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Save the plan for `topology apply PLAN`")
    ] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 8 if changes are pending")] = False,
    prune: Prune = False,
    force: Force = None,
    format: MarkdownFormat = None,
) -> int | None:
    """Show the changes that would make the servers match the file.

    Nothing is changed. `+` marks what would be created, `~` changed, `-` deleted, and `-/+` recreated because a server
    cannot change it in place. The file owns the fields that it names; other fields are ignored.

    All hazards that would lose, hide or mix up data are reported. Unless each is overridden with --force NAME, the
    exit code is 1 and no plan is saved.

    With --format markdown, the plan is a report for a pull request: a table of the changes, with their differences and
    hazards.
    """
    check_markdown(format, session.options.output)
    _check_out(file, out)
    document = read_document(session, file)
    topology = model_file.read_topology(document)
    apis = await open_places(session, topology)
    found = await planner.plan(topology, apis, prune=prune)
    say(session, found, prune=prune)
    if format is not None:
        session.write(plan_markdown(found, force or ()).encode())
    else:
        show_plan(session, found, force or ())
    hazards.refuse(found.hazards, force, "The plan would lose, hide or mix up data")
    if out is not None:
        saved.save(out, saved.SavedPlan.of(document, found, apis, prune=prune, forced=force or ()))
        session.note(f"Saved the plan; apply it with `kvctl topology apply {out}`")
    if not found.changes:
        session.note("Nothing to change", always=True)
    return CHANGES_PENDING if exit_code and found.changes else None


def _check_out(file: str, out: str | None) -> None:
    """Raise UsageError if the plan would overwrite the file that it is created from."""
    if out is not None and os.path.realpath(out) == os.path.realpath(file):
        raise UsageError(f"`--out {out}` would replace the topology file", hint="`--out topology.plan`")


def say(session: Session, found: "plan_change.TopologyPlan", *, prune: bool) -> None:
    """Print a plan's warnings, and the streams that `--prune` would delete."""
    for warning in found.warnings:
        session.warn(warning)
    if found.unlisted and not prune:
        names = quoted((change.name for change in found.unlisted), _NAMED_MAX)
        them = "it" if len(found.unlisted) == 1 else "them"
        session.note(f"No longer in the file: {names}; `--prune` deletes {them}", always=True)
