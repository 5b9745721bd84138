"""Desired state of everything in a topology file, given the found state, or without it. [pure]

A file owns the fields that it names. Other settings of a mirror or an aggregate follow its origins: a field that equals
what the origins implied before the change becomes what they imply after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kvctl.jetstream.stream_info import SourceConfig, StreamConfig, StreamInfo, sources_of
from kvctl.kv.config import edited
from kvctl.kv.names import STREAM_PREFIX
from kvctl.kv.settings import FIELDS, SETTINGS
from kvctl.kv.stream_kind import LEAVING, TOPOLOGY, Kind, started
from kvctl.phrases import counted
from kvctl.topology.hazards.hazards import unserved
from kvctl.topology.model.file import Topology
from kvctl.topology.model.origins import Aggregate, Mirror, added, leaving, removed, same_mirror, source_key
from kvctl.topology.plan.change import ResourceChange
from kvctl.topology.plan.location import Locator, OriginLocation, unseen
from kvctl.topology.survey.graph import Where

_INHERITED = {"max_msgs_per_subject": "history", "max_age": "ttl", "allow_msg_ttl": "marker_ttl"}
"""Settings that replicas inherit from their origins, with the file's field for each."""
_SPELLINGS = {
    **{row.option: row.name for row in SETTINGS.values() if row.option},
    **{row.name: row.part_of for row in SETTINGS.values() if row.part_of},
}
"""Fields of the file that belong to a setting of another name."""


