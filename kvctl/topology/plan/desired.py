"""Desired state of everything in a topology file, given the found state. [pure]

A file owns the fields that it names. Other settings of a mirror or an aggregate follow its origins: a field that equals
what the origins implied before the change becomes what they imply after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvctl.jetstream.config_diff import Difference
from kvctl.jetstream.stream_info import SourceConfig, StreamConfig, StreamInfo, sources_of
from kvctl.kv.config import differences
from kvctl.kv.config_edit import edited
from kvctl.kv.settings import FIELDS, FIXED, SETTINGS
from kvctl.kv.stream_kind import LEAVING, TOPOLOGY, Kind, started
from kvctl.topology.model.file import Topology
from kvctl.topology.model.origins import Aggregate, Mirror, added, leaving, removed, same_mirror, source_key
from kvctl.topology.plan.origin_place import Located, Locator
from kvctl.topology.survey.graph import Where

_INHERITED = {"max_msgs_per_subject": "history", "max_age": "ttl", "allow_msg_ttl": "marker_ttl"}
"""Settings that replicas inherit from their origins, with the file's field for each."""
_SPELLINGS = {
    **{row.option: row.name for row in SETTINGS.values() if row.option},
    **{row.name: row.part_of for row in SETTINGS.values() if row.part_of},
}
"""Fields of the file that belong to a setting of another name."""


@dataclass(frozen=True, slots=True)
class Draft:
    """One resource of the file, as found and as desired."""

    name: str
    kind: Kind
    place: str
    live: StreamInfo | None
    after: StreamConfig
    origins: tuple[Located, ...] = ()
    origin_configs: tuple[StreamConfig | None, ...] = ()
    """Configurations of the origins after all changes."""
    reads: tuple[Where | None, ...] = ()
    """Locations of its current origins."""
    follows: bool = False
    """True if it changes because an origin does."""
    recreated: bool = False
    """True if it is recreated: no server can change it in place, or its origin's content is replaced."""
    cascades: bool = False
    """True if it is recreated because its origin is."""

    @property
    def where(self) -> Where:
        """Its place and stream."""
        return self.place, self.after["name"]

    @property
    def before(self) -> StreamConfig | None:
        """Its current configuration."""
        return self.live["config"] if self.live else None

    @property
    def differences(self) -> list[Difference]:
        """Its changes, field by field; empty if it does not exist."""
        return differences(self.before, self.after) if self.before else []

    @property
    def leaving(self) -> list[dict[str, Any]]:
        """Sources whose keys are removed: those removed by this change, and those removed before whose keys remain."""
        before = self.before or {}
        return [*removed(before.get("sources") or [], self.after.get("sources") or []), *leaving(before)]

    @property
    def in_place(self) -> bool:
        """True if it can reach the desired state without being recreated."""
        before, after = self.before or self.after, self.after
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
        other = self.cascades or not mirror or not same_mirror(mirror, self.after.get("mirror"))
        return (self.recreated and other) or bool(self.leaving)


