"""Changes to the entries of a table, and the versions in their conditions. [pure]"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from kvctl.errors import UsageError

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_TEXT = re.compile(r"([1-9a-z][0-9a-z]{0,11})\.(0|[1-9]\d{0,4})\.(0|[1-9]\d{0,18})\Z")


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


@dataclass(frozen=True, slots=True)
class Put:
    """Write an entry unconditionally, or only if it has this version."""

    key: bytes
    value: bytes
    version: Version = NO_VERSION
    family: str | None = None


@dataclass(frozen=True, slots=True)
class Insert:
    """Write an entry that does not exist."""

    key: bytes
    value: bytes
    family: str | None = None

    @property
    def version(self) -> Version:
        """The condition that the entry does not exist."""
        return NOT_EXISTS


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove an entry unconditionally, only if it has this version, or (NOT_EXISTS) only if it does not exist."""

    key: bytes
    version: Version = NO_VERSION
    family: str | None = None


Change = Put | Insert | Remove


def named(family: str | None, key: bytes) -> str:
    """Return a key as shown in messages."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = f"hex:{key.hex()}"
    return f"`{text}`" if family is None else f"`{text}` of family `{family}`"


def base36(number: int) -> str:
    """Return a positive number in digits and lower-case letters."""
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text
