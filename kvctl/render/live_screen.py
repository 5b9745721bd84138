"""Full screen that is redrawn in place, and the keys typed at it."""

import asyncio
import os
import re
import sys
import termios
import tty
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.segment import SegmentLines
from rich.text import Text

from kvctl.render import cards
from kvctl.render.terminal import Terminal

_TYPED = re.compile("\x1b[\\[O].|.", re.DOTALL)
_KEYS = {"A": "up", "B": "down", "\r": "enter", "\n": "enter", "\x1b": "escape", "\x7f": "backspace", "\b": "backspace"}
"""Names of keys by the last character that they send."""


class LiveScreen:
    """Alternate screen of a terminal: `with LiveScreen(terminal) as screen: screen.draw(parts)`.

    What was drawn last stays on the terminal. Keys are read only if standard input is a terminal.
    """

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._console = cards.console(color=terminal.colored)
        self._live = Live(console=self._console, screen=True, auto_refresh=False, vertical_overflow="ellipsis")
        self._last: Group | None = None
        self._keys: asyncio.Queue[str] = asyncio.Queue()
        self._saved: list[Any] | None = None

    @property
    def width(self) -> int:
        """Return the columns of the terminal."""
        return self._console.width

    @property
    def height(self) -> int:
        """Return the lines of the terminal."""
        return self._console.height

    def draw(self, parts: Iterable[RenderableType], foot: Iterable[RenderableType] = ()) -> None:
        """Draw as much as fits: `foot`, which is the answer, before the parts above it, and how much is left out."""
        body, end = Group(*parts), Group(*foot)
        self._last = Group(body, end)
        lines, closing = (self._console.render_lines(part, pad=False) for part in (body, end))
        left_out = len(lines) + len(closing) - self.height
        shown: RenderableType = self._last
        if left_out > 0:
            tail = closing[-(self.height // 2) :]
            head = [*lines, *closing][: max(self.height - len(tail) - 1, 0)]
            more = Text(f"… {left_out + 1} more lines: the terminal is too low", "dim")
            shown = Group(SegmentLines(head, new_lines=True), more, SegmentLines(tail, new_lines=True))
        self._live.update(shown, refresh=True)

    async def key(self, seconds: float) -> str:
        """Wait for a key: its character, `up`, `down`, `enter`, `escape` or `backspace`; empty if none came in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # `wait_for` of Python 3.11 may swallow a cancellation
                return await self._keys.get()
        return ""

    def __enter__(self) -> Self:
        self._live.start()
        if self._terminal.interactive:
            self._saved = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
            asyncio.get_running_loop().add_reader(sys.stdin, self._read)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._saved is not None:
            asyncio.get_running_loop().remove_reader(sys.stdin)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._saved)
        self._live.stop()
        if self._last is not None:
            self._console.print(self._last)

    def _read(self) -> None:
        data = os.read(sys.stdin.fileno(), 1024)
        if not data:  # the terminal is closed
            asyncio.get_running_loop().remove_reader(sys.stdin)
            self._keys.put_nowait("q")
        for typed in _TYPED.findall(data.decode("utf-8", "ignore")):
            key = typed if len(typed) == 1 and typed.isprintable() else _KEYS.get(typed[-1], "")
            if key:
                self._keys.put_nowait(key)
