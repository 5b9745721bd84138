"""Many messages: by direct get (ADR-31, servers since 2.11) page by page, by time, and by one request per subject."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kvctl.errors import ConnectionLost, KvctlError, NoServer, NotFoundError, ServerError
from kvctl.jetstream import streams
from kvctl.jetstream.answer import answer_to
from kvctl.jetstream.api import SINGLE_ANSWERS, Api
from kvctl.jetstream.direct_get import (
    DIRECT_GET,
    CannotAnswerMany,
    DirectRequest,
    NotUnderstood,
    StoredMessage,
    from_leader,
    get,
    message_from_answer,
    message_from_leader,
    messages_from_answers,
)
from kvctl.jetstream.request_window import RequestWindow
from kvctl.wire import RawFrame, header_value, status

REQUEST_BYTES = 512 << 10
"""Maximum bytes of the subjects in one request."""
PAGE_ATTEMPTS, PAGE_PAUSE_S = 8, 0.05
"""Attempts for a later page, probably at another replica each time, and the seconds between them."""
ANSWER_BYTES = 8 << 20
"""Bytes requested at once: servers drop a connection that reads 64 MiB too slowly."""
SILENCE_S = 0.5
"""Seconds to wait for more answers after the first, which servers send together with it."""
FEW = 16
"""Maximum number of requests sent without a subscription of their own, which takes a fifth of a small read's time."""
BAD_REQUEST = 10003
BEYOND_ALL = 1 << 62
"""A sequence that no stream reaches."""

Read = TypeVar("Read")
Build = Callable[[Sequence[RawFrame]], list[Read]]
"""Builds something of each answer."""


class MomentLost(CannotAnswerMany):
    """Messages of the requested moment were overwritten before they were read."""


class NotReached(NotFoundError):
    """The replica that answered, or the stream, has not reached the requested sequence."""


@dataclass(slots=True)
class MessagePage(Generic[Read]):
    """Answer to one request for many messages: messages, or what was built of them, and the number left."""

    messages: list[Read]
    pending: int | None
    """Number of matching messages left, 0 at the end; None if unknown."""
    last_sequence: int
    """Sequence of the last message: the next page begins after it."""
    up_to_sequence: int | None = None
    """For the last messages of subjects: the sequence as of which they are the last."""


async def read(api: Api, stream: str, request: DirectRequest) -> AsyncGenerator[MessagePage[StoredMessage], None]:
    """Yield pages of the selected messages, in stream order, until none is left; `max_bytes` limits the first page.

    All last messages of subjects belong to one moment. A replica with memory storage that lags behind `up_to_sequence`
    answers with what it has; one with file storage is skipped.

    Raises UsageError, NotReached (the stream, or every replica that answers, has not reached `up_to_sequence`),
    MomentLost (remaining messages were overwritten), TooManySubjects (more than 1,024 match), NotUnderstood (servers
    before 2.11), NoResponders if the stream has no direct get (or does not exist), PermissionDenied, RequestTimeout,
    ConnectionLost.
    """
    request.check()
    request = await by_sequence(api, stream, request, leader=False)
    if request.up_to_sequence == 0:
        yield MessagePage([], 0, 0)
        return
    deadline = time.monotonic() + api.connection.timeout
    while True:
        try:
            async with aclosing(pages(api, stream, request)) as answers:
                async for page in answers:
                    yield page
            return
        except NotReached:  # the first replica that answered has nothing
            if await _none_up_to(api, stream, request):
                yield MessagePage([], 0, 0, request.up_to_sequence)
                return
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(PAGE_PAUSE_S)


async def _none_up_to(api: Api, stream: str, request: DirectRequest) -> bool:
    """Return True if the stream has no message up to the request's sequence. Raises NotReached if it ends before."""
    up_to = request.up_to_sequence or 0
    reached = await streams.last_sequence(api, stream)
    if up_to > reached:
        raise NotReached(f"Stream `{stream}` is at sequence {reached} and has not reached {up_to}")
    asked = [{"seq": request.sequence or 1, "next_by_subj": subject} for subject in request.last_of]
    first = [await from_leader(api, stream, **one) for one in asked]
    return all(message is None or message.sequence > up_to for message in first)


def pages(api: Api, stream: str, request: DirectRequest) -> AsyncGenerator[MessagePage[StoredMessage], None]:
    """Yield pages as `read`, by direct gets alone. Raises as `pages_of`."""
    return pages_of(messages_from_answers, api, stream, request)


