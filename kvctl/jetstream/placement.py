"""Explain why no server can store a stream: the requested placement, and the available clusters."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from kvctl.errors import KvctlError, ServerError
from kvctl.jetstream.api import Api
from kvctl.phrases import counted, quoted

if TYPE_CHECKING:
    from kvctl.jetstream.streams import Listing

NO_PLACE = 10005


@asynccontextmanager
async def placed(
    api: Api, config: Mapping[str, Any], listing: Callable[[Api], Awaitable[Listing]]
) -> AsyncGenerator[None]:
    """Explain the server's refusal to place a stream of this configuration (10005); `listing` lists all streams."""
    try:
        yield
    except ServerError as error:
        if error.err_code != NO_PLACE:
            raise
        clusters = await _clusters(api, listing)
        hint = f"Clusters seen: {clusters}. {_asked(config)}" if clusters else _asked(config)
        message = f"No server{_where(config)} can store `{config['name']}` ({NO_PLACE})"
        raise ServerError(message, code=error.code, err_code=error.err_code, hint=hint) from None


def _where(config: Mapping[str, Any]) -> str:
    cluster = (config.get("placement") or {}).get("cluster")
    return f" in cluster `{cluster}`" if cluster else ""


def _asked(config: Mapping[str, Any]) -> str:
    replicas, tags = config.get("num_replicas") or 1, (config.get("placement") or {}).get("tags") or []
    tagged = f"tags {quoted(tags)}" if tags else "no tags"
    return f"Requested: {counted(replicas, 'replica')}, {tagged}"


async def _clusters(api: Api, listing: Callable[[Api], Awaitable[Listing]]) -> str:
    """Return the clusters with streams of this account, and their servers; a listing shows no others."""
    found: dict[str, set[str]] = {}
    with suppress(KvctlError):
        own = api.connection.server_info
        if own.get("cluster"):
            found.setdefault(own["cluster"], set()).add(own["server_name"])
        for info in (await listing(api)).answering:
            cluster = info.get("cluster") or {}
            peers = [cluster.get("leader"), *(peer["name"] for peer in cluster.get("replicas") or ())]
            if cluster.get("name"):
                found.setdefault(cluster["name"], set()).update(filter(None, peers))
    return ", ".join(f"`{name}` ({', '.join(sorted(servers))})" for name, servers in sorted(found.items()))
