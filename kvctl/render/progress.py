"""Progress of long operations on stderr, shown after half a second."""

import time
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from kvctl.units import SIZES, format_size

DELAY = 0.5
"""Seconds before progress is shown; shorter operations show nothing."""


class Progress:
    """Progress bar: `with session.progress("Copying", total, unit="keys") as progress: progress.advance(count)`."""

    def __init__(self, what: str, total: int | None = None, *, unit: str = "", enabled: bool) -> None:
        self.what = what
        self.total = total
        self.unit = unit
        """Plural of what is counted, or `bytes`."""
        self.done = 0
        self.rows = 0
        self._shows_from = time.monotonic() + DELAY if enabled else float("inf")
        self._bar: Any = None
        self._task: Any = None

    def advance_rows(self, count: int) -> None:
        """Count rows, whose rate is shown instead of that of the bytes that hold them."""
        self.rows += count

    def advance(self, count: int = 1) -> None:
        """Add `count` items to those done."""
        self.done += count
        if self._bar is None:
            if time.monotonic() < self._shows_from:
                return
            self._show()
        self._bar.update(self._task, completed=self.done, total=self.total)

    def expect(self, total: int | None) -> None:
        """Set the total once it is known."""
        self.total = total

    def facts(self, seconds: float) -> str:
        """Describe the progress after some seconds: `24.5/37.8 MiB  190k rows/s  0:01 left`."""
        if not self.total or not self.done or self.total < self.done:
            left = _clock(seconds)
        else:
            left = f"{_clock(seconds / self.done * (self.total - self.done))} left"
        parts = [_amount(self.done, self.total, self.unit), self._rate(seconds), left]
        return "  ".join(part for part in parts if part)

    def _rate(self, seconds: float) -> str:
        if seconds <= 0 or not self.done:
            return ""
        if self.unit == "bytes" and not self.rows:
            return f"{format_size(int(self.done / seconds))}/s"
        rate = (self.rows or self.done) / seconds
        return f"{_short(rate)} {'rows' if self.rows else self.unit}".rstrip() + "/s"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.text import Text

        console, facts = Console(stderr=True), self.facts

        class Facts(ProgressColumn):
            def render(self, task: Any) -> Text:
                return Text(facts((task.elapsed or 0) + DELAY), no_wrap=True)

        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            *([BarColumn(max(min(console.width - len(self.what) - _FACTS, 40), 5))] if self.total else []),
            Facts(),
            console=console,
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(self.what, total=self.total)


class Activity:
    """Activity line with the elapsed time, for operations without a count: `activity.say("Starting Spark")`."""

    def __init__(self, *, enabled: bool) -> None:
        self._shows_from = time.monotonic() + DELAY if enabled else float("inf")
        self._line: Any = None
        self._task: Any = None

    def say(self, what: str) -> None:
        """Replace the text, truncated to the terminal's width because a wrapped line cannot be erased completely."""
        if self._line is None:
            if time.monotonic() < self._shows_from:
                return
            self._show()
        self._line.update(self._task, description=_cut(what, self._line.console.width - _AROUND), visible=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._line is not None:
            self._line.stop()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import Progress as Line
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        self._line = Line(*columns, console=Console(stderr=True), transient=True)
        self._task = self._line.add_task("", total=None, visible=False)
        self._line.start()


def _amount(done: int, total: int | None, unit: str) -> str:
    if total is not None and total < done:
        total = None
    if unit == "bytes":
        if total is None:
            return format_size(done)
        number, name = format_size(total).split(" ")
        factor = 1024 ** SIZES.index(name)
        return f"{done / factor:.1f}/{number} {name}" if factor > 1 else f"{done}/{total} B"
    shown = f"{done:,}" if total is None else f"{done:,}/{total:,}"
    return f"{shown} {unit}".rstrip()


def _short(rate: float) -> str:
    """Write a rate in three digits or less: `8.5`, `190k`, `1.2M`."""
    for suffix, size in (("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.0f}{suffix}" if rate >= 10 * size else f"{rate / size:.1f}{suffix}"
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"


def _clock(seconds: float) -> str:
    """Write a time as `0:01` or `1:02:03`."""
    text = str(timedelta(seconds=round(seconds)))
    return text.removeprefix("0:").removeprefix("0") if text.startswith("0:") else text


_FACTS = 64
"""Columns of the spinner and of the longest facts beside a bar."""
_AROUND = 14
"""Columns of the spinner and the elapsed time."""


def _cut(text: str, width: int) -> str:
    from rich.text import Text

    line = Text(text)
    line.truncate(max(width, 1), overflow="ellipsis")
    return line.plain
