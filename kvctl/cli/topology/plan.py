"""`kvctl topology plan`: the changes that a file needs, and plans as text, rows and reports."""

import os
import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, Any

from kvctl.cli.app.command import command
from kvctl.cli.app.options import Force, MarkdownFormat, check_markdown, flag, option
from kvctl.cli.app.session import Session
from kvctl.cli.flows import change_lines
from kvctl.cli.records import PLAN, PLANNED_CHANGE
from kvctl.cli.topology.file import GivenFile, OptionalFile, one_file, open_places, read_document
from kvctl.errors import UsageError
from kvctl.kv import stream_kind
from kvctl.phrases import quoted
from kvctl.render import markdown
from kvctl.render.escapes import escape
from kvctl.render.fields import columns
from kvctl.render.terminal import paint
from kvctl.render.view import View, document
from kvctl.topology.hazards import hazards
from kvctl.topology.model import file as model_file
from kvctl.topology.plan import change as plan_change
from kvctl.topology.plan import description, plan_hazards, planner, saved

_COLUMNS = columns("action kind name place differences")


def show_plan(session: Session, plan: "plan_change.TopologyPlan", forced: Collection[str] = ()) -> None:
    """Print a plan in the chosen format: text on a terminal, rows in a pipe."""
    if session.output == "table":
        text = plan_text(plan, forced, colored=session.terminal.colored)
        session.paragraphs(text)
    elif session.output in ("json", "yaml"):
        session.show(document(plan_document(plan, forced), name="name"))
    else:
        session.show(View(columns=_COLUMNS, rows=[change_row(change) for change in plan.changes]))


def plan_document(plan: "plan_change.TopologyPlan", forced: Collection[str] = ()) -> dict[str, Any]:
    """Return the plan as one JSON object."""
    return {
        "changes": [change_row(change) for change in plan.changes],
        "summary": plan.summary,
        "hazards": [
            {
                "name": hazard.name,
                "change": change.name,
                "evidence": hazard.evidence,
                "remedy": hazard.remedy or None,
                "forced": hazard.name in forced,
            }
            for change in plan.changes
            for hazard in change.hazards
        ],
        "warnings": plan.warnings,
        "unlisted": [
            {"kind": str(item.kind), "name": item.name, "place": item.place or None} for item in plan.unlisted
        ],
    }


def change_row(change: "plan_change.ResourceChange") -> dict[str, Any]:
    """Return one change as a JSON object."""
    drops = change.drops
    return {
        "action": str(change.action),
        "kind": str(change.kind),
        "name": change.name,
        "place": change.place or None,
        "stream": change.stream,
        "differences": [
            {"field": item.field, "before": item.before, "after": item.after}
            for item in description.differences(change)
        ],
        "hazards": [{"name": hazard.name} for hazard in change.hazards],
        "drops": {"entries": drops[0], "bytes": drops[1], "refilled": change.refilled} if drops else None,
        "leaving": [{"name": source["name"].removeprefix("KV_")} for source in change.leaving],
        "readers": [{"name": reader} for reader in change.readers],
        "confirm": change.asks_name,
        "config": change.after and stream_kind.without_server_metadata(change.after),
        "entries": [{"key": key} for key in change.entries],
    }


def plan_markdown(plan: "plan_change.TopologyPlan", forced: Collection[str] = ()) -> str:
    """Return the plan as a report in Markdown: a table of the changes, then the hazards and warnings."""
    rows = [
        (
            str(change.action),
            markdown.prose(description.title(change)),
            "<br>".join(
                markdown.plain(f"{field}: {text}" if field else text)
                for item in description.differences(change)
                for field, text in description.difference_lines(item, new=change.live is None)
            ),
            "<br>".join(map(markdown.prose, description.remarks(change))),
        )
        for change in plan.changes
    ]
    hazards = [
        (markdown.plain(hazard.name), "yes" if hazard.name in forced else "no", markdown.prose(hazard.evidence))
        for hazard in plan.hazards
    ]
    return markdown.document(
        markdown.heading(f"Plan: {description.summary(plan)}" if plan.changes else "Plan: nothing to change"),
        markdown.table(("Action", "Change of", "Differences", "Effect"), rows) if rows else "",
        markdown.table(("Hazard", "Forced", "Evidence"), hazards) if hazards else "",
        "".join(f"- Warning: {markdown.prose(text)}\n" for text in plan.warnings),
    )


