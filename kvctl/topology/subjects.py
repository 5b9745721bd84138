"""Subject transforms: render what people ask for, parse what a stream has, apply them to predict where keys land.

A transform takes subjects that match `src`, whose wildcards are numbered from 1, to `dest`, where `{{wildcard(n)}}`
stands for what the n-th `*` matched and a last `>` for what `>` did. People write `$1` for `{{wildcard(1)}}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvctl.errors import UsageError
from kvctl.kv.names import SUBJECT_PREFIX, check_filter

_PLACE = re.compile(r"\$(\d+)\Z|\{\{\s*[wW]ildcard\(\s*(\d+)\s*\)\s*\}\}\Z")
_LITERAL = re.compile(r"[-/_=a-zA-Z0-9]+\Z")


class UnknownTransform(UsageError):
    """A destination that uses functions other than wildcard(): its results cannot be predicted here."""


@dataclass(frozen=True, slots=True)
class Transform:
    """One rule of a source or mirror, on whole subjects as streams hold them."""

    src: str
    dest: str

    def apply(self, subject: str) -> str | None:
        """Where the subject lands; None when the rule does not match it. Raises UnknownTransform."""
        found = capture(self.src, subject)
        if found is None:
            return None
        wild, rest = found
        if not self.dest:
            return subject
        landed = []
        for token in self.dest.split("."):
            number = wildcard_number(token)
            if number is not None:
                landed.append(wild[number - 1])
            elif token == ">":
                landed.append(rest or "")
            else:
                landed.append(token)
        return ".".join(landed)

    @property
    def dropped(self) -> tuple[int, ...]:
        """The numbers of the wildcards of `src` that do not show in `dest`: keys that differ only there become one."""
        count = self.src.split(".").count("*")
        if not self.dest:
            return ()
        used = {number for token in self.dest.split(".") if (number := wildcard_number(token)) is not None}
        lost = tuple(number for number in range(1, count + 1) if number not in used)
        return (*lost, count + 1) if self.src.endswith(">") and not self.dest.endswith(">") else lost

    def covers(self, subjects: str) -> bool:
        """Whether it takes every subject of the filter."""
        wide, narrow = self.src.split("."), subjects.split(".")
        for at, part in enumerate(wide):
            if part == ">":
                return len(narrow) > at
            if at >= len(narrow) or narrow[at] == ">" or (part != "*" and part != narrow[at]):
                return False
        return len(wide) == len(narrow)

    @property
    def pattern(self) -> str:
        """The subjects it can produce, as a filter: every place a `*`."""
        return pattern_of(self.dest or self.src)

    def to_json(self) -> dict[str, str]:
        """As a stream's configuration has it."""
        return {"src": self.src, "dest": self.dest}


def capture(pattern: str, subject: str) -> tuple[list[str], str | None] | None:
    """What each `*` and the last `>` of the pattern match; None when the subject does not match."""
    wild: list[str] = []
    tokens = subject.split(".")
    parts = pattern.split(".")
    for at, part in enumerate(parts):
        if part == ">" and at == len(parts) - 1:
            return (wild, ".".join(tokens[at:])) if len(tokens) > at else None
        if at >= len(tokens):
            return None
        if part == "*":
            wild.append(tokens[at])
        elif part != tokens[at]:
            return None
    return (wild, None) if len(tokens) == len(parts) else None


def render(
    origin: str, target: str, keys: Sequence[str] = (), prefix: str = "", maps: Iterable[tuple[str, str]] = ()
) -> list[Transform]:
    """The transforms that bring an origin bucket's keys into the target bucket.

    Each filter in `keys` loses its literal head (`NEW.>` lands as `>`, `a.*.c` as `*.c`; a filter without wildcards
    keeps its name), then gains `prefix`. `maps` say both sides themselves. Without either all keys land as they are, or
    below the prefix. Raises UsageError.
    """
    rules = [(_checked_map(src, dest)) for src, dest in maps]
    rules += [(check_filter(text), default_dest(text)) for text in keys]
    if not rules:
        rules = [(">", ">")]
    head = f"{prefix}." if prefix else ""
    for token in prefix.split(".") if prefix else ():
        if not _LITERAL.match(token):
            raise UsageError(
                f"`{prefix}` is not a prefix", hint="A prefix is a key's beginning: parts joined by single dots"
            )
    return [
        Transform(f"{SUBJECT_PREFIX}{origin}.{src}", f"{SUBJECT_PREFIX}{target}.{head}{places(dest)}")
        for src, dest in rules
    ]


def parse(found: Iterable[dict[str, str]]) -> list[Transform]:
    """The transforms of a live source or mirror."""
    return [Transform(rule.get("src") or ">", rule.get("dest") or "") for rule in found]


def land(transforms: Sequence[Transform], subject: str) -> str | None:
    """Where a subject lands under a source's transforms: the first that matches; None when none does.

    A source without transforms leaves the subject as it is.
    """
    if not transforms:
        return subject
    for transform in transforms:
        if (landed := transform.apply(subject)) is not None:
            return landed
    return None


def pattern_of(dest: str) -> str:
    """A destination as a filter: every place a `*`. Raises UnknownTransform."""
    return ".".join("*" if wildcard_number(token) is not None else token for token in dest.split("."))


def meet(first: str, second: str) -> bool:
    """Whether some subject matches both filters."""
    ones, others = first.split("."), second.split(".")
    for one, other in zip(ones, others, strict=False):
        if ">" in (one, other):
            return True
        if one != other and "*" not in (one, other):
            return False
    return len(ones) == len(others)


def default_dest(text: str) -> str:
    """Where a filter's keys land without a map: what follows its literal head (COMMANDS.md, `aggregate create`)."""
    tokens = text.split(".")
    wild = [at for at, token in enumerate(tokens) if token in ("*", ">")]
    if not wild:
        return text
    kept = tokens[wild[0] :]
    number = 0
    for at, token in enumerate(kept):
        if token == "*":
            number += 1
            kept[at] = f"${number}"
    return ".".join(kept)


def places(dest: str) -> str:
    """A destination with `$1` as servers have it: `{{wildcard(1)}}`."""
    return ".".join(
        token if (number := wildcard_number(token)) is None else f"{{{{wildcard({number})}}}}"
        for token in dest.split(".")
    )


def wildcard_number(token: str) -> int | None:
    """Which wildcard the token of a destination stands for; None for literal text. Raises UnknownTransform."""
    found = _PLACE.match(token)
    if found:
        return int(found[1] or found[2])
    if "{{" in token or (token.startswith("$") and token[1:].isdigit()):
        raise UnknownTransform(f"`{token}` is a transform function that kvctl does not know")
    return None


def _checked_map(src: str, dest: str) -> tuple[str, str]:
    check_filter(src)
    count = src.split(".").count("*")
    tokens = dest.split(".")
    for at, token in enumerate(tokens):
        number = wildcard_number(token) if token.startswith(("$", "{")) else None
        if number is not None and not 1 <= number <= count:
            raise UsageError(
                f"`{dest}` names wildcard {number}, `{src}` has {count}", hint="Wildcards count from 1: `$1`"
            )
        last = at == len(tokens) - 1 and token == ">" and src.endswith(">")
        if number is None and not last and not _LITERAL.match(token):
            raise UsageError(
                f"`{token}` cannot stand in the destination `{dest}`",
                hint="It has literal parts, `$1`, `$2` ... for the wildcards, and `>` at the end if the source has it",
            )
    return src, dest
