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
from kvctl.jetstream.direct.direct_get import (
    DirectRequest,
    NotUnderstood,
    StoredMessage,
    from_leader,
    get,
)
from kvctl.jetstream.direct.page import NotReached, Page
from kvctl.jetstream.direct.per_subject import last_of_each

BAD_REQUEST = 10003


async def one(api: Api, stream: str, request: DirectRequest) -> StoredMessage | None:
    """Get one message from the leader, for any server version. Raises as `direct.get`."""
    try:
        return await get(api, stream, request, leader=True)
    except (NotUnderstood, ServerError) as error:
        if request.start_time_ns is None or (error.err_code and error.err_code != BAD_REQUEST):
            raise
    first = await first_since(api, stream, request.start_time_ns)
    return await from_leader(api, stream, seq=first, next_by_subj=request.next_for or ">")


async def first_since(api: Api, stream: str, time_ns: int) -> int:
    """Return the first sequence of this time or later; one more than the last if there is none.

    Asks the leader, by bisection on servers before 2.11. Raises StreamNotFound.
    """
    state = (await streams.info(api, stream))["state"]
    low, high = 1, int(state["last_seq"]) + 1
    try:
        found = await get(api, stream, DirectRequest(start_time_ns=time_ns), leader=True)
        return min(found.sequence, high) if found else high
    except ServerError as error:
        if error.err_code and error.err_code != BAD_REQUEST:
            raise
    while low < high:
        middle = (low + high) // 2
        message = await from_leader(api, stream, seq=middle, next_by_subj=">")
        if message is None or message.time_ns >= time_ns:
            high = middle
        else:
            low = message.sequence + 1
    message = await from_leader(api, stream, seq=low, next_by_subj=">")
    return message.sequence if message else low


async def pages(api: Api, stream: str, request: DirectRequest) -> AsyncGenerator[Page, None]:
    """Yield the pages of `multi_get.read`, from the leader. Raises StreamNotFound, NotReached, PermissionDenied."""
    if request.last_of:
        yield await _last_messages(api, stream, request)
        return
    left, size = request.batch or 1, 0
    following = replace(request, batch=None, max_bytes=None)
    if request.sequence is None:
        since = request.start_time_ns
        following = replace(following, sequence=1 if since is None else await first_since(api, stream, since))
    following = replace(following, start_time_ns=None, next_for=request.next_for or ">")
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


async def _last_messages(api: Api, stream: str, request: DirectRequest) -> Page:
    """Return the last message of each subject, as of the requested moment; without one, they may differ in moment."""
    reached = int((await streams.info(api, stream))["state"]["last_seq"])
    up_to = request.up_to_sequence
    if up_to is None and request.up_to_time_ns is not None:
        up_to = await first_since(api, stream, request.up_to_time_ns + 1) - 1
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


def _page(found: dict[str, StoredMessage], request: DirectRequest, up_to: int) -> Page:
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
