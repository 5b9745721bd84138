"""Configuration of a repository, and the stream that implements it. [pure]

A repository is the stream `KVR_<name>`, whose records are below `$KVR.<name>.`, out of reach of writes to buckets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from kvctl.errors import UsageError
from kvctl.kv.config import BucketConfig, StreamConfig, edited
from kvctl.kv.names import BUCKET_PATTERN
from kvctl.kv.settings import FIELDS, settings_of
from kvctl.kv.stream_kind import KIND

REPOSITORY = "repository"
"""Value of the metadata mark of a repository's stream."""
LAYOUT = "kvctl.repository.layout"
"""Metadata key of the version of the record layout."""
VERSION = 1
"""Layout version that this kvctl writes, and the newest that it reads."""
STREAM_PREFIX = "KVR_"
SUBJECT_PREFIX = "$KVR."
MAX_NAME = 251
"""Maximum number of characters: a stream's name has at most 255."""
SETTINGS = settings_of("repository")
"""Bucket settings that a repository has, too: no ttl, as nothing expires, and no history, as it has its own."""

_NAME = re.compile(rf"{BUCKET_PATTERN}\Z")


@dataclass(frozen=True, slots=True)
class RepositoryConfig:
    """Repository, by its name and the settings of its stream."""

    name: str
    _: KW_ONLY
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of BucketConfig (SETTINGS)."""

    def __post_init__(self) -> None:
        check_repository(self.name)
        if unknown := [name for name in self.settings if name not in SETTINGS]:
            raise UsageError(f"`{unknown[0]}` is not a setting of a repository")

    def stream(self, life: int) -> StreamConfig:
        """Return the repository's stream; `life` is its first sequence. Raises UsageError for an invalid setting."""
        stream = BucketConfig(self.name, atomic=True).to_stream()
        stream |= {
            "name": stream_name(self.name),
            "subjects": [f"{subject_prefix(self.name)}>"],
            "first_seq": life,
            "allow_msg_ttl": True,
            "deny_delete": False,  # unreferenced objects are deleted by their sequence
            "metadata": {KIND: REPOSITORY, LAYOUT: str(VERSION)},
        }
        return edited(stream, self.settings)

    @classmethod
    def from_stream(cls, stream: StreamConfig) -> RepositoryConfig:
        """Return the configuration of a repository's stream."""
        bucket = BucketConfig.from_stream(stream)
        settings = {name: value for name in SETTINGS if (value := getattr(bucket, name)) != FIELDS[name]}
        return cls(stream["name"].removeprefix(STREAM_PREFIX), settings=settings)


def check_repository(name: str) -> str:
    """Return the name. Raises UsageError."""
    if not _NAME.match(name):
        what = f"`{name}` is not a valid repository name" if name else "The repository name is empty"
        raise UsageError(what, hint="Use letters, digits, `_` and `-`")
    if len(name) > MAX_NAME:
        raise UsageError(f"The repository name has {len(name)} characters; the maximum is {MAX_NAME}")
    return name


def is_repository(stream: StreamConfig) -> bool:
    """Return whether the stream is a repository."""
    metadata = stream.get("metadata") or {}
    return stream["name"].startswith(STREAM_PREFIX) and metadata.get(KIND) == REPOSITORY and LAYOUT in metadata


def layout(stream: StreamConfig) -> int:
    """Return the layout version of a repository's records."""
    text = stream["metadata"][LAYOUT]
    return int(text) if text.isdecimal() else VERSION + 1


def stream_name(repository: str) -> str:
    """Return the name of the repository's stream."""
    return STREAM_PREFIX + repository


def subject_prefix(repository: str) -> str:
    """Return the prefix of the subjects of all its records."""
    return f"{SUBJECT_PREFIX}{repository}."
