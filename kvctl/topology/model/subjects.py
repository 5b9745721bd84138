"""Subject transforms: rendered from options, parsed from stream configurations, and applied in both directions. [pure]

A transform maps subjects that match `src`, with wildcards numbered from 1, to `dest`, where `{{wildcard(n)}}` stands
for the match of the n-th `*` and a last `>` for the match of `>`. People write `$1` for `{{wildcard(1)}}`. Mappings
work on subjects as bytes off the wire.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from kvctl.errors import UsageError
from kvctl.jetstream.stream_info import Source
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX, check_filter, is_wild

_PLACE = re.compile(r"\$(\d+)\Z|\{\{\s*[wW]ildcard\(\s*(\d+)\s*\)\s*\}\}\Z")
LITERAL = re.compile(r"[-/_=a-zA-Z0-9]+\Z")
"""Token of a prefix or a destination that stands for itself."""


class UnknownTransform(UsageError):
    """A destination with functions other than wildcard(): its results cannot be predicted here."""


class Transform(NamedTuple):
    """One rule of a source or mirror, on complete subjects as streams hold them."""

    src: str
    dest: str

    def apply(self, subject: str) -> str | None:
        """Return where the subject lands; None if the rule does not match it. Raises UnknownTransform."""
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
        """Numbers of the wildcards of `src` that `dest` leaves out: keys that differ only there become one."""
        count = self.src.split(".").count("*")
        if not self.dest:
            return ()
        used = {number for token in self.dest.split(".") if (number := wildcard_number(token)) is not None}
        lost = tuple(number for number in range(1, count + 1) if number not in used)
        return (*lost, count + 1) if self.src.endswith(">") and not self.dest.endswith(">") else lost

    def covers(self, subjects: str) -> bool:
        """Return whether the rule matches every subject of the filter."""
        wide, narrow = self.src.split("."), subjects.split(".")
        for at, part in enumerate(wide):
            if part == ">":
                return len(narrow) > at
            if at >= len(narrow) or narrow[at] == ">" or (part != "*" and part != narrow[at]):
                return False
        return len(wide) == len(narrow)

    @property
    def pattern(self) -> str:
        """The subjects that the rule can produce, as a filter: `*` for every wildcard."""
        return pattern_of(self.dest or self.src)

    def to_json(self) -> dict[str, str]:
        """Return the rule as in a stream configuration."""
        return {"src": self.src, "dest": self.dest}


def capture(pattern: str, subject: str) -> tuple[list[str], str | None] | None:
    """Return the matches of each `*` and of the last `>` of the pattern; None if the subject does not match."""
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
    """Return the transforms that map an origin bucket's keys into the target bucket.

    Each filter in `keys` loses its literal head (`NEW.>` lands as `>`, `a.*.c` as `*.c`; a filter without wildcards
    keeps its name), then gains `prefix`. `maps` give source and destination. Without either all keys keep their names,
    below the prefix if there is one. Raises UsageError.
    """
    rules = [(_checked_map(src, dest)) for src, dest in maps]
    rules += [(check_filter(text), default_dest(text)) for text in keys]
    if not rules:
        rules = [(">", ">")]
    head = f"{prefix}." if prefix else ""
    for token in prefix.split(".") if prefix else ():
        if not LITERAL.match(token):
            raise UsageError(
                f"`{prefix}` is not a prefix", hint="A prefix is one or more key tokens joined by single dots"
            )
    return [
        Transform(f"{SUBJECT_PREFIX}{origin}.{src}", f"{SUBJECT_PREFIX}{target}.{head}{places(dest)}")
        for src, dest in rules
    ]


def parse(found: Iterable[dict[str, str]]) -> list[Transform]:
    """Return the transforms of a live source or mirror."""
    return [Transform(rule.get("src") or ">", rule.get("dest") or "") for rule in found]


def land(transforms: Sequence[Transform], subject: str) -> str | None:
    """Return where a subject lands under a source's transforms, by the first that matches; None if none does.

    A source without transforms keeps the subject.
    """
    if not transforms:
        return subject
    for transform in transforms:
        if (landed := transform.apply(subject)) is not None:
            return landed
    return None


def pattern_of(dest: str) -> str:
    """Return a destination as a filter, `*` for every wildcard. Raises UnknownTransform."""
    return ".".join("*" if wildcard_number(token) is not None else token for token in dest.split("."))


def default_dest(text: str) -> str:
    """Return the destination of a filter without a map: everything after its literal head."""
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


def plain_dest(text: str) -> str:
    """Return a filter as the destination under which its subjects keep their names."""
    numbers = count(1)
    return ".".join(f"${next(numbers)}" if token == "*" else token for token in text.split("."))


def places(dest: str) -> str:
    """Return a destination with `$1` as servers write it: `{{wildcard(1)}}`."""
    return ".".join(
        token if (number := wildcard_number(token)) is None else f"{{{{wildcard({number})}}}}"
        for token in dest.split(".")
    )


def wildcard_number(token: str) -> int | None:
    """Return the number of the wildcard that a token of a destination stands for; None for literal text.

    Raises UnknownTransform.
    """
    found = _PLACE.match(token)
    if found:
        return int((found[1] or found[2]).lstrip("0")[:9] or 0)  # no subject has as many wildcards
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
                f"`{dest}` uses wildcard {number}, but `{src}` has {count}", hint="Wildcards are numbered from 1: `$1`"
            )
        last = at == len(tokens) - 1 and token == ">" and src.endswith(">")
        if number is None and not last and not LITERAL.match(token):
            raise UsageError(
                f"`{token}` is not valid in the destination `{dest}`",
                hint="Use literal tokens, `$1`, `$2` ... for the wildcards, and `>` at the end if the source has it",
            )
    return src, dest


Lander = Callable[[bytes], bytes | None]


class KeyMapping:
    """The rules of one source, in both directions. Raises UnknownTransform for functions that cannot be predicted."""

    def __init__(self, rules: Sequence[Transform]) -> None:
        self.rules = tuple(rules)
        for rule in rules:
            _ = rule.pattern  # raises for what is unknown
        self.lossy = any(rule.dropped for rule in rules)
        """True if several subjects can land in one place."""
        landers = [_lander(rule) for rule in rules]
        self.land: Lander = landers[0] if len(landers) == 1 else _first(landers)
        """Function from a subject to where it lands; None for one that is not replicated."""

    @classmethod
    def of(cls, source: dict[str, Any]) -> KeyMapping:
        """Return the mapping of a source or a mirror, as a stream's configuration has it."""
        rules = parse(source.get("subject_transforms") or ())
        return cls(rules or [Transform(source.get("filter_subject") or ">", "")])

    @property
    def taken(self) -> tuple[str, ...]:
        """The subjects that are replicated, as filters."""
        return tuple(rule.src for rule in self.rules)

    def origin(self, landed: str) -> str | None:
        """Return the subject that lands there; None if none does, or if it cannot be determined."""
        for rule in self.rules:
            subject = _source_of(rule, landed)
            if subject is not None and self._sends(subject, landed):
                return subject
        return None

    def origins(self, landed: str) -> list[str]:
        """Return the subjects that may land at a subject or a filter, as filters where several do."""
        found = [subject for rule in self.rules if (subject := _sources_of(rule, landed)) is not None]
        return [subject for subject in found if is_wild(subject) or is_wild(landed) or self._sends(subject, landed)]

    def _sends(self, subject: str, landed: str) -> bool:
        return self.land(_bytes(subject)) == _bytes(landed)