@dataclass(slots=True)
class DesiredState:
    """The desired state of a file: a change of each resource, which may have nothing to do, created on demand."""

    topology: Topology
    origins: Locator
    _changes: dict[str, ResourceChange] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)

    def all(self) -> list[ResourceChange]:
        """Return the changes of all resources, origins before their readers, except in cycles."""
        topology = self.topology
        for name in (*topology.buckets, *topology.mirrors, *topology.aggregates):
            self.change(name)
        return list(self._changes.values())

    def change(self, name: str) -> ResourceChange | None:
        """Return the change of a resource; None while it is being derived."""
        waiting = [] if name in self._begun else [name]
        while waiting:  # a chain may be longer than Python's stack
            last = waiting[-1]
            self._begun.add(last)
            origins = [origin for origin in self._origins_of(last) if origin not in self._begun]
            if origins:
                waiting.append(origins[0])
            else:
                waiting.pop()
                self._changes[last] = self._mirror(last) if last in self.topology.mirrors else self._bucket(last)
        return self._changes.get(name)

    def _origins_of(self, name: str) -> Iterator[str]:
        """Yield the origins of a resource that are in the file."""
        topology = self.topology
        mirror, aggregate = topology.mirrors.get(name), topology.aggregates.get(name)
        for origin in aggregate.origins if aggregate else (mirror.origin,) if mirror else ():
            where = self.origins.locate(topology.place_of(name), origin).where
            if (other := self.origins.name_at(where)) is not None:
                yield other

    def after(self, where: Where | None) -> StreamConfig | None:
        """Return the configuration of a stream after all changes."""
        change = self._at(where)
        return change.after if change is not None else self._live_config(where)

    def live(self, where: Where | None) -> StreamInfo | None:
        """Return the current info of a stream, if it is in view."""
        return self.origins.live(where)

    def _at(self, where: Where | None) -> ResourceChange | None:
        name = self.origins.name_at(where)
        return self.change(name) if name is not None else None

    # -- changes ---------------------------------------------------------------------------------------------

    def _bucket(self, name: str) -> ResourceChange:
        if name in self.topology.aggregates:
            return self._aggregate(name)
        model, live = self.topology.buckets[name], self.origins.live(self.origins.where(name))
        fresh = model.to_stream()
        after = edited(live["config"], self._named(name, model)) if live else fresh
        return self._settled(self._change(name, Kind.BUCKET, live, after), fresh)

    def _mirror(self, name: str) -> ResourceChange:
        place, model = self.topology.place_of(name), self.topology.mirrors[name]
        live = self.origins.live(self.origins.where(name))
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
            if config is not None and unserved(after, config):
                after["mirror_direct"] = True
        reads = self._reads(place, live, (located,))
        change = self._change(name, Kind.MIRROR, live, after, (located,), (config,), reads, follows=follows)
        return self._settled(change, fresh)

    def _aggregate(self, name: str) -> ResourceChange:
        place, model = self.topology.place_of(name), self.topology.aggregates[name]
        live = self.origins.live(self.origins.where(name))
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
        change = self._change(name, Kind.AGGREGATE, live, after, located, configs, reads, follows=follows)
        return self._settled(change, fresh)

    def _change(
        self,
        name: str,
        kind: Kind,
        live: StreamInfo | None,
        after: StreamConfig,
        located: tuple[OriginLocation, ...] = (),
        configs: tuple[StreamConfig | None, ...] = (),
        reads: Sequence[Where | None] = (),
        *,
        follows: bool = False,
    ) -> ResourceChange:
        place, stream = self.origins.where(name)
        return ResourceChange(
            kind=kind,
            name=name,
            place=place,
            stream=stream,
            live=live,
            after=self._marked(after),
            located=located,
            origin_configs=configs,
            origins=tuple(item.where for item in located if item.where is not None),
            reads=tuple(where for where in reads if where is not None),
            follows=follows,
            ahead_of=tuple(self._changing(located, configs)) if follows else (),
        )

    def _changing(self, located: Sequence[OriginLocation], configs: Sequence[StreamConfig | None]) -> Iterator[str]:
        """Yield the names of origins with a setting that replicas inherit, and that changes."""
        for item, after in zip(located, configs, strict=True):
            now = self._config_now(item)
            if now and after and any(now.get(key) != after.get(key) for key in _INHERITED):
                yield item.origin.source_stream.removeprefix(STREAM_PREFIX)

    def _settled(self, change: ResourceChange, fresh: StreamConfig) -> ResourceChange:
        """Return the change, recreated if necessary; decided from the file alone, so that a kill does not alter it."""
        stay = {*change.origins} & {*change.reads}
        cascades = any(origin.replaces_content for where in stay if (origin := self._at(where)) is not None)
        if change.live is None or (change.in_place and not cascades):
            return change
        return replace(change, after=self._marked(fresh), follows=False, recreated=True, cascades=cascades)

    @staticmethod
    def _reads(place: str, live: StreamInfo | None, located: Sequence[OriginLocation]) -> tuple[Where | None, ...]:
        """Return the locations of the origins of a live replica; None if out of view."""
        return DesiredState._reads_of(place, sources_of(live["config"]) if live else [], located)

    @staticmethod
    def _reads_of(
        place: str, sources: Sequence[SourceConfig], located: Sequence[OriginLocation]
    ) -> tuple[Where | None, ...]:
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

    def _config(self, located: OriginLocation) -> StreamConfig | None:
        found = self.after(located.where)
        return found or (located.seen.config if located.seen else None)

    def _config_now(self, located: OriginLocation) -> StreamConfig | None:
        return self._live_config(located.where) or (located.seen.config if located.seen else None)

    def _live_config(self, where: Where | None) -> StreamConfig | None:
        live = self.origins.live(where)
        return live["config"] if live else None


# -- without servers -----------------------------------------------------------------------------------------


class RenderedStreams(NamedTuple):
    """Configurations, each origin before its readers."""

    streams: list[StreamConfig]
    warnings: list[str]
    """Notes on settings that depend on the servers, and on what configurations do not contain."""
    places: list[str]
    """Context of each stream, in the same order."""


def render(topology: Topology) -> RenderedStreams:
    """Return every stream of the file as a plan would create it, without reading any server."""
    changes = DesiredState(topology, unseen(topology)).all()
    return RenderedStreams(
        [change.config for change in changes],
        [*(text for change in changes for text in _unknown(topology, change)), *_entries(topology)],
        [change.place for change in changes],
    )


def _entries(topology: Topology) -> list[str]:
    return [
        f"Configurations do not contain entries: `topology apply` creates {counted(len(entries), 'entry')} in `{name}`"
        for name, entries in topology.entries.items()
    ]


def _unknown(topology: Topology, change: ResourceChange) -> list[str]:
    inherited = [name for name in ("history", "ttl") if name not in topology.named.get(change.name, ())]
    what = " and ".join(inherited)
    return [
        f"`{item.origin.name}` is not in the file, so the {what} that `{change.name}` inherits from it is unknown here"
        for item in change.located
        if inherited and item.where is None
    ]
