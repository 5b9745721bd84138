"""Three-way merge of a stream configuration: one editor's change applied to another editor's result. [pure]

JetStream has no compare-and-set on configurations: an update replaces all of it. So the planned change is applied to
the current configuration, rather than writing the planned configuration.
"""

from __future__ import annotations

from typing import Any

from kvctl.errors import ConflictError
from kvctl.jetstream.stream_source import Source, SourceConfig

Config = dict[str, Any]

_MERGED = ("metadata", "placement")
"""Objects whose members are merged one by one."""
_ABSENT = object()


def merge(before: Config, after: Config, live: Config) -> Config:
    """Apply the change from `before` to `after` to `live`. Raises ConflictError for a field changed on both sides."""
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
            f"`{field}` was changed in the meantime: it was {_text(before)}, is now {_text(there)}, and was to become "
            f"{_text(wanted)}",
            hint="Check its current value, then run the command again",
        )
    if after is _ABSENT:
        merged.pop(name, None)
    else:
        merged[name] = after


def _sources(before: list[SourceConfig], after: list[SourceConfig], live: list[SourceConfig]) -> list[SourceConfig]:
    """Remove, replace and add sources as the change does, and keep all others."""
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
    """Return a source's identity for servers: origin and transforms, but not the start position."""
    found = Source.parse(source)
    return found.name, found.api, found.filter_subject, found.transforms


def _same(one: Any, other: Any) -> bool:
    """Return True if both are equal: servers omit empty fields."""
    return one == other or (not one and not other)


def _text(value: Any) -> str:
    return "unset" if not value else f"`{value}`"
