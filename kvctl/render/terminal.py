"""The process's own streams: what is a terminal, colour, width, messages and prompts."""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple, TextIO

from kvctl.errors import KvctlError, UsageError
from kvctl.render.escapes import escape

COLORS = ("auto", "always", "never")
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_NAMED = re.compile("`[^`\n]+`")


class OutputClosed(Exception):
    """Whoever read standard output has gone, like `head`; what is left to print has no reader."""


def paint(text: str, style: str) -> str:
    """`text` in a style: `bold dim red green yellow cyan`, or several with a space between."""
    codes = ";".join(_STYLES[name] for name in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if codes else text


def wants_color(stream: TextIO | None, choice: str, environ: Mapping[str, str]) -> bool:
    """Whether to colour: `--color` decides, then NO_COLOR, FORCE_COLOR and TERM=dumb, then the stream."""
    if choice != "auto":
        return choice == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return environ.get("TERM") != "dumb" and is_terminal(stream)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person sits at the other end."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


class Question(NamedTuple):
    """A question for the person at the terminal, and the answers that mean yes."""

    prompt: str
    answers: tuple[str, ...]

    def accepts(self, answer: str) -> bool:
        """Whether the answer means yes."""
        return answer in self.answers


class Terminal:
    """Standard streams and how to speak on them: stdout is the result, stderr everything else."""

    def __init__(self, *, color: str = "auto", quiet: bool = False, verbose: bool = False) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self.is_terminal = is_terminal(sys.stdout)
        self.speaks = is_terminal(sys.stderr)
        self.interactive = is_terminal(sys.stdin) and self.speaks
        self.colored = wants_color(sys.stdout, color, os.environ)
        self.colored_messages = wants_color(sys.stderr, color, os.environ)
        self.blocked = False
        """A blocking call is under way on the main thread, which only an exception in a signal's handler can end."""
        self.interruption: BaseException | None = None
        """What a signal has asked for; no blocking call may begin any more."""
        with suppress(OSError, ValueError, AttributeError):
            # A parent that reads in an event loop may have set its end, and so ours, to non-blocking.
            os.set_blocking(sys.stdout.fileno(), True)

    @property
    def width(self) -> int:
        """Columns of the terminal, or of COLUMNS."""
        return shutil.get_terminal_size().columns

    def write(self, data: bytes) -> None:
        """Bytes to stdout, flushed. Raises OutputClosed when the reader has gone, KvctlError when the disk is full."""
        if sys.stdout is None:
            raise KvctlError("Standard output is closed")
        try:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise OutputClosed from None
        except OSError as error:
            raise KvctlError(f"Cannot write to standard output: {error.strerror}") from None
        except ValueError:
            raise KvctlError("Standard output is closed") from None

    def note(self, text: str, *, always: bool = False) -> None:
        """A line for the person at the terminal about what was done; with `always` in pipes too, never with `-q`."""
        if (self.speaks or always) and not self.quiet:
            self.emit(self._named(text))

    def warn(self, text: str) -> None:
        """A line about what may surprise; also in pipes and with `-q`."""
        self.emit(f"{self._painted('warning:', 'yellow bold')} {self._named(text)}")

    def report(self, error: KvctlError) -> None:
        """An error, and its hint after a blank line."""
        self.emit(f"{self._painted('error:', 'red bold')} {self._named(error.message)}")
        if error.hint:
            self.emit(f"\n{self._painted('hint:', 'cyan bold')} {self._named(error.hint)}")

    def trace(self, subject: str, seconds: float, note: str = "") -> None:
        """With `-v`, an API subject that was asked and how long the answer took."""
        if self.verbose:
            text = f"{subject}  {seconds * 1000:.1f} ms{f'  {note}' if note else ''}"
            self.emit(self._painted(escape(text), "dim"))

    def emit(self, text: str) -> None:
        """A line to stderr as it is. Never fails: there is nowhere to report to."""
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def question(
        self, text: str, *, yes: bool = False, typed_name: str | None = None, confirmed: str | None = None
    ) -> "Question | None":
        """What to ask before destruction: y/N, or for a name to be typed; None where the options answer.

        Raises UsageError where nobody can be asked.
        """
        if typed_name is not None:
            return self._question_for_name(text, typed_name, confirmed)
        if yes:
            return None
        if not self.interactive:
            raise UsageError("`--yes` is required when input is not a terminal", hint=f"`--yes` answers: {text}")
        return Question(f"{text} [y/N] ", ("y", "Y", "yes", "Yes", "YES"))

    def _question_for_name(self, text: str, name: str, confirmed: str | None) -> "Question | None":
        if confirmed is not None and confirmed != name:
            raise UsageError(f"`--confirm {confirmed}` does not name `{name}`")
        if confirmed is not None:
            return None
        if not self.interactive:
            raise UsageError(f"`--confirm {name}` is required when input is not a terminal", hint=text)
        return Question(f"{text}\nType `{name}` to go on: ", (name,))

    def answer(self, prompt: str) -> str:
        """What the person types after the prompt. Blocks, in whatever thread."""
        sys.stderr.write(self._named(prompt))
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if not answer.endswith("\n"):
            self.emit("")
        return answer.strip()

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Marks a blocking call on the main thread, so that a signal ends it. Raises the signal that came before."""
        self.blocked = True
        try:
            if self.interruption is not None:
                raise self.interruption
            yield
        finally:
            self.blocked = False

    def _painted(self, word: str, style: str) -> str:
        return paint(word, style) if self.colored_messages else word

    def _named(self, text: str) -> str:
        text = escape(text, keep="\n")
        return _NAMED.sub(lambda match: paint(match[0], "cyan"), text) if self.colored_messages else text
