"""What a repository is configured to be, and the stream that makes it so. [pure]

A repository is the stream `KVR_<name>`, whose records live below `$KVR.<name>.`, out of reach of what is written to
buckets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from kvctl.errors import UsageError
from kvctl.kv.config import BucketConfig, StreamConfig
from kvctl.kv.config_edit import FIELDS, edited
from kvctl.kv.names import BUCKET_PATTERN
from kvctl.kv.stream_kind import KIND

REPOSITORY = "repository"
"""The value of the metadata mark of a repository's stream."""
LAYOUT = "kvctl.repository.layout"
"""Metadata that says how records are laid out; the value is the number of the layout."""
VERSION = 1
"""The layout that this kvctl writes, and the newest that it reads."""
STREAM_PREFIX = "KVR_"
SUBJECT_PREFIX = "$KVR."
MAX_NAME = 251
"""Characters: a stream's name has 255 at most."""
SETTINGS = ("description", "replicas", "storage", "max_bytes", "compress", "cluster", "tags", "metadata")
"""Fields of a bucket that a repository has too: nothing in it expires, and it has a history of its own kind."""

_NAME = re.compile(rf"{BUCKET_PATTERN}\Z")


@dataclass(frozen=True, slots=True)
class RepositoryConfig:
    """A repository, by its name and the settings of its stream."""

    name: str
    _: KW_ONLY
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of BucketConfig (SETTINGS)."""

    def __post_init__(self) -> None:
        check_repository(self.name)
        if unknown := [name for name in self.settings if name not in SETTINGS]:
            raise UsageError(f"`{unknown[0]}` is not a setting of a repository")

    def stream(self, life: int) -> StreamConfig:
        """The stream that is the repository; `life` is its first sequence. Raises UsageError for a bad setting."""
        stream = BucketConfig(self.name, atomic=True).to_stream()
        stream |= {
            "name": stream_name(self.name),
            "subjects": [f"{subject_prefix(self.name)}>"],
            "first_seq": life,
            "allow_msg_ttl": True,
            "deny_delete": False,  # objects that nothing refers to are deleted by their sequence
            "metadata": {KIND: REPOSITORY, LAYOUT: str(VERSION)},
        }
        return edited(stream, self.settings)

    @classmethod
    def from_stream(cls, stream: StreamConfig) -> RepositoryConfig:
        """The repository that a stream is, which must be one."""
        bucket = BucketConfig.from_stream(stream)
        settings = {name: value for name in SETTINGS if (value := getattr(bucket, name)) != FIELDS[name]}
        return cls(stream["name"].removeprefix(STREAM_PREFIX), settings=settings)


def check_repository(name: str) -> str:
    """The name itself. Raises UsageError."""
    if not _NAME.match(name):
        what = f"`{name}` is not the name of a repository" if name else "The name of the repository is empty"
        raise UsageError(what, hint="It is made of letters, digits, `_` and `-`")
    if len(name) > MAX_NAME:
        raise UsageError(f"The name of the repository has {len(name)} characters, {MAX_NAME} are the most")
    return name


def is_repository(stream: StreamConfig) -> bool:
    """Whether the stream is a repository."""
    metadata = stream.get("metadata") or {}
    return stream["name"].startswith(STREAM_PREFIX) and metadata.get(KIND) == REPOSITORY and LAYOUT in metadata


def layout(stream: StreamConfig) -> int:
    """The layout of a repository's records."""
    text = stream["metadata"][LAYOUT]
    return int(text) if text.isdecimal() else VERSION + 1


def stream_name(repository: str) -> str:
    """The stream that is the repository."""
    return STREAM_PREFIX + repository


def subject_prefix(repository: str) -> str:
    """What the subjects of all its records begin with."""
    return f"{SUBJECT_PREFIX}{repository}."
