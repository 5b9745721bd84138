"""Views of a plan: JSON, rows, and the text shown before the confirmation."""

from collections.abc import Collection, Iterator
from typing import Any

from kvctl.cli.app.session import Session
from kvctl.kv import stream_kind
from kvctl.render import markdown
from kvctl.render.escapes import escape
from kvctl.render.fields import columns
from kvctl.render.terminal import paint
from kvctl.render.view import View, document
from kvctl.topology.plan import change as plan_change
from kvctl.topology.plan import description

_STYLES = {"create": "green", "change": "yellow", "delete": "red", "recreate": "red"}
_COLUMNS = columns("action kind name place differences")


def show_plan(session: Session, plan: "plan_change.TopologyPlan", forced: Collection[str] = ()) -> None:
    """Print a plan in the chosen format: text on a terminal, rows in a pipe."""
    if session.output == "table":
        text = plan_text(plan, forced, colored=session.terminal.colored)
        session.write(text.encode())
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
            {"name": hazard.name, "change": change.name, "evidence": hazard.evidence, "remedy": hazard.remedy or None,
             "forced": hazard.name in forced}
            for change in plan.changes for hazard in change.hazards
        ],
        "warnings": plan.warnings,
        "unlisted": [
            {"kind": str(item.kind), "name": item.name, "place": item.place or None} for item in plan.unlisted
        ],
    }  # fmt: skip


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
                markdown.plain(line)
                for item in description.differences(change)
                for line in description.difference_lines(item)
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
    return "\n".join([*blocks, f"{description.summary(plan)}\n"])


def _lines(change: "plan_change.ResourceChange", forced: Collection[str], colored: bool) -> Iterator[str]:
    def styled(text: str, style: str) -> str:
        return paint(escape(text), style if colored else "")

    yield styled(f"{description.SIGNS[change.action]} {description.title(change)}", _STYLES[change.action])
    for item in description.differences(change):
        for line in description.difference_lines(item):
            yield f"    {escape(line)}"
    for text in description.remarks(change):
        yield f"    {escape(text)}"
    for name in dict.fromkeys(hazard.name for hazard in change.hazards):
        yield styled(f"    hazard: {name}, forced", "dim") if name in forced else styled(f"    hazard: {name}", "red")
