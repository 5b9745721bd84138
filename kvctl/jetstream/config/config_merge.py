"""One editor's change of a stream configuration, made on the configuration as another editor left it. [pure]

JetStream has no compare-and-set on configurations: an update replaces the whole. So what is written is never what was
planned, but what is there now with the planned change made to it.
"""

from __future__ import annotations

from typing import Any

from kvctl.errors import ConflictError
from kvctl.jetstream.stream_source import Source, SourceConfig

Config = dict[str, Any]

_MERGED = ("metadata", "placement")
"""Objects whose members are changed one by one."""
_ABSENT = object()


def merge(before: Config, after: Config, live: Config) -> Config:
    """Make the change from `before` to `after` to `live`. Raises ConflictError for a field that both changed."""
    merged = dict(live)
    for name in dict.fromkeys([*before, *after]):
        if _same(before.get(name), after.get(name)):
            continue
        if name == "sources":
            merged[name] = _sources(before.get(name) or [], after.get(name) or [], live.get(name) or [])
        elif name in _MERGED:
            merged[name] = _members(name, before.get(name) or {}, after.get(name) or {}, live.get(name) or {})
        else:
            _set(merged, name, before.get(name), after.get(name, _ABSENT), name)
    return merged


def _members(name: str, before: Config, after: Config, live: Config) -> Config:
    merged = dict(live)
    for member in dict.fromkeys([*before, *after]):
        if not _same(before.get(member), after.get(member)):
            _set(merged, member, before.get(member), after.get(member, _ABSENT), f"{name}.{member}")
    return merged


def _set(merged: Config, name: str, before: Any, after: Any, field: str) -> None:
    there = merged.get(name)
    wanted = None if after is _ABSENT else after
    if _same(there, wanted):
        return
    if not _same(there, before):
        raise ConflictError(
            f"`{field}` was changed in the meantime: it was {_text(before)}, is {_text(there)}, and was to be "
            f"{_text(wanted)}",
            hint="Look at it again, then run the command again",
        )
    if after is _ABSENT:
        merged.pop(name, None)
    else:
        merged[name] = after


def _sources(before: list[SourceConfig], after: list[SourceConfig], live: list[SourceConfig]) -> list[SourceConfig]:
    """Take away, replace and add what the change does, and leave all other sources as they are."""
    gone = [source for source in before if source not in after]
    new = [source for source in after if source not in before]
    replacements = {_identity(source): source for source in new}
    merged = []
    for source in live:
        if source not in gone:
            merged.append(source)
        elif (replacement := replacements.get(_identity(source))) is not None:
            merged.append(replacement)
    there = {_identity(source) for source in merged}
    return [*merged, *(source for identity, source in replacements.items() if identity not in there)]


def _identity(source: SourceConfig) -> tuple[Any, ...]:
    """What servers tell a source by: where it reads, and what it takes to where; not where it begins."""
    found = Source.parse(source)
    return found.name, found.api, found.filter_subject, found.transforms


def _same(one: Any, other: Any) -> bool:
    """Whether both say the same: servers leave out what is empty."""
    return one == other or (not one and not other)


def _text(value: Any) -> str:
    return "unset" if not value else f"`{value}`"
