"""Standard streams of the process: terminal detection, colour, width, messages and prompts."""

import os
import select
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple, TextIO

from kvctl.deferred import pattern
from kvctl.errors import KvctlError, UsageError
from kvctl.phrases import MessageLines, lines
from kvctl.render.escapes import escape, escape_unicode, utf8

COLORS = ("auto", "always", "never")
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_NAMED = pattern("`[^`\n]+`")
_NARROWEST = 20
"""Minimum width to which messages are wrapped, in terminal columns."""


class OutputClosed(Exception):
    """Signal that the reader of standard output has closed it, as `head` does."""


def paint(text: str, style: str) -> str:
    """Apply a style to text: `bold dim red green yellow cyan`, or several separated by spaces."""
    codes = ";".join(_STYLES[name] for name in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if codes else text


def wants_color(stream: TextIO | None, choice: str, environ: Mapping[str, str]) -> bool:
    """Decide on colour by `--color`, then NO_COLOR, FORCE_COLOR and TERM=dumb, then the stream."""
    if choice != "auto":
        return choice == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return environ.get("TERM") != "dumb" and is_terminal(stream)


def is_terminal(stream: TextIO | None) -> bool:
    """Return True if the stream is open and a terminal."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


class Question(NamedTuple):
    """Question to the user, with the answers that mean yes."""

    prompt: str
    answers: tuple[str, ...]

    def accepts(self, answer: str) -> bool:
        """Return True if the answer means yes."""
        return answer in self.answers


class Terminal:
    """Standard streams: results go to stdout, everything else to stderr."""

    def __init__(
        self, *, color: str = "auto", quiet: bool = False, verbose: bool = False, documents: bool = False
    ) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self.documents = documents
        """Errors and warnings are JSON objects, a line each, and there are no notes in pipes."""
        self.is_terminal = is_terminal(sys.stdout)
        self.speaks = is_terminal(sys.stderr)
        self.interactive = is_terminal(sys.stdin) and self.speaks
        self.colored = wants_color(sys.stdout, color, os.environ)
        self.colored_messages = wants_color(sys.stderr, color, os.environ)
        self.blocked = False
        """True during a blocking call on the main thread, which only an exception in a signal handler can end."""
        self.interruption: BaseException | None = None
        """Exception requested by a signal; no further blocking call may begin."""
        with suppress(OSError, ValueError, AttributeError):
            # A parent with an event loop may have set the shared file description to non-blocking.
            os.set_blocking(sys.stdout.fileno(), True)

    @property
    def width(self) -> int:
        """Return the columns of the terminal, or COLUMNS."""
        return shutil.get_terminal_size().columns

    @property
    def reader_left(self) -> bool:
        """Return True if nobody reads what is written to stdout any more, so far as the system tells."""
        with suppress(OSError, ValueError, AttributeError):
            asked = select.poll()
            asked.register(sys.stdout.fileno(), 0)  # errors are always reported
            return any(event & select.POLLERR for _, event in asked.poll(0))
        return False

    def write(self, data: bytes) -> None:
        """Write bytes to stdout and flush. Raises OutputClosed if the reader closed it, KvctlError on a full disk."""
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

    def page(self, text: str) -> None:
        """Print a text, on a terminal through PAGER or `less` if it is longer than that. Raises as `write`."""
        if not self.is_terminal or len(text.splitlines()) < shutil.get_terminal_size().lines:
            self.write(text.encode())
            return
        import pydoc

        os.environ.setdefault("LESS", "FRX")  # quit if all fits, show colours, keep the screen
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pager
        try:
            pydoc.pager(text)
        finally:
            signal.signal(signal.SIGINT, before)

    def result(self, text: str) -> None:
        """Print the result of a command as a sentence on stdout, wrapped on a terminal; never with `-q`."""
        if not self.quiet:
            text = _named(text, colored=self.colored)
            self.write(utf8(f"{_wrapped(text, self.width) if self.is_terminal else text}\n"))

    def note(self, text: str, *, always: bool = False) -> None:
        """Print a note on a terminal's stderr, with `always` in pipes too; never with `-q`, nor among documents."""
        if (self.speaks or (always and not self.documents)) and not self.quiet:
            self.emit(self._wrapped(self._named(text)))

    def warn(self, text: str) -> None:
        """Print a warning, also in pipes and with `-q`."""
        if self.documents:
            self._document("warning", {"message": text})
            return
        self.emit(self._labelled("warning:", "yellow bold", text))

    def report(self, error: KvctlError) -> None:
        """Print an error, and its hint after a blank line."""
        if self.documents:
            fields = {"code": error.exit_code, "kind": error.kind, "message": error.message, "hint": error.hint or None}
            if not getattr(error, "confirmed", True):
                fields["confirmed"] = False
            self._document("error", fields)
            return
        self.emit(self._labelled("error:", "red bold", error.message))
        if error.hint:
            self.emit(f"\n{self._labelled('hint:', 'cyan bold', error.hint)}")

    def trace(self, subject: str, seconds: float, note: str = "") -> None:
        """Print an API subject and its response time, with `-v` only."""
        if self.verbose:
            text = f"{subject}  {seconds * 1000:.1f} ms{f'  {note}' if note else ''}"
            self.emit(self._painted(escape(text), "dim"))

    def emit(self, text: str) -> None:
        """Print a line to stderr unchanged. Never fails, as there is nowhere to report it."""
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def question(
        self,
        text: str,
        *,
        yes: bool = False,
        typed_name: str | None = None,
        confirmed: str | None = None,
        hint: str | None = None,
    ) -> "Question | None":
        """Return the confirmation prompt, y/N or a name to type, or None if options confirm it.

        Raises UsageError if the terminal is not interactive, for a name with the hint.
        """
        if typed_name is not None:
            return self._question_for_name(text, typed_name, confirmed, hint)
        if yes:
            return None
        if not self.interactive:
            raise UsageError("`--yes` is required when input is not a terminal", hint=f"Add `--yes` to confirm: {text}")
        return Question(f"{text} [y/N] ", ("y", "Y", "yes", "Yes", "YES"))

    def _question_for_name(self, text: str, name: str, confirmed: str | None, hint: str | None) -> "Question | None":
        if confirmed is not None and confirmed != name:
            raise UsageError(f"`--confirm {confirmed}` does not match `{name}`")
        if confirmed is not None:
            return None
        if not self.interactive:
            raise UsageError(f"`--confirm {name}` is required when input is not a terminal", hint=hint or text)
        asked = lines(text, f"Type `{name}` to confirm (`--yes` does not answer this): ")
        return Question(asked, (name,))

    def answer(self, prompt: str) -> str:
        """Prompt and return the typed line, stripped. Blocks the calling thread."""
        sys.stderr.write(self._wrapped(self._named(prompt)))
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if not answer.endswith("\n"):
            self.emit("")
        return answer.strip()

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Mark a blocking call on the main thread, so that a signal ends it. Raises a signal that came before."""
        self.blocked = True
        try:
            if self.interruption is not None:
                raise self.interruption
            yield
        finally:
            self.blocked = False

    def _document(self, name: str, fields: dict[str, object]) -> None:
        """Print one JSON object on one line."""
        import json

        text = json.dumps({name: fields}, ensure_ascii=False)
        self.emit(escape_unicode(text) if self.speaks else text)

    def _labelled(self, label: str, style: str, text: str) -> str:
        """Return a message with its label, under which further lines are indented."""
        return self._wrapped(f"{self._painted(label, style)} {self._named(text)}", len(label) + 1)

    def _wrapped(self, text: str, indent: int = 0) -> str:
        """Wrap at spaces to the width of a terminal; elsewhere a message is one line for `grep`."""
        if not self.speaks:
            return text
        try:
            width = int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size(sys.stderr.fileno()).columns
        except (OSError, ValueError):
            width = 0
        return _wrapped(text, width, indent)

    def _painted(self, word: str, style: str) -> str:
        return paint(word, style) if self.colored_messages else word

    def _named(self, text: str) -> str:
        return _named(text, colored=self.colored_messages)


def _named(text: str, *, colored: bool) -> str:
    """Escape a message, also line ends that are not its own, and colour the names in it."""
    text = escape(text, keep="\n" if isinstance(text, MessageLines) else "")
    return _NAMED.sub(lambda match: paint(match[0], "cyan"), text) if colored else text


def _wrapped(text: str, width: int, indent: int = 0) -> str:
    """Wrap a message at spaces; a width of 0 is unknown."""
    from kvctl.render.widths import wrapped

    return wrapped(text, max(width or 80, _NARROWEST), indent)
