"""Where the subjects of a source or a mirror land, as bytes off the wire, and where they came from. [pure]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvctl.topology.subjects import Transform, capture, parse, wildcard_number

Lander = Callable[[bytes], bytes | None]


class Mapping:
    """The rules of one source, in both directions. Raises UnknownTransform for functions that cannot be predicted."""

    def __init__(self, rules: Sequence[Transform]) -> None:
        self.rules = tuple(rules)
        for rule in rules:
            _ = rule.pattern  # raises for what is unknown
        self.lossy = any(rule.dropped for rule in rules)
        """Whether several subjects can land in one place."""
        landers = [_lander(rule) for rule in rules]
        self.land: Lander = landers[0] if len(landers) == 1 else _first(landers)
        """Where a subject lands; None for one that is not taken."""

    @classmethod
    def of(cls, source: dict[str, Any]) -> Mapping:
        """Of a source or a mirror, as a stream's configuration has it."""
        rules = parse(source.get("subject_transforms") or ())
        return cls(rules or [Transform(source.get("filter_subject") or ">", "")])

    @property
    def taken(self) -> tuple[str, ...]:
        """The subjects that are taken, as filters."""
        return tuple(rule.src for rule in self.rules)

    def origin(self, landed: str) -> str | None:
        """The subject that lands there; None where there is none, or where it cannot be told."""
        for rule in self.rules:
            subject = _source_of(rule, landed)
            if subject is not None and self.land(_bytes(subject)) == _bytes(landed):
                return subject
        return None


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
    """What `rule.apply` does, a prefix cut and set where that is all there is to do."""
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
