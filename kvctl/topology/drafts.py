"""What each thing in a topology file is to become, given what is there. [pure]

A file owns the fields that it names. Beyond these, what a mirror or an aggregate has from its origins follows them: a
field that equals what the origins gave it before the change gets what they give it after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvctl.kv.difference import Difference, differences
from kvctl.kv.fields import FIELDS, edited
from kvctl.kv.kinds import TOPOLOGY, Kind, StreamConfig
from kvctl.kv.names import STREAM_PREFIX
from kvctl.topology.document import Topology
from kvctl.topology.model import Aggregate, Mirror, Origin
from kvctl.topology.sources import added, removed, same_mirror, source_key, sources_of

if TYPE_CHECKING:
    from kvctl.topology.origins import Seen
    from kvctl.topology.world import Place, StreamInfo

Where = tuple[str, str]
"""A place's name and a stream's."""

_INHERITED = {"max_msgs_per_subject": "history", "max_age": "ttl", "allow_msg_ttl": "marker_ttl"}
"""What replicas have from their origins, and the field by which a file says it itself."""
_SPELLINGS = {"tag": "tags", "republish_headers_only": "republish"}


@dataclass(frozen=True, slots=True)
class Located:
    """An origin, and where it is."""

    origin: Origin
    """With its bucket and stream named; without a domain that is the reader's own."""
    where: Where | None
    """None: not in view."""
    exists: bool | None
    """Whether it is there when the change is made; None: not known."""
    seen: Seen | None = None
    """What was found out about it by asking, where it is in another domain or account."""

    @property
    def key(self) -> tuple[str, str]:
        """What its source reads: stream and API prefix."""
        return self.origin.source_stream, self.origin.external.api if self.origin.external else ""


@dataclass(frozen=True, slots=True)
class Draft:
    """One thing in the file: as it is, and as it is to be."""

    name: str
    kind: Kind
    place: str
    live: StreamInfo | None
    after: StreamConfig
    origins: tuple[Located, ...] = ()
    origin_configs: tuple[StreamConfig | None, ...] = ()
    """As they will be."""
    follows: bool = False
    """Whether it changes because an origin does."""
    anew: bool = False
    """Whether it is made anew: no server can change it in place, or its origin's content is another."""
    cascades: bool = False
    """Whether it is made anew for its origin's sake."""

    @property
    def where(self) -> Where:
        """Its place and stream."""
        return self.place, self.after["name"]

    @property
    def before(self) -> StreamConfig | None:
        """Its configuration as it is."""
        return self.live["config"] if self.live else None

    @property
    def differences(self) -> list[Difference]:
        """What changes, field by field; for what is not there, what it is made with."""
        return differences(self.before, self.after) if self.before else []

    @property
    def in_place(self) -> bool:
        """Whether a server can make the change without making the stream anew, its content being right after it."""
        before, after = self.before or self.after, self.after
        return (
            before.get("storage", "file") == after.get("storage", "file")
            and (not before.get("deny_purge") or bool(after.get("deny_purge")))
            and same_mirror(before.get("mirror"), after.get("mirror"))
            and not removed(before.get("sources") or [], after.get("sources") or [])
        )

    @property
    def renews(self) -> bool:
        """Whether it will hold something else than before, under sequences that were used before."""
        mirror = (self.before or {}).get("mirror")
        other = self.cascades or not mirror or not same_mirror(mirror, self.after.get("mirror"))
        return self.anew and other


Looked = Mapping[tuple[str, Origin], "Seen"]
"""Origins in other domains and accounts, as they were found by asking from a place."""


