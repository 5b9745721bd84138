"""Administration of streams: create, update, info, list, purge, delete, in the server's own JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

from kvctl.dataclass import dataclass
from kvctl.errors import NotFoundError, RequestTimeout, ServerError, StreamNotFound, StreamOffline
from kvctl.jetstream.api import OFFLINE_HINT, Api
from kvctl.jetstream.pagination import all_pages
from kvctl.jetstream.placement import placed
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.phrases import quoted
from kvctl.tokens import check_filter_subject, check_name

_NO_MESSAGE = ("no message found", "stream store EOF", "deleted message")
LISTINGS = 4
"""Maximum number of listings started over because streams came or went."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Streams of an account: those that answered, and those that did not. Silence does not prove absence."""

    answering: tuple[StreamInfo, ...]
    """Infos."""
    silent: Mapping[str, StreamInfo | None]
    """Streams whose servers did not answer, by name; with their info (state zero, no leader) if known."""

    def complete(self) -> tuple[StreamInfo, ...]:
        """Return the infos of all streams. Raises StreamOffline when one did not answer."""
        if self.silent:
            names = sorted(self.silent)
            listed = quoted(names)
            raise StreamOffline(f"Streams that do not answer: {listed}", streams=names, hint=OFFLINE_HINT)
        return self.answering


async def create(api: Api, config: StreamConfig, *, timeout: float | None = None) -> StreamInfo:
    """Create a stream and return its info; succeed if an equal one exists.

    Raises ConflictError, ServerError, ReadOnly.
    """
    require_writable(api)
    async with placed(api, config, listing):
        answer = await api.call(f"STREAM.CREATE.{_checked(config['name'])}", config, timeout=timeout)
    return cast("StreamInfo", answer)


async def update(api: Api, config: StreamConfig) -> StreamInfo:
    """Replace a stream's configuration; return its info. Raises StreamNotFound, ServerError, ReadOnly."""
    require_writable(api)
    async with placed(api, config, listing):
        answer = await api.call(f"STREAM.UPDATE.{_checked(config['name'])}", config)
    return cast("StreamInfo", answer)


async def seal(api: Api, config: StreamConfig) -> None:
    """Make a stream permanently read-only; its entries no longer expire. Raises as `update`."""
    try:
        await update(api, {**config, "sealed": True})
    except RequestTimeout:
        if not (await info(api, config["name"]))["config"].get("sealed"):
            raise


async def info(api: Api, stream: str, *, timeout: float | None = None, **request: Any) -> StreamInfo:
    """Return the stream's info: config, state, cluster, mirror, sources, alternates. Raises StreamNotFound."""
    answer = await api.call(f"STREAM.INFO.{_checked(stream)}", request or None, timeout=timeout, retry=True)
    return cast("StreamInfo", answer)


async def find(api: Api, stream: str) -> StreamInfo | None:
    """Return the stream's info, or None if it does not exist."""
    try:
        return await info(api, stream)
    except StreamNotFound:
        return None


async def delete(api: Api, stream: str) -> None:
    """Delete the stream with all its messages. Raises StreamNotFound, ReadOnly."""
    require_writable(api)
    await api.call(f"STREAM.DELETE.{_checked(stream)}")


async def purge(api: Api, stream: str, **request: Any) -> int:
    """Remove messages by `filter`, up to `seq`, or all but the last `keep`; return their number."""
    require_writable(api)
    if request.get("filter"):
        check_filter_subject(request["filter"])
    return int((await api.call(f"STREAM.PURGE.{_checked(stream)}", request or None))["purged"])


async def delete_message(api: Api, stream: str, sequence: int, *, erase: bool = True) -> None:
    """Remove one message; with `erase` its bytes are overwritten. Raises NotFoundError, StreamNotFound, ReadOnly."""
    require_writable(api)
    try:
        await api.call(f"STREAM.MSG.DELETE.{_checked(stream)}", {"seq": sequence, "no_erase": not erase})
    except (NotFoundError, ServerError) as error:
        absent = isinstance(error, ServerError) and any(text in error.message for text in _NO_MESSAGE)
        if absent or type(error) is NotFoundError:
            raise NotFoundError(f"Stream `{stream}` has no message {sequence}") from None
        raise


async def names(api: Api, subject: str | None = None) -> list[str]:
    """Return the names of all streams, every page; a subject filter hides mirrors and read-only aggregates."""
    request = {"subject": check_filter_subject(subject)} if subject else {}

    async def page(offset: int) -> tuple[dict[str, None], int]:
        reply = await api.call("STREAM.NAMES", {**request, "offset": offset}, retry=True)
        return dict.fromkeys(reply.get("streams") or []), reply.get("total", 0)

    return sorted(await all_pages(page))


async def listing(api: Api) -> Listing:
    """List all streams, every page."""
    for _ in range(LISTINGS):
        found, silent, totals = await _pages(api)
        if len(totals) == 1:
            break
    if len({*found, *silent}) < max(totals):
        silent |= dict.fromkeys(await names(api))  # a stream that is counted, but not reported as missing
    return Listing(tuple(found.values()), {name: silent[name] for name in sorted(silent) if name not in found})


async def infos(api: Api, wanted: Sequence[str], at_once: int = 32) -> AsyncIterator[tuple[str, StreamInfo | None]]:
    """Yield name and info of each stream in order; None for one that did not answer or does not exist."""
    slots = asyncio.Semaphore(at_once)

    async def one(name: str) -> StreamInfo | None:
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
    """Return the subjects matching the filter, with their message counts, every page of 100,000."""
    check_filter_subject(subject)

    async def page(offset: int) -> tuple[dict[str, int], int]:
        reply = await info(api, stream, subjects_filter=subject, offset=offset)
        return reply["state"].get("subjects") or {}, int(reply.get("total", 0))  # type: ignore[call-overload]

    return await all_pages(page)


async def _pages(api: Api) -> tuple[dict[str, StreamInfo], dict[str, StreamInfo | None], set[int]]:
    """Read all pages once: return the streams that answer, silent ones, and the totals that the pages reported.

    Two totals mean that streams came or went in the meantime, which shifts pages.
    """
    found: dict[str, StreamInfo] = {}
    silent: dict[str, StreamInfo | None] = {}
    totals: set[int] = set()
    offset = 0
    while True:
        # A server that waits for unavailable hosts takes four seconds.
        limit = max(api.connection.timeout, 10)
        page = await api.call("STREAM.LIST", {"offset": offset}, timeout=limit, retry=True)
        batch = {item["config"]["name"]: item for item in page.get("streams") or []}
        missing = {*(page.get("missing") or ()), *(page.get("offline") or ())}
        found.update((name, item) for name, item in batch.items() if name not in missing)
        silent.update((name, batch.get(name)) for name in missing)
        totals.add(page.get("total", 0))
        offset += len(batch.keys() | missing) or page.get("limit", 256)  # a page counts those that do not answer
        if offset >= page.get("total", 0):
            return found, silent, totals


def _checked(stream: str) -> str:
    return check_name(stream, "stream")


def require_writable(api: Api) -> None:
    """Raise ReadOnly if the connection is read-only."""
    api.connection.context.require_writable()
