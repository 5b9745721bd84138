"""Streams on the server: create, update, info, list, purge, delete. Configurations are the server's own JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from kvctl.errors import NotFoundError, RequestTimeout, ServerError, StreamNotFound
from kvctl.jetstream.api import Api

SUBJECTS_PAGE = 100_000


async def create(api: Api, config: dict[str, Any], *, timeout: float | None = None) -> dict[str, Any]:
    """Create a stream; the same configuration again is no error. Returns its info. Raises ConflictError, ServerError."""
    return await api.call(f"STREAM.CREATE.{config['name']}", config, timeout=timeout)


async def update(api: Api, config: dict[str, Any]) -> dict[str, Any]:
    """Replace a stream's configuration; returns its info. Raises StreamNotFound, ServerError."""
    return await api.call(f"STREAM.UPDATE.{config['name']}", config)


async def info(api: Api, stream: str, *, timeout: float | None = None, **request: Any) -> dict[str, Any]:
    """The stream's info: config, state, cluster, mirror, sources, alternates. Raises StreamNotFound."""
    return await api.call(f"STREAM.INFO.{stream}", request or None, timeout=timeout, retry=True)


async def find(api: Api, stream: str) -> dict[str, Any] | None:
    """The stream's info, or None when there is no such stream."""
    try:
        return await info(api, stream)
    except StreamNotFound:
        return None


async def delete(api: Api, stream: str) -> None:
    """Delete the stream with all it holds. Raises StreamNotFound."""
    await api.call(f"STREAM.DELETE.{stream}")


async def purge(api: Api, stream: str, **request: Any) -> int:
    """Remove messages by `filter`, up to `seq`, or all but the last `keep`; returns how many went."""
    return int((await api.call(f"STREAM.PURGE.{stream}", request or None))["purged"])


async def delete_message(api: Api, stream: str, sequence: int, *, erase: bool = True) -> None:
    """Remove one message. Raises NotFoundError."""
    await api.call(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": not erase})


async def names(api: Api, subject: str | None = None) -> list[str]:
    """The names of all streams, every page; a subject filter hides mirrors and read-only aggregates."""
    found: list[str] = []
    while True:
        request: dict[str, Any] = {"offset": len(found)}
        if subject:
            request["subject"] = subject
        page = await api.call("STREAM.NAMES", request, retry=True)
        batch = page.get("streams") or []
        found.extend(batch)
        if not batch or len(found) >= page.get("total", 0):
            return sorted(set(found))


async def listing(api: Api) -> tuple[list[dict[str, Any]], list[str]]:
    """The infos of all streams, every page, and the names of those whose host did not answer."""
    found: list[dict[str, Any]] = []
    missing: set[str] = set()
    offset = 0
    while True:
        page = await api.call("STREAM.LIST", {"offset": offset}, timeout=max(api.connection.timeout, 10), retry=True)
        batch = page.get("streams") or []
        found.extend(batch)
        missing.update(page.get("missing") or [])
        offset += len(batch) or page.get("limit", 256)
        if offset >= page.get("total", 0):
            known = {item["config"]["name"] for item in found}
            return found, sorted(missing - known)


async def infos(api: Api, wanted: Sequence[str], at_once: int = 32) -> AsyncIterator[tuple[str, dict[str, Any] | None]]:
    """Name and info of each stream in order; None for one that did not answer or is gone."""
    slots = asyncio.Semaphore(at_once)

    async def one(name: str) -> dict[str, Any] | None:
        async with slots:
            try:
                return await info(api, name)
            except (NotFoundError, RequestTimeout, ServerError):
                return None

    tasks = [asyncio.create_task(one(name)) for name in wanted]
    try:
        for name, task in zip(wanted, tasks, strict=True):
            yield name, await task
    finally:
        for task in tasks:
            task.cancel()


async def subjects(api: Api, stream: str, subject: str = ">") -> dict[str, int]:
    """Subjects matching the filter, with their message counts, every page of 100,000."""
    found: dict[str, int] = {}
    offset = 0
    while True:
        reply = await info(api, stream, subjects_filter=subject, offset=offset)
        page = reply["state"].get("subjects") or {}
        found.update(page)
        offset += len(page)
        if not page or offset >= reply.get("total", 0):
            return found
