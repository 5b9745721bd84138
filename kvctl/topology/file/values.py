"""Readers for the values of a document, with errors that name the place. [pure]"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from kvctl.documents.parser import Document
from kvctl.errors import UsageError
from kvctl.kv.names import check_bucket, check_filter
from kvctl.kv.settings import Republish
from kvctl.phrases import quoted
from kvctl.suggest import did_you_mean
from kvctl.units import parse_duration, parse_size

T = TypeVar("T")

Path = tuple[str | int, ...]
"""Path to a value: names and positions, from the root."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a file."""

    read: Callable[[Reader, Path], Any]
    """Read its value. Raises UsageError."""
    says: str
    """Description for people who write the file."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Limits of its values beyond their type, in terms of JSON Schema."""


class Reader:
    """Reader of the values of a document; its errors name the place."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def at(self, path: Path) -> Any:
        """Return the value at a path."""
        value = self._document.data
        for step in path:
            value = value[step]
        return value

    def mapping(self, path: Path, known: tuple[str, ...], what: str) -> dict[str, Any]:
        """Return the mapping at a path, with known keys only; empty for null."""
        value = self.at(path)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.fail(path, f"{what[:1].upper()}{what[1:]} must be a mapping")
        for name in value:
            if name not in known:
                self.unknown((*path, name), name, f"a field of {what}", known)
        return value

    def fields(self, path: Path, known: Mapping[str, Field], what: str) -> dict[str, Any]:
        """Read the fields at a path."""
        found = self.mapping(path, tuple(known), what)
        return {name: known[name].read(self, (*path, name)) for name in found}

    def text(self, path: Path) -> str:
        """Read a text or a number."""
        value = self.at(path)
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
            name = next(step for step in reversed(path) if isinstance(step, str))
            self.fail(path, f"`{name}` must be text")
        return str(value)

    def texts(self, path: Path) -> tuple[str, ...]:
        """Read a list of texts, or one."""
        if not isinstance(self.at(path), list):
            return (self.text(path),)
        return tuple(self.text((*path, number)) for number in range(len(self.at(path))))

    def bucket(self, path: Path) -> str:
        """Read the name of a bucket or a mirror."""
        return self.checked(path, lambda: check_bucket(self.text(path)))

    def filters(self, path: Path) -> tuple[str, ...]:
        """Read a list of key filters, or one."""
        if not isinstance(self.at(path), list):
            return (self._filter(path),)
        return tuple(self._filter((*path, number)) for number in range(len(self.at(path))))

    def text_map(self, path: Path) -> dict[str, str]:
        """Read a mapping of texts, which may be empty."""
        if not isinstance(self.at(path), dict):
            self.fail(path, f"`{path[-1]}` must be a mapping")
        return {name: "" if text == "" else self.text((*path, name)) for name, text in self.at(path).items()}

    def integer(self, path: Path) -> int:
        """Read an integer."""
        value = self.at(path)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(path, f"`{path[-1]}` must be an integer")
        return value

    def flag(self, path: Path) -> bool:
        """Read a boolean."""
        value = self.at(path)
        if not isinstance(value, bool):
            self.fail(path, f"`{path[-1]}` must be true or false")
        return value

    def duration(self, path: Path) -> timedelta:
        """Read a duration such as `30d`."""
        return self.checked(path, lambda: parse_duration(self.text(path)))

    def size(self, path: Path) -> int:
        """Read a size such as `10MiB`, or bytes."""
        return self.checked(path, lambda: parse_size(self.text(path)))

    def republish(self, path: Path) -> Republish:
        """Read SRC=DEST."""
        source, equals, destination = self.text(path).partition("=")
        if not equals or not source or not destination:
            self.fail(path, "`republish` must be `SRC=DEST`")
        return Republish(source, destination)

    def checked(self, path: Path, make: Callable[[], T]) -> T:
        """Return the result of `make`; its UsageError gets the place."""
        try:
            return make()
        except UsageError as error:
            self.fail(path, error.message, hint=error.hint)

    def unknown(self, path: Path, name: str, what: str, known: Any) -> NoReturn:
        """Fail for an unknown word, with a suggestion."""
        listed = f"Use one of {quoted(known)}" if known else "None are defined"
        self.fail(path, f"`{name}` is not {what}", hint=did_you_mean(name, known, otherwise=listed))

    def fail(self, path: Path, problem: str, hint: str | None = None) -> NoReturn:
        """Raise UsageError with the place."""
        trail = ".".join(str(step) for step in path)
        where = f"{self._document.where(*path)}: " + (f"{trail}: " if trail else "")
        raise UsageError(f"{where}{problem}", hint=hint)

    def _filter(self, path: Path) -> str:
        return self.checked(path, lambda: check_filter(self.text(path)))
