"""The report of benchmarks: aims checked on fixed series, and every figure in its place."""

from bench.case import Aim, Case, Comparison, Prepared, Result, Table, Verdict
from bench.harness import Bench
from bench.measure import Series
from bench.report import Machine, notes_in, report, verdicts_of

HERE = Machine("Commit abc.", loop=0.1, trip=0.001)
NOTES = notes_in("# Missed aims\n\n## slow\n\nHalf of it is parsing.\n\n## fine\n\nNever shown.\n")


def _nothing(_: Bench, __: int) -> Prepared:
    """Compare nothing.

    The rival is a script.
    """
    return {}


def _result(name: str, *aims: Aim, ours: list[float], **others: list[float]) -> Result:
    series = [Series("kvctl", ours, [one / 2 for one in ours], 30 << 20)]
    series += [Series(other, seconds, list(seconds), 0) for other, seconds in others.items()]
    case = Case(name, "reading", f"work {name}", _nothing, 0, 1, 3, 0, aims, "loops", True)
    return Result(case, f"work {name}", Comparison(series), 1)


def test_aim_is_met_at_its_ratio_and_missed_beyond():
    (met,) = verdicts_of(_result("a", Aim(1.5, "nats"), ours=[3, 3, 3], nats=[2, 2, 2]))
    (missed,) = verdicts_of(_result("a", Aim(1.5, "nats"), ours=[4, 3, 9], nats=[2, 2, 3]))
    assert (met.met, met.ratio) == (True, "1.50 (1.50 to 1.50)")
    assert (missed.met, missed.ratio) == (False, "2.00 (1.50 to 3.00)")
    assert round(missed.over, 3) == 1.333


def test_aim_allows_seconds_beside_the_ratio():
    (verdict,) = verdicts_of(_result("a", Aim(1.5, "dump", plus=4), ours=[9.9], dump=[4.0]))
    assert (verdict.met, verdict.aim) == (True, "1.5x + 4 s")


def test_aim_allows_the_time_of_another_contender():
    aim = Aim(1.5, "load", also="export")
    (met,) = verdicts_of(_result("a", aim, ours=[9.9], load=[4.0], export=[4.0]))
    (missed,) = verdicts_of(_result("a", aim, ours=[10.1], load=[4.0], export=[4.0]))
    assert (met.met, missed.met, met.aim) == (True, False, "1.5x + export")
    (unknown,) = verdicts_of(_result("a", aim, ours=[9.9], load=[4.0]))
    assert unknown.met is None


def test_aim_of_processor_time_leaves_waiting_out():
    aim = Aim(1, "before", plus=0.025, processor=True)
    (met,) = verdicts_of(_result("a", aim, ours=[0.4], before=[0.176]))
    (missed,) = verdicts_of(_result("a", aim, ours=[0.4], before=[0.174]))
    assert (met.met, missed.met, met.aim) == (True, False, "1x + 0.025 s of processor time")


def test_aim_compares_two_named_contenders():
    aim = Aim(1, "first", ours="second")
    (verdict,) = verdicts_of(_result("a", aim, ours=[1], first=[5], second=[6]))
    assert (verdict.met, verdict.work, verdict.beside) == (False, "work a: second", "first 5.00 s (5.00 s)")


def test_aim_without_its_contender_is_not_checked():
    (verdict,) = verdicts_of(_result("a", Aim(0.5, "before"), ours=[1]))
    assert (verdict.met, verdict.beside) == (None, "before: not measured")


def test_failed_case_is_missed_with_its_reason_without_paths_of_the_machine():
    result = _result("a", ours=[])
    assert isinstance(result.found, Comparison)
    result.found.series[0].failure = "kvctl exited with 5: File '/home/ann/kvctl/kv/get.py'\n at nats://host:4222/x"
    (verdict,) = verdicts_of(result)
    assert (verdict.met, verdict.ours) == (False, "failed: kvctl exited with 5: File 'get.py' at nats://host:4222/x")


def test_report_has_the_summary_first_and_notes_of_missed_aims_alone():
    slow = _result("slow", Aim(1, "nats"), ours=[0.2, 0.4], nats=[0.1, 0.1])
    fine = _result("fine", Aim(1, "nats"), ours=[0.1], nats=[0.2])
    table = Table(("", "10 keys"), [("`keys`", "1 s")], [Verdict("memory", "2 MiB", met=True)])
    costs = Result(Case("scale", "scale", "costs", _nothing, 0, 1, 1, 0, (), "loops", True), "costs", table, 1)
    text = report([slow, fine, costs], HERE, NOTES, "3 of 4 cases")
    assert text.index("**Incomplete: 3 of 4 cases.**") < text.index("Commit abc.") < text.index("| work | ours |")
    assert "| work slow | 300 ms (150 ms) | nats 100 ms (100 ms) | 3.00 (2.00 to 4.00) | 1x | **missed**" in text
    assert "| work fine | 100 ms (50 ms) | nats 200 ms (200 ms) | 0.50 | 1x | met |" in text
    assert "| memory | 2 MiB |  |  |  | met |" in text
    assert "| work slow | kvctl | 300 ms | 200 ms to 400 ms |  | 3 loops | 150 ms | 30 MiB |" in text
    assert text.index("| work fine") < text.index("## Reading") < text.index("**work slow**: Half of it is parsing.")
    assert "**work fine**: The rival is a script." in text
    assert text.endswith("| `keys` | 1 s |\n\n**costs**: The rival is a script.\n")
    assert "Never shown" not in text
