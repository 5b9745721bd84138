"""Comparison of the desired and the found state, as ordered changes. [pure]"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kvctl.errors import BucketExists, UnreachableError
from kvctl.jetstream.config_diff import Difference
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.kv.config import differences
from kvctl.kv.names import STREAM_PREFIX
from kvctl.kv.stream_kind import SERVER_METADATA, TOPOLOGY, Kind, bucket_name, described, kind_of
from kvctl.topology.hazards.hazards import Hazard
from kvctl.topology.plan.desired import DesiredState, Draft
from kvctl.topology.survey.graph import Where

if TYPE_CHECKING:
    from kvctl.topology.survey.graph import Inventory


class Action(StrEnum):
    """Action on one resource."""

    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"
    RECREATE = "recreate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One resource that is created, changed, recreated or deleted."""

    action: Action
    kind: Kind
    name: str
    place: str
    """Its context in the file; empty for the one in use."""
    stream: str
    live: StreamInfo | None = field(default=None, repr=False)
    """Its info as found."""
    after: StreamConfig | None = field(default=None, repr=False)
    """Its configuration after the change; None: deleted."""
    differences: Sequence[Difference] = ()
    origins: Sequence[Where] = ()
    """Locations of its desired origins, as far as in view."""
    reads: Sequence[Where] = ()
    """Locations of its current origins."""
    leaving: Sequence[dict[str, Any]] = ()
    """The sources of an aggregate whose keys are removed from it."""
    entries: Sequence[str] = ()
    """Keys of the entries that are created in a bucket."""
    readers: Sequence[str] = ()
    """Names of its readers that remain when it is deleted: the confirmation then requires its name."""
    hazards: Sequence[Hazard] = ()
    follows: bool = False
    """It changes because its origin does, and before that one."""
    cascades: bool = False
    """It is recreated because its origin is."""

    @property
    def where(self) -> Where:
        """Its place and stream."""
        return self.place, self.stream

    @property
    def drops(self) -> tuple[int, int] | None:
        """Messages and bytes that are deleted with it; None if nothing is deleted."""
        if self.live is None or self.action not in (Action.DELETE, Action.RECREATE):
            return None
        return self.live["state"]["messages"], self.live["state"]["bytes"]

    @property
    def is_copy(self) -> bool:
        """True if its content comes only from its origins, so that nothing is lost with it."""
        config = self.live["config"] if self.live else self.after or {}
        return bool(config.get("mirror") or (config.get("sources") and not config.get("subjects")))

    @property
    def refilled(self) -> bool:
        """True if its deleted content is replicated again from its origins."""
        return self.is_copy and self.action is Action.RECREATE

    @property
    def asks_name(self) -> bool:
        """True if the confirmation requires its name: its data is deleted, or readers remain."""
        return self.action is Action.RECREATE or (self.action is Action.DELETE and bool(self.readers))


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes in the order of display; nothing is changed yet."""

    changes: list[Change]
    warnings: list[str] = field(default_factory=list)
    unlisted: list[Change] = field(default_factory=list)
    """Resources with the topology's mark that are not in the file: deleted only on request."""
    seen: Mapping[Where, str] = field(default_factory=dict)
    """The fingerprint of each stream that it is based on."""

    @property
    def hazards(self) -> list[Hazard]:
        """All hazards of the changes, with names in the evidence."""
        return list(dict.fromkeys(_of(change, hazard) for change in self.changes for hazard in change.hazards))

    @property
    def summary(self) -> dict[str, int]:
        """Number of changes by action."""
        counts = Counter(change.action for change in self.changes)
        return {str(action): counts[action] for action in Action}


def _of(change: Change, hazard: Hazard) -> Hazard:
    named = f"`{change.name}`" in hazard.evidence
    return hazard if named else replace(hazard, evidence=f"`{change.name}`: {hazard.evidence}")


ABSENT = "absent"
"""The fingerprint of a stream that does not exist."""


def fingerprint(info: StreamInfo | None) -> str:
    """Return a text that identifies the state of a stream: its stream instance and its configuration."""
    if info is None:
        return ABSENT
    own = {
        key: text for key, text in (info["config"].get("metadata") or {}).items() if not key.startswith(SERVER_METADATA)
    }
    config = json.dumps({**info["config"], "metadata": own}, sort_keys=True).encode()
    return f"{info['created']} sha256:{hashlib.sha256(config).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A file compared with the found state."""

    drafts: list[Draft]
    changes: list[Change]
    unlisted: list[Change]


def compare(
    drafts: DesiredState,
    inventory: Inventory,
    *,
    prune: bool = False,
    absent: Mapping[str, Sequence[str]] | None = None,
) -> Comparison:
    """Return the changes that lead from the found state to the file, unordered, and without hazards.

    `absent` are the keys of the file's entries that existing buckets do not have, by bucket.
    Raises BucketExists if a name has another meaning, UnreachableError if a stream does not answer.
    """
    made = drafts.all()
    unlisted = _unlisted(drafts, inventory)
    _refuse_conflicts(made, inventory, {change.where for change in unlisted} if prune else set())
    entries = {
        draft.name: list(drafts.topology.entries.get(draft.name, ()))
        if draft.live is None or draft.recreated
        else (absent or {}).get(draft.name, ())
        for draft in made
    }
    changes = [change for draft in made if (change := _change(draft, entries[draft.name])) is not None]
    deleted = [_with_readers(change, inventory, made, unlisted) for change in unlisted]
    return Comparison(made, [*changes, *(deleted if prune else [])], deleted)