def plan_text(plan: "plan_change.TopologyPlan", forced: Collection[str] = (), *, colored: bool = False) -> str:
    """Describe the plan: a paragraph for each change, then a summary."""
    if not plan.changes:
        return ""
    blocks = ["".join(f"{line}\n" for line in _lines(change, forced, colored)) for change in plan.changes]
    return "\n".join([*blocks, f"Plan: {description.summary(plan)}\n"])


def _lines(change: "plan_change.ResourceChange", forced: Collection[str], colored: bool) -> Iterator[str]:
    def styled(text: str, style: str) -> str:
        return paint(escape(text), style if colored else "")

    found, new = description.differences(change), change.live is None
    lines = [line for item in found for line in description.difference_lines(item, new=new)]
    what, effects = description.title(change), description.remarks(change)
    yield from change_lines(str(change.action), what, lines, effects, colored=colored)
    for name in dict.fromkeys(hazard.name for hazard in change.hazards):
        yield styled(f"    hazard: {name}, forced", "dim") if name in forced else styled(f"    hazard: {name}", "red")


CHANGES_PENDING = 8
_NAMED_MAX = 10
"""Largest number of unlisted streams named in a note."""

Prune = Annotated[bool, flag("--prune", "Delete what the topology created and the file no longer lists")]


@command(
    "topology plan",
    examples=[
        "kvctl topology plan topology.yaml",
        "kvctl topology plan -f topology.yaml --out topology.plan",
        "kvctl topology plan -f topology.yaml --exit-code",
        "kvctl topology plan -f topology.yaml --format markdown >> $GITHUB_STEP_SUMMARY",
    ],
    see=["topology apply", "help deploying", "help hazards"],
    prints=(PLANNED_CHANGE, PLAN),
    forces=lambda: plan_hazards.OF_PLANS,
    in_pipe="table",
)
async def plan(
    session: Session,
    given: GivenFile = None,
    file: OptionalFile = None,
    out: Annotated[str | None, option("--out", "FILE", "Save the plan for `topology apply PLAN`")] = None,
    exit_code: Annotated[bool, flag("--exit-code", "Exit with 8 if changes are pending")] = False,
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
    file = one_file(given, file, "plan")
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
    if not found.changes and session.output == "table" and format is None:
        session.result("Nothing to change")
    elif not found.changes:
        session.note("Nothing to change", always=True)
    elif session.output == "table" and format is None:
        session.write(f"Apply it: {_apply_command(file, prune=prune, force=force or (), out=out)}\n".encode())
    return CHANGES_PENDING if exit_code and found.changes else None


def _apply_command(file: str, *, prune: bool, force: Sequence[str], out: str | None) -> str:
    """Return the command that applies the plan."""
    if out is not None:
        return f"kvctl topology apply {shlex.quote(out)}"
    options = [*(["--prune"] if prune else []), *(f"--force {name}" for name in force)]
    return " ".join(["kvctl topology apply -f", shlex.quote(file), *options])


def _check_out(file: str, out: str | None) -> None:
    """Raise UsageError if the plan would overwrite the file that it is created from."""
    if out is not None and os.path.realpath(out) == os.path.realpath(file):
        raise UsageError(f"`--out {out}` would replace the topology file", hint="`--out topology.plan`")


def say(session: Session, found: "plan_change.TopologyPlan", *, prune: bool) -> None:
    """Print a plan's warnings, and the streams that `--prune` would delete."""
    for warning in found.warnings:
        session.warn(warning)
    for text in description.renamed(found):
        session.note(text, always=True)
    if found.unlisted and not prune:
        names = quoted((change.name for change in found.unlisted), _NAMED_MAX)
        them = "it" if len(found.unlisted) == 1 else "them"
        session.note(f"No longer in the file: {names}; `--prune` deletes {them}", always=True)
