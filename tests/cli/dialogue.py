"""kvctl on one terminal, for tests that act between its question and their answer."""

import os
import select
import subprocess
import termios
from types import TracebackType
from typing import Any, Self

from tests.cli.conftest import _command, _environment, open_terminal

LIMIT_S = 120


class Dialogue:
    """A process of kvctl on a terminal; a context manager that ends it."""

    def __init__(self, *args: str, **env: str) -> None:
        self._master, terminal = open_terminal()
        streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
        self.process = subprocess.Popen(_command(args), env=_environment({"NO_COLOR": "1", **env}), **streams)
        os.close(terminal)
        self._heard = b""
        """What came after the text that was last waited for."""

    def hear(self, text: str | None = None) -> str:
        """Read up to and including a text, or to the end."""
        found, self._heard = self._heard, b""
        while text is None or text.encode() not in found:
            ready, _, _ = select.select([self._master], [], [], LIMIT_S)
            assert ready, f"`{text}` did not come: {found.decode()}"
            try:
                found += os.read(self._master, 4096)
            except OSError:
                return found.decode("utf-8", "replace")
        end = found.index(text.encode()) + len(text.encode())
        found, self._heard = found[:end], found[end:]
        return found.decode("utf-8", "replace")

    def say(self, line: str) -> None:
        """Type a line."""
        self.press(f"{line}\n".encode())

    def press(self, keys: bytes) -> None:
        """Type keys."""
        os.write(self._master, keys)

    def modes(self) -> list[Any]:
        """How the terminal is set."""
        return termios.tcgetattr(self._master)

    def end(self) -> int:
        """The exit code."""
        return self.process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait(60)
        os.close(self._master)
