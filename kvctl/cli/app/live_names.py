"""Live names for completion, silent on failure, after at most one second: `live("buckets")` asks `_buckets`."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import kvctl
from kvctl import contexts
from kvctl.jetstream import stream_info, streams
from kvctl.kv import catalog, stream_kind
from kvctl.kv.names import is_ref, split_ref
from kvctl.tables import catalog as tables_catalog
from kvctl.tables import ranges, table
from kvctl.versions import catalog as versions_catalog

BUDGET = 0.8
"""Seconds to wait for a server; the rest of the second is Python's start-up."""
MOST_KEYS = 200
Names = AsyncIterator[tuple[str, str]]
"""Names with descriptions; those that do not begin as the word on the line are left out later."""
Given = Mapping[str, Any]
"""Parameters before the word, and the word itself as `incomplete`."""


def offered(question: str, ctx: Any, incomplete: str, **settings: Any) -> list[tuple[str, str]]:
    """Return names that begin with `incomplete`, with descriptions, as far as they arrived in time."""
    found: dict[str, str] = {}
    given = {**ctx.params, "incomplete": incomplete}

    async def ask() -> None:
        async with asyncio.timeout(BUDGET):
            context = contexts.resolve(ctx.obj.connection_flags(), os.environ)
            async with kvctl.connect(replace(context, timeout=timedelta(seconds=BUDGET))) as client:
                async for name, about in globals()[f"_{question}"](client, given, **settings):
                    if name.startswith(incomplete):
                        found[name] = about

    with suppress(Exception):
        asyncio.run(ask())
    return list(found.items())


async def _buckets(client: "kvctl.Client", given: Given, *, kinds: tuple[str, ...] = ()) -> Names:
    """Names of buckets, mirrors and aggregates, or of these kinds, with their kinds."""
    for status in await client.buckets():
        if not kinds or status.kind in kinds:
            yield status.bucket, str(status.kind)


async def _keyed(client: "kvctl.Client", given: Given) -> Names:
    """Arguments of key commands: names of buckets, and NAME@REF of repositories, with their kinds."""
    if is_ref(given["incomplete"]):
        async for place in _places(client, given):
            yield place
        return
    kinds = stream_kind.Kind
    for status in (await catalog.listing(client.api)).statuses:
        if status.kind in (kinds.BUCKET, kinds.AGGREGATE, kinds.MIRROR):
            yield status.bucket, str(status.kind)
        elif status.kind is kinds.REPOSITORY:
            yield f"{status.bucket}@", str(status.kind)


async def _origins(client: "kvctl.Client", given: Given) -> Names:
    """Origins of the aggregate before."""
    for source in stream_info.parsed_sources((await catalog.find(client.api, str(given["name"])))["config"]):
        yield source.name.removeprefix("KV_"), source.domain or ""


async def _placements(client: "kvctl.Client", given: Given, *, tags: bool = False) -> Names:
    """Names of clusters, or with `tags` server tags, as far as streams are placed there."""
    for info in (await streams.listing(client.api)).answering:
        asked = info["config"].get("placement") or {}
        names = asked.get("tags") or [] if tags else [(info.get("cluster") or {}).get("name"), asked.get("cluster")]
        for name in filter(None, names):
            yield str(name), ""


async def _table_keys(client: "kvctl.Client", given: Given) -> Names:
    """Keys of the table before, or of one of its families, that are text."""
    opened = await table.Table.open(client.api, str(given["table"]))
    family = given.get("family")
    of = ranges.Range(ranges.Families.ALL if family is None else family, prefix=given["incomplete"].encode())
    async for page in opened.pages(of, values=False, limit=MOST_KEYS):
        for entry in page.entries:
            yield entry.key.decode(errors="replace"), ""


async def _revisions(client: "kvctl.Client", given: Given) -> Names:
    """Revisions of the key before, the latest first, with operation and time."""
    (key, *_) = given.get("keys") or [given.get("key")]
    for entry in reversed([entry async for entry in client.bucket(given["bucket"]).history(key)]):
        yield str(entry.revision), f"{entry.operation} {entry.created:%Y-%m-%d %H:%M:%S}"


async def _tables(client: "kvctl.Client", given: Given) -> Names:
    for found in await tables_catalog.listing(client.api):
        yield found.config.name, ""


async def _repositories(client: "kvctl.Client", given: Given) -> Names:
    for found in await versions_catalog.listing(client.api):
        yield found.config.name, ""


async def _places(client: "kvctl.Client", given: Given, *, names: bool = False, **kinds: bool) -> Names:
    """NAME@REF: names of repositories with an `@`, with `names` also without, and after it branches and tags."""
    if not is_ref(given["incomplete"]):
        found = [name async for name, _ in _repositories(client, given)]
        for name in [*(found if names else ()), *(f"{name}@" for name in found)]:
            yield name, ""
        return
    name, _ = split_ref(given["incomplete"])
    async for ref, _ in _refs(client, {"name": name}, **kinds):
        yield f"{name}@{ref}", ""


async def _refs(client: "kvctl.Client", given: Given, *, branches: bool = True, tags: bool = True) -> Names:
    """Branches and tags of the repository before."""
    opened = await kvctl.Repositories(client).open(split_ref(str(given.get("name") or given.get("at") or ""))[0])
    for ref in [*(await opened.branches() if branches else ()), *(await opened.tags() if tags else ())]:
        yield ref, ""


async def _streams(client: "kvctl.Client", given: Given) -> Names:
    for name in await client.jetstream.stream_names():
        yield name, ""


async def _consumers(client: "kvctl.Client", given: Given) -> Names:
    for name in await client.jetstream.stream(given["stream"]).consumer_names():
        yield name, ""


async def _keys(client: "kvctl.Client", given: Given) -> Names:
    """Keys of the bucket or ref before, up to their next token: `NEW.` represents all keys that begin with it."""
    incomplete, names = given["incomplete"], set()
    head = incomplete[: incomplete.rfind(".") + 1]
    async for key in _keys_of(client, str(given["bucket"]), head):
        token, dot, _ = key[len(head) :].partition(".")
        if (head + token).startswith(incomplete):
            names.add(head + token + dot)
            yield head + token + dot, ""
        if len(names) >= MOST_KEYS:
            return


async def _keys_of(client: "kvctl.Client", bucket: str, head: str) -> AsyncIterator[str]:
    """Keys of a bucket, or of a repository at a ref."""
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
