"""`kvctl doctor`: check for problems and suggest fixes."""

import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Annotated

from kvctl.cli.app.command import command
from kvctl.cli.app.options import MarkdownFormat, check_markdown, flag
from kvctl.cli.app.session import Session
from kvctl.cli.facts import row_of
from kvctl.cli.records import FINDING
from kvctl.doctor import content, examination
from kvctl.phrases import counted
from kvctl.render import escapes, markdown, terminal
from kvctl.render.fields import columns
from kvctl.render.view import Column, View

_STYLES = {"error": "red", "warning": "yellow", "note": "dim"}
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
) -> int:
    """Check for problems and suggest fixes.

    Checks the connection, server versions and account limits, the servers and limits of every bucket, and all visible
    mirrors and aggregates: hazards in their configuration, recreated origins, and sources that are stalled or have
    never been connected. Nothing is changed.

    An `error` means that data is lost, hidden or unreachable, or will be. A `warning` means that something is likely to
    go wrong, and a `note` is worth knowing. The exit code is 1 with errors, and with --strict also with warnings. Keys
    and values are not read: `kvctl topology audit` compares them.

    With --format markdown, the findings are a report for a pull request or a job summary.
    """
    check_markdown(format, session.options.output)
    with session.progress("Running checks"):
        found = await examination.examine((await session.client()).api)
    if format is not None:
        session.write(_markdown(found).encode())
    elif session.output == "table":
        session.write(_text(session, found).encode())
    else:
        rows = [row_of(FINDING, item, severity=str(item.severity), remedy=item.remedy or None) for item in found]
        session.show(View(columns=_COLUMNS, rows=rows, name="check"))
    counts = [sum(finding.severity == severity for finding in found) for severity in _STYLES]
    errors, warnings, notes = counts
    session.note(_summary(errors, warnings, notes), always=session.output == "table")
    return 1 if errors or (strict and warnings) else 0


def _markdown(found: "Sequence[content.Finding]") -> str:
    """Return the findings as a report in Markdown."""
    counts = [sum(finding.severity == severity for finding in found) for severity in _STYLES]
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
        markdown.heading(_summary(*counts)),
        markdown.table(("Severity", "Subject", "Check", "Evidence", "Remedy"), rows) if rows else "",
    )


def _text(session: Session, found: "Sequence[content.Finding]") -> str:
    """Format findings for a terminal: a heading each, then evidence and remedy wrapped to the terminal's width."""
    colored, width = session.terminal.colored, min(session.terminal.width or 100, 120)
    wrap = partial(textwrap.wrap, width=width - 2, break_on_hyphens=False, break_long_words=False)
    blocks = []
    for finding in found:
        head, name = str(finding.severity), f"{escapes.escape(finding.subject)}  {finding.check}"
        lines = wrap(escapes.escape(finding.evidence))
        if finding.remedy:
            lines += wrap(f"-> {escapes.escape(finding.remedy)}", subsequent_indent="   ")
        if colored:
            head, name = terminal.paint(head, _STYLES[head]), terminal.paint(name, "bold")
        blocks.append("\n".join([f"{head}  {name}", *(f"  {line}" for line in lines)]))
    return "\n\n".join(blocks) + "\n" if blocks else ""


def _summary(errors: int, warnings: int, notes: int) -> str:
    """Count findings in words: `No errors, 1 warning, 2 notes`."""
    parts = [counted(errors, "error") if errors else "No errors"]
    parts += [counted(number, what) for number, what in ((warnings, "warning"), (notes, "note")) if number]
    return ", ".join(parts)
