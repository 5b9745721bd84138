"""`kvctl doctor`: check for problems and suggest fixes."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Annotated

from kvctl.cli.app.command import command
from kvctl.cli.app.error_report import with_context
from kvctl.cli.app.options import MarkdownFormat, check_markdown, flag
from kvctl.cli.app.session import Session
from kvctl.cli.facts import row_of
from kvctl.cli.live import Interval, Watch, check_interval, check_live, show_live
from kvctl.cli.records import FINDING
from kvctl.doctor import content, examination
from kvctl.phrases import counted
from kvctl.render import cards, markdown
from kvctl.render.fields import columns
from kvctl.render.view import Column, View

_STYLES = {"error": "red", "warning": "yellow", "note": "dim"}
_SIGNS = {"error": "✗", "warning": "▲", "note": "·"}
_INTERVAL = timedelta(seconds=10)
"""Time between two examinations, which read all of a server's streams."""
_COLUMNS = columns(
    "severity check subject evidence remedy", severity=Column("severity", style=lambda severity: _STYLES[severity])
)


@command(
    "doctor",
    examples=[
        "kvctl doctor",
        "kvctl doctor --strict -q",
        "kvctl doctor -o json | jq '.[] | select(.severity == \"error\")'",
    ],
    see=["help hazards", "topology audit", "bucket show", "context test"],
    prints=(FINDING,),
    in_pipe="table",
)
async def doctor(
    session: Session,
    strict: Annotated[bool, flag("--strict", "Exit with 1 on warnings as well")] = False,
    format: MarkdownFormat = None,
    watch: Watch = False,
    interval: Interval = None,
) -> int:
    """Check for problems and suggest fixes.

    Checks the connection, server versions and account limits, the servers and limits of every bucket, and all visible
    mirrors and aggregates: hazards in their configuration, recreated origins, and sources that are stalled or have
    never been connected. Nothing is changed.

    An `error` means that data is lost, hidden or unreachable, or will be. A `warning` means that something is likely to
    go wrong, and a `note` is worth knowing. The exit code is 1 with errors, and with --strict also with warnings. Keys
    and values are not read: `kvctl topology audit` compares them.

    With --format markdown, the findings are a report for a pull request or a job summary. With --watch, they are shown
    on a live screen.
    """
    check_markdown(format, session.options.output)
    every = check_interval(watch, interval or _INTERVAL if watch else interval)
    api = (await session.client()).api

    async def findings() -> list[content.Finding]:
        context = session.options.context
        return [replace(item, remedy=with_context(item.remedy, context)) for item in await examination.examine(api)]

    async def read() -> cards.TextReport:
        return _report(await findings())

    if watch:
        check_live(session)
        await show_live(session, "doctor", read, every)
        return 0
    with session.progress("Running checks"):
        found = await findings()
    if format is None and session.output == "table" and not session.options.columns:
        session.report(_report(found))
    else:
        _show(session, found, format)
        session.note(_summary(found))
    errors, warnings, _ = _counts(found)
    return 1 if errors or (strict and warnings) else 0


def _show(session: Session, found: "Sequence[content.Finding]", format: str | None) -> None:
    """Print the findings as Markdown, or as rows."""
    if format is not None:
        session.write(_markdown(found).encode())
    else:
        rows = [row_of(FINDING, item, severity=str(item.severity), remedy=item.remedy or None) for item in found]
        session.show(View(columns=_COLUMNS, rows=rows, name="check"))


def _markdown(found: "Sequence[content.Finding]") -> str:
    """Return the findings as a report in Markdown."""
    rows = [
        (
            str(finding.severity),
            markdown.plain(finding.subject),
            markdown.plain(finding.check),
            markdown.prose(finding.evidence),
            markdown.prose(finding.remedy),
        )
        for finding in found
    ]
    return markdown.document(
        markdown.heading(_summary(found)),
        markdown.table(("Severity", "Subject", "Check", "Evidence", "Remedy"), rows) if rows else "",
    )


def _report(found: "Sequence[content.Finding]") -> "cards.TextReport":
    """Return the findings by severity, each with its fix on a line of its own, then their number."""
    findings: list[cards.Sentence] = []
    for finding in found:
        text = f"{finding.subject}: {finding.evidence}" if finding.subject else finding.evidence
        severity = str(finding.severity)
        findings.append(cards.Sentence(f"{text} ({finding.check})", _SIGNS[severity], _STYLES[severity]))
        findings += [cards.Sentence(f"  {line}") for line in finding.remedy.split("\n") if line]
    return cards.TextReport([cards.Card(sentences=findings)] if findings else [], [cards.Sentence(_summary(found))])


def _counts(found: "Sequence[content.Finding]") -> list[int]:
    """Return the number of errors, warnings and notes."""
    return [sum(finding.severity == severity for finding in found) for severity in _STYLES]


def _summary(found: "Sequence[content.Finding]") -> str:
    """Count findings in words: `No errors, 1 warning, 2 notes`."""
    errors, warnings, notes = _counts(found)
    parts = [counted(errors, "error") if errors else "No errors"]
    parts += [counted(number, what) for number, what in ((warnings, "warning"), (notes, "note")) if number]
    return ", ".join(parts)
