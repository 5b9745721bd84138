"""Measure kvctl beside nats-py, `nats` if it is on PATH, and another commit of kvctl.

Without CASE all cases run, about half an hour on two quiet cores; --ten-million takes a quarter of an hour more.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from bench.case import BEFORE, Case, Comparison, Result
from bench.cases import CASES
from bench.harness import ROOT, Bench, Tree
from bench.measure import Series
from bench.report import MISSED, machine, notes_in, report
from kvctl.server import find_server, run_server

RESULTS = ROOT / "bench" / "RESULTS.md"
NEEDED = 16 << 30
"""Bytes on disk for ten million keys in a bucket, a repository, a table, a file and an export."""


def main() -> None:
    """Run the cases and print or write the report."""
    parser = _parser()
    asked = parser.parse_args()
    if unknown := set(asked.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    if asked.write and (asked.cases or asked.quick):
        parser.error("--write needs a complete run, without CASE and --quick")
    chosen = [CASES[name] for name in asked.cases] or [case for case in CASES.values() if case.quick or not asked.quick]
    if asked.list:
        print(_listing(chosen))
        return
    try:
        before = Tree.at(BEFORE, asked.before) if asked.before else None
    except FileNotFoundError as error:
        parser.error(str(error))
    if asked.ten_million and shutil.disk_usage(tempfile.gettempdir()).free < NEEDED:
        parser.error(f"--ten-million needs {NEEDED >> 30} GB of free space in {tempfile.gettempdir()}")
    signal.signal(signal.SIGTERM, _interrupt)
    with (
        tempfile.TemporaryDirectory(prefix="kvctl-bench-", ignore_cleanup_errors=True) as place,
        run_server() as server,
    ):
        harness = Bench(
            server,
            place=Path(place),
            before=before,
            rounds=asked.rounds,
            quick=asked.quick,
            ten_million=asked.ten_million,
        )
        for tree in harness.trees:
            tree.compile()
        text = _measured(harness, chosen, asked.before, asked.write)
    print(text)


def _interrupt(*_: object) -> None:
    """End as on Ctrl-C, so that servers stop and files are removed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _measured(harness: Bench, chosen: list[Case], before: Path | None, target: Path | None) -> str:
    """Run the cases; the report is written after each one, so an interrupted run keeps what it has."""
    results: list[Result] = []
    notes = notes_in(MISSED.read_text(encoding="utf-8")) if MISSED.exists() else {}
    asked = subprocess.run((find_server(), "--version"), capture_output=True, text=True, check=False)
    version = asked.stdout.split()[-1].lstrip("v")
    text = ""
    try:
        for case in chosen:
            results.append(_result(harness, case))
            left = f"{len(results)} of {len(chosen)} cases" if len(results) < len(chosen) else ""
            text = report(results, machine(harness.loops, harness.trips, version, before), notes, left)
            if target:
                target.write_text(text, encoding="utf-8")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    return text


def _result(harness: Bench, case: Case) -> Result:
    try:
        result = harness.measure(case)
    except Exception as error:  # the other cases go on
        print(f"  failed: {error!r}", file=sys.stderr)
        return Result(
            case, case.title(harness.sized(case.count)), Comparison([Series("kvctl", failure=repr(error))]), 0
        )
    print(f"  {result.took:.0f} s", file=sys.stderr, flush=True)
    return result


def _listing(chosen: Iterable[Case]) -> str:
    chosen = list(chosen)
    lines = [f"{case.name:<16} {case.seconds:>4} s  {case.title(case.count)}" for case in chosen]
    return "\n".join([*lines, f"{'':<16} {sum(case.seconds for case in chosen) / 60:>4.0f} minutes"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="cases to run; --list names them")
    parser.add_argument("--list", action="store_true", help="list the cases with their estimated duration")
    parser.add_argument("--quick", action="store_true", help="one round of small sizes, to check that every case works")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="number of rounds of every case")
    parser.add_argument("--before", type=Path, metavar="DIR", help="checkout of another commit, with its own .venv")
    parser.add_argument("--ten-million", action="store_true", help="also measure the costs of ten million keys")
    parser.add_argument(
        "--write", type=Path, nargs="?", const=RESULTS, metavar="FILE", help="write the report [default: RESULTS.md]"
    )
    return parser


if __name__ == "__main__":
    main()