def written_at(aggregate: Mapping[str, Any], key: str) -> list[tuple[Source, str]]:
    """Return the sources of an aggregate whose keys can land at this key, each with their subject there, or a filter.

    Raises UnknownTransform.
    """
    subject = f"{SUBJECT_PREFIX}{aggregate['name'].removeprefix(STREAM_PREFIX)}.{key}"
    sources = aggregate.get("sources") or []
    return [(Source.parse(item), origin) for item in sources for origin in KeyMapping.of(item).origins(subject)]


def _sources_of(rule: Transform, landed: str) -> str | None:
    """Return all subjects that the rule may send to a place, as one filter; None if it sends none there."""
    dest, tokens = (rule.dest or plain_dest(rule.src)).split("."), landed.split(".")
    wild: dict[int, str] = {}
    rest = [">"]
    for at, token in enumerate(dest):
        if at >= len(tokens):
            return None
        if tokens[at] == ">":  # anything may follow
            break
        if token == ">":
            rest = tokens[at:]
            break
        number = wildcard_number(token)
        if tokens[at] == "*":
            continue
        if (token if number is None else wild.setdefault(number, tokens[at])) != tokens[at]:
            return None
    else:
        if len(tokens) != len(dest):
            return None
    stars = count(1)
    return ".".join(
        wild.get(next(stars), "*") if token == "*" else ".".join(rest) if token == ">" else token
        for token in rule.src.split(".")
    )


def _source_of(rule: Transform, landed: str) -> str | None:
    if not rule.dest:
        return landed if capture(rule.src, landed) is not None else None
    numbers = [number for token in rule.dest.split(".") if (number := wildcard_number(token)) is not None]
    found = capture(rule.pattern, landed)
    if found is None or rule.dropped:
        return None
    wild, rest = dict(zip(numbers, found[0], strict=True)), found[1]
    tokens, number = [], 0
    for token in rule.src.split("."):
        number += token == "*"
        tokens.append(wild[number] if token == "*" else (rest or "") if token == ">" else token)
    return ".".join(tokens)


def _lander(rule: Transform) -> Lander:
    """Return a function that does what `rule.apply` does; it only replaces a prefix where that is enough."""
    if "*" in rule.src or not rule.src.endswith(">") or not (rule.dest or ">").endswith(">"):
        return _general(rule)
    head, to = rule.src[:-1].encode(), (rule.dest or rule.src)[:-1].encode()
    cut = len(head)
    if head == to:
        return lambda subject: subject if subject.startswith(head) else None
    return lambda subject: to + subject[cut:] if subject.startswith(head) else None


def _general(rule: Transform) -> Lander:
    def land(subject: bytes) -> bytes | None:
        landed = rule.apply(subject.decode("utf-8", "surrogateescape"))
        return None if landed is None else _bytes(landed)

    return land


def _first(landers: Sequence[Lander]) -> Lander:
    def land(subject: bytes) -> bytes | None:
        return next((landed for lander in landers if (landed := lander(subject)) is not None), None)

    return land


def _bytes(subject: str) -> bytes:
    return subject.encode("utf-8", "surrogateescape")
