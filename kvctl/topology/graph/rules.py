"""Which keys of an origin come into a replica, and where they land, as people write them. [pure]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.topology.model import dollars
from kvctl.topology.subjects import Transform, parse

Rules = tuple[tuple[str, str], ...]
"""Filters, and where their keys land: empty where they keep their names. Without any, all keys come as they are."""


def rules_of(source: Mapping[str, Any], reader: str) -> Rules:
    """A source's rules in keys; none where all keys come as they are. `reader` is the stream that has it.

    Where an aggregate stores what is none of its own keys, the whole subject shows it.
    """
    rules = parse(source.get("subject_transforms") or ())
    if not rules:
        rules = [Transform(source.get("filter_subject") or f"{_head(source['name']) or ''}>", "")]
    found = []
    for rule in rules:
        src = _keys(rule.src)
        own = _head(reader) or rule.src.removesuffix(src)
        dest = (dollars(rule.dest) or _plain(rule.src)).removeprefix(own)
        found.append((src, "" if dest == _plain(src) else dest))
    return () if found == [(">", "")] else tuple(found)


def rules_json(rules: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """The rules as JSON output shows them."""
    return [{"keys": src, "land": dest or _plain(src)} for src, dest in rules]


def _head(stream: str) -> str | None:
    """What the subjects of a bucket's stream begin with."""
    return f"{SUBJECT_PREFIX}{stream.removeprefix(STREAM_PREFIX)}." if stream.startswith(STREAM_PREFIX) else None


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
