"""Entry point of the library: a connection, its JetStream API, and its buckets."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvctl.connection import Connection
from kvctl.connection import connect as open_connection
from kvctl.contexts import Context, ContextStore, resolve
from kvctl.errors import KvctlError, UsageError
from kvctl.jetstream import direct_get, streams
from kvctl.jetstream.api import DEFAULT_PREFIX, Api
from kvctl.jetstream.consumers import context as streams_and_consumers
from kvctl.kv import catalog
from kvctl.kv import config as configs
from kvctl.kv import settings as fields
from kvctl.kv.bucket import Bucket
from kvctl.kv.names import SUBJECT_PREFIX

if TYPE_CHECKING:
    from kvctl.jetstream.consumers.context import JetStream
    from kvctl.jetstream.stream_info import StreamConfig
    from kvctl.kv.config import BucketConfig, BucketStatus

refuse_cycles: Callable[[Api, StreamConfig], Awaitable[None]] | None = None
"""Raises HazardRefused for a stream whose writes would circulate. The package sets it: topology lies above buckets."""
refuse_namesakes: Callable[[Api, StreamConfig, str, Collection[str]], Awaitable[None]] | None = None
"""Raises HazardRefused for a new bucket beside the mirror of another one of its name. The package sets it, too."""


class Client:
    """Access to the buckets, streams and consumers of one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.api = Api(connection)

    @property
    def jetstream(self) -> JetStream:
        """Streams and consumers (ADR-37)."""
        return streams_and_consumers.JetStream(self.api)

    def bucket(
        self, name: str, *, stream: str | None = None, prefix: str | None = None, read_only: bool = False
    ) -> Bucket:
        """Return a handle without any request. `stream` and `prefix` are for imported subjects. Raises UsageError."""
        return Bucket(self.api, name, stream=stream, prefix=prefix, read_only=read_only)

    async def create_bucket(
        self, config: BucketConfig | str, *, force: Collection[str] = (), **settings: Any
    ) -> Bucket:
        """Create a bucket from a BucketConfig, or from its name and settings; succeed if it exists with the same ones.

        Raises BucketExists (with another configuration), ServerError, HazardRefused: writes would circulate through
        `republish`, or, unless `force` has `shadowed-origin`, a mirror of a bucket elsewhere answers its reads here.
        """
        self.connection.context.require_writable()
        wanted = _config(config, settings)
        await self._refuse_cycles(wanted)
        await self._refuse_namesakes(wanted, force)
        await catalog.create(self.api, wanted)
        return self.bucket(wanted.name)

    async def update_bucket(self, config: BucketConfig) -> Bucket:
        """Apply this configuration to an existing bucket; stream fields that BucketConfig does not cover are kept.

        Smaller limits delete data beyond them. Raises BucketNotFound, HazardRefused (as `create_bucket`), ServerError.
        """
        self.connection.context.require_writable()
        await self._refuse_cycles(config)
        await catalog.update(self.api, config)
        return self.bucket(config.name)

    async def create_or_update_bucket(
        self, config: BucketConfig | str, *, force: Collection[str] = (), **settings: Any
    ) -> Bucket:
        """Create the bucket, or apply the configuration to the existing one. Raises as both."""
        self.connection.context.require_writable()
        wanted = _config(config, settings)
        await self._refuse_cycles(wanted)
        await self._refuse_namesakes(wanted, force)
        await catalog.create_or_update(self.api, wanted)
        return self.bucket(wanted.name)

    async def bucket_names(self) -> list[str]:
        """Return the names of all buckets, aggregates and mirrors."""
        return await catalog.names(self.api)

    async def buckets(self) -> list[BucketStatus]:
        """Return the status of all buckets, aggregates and mirrors."""
        return await catalog.statuses(self.api)

    async def seal_bucket(self, name: str) -> bool:
        """Make a bucket permanently read-only; return False if it is already. Raises BucketNotFound, RefusedError."""
        return await catalog.seal(self.api, name)

    async def delete_bucket(self, name: str) -> None:
        """Delete the bucket with all its data. Raises BucketNotFound."""
        self.connection.context.require_writable()
        await self.bucket(name).destroy()

    async def close(self) -> None:
        """Close the connection."""
        await self.connection.close()

    async def _refuse_cycles(self, config: BucketConfig) -> None:
        """Raise HazardRefused if the bucket would, by its new republishing, receive its own writes."""
        if config.republish is None or refuse_cycles is None:
            return
        wanted = config.to_stream()
        info = await streams.find(self.api, wanted["name"])
        before: StreamConfig = info["config"] if info else {}
        if fields.SETTINGS["republish"].from_stream(before) != config.republish:
            await refuse_cycles(self.api, {**wanted, **before, "republish": wanted["republish"]})

    async def _refuse_namesakes(self, config: BucketConfig, force: Collection[str]) -> None:
        """Raise HazardRefused if a mirror answers reads of a bucket of this name, which does not exist here."""
        if refuse_namesakes is None:
            return
        wanted = config.to_stream()
        if self.api.prefix == DEFAULT_PREFIX:  # elsewhere, a read that nobody answers ends after the timeout
            try:
                await direct_get.last(self.api, wanted["name"], f"{SUBJECT_PREFIX}{config.name}.kvctl-none")
            except KvctlError:
                return
        await refuse_namesakes(self.api, wanted, f"`{config.name}` was not created", force)


@asynccontextmanager
async def connect(
    context: Context | str | Sequence[str] | None = None, *, read_only: bool = False
) -> AsyncIterator[Client]:
    """Connect to a context, to a server by its URL, or by default as the environment and the selected context say.

    Several URLs, in a sequence or separated by commas, are those of one cluster. Raises NoServer,
    AuthenticationRefused, ContextNotFound, UsageError.
    """
    if context is not None and not isinstance(context, Context | str):
        context = Context(url=_servers(context))
    if isinstance(context, str):
        context = Context(url=context) if "://" in context else ContextStore().load(context)
    elif context is None:
        context = resolve({}, os.environ)
    if read_only:
        context = replace(context, read_only=True)
    client = Client(await open_connection(context))
    try:
        yield client
    finally:
        await client.close()


def _servers(urls: Sequence[str]) -> str:
    """Return the URLs as one text. Raises UsageError for what is not a sequence of them."""
    if not isinstance(urls, Sequence) or not urls or not all(isinstance(url, str) and url.strip() for url in urls):
        raise UsageError("`connect` takes a Context, the name of a context, a URL or a sequence of URLs")
    return ",".join(urls)


def _config(config: BucketConfig | str, settings: dict[str, Any]) -> BucketConfig:
    return configs.BucketConfig(name=config, **settings) if isinstance(config, str) else config
