"""Sources and mirrors compared by what they replicate, independent of notation. [pure]"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvctl.jetstream.stream_info import Source, SourceConfig
from kvctl.kv.stream_kind import LEAVING


def source_key(source: SourceConfig) -> tuple[str, str]:
    """Return the stream and the API prefix that a source reads."""
    found = Source.parse(source)
    return found.name, found.api


def meaning(source: SourceConfig) -> tuple[Any, ...]:
    """Return the identity of a source: the stream it reads, and each rule with its destination."""
    found = Source.parse(source)
    rules = found.transforms or ((found.filter_subject, ""),)
    taken = frozenset((src or ">", "" if dest == (src or ">") else dest) for src, dest in rules)
    return found.name, found.api, found.deliver, taken


def same_mirror(one: SourceConfig | None, other: SourceConfig | None) -> bool:
    """Return whether two mirrors replicate the same; two absent ones do."""
    if not one or not other:
        return bool(one) == bool(other)
    return _widened(meaning(one)) == _widened(meaning(other))


def leaving(config: Mapping[str, Any]) -> list[SourceConfig]:
    """Return the former sources of an aggregate whose keys are still to be removed from it."""
    found: list[SourceConfig] = json.loads((config.get("metadata") or {}).get(LEAVING, "[]"))
    return found


def marked_leaving(config: Mapping[str, Any], sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the configuration with the keys of these sources marked for removal."""
    metadata = {key: text for key, text in (config.get("metadata") or {}).items() if key != LEAVING}
    return {**config, "metadata": {**metadata, **({LEAVING: json.dumps(sources)} if sources else {})}}


def removed(before: Iterable[SourceConfig], after: Iterable[SourceConfig]) -> list[SourceConfig]:
    """Return the sources that are in the first and not in the second."""
    kept = {meaning(source) for source in after}
    return [source for source in before if meaning(source) not in kept]


def added(before: Iterable[SourceConfig], after: Iterable[SourceConfig]) -> list[SourceConfig]:
    """Return the sources that are in the second and not in the first."""
    return removed(after, before)


def _widened(found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Treat all subjects of a bucket as everything in its stream."""
    name, api, deliver, taken = found
    if taken == {(f"$KV.{name.removeprefix('KV_')}.>", "")}:
        taken = frozenset({(">", "")})
    return name, api, deliver, taken
