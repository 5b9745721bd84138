"""Subject mapping of a source or a mirror, in both directions, on subjects as bytes off the wire. [pure]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from kvctl.kv.names import is_wild
from kvctl.topology.subjects import Transform, capture, parse, plain_dest, wildcard_number

Lander = Callable[[bytes], bytes | None]


class Mapping:
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
    def of(cls, source: dict[str, Any]) -> Mapping:
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
