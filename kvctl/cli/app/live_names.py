"""Live names for completion: contexts, buckets, keys and others; silent on failure, at most one second."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import kvctl
from kvctl import contexts as kvctl_contexts
from kvctl.cli.app.global_options import Shared
from kvctl.jetstream import streams as jetstream_streams
from kvctl.kv import catalog, stream_kind
from kvctl.kv.names import is_ref, split_ref
from kvctl.tables import catalog as tables_catalog
from kvctl.tables import ranges
from kvctl.tables import table as tables_table
from kvctl.versions import catalog as versions_catalog

BUDGET = 0.8
"""Seconds to wait for a server; the rest of the second is Python's start-up."""
MOST_KEYS = 200
Described = tuple[str, str]
"""Name and description."""


def buckets(shared: Shared, incomplete: str, *kinds: str) -> list[Described]:
    """Return names of buckets, mirrors and aggregates, or of these kinds, with their kinds."""

    async def names(client: Any, found: dict[str, str]) -> None:
        listed = await client.buckets()
        found.update({status.bucket: str(status.kind) for status in listed if not kinds or status.kind in kinds})

    return _begun(_ask(shared, names), incomplete)


def keyed(shared: Shared, incomplete: str) -> list[Described]:
    """Return arguments of key commands: names of buckets, and NAME@REF of repositories, with their kinds."""
    if is_ref(incomplete):
        return [(place, "") for place in places(shared, incomplete)]

    async def names(client: Any, found: dict[str, str]) -> None:
        for status in (await catalog.listing(client.api)).statuses:
            if status.kind in (stream_kind.Kind.BUCKET, stream_kind.Kind.AGGREGATE, stream_kind.Kind.MIRROR):
                found[status.bucket] = str(status.kind)
            elif status.kind is stream_kind.Kind.REPOSITORY:
                found[f"{status.bucket}@"] = str(status.kind)

    return _begun(_ask(shared, names), incomplete)


def placements(shared: Shared, incomplete: str, *, tags: bool = False) -> list[str]:
    """Return names of clusters, or with `tags` server tags, as far as streams are placed there."""

    async def names(client: Any, found: dict[str, str]) -> None:
        for info in (await jetstream_streams.listing(client.api)).answering:
            asked = info["config"].get("placement") or {}
            seen = asked.get("tags") or [] if tags else [(info.get("cluster") or {}).get("name"), asked.get("cluster")]
            found.update(dict.fromkeys(filter(None, seen), ""))

    return [name for name in _ask(shared, names) if name.startswith(incomplete)]


def table_keys(shared: Shared, table: str | None, family: str | None, incomplete: str) -> list[str]:
    """Return keys of a table, or of one of its families, that are text."""

    async def names(client: Any, found: dict[str, str]) -> None:
        opened = await tables_table.Table.open(client.api, str(table))
        of = ranges.Range(ranges.Families.ALL if family is None else family, prefix=incomplete.encode())
        async for page in opened.pages(of, values=False, limit=MOST_KEYS):
            found.update(dict.fromkeys([entry.key.decode(errors="replace") for entry in page.entries], ""))

    return [name for name in _ask(shared, names) if name.startswith(incomplete)] if table else []


def revisions(shared: Shared, bucket: str | None, key: str | None, incomplete: str) -> list[Described]:
    """Return the revisions of a key, the latest first, with operation and time."""

    async def names(client: Any, found: dict[str, str]) -> None:
        entries = [entry async for entry in client.bucket(bucket).history(key)]
        for entry in reversed(entries):
            found[str(entry.revision)] = f"{entry.operation} {entry.created:%Y-%m-%d %H:%M:%S}"

    return _begun(_ask(shared, names), incomplete) if bucket and key else []


def tables(shared: Shared, incomplete: str) -> list[str]:
    """Return names of tables."""

    async def names(client: Any, found: dict[str, str]) -> None:
        found.update(dict.fromkeys([table.config.name for table in await tables_catalog.listing(client.api)], ""))

    return [name for name in _ask(shared, names) if name.startswith(incomplete)]