@dataclass(slots=True)
class Drafts:
    """The drafts of a file, each made when it is needed."""

    topology: Topology
    places: Mapping[str, Place]
    looked: Looked = field(default_factory=dict)
    _made: dict[str, Draft] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)

    def all(self) -> list[Draft]:
        """Every one, origins before what reads them, as far as they do not go in a circle."""
        topology = self.topology
        for name in (*topology.buckets, *topology.mirrors, *topology.aggregates):
            self.draft(name)
        return list(self._made.values())

    def draft(self, name: str) -> Draft | None:
        """The draft of one name; None while it is being made."""
        if name not in self._made and name not in self._begun:
            self._begun.add(name)
            made = self._mirror(name) if name in self.topology.mirrors else self._bucket(name)
            self._made[name] = made
        return self._made.get(name)

    def where(self, name: str) -> Where:
        """Where a thing of the file stands."""
        mirror = name in self.topology.mirrors
        return self.topology.place_of(name), name if mirror else STREAM_PREFIX + name

    def live(self, where: Where | None) -> StreamInfo | None:
        """What is there now, as far as it is in view."""
        return self.places[where[0]].infos.get(where[1]) if where and where[0] in self.places else None

    def after(self, where: Where | None) -> StreamConfig | None:
        """What will be there."""
        made = self._at(where)
        if made is not None:
            return made.after
        live = self.live(where)
        return live["config"] if live else None

    def _at(self, where: Where | None) -> Draft | None:
        name = self._name_at(where)
        return self.draft(name) if name is not None else None

    # -- drafts ----------------------------------------------------------------------------------------------

    def _bucket(self, name: str) -> Draft:
        if name in self.topology.aggregates:
            return self._aggregate(name)
        model, live = self.topology.buckets[name], self.live(self.where(name))
        fresh = model.to_stream()
        after = edited(live["config"], self._named(name, model)) if live else fresh
        return self._settled(Draft(name, Kind.BUCKET, self.topology.place_of(name), live, self._marked(after)), fresh)

    def _mirror(self, name: str) -> Draft:
        place, model, live = self.topology.place_of(name), self.topology.mirrors[name], self.live(self.where(name))
        located = self._locate(place, model.origin)
        model = replace(model, origin=located.origin)
        config = self._config(located)
        fresh = model.to_stream(config)
        if located.exists is False:
            fresh["mirror_direct"] = False  # servers turn it on when they see an origin that allows it
        after, follows = fresh, False
        if live:
            after = edited(live["config"], self._named(name, model))
            if not same_mirror(after.get("mirror"), fresh["mirror"]):
                after["mirror"] = fresh["mirror"]
            follows = self._follow(name, after, model.to_stream(self._config_now(located)), fresh)
            self._deny_purge(name, after, model)
        draft = Draft(name, Kind.MIRROR, place, live, self._marked(after), (located,), (config,), follows)
        return self._settled(draft, fresh)

    def _aggregate(self, name: str) -> Draft:
        place, model, live = self.topology.place_of(name), self.topology.aggregates[name], self.live(self.where(name))
        located = tuple(self._locate(place, origin) for origin in model.origins)
        model = replace(model, origins=tuple(item.origin for item in located))
        configs = tuple(self._config(item) for item in located)
        fresh = model.to_stream(configs)
        after, follows = fresh, False
        if live:
            after = edited(live["config"], self._named(name, model))
            follows = self._follow(name, after, model.to_stream(map(self._config_now, located)), fresh)
            self._sources(after, fresh["sources"], configs)
            self._deny_purge(name, after, model)
            if "writable" in self.topology.named.get(name, ()) and model.writable != bool(after.get("subjects")):
                after["subjects"] = fresh["subjects"]
        draft = Draft(name, Kind.AGGREGATE, place, live, self._marked(after), located, configs, follows)
        return self._settled(draft, fresh)

    def _settled(self, draft: Draft, fresh: StreamConfig) -> Draft:
        """As it is, or made anew: from the file alone, so that it is the same after a kill in between."""
        read = {source_key(source) for source in sources_of(draft.before or {})}
        cascades = any(
            made.renews for item in draft.origins if item.key in read and (made := self._at(item.where)) is not None
        )
        if draft.live is None or (draft.in_place and not cascades):
            return draft
        return replace(draft, after=self._marked(fresh), follows=False, anew=True, cascades=cascades)

    def _named(self, name: str, model: Any) -> dict[str, Any]:
        """The fields of a bucket that the file names, with their values."""
        names = {_SPELLINGS.get(text, text) for text in self.topology.named.get(name, ())}
        return {text: getattr(model, text) for text in FIELDS if text in names}

    def _follow(self, name: str, after: StreamConfig, was: StreamConfig, fresh: StreamConfig) -> bool:
        """Give it what its origins will give, where it has what they gave until now. Whether anything changed."""
        before = {key: after.get(key) for key in _INHERITED}
        for key, text in _INHERITED.items():
            said = text in self.topology.named.get(name, ())
            if not said and fresh.get(key) != was.get(key) and (after.get(key) or 0) == (was.get(key) or 0):
                after[key] = fresh.get(key, 0)
        return any(after.get(key) != before[key] for key in _INHERITED)

    @staticmethod
    def _sources(after: StreamConfig, wanted: list[dict[str, Any]], configs: Sequence[StreamConfig | None]) -> None:
        """Give it the wanted sources; those that are there stay as they are, order included."""
        there = after.get("sources") or []
        gone, new = removed(there, wanted), added(there, wanted)
        after["sources"] = [*(source for source in there if source not in gone), *new]
        if any(
            (config or {}).get("allow_msg_ttl") for source, config in zip(wanted, configs, strict=True) if source in new
        ):
            after["allow_msg_ttl"] = True

    def _deny_purge(self, name: str, after: StreamConfig, model: Mirror | Aggregate) -> None:
        if "deny_purge" in self.topology.named.get(name, ()) and model.deny_purge != bool(after.get("deny_purge")):
            after |= {"deny_purge": model.deny_purge, "allow_rollup_hdrs": not model.deny_purge}

    def _marked(self, config: StreamConfig) -> StreamConfig:
        """With the topology's mark; what another topology made stays its own."""
        metadata = {TOPOLOGY: self.topology.name, **(config.get("metadata") or {})}
        return {**config, "metadata": metadata}

    # -- origins ---------------------------------------------------------------------------------------------

    def _locate(self, place: str, origin: Origin) -> Located:
        seen = self.looked.get((place, origin))
        external = origin.external
        if external and external.domain and external.domain == self.places[place].domain:
            external = None  # servers take their own domain for another one, and never deliver
        here = replace(origin, external=external)
        home = place if external is None else self._home(place, here)
        streams = [origin.stream] if origin.stream else [STREAM_PREFIX + origin.bucket, origin.bucket]
        for number, stream in enumerate(streams):
            where = (home or place, stream)
            if home is not None and self._is_there(where, mirror=number > 0):
                return Located(self._completed(here, where), where, True, seen)
        if seen is not None:
            return Located(seen.origin, None, seen.exists, seen)
        return Located(_guessed(here), None, None if external else False)

    def _home(self, place: str, origin: Origin) -> str | None:
        """The place in view that an origin of another domain or account is in."""
        domain = origin.external.domain if origin.external else None
        others = [other for other in self.places.values() if other.name != place]
        if domain is not None:
            others = [other for other in others if other.domain == domain]
        said = [other.name for other in others if self._name_at((other.name, origin.source_stream)) is not None]
        said += [other.name for other in others if self._name_at((other.name, origin.name)) is not None]
        if said:
            return said[0]
        return others[0].name if domain is not None and others else None

    def _is_there(self, where: Where, *, mirror: bool) -> bool:
        """Whether something is there, or will be."""
        if self._name_at(where) is not None:
            return True
        live = self.live(where)
        return live is not None and (not mirror or bool(live["config"].get("mirror")))

    def _completed(self, origin: Origin, where: Where) -> Origin:
        """With the stream, and the bucket whose keys it holds."""
        stream = where[1]
        if origin.stream and origin.bucket:
            return origin
        bucket = self._key_space(where) if not stream.startswith(STREAM_PREFIX) else stream.removeprefix(STREAM_PREFIX)
        return replace(origin, bucket=bucket, stream="" if stream == STREAM_PREFIX + bucket else stream)

    def _key_space(self, where: Where) -> str:
        """The bucket whose keys a mirror holds."""
        name = self._name_at(where)
        if name is not None and name in self.topology.mirrors:
            return self._locate(where[0], self.topology.mirrors[name].origin).origin.key_space
        live = self.live(where)
        for _ in range(len(self.places[where[0]].infos)):
            mirror = (live or {"config": {}})["config"].get("mirror")
            if not mirror or mirror["name"].startswith(STREAM_PREFIX):
                break
            live = self.live((where[0], mirror["name"]))
        mirror = (live or {"config": {}})["config"].get("mirror") or {"name": where[1]}
        return str(mirror["name"]).removeprefix(STREAM_PREFIX)

    def _name_at(self, where: Where | None) -> str | None:
        """The file's name for what is at a place."""
        if where is None:
            return None
        name = where[1].removeprefix(STREAM_PREFIX)
        topology = self.topology
        known = name in topology.buckets or name in topology.aggregates or name in topology.mirrors
        return name if known and self.where(name) == where else None

    def _config(self, located: Located) -> StreamConfig | None:
        found = self.after(located.where)
        return found or (located.seen.config if located.seen else None)

    def _config_now(self, located: Located) -> StreamConfig | None:
        live = self.live(located.where)
        return live["config"] if live else (located.seen.config if located.seen else None)


def _guessed(origin: Origin) -> Origin:
    """What is not in view is taken for a bucket of the name."""
    if origin.bucket:
        return origin
    return replace(origin, bucket=origin.stream.removeprefix(STREAM_PREFIX))
