"""Repositories as streams with a metadata mark: configuration, creation, lookup, listing, deletion.

A repository is the stream `KVR_<name>`, whose records are below `$KVR.<name>.`, out of reach of writes to buckets.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

from kvctl.deferred import pattern
from kvctl.errors import (
    BucketNotFound,
    ConflictError,
    KvctlError,
    RefusedError,
    RepositoryExists,
    RepositoryNotFound,
    UsageError,
)
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.jetstream.streams import ServerClock
from kvctl.kv import catalog
from kvctl.kv.config import BucketConfig, StreamConfig, differences, edited
from kvctl.kv.names import BUCKET_PATTERN
from kvctl.kv.names import STREAM_PREFIX as BUCKETS
from kvctl.kv.settings import FIELDS, settings_of
from kvctl.kv.stream_kind import KIND
from kvctl.phrases import indented
from kvctl.suggest import did_you_mean

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

_NAME = pattern(rf"{BUCKET_PATTERN}\Z")


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


class ExistingRepository(NamedTuple):
    """Existing repository."""

    config: RepositoryConfig
    info: StreamInfo
    """Information of its stream."""

    @property
    def stream(self) -> str:
        """Name of its stream."""
        return str(self.info["config"]["name"])

    @property
    def origin(self) -> str | None:
        """Stream that this one mirrors; None for the repository itself."""
        mirror = self.info["config"].get("mirror")
        return str(mirror["name"]) if mirror else None

    @property
    def prefix(self) -> str:
        """Prefix of the subjects of its records."""
        return subject_prefix((self.origin or self.stream).removeprefix(STREAM_PREFIX))


async def create(api: Api, config: RepositoryConfig) -> tuple[ExistingRepository, bool]:
    """Create a repository's stream; return it, and whether it is new. An existing one must have the same configuration.

    Raises RepositoryExists, OutcomeUnknown, ServerError, and KvctlError if the server is too old.
    """
    name = stream_name(config.name)
    info = await streams.find(api, name)
    fresh = info is None
    if info is None:
        try:
            # Microseconds since 1970: no repository writes faster, so sequences of two lives never overlap.
            life = (await ServerClock.of_connection(api)).now_ns() // 1000
            info = await catalog.create_stream(api, config.stream(life))
        except ConflictError:
            info, fresh = await streams.info(api, name), False
    _require_same(info, config)
    return found(info), fresh


async def find(api: Api, name: str) -> ExistingRepository:
    """Find the repository of this name, or a mirror of one. Raises RepositoryNotFound, RefusedError (newer layout)."""
    info = await streams.find(api, stream_name(check_repository(name)))
    if info is None and (mirror := await streams.find(api, name)) and _mirrors_repository(mirror["config"]):
        return ExistingRepository(RepositoryConfig(name), mirror)
    if info is None or not is_repository(info["config"]):
        raise await _missing(api, name)
    if layout(info["config"]) > VERSION:
        raise RefusedError(f"Repository `{name}` was created by a newer version of kvctl", hint="Upgrade kvctl")
    return found(info)


async def listing(api: Api) -> list[ExistingRepository]:
    """List all repositories, by name."""
    infos = (await streams.listing(api)).answering
    return sorted((found(info) for info in infos if is_repository(info["config"])), key=lambda item: item.config.name)


async def delete(api: Api, name: str) -> None:
    """Delete a repository with all its content. Raises RepositoryNotFound, OutcomeUnknown."""
    try:
        await catalog.delete(api, await _own(api, name))
    except BucketNotFound:  # deleted concurrently
        raise RepositoryNotFound(f"Repository `{name}` does not exist") from None


async def _own(api: Api, name: str) -> str:
    """Return the stream of a repository that is not a mirror."""
    there = await find(api, name)
    if there.origin:
        raise RefusedError(f"`{name}` is a mirror of `{there.origin}`", hint=f"`kvctl mirror delete {name}` deletes it")
    return there.stream


def found(info: StreamInfo) -> ExistingRepository:
    """Return the repository of a stream, which must be one."""
    return ExistingRepository(RepositoryConfig.from_stream(info["config"]), info)


def _mirrors_repository(stream: dict[str, Any]) -> bool:
    return str((stream.get("mirror") or {}).get("name", "")).startswith(STREAM_PREFIX)


def _require_same(info: StreamInfo, config: RepositoryConfig) -> None:
    there = info["config"]
    if not is_repository(there):
        raise RepositoryExists(f"Stream `{there['name']}` exists and is not a repository", hint="Choose another name")
    if differing := differences(there, config.stream(there["first_seq"])):
        raise RepositoryExists(
            indented(
                f"Repository `{config.name}` exists with another configuration (existing -> requested):", differing
            ),
            hint=f"`kvctl repo show {config.name}` shows it; use the same options or another name",
        )


async def _missing(api: Api, name: str) -> RepositoryNotFound:
    names: list[str] = []
    with suppress(KvctlError):
        known = await streams.names(api)
        if BUCKETS + name in known:
            return RepositoryNotFound(
                f"`{name}` is a bucket, not a repository: it has no branches, tags or commits",
                hint=f"`kvctl repo init NEWNAME --from {name}` creates a repository with its content",
            )
        names = [one.removeprefix(STREAM_PREFIX) for one in known if one.startswith(STREAM_PREFIX)]
    remedy = f"`kvctl repo ls` lists repositories; `kvctl repo init {name}` creates one"
    return RepositoryNotFound(f"Repository `{name}` does not exist", hint=did_you_mean(name, names, remedy))


def check_repository(name: str) -> str:
    """Return the name. Raises UsageError."""
    if not _NAME.match(name):
        what = f"`{name}` is not a valid repository name" if name else "The repository name is empty"
        raise UsageError(what, hint="Use `A-Z a-z 0-9 _ -`")
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
    return int(text[:9]) if text.isdecimal() else VERSION + 1


def stream_name(repository: str) -> str:
    """Return the name of the repository's stream."""
    return STREAM_PREFIX + repository


def subject_prefix(repository: str) -> str:
    """Return the prefix of the subjects of all its records."""
    return f"{SUBJECT_PREFIX}{repository}."
