"""kvctl on one terminal, for tests that act between its question and their answer."""

import os
import pty
import subprocess
import sys
from types import TracebackType
from typing import Self


class Dialogue:
    """A process of kvctl on a terminal; a context manager that ends it."""

    def __init__(self, *args: str) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvctl", *args], stdin=slave, stdout=slave, stderr=slave, close_fds=True
        )
        os.close(slave)

    def hear(self, text: str | None = None) -> str:
        """What comes until a text, or the end."""
        found = ""
        while text is None or text not in found:
            try:
                found += os.read(self._master, 4096).decode()
            except OSError:
                break
        return found

    def say(self, line: str) -> None:
        """Type a line."""
        os.write(self._master, f"{line}\n".encode())

    def end(self) -> int:
        """The exit code."""
        return self._process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait(60)
        os.close(self._master)