@dataclass(slots=True)
class DesiredState:
    """The desired state of a file: a draft of each resource, created on demand."""

    topology: Topology
    origins: Locator
    _drafts: dict[str, Draft] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)

    def all(self) -> list[Draft]:
        """Return all drafts, origins before their readers, except in cycles."""
        topology = self.topology
        for name in (*topology.buckets, *topology.mirrors, *topology.aggregates):
            self.draft(name)
        return list(self._drafts.values())

    def draft(self, name: str) -> Draft | None:
        """Return the draft of a name; None while it is being created."""
        if name not in self._drafts and name not in self._begun:
            self._begun.add(name)
            made = self._mirror(name) if name in self.topology.mirrors else self._bucket(name)
            self._drafts[name] = made
        return self._drafts.get(name)

    def after(self, where: Where | None) -> StreamConfig | None:
        """Return the configuration of a stream after all changes."""
        made = self._at(where)
        if made is not None:
            return made.after
        return self._live_config(where)

    def live(self, where: Where | None) -> StreamInfo | None:
        """Return the current info of a stream, if it is in view."""
        return self.origins.live(where)

    def _at(self, where: Where | None) -> Draft | None:
        name = self.origins.name_at(where)
        return self.draft(name) if name is not None else None

    # -- drafts ----------------------------------------------------------------------------------------------

    def _bucket(self, name: str) -> Draft:
        if name in self.topology.aggregates:
            return self._aggregate(name)
        model, live = self.topology.buckets[name], self.origins.live(self.origins.where(name))
        fresh = model.to_stream()
        after = edited(live["config"], self._named(name, model)) if live else fresh
        return self._settled(Draft(name, Kind.BUCKET, self.topology.place_of(name), live, self._marked(after)), fresh)

    def _mirror(self, name: str) -> Draft:
        place, model, live = (
            self.topology.place_of(name),
            self.topology.mirrors[name],
            self.origins.live(self.origins.where(name)),
        )
        located = self.origins.locate(place, model.origin)
        model = replace(model, origin=located.origin)
        config = self._config(located)
        fresh = model.to_stream(config)
        if located.exists is False:
            fresh["mirror_direct"] = False  # servers turn it on when the origin allows it
        after, follows = fresh, False
        if live:
            after = edited(live["config"], self._named(name, model))
            if not same_mirror(after.get("mirror"), fresh["mirror"]):
                after["mirror"] = fresh["mirror"]
            follows = self._follow(name, after, model.to_stream(self._config_now(located)), fresh)
            self._deny_purge(name, after, model)
        reads = self._reads(place, live, (located,))
        draft = Draft(name, Kind.MIRROR, place, live, self._marked(after), (located,), (config,), reads, follows)
        return self._settled(draft, fresh)

    def _aggregate(self, name: str) -> Draft:
        place, model, live = (
            self.topology.place_of(name),
            self.topology.aggregates[name],
            self.origins.live(self.origins.where(name)),
        )
        located = tuple(self.origins.locate(place, origin) for origin in model.origins)
        model = replace(model, origins=tuple(item.origin for item in located))
        configs = tuple(self._config(item) for item in located)
        fresh = model.to_stream(configs)
        after, follows = fresh, False
        reads = self._reads(place, live, located)
        if live:
            after = edited(live["config"], self._named(name, model))
            seen = {item.key: self._config_now(item) for item in located}
            keys = [source_key(source) for source in sources_of(live["config"])]
            now = [seen.get(key) or self._live_config(where) for key, where in zip(keys, reads, strict=True)]
            # Until the keys of removed origins are removed, it has the history that these implied.
            now += [self._live_config(where) for where in self._reads_of(place, leaving(live["config"]), located)]
            follows = self._follow(name, after, model.to_stream(now), fresh)
            self._sources(after, fresh["sources"], configs)
            self._deny_purge(name, after, model)
            if "writable" in self.topology.named.get(name, ()) and model.writable != bool(after.get("subjects")):
                after["subjects"] = fresh["subjects"]
        draft = Draft(name, Kind.AGGREGATE, place, live, self._marked(after), located, configs, reads, follows)
        return self._settled(draft, fresh)

    def _settled(self, draft: Draft, fresh: StreamConfig) -> Draft:
        """Return the draft, recreated if necessary; decided from the file alone, so that a kill does not change it."""
        stay = {item.where for item in draft.origins} & set(draft.reads)
        cascades = any(made.replaces_content for where in stay if (made := self._at(where)) is not None)
        if draft.live is None or (draft.in_place and not cascades):
            return draft
        return replace(draft, after=self._marked(fresh), follows=False, recreated=True, cascades=cascades)

    @staticmethod
    def _reads(place: str, live: StreamInfo | None, located: Sequence[Located]) -> tuple[Where | None, ...]:
        """Return the locations of the origins of a live replica; None if out of view."""
        return DesiredState._reads_of(place, sources_of(live["config"]) if live else [], located)

    @staticmethod
    def _reads_of(place: str, sources: Sequence[SourceConfig], located: Sequence[Located]) -> tuple[Where | None, ...]:
        known = {item.key: item.where for item in located}
        near = [None if source_key(source)[1] else (place, source["name"]) for source in sources]
        return tuple(known.get(source_key(source), other) for source, other in zip(sources, near, strict=True))

    def _named(self, name: str, model: Any) -> dict[str, Any]:
        """Return the fields of a bucket that the file names, with their values."""
        names = {_SPELLINGS.get(text, text) for text in self.topology.named.get(name, ())}
        return {text: getattr(model, text) for text in FIELDS if text in names}

    def _follow(self, name: str, after: StreamConfig, was: StreamConfig, fresh: StreamConfig) -> bool:
        """Set inherited settings to what its origins will imply, and return whether any changed."""
        before = {key: after.get(key) for key in _INHERITED}
        for key, text in _INHERITED.items():
            explicit = text in self.topology.named.get(name, ())
            given = fresh.get(key, was.get(key))  # servers do not turn allow_msg_ttl off again
            if not explicit and given != was.get(key) and (after.get(key) or 0) == (was.get(key) or 0):
                after[key] = given
        return any(after.get(key) != before[key] for key in _INHERITED)

    @staticmethod
    def _sources(after: StreamConfig, wanted: list[dict[str, Any]], configs: Sequence[StreamConfig | None]) -> None:
        """Set the sources; existing ones keep their order, and begin with the first entry."""
        there = after.get("sources") or []
        gone, new = removed(there, wanted), added(there, wanted)
        after["sources"] = [*(source for source in there if source not in gone), *new]
        after |= started(after)
        if any(
            (config or {}).get("allow_msg_ttl") for source, config in zip(wanted, configs, strict=True) if source in new
        ):
            after["allow_msg_ttl"] = True

    def _deny_purge(self, name: str, after: StreamConfig, model: Mirror | Aggregate) -> None:
        if "deny_purge" in self.topology.named.get(name, ()) and model.deny_purge != bool(after.get("deny_purge")):
            after |= {"deny_purge": model.deny_purge, "allow_rollup_hdrs": not model.deny_purge}

    def _marked(self, config: StreamConfig) -> StreamConfig:
        """Return the configuration with the topology's mark; one marked by another topology keeps that mark."""
        metadata = {TOPOLOGY: self.topology.name, **(config.get("metadata") or {})}
        return {**config, "metadata": {key: text for key, text in metadata.items() if key != LEAVING}}

    def _config(self, located: Located) -> StreamConfig | None:
        found = self.after(located.where)
        return found or (located.seen.config if located.seen else None)

    def _config_now(self, located: Located) -> StreamConfig | None:
        return self._live_config(located.where) or (located.seen.config if located.seen else None)

    def _live_config(self, where: Where | None) -> StreamConfig | None:
        live = self.origins.live(where)
        return live["config"] if live else None
