"""`kvctl topology plan`: what would change, and what speaks against it."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import Force
from kvctl.cli.app.session import Session
from kvctl.cli.topology.file import File, open_places, read_document
from kvctl.cli.topology.plan_view import show_plan
from kvctl.errors import UsageError
from kvctl.units import format_age, parse_time

if TYPE_CHECKING:
    from kvctl.topology.apply.journal import Interrupted
    from kvctl.topology.plan.plan import Plan

app = group()

CHANGES_PENDING = 8
_NAMED = 10
"""Of all that a file holds no longer, so many are named."""

Prune = Annotated[
    bool, typer.Option("--prune", help="Delete what the topology made and the file does not hold any more")
]


@command(
    app,
    "plan",
    examples=[
        "kvctl topology plan -f topology.yaml",
        "kvctl topology plan -f topology.yaml --out topology.plan",
        "kvctl topology plan -f topology.yaml --exit-code",
    ],
    see=["topology apply", "help topologies", "help hazards"],
)
async def plan(
    session: Session,
    file: File,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Save the plan, for `topology apply PLAN`")
    ] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 8 when anything is to be done")] = False,
    prune: Prune = False,
    force: Force = None,
) -> int | None:
    """Show what would change so that all is as the file says.

    Changes nothing. `+` is made, `~` changed, `-` deleted, and `-/+` made anew, because no server can change it in
    place. The file owns the fields that it names: what it does not say is no difference.

    All that would lose, hide or mix up data is said; unless each is overridden with --force NAME, the exit code is 1,
    and no plan is saved.
    """
    from kvctl.cli.keys.arguments import check_forced
    from kvctl.topology.apply.journal import Journal
    from kvctl.topology.file.document import read_topology
    from kvctl.topology.hazards import hazards, plan_hazards
    from kvctl.topology.plan import plan_file, planner

    check_forced(force, *plan_hazards.OF_PLANS)
    _keep(file, out)
    document = read_document(session, file)
    topology = read_topology(document)
    apis = await open_places(session, topology)
    found = await planner.plan(topology, apis, prune=prune)
    say_interrupted(session, Journal.of(topology.name, apis).interrupted())
    say(session, found, prune=prune)
    show_plan(session, found, force or ())
    hazards.refuse(found.hazards, force, "The plan would lose, hide or mix up data")
    if out is not None:
        addresses = plan_file.addresses(apis)
        saved = plan_file.Saved(
            document.data, document.source, found, addresses, prune=prune, forced=tuple(force or ())
        )
        plan_file.save(out, saved)
        session.note(f"`kvctl topology apply {out}` carries it out")
    if not found.changes:
        session.note("Nothing to change", always=True)
    return CHANGES_PENDING if exit_code and found.changes else None


def _keep(file: str, out: str | None) -> None:
    """Raises UsageError when the plan would be written over the file that it is made from."""
    if out is not None and os.path.realpath(out) == os.path.realpath(file):
        raise UsageError(f"`--out {out}` would replace the topology file", hint="`--out topology.plan`")


def say(session: Session, found: "Plan", *, prune: bool) -> None:
    """The warnings of a plan, and what it would delete if it were asked to."""
    for warning in found.warnings:
        session.warn(warning)
    if found.unlisted and not prune:
        more = f" and {len(found.unlisted) - _NAMED} more" if len(found.unlisted) > _NAMED else ""
        names = ", ".join(f"`{change.name}`" for change in found.unlisted[:_NAMED]) + more
        them = "it" if len(found.unlisted) == 1 else "them"
        session.note(f"No longer in the file: {names}; `--prune` deletes {them}", always=True)


def say_interrupted(session: Session, found: "Interrupted | None") -> None:
    """That an earlier apply did not come to its end, if so."""
    if found is None:
        return
    where = f", at {found.doing}" if found.doing else ""
    how = f"ended after {found.done} of {found.total} writes{where}"
    if found.done == found.total:
        how = "did not see everything filled"
    ago = format_age(parse_time(found.begun))
    session.note(f"An apply begun {ago} {how}; applying again completes it", always=True)
