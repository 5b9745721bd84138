"""Views of an audit: pairs of origin and replica, their differences, repairs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kvctl.cli.facts import row_of
from kvctl.cli.records import AUDIT, AUDIT_DIFFERENCE
from kvctl.phrases import counted
from kvctl.render import cards, markdown
from kvctl.render.fields import columns, health_style
from kvctl.render.view import Column, View
from kvctl.topology.audit import repair as audit_repair
from kvctl.topology.audit import verdict


def outcomes_view(outcomes: "Sequence[verdict.AuditOutcome]") -> View:
    """Build a row for each pair."""
    rows = [outcome_row(outcome) for outcome in outcomes]
    return View(columns=_PAIR, rows=rows, name="replica")


def audit_report(outcomes: "Sequence[verdict.AuditOutcome]") -> "cards.TextReport":
    """Return a card for each origin with the result of each replica; last how many differ, and the repair."""
    origins: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for outcome in outcomes:
        origins.setdefault((outcome.origin, outcome.where), []).append(_result_row(outcome))
    drawn = []
    for (origin, where), rows in origins.items():
        keys = max((row["keys"] for row in rows if row["keys"] is not None), default=None)
        facts = "".join(f"  {text}" for text in (where, None if keys is None else counted(keys, "key")) if text)
        drawn.append(cards.Card([(origin, "bold"), (facts, "dim")], [View(columns=_RESULTS, rows=rows)]))
    return cards.TextReport(drawn, [*_answer(outcomes)])


def _result_row(outcome: "verdict.AuditOutcome") -> dict[str, Any]:
    row = outcome_row(outcome)
    samples = [item.key for item in outcome.sorted_samples()]
    more = " …" if sum(outcome.counts.values()) > len(samples[:_SAMPLES]) else ""
    return {**row, "result": row, "samples": ", ".join(samples[:_SAMPLES]) + more if samples else None}


def _answer(outcomes: "Sequence[verdict.AuditOutcome]") -> "Iterator[cards.Sentence]":
    if not outcomes:
        return
    words = {True: "consistent", False: "drifted", None: "not audited"}
    counts = Counter(words[outcome.consistent] for outcome in outcomes)
    found = ", ".join(f"{counts[word]} {word}" for word in words.values() if counts[word])
    if len(counts) == 1:
        found = "none audited" if counts["not audited"] else f"all {next(iter(counts))}"
    yield cards.Sentence(f"{counted(len(outcomes), 'link')}: {found}")
    if drifted := dict.fromkeys(outcome.replica for outcome in outcomes if outcome.consistent is False):
        yield cards.Sentence(f"Repair: kvctl topology audit {' '.join(drifted)} --repair")


def differences_view() -> View:
    """Build the view of all differences."""
    return View(columns=_DIFFERENCE, name="key", empty="No differences")


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
            row["state"] or _result(row["consistent"]),
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
    errors += [f"- {markdown.prose(outcome.doubt)}\n" for outcome in outcomes if outcome.doubt]
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
        error=outcome.error.message if outcome.error else outcome.doubt or None,
        samples=[difference_row(item) for item in outcome.sorted_samples()],
        state=str(outcome.state) if outcome.state else None,
    )
    return row | dict.fromkeys(_COUNTS) if outcome.error else row


def difference_row(item: "verdict.AuditDifference") -> dict[str, Any]:
    """Return one difference as a JSON object."""
    return row_of(AUDIT_DIFFERENCE, item, difference=str(item.kind))


def _result(consistent: bool | None) -> str:
    return {True: "consistent", False: "drift", None: "not read"}[consistent]


def _result_text(row: Mapping[str, Any]) -> str:
    """Return the result of a pair: `✓ consistent`, `✗ 3 missing, 1 differing`, `? not read`."""
    if row["consistent"] is None:
        return f"? {row['state'] or 'not read'}"
    counts = [f"{row[name]:,} {name}" for name in ("missing", "extra", "stale", "differing") if row[name]]
    cause = f" ({', '.join(row['causes'])})" if row["causes"] else ""
    return "✓ consistent" if row["consistent"] else f"✗ {', '.join(counts) or 'drift'}{cause}"


def _result_style(row: Mapping[str, Any]) -> str:
    return {True: "green", False: "red", None: "yellow"}[row["consistent"]]


_COUNTS = ("keys", "missing", "extra", "stale", "differing", "collisions", "local", "expiring")
"""Numbers that are unknown of a pair that could not be audited."""
_SAMPLES = 3
"""Differing keys that a report names."""
_PAIR = columns(
    "origin replica consistent keys missing extra stale differing collisions local expiring state origin_at context "
    "causes error",
    origin_at="At",
    context="In",
    consistent=Column("consistent", "Result", keep=True, text=_result),
    causes=Column("causes", style="red", flex=True, keep=True),
    state=Column("state", style=health_style),
)
_RESULTS = columns(
    "replica result keys samples",
    result=Column("result", text=_result_text, style=_result_style, keep=True),
    samples=Column("samples", "Differing keys", flex=True, yields=1),
)
_KINDS = {"missing": "red", "extra": "yellow", "stale": "yellow", "differing": "red"}
_DIFFERENCE = columns(
    "origin replica key difference origin_revision revision cause",
    difference=Column("difference", style=lambda kind: _KINDS.get(kind, "")),
    origin_revision="At origin",
    revision="In replica",
    cause=Column("cause", flex=True),
)
