"""Views of an audit: pairs of origin and replica, their differences, repairs."""

from collections.abc import Iterable, Sequence
from typing import Any

from kvctl.cli.facts import row_of
from kvctl.cli.records import AUDIT, AUDIT_DIFFERENCE
from kvctl.render import markdown
from kvctl.render.fields import columns, health_style
from kvctl.render.view import Column, View
from kvctl.topology.audit import repair as audit_repair
from kvctl.topology.audit import verdict

_RESULTS = {True: "consistent", False: "drift", None: "not read"}
_STYLES = {True: "green", False: "red", None: "yellow"}


def outcomes_view(outcomes: "Sequence[verdict.AuditOutcome]") -> View:
    """Build a row for each pair; on a terminal, samples of the differences follow."""
    rows = [outcome_row(outcome) for outcome in outcomes]
    samples = [difference_row(item) for outcome in outcomes for item in outcome.sorted_samples()]
    sections = [("Differences", View(columns=_DIFFERENCE, rows=samples, name="key"))] if samples else []
    shown = [column for column in _PAIR if column.key not in _RARE or any(row[column.key] for row in rows)]
    return View(columns=shown, tsv=AUDIT.columns, rows=rows, name="replica", sections=sections)


def differences_view() -> View:
    """Build the view of all differences."""
    return View(columns=_DIFFERENCE, tsv=AUDIT_DIFFERENCE.columns, name="key", empty="No differences")


def repairs_view(repairs: "Iterable[audit_repair.Repair]") -> View:
    """Build a row for each replica to repair."""
    rows = [
        {
            "replica": repair.replica.name,
            "kind": str(repair.replica.kind),
            "action": "recreate" if str(repair.replica.kind) == "mirror" else "refill",
            "refill": len(repair.refilled),
            "overwrite": len(repair.overwritten),
            "purge": len(repair.purged),
        }
        for repair in repairs
    ]
    return View(
        columns=columns("replica kind action refill overwrite purge") if rows else (),
        rows=rows,
        name="replica",
        empty="Nothing to repair",
    )


def audit_markdown(outcomes: "Sequence[verdict.AuditOutcome]", unseen: Sequence[str] = ()) -> str:
    """Return the result as a report in Markdown: a table of the pairs, samples of the differences, errors."""
    rows = [outcome_row(outcome) for outcome in outcomes]
    words = ("origin", "replica", "keys", "missing", "extra", "stale", "differing")
    pairs = [
        (
            *(markdown.plain(str(row[name])) if row[name] is not None else None for name in words),
            row["state"] or _RESULTS[row["consistent"]],
            markdown.plain(", ".join(row["causes"])),
        )
        for row in rows
    ]
    samples = [
        (
            markdown.plain(item.origin),
            markdown.plain(item.replica),
            markdown.plain(item.key),
            str(item.kind),
            markdown.plain(item.cause or ""),
        )
        for outcome in outcomes
        for item in outcome.sorted_samples()
    ]
    errors = [
        f"- {markdown.prose(f'`{outcome.replica}` of `{outcome.origin}` was not audited: {outcome.error.message}')}\n"
        for outcome in outcomes
        if outcome.error is not None
    ]
    errors += [f"- {markdown.prose(f'`{stream}` does not answer, and may be a replica')}\n" for stream in unseen]
    drift = sum(outcome.consistent is False for outcome in outcomes)
    unread = sum(outcome.consistent is None for outcome in outcomes) + len(unseen)
    result = f"{drift} of {len(outcomes)} differ" if drift else f"{unread} not audited" if unread else "no differences"
    return markdown.document(
        markdown.heading(f"Audit: {result}"),
        markdown.table(
            ("Origin", "Replica", "Keys", "Missing", "Extra", "Stale", "Differing", "Result", "Causes"), pairs
        )
        if pairs
        else "",
        markdown.table(("Origin", "Replica", "Key", "Difference", "Cause"), samples) if samples else "",
        "".join(errors),
    )


def outcome_row(outcome: "verdict.AuditOutcome") -> dict[str, Any]:
    """Return one pair as a JSON object."""
    row = row_of(
        AUDIT,
        outcome,
        **{str(kind): outcome.counts[kind] for kind in verdict.Verdict},
        kind=str(outcome.kind),
        origin_at=outcome.where,
        context=outcome.place or None,
        causes=sorted(outcome.causes),
        error=outcome.error.message if outcome.error else None,
        samples=[difference_row(item) for item in outcome.sorted_samples()],
        state=str(outcome.state) if outcome.state else None,
    )
    return row | dict.fromkeys(_COUNTS) if outcome.error else row


def difference_row(item: "verdict.AuditDifference") -> dict[str, Any]:
    """Return one difference as a JSON object."""
    return row_of(AUDIT_DIFFERENCE, item, difference=str(item.kind))


_COUNTS = ("keys", "missing", "extra", "stale", "differing", "collisions", "local", "expiring")
"""Numbers that are unknown of a pair that could not be audited."""
_RARE = ("origin_at", "context", "collisions", "local", "expiring", "state")
"""Columns shown in a table only if a row has a value for them."""
_PAIR = columns(
    "origin replica origin_at context keys missing extra stale differing collisions local expiring consistent causes "
    "state",
    origin_at="At",
    context="In",
    consistent=Column("consistent", "Result", keep=True, text=_RESULTS.__getitem__, style=_STYLES.__getitem__),
    causes=Column("causes", style="red", flex=True, keep=True),
    state=Column("state", style=health_style),
)
_KINDS = {"missing": "red", "extra": "yellow", "stale": "yellow", "differing": "red"}
_DIFFERENCE = columns(
    "origin replica key difference origin_revision revision cause",
    difference=Column("difference", style=lambda kind: _KINDS.get(kind, "")),
    origin_revision="At origin",
    revision="In replica",
    cause=Column("cause", flex=True),
)
