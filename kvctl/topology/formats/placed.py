"""Streams in the contexts of a topology, as formats of other tools contain them. [pure]"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvctl.errors import UsageError
from kvctl.jetstream.config import config_text
from kvctl.jetstream.stream_info import StreamConfig
from kvctl.jetstream.stream_source import sources_of
from kvctl.units import MAX_INT64

Contexts = Mapping[str, Mapping[str, str]]
"""Fields of the contexts of a topology file, by name."""


@dataclass(frozen=True, slots=True)
class Placed:
    """One stream and its context, empty for the one in use."""

    config: StreamConfig
    place: str = ""

    @property
    def name(self) -> str:
        """Name of the stream."""
        return str(self.config["name"])


@dataclass(slots=True)
class Found:
    """Streams that files of another tool describe, and what a topology file has no place for."""

    streams: list[Placed] = field(default_factory=list)
    contexts: dict[str, dict[str, str]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Resources that are not streams, or cannot be read, with the reason."""
    remarks: dict[str, list[str]] = field(default_factory=dict)
    """What is not expressed of a stream, by the stream's name."""
    _known: set[tuple[str, str]] = field(default_factory=set)

    def leave_out(self, label: str, reason: str) -> None:
        """Note a resource that is left out; several may have the same label."""
        self.left_out[unique(label, self.left_out)] = reason

    def add(self, stream: Placed, remarks: Collection[str] = ()) -> None:
        """Add a stream; a second one of its name in the same context is left out."""
        if (stream.name, stream.place) in self._known:
            self.leave_out(f"stream {stream.name}", "described more than once, and the first description is used")
            return
        self._known.add((stream.name, stream.place))
        self.streams.append(stream)
        if remarks:
            self.remarks[stream.name] = [*remarks]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """Content of one file of another tool."""

    name: str
    """Name for messages."""
    data: Any
    """Plain data."""
    place: str = ""
    """Context that the file's folder names."""


def checked(config: Mapping[str, Any]) -> StreamConfig:
    """Return a stream configuration by other hands, whose values are of the right kinds. Raises UsageError."""
    found = config_text.read({"config": dict(config)}, config_text.STREAM, lambda *path: ".".join(map(str, path[1:])))
    if not found.get("name"):
        raise UsageError("it has no `name`")
    for source in sources_of(found):
        if not source or not source.get("name") or None in (source.get("subject_transforms") or ()):
            raise UsageError("it has an incomplete origin")
    if any(not isinstance(text, str) for text in (found.get("metadata") or {}).values()):
        raise UsageError("metadata must be text")
    if any(not -MAX_INT64 <= number <= MAX_INT64 for number in found.values() if isinstance(number, int)):
        raise UsageError("a number is out of range")
    return found


def labels(streams: Iterable[Placed], contexts: Contexts, label: Callable[[str], str]) -> dict[str, str]:
    """Return a unique name for each context that has a connection of its own, as a format can write it."""
    found: dict[str, str] = {}
    for place in dict.fromkeys(stream.place for stream in streams):
        if {"context", "url"} & contexts.get(place, {}).keys():
            found[place] = unique(label(place), found.values())
    return found


def unique(name: str, taken: Collection[str]) -> str:
    """Return the name, or with the first number that makes it unique: `orders-2`."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found
