"""Stream information as servers give it, and its sources, as kvctl reads it. [pure]

Only the keys that kvctl reads are declared; servers send more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NotRequired, TypedDict

StreamConfig = dict[str, Any]
"""Configuration of a stream: the server's own JSON, with every field that it knows (`config_text.STREAM`)."""


class StreamState(TypedDict):
    """Messages of a stream. Times are RFC 3339; of an empty stream `first_seq` is `last_seq` + 1."""

    messages: int
    bytes: int
    first_seq: int
    first_ts: str
    last_seq: int
    last_ts: str
    num_subjects: NotRequired[int]
    num_deleted: NotRequired[int]
    """Sequences between the first and the last that hold no message."""
    consumer_count: int
    subjects: NotRequired[dict[str, int] | None]
    """Messages by subject, one page, only when a filter was sent."""


class Peer(TypedDict):
    """A server with a copy of a stream that does not lead it."""

    name: str
    current: NotRequired[bool]
    offline: NotRequired[bool]
    active: NotRequired[int]
    """Nanoseconds since the leader last heard of it."""
    lag: NotRequired[int]


class Cluster(TypedDict):
    """Servers of a stream."""

    name: NotRequired[str]
    leader: NotRequired[str]
    """Absent or empty while no server leads."""
    replicas: NotRequired[list[Peer] | None]


class SourceState(TypedDict, total=False):
    """State of a mirror or of one source; empty when it is not known. Servers leave out what they do not know yet."""

    name: str
    lag: int
    active: int
    """Nanoseconds since it last heard of its origin; -1: never."""
    seq: int
    error: dict[str, Any]
    external: dict[str, str] | None
    filter_subject: str
    subject_transforms: list[dict[str, str]] | None


class Alternate(TypedDict):
    """A stream that can answer for another, nearest first in the list."""

    name: str
    cluster: str
    domain: NotRequired[str]


class StreamInfo(TypedDict):
    """Answer to `STREAM.INFO`, `STREAM.CREATE` and `STREAM.UPDATE`, and an item of `STREAM.LIST`."""

    config: StreamConfig
    created: str
    """RFC 3339. Tells a stream from an earlier one of the same name."""
    state: StreamState
    cluster: NotRequired[Cluster | None]
    mirror: NotRequired[SourceState | None]
    sources: NotRequired[list[SourceState] | None]
    alternates: NotRequired[list[Alternate] | None]
    did_create: NotRequired[bool]
    """Only in the answer to a creation: false when it existed."""
    ts: NotRequired[str]
    """The server's time."""


_EMPTY = StreamState(messages=0, bytes=0, first_seq=0, first_ts="", last_seq=0, last_ts="", consumer_count=0)
UNREADABLE: StreamInfo = {"config": {}, "created": "", "state": _EMPTY}
"""Stands for a stream whose info cannot be read: without messages and with the default configuration."""


SourceConfig = dict[str, Any]
"""A source as the server's JSON has it, with all of its fields."""


class Source(NamedTuple):
    """A mirror or source: the stream that it reads, the way there, and the messages that it takes."""

    name: str
    """The stream that it reads."""
    api: str = ""
    """API prefix of another account or domain; empty in the stream's own."""
    deliver: str = ""
    """Subject prefix of deliveries from another account; empty where none is needed."""
    filter_subject: str = ""
    transforms: tuple[tuple[str, str], ...] = ()
    """Subjects that it takes and the subjects that they become, empty for the same."""

    @classmethod
    def parse(cls, source: Mapping[str, Any]) -> Source:
        """Read a source of a configuration, or the state of one that a server reports."""
        external = source.get("external") or {}
        return cls(
            source.get("name", ""),
            external.get("api") or "",
            external.get("deliver") or "",
            source.get("filter_subject") or "",
            tuple((rule.get("src") or "", rule.get("dest") or "") for rule in source.get("subject_transforms") or ()),
        )

    @property
    def is_external(self) -> bool:
        """True when it reads from another account or domain."""
        return bool(self.api or self.deliver)

    @property
    def domain(self) -> str | None:
        """Return the JetStream domain of an API prefix `$JS.NAME.API`, None for any other."""
        parts = self.api.split(".")
        return parts[1] if len(parts) == 3 and parts[0] == "$JS" else None

    @property
    def where(self) -> str:
        """Its domain or API prefix in words: ``in domain `hub` ``, ``under `ORIGIN.API` ``."""
        return f"in domain `{self.domain}`" if self.domain else f"under `{self.api}`"

    @property
    def way(self) -> str:
        """Option of a command line that leads there: `--domain hub`, `--api-prefix ORIGIN.API`."""
        return f"--domain {self.domain}" if self.domain else f"--api-prefix {self.api}"

    def reads_locally(self, stream: str) -> bool:
        """Return whether it reads the stream of this name in its own account and domain."""
        return self.name == stream and not self.is_external


def sources_of(config: Mapping[str, Any]) -> list[SourceConfig]:
    """Return the mirror or the sources of a stream configuration; empty for a stream that replicates nothing."""
    return [config["mirror"]] if config.get("mirror") else config.get("sources") or []


def parsed_sources(config: Mapping[str, Any]) -> list[Source]:
    """Parse the mirror or the sources of a stream configuration."""
    return [Source.parse(source) for source in sources_of(config)]


def readers_of_others(configs: Iterable[StreamConfig], stream: str) -> list[tuple[StreamConfig, Source]]:
    """Return those that read a stream of this name in another account or domain, mirrors first, and how they do."""
    pairs = [(config, source) for config in configs for source in parsed_sources(config)]
    found = [(config, source) for config, source in pairs if source.is_external and source.name == stream]
    return sorted(found, key=lambda pair: not pair[0].get("mirror"))


def source_states(info: StreamInfo) -> list[SourceState]:
    """Return the states that the server reports of the mirror or the sources, in its own order."""
    return [info["mirror"]] if info.get("mirror") else info.get("sources") or []  # type: ignore[list-item]
