"""Rules of replication in terms of keys, as people write them. [pure]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX
from kvctl.topology.model import common_prefix, dollars
from kvctl.topology.subjects import Transform, default_dest, parse, plain_dest

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
        dest = (dollars(rule.dest) or plain_dest(rule.src)).removeprefix(own)
        found.append((src, "" if dest == plain_dest(src) else dest))
    return () if found == [(">", "")] else tuple(found)


def rules_json(source: Mapping[str, Any], reader: str) -> dict[str, Any]:
    """Return what a source replicates and where it lands, for JSON output.

    `keys`, `prefix` and `map` are those of flags and files; `transforms` are the subjects of the configuration. Keys
    that land outside the aggregate's own are in `map`, with a complete subject.
    """
    taken = parse(source.get("subject_transforms") or ())
    if source.get("filter_subject"):
        taken.append(Transform(source["filter_subject"], ""))
    pairs = [(src, dest or plain_dest(src)) for src, dest in rules_of(source, reader) or ((">", ">"),)]
    return {**_in_words(pairs, reader), "transforms": [rule.to_json() for rule in taken]}


def with_rules_text(row: Mapping[str, Any], reader: str) -> dict[str, Any]:
    """Return a row that has `rules_json`, with `taken` and `lands_as` for tables; empty where all keys keep names."""
    taken, lands = list(row["map"] or row["keys"] or ()), list((row["map"] or {}).values())
    if reader.startswith(STREAM_PREFIX) and (row["keys"] or row["prefix"]):
        head = f"{row['prefix']}." if row["prefix"] else ""
        taken = taken or [">"]
        lands = [head + default_dest(text) for text in taken]
    return {**row, "taken": ", ".join(taken), "lands_as": ", ".join(lands)}


def _in_words(pairs: list[tuple[str, str]], reader: str) -> dict[str, Any]:
    """Return the shortest `keys`, `prefix` and `map` that mean these filters and destinations."""
    keys = [] if [src for src, _ in pairs] == [">"] else [src for src, _ in pairs]
    if not reader.startswith(STREAM_PREFIX):  # a mirror: keys keep their names
        renamed = any(dest != plain_dest(src) for src, dest in pairs)
        return {"keys": [] if renamed else keys, "prefix": None, "map": dict(pairs) if renamed else None}
    prefix = common_prefix(pairs)
    if prefix is None:
        return {"keys": [], "prefix": None, "map": dict(pairs)}
    return {"keys": keys, "prefix": prefix or None, "map": None}


def _head(stream: str) -> str | None:
    """Return the prefix of the subjects of a bucket's stream."""
    return f"{SUBJECT_PREFIX}{stream.removeprefix(STREAM_PREFIX)}." if stream.startswith(STREAM_PREFIX) else None


def _keys(subject: str) -> str:
    """Return a subject of a bucket as its key; others stay complete."""
    return subject.split(".", 2)[2] if subject.startswith(SUBJECT_PREFIX) and subject.count(".") > 1 else subject
