"""Entries of a table, changes to them, versions in their conditions, and errors that name every conflict. [pure]"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from kvctl.deferred import pattern
from kvctl.errors import BadKeyVersion, ConditionalUpdateError, NoSuchKey, OutcomeUnknown, UsageError
from kvctl.phrases import lines

K = TypeVar("K")
V = TypeVar("V")

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_TEXT = pattern(r"([1-9a-z][0-9a-z]{0,11})\.(0|[1-9]\d{0,4})\.(0|[1-9]\d{0,18})\Z")


class Version(NamedTuple):
    """An opaque state of one entry: it changes with every write, and stays valid until the entry is written.

    Bound to one instance of the table and to the entry's partition: a recreated or restored table accepts none of the
    earlier versions. `str` and `parse` convert it to text and back.
    """

    life: int
    partition: int
    number: int

    def __str__(self) -> str:
        return _SPECIAL_TEXTS.get(self) or f"{base36(self.life)}.{self.partition}.{self.number}"

    @property
    def special(self) -> bool:
        """True if it is NO_VERSION or NOT_EXISTS."""
        return self.life == 0

    @classmethod
    def parse(cls, text: str) -> Version:
        """Return the version of a text form. Raises UsageError."""
        if text in _SPECIAL:
            return _SPECIAL[text]
        if not (found := _TEXT.match(text)):
            raise UsageError(
                f"`{text}` is not a version", hint="Use a version that `kvctl table get -o json` or a write returned"
            )
        return cls(int(found[1], 36), int(found[2]), int(found[3]))


NO_VERSION = Version(0, 0, -1)
"""No condition."""
NOT_EXISTS = Version(0, 0, -2)
"""The condition that the entry does not exist."""

_SPECIAL = {"no-version": NO_VERSION, "not-exists": NOT_EXISTS}
_SPECIAL_TEXTS = {version: text for text, version in _SPECIAL.items()}


class TableEntry(NamedTuple, Generic[K, V]):
    """A key, its value (empty if only keys were asked for), and the version at which it was read."""

    key: K
    value: V
    version: Version
    family: str | None = None


@dataclass(frozen=True, slots=True)
class Put(Generic[K, V]):
    """Write an entry unconditionally, or only if it has this version."""

    key: K
    value: V
    version: Version = NO_VERSION
    family: str | None = None


@dataclass(frozen=True, slots=True)
class Insert(Generic[K, V]):
    """Write an entry that does not exist."""

    key: K
    value: V
    family: str | None = None

    @property
    def version(self) -> Version:
        """The condition that the entry does not exist."""
        return NOT_EXISTS


@dataclass(frozen=True, slots=True)
class Remove(Generic[K]):
    """Remove an entry unconditionally, only if it has this version, or (NOT_EXISTS) only if it does not exist."""

    key: K
    version: Version = NO_VERSION
    family: str | None = None


TypedChange = Put[K, V] | Insert[K, V] | Remove[K]
Change = TypedChange[bytes, bytes]
Entry = TableEntry[bytes, bytes]


def named(family: str | None, key: bytes) -> str:
    """Return a key as shown in messages."""
    text = _text(key)
    return f"`{text}`" if family is None else f"`{text}` of family `{family}`"


def reading(table: str, family: str | None, key: bytes) -> str:
    """Return the command line that shows an entry with its version."""
    options = ["-o", "json"] if family is None else ["--family", family, "-o", "json"]
    return shlex.join(["kvctl", "table", "get", table, _text(key), *options])


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return f"hex:{key.hex()}"


def base36(number: int) -> str:
    """Return a positive number in digits and lower-case letters."""
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text


def refusal(
    table: str, changes: Iterable[tuple[str, Change]], found: Mapping[str, Entry | None]
) -> ConditionalUpdateError:
    """Return the error for changes of a table, each with its place, whose conditions fail for the entries found there.

    Places that are missing in `found` are not checked.
    """
    failed: list[tuple[str | None, bytes, str | None]] = []
    problems: list[str] = []
    for place, change in changes:
        if place in found and (problem := _problem(change, there := found[place])):
            failed.append((change.family, change.key, str(there.version) if there else None))
            problems.append(f"{named(change.family, change.key)} {problem}")
    kind = BadKeyVersion if any(version for *_, version in failed) or not failed else NoSuchKey
    message = lines(*problems) or "An entry was changed concurrently, and changed back"
    seen = f"; see its version with `{reading(table, *failed[0][:2])}`" if failed else ""
    return kind(message, failed=tuple(failed), hint=f"Nothing was written{seen}")


def unknown(table: str, family: str | None, key: bytes) -> OutcomeUnknown:
    """Return the error for a write whose acknowledgement was lost and could not be resolved."""
    return OutcomeUnknown(
        f"The outcome of the write to {named(family, key)} is unknown",
        hint=f"Check the entry with `{reading(table, family, key)}`",
    )


def _problem(change: Change, there: Entry | None) -> str | None:
    """Return why a change's condition fails; None if it holds."""
    if change.version == NO_VERSION or (change.version == NOT_EXISTS and there is None):
        return None
    if there is None:
        return f"is not at version {change.version}: it does not exist"
    if change.version == NOT_EXISTS:
        return f"exists at version {there.version}"
    return None if there.version == change.version else f"is at version {there.version}, not {change.version}"
