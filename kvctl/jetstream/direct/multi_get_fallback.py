"""Multi-message get without direct get: one by one from the leader, or by a consumer.

For servers before 2.11, for more subjects than one answer allows, and for reads that must come from the leader.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from kvctl.errors import ServerError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers.delivery import RawFrame, delivery
from kvctl.jetstream.consumers.ordered.ordered_consumer import OrderedConsumer
from kvctl.jetstream.consumers.ordered.server_consumer import Selection
from kvctl.jetstream.direct.direct_get import DirectRequest, NotUnderstood, StoredMessage, get
from kvctl.jetstream.direct.page import NotReached, Page
from kvctl.jetstream.direct.per_subject import last_of_each

BAD_REQUEST = 10003
BEYOND_ALL = 1 << 62
"""A sequence that no stream reaches."""


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
        return replace(request, start_time_ns=None, sequence=sequence, next_for=request.next_for or ">")
    if request.up_to_time_ns is not None:
        after = await first_since(api, stream, request.up_to_time_ns + 1, leader=leader)
        return replace(request, up_to_time_ns=None, up_to_sequence=after - 1)
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


async def pages(api: Api, stream: str, request: DirectRequest) -> AsyncGenerator[Page[StoredMessage], None]:
    """Yield the pages of `multi_get.read`, from the leader, for a request without times.

    Raises StreamNotFound, NotReached, PermissionDenied.
    """
    if request.last_of:
        yield await _last_messages(api, stream, request)
        return
    left, size = request.batch or 1, 0
    following = replace(request, batch=None, max_bytes=None, sequence=request.sequence or 1)
    following = replace(following, next_for=request.next_for or ">")
    before = 0
    while left:
        message = await get(api, stream, following, leader=True)
        if message is None:
            return
        yield Page([message._replace(last_sequence=before)], None, message.sequence)
        before = message.sequence
        size += _size(message)
        if request.max_bytes and size >= request.max_bytes:
            return
        left -= 1
        following = replace(following, sequence=message.sequence + 1)


async def _last_messages(api: Api, stream: str, request: DirectRequest) -> Page[StoredMessage]:
    """Return the last message of each subject, as of the requested moment; without one, they may differ in moment."""
    reached = int((await streams.info(api, stream))["state"]["last_seq"])
    up_to = request.up_to_sequence
    if up_to is not None and up_to > reached:
        raise NotReached(f"Stream `{stream}` is at sequence {reached} and has not reached {up_to}")
    found: dict[str, StoredMessage] = {}
    literal = [subject for subject in request.last_of if not _wild(subject)]
    if up_to is None:
        answers = await last_of_each(api, stream, literal, leader=True)
        found.update((subject, message) for subject, message in answers.items() if message is not None)
    elif literal:
        found.update(await _by_consumer(api, stream, tuple(dict.fromkeys(literal)), up_to))
    for subject in request.last_of:
        if _wild(subject):
            found.update(await _by_consumer(api, stream, (subject,), up_to))
    return _page(found, request, reached if up_to is None else up_to)


def _page(found: dict[str, StoredMessage], request: DirectRequest, up_to: int) -> Page[StoredMessage]:
    """Build a page of as many messages as the request allows, in stream order."""
    first = request.sequence or 0
    messages = sorted((message for message in found.values() if message.sequence >= first), key=lambda m: m.sequence)
    size = taken = 0
    for message in messages[: request.batch]:
        size += _size(message)
        taken += 1
        if request.max_bytes and size >= request.max_bytes:
            break
    left, before, page = len(messages), 0, []
    for message in messages[:taken]:
        left -= 1
        page.append(message._replace(pending=left, last_sequence=before))
        before = message.sequence
    return Page(page, left, before, up_to)


def _size(message: StoredMessage) -> int:
    """Return a message's size as servers count it for `max_bytes`, which the last message of an answer may exceed."""
    return len(message.subject.encode(errors="surrogateescape")) + len(message.header) + len(message.payload)


async def _by_consumer(api: Api, stream: str, subjects: tuple[str, ...], up_to: int | None) -> dict[str, StoredMessage]:
    """Return the last message, up to a sequence or of all, on each subject that `subjects` selects."""
    found: dict[str, StoredMessage] = {}
    selection = Selection(subjects=subjects, deliver="last_per_subject" if up_to is None else "all")
    async with OrderedConsumer(api, stream, selection) as consumer:
        async for batch in consumer.batches():
            for frame in batch:
                message = _message(stream, frame)
                if up_to is not None and message.sequence > up_to:
                    return found
                found[message.subject] = message
    return found


def _message(stream: str, frame: RawFrame) -> StoredMessage:
    subject, reply, header, payload = frame
    sequence, _, time_ns, _ = delivery(reply)
    return StoredMessage(stream, subject.decode(errors="surrogateescape"), sequence, time_ns, header, payload)


def _wild(subject: str) -> bool:
    return any(token in ("*", ">") for token in subject.split("."))