async def pages_of(
    build: Build[Read], api: Api, stream: str, request: DirectRequest
) -> AsyncGenerator[MessagePage[Read], None]:
    """Yield pages of what `build` makes of the answers as they arrive.

    Raises TooManySubjects (more than 1,024 match), NotUnderstood (servers before 2.11), NotReached (the replica lags
    behind `up_to_sequence`), MomentLost (remaining messages were overwritten).
    """
    if api.answers_once:
        raise _one_answer(api)
    left = request.batch
    page = await _page(build, api, stream, request)
    while True:
        yield page
        left = None if left is None else left - len(page.messages)
        if not page.pending or not page.messages or left == 0 or request.max_bytes:
            return
        request = request._replace(sequence=page.last_sequence + 1, batch=left, up_to_sequence=page.up_to_sequence)
        page = await _later_page(build, api, stream, request, page.pending)


async def _later_page(build: Build[Read], api: Api, stream: str, request: DirectRequest, due: int) -> MessagePage[Read]:
    """Return the next page, which accounts for all `due` messages: lagging replicas are asked again.

    Raises MomentLost if no replica that answers has them.
    """
    for number in range(PAGE_ATTEMPTS):
        await asyncio.sleep(PAGE_PAUSE_S if number else 0)
        with suppress(MomentLost, NotReached):
            page = await _page(build, api, stream, request)
            if len(page.messages) + (page.pending or 0) >= due:
                return page
    raise MomentLost("Messages were overwritten before they were read")


async def _page(build: Build[Read], api: Api, stream: str, request: DirectRequest) -> MessagePage[Read]:
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
        async with asyncio.timeout(SILENCE_S if alone else None):
            return await anext(batches)
    except TimeoutError:
        if not api.prefix.startswith("$JS."):  # an import from another account
            api.note_single_answers()
        raise _one_answer(api) from None


def _one_answer(api: Api) -> NotUnderstood:
    return NotUnderstood(f"Requests to `{api.prefix}` get one answer each", hint=SINGLE_ANSWERS)


def _closed(found: list[Read], last: StoredMessage | None, end: bytes, request: DirectRequest) -> MessagePage[Read]:
    """Build the page that ends with this status after the last message."""
    code, text = status(end)
    if code == 404:
        if last or (request.last_of and text != "No Results"):
            raise MomentLost("Messages were overwritten before they were read", code=code)  # servers before 2.12
        if request.up_to_sequence:
            raise NotReached(f"Nothing up to sequence {request.up_to_sequence}, or the replica lags behind it")
        return MessagePage(found, 0, 0)
    if code != 204:
        message_from_answer(end, b"")
    up_to = header_value(end, b"Nats-UpTo-Sequence")
    with answer_to(DIRECT_GET):
        pending, reached = int(header_value(end, b"Nats-Num-Pending") or 0), int(up_to) if up_to else None
    # Servers 2.11 are off by one for last messages and in batches.
    if last and request.last_of:
        pending = last.pending or 0
    elif last and last.pending == pending + 1:
        found = [_one_less(one) for one in found]
    return MessagePage(found, pending, last.sequence if last else 0, reached)


def _one_less(one: Read) -> Read:
    return one._replace(pending=(one.pending or 1) - 1) if isinstance(one, StoredMessage) else one


# -- times ---------------------------------------------------------------------------------------------------


async def one(api: Api, stream: str, request: DirectRequest) -> StoredMessage | None:
    """Get one message from the leader, for any server version. Raises as `direct.get`."""
    return await get(api, stream, await by_sequence(api, stream, request), leader=True)


async def by_sequence(api: Api, stream: str, request: DirectRequest, *, leader: bool = True) -> DirectRequest:
    """Return the request with sequences instead of times; `up_to_sequence` 0 for a time before the first message.

    Raises as `first_since`.
    """
    if request.start_time_ns is not None:
        first, end = await _first_since(api, stream, request.start_time_ns, leader=leader)
        # After the end of a lagging replica others may have messages that are older than the time.
        sequence = first or (end if leader else BEYOND_ALL)
        return request._replace(start_time_ns=None, sequence=sequence, next_for=request.next_for or ">")
    if request.up_to_time_ns is not None:
        after = await first_since(api, stream, request.up_to_time_ns + 1, leader=leader)
        return request._replace(up_to_time_ns=None, up_to_sequence=after - 1)
    return request


async def first_since(api: Api, stream: str, time_ns: int, *, leader: bool = True) -> int:
    """Return the first sequence of this time or later; one more than the last if there is none.

    Servers since 2.11 find one, but too late if a file between the first and that one has nothing but deleted messages
    (2.15). So the message before it is read, and any earlier ones by bisection. Raises StreamNotFound; without
    `leader`, for any replica, NoResponders.
    """
    first, end = await _first_since(api, stream, time_ns, leader=leader)
    return first or end


