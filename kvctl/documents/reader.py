"""Reader of the values of a document, which reports all errors together, each with its place. [pure]"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from kvctl.documents.parser import Document, Path, Place, plain
from kvctl.documents.variables import SubstitutedText, hidden, texts
from kvctl.errors import UsageError
from kvctl.phrases import indented, one_line, quoted
from kvctl.suggest import did_you_mean
from kvctl.units import parse_duration, parse_limit

T = TypeVar("T")

OTHER_WORDS = dict(
    pair.split(":")
    for pair in (
        "context:in filter:keys filters:keys from:origin key:keys max_age:ttl max_bucket_size:max_bytes "
        "max_msg_size:max_value_size max_msgs_per_subject:history mirror:origin num_replicas:replicas "
        "origin:origins source:origin sources:origins transform:map"
    ).split()
)
"""Words of other tools and of other places -> the field that is meant, where there is one."""
MAX_REPORTED = 50
"""Errors of one document that are listed; more are counted."""


def read(document: Document, make: Callable[[Reader], T]) -> T:
    """Return what `make` reads. Raises UsageError with all errors of the document, in their order."""
    reader = Reader(document)
    results: list[T] = []
    with reader.collecting():
        results.append(make(reader))
    reader.finish()
    return results[0]


class Reader:
    """Reader of the values of a document. Its errors name line, column and field."""

    def __init__(self, document: Document) -> None:
        self._unreadable: set[Place] = set()
        """Places of variables without a value, at which no other errors are reported."""
        self._document = document
        self._problems: list[_Problem] = []
        for path, problem, hint in document.problems:
            with self.collecting():
                self.fail(path, problem, hint=hint or None)
        self._unreadable = {problem.place for problem in self._problems}

    # -- values ----------------------------------------------------------------------------------------------

    def at(self, path: Path) -> Any:
        """Return the value at a path."""
        value = self._document.data
        for step in path:
            value = value[step]
        return value

    def mapping(self, path: Path, what: str) -> dict[str, Any]:
        """Return the mapping at a path; empty for null."""
        value = self.at(path)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.fail(path, f"{what[:1].upper()}{what[1:]} must be a mapping", hint=_quoted(value))
        return value

    def items(self, path: Path) -> list[Path]:
        """Return the paths of the items of a list."""
        value = self.at(path)
        if not isinstance(value, list):
            self.fail(path, f"{_called(path)} must be a list")
        return [(*path, number) for number in range(len(value))]

    def text(self, path: Path) -> str:
        """Read a text or a number."""
        value = self.at(path)
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
            self.fail(path, f"{_called(path)} must be text", hint=_quoted(value))
        return str(value)

    def exact_text(self, path: Path) -> str:
        """Read a text that may be empty; a number must be quoted, as it could have been written in several ways."""
        value = self.at(path)
        if not isinstance(value, str):
            self.fail(path, f"{_called(path)} must be text, not {_kind(value)}", hint=_quoted(value))
        return str(value)

    def integer(self, path: Path) -> int:
        """Read an integer."""
        value = self._typed(path)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(path, f"{_called(path)} must be an integer")
        return value

    def flag(self, path: Path) -> bool:
        """Read a boolean."""
        value = self._typed(path)
        if not isinstance(value, bool):
            self.fail(path, f"{_called(path)} must be true or false")
        return value

    def duration(self, path: Path) -> timedelta:
        """Read a duration such as `30d`."""
        return self.checked(path, lambda: parse_duration(self.text(path)))

    def limit(self, path: Path) -> int:
        """Read a limit of size such as `10MiB`, bytes, or `none`."""
        return self.checked(path, lambda: parse_limit(self.text(path)))

    def word(self, path: Path, words: Collection[str]) -> str:
        """Read one of these words."""
        text = self.text(path)
        if text not in words:
            self.unknown(path, text, f"a value of `{path[-1]}`", words)
        return text

    def decoded(self, path: Path, text: str, encoding: str) -> bytes:
        """Return the bytes of a text that is UTF-8 or base64."""
        try:
            return base64.b64decode(text, validate=True) if encoding == "base64" else text.encode()
        except ValueError:
            self.fail(path, f"{_called(path)} is not valid {'base64' if encoding == 'base64' else 'UTF-8'}")

    def _typed(self, path: Path) -> Any:
        """Return the value at a path; the text of a variable means what it would mean unquoted."""
        value = self.at(path)
        return plain(value) if isinstance(value, SubstitutedText) else value

    def where(self, path: Path) -> str:
        """Return file, line and column of a value."""
        return self._document.where(*path)

    # -- errors ----------------------------------------------------------------------------------------------

    def each(self, parts: Iterable[T], read: Callable[[T], Any]) -> list[Any]:
        """Read all parts, and report the errors of all. Raises if there are any."""
        before, found = len(self._problems), []
        for part in parts:
            with self.collecting():
                found.append(read(part))
        if len(self._problems) > before:
            raise _Recorded
        return found

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Record an error, and go on after it."""
        try:
            yield
        except _Recorded:
            pass
        except _Problem as problem:
            if problem.place not in self._unreadable:
                self._problems.append(problem)

    def finish(self) -> None:
        """Raise UsageError if errors were recorded."""
        found = sorted(dict.fromkeys(self._problems), key=lambda problem: problem.place)
        if len(found) == 1:
            raise UsageError(found[0].message, hint=found[0].hint)
        if found:
            hints = {problem.hint: number for number, problem in reversed([*enumerate(found)])}
            listed = [
                f"{problem.message}{f'. {problem.hint}' if problem.hint and hints[problem.hint] == number else ''}"
                for number, problem in enumerate(found)
            ]
            more = [f"and {len(found) - MAX_REPORTED} more"] if len(found) > MAX_REPORTED else []
            raise UsageError(
                indented(f"{self._document.source} has {len(found)} errors:", [*listed[:MAX_REPORTED], *more])
            )

    def checked(self, path: Path, make: Callable[[], T]) -> T:
        """Return the result of `make`; its UsageError gets the place."""
        try:
            return make()
        except (_Problem, _Recorded):
            raise
        except UsageError as error:
            self.fail(path, error.message, hint=error.hint)

    def unknown(self, path: Path, name: str, what: str, known: Collection[str]) -> NoReturn:
        """Fail for an unknown word, with a suggestion."""
        listed = f"Use one of {quoted(known)}" if known else "None are defined"
        other = OTHER_WORDS.get(name, name)
        hint = did_you_mean(other if other in known else name, known, otherwise=listed)
        self.fail(path, f"`{name}` is not {what}", hint=hint)

    def fail(self, path: Path, problem: str, hint: str | None = None) -> NoReturn:
        """Raise UsageError with the place; values of variables are replaced by the variables."""
        self._document = self._document.located()
        secret = [*(step for step in path if isinstance(step, SubstitutedText)), *self._substituted(path)]
        trail = "".join(map(_step, path)).removeprefix(".")
        text = f"{trail}: {hidden(problem, secret)}" if trail else problem
        place = self._document.place(*path) or (0, 0)
        message = f"{self._document.where(*path)}: {text}"
        raise _Problem(one_line(message), hint and one_line(hidden(hint, secret)), place)

    def _substituted(self, path: Path) -> list[SubstitutedText]:
        """Return the texts from variables at a path, and below it."""
        with suppress(LookupError, TypeError):
            return [text for _, text in texts(self.at(path))]
        return []


class _Problem(UsageError):
    """One error of a document."""

    def __init__(self, message: str, hint: str | None, place: Place) -> None:
        super().__init__(message, hint=hint)
        self.place = place

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Problem) and (self.message, self.place) == (other.message, other.place)

    def __hash__(self) -> int:
        return hash((self.message, self.place))


class _Recorded(UsageError):
    """Signal that errors were recorded, and nothing can be made of what was read."""

    def __init__(self) -> None:
        super().__init__("")


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step.source if isinstance(step, SubstitutedText) else step}"


def _called(path: Path) -> str:
    """Return the name of the nearest field around a value."""
    return next((f"`{step}`" for step in reversed(path) if isinstance(step, str)), "This")


def _kind(value: object) -> str:
    if value is None:
        return "empty"
    names = {bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "a mapping"}
    return names.get(type(value), "text")


def _quoted(value: object) -> str | None:
    if isinstance(value, bool):
        return f'Quote it: `"{str(value).lower()}"`'
    return f'Quote it: `"{value}"`' if isinstance(value, int | float) else None
