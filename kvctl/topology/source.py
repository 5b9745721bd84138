"""Sources and mirrors compared by what they take, however it is written. [pure]"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvctl.jetstream.stream_source import Source, SourceConfig
from kvctl.kv.stream_kind import LEAVING


def source_key(source: SourceConfig) -> tuple[str, str]:
    """What a source reads: stream and API prefix."""
    found = Source.parse(source)
    return found.name, found.api


def meaning(source: SourceConfig) -> tuple[Any, ...]:
    """What tells a source from another: where it reads, and each rule with its destination."""
    found = Source.parse(source)
    rules = found.transforms or ((found.filter_subject, ""),)
    taken = frozenset((src or ">", "" if dest == (src or ">") else dest) for src, dest in rules)
    return found.name, found.api, found.deliver, taken


def same_mirror(one: SourceConfig | None, other: SourceConfig | None) -> bool:
    """Whether two mirrors, or none, read the same."""
    if not one or not other:
        return bool(one) == bool(other)
    return _whole(meaning(one)) == _whole(meaning(other))


def leaving(config: Mapping[str, Any]) -> list[SourceConfig]:
    """The sources that an aggregate reads no more, and whose keys are still to be taken out of it."""
    found: list[SourceConfig] = json.loads((config.get("metadata") or {}).get(LEAVING, "[]"))
    return found


def marked_leaving(config: Mapping[str, Any], sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The configuration with the mark that the keys of these sources are still to be taken out."""
    metadata = {key: text for key, text in (config.get("metadata") or {}).items() if key != LEAVING}
    return {**config, "metadata": {**metadata, **({LEAVING: json.dumps(sources)} if sources else {})}}


def removed(before: Iterable[SourceConfig], after: Iterable[SourceConfig]) -> list[SourceConfig]:
    """The sources that are in the first and not in the second."""
    kept = {meaning(source) for source in after}
    return [source for source in before if meaning(source) not in kept]


def added(before: Iterable[SourceConfig], after: Iterable[SourceConfig]) -> list[SourceConfig]:
    """The sources that are in the second and not in the first."""
    return removed(after, before)


def _whole(found: tuple[Any, ...]) -> tuple[Any, ...]:
    """All of a bucket's subjects are all that its stream has."""
    name, api, deliver, taken = found
    if taken == {(f"$KV.{name.removeprefix('KV_')}.>", "")}:
        taken = frozenset({(">", "")})
    return name, api, deliver, taken
