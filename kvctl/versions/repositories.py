"""All repositories of one connection."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import suppress
from typing import Any

from kvctl.errors import ConflictError, ReadOnly, RepositoryNotFound
from kvctl.jetstream.api import Api
from kvctl.kv.bucket import Bucket
from kvctl.kv.client import Client
from kvctl.versions import catalog
from kvctl.versions.catalog import STREAM_PREFIX, ExistingRepository, RepositoryConfig
from kvctl.versions.model import check_text
from kvctl.versions.refs import COMMITS
from kvctl.versions.repository import Repository
from kvctl.versions.store.jetstream_store import BucketStore

AUTHOR = "KVCTL_AUTHOR"
"""Environment variable that names the author of commits."""


class Repositories:
    """Creates, opens, lists and deletes repositories."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._api = client.api

    async def create(self, config: RepositoryConfig | str, *, author: str | None = None, **settings: Any) -> Repository:
        """Create a repository from a configuration, or from a name and its settings.

        It begins with an empty commit and the branch `main`. Creating it again with the same configuration is not an
        error, and completes an interrupted creation.
        Raises RepositoryExists (another configuration), OutcomeUnknown, ServerError, UsageError.
        """
        self._client.connection.context.require_writable()
        wanted = RepositoryConfig(config, settings=settings) if isinstance(config, str) else config
        made, _ = await create(self._api, wanted, author=author)
        return made

    async def open(self, name: str, *, author: str | None = None) -> Repository:
        """Open the repository. Raises RepositoryNotFound."""
        return await open_repository(self._api, name, author=author)

    async def listing(self) -> list[ExistingRepository]:
        """List all repositories, by name."""
        return await catalog.listing(self._api)

    async def delete(self, name: str) -> None:
        """Delete a repository with all its content. Raises RepositoryNotFound."""
        self._client.connection.context.require_writable()
        await catalog.delete(self._api, name)


async def create(api: Api, config: RepositoryConfig, *, author: str | None = None) -> tuple[Repository, bool]:
    """See `Repositories.create`; also return whether it was created or completed by this call."""
    author = check_text(default_author() if author is None else author, "author")
    found, fresh = await catalog.create(api, config)
    repository = handle(api, found, author)
    if not fresh and (await repository.branches() or not await repository.store.is_empty(COMMITS)):
        return repository, False
    with suppress(ConflictError):  # another process completes it concurrently
        await repository.init()
    return repository, True


async def open_repository(api: Api, name: str, *, author: str | None = None, write: bool = False) -> Repository:
    """Open the repository. Raises RepositoryNotFound, also when its creation was interrupted.

    Raises ReadOnly for a mirror with `write`.
    """
    return (await opened(api, name, author=author, write=write))[1]


async def opened(
    api: Api, name: str, *, author: str | None = None, write: bool = False
) -> tuple[ExistingRepository, Repository]:
    """Open as `open_repository`, and return its stream as found in the same request."""
    found = await catalog.find(api, name)
    if write and found.origin:
        origin = found.origin.removeprefix(STREAM_PREFIX)
        raise ReadOnly(f"`{name}` is a mirror of repository `{origin}`", hint=f"Write to `{origin}` itself")
    if not found.info["state"]["messages"]:
        if found.origin:
            raise RepositoryNotFound(
                f"Mirror `{name}` is still empty", hint=f"`kvctl mirror show {name}` shows its progress"
            )
        raise RepositoryNotFound(
            f"Repository `{name}` is incomplete: its creation was interrupted or is still running",
            hint=f"`kvctl repo init {name}` completes it",
        )
    return found, handle(api, found, author)


def handle(api: Api, found: ExistingRepository, author: str | None = None) -> Repository:
    """Return the repository of a stream; without an author, commits are the user's (`default_author`)."""
    name = found.config.name
    bucket = Bucket(api, name, stream=found.stream, prefix=found.prefix, read_only=found.origin is not None)
    return Repository(BucketStore(bucket), author=default_author() if author is None else author)


def default_author() -> str:
    """Return the author of commits: `KVCTL_AUTHOR` if set, otherwise user and host as in `ann@laptop`."""
    if named := os.environ.get(AUTHOR):
        return named
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a user id without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
