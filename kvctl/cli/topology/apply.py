"""`kvctl topology apply` and `destroy`: apply a topology file or a saved plan, or delete what a file names."""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Annotated

from kvctl.cli.app.command import command
from kvctl.cli.app.options import DryRun, Force, Yes, argument, option
from kvctl.cli.app.session import Session
from kvctl.cli.flows import warn_of_hazards
from kvctl.cli.records import APPLIED_CHANGE, PLAN, PLANNED_CHANGE
from kvctl.cli.topology.file import GivenFile, OptionalFile, content_of, one_file, open_places, read_document
from kvctl.cli.topology.plan import Prune, change_row, plan_document, plan_text, say, show_plan
from kvctl.cli.topology.replicas import NoWait, WaitFor
from kvctl.errors import ConflictError, UsageError
from kvctl.jetstream import api as jetstream_api
from kvctl.phrases import counted, lines
from kvctl.render import progress as progress_bars
from kvctl.render.escapes import escape, utf8
from kvctl.render.fields import columns
from kvctl.render.terminal import paint
from kvctl.render.view import View, document
from kvctl.topology.apply import applier
from kvctl.topology.hazards import hazards
from kvctl.topology.health import arrival
from kvctl.topology.model import file as model_file
from kvctl.topology.plan import change as plan_change
from kvctl.topology.plan import description, plan_hazards, planner, saved
from kvctl.topology.survey import inventory

_COLUMNS = columns("action kind name place outcome differences")


