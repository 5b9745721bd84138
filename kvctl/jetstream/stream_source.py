"""Sources of a stream: its `mirror` or `sources`, parsed from the configuration. [pure]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvctl.dataclass import dataclass

if TYPE_CHECKING:
    from kvctl.jetstream.stream_info import SourceState, StreamInfo

SourceConfig = dict[str, Any]
"""A source as the server's JSON has it, with all of its fields."""


@dataclass(frozen=True, slots=True)
class Source:
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

    def reads_locally(self, stream: str) -> bool:
        """Return whether it reads the stream of this name in its own account and domain."""
        return self.name == stream and not self.is_external


def sources_of(config: Mapping[str, Any]) -> list[SourceConfig]:
    """Return the mirror or the sources of a stream configuration; empty for a stream that replicates nothing."""
    return [config["mirror"]] if config.get("mirror") else config.get("sources") or []


def parsed_sources(config: Mapping[str, Any]) -> list[Source]:
    """Parse the mirror or the sources of a stream configuration."""
    return [Source.parse(source) for source in sources_of(config)]


def source_states(info: StreamInfo) -> list[SourceState]:
    """Return the states that the server reports of the mirror or the sources, in its own order."""
    return [info["mirror"]] if info.get("mirror") else info.get("sources") or []  # type: ignore[list-item]
