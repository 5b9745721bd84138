"""Cases: a name, a title, aims as numbers, and a function that prepares the contenders."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.measure import Contender, Series, ratios

if TYPE_CHECKING:
    from bench.harness import Bench

BEFORE = "before"
"""The contender that is kvctl at the commit given with --before."""


@dataclass(frozen=True)
class Aim:
    """The most that the time of `ours`, the first contender by default, may be.

    `most` times that of `of`, `plus` seconds, and the time of `also`, if any.
    """

    most: float
    of: str
    plus: float = 0
    ours: str = ""
    processor: bool = False
    """True if it is the most of processor time."""
    also: str = ""
    """Contender whose fixed cost is added."""

    def __str__(self) -> str:
        what = " of processor time" if self.processor else ""
        also = f" + {self.also}" if self.also else ""
        return f"{self.most:g}x" + (f" + {self.plus:g} s" if self.plus else "") + also + what


NOISE = 1.1
"""The ratio that two measurements of the same work may have."""
SAME = Aim(NOISE, BEFORE)
START = Aim(1, BEFORE, plus=0.025, processor=True)
"""The most that the start of a command may take; issue 24 gave 25 ms for plain imports."""
STEADY = 1.5
"""The most that peak memory may grow with what is only passed on."""


@dataclass(frozen=True)
class Verdict:
    """One line of the summary: texts, and whether the aim is met; None if there is none or it could not be checked."""

    work: str
    ours: str
    beside: str = ""
    ratio: str = ""
    aim: str = ""
    met: bool | None = None
    over: float = 0
    """The figure as a multiple of the aim."""


def grown(work: str, unit: str, of: tuple[str, float], to: tuple[str, float], aim: float) -> Verdict:
    """Return the line on a figure at two sizes, each with its name; it may be `aim` times as much at the second."""
    (there, small), (here, large) = of, to
    ratio = large / small
    ours, beside = f"{large:,.1f} {unit} ({here})", f"{small:,.1f} {unit} ({there})"
    return Verdict(work, ours, beside, f"{ratio:.2f}", f"{aim:g}x", ratio <= aim, ratio / aim)


@dataclass
class Comparison:
    """The series of a case's contenders."""

    series: list[Series]


@dataclass
class Table:
    """A table of figures that are not compared with a rival, with the aims checked on them."""

    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    verdicts: list[Verdict]


Prepared = Mapping[str, Contender] | Table


@dataclass(frozen=True)
class Case:
    """A benchmark. `seconds` is its estimated duration on a quiet machine with two slow cores."""

    name: str
    subject: str
    _title: str
    prepare: Callable[[Bench, int], Prepared]
    count: int
    seconds: int
    rounds: int
    warmup: int
    aims: tuple[Aim, ...]
    unit: str
    quick: bool

    @property
    def text(self) -> str:
        """What the report says of it: the docstring of the function after the first line."""
        return (inspect.getdoc(self.prepare) or "").partition("\n\n")[2]

    def title(self, count: int) -> str:
        """Return the title for this number of keys."""
        return self._title.format(count=f"{count:,}", tenth=f"{count // 10:,}")


@dataclass
class Result:
    """A case with what was measured."""

    case: Case
    title: str
    found: Comparison | Table
    took: float


CASES: dict[str, Case] = {}
"""Modules of bench/cases enter theirs when they are imported; `bench.cases.CASES` has them in order."""


def case(
    name: str,
    title: str,
    *,
    count: int = 0,
    seconds: int = 10,
    rounds: int = 5,
    warmup: int = 1,
    aims: tuple[Aim, ...] = (),
    unit: str = "loops",
    quick: bool = True,
) -> Callable[[Callable[[Bench, int], Prepared]], Callable[[Bench, int], Prepared]]:
    """Enter a function as a case. It returns the contenders, ours first.

    `{count}` in the title is its size, `{tenth}` a tenth of it.
    """

    def enter(prepare: Callable[[Bench, int], Prepared]) -> Callable[[Bench, int], Prepared]:
        subject = prepare.__module__.rpartition(".")[2].replace("_", " ")
        assert name not in CASES, name
        CASES[name] = Case(name, subject, title, prepare, count, seconds, rounds, warmup, aims, unit, quick)
        return prepare

    return enter


def judge(aim: Aim, series: list[Series]) -> tuple[Series | None, Series | None, list[float], float]:
    """Return both series of an aim, their ratios, and our time as a multiple of the aim (0: not measured)."""
    named = {one.name: one for one in series if one.seconds}
    ours, other = named.get(aim.ours or series[0].name), named.get(aim.of)
    also = named.get(aim.also)
    if not ours or not other or (aim.also and not also):
        return ours, None, [], 0
    pairs = zip(ours.cpu, other.cpu, strict=False) if aim.processor else zip(ours.seconds, other.seconds, strict=False)
    plus = aim.plus + (also.median if also else 0)
    over = sorted(a / (aim.most * b + plus) for a, b in pairs)
    middle = len(over) // 2
    return ours, other, ratios(ours, other), (over[middle] + over[~middle]) / 2
