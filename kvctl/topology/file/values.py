"""Values of a document, taken one by one, with complaints that say where. [pure]"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

from kvctl.documents.parser import Document
from kvctl.errors import UsageError
from kvctl.kv.config_edit import Republish
from kvctl.kv.names import check_bucket, check_filter
from kvctl.units import parse_duration, parse_size

T = TypeVar("T")

Path = tuple[str | int, ...]
"""The way to a value: names and positions, from the root."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a file."""

    read: Callable[[Reader, Path], Any]
    """Takes its value. Raises UsageError."""
    says: str
    """What it says, for people who write it."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """In the words of JSON Schema, what its values are beyond being of their type."""


class Reader:
    """Takes values from a document, and says where they are wrong."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def at(self, path: Path) -> Any:
        """The value at a path."""
        value = self._document.data
        for step in path:
            value = value[step]
        return value

    def mapping(self, path: Path, known: tuple[str, ...], what: str) -> dict[str, Any]:
        """The mapping at a path, whose keys are all known; nothing at all is an empty one."""
        value = self.at(path)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.fail(path, f"{what[:1].upper()}{what[1:]} is a mapping")
        for name in value:
            if name not in known:
                self.unknown((*path, name), name, f"a field of {what}", known)
        return value

    def fields(self, path: Path, known: Mapping[str, Field], what: str) -> dict[str, Any]:
        """The fields at a path, read."""
        found = self.mapping(path, tuple(known), what)
        return {name: known[name].read(self, (*path, name)) for name in found}

    def text(self, path: Path) -> str:
        """Text; a number will do."""
        value = self.at(path)
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
            name = next(step for step in reversed(path) if isinstance(step, str))
            self.fail(path, f"`{name}` is text")
        return str(value)

    def texts(self, path: Path) -> tuple[str, ...]:
        """A list of texts, or one."""
        if not isinstance(self.at(path), list):
            return (self.text(path),)
        return tuple(self.text((*path, number)) for number in range(len(self.at(path))))

    def bucket(self, path: Path) -> str:
        """The name of a bucket, or of a mirror."""
        return self.checked(path, lambda: check_bucket(self.text(path)))

    def filters(self, path: Path) -> tuple[str, ...]:
        """A list of key filters, or one."""
        if not isinstance(self.at(path), list):
            return (self._filter(path),)
        return tuple(self._filter((*path, number)) for number in range(len(self.at(path))))

    def text_map(self, path: Path) -> dict[str, str]:
        """A mapping of texts, which may be empty ones."""
        if not isinstance(self.at(path), dict):
            self.fail(path, f"`{path[-1]}` is a mapping")
        return {name: "" if text == "" else self.text((*path, name)) for name, text in self.at(path).items()}

    def integer(self, path: Path) -> int:
        """A whole number."""
        value = self.at(path)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(path, f"`{path[-1]}` is a whole number")
        return value

    def flag(self, path: Path) -> bool:
        """Yes or no."""
        value = self.at(path)
        if not isinstance(value, bool):
            self.fail(path, f"`{path[-1]}` is true or false")
        return value

    def duration(self, path: Path) -> timedelta:
        """A duration as `30d`."""
        return self.checked(path, lambda: parse_duration(self.text(path)))

    def size(self, path: Path) -> int:
        """A size as `10MiB`, or bytes."""
        return self.checked(path, lambda: parse_size(self.text(path)))

    def republish(self, path: Path) -> Republish:
        """SRC=DEST."""
        source, equals, destination = self.text(path).partition("=")
        if not equals or not source or not destination:
            self.fail(path, "`republish` is `SRC=DEST`")
        return Republish(source, destination)

    def checked(self, path: Path, make: Callable[[], T]) -> T:
        """What `make` gives, its complaint with the place where it belongs."""
        try:
            return make()
        except UsageError as error:
            self.fail(path, error.message, hint=error.hint)

    def unknown(self, path: Path, name: str, what: str, known: Any) -> NoReturn:
        """A word that means nothing here."""
        near = get_close_matches(name, list(known), n=1)
        all_of_them = ", ".join(f"`{item}`" for item in known)
        hint = f"One of {all_of_them}" if known else "There are none"
        if near:
            hint = f"Did you mean `{near[0]}`?"
        self.fail(path, f"`{name}` is not {what}", hint=hint)

    def fail(self, path: Path, problem: str, hint: str | None = None) -> NoReturn:
        """Raises UsageError that says where."""
        trail = ".".join(str(step) for step in path)
        where = f"{self._document.where(*path)}: " + (f"{trail}: " if trail else "")
        raise UsageError(f"{where}{problem}", hint=hint)

    def _filter(self, path: Path) -> str:
        return self.checked(path, lambda: check_filter(self.text(path)))
