"""Create, find, list and delete repositories: streams with a metadata mark."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kvctl.errors import BucketNotFound, ConflictError, KvctlError, RefusedError, RepositoryExists, RepositoryNotFound
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.config_diff import listed
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.jetstream.streams import ServerClock
from kvctl.kv import catalog
from kvctl.kv.config import differences
from kvctl.kv.names import STREAM_PREFIX as BUCKETS
from kvctl.suggest import did_you_mean
from kvctl.versions.config import (
    STREAM_PREFIX,
    VERSION,
    RepositoryConfig,
    check_repository,
    is_repository,
    layout,
    stream_name,
    subject_prefix,
)


@dataclass(frozen=True, slots=True)
class Found:
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


async def create(api: Api, config: RepositoryConfig) -> tuple[Found, bool]:
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


async def find(api: Api, name: str) -> Found:
    """Find the repository of this name, or a mirror of one. Raises RepositoryNotFound, RefusedError (newer layout)."""
    info = await streams.find(api, stream_name(check_repository(name)))
    if info is None and (mirror := await streams.find(api, name)) and _mirrors_repository(mirror["config"]):
        return Found(RepositoryConfig(name), mirror)
    if info is None or not is_repository(info["config"]):
        raise await _missing(api, name)
    if layout(info["config"]) > VERSION:
        raise RefusedError(f"Repository `{name}` was created by a newer version of kvctl", hint="Upgrade kvctl")
    return found(info)


async def listing(api: Api) -> list[Found]:
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


def found(info: StreamInfo) -> Found:
    """Return the repository of a stream, which must be one."""
    return Found(RepositoryConfig.from_stream(info["config"]), info)


def _mirrors_repository(stream: dict[str, Any]) -> bool:
    return str((stream.get("mirror") or {}).get("name", "")).startswith(STREAM_PREFIX)


def _require_same(info: StreamInfo, config: RepositoryConfig) -> None:
    there = info["config"]
    if not is_repository(there):
        raise RepositoryExists(f"Stream `{there['name']}` exists and is not a repository", hint="Choose another name")
    if differing := differences(there, config.stream(there["first_seq"])):
        raise RepositoryExists(
            f"Repository `{config.name}` exists with another configuration (existing -> requested):\n"
            f"{listed(differing)}",
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
