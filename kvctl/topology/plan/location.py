"""Location of the origins that a topology file names: in a place of the file, or out of view. [pure]"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kvctl.jetstream.stream_info import StreamInfo
from kvctl.kv import stream_kind
from kvctl.kv.names import STREAM_PREFIX
from kvctl.topology.model.file import Topology
from kvctl.topology.model.origins import Origin
from kvctl.topology.survey.graph import Place, Where
from kvctl.topology.survey.origin_lookup import OriginView

Looked = Mapping[tuple[str, Origin], OriginView]
"""Origins in other domains and accounts, as found from a place."""


class FilePlace(NamedTuple):
    """A place that is known only from the file."""

    name: str
    domain: str | None = None
    infos: Mapping[str, StreamInfo] = {}
    seen: bool = False


class OriginLocation(NamedTuple):
    """An origin and its location."""

    origin: Origin
    """The origin with bucket and stream named, and without the reader's own domain."""
    where: Where | None
    """None: not in view."""
    exists: bool | None
    """True if it exists when the change is applied; None: unknown."""
    seen: OriginView | None = None
    """Result of its lookup, if it is in another domain or account."""

    @property
    def key(self) -> tuple[str, str]:
        """Stream and API prefix that its source reads."""
        return self.origin.source_stream, self.origin.external.api if self.origin.external else ""


@dataclass(frozen=True, slots=True)
class Locator:
    """Locations by the file, the found streams, and the lookups of origins elsewhere."""

    topology: Topology
    places: Mapping[str, Place | FilePlace]
    looked: Looked = field(default_factory=dict)
    held: dict[Where, str] = field(default_factory=dict, compare=False, repr=False)
    """Buckets whose keys mirrors hold, as far as they were asked for."""

    def where(self, name: str) -> Where:
        """Return the location of a resource of the file."""
        mirror = name in self.topology.mirrors
        return self.topology.place_of(name), name if mirror else STREAM_PREFIX + name

    def live(self, where: Where | None) -> StreamInfo | None:
        """Return the current info of a stream, if it is in view."""
        return self.places[where[0]].infos.get(where[1]) if where and where[0] in self.places else None

    def name_at(self, where: Where | None) -> str | None:
        """Return the file's name for a location."""
        if where is None:
            return None
        name = where[1].removeprefix(STREAM_PREFIX)
        topology = self.topology
        known = name in topology.buckets or name in topology.aggregates or name in topology.mirrors
        return name if known and self.where(name) == where else None

    def locate(self, place: str, origin: Origin) -> OriginLocation:
        """Locate an origin of a resource in a place, and complete it as far as it is in view."""
        seen = self.looked.get((place, origin))
        here = self._without_own_domain(place, origin)
        where = self._found(place, here)
        if where is not None and self._may_be(where, seen):
            return OriginLocation(self._completed(here, where), where, True, seen)
        if seen is not None:
            return OriginLocation(seen.origin, None, seen.exists, seen)
        guessed = replace(here, bucket=here.name)  # one that is not in view counts as a bucket of its name
        return OriginLocation(guessed, None, None if here.external or not self.places[place].seen else False)

    def _without_own_domain(self, place: str, origin: Origin) -> Origin:
        """Return the origin without the reader's own domain: servers treat it as another one and never deliver."""
        domain = origin.external.domain if origin.external else None
        return replace(origin, external=None) if domain and domain == self.places[place].domain else origin

    def _found(self, place: str, origin: Origin) -> Where | None:
        """Return the stream that an origin's name means: the bucket's own, else a mirror's, else a repository's."""
        home = place if origin.external is None else self._home(place, origin)
        for number, stream in enumerate(origin.candidates):
            if home is not None and self._is_there((home, stream), bucket=number == 0):
                return home, stream
        return None

    def _home(self, place: str, origin: Origin) -> str | None:
        """Return the place in view of an origin in another domain or account."""
        domain = origin.external.domain if origin.external else None
        others = [other for other in self.places.values() if other.name != place]
        if domain is not None:
            others = [other for other in others if other.domain == domain or not (other.seen or other.domain)]
        known = [other.name for other in others if self.name_at((other.name, origin.source_stream)) is not None]
        known += [other.name for other in others if self.name_at((other.name, origin.name)) is not None]
        if known:
            return known[0]
        return others[0].name if domain is not None and others else None

    def _is_there(self, where: Where, *, bucket: bool) -> bool:
        """Return whether the stream exists or will; instead of a bucket, only a mirror or a repository counts."""
        if self.name_at(where) is not None:
            return True
        live = self.live(where)
        return live is not None and (bucket or bool(live["config"].get("mirror") or stream_kind.owner(live["config"])))

    def _may_be(self, where: Where, seen: OriginView | None) -> bool:
        """Return whether a lookup can have found this stream: no two are created in the same nanosecond."""
        live = self.live(where)
        return not (live and seen and seen.info) or live["created"] == seen.info["created"]

    def _completed(self, origin: Origin, where: Where) -> Origin:
        """Return the origin with its stream, and the bucket whose keys it holds."""
        stream = where[1]
        if origin.stream and origin.bucket:
            return origin
        if stream_kind.NAMES.match(stream):
            return origin.found_as(stream, stream.partition("_")[2])
        bucket = self._key_space(where) if not stream.startswith(STREAM_PREFIX) else stream.removeprefix(STREAM_PREFIX)
        return origin.found_as(stream, bucket)

    def _key_space(self, where: Where) -> str:
        """Return the bucket whose keys a mirror holds, also of a mirror of mirrors."""
        passed: dict[Where, None] = {}
        found = ""
        while not found and where not in passed and not where[1].startswith(STREAM_PREFIX):
            passed[where] = None
            origin = self._origin_of(where)
            if where in self.held:
                found = self.held[where]
            elif origin is None:
                break
            elif origin.bucket and (origin.stream or self._found(where[0], origin) is None):
                found = origin.bucket
            else:
                where = self._found(where[0], origin) or (where[0], origin.source_stream)
        found = found or where[1].removeprefix(STREAM_PREFIX)
        if where not in passed or where in self.held:  # no cycle, in which it depends on the first one
            self.held.update(dict.fromkeys(passed, found))
        return found

    def _origin_of(self, where: Where) -> Origin | None:
        """Return the origin of a mirror, as in the file, or as found."""
        name = self.name_at(where)
        if name is not None and name in self.topology.mirrors:
            return self._without_own_domain(where[0], self.topology.mirrors[name].origin)
        live = self.live(where)
        mirror = live["config"].get("mirror") if live else None
        return Origin(stream=mirror["name"]) if mirror else None


def unseen(topology: Topology) -> Locator:
    """Return the locations by a file alone."""
    contexts = {name: FilePlace(name, context.get("domain")) for name, context in topology.contexts.items()}
    return Locator(topology, {"": FilePlace("")} | contexts)
