"""Progress of long operations on stderr, drawn by rich and shown after half a second."""

import time
from types import TracebackType
from typing import Any, Self

DELAY = 0.5
"""Seconds before progress is shown; shorter operations show nothing."""


class Progress:
    """Progress bar: `with session.progress("Copying", total, unit="keys") as progress: progress.advance(count)`.

    Without a total it shows the count, and without a unit only what is being done.
    """

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
        self._update()

    def expect(self, total: int | None) -> None:
        """Set the total once it is known."""
        self.total = total

    def hide(self) -> None:
        """Erase the bar, so that a line can be printed; the next step shows it again."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def say(self, what: str) -> None:
        """Replace the text."""
        self.what = what
        self._update()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _update(self) -> None:
        if self._bar is None:
            if time.monotonic() < self._shows_from:
                return
            self._show()
        self._bar.update(self._task, description=self.what, total=self.total, completed=self.done, rate=self._rate())

    def _rate(self) -> str:
        """Return the rate since the start: `190k rows/s`."""
        seconds = time.monotonic() - self._shows_from + DELAY
        return f"{short_rate((self.rows or self.done) / seconds)} {'rows' if self.rows else self.unit}/s"

    def _show(self) -> None:
        from rich import progress
        from rich.console import Console
        from rich.table import Column

        text = Column(ratio=2, no_wrap=True, overflow="ellipsis")  # a wrapped line cannot be erased completely
        columns = [progress.SpinnerColumn(), progress.TextColumn("{task.description}", markup=False, table_column=text)]
        if self.total:
            columns.append(progress.BarColumn(None, table_column=Column(ratio=1)))
        if self.unit == "bytes":
            columns.append(progress.DownloadColumn(binary_units=True))
        elif self.unit or self.total:
            of_total = "/{task.total:,.0f}" if self.total else ""
            columns.append(progress.TextColumn(f"{{task.completed:,.0f}}{of_total} {self.unit}".rstrip(), markup=False))
        if self.unit == "bytes" and not self.rows:
            columns.append(progress.TransferSpeedColumn())
        elif self.unit:
            columns.append(progress.TextColumn("{task.fields[rate]}", markup=False))
        columns.append(progress.TimeRemainingColumn() if self.total else progress.TimeElapsedColumn())
        self._bar = progress.Progress(*columns, console=Console(stderr=True), transient=True, expand=True)
        self._task = self._bar.add_task(self.what, total=self.total, rate="")
        self._bar.start()


def short_rate(rate: float) -> str:
    """Write a rate in three digits or less: `8.5`, `190k`, `1.2M`."""
    for suffix, size in (("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.0f}{suffix}" if rate >= 10 * size else f"{rate / size:.1f}{suffix}"
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"
