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
from kvctl.versions.catalog import Found
from kvctl.versions.config import STREAM_PREFIX, RepositoryConfig
from kvctl.versions.model import check_text
from kvctl.versions.refs import COMMITS
from kvctl.versions.repository import Repository
from kvctl.versions.store.jetstream_store import BucketStore

AUTHOR = "KVCTL_AUTHOR"
"""The environment variable that names the author of commits."""


class Repositories:
    """Creates, opens, lists and deletes repositories."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._api = client.api

    async def create(self, config: RepositoryConfig | str, *, author: str | None = None, **settings: Any) -> Repository:
        """Create a repository, from a configuration or a name and its settings; the same again is no error.

        It begins with an empty commit and the branch `main`. What an interruption leaves is completed by the next call.
        Raises RepositoryExists (another configuration), OutcomeUnknown, ServerError, UsageError.
        """
        self._check_writable()
        wanted = RepositoryConfig(config, settings=settings) if isinstance(config, str) else config
        made, _ = await create(self._api, wanted, author=author)
        return made

    async def open(self, name: str, *, author: str | None = None) -> Repository:
        """A handle on the repository. Raises RepositoryNotFound."""
        return await open_repository(self._api, name, author=author)

    async def listing(self) -> list[Found]:
        """All repositories, by name."""
        return await catalog.listing(self._api)

    async def delete(self, name: str) -> None:
        """Delete a repository with all it holds. Raises RepositoryNotFound."""
        self._check_writable()
        await catalog.delete(self._api, name)

    def _check_writable(self) -> None:
        if self._client.connection.context.read_only:
            raise ReadOnly("The connection is read-only")


async def create(api: Api, config: RepositoryConfig, *, author: str | None = None) -> tuple[Repository, bool]:
    """See `Repositories.create`; also whether it was not there before, or not whole."""
    author = check_text(default_author() if author is None else author, "author")
    found, fresh = await catalog.create(api, config)
    repository = handle(api, found, author)
    if not fresh and (await repository.branches() or await _has_commits(repository)):
        return repository, False
    with suppress(ConflictError):  # somebody else completes it at the same time
        await repository.init()
    return repository, True


async def open_repository(api: Api, name: str, *, author: str | None = None, write: bool = False) -> Repository:
    """A handle on the repository. Raises RepositoryNotFound, also when its creation was interrupted.

    Raises ReadOnly for a mirror that is to be written to.
    """
    return (await opened(api, name, author=author, write=write))[1]


async def opened(api: Api, name: str, *, author: str | None = None, write: bool = False) -> tuple[Found, Repository]:
    """`open_repository`, with the stream that it is, found in the same request."""
    found = await catalog.find(api, name)
    if write and found.origin:
        origin = found.origin.removeprefix(STREAM_PREFIX)
        raise ReadOnly(f"`{name}` mirrors repository `{origin}`", hint=f"Write to `{origin}` itself")
    if not found.info["state"]["messages"]:
        if found.origin:
            raise RepositoryNotFound(
                f"Mirror `{name}` holds nothing yet", hint=f"`kvctl mirror show {name}` shows how far it is"
            )
        raise RepositoryNotFound(
            f"Repository `{name}` is not complete: its creation was interrupted, or goes on",
            hint=f"`kvctl repo init {name}` completes it",
        )
    return found, handle(api, found, author)


def handle(api: Api, found: Found, author: str | None = None) -> Repository:
    """The repository of a stream; without an author, commits are the user's (`default_author`)."""
    name = found.config.name
    bucket = Bucket(api, name, stream=found.stream, prefix=found.prefix, read_only=found.origin is not None)
    return Repository(BucketStore(bucket), author=default_author() if author is None else author)


def default_author() -> str:
    """Who commits, unless it is said: what `KVCTL_AUTHOR` holds, else user and host as in `ann@laptop`."""
    if named := os.environ.get(AUTHOR):
        return named
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


async def _has_commits(repository: Repository) -> bool:
    async with repository.store.scan(COMMITS, batch=1) as entries:
        return await anext(entries, None) is not None
