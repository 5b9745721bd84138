"""Rules of replication in terms of keys, as people write them. [pure]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.topology.model import dollars
from kvctl.topology.subjects import Transform, parse

Rules = tuple[tuple[str, str], ...]
"""Filters and destinations of keys; an empty destination keeps the names. Empty: all keys keep their names."""


def rules_of(source: Mapping[str, Any], reader: str) -> Rules:
    """Return a source's rules in keys; empty if all keys keep their names. `reader` is the stream that has it.

    A destination outside the aggregate's own keys is given as a complete subject.
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
    """Return the rules for JSON output."""
    return [{"keys": src, "land": dest or _plain(src)} for src, dest in rules]


def _head(stream: str) -> str | None:
    """Return the prefix of the subjects of a bucket's stream."""
    return f"{SUBJECT_PREFIX}{stream.removeprefix(STREAM_PREFIX)}." if stream.startswith(STREAM_PREFIX) else None


def _keys(subject: str) -> str:
    """Return a subject of a bucket as its key; others stay complete."""
    return subject.split(".", 2)[2] if subject.startswith(SUBJECT_PREFIX) and subject.count(".") > 1 else subject


def _plain(src: str) -> str:
    """Return a filter as the destination under which its keys keep their names."""
    number = 0
    tokens = []
    for token in src.split("."):
        number += token == "*"
        tokens.append(f"${number}" if token == "*" else token)
    return ".".join(tokens)