def deletions(drafts: DesiredState, inventory: Inventory) -> list[Change]:
    """Return the deletions of everything in the file that exists, unordered, and without hazards.

    Raises BucketExists if a name has another meaning, UnreachableError if a stream does not answer.
    """
    made = drafts.all()
    _refuse_conflicts(made, inventory, set())
    found = [
        Change(action=Action.DELETE, kind=draft.kind, name=draft.name, place=draft.place, stream=draft.after["name"],
               live=draft.live, origins=tuple(_origins_of(inventory, draft.where)))
        for draft in made if draft.live is not None
    ]  # fmt: skip
    return [_with_readers(change, inventory, (), found) for change in found]


# -- changes -----------------------------------------------------------------------------------------------


def _change(draft: Draft, entries: Sequence[str]) -> Change | None:
    if draft.live is None:
        action = Action.CREATE
    elif draft.recreated:
        action = Action.RECREATE
    elif draft.differences or entries:
        action = Action.CHANGE
    else:
        return None
    return Change(
        action=action,
        kind=draft.kind,
        name=draft.name,
        place=draft.place,
        stream=draft.after["name"],
        live=draft.live,
        after=draft.after,
        differences=differences(draft.before or {"name": draft.after["name"]}, draft.after),
        origins=tuple(item.where for item in draft.origins if item.where is not None),
        reads=tuple(where for where in draft.reads if where is not None),
        leaving=() if draft.recreated else draft.leaving,
        entries=entries,
        follows=draft.follows,
        cascades=draft.cascades,
    )


def _unlisted(drafts: DesiredState, inventory: Inventory) -> list[Change]:
    """Return the deletions of streams with the topology's mark that are not in the file."""
    wanted = {draft.where for draft in drafts.all()}
    known = {(where[1], live["created"]) for where in wanted if (live := drafts.live(where)) is not None}
    found: list[Change] = []
    for place in inventory.places.values():
        configs = {name: info["config"] for name, info in place.infos.items()}
        for stream, info in place.infos.items():
            ours = (info["config"].get("metadata") or {}).get(TOPOLOGY) == drafts.topology.name
            if ours and (place.name, stream) not in wanted and (stream, info["created"]) not in known:
                known.add((stream, info["created"]))  # two contexts may lead to the same account
                kind = kind_of(info["config"], configs) or Kind.STREAM
                name = bucket_name(info["config"], kind)
                origins = tuple(_origins_of(inventory, (place.name, stream)))
                found.append(Change(action=Action.DELETE, kind=kind, name=name, place=place.name, stream=stream,
                                    live=info, origins=origins))  # fmt: skip
    return found


def _origins_of(inventory: Inventory, where: Where) -> Iterator[Where]:
    yield from (link.origin_at for link in inventory.of(where) if link.origin_at is not None)


def _with_readers(change: Change, inventory: Inventory, drafts: Sequence[Draft], deleted: Sequence[Change]) -> Change:
    """Return the change with the names of its remaining readers."""
    apart = {other.where for other in deleted} | {draft.where for draft in drafts}
    names = [draft.name for draft in drafts if change.where in {item.where for item in draft.origins}]
    names += [
        bucket_name(link.info["config"], kind_of(link.info["config"]))
        for link in inventory.leading_from(change.where)
        if link.at not in apart
    ]
    return replace(change, readers=tuple(dict.fromkeys(names)))


# -- what stands in the way --------------------------------------------------------------------------------


def _refuse_conflicts(drafts: Sequence[Draft], inventory: Inventory, gone: Collection[Where]) -> None:
    found: list[str] = []
    for draft in drafts:
        place = inventory.places[draft.place]
        if draft.where[1] in place.unreachable:
            raise UnreachableError(
                f"`{draft.name}` is offline: its servers do not answer",
                hint="List offline streams with `kvctl bucket ls`",
            )
        if draft.live is not None and (text := _other_kind(draft)):
            found.append(text)
        namesake = draft.name if draft.kind is not Kind.MIRROR else STREAM_PREFIX + draft.name
        other = place.infos.get(namesake)
        if other is not None and (draft.place, namesake) not in gone and _hides(draft, other["config"]):
            found.append(
                f"`{draft.name}` is {described(kind_of(other['config']))} on the server, not {described(draft.kind)}"
            )
    if found:
        raise BucketExists(
            "\n  ".join(["Names in the file are already taken:", *found]), hint="Choose another name in the file"
        )


def _hides(draft: Draft, other: StreamConfig) -> bool:
    return draft.kind is Kind.MIRROR or bool(other.get("mirror"))


def _other_kind(draft: Draft) -> str | None:
    kind = kind_of(draft.live["config"]) if draft.live else None
    if draft.kind is Kind.MIRROR and draft.live and draft.live["config"].get("mirror"):
        return None  # of any origin: the file decides
    if kind is draft.kind:
        return None
    if kind is Kind.INCOMPLETE:
        return f"`{draft.name}` is incomplete, left by an interrupted restore or copy"
    return f"`{draft.name}` is {described(kind)} on the server, not {described(draft.kind)}"
