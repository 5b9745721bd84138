"""Full-screen output on the terminal's alternate screen, redrawn in place."""

import shutil
from types import TracebackType
from typing import Self

from kvctl.render.terminal import Terminal

# Alternate screen, hidden cursor, no line wrapping; and back.
_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE = b"\x1b[?7h\x1b[?25h\x1b[?1049l"


class Screen:
    """Alternate screen: `with Screen(terminal) as screen: screen.draw(text)`. The last text stays on the terminal."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._last = b""

    def draw(self, text: bytes) -> None:
        """Draw as many lines as fit, from the top. Raises OutputClosed, KvctlError."""
        self._last = text
        room = max(shutil.get_terminal_size().lines, 2)
        lines = text.splitlines()
        if len(lines) > room:
            hidden = len(lines) - room + 1
            lines = [*lines[: room - 1], f"... and {hidden} more lines".encode()]
        self._terminal.write(b"\x1b[H" + b"\r\n".join(line + b"\x1b[K" for line in lines) + b"\x1b[J")

    def __enter__(self) -> Self:
        self._terminal.write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._terminal.write(_LEAVE + self._last)
