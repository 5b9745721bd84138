"""The harness of the benchmarks, on a real server."""

import subprocess
import sys
from functools import partial

import pytest

from bench.cases import CASES
from bench.harness import Bench, split
from bench.measure import AtMost, Run, in_turn, run
from bench.report import MISSED, notes_in


def test_case_measures_every_contender_as_a_process(server, tmp_path):
    bench = Bench(server, quick=True, place=tmp_path)
    result = bench.measure(CASES["put"])
    found = result.found
    assert not result.case.aims  # small sizes say nothing of them
    series = {one.name: one for one in found.series}  # type: ignore[union-attr]
    ours = series["kvctl put"]
    assert not ours.failure
    assert 0 < ours.median_cpu < 60
    assert ours.peak > 10 << 20
    assert len(ours.seconds) == len(bench.loops) == len(bench.trips) == 1


def test_work_measures_itself_with_the_library(server, tmp_path):
    bench = Bench(server, quick=True, place=tmp_path)
    done = bench.work("bucket", "get_many", bench.keys(100), 100)()
    assert 0 < done.seconds < 60
    assert done.peak > 10 << 20


def test_contenders_run_in_turn_and_a_failed_one_is_left_out():
    order = []

    def contender(name: str) -> Run:
        order.append(name)
        if name == "broken":
            raise RuntimeError("broken")
        return Run(1)

    runs = {name: partial(contender, name) for name in ("a", "broken", "slow")}
    series = in_turn(runs | {"slow": AtMost(1, runs["slow"])}, rounds=2, warmup=1)
    assert order == ["a", "broken", "a", "slow", "a"]
    told = [(one.name, len(one.seconds), one.failure) for one in series]
    assert told == [("a", 2, ""), ("broken", 0, "broken"), ("slow", 1, "")]


def test_figures_of_a_run_that_failed_are_not_those_of_the_one_before():
    told = iter([{"a": {"seconds": 1}, "b": {"seconds": 2}}, {"a": {"seconds": 3}}])
    series = in_turn(split(lambda: next(told), "a", "b"), rounds=2, warmup=0)
    assert [(one.seconds, one.failure) for one in series] == [([1, 3], ""), ([2], "not measured")]


def test_failed_process_reports_its_last_words():
    with pytest.raises(RuntimeError, match="exited with 3: no luck"):
        run((sys.executable, "-c", "import sys; sys.stderr.write('no luck'); sys.exit(3)"))
    with pytest.raises(RuntimeError, match=r"took more than 0\.2 s"):
        run((sys.executable, "-c", "import time; time.sleep(30)"), timeout=0.2)


def test_every_subject_has_cases():
    subjects = "cold start, reading, writing, tables, repositories, pipeline, topologies, consuming, transactions"
    assert {case.subject for case in CASES.values()} == {*subjects.split(", "), "scale", "memory"}


def test_notes_belong_to_cases():
    assert set(notes_in(MISSED.read_text(encoding="utf-8"))) <= set(CASES)


def test_list_names_every_case_and_the_total():
    done = subprocess.run((sys.executable, "-m", "bench", "--list"), capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == len(CASES) + 1


def test_processor_time_of_unreaped_descendants_counts():
    child = "import time\nwhile time.process_time() < 0.7: pass\nprint(flush=True)\ninput()"
    parent = (
        "import subprocess, sys, time\n"
        f"with subprocess.Popen([sys.executable, '-c', {child!r}], stdin=-1, stdout=-1) as started:\n"
        "    started.stdout.readline()\n"
        "    time.sleep(1)\n"
        "    import os; os._exit(0)\n"
    )
    alone, together = (run((sys.executable, "-c", parent), children=children).cpu for children in (False, True))
    assert alone < 0.6 <= together
