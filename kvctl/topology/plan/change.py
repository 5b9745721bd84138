"""One resource as found and as desired, and the plan of all that change. [pure]"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvctl.jetstream.config_diff import Difference
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo, sources_of
from kvctl.kv.config import differences
from kvctl.kv.settings import FIXED
from kvctl.kv.stream_kind import SERVER_METADATA, Kind
from kvctl.topology.hazards.hazards import Hazard
from kvctl.topology.model.origins import leaving, removed, same_mirror
from kvctl.topology.plan.location import OriginLocation
from kvctl.topology.survey.graph import Where


class Action(StrEnum):
    """Action on one resource."""

    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"
    RECREATE = "recreate"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceChange:
    """One resource as found and as desired; one of the file that is as desired has nothing to do."""

    kind: Kind
    name: str
    place: str
    """Its context in the file; empty for the one in use."""
    stream: str
    live: StreamInfo | None = field(default=None, repr=False)
    """Its info as found."""
    after: StreamConfig | None = field(default=None, repr=False)
    """Its configuration after the change; None: deleted."""
    located: tuple[OriginLocation, ...] = field(default=(), repr=False)
    """Its desired origins."""
    origin_configs: tuple[StreamConfig | None, ...] = field(default=(), repr=False)
    """Configurations of these after all changes."""
    origins: tuple[Where, ...] = ()
    """Locations of its desired origins, as far as in view; for a deletion those of its current ones."""
    reads: tuple[Where, ...] = ()
    """Locations of its current origins, as far as in view."""
    follows: bool = False
    """True if it changes because an origin does, and before that one."""
    ahead_of: tuple[str, ...] = ()
    """Names of its origins of which it inherits a setting that changes."""
    recreated: bool = False
    """True if it is recreated: no server can change it in place, or its origin's content is replaced."""
    cascades: bool = False
    """True if it is recreated because its origin is."""
    entries: tuple[str, ...] = ()
    """Keys of the entries that are created in a bucket."""
    orphaned: bool = False
    """True if an origin of it does not exist or cannot be read: its content may be the only copy."""
    readers: tuple[str, ...] = ()
    """Names of its readers that remain when it is deleted: the confirmation then requires its name."""
    hazards: tuple[Hazard, ...] = ()

    @property
    def action(self) -> Action:
        """What is done to it."""
        if self.after is None:
            return Action.DELETE
        if self.live is None:
            return Action.CREATE
        return Action.RECREATE if self.recreated else Action.CHANGE

    @property
    def is_due(self) -> bool:
        """True if something has to be done."""
        return self.action is not Action.CHANGE or bool(self.differences or self.entries)

    @property
    def where(self) -> Where:
        """Its place and stream."""
        return self.place, self.stream

    @property
    def before(self) -> StreamConfig | None:
        """Its current configuration."""
        return self.live["config"] if self.live else None

    @property
    def config(self) -> StreamConfig:
        """Its configuration after a change that is not a deletion."""
        assert self.after is not None
        return self.after

    @property
    def differences(self) -> list[Difference]:
        """Its changes, field by field; for something new all that differs from defaults."""
        return differences(self.before or {"name": self.stream}, self.after) if self.after else []

    @property
    def leaving(self) -> list[dict[str, Any]]:
        """Sources whose keys are removed: those removed by this change, and those removed before whose keys remain."""
        if self.after is None or self.recreated:
            return []
        before = self.before or {}
        return [*removed(before.get("sources") or [], self.after.get("sources") or []), *leaving(before)]

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
        return not self.orphaned and bool(
            config.get("mirror") or (config.get("sources") and not config.get("subjects"))
        )

    @property
    def refilled(self) -> bool:
        """True if its deleted content is replicated again from its origins."""
        return self.is_copy and self.action is Action.RECREATE

    @property
    def asks_name(self) -> bool:
        """True if the confirmation requires its name: its data is deleted, or readers remain."""
        return self.action is Action.RECREATE or (self.action is Action.DELETE and bool(self.readers))

    @property
    def in_place(self) -> bool:
        """True if it can reach the desired state without being recreated."""
        before, after = self.before or self.config, self.config
        stay = {source["name"] for source in sources_of(after)}
        return (
            all(row.from_stream(before) == row.from_stream(after) for row in FIXED)
            and (not before.get("deny_purge") or bool(after.get("deny_purge")))
            and same_mirror(before.get("mirror"), after.get("mirror"))
            # Keys are recognized by the stream that they came from, and removed by purges.
            and not any(source["name"] in stay or after.get("deny_purge") for source in self.leaving)
        )

    @property
    def replaces_content(self) -> bool:
        """True if its content is replaced without its readers noticing."""
        mirror = (self.before or {}).get("mirror")
        other = self.cascades or not mirror or not same_mirror(mirror, self.config.get("mirror"))
        return (self.recreated and other) or bool(self.leaving)


@dataclass(frozen=True, slots=True)
class TopologyPlan:
    """The changes in the order of display; nothing is changed yet."""

    changes: list[ResourceChange]
    warnings: list[str] = field(default_factory=list)
    unlisted: list[ResourceChange] = field(default_factory=list)
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


def _of(change: ResourceChange, hazard: Hazard) -> Hazard:
    named = f"`{change.name}`" in hazard.evidence
    return hazard if named else hazard._replace(evidence=f"`{change.name}`: {hazard.evidence}")


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
