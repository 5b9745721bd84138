"""Which keys of an origin come into a replica, and where they land, as people write them. [pure]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvctl.kv.names import SUBJECT_PREFIX
from kvctl.topology.model import dollars
from kvctl.topology.subjects import Transform, parse

Rules = tuple[tuple[str, str], ...]
"""Filters, and where their keys land: empty where they keep their names. Without any, all keys come as they are."""


def rules_of(source: Mapping[str, Any]) -> Rules:
    """A source's filters and destinations in keys; none where all keys keep their names."""
    rules = parse(source.get("subject_transforms") or ())
    if source.get("filter_subject"):
        rules.append(Transform(source["filter_subject"], ""))
    found = []
    for rule in rules:
        src, dest = _keys(rule.src), dollars(_keys(rule.dest or rule.src))
        found.append((src, "" if _plain(src) == dest else dest))
    return () if found == [(">", "")] else tuple(found)


def rules_json(rules: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """The rules as JSON output shows them."""
    return [{"keys": src, "land": dest or _plain(src)} for src, dest in rules]


def _keys(subject: str) -> str:
    """A subject of a bucket as its keys; others stay whole."""
    return subject.split(".", 2)[2] if subject.startswith(SUBJECT_PREFIX) and subject.count(".") > 1 else subject


def _plain(src: str) -> str:
    """A filter as the destination under which its keys keep their names."""
    number = 0
    tokens = []
    for token in src.split("."):
        number += token == "*"
        tokens.append(f"${number}" if token == "*" else token)
    return ".".join(tokens)
