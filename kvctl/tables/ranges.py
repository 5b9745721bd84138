"""Ranges of a table for scans, and tokens that resume a scan after its last page. [pure]"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Any, NamedTuple

from kvctl.errors import UsageError
from kvctl.tables.keys import within_family
from kvctl.tokens import token


class Families(Enum):
    """Special value in place of one family."""

    ALL = "all"


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of one family (None: without a family) or of all, with a key prefix or between bounds.

    Bounds are inclusive and compared as unsigned bytes. Families are in the order of their bytes, after entries without
    one.
    """

    family: str | Families | None = Families.ALL
    _: KW_ONLY
    prefix: bytes = b""
    start: bytes | None = None
    end: bytes | None = None

    @property
    def tokens(self) -> str:
        """Family and key in the subjects of the range, with wildcards."""
        return "*.*" if isinstance(self.family, Families) else f"{within_family(self.family)}.*"

    @property
    def complete(self) -> bool:
        """True if the range contains every key of its families."""
        return not self.prefix and self.start is None and self.end is None

    @property
    def bounds(self) -> Bounds:
        """Bounds of the key tokens in the range."""
        following = _following(self.prefix)
        return Bounds(
            max(token(self.prefix), token(self.start or b"")),
            None if self.end is None else token(self.end),
            None if following is None else token(following),
        )


class Bounds(NamedTuple):
    """Lowest key token of a range, the highest, and the first one above its prefix: tokens sort as keys do."""

    low: bytes
    high: bytes | None
    top: bytes | None

    def take(self, key: bytes) -> bool:
        """Return whether a key token is in the range."""
        low, high, top = self
        return low <= key and (high is None or key <= high) and (top is None or key < top)


def continuation(table: str, life: int, of: Range, last: bytes) -> str:
    """Return the token that resumes a scan after the entry whose family and key tokens are `last`."""
    content = json.dumps([1, table, life, _described(of), last.decode()], separators=(",", ":"))
    return urlsafe_b64encode(content.encode()).rstrip(b"=").decode()


def resume(text: str, table: str, life: int, of: Range) -> bytes:
    """Return the tokens of the last entry of a page. Raises UsageError for an invalid token, or one of another scan."""
    try:
        version, *about, last = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        tokens = last.encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        version, about, tokens = 0, [], b""
    if version != 1 or len(about) != len(_ABOUT):
        raise UsageError(f"`{text}` is not a continuation token", hint="Use the token that a limited listing printed")
    for found, wanted, what in zip(about, (table, life, _described(of)), _ABOUT, strict=True):
        if found != wanted:
            raise UsageError(f"The continuation token belongs to another {what}", hint="Start over without a token")
    return bytes(tokens)


_ABOUT = (
    "table",
    "instance of the table: it was deleted and recreated",
    "range: family, prefix and bounds must not change",
)


def _described(of: Range) -> list[Any]:
    family = of.family.value if isinstance(of.family, Families) else [of.family]
    return [family, *(None if bound is None else bound.hex() for bound in (of.prefix, of.start, of.end))]


def _following(prefix: bytes) -> bytes | None:
    """Return the first key above all those that begin with the prefix; None if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
