"""Multi-message direct get (ADR-31, servers since 2.11), page by page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace

from kvctl.jetstream import single_reply
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers.delivery import RawFrame
from kvctl.jetstream.direct.direct_get import (
    DirectRequest,
    NotUnderstood,
    StoredMessage,
    TooManySubjects,
    message_from_answer,
    messages_from_answers,
)
from kvctl.jetstream.direct.page import MomentLost, NotReached, Page, Read
from kvctl.wire import header_value, status

REQUEST_BYTES = 512 << 10
"""Maximum bytes of the subjects in one request."""
PAGE_ATTEMPTS, PAGE_PAUSE_S = 4, 0.05
"""Attempts for a later page, probably at another replica each time, and the seconds between them."""
ANSWER_BYTES = 8 << 20
"""Bytes requested at once: servers drop a connection that reads 64 MiB too slowly."""

Build = Callable[[Sequence[RawFrame]], list[Read]]
"""Builds something of each answer."""


async def read(
    api: Api, stream: str, request: DirectRequest, *, leader: bool = False
) -> AsyncGenerator[Page[StoredMessage], None]:
    """Yield pages of the selected messages, in stream order, until none is left; `max_bytes` limits the first page.

    All last messages of subjects belong to one moment. Requests that this form does not allow (servers before 2.11,
    more than 1,024 subjects, `leader`) are answered from the leader in other ways. A replica with memory storage that
    lags behind `up_to_sequence` answers with what it has; one with file storage is skipped.

    Raises UsageError, NotReached (the stream has not reached `up_to_sequence`), MomentLost (remaining messages were
    overwritten), NoResponders if the stream has no direct get (or does not exist), with `leader` StreamNotFound;
    PermissionDenied, RequestTimeout, ConnectionLost.
    """
    from kvctl.jetstream.direct import multi_get_fallback

    request.check()
    request = await multi_get_fallback.by_sequence(api, stream, request, leader=leader)
    if request.up_to_sequence == 0:
        yield Page([], 0, 0)
        return
    lost: MomentLost | None = None
    if not leader:
        try:
            async with aclosing(pages(api, stream, request)) as answers:
                async for page in answers:
                    yield page
            return
        except MomentLost as error:
            lost, request = error, error.rest or request
        except (NotUnderstood, TooManySubjects, NotReached):
            pass
    due = lost.due if lost and request.last_of else 0
    async with aclosing(multi_get_fallback.pages(api, stream, request)) as answers:
        async for page in answers:
            if lost is not None and len(page.messages) + (page.pending or 0) < due:
                raise lost
            yield page


def pages(api: Api, stream: str, request: DirectRequest) -> AsyncGenerator[Page[StoredMessage], None]:
    """Yield pages as `read`, by direct gets alone. Raises as `pages_of`."""
    return pages_of(messages_from_answers, api, stream, request)


async def pages_of(
    build: Build[Read], api: Api, stream: str, request: DirectRequest
) -> AsyncGenerator[Page[Read], None]:
    """Yield pages of what `build` makes of the answers as they arrive.

    Raises TooManySubjects (more than 1,024 match), NotUnderstood (servers before 2.11), NotReached (the replica lags
    behind `up_to_sequence`), MomentLost (remaining messages were overwritten).
    """
    if single_reply.known(api):
        raise _one_answer(api)
    left = request.batch
    page = await _page(build, api, stream, request)
    while True:
        yield page
        left = None if left is None else left - len(page.messages)
        if not page.pending or not page.messages or left == 0 or request.max_bytes:
            return
        request = replace(request, sequence=page.last_sequence + 1, batch=left, up_to_sequence=page.up_to_sequence)
        page = await _later_page(build, api, stream, request, page.pending)


async def _later_page(build: Build[Read], api: Api, stream: str, request: DirectRequest, due: int) -> Page[Read]:
    """Return the next page, which accounts for all `due` messages: lagging replicas are asked again.

    Raises MomentLost if no replica that answers has them.
    """
    for number in range(PAGE_ATTEMPTS):
        await asyncio.sleep(PAGE_PAUSE_S if number else 0)
        with suppress(MomentLost, NotReached):
            page = await _page(build, api, stream, request)
            if len(page.messages) + (page.pending or 0) >= due:
                return page
    lost = MomentLost("Messages were overwritten before they were read")
    lost.rest, lost.due = request, due
    raise lost


async def _page(build: Build[Read], api: Api, stream: str, request: DirectRequest) -> Page[Read]:
    """Return the answer to one request."""
    body = {"max_bytes": ANSWER_BYTES} | request.body()
    found: list[Read] = []
    last = b""
    asked = f"{api.prefix}.DIRECT.GET.{stream}"
    async with aclosing(api.connection.stream_replies(asked, json.dumps(body).encode())) as batches:
        while True:
            frames = await _next(api, batches, alone=len(found) == 1)
            end = frames.pop()[2] if status(frames[-1][2])[0] else None
            if frames:
                found += build(frames)
                last = frames[-1][2]
            if end is not None:
                return _closed(found, message_from_answer(last, b"") if last else None, end, request)


async def _next(api: Api, batches: AsyncGenerator[list[RawFrame], None], *, alone: bool) -> list[RawFrame]:
    """Return the next answers. Raises NotUnderstood if none follows the first one, which was `alone`."""
    try:
        async with asyncio.timeout(single_reply.SILENCE_S if alone else None):
            return await anext(batches)
    except TimeoutError:
        if not api.prefix.startswith("$JS."):  # an import from another account
            single_reply.note(api)
        raise _one_answer(api) from None


def _one_answer(api: Api) -> NotUnderstood:
    return NotUnderstood(f"Requests to `{api.prefix}` get one answer each", hint=single_reply.HINT)


def _closed(found: list[Read], last: StoredMessage | None, end: bytes, request: DirectRequest) -> Page[Read]:
    """Build the page that ends with this status after the last message."""
    code, text = status(end)
    if code == 404:
        if last or (request.last_of and text != "No Results"):
            raise MomentLost("Messages were overwritten before they were read", code=code)  # servers before 2.12
        if request.up_to_sequence:
            raise NotReached(f"Nothing up to sequence {request.up_to_sequence}, or the replica lags behind it")
        return Page(found, 0, 0)
    if code != 204:
        message_from_answer(end, b"")
    pending = int(header_value(end, b"Nats-Num-Pending") or 0)
    # Servers 2.11 are off by one for last messages and in batches.
    if last and request.last_of:
        pending = last.pending or 0
    elif last and last.pending == pending + 1:
        found = [_one_less(one) for one in found]
    up_to = header_value(end, b"Nats-UpTo-Sequence")
    return Page(found, pending, last.sequence if last else 0, int(up_to) if up_to else None)


def _one_less(one: Read) -> Read:
    return one._replace(pending=(one.pending or 1) - 1) if isinstance(one, StoredMessage) else one
