"""Aims on the costs of a key: time per key between the last two sizes, memory from the first to the last."""

from bench.cases.scale import LOAD, Size, too_long, verdicts
from bench.measure import Run

MIB = 1 << 20


def _size(count: int, seconds: float, peak: int) -> Size:
    return Size(count, {LOAD: Run(seconds, peak=peak * MIB)}, took={LOAD: seconds})


def test_time_per_key_and_memory_are_checked():
    sizes = [_size(10, 1, 30), _size(100, 2, 31), _size(1000, 26, 50)]
    each, memory = verdicts(sizes)
    assert (each.ours, each.beside, each.ratio, each.met) == ("26,000.0 us (1,000)", "20,000.0 us (100)", "1.30", False)
    assert (memory.ours, memory.beside, memory.ratio, memory.met) == (
        "50.0 MiB (1,000)",
        "30.0 MiB (10)",
        "1.67",
        False,
    )
    assert all(verdict.met for verdict in verdicts([_size(10, 1, 30), _size(100, 10, 40)]))


def test_command_that_would_take_too_long_is_left_out_with_its_estimate():
    sizes = [_size(100, 10, 30), _size(1000, 55, 30)]
    assert too_long(LOAD, 2000, sizes) == ""
    assert too_long(LOAD, 10_000, sizes) == "left out: it would take about 8 minutes"
    assert too_long("kvctl keys", 10_000, sizes) == "left out"
    assert too_long(LOAD, 10_000, sizes[1:]) == ""