def repositories(shared: Shared, incomplete: str) -> list[str]:
    """Return names of repositories."""

    async def names(client: Any, found: dict[str, str]) -> None:
        found.update(dict.fromkeys([item.config.name for item in await versions_catalog.listing(client.api)], ""))

    return [name for name in _ask(shared, names) if name.startswith(incomplete)]


def places(shared: Shared, incomplete: str, *, branches: bool = True, tags: bool = True) -> list[str]:
    """Return NAME@REF: names of repositories with an `@`, and after it their branches and tags."""
    if not is_ref(incomplete):
        return [f"{found}@" for found in repositories(shared, incomplete)]
    name, ref = split_ref(incomplete)
    return [f"{name}@{found}" for found in refs(shared, name, ref, branches=branches, tags=tags)]


def refs(shared: Shared, repository: str, incomplete: str, *, branches: bool = True, tags: bool = True) -> list[str]:
    """Return branches and tags of a repository."""

    async def names(client: Any, found: dict[str, str]) -> None:
        opened = await kvctl.Repositories(client).open(repository)
        for wanted, listing in ((branches, opened.branches), (tags, opened.tags)):
            found.update(dict.fromkeys(await listing() if wanted else (), ""))

    return [name for name in _ask(shared, names) if name.startswith(incomplete)] if repository else []


def streams(shared: Shared, incomplete: str) -> list[str]:
    """Return names of streams."""

    async def names(client: Any, found: dict[str, str]) -> None:
        found.update(dict.fromkeys(await client.jetstream.stream_names(), ""))

    return [name for name in _ask(shared, names) if name.startswith(incomplete)]


def consumers(shared: Shared, stream: str | None, incomplete: str) -> list[str]:
    """Return names of a stream's consumers."""

    async def names(client: Any, found: dict[str, str]) -> None:
        found.update(dict.fromkeys(await client.jetstream.stream(stream).consumer_names(), ""))

    return [name for name in _ask(shared, names) if name.startswith(incomplete)] if stream else []


def keys(shared: Shared, bucket: str | None, incomplete: str) -> list[str]:
    """Return names of keys up to their next token: `NEW.` represents all keys that begin with it."""
    head = incomplete[: incomplete.rfind(".") + 1]

    async def tokens(client: Any, found: dict[str, str]) -> None:
        async for key in _keys_of(client, str(bucket), head):
            token, dot, _ = key[len(head) :].partition(".")
            if (head + token).startswith(incomplete):
                found[head + token + dot] = ""
            if len(found) >= MOST_KEYS:
                return

    return list(_ask(shared, tokens)) if bucket else []


async def _keys_of(client: Any, bucket: str, head: str) -> AsyncIterator[str]:
    """Return keys of a bucket, or of a repository at a ref."""
    filters = [f"{head}>"] if head else []
    if not is_ref(bucket):
        async for key in client.bucket(bucket).keys(*filters):
            yield key
        return
    name, ref = split_ref(bucket)
    repository = await kvctl.Repositories(client).open(name)
    async for batch in repository.entry_batches(ref, *filters, values=False):
        for entry in batch:
            yield entry.key


def _begun(found: dict[str, str], incomplete: str) -> list[Described]:
    return [(name, about) for name, about in found.items() if name.startswith(incomplete)]


def _ask(shared: Shared, question: Callable[[Any, dict[str, str]], Awaitable[None]]) -> dict[str, str]:
    """Return the names that the query stored within the deadline with descriptions, also partial results."""
    found: dict[str, str] = {}

    async def ask() -> None:
        async with asyncio.timeout(BUDGET):
            context = kvctl_contexts.resolve(shared.connection_flags(), os.environ)
            async with kvctl.connect(replace(context, timeout=timedelta(seconds=BUDGET))) as client:
                await question(client, found)

    with suppress(Exception):
        asyncio.run(ask())
    return found