@command(
    "topology apply",
    examples=[
        "kvctl topology apply -f topology.yaml",
        "kvctl topology apply topology.yaml --dry-run",
        "kvctl topology apply topology.plan --yes",
        "kvctl topology apply -f topology.yaml --prune --yes --confirm ORDERS",
    ],
    see=["topology plan", "help deploying", "help hazards"],
    prints=(APPLIED_CHANGE, PLANNED_CHANGE, PLAN),
    forces=lambda: plan_hazards.OF_PLANS,
    in_pipe="table",
)
async def apply(
    session: Session,
    given: Annotated[
        str | None, argument("PLAN|FILE", "Saved plan, written by `topology plan --out`, or a topology file")
    ] = None,
    file: OptionalFile = None,
    prune: Prune = False,
    yes: Yes = False,
    confirm: Annotated[
        list[str] | None, option("--confirm", "NAME", "Confirm a recreation or a deletion with readers; repeatable")
    ] = None,
    no_wait: NoWait = False,
    wait_for: WaitFor = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Create and change buckets, mirrors and aggregates to match a file.

    The command shows the plan and asks for confirmation. It applies the changes in order, origins before their
    replicas, and waits until the replicas hold what their origins held. Then it compares the result with the file.

    A saved plan is applied as it was shown. If a configuration that it was made from has changed, nothing is applied
    and the exit code is 4. Hazards, readers and contents are checked again: a new one is refused or confirmed as in a
    new plan. If one appears during the confirmation, the exit code is 4. Recreating a stream drops its data, so its
    name has to be confirmed.

    If a step fails after others were applied, the exit code is 7. After a failure or an interruption, run the command
    again: it continues where it stopped. A second run changes nothing.
    """
    chosen, found, apis = await _planned(session, given, file, prune=prune)
    forced = [*(force or ()), *chosen.forced]
    say(session, found, prune=chosen.prune)
    if dry_run:
        preview(session, found, forced)
        return
    if found.changes:
        await confirm_plan(session, found, apis, forced=forced, yes=yes, confirmed=confirm or ())
        if session.interactive and not yes:
            shown, found = found, await saved.renewed(chosen, apis)
            saved.require_as_shown(shown, found)
    patience = timedelta(seconds=60) if wait_for is None else wait_for
    report = await _execute(session, chosen, found, apis, None if no_wait else patience)
    show_report(session, found, forced, report)
    if report.error is not None:
        raise report.error
    _conclude(session, f"Applied: {_past(found)}" if found.changes else "Nothing to change")


async def _planned(
    session: Session, given: str | None, file: str | None, *, prune: bool
) -> "tuple[saved.SavedPlan, plan_change.TopologyPlan, Mapping[str, jetstream_api.Api]]":
    """Plan the file, or what a saved plan leaves to do. Raises UsageError, ConflictError if that is stale."""
    if (given is None) == (file is None):
        raise UsageError("Give a saved plan or a topology file", hint="`kvctl topology apply topology.yaml`")
    name = given or file or ""
    content = content_of(session, name)
    if file is not None or not saved.is_plan(content):
        document = read_document(session, name, content)
        topology = model_file.read_topology(document)
        apis = await open_places(session, topology)
        found = await planner.plan(topology, apis, prune=prune)
        return saved.SavedPlan.of(document, found, apis, prune=prune), found, apis
    if prune:
        raise UsageError(
            "`--prune` is set when the plan is created", hint="`kvctl topology plan -f FILE --prune --out PLAN`"
        )
    loaded = saved.load(content, name)
    apis = await open_places(session, loaded.topology())
    _require_same_servers(loaded.addresses, saved.addresses(apis))
    return loaded, await saved.renewed(loaded, apis), apis


def _require_same_servers(planned: Mapping[str, str], here: Mapping[str, str]) -> None:
    for name, address in planned.items():
        if here.get(name) != address:
            where = f"`{name}`" if name else "the context in use"
            text = f"The plan was created for `{address}`, but {where} is `{here.get(name, 'unknown')}`"
            raise ConflictError(text, hint="Create a new plan with `kvctl topology plan`")


def preview(session: Session, found: "plan_change.TopologyPlan", forced: Sequence[str]) -> None:
    """Print the plan, and the hazards that have to be overridden."""
    show_plan(session, found, forced)
    if not found.changes:
        session.note("Nothing to change", always=True)
    warn_of_hazards(session, [hazard for hazard in found.hazards if hazard.name not in forced])


async def confirm_plan(
    session: Session,
    found: "plan_change.TopologyPlan",
    apis: "Mapping[str, jetstream_api.Api]",
    *,
    forced: Sequence[str],
    yes: bool,
    confirmed: Sequence[str],
    question: str = "",
) -> None:
    """Show the plan on a terminal and confirm it. Raises HazardRefused, ReadOnly, Cancelled, UsageError."""
    if session.output == "table":
        show_plan(session, found, forced)
    elif session.interactive:
        session.terminal.emit(plan_text(found, forced, colored=session.terminal.colored_messages))
    hazards.refuse(found.hazards, forced, "The plan would lose, hide or mix up data")
    for name, api in apis.items():
        api.connection.context.require_writable(f"Context `{name}`" if name else "The connection")
    await _ask(session, found, yes=yes, confirmed=confirmed, question=question)


async def _ask(
    session: Session, found: "plan_change.TopologyPlan", *, yes: bool, confirmed: Sequence[str], question: str
) -> None:
    """Confirm the plan, then by name each change that drops data or has readers."""
    named = {change.name: change for change in found.changes if change.asks_name and change.name not in confirmed}
    if named and not session.interactive:
        raise UsageError(
            f"`{' '.join(f'--confirm {name}' for name in named)}` is required when input is not a terminal",
            hint=lines(*map(_consequence, named.values())),
        )
    await session.confirm(question or f"Apply {counted(len(found.changes), 'change')}?", yes=yes)
    for name, change in named.items():
        await session.confirm(_consequence(change), typed_name=name)


def _consequence(change: "plan_change.ResourceChange") -> str:
    what = "will be recreated" if change.action == "recreate" else "will be deleted"
    title = description.title(change)
    return f"{title[:1].upper()}{title[1:]} {what}: {'; '.join(description.losses(change))}"


async def _execute(
    session: Session,
    chosen: "saved.SavedPlan",
    found: "plan_change.TopologyPlan",
    apis: "Mapping[str, jetstream_api.Api]",
    limit: timedelta | None,
) -> "applier.Report":
    """Apply the plan, wait for replicas to fill, compare with the file; errors are in the report."""
    filling, topology = applier.ReplicaFilling(limit), chosen.topology()
    if limit is not None:
        await filling.resume(apis, applier.unfilled(topology, await inventory.survey(apis)))
    with session.progress("Applying", len(applier.writes(found.changes)), unit="changes") as progress:
        done = partial(_show_done, session, progress)
        report = await applier.apply(apis, found, filling, progress.advance, entries=topology.entries, done=done)
    if report.error is not None:
        return report
    begun = time.monotonic()
    with session.progress("Filling replicas", filling.total, unit="entries") as progress:
        await applier.fill(report, filling, progress.advance)
    if filling.total and report.error is None and session.output == "table":
        filled = f"Replicas hold what their origins held: {counted(filling.total, 'entry')}"
        session.result(f"{filled} in {time.monotonic() - begun:.1f} s")
    if found.changes:
        patience = max(api.connection.timeout for api in apis.values())
        moving = (limit or arrival.WAIT_FOR).total_seconds() if applier.moves(found.changes) else 0
        wrong = await applier.verify(lambda: planner.plan(topology, apis, prune=chosen.prune), patience, moving)
        report.error = wrong or report.error
    return report


def show_report(
    session: Session, found: "plan_change.TopologyPlan", forced: Sequence[str], report: "applier.Report"
) -> None:
    """Print the outcome of each change: lines, rows, or the plan's document."""
    rows = [{**change_row(change), "outcome": str(report.outcome(change))} for change in found.changes]
    for row in rows:
        row["differences"] = row.pop("differences")  # the last column
    if session.output in ("json", "yaml"):
        session.show(document({**plan_document(found, forced), "changes": rows}))
    elif session.output != "table":
        session.show(View(columns=_COLUMNS, rows=rows))
    else:
        for change in found.changes:
            if (outcome := str(report.outcome(change))) != "done":
                _show_line(session, change, *(("✗", "red") if outcome == "failed" else ("·", "dim")), word="not ")


def _show_done(
    session: Session, progress: "progress_bars.Progress", change: "plan_change.ResourceChange", seconds: float
) -> None:
    """Print a change when it is made: `✓ bucket STOCK changed in 0.1 s`."""
    if session.output == "table":
        progress.hide()
        _show_line(session, change, "✓", "green", after=f" in {max(seconds, 0.1):.1f} s")


def _show_line(
    session: Session, change: "plan_change.ResourceChange", sign: str, style: str, *, word: str = "", after: str = ""
) -> None:
    sign = paint(sign, style if session.terminal.colored else "")
    session.write(utf8(f"{sign} {escape(description.title(change))} {word}{change.action}d{after}\n"))


def _conclude(session: Session, text: str) -> None:
    """Print the last line of a report on stdout, beside rows and documents as a note."""
    if session.output == "table":
        session.result(text)
    else:
        session.note(text, always=True)


def _past(found: "plan_change.TopologyPlan") -> str:
    """Summarise applied changes: `2 created, 1 changed`."""
    return ", ".join(f"{count} {action}d" for action, count in found.summary.items() if count)


@command(
    "topology destroy",
    examples=["kvctl topology destroy topology.yaml --dry-run", "kvctl topology destroy -f topology.yaml"],
    see=["topology apply", "help deploying", "help confirmation"],
    prints=(APPLIED_CHANGE, PLANNED_CHANGE, PLAN),
    forces=lambda: plan_hazards.OF_PLANS,
    in_pipe="table",
)
async def destroy(
    session: Session,
    given: GivenFile = None,
    file: OptionalFile = None,
    yes: Yes = False,
    confirm: Annotated[
        list[str] | None, option("--confirm", "NAME", "Confirm the deletion of what others replicate; repeatable")
    ] = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Delete the buckets, mirrors and aggregates of a file, with their data.

    Replicas are deleted before their origins. Missing resources are ignored. Resources outside the file are kept.
    If something outside the file replicates from a bucket, it would turn stale with a new bucket of that name: the
    deletion is refused without --force recreated-origin, and the name has to be typed or given with --confirm.

    If a deletion fails after others were made, the exit code is 7. Run the command again to complete it.
    """
    file = one_file(given, file, "destroy")
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
        lost = sum(change.drops[0] for change in found.changes if change.drops and not change.is_copy)
        data = f" with {counted(lost, 'entry')} permanently" if lost else ""
        question = f"Delete {counted(len(found.changes), 'resource')}{data}?"
        await confirm_plan(session, found, apis, forced=forced, yes=yes, confirmed=confirm or (), question=question)
        if session.interactive and not yes:
            saved.require_as_shown(found, await planner.destruction(topology, apis))
    report = await _delete(session, topology, apis, found)
    show_report(session, found, forced, report)
    if report.error is not None:
        raise report.error
    deleted = f"Deleted {counted(len(found.changes), 'resource')} of `{file}`"
    _conclude(session, deleted if found.changes else "Nothing to delete")


async def _delete(
    session: Session,
    topology: "model_file.Topology",
    apis: "Mapping[str, jetstream_api.Api]",
    found: "plan_change.TopologyPlan",
) -> "applier.Report":
    """Make the deletions and look again; errors are in the report."""
    with session.progress("Deleting", len(found.changes), unit="changes") as progress:
        done = partial(_show_done, session, progress)
        report = await applier.apply(apis, found, applier.ReplicaFilling(None), progress.advance, done=done)
    if found.changes and report.error is None:
        patience = max(api.connection.timeout for api in apis.values())
        report.error = await applier.verify(lambda: planner.destruction(topology, apis), patience)
    return report
