"""Progress of long operations on stderr, shown after half a second."""

import time
from types import TracebackType
from typing import Any, Self

DELAY = 0.5
"""Seconds before progress is shown; shorter operations show nothing."""


class Progress:
    """Progress bar: `with session.progress("Copying keys", total) as progress: progress.advance(count)`."""

    def __init__(self, what: str, total: int | None = None, *, enabled: bool) -> None:
        self.what = what
        self.total = total
        self.done = 0
        self._shows_from = time.monotonic() + DELAY if enabled else float("inf")
        self._bar: Any = None
        self._task: Any = None

    def advance(self, count: int = 1) -> None:
        """Add `count` items to those done."""
        self.done += count
        if self._bar is None:
            if time.monotonic() < self._shows_from:
                return
            self._show()
        self._bar.update(self._task, completed=self.done)

    def expect(self, total: int | None) -> None:
        """Set the total once it is known."""
        self.total = total

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            *([BarColumn()] if self.total else []),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
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


_AROUND = 14
"""Columns of the spinner and the elapsed time."""


def _cut(text: str, width: int) -> str:
    from rich.text import Text

    line = Text(text)
    line.truncate(max(width, 1), overflow="ellipsis")
    return line.plain