async def _first_since(api: Api, stream: str, time_ns: int, *, leader: bool) -> tuple[int | None, int]:
    """Return the sequence of the first message of this time or later, None if there is none, and one after the last.

    Each answer may come from another replica. So only messages lower the first sequence, and not where a replica ends.
    """
    low, end = await _bounds(api, stream, leader=leader)
    hint = await _server_first(api, stream, time_ns, leader=leader)
    first = hint.sequence if hint else None
    start, high, step = low, first or end, 1
    while low < high:
        middle = max(low, high - step)
        message = await get(api, stream, DirectRequest(sequence=middle, next_for=">"), leader=leader)
        if message is not None and message.sequence < high and message.time_ns < time_ns:
            low = message.sequence + 1
        else:
            if message is not None and message.time_ns >= time_ns:
                first = min(first or message.sequence, message.sequence)
            high = middle
        step = step * 2 if low == start else max((high - low) // 2, 1)
    return first, end


async def _bounds(api: Api, stream: str, *, leader: bool) -> tuple[int, int]:
    """Return the first sequence, and one more than the last."""
    if leader:
        state = (await streams.info(api, stream))["state"]
        return max(int(state["first_seq"]), 1), int(state["last_seq"]) + 1
    oldest = await get(api, stream, DirectRequest(sequence=1, next_for=">"))
    newest = await get(api, stream, DirectRequest(last_for=">"))
    return oldest.sequence if oldest else 1, newest.sequence + 1 if newest else 1


async def _server_first(api: Api, stream: str, time_ns: int, *, leader: bool) -> StoredMessage | None:
    """Return the first message of the time or later as the server finds it; None if it does not know times (2.10)."""
    try:
        return await get(api, stream, DirectRequest(start_time_ns=time_ns), leader=leader)
    except NotUnderstood:
        return None
    except ServerError as error:
        if error.err_code and error.err_code != BAD_REQUEST:
            raise
        return None


# -- one request per subject ---------------------------------------------------------------------------------


async def last_of_each(
    api: Api, stream: str, subjects: Sequence[str], *, leader: bool = False
) -> dict[str, StoredMessage | None]:
    """Return the last message on each subject, by one request per subject; None for subjects without messages.

    With `leader` from the stream's leader, else from the nearest replicas. A subject without an answer is not in
    the result. Raises the first PermissionDenied, RequestTimeout, ConnectionLost or ServerError.
    """
    if leader:
        return await _each(api, stream, {subject: {"last_by_subj": subject} for subject in subjects})
    return await _each(api, stream, dict.fromkeys(subjects))


async def next_of_each(api: Api, stream: str, starts: Mapping[str, int]) -> dict[str, StoredMessage | None]:
    """Return the first message on each subject from its sequence on, from the stream's leader. As `last_of_each`."""
    return await _each(api, stream, {subject: {"seq": at, "next_by_subj": subject} for subject, at in starts.items()})


async def _each(
    api: Api, stream: str, requests: Mapping[str, dict[str, Any] | None]
) -> dict[str, StoredMessage | None]:
    """Send one request per subject: to the leader, or for the last message to the nearest replica."""
    if not requests:
        return {}
    found: dict[str, StoredMessage | None] = {}
    errors: list[KvctlError] = []

    def answered(subject: str, header: bytes, payload: bytes) -> None:
        try:
            if status(header)[0] != 503:
                found[subject] = (
                    _message_of_reply(api, stream, payload)
                    if requests[subject]
                    else message_from_answer(header, payload)
                )
        except KvctlError as error:
            errors.append(error)

    def failed(_: str, error: KvctlError) -> None:
        errors.append(error)

    left = requests
    if len(requests) <= FEW:
        with suppress(ConnectionLost, NoServer):  # the window sends them again
            sent = [api.connection.request_soon(*_encoded(api, stream, *one)) for one in requests.items()]
            for subject, frame in zip(requests, await asyncio.gather(*sent), strict=True):
                answered(subject, frame.header, frame.payload)
            left = {}
    if left:
        async with RequestWindow(api.connection, answered, failed, resend=True) as window:
            for subject, asked in left.items():
                await window.send(subject, *_encoded(api, stream, subject, asked))
                if errors:
                    break
    if errors:
        raise errors[0]
    return found


def _encoded(api: Api, stream: str, subject: str, asked: dict[str, Any] | None) -> tuple[bytes, bytes]:
    """Return subject and payload of a request: to the leader, or for the last message to the nearest replica."""
    if asked:
        return f"{api.prefix}.STREAM.MSG.GET.{stream}".encode(), json.dumps(asked).encode()
    return f"{api.prefix}.DIRECT.GET.{stream}.{subject}".encode(errors="surrogateescape"), b""


def _message_of_reply(api: Api, stream: str, payload: bytes) -> StoredMessage | None:
    try:
        return message_from_leader(stream, api.parse_reply(f"STREAM.MSG.GET.{stream}", payload))
    except NotFoundError as error:
        if type(error) is NotFoundError:
            return None
        raise
