"""kvctl on one terminal, for tests that act between its question and their answer."""

import os
import pty
import select
import subprocess
import sys
from types import TracebackType
from typing import Self

LIMIT_S = 120


class Dialogue:
    """A process of kvctl on a terminal; a context manager that ends it."""

    def __init__(self, *args: str) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvctl", *args], stdin=slave, stdout=slave, stderr=slave, close_fds=True
        )
        os.close(slave)
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
                return found.decode()
        end = found.index(text.encode()) + len(text.encode())
        found, self._heard = found[:end], found[end:]
        return found.decode()

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
