"""The report: a summary with each aim checked, then the figures of every contender."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from bench.case import Result, Table, Verdict, judge
from bench.measure import Series, ratios
from bench.units import LOOP

MISSED = Path(__file__).with_name("MISSED.md")
SUMMARY = ("work", "ours", "beside it", "ratio", "aim", "met")
DETAILS = ("work", "contender", "median", "spread", "ours over it", "in units", "processor", "peak memory")


@dataclass(frozen=True)
class Machine:
    """Where and of what the figures are."""

    text: str
    loop: float
    trip: float

    def units(self, seconds: float, unit: str) -> str:
        """Return seconds as a multiple of one of the machine's units."""
        return f"{seconds / (self.trip if unit == 'round trips' else self.loop):.3g} {unit}"


def machine(loops: Sequence[float], trips: Sequence[float], server: str, before: Path | None) -> Machine:
    """Describe this machine, both checkouts and the units."""
    root = Path(__file__).parent
    beside = f" beside commit {_commit(before)} (`before`)" if before else ""
    text = (
        f"Commit {_commit(root)}{beside}, {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC; Python "
        f"{platform.python_version()}, nats-server {server}, {os.cpu_count()} cores, loopback, file storage, R1 "
        f"unless stated.\n\nUnits of this machine, measured before every case: the loop, {LOOP:,} rounds of "
        f"pure Python, takes {_spread(loops)}; a round trip, one request to JetStream, {_spread(trips)}."
    )
    return Machine(text, statistics.median(loops), statistics.median(trips))


def report(results: Sequence[Result], where: Machine, notes: Mapping[str, str], incomplete: str = "") -> str:
    """Return the complete report in Markdown."""
    verdicts = {result.case.name: verdicts_of(result) for result in results}
    rows = [_row(verdict) for found in verdicts.values() for verdict in found]
    lines = ["# Results", "", *([f"**Incomplete: {incomplete}.**", ""] if incomplete else []), where.text, "", _HOW, ""]
    lines += [*_table(SUMMARY, rows), ""]
    for subject, group in groupby(results, key=lambda result: result.case.subject):
        members = list(group)
        lines += [f"## {subject[0].upper()}{subject[1:]}", "", *_details(members, where)]
        for result in members:
            missed = any(verdict.met is False for verdict in verdicts[result.case.name])
            texts = (result.case.text, notes.get(result.case.name) if missed else "")
            lines += [line for text in texts if text for line in (f"**{result.title}**: {text}", "")]
    return "\n".join(lines).rstrip() + "\n"


_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s/'\"]+/)+")
_HOW = """Contenders run in turn. Figures are medians of wall time, with the processor time in brackets. A ratio is our
time divided by the time beside it, the median of the pairs with their spread; an aim is the most that the ratio may be.
`nats` is the Go client, nats-py the official Python client, `before` kvctl at the other commit. Figures in loops or
round trips are multiples of this machine's units; compare them with those of other machines. Peak memory of less than
20 MiB may be that of the harness, in which a process begins."""


def verdicts_of(result: Result) -> list[Verdict]:
    """Return the lines of a case in the summary."""
    if isinstance(result.found, Table):
        return result.found.verdicts
    series = result.found.series
    if not series or not series[0].seconds:
        return [Verdict(result.title, _failed(series[0].failure if series else ""), met=False)]
    found = []
    for aim in result.case.aims:
        ours, other, pairs, over = judge(aim, series)
        work = result.title + (f": {aim.ours}" if aim.ours else "")
        if not ours or not other:
            found.append(Verdict(work, _figure(ours), f"{aim.of}: not measured", aim=str(aim)))
            continue
        ratio = f"{statistics.median(pairs):.2f}" + (f" ({min(pairs):.2f} to {max(pairs):.2f})" if pairs[1:] else "")
        beside = f"{aim.of} {_figure(other)}"
        found.append(Verdict(work, _figure(ours), beside, ratio, str(aim), over <= 1, over))
    if not found:
        other = next((one for one in series[1:] if one.seconds), None)
        pairs = ratios(series[0], other) if other else []
        ratio = f"{statistics.median(pairs):.2f}" if pairs else ""
        beside = f"{other.name} {_figure(other)}" if other else ""
        found.append(Verdict(result.title, _figure(series[0]), beside, ratio))
    return found


def notes_in(text: str) -> dict[str, str]:
    """Return the notes of a file with a heading `## CASE` each."""
    parts = re.split(r"^## (\S+)$", text, flags=re.MULTILINE)
    return {name: note.strip() for name, note in zip(parts[1::2], parts[2::2], strict=True)}


def _row(verdict: Verdict) -> tuple[str, ...]:
    if verdict.met is None:
        met = ""
    else:
        met = "met" if verdict.met else "**missed**" + (f", {verdict.over:.2f} of it" if verdict.over else "")
    return verdict.work, verdict.ours, verdict.beside, verdict.ratio, verdict.aim, met


def _details(results: Sequence[Result], where: Machine) -> list[str]:
    """Return a table of all contenders of a subject, and the tables of its own."""
    rows = [row for result in results for row in _contenders(result, where)]
    lines = [*_table(DETAILS, rows), ""] if rows else []
    for result in results:
        if isinstance(result.found, Table):
            lines += [*_table(result.found.head, result.found.rows), ""]
    return lines


def _contenders(result: Result, where: Machine) -> list[tuple[str, ...]]:
    if isinstance(result.found, Table):
        return []
    unit, series = result.case.unit, result.found.series
    rows: list[tuple[str, ...]] = []
    for one in series:
        title = result.title if one is series[0] else ""
        if not one.seconds:
            rows.append((title, one.name, _failed(one.failure) if one.failure else "not measured"))
            continue
        over = ratios(series[0], one)
        relation = f"{statistics.median(over):.2f}" if one is not series[0] and over else ""
        spread = f"{_time(min(one.seconds))} to {_time(max(one.seconds))}" if one.seconds[1:] else ""
        cpu = _time(one.median_cpu) if any(one.cpu) else ""
        memory = f"{one.peak / 2**20:.0f} MiB" if one.peak else ""
        rows.append((title, one.name, _time(one.median), spread, relation, where.units(one.median, unit), cpu, memory))
    return rows


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    padded = [(*row, *[""] * (len(head) - len(row))) for row in rows]
    return [_line(head), "|" + "---|" * len(head), *map(_line, padded)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(cell).replace("|", "/") for cell in cells) + " |"


def _figure(series: Series | None) -> str:
    if not series:
        return ""
    return _time(series.median) + (f" ({_time(series.median_cpu)})" if any(series.cpu) else "")


def _spread(values: Sequence[float]) -> str:
    return f"{_time(statistics.median(values))} ({_time(min(values))} to {_time(max(values))})"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.1 else f"{seconds * 1000:.3g} ms"


def _plain(text: str) -> str:
    """Return a text of one line, with file names instead of the paths of this machine."""
    return " ".join(_FOLDERS.sub("", text).split())


def _failed(reason: str) -> str:
    return f"failed: {_plain(reason)[-160:]}"


def _commit(folder: Path) -> str:
    def git(*words: str) -> str:
        done = subprocess.run(("git", "-C", str(folder), *words), capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = " with changes" if git("status", "--porcelain", "--untracked-files=no", "--", ":/kvctl") else ""
    return (git("rev-parse", "--short=10", "HEAD") or "unknown") + changed
