"""Direct get (ADR-31), answered by the nearest replica, and the leader's STREAM.MSG.GET beside it."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from kvctl.errors import NotFoundError, ServerError
from kvctl.jetstream.api import Api
from kvctl.quantities import parse_time
from kvctl.wire import Frame, header_value, status

MANY_LIMIT = 1024
"""Subjects that one `multi_last` may match."""
REQUEST_BYTES = 512 << 10


class TooManySubjects(ServerError):
    """A request for many subjects matched more than 1,024 (status 413)."""


class NotUnderstood(ServerError):
    """The server does not know this form of request (status 408; many subjects need 2.11)."""


@dataclass(slots=True)
class StoredMessage:
    """One message of a stream. `stream` is the replica that answered; `time_ns` since the epoch."""

    stream: str
    subject: str
    sequence: int
    time_ns: int
    header: bytes
    payload: bytes
    pending: int | None = None


async def last(api: Api, stream: str, subject: str, *, timeout: float | None = None) -> StoredMessage | None:
    """The last message on one subject, in the form that permissions can allow subject by subject.

    None when there is none. Raises NoResponders where the stream has no direct get (or is gone), PermissionDenied.
    """
    frame = await api.connection.request(f"{api.prefix}.DIRECT.GET.{stream}.{subject}", timeout=timeout)
    return _decode(frame)


async def at(api: Api, stream: str, **request: Any) -> StoredMessage | None:
    """One message by `seq`, `last_by_subj`, `next_by_subj` or `start_time`. Raises as `last`."""
    return _decode(await api.connection.request(f"{api.prefix}.DIRECT.GET.{stream}", json.dumps(request).encode()))


async def last_of_many(
    api: Api, stream: str, subjects: Sequence[str], *, whole: bool = False
) -> AsyncGenerator[StoredMessage, None]:
    """The last message of each of the subjects, wildcards allowed, in stream order, all of one moment.

    What the server cuts at some 64 MB is asked for on, whereby a subject overwritten meanwhile may be missing where the
    stream keeps no history; with `whole`, TooManySubjects ends it instead. Raises TooManySubjects, NotUnderstood (servers before 2.11), NoResponders, PermissionDenied, RequestTimeout.
    """
    request: dict[str, Any] = {"multi_last": list(subjects)}
    while True:
        done = None
        asked = f"{api.prefix}.DIRECT.GET.{stream}"
        async with aclosing(api.connection.stream_replies(asked, json.dumps(request).encode())) as frames:
            async for frame in frames:
                code, text = status(frame.header)
                if code == 204:
                    done = frame
                    break
                if code == 404:
                    return
                message = _decode(frame)
                if message is None or message.pending is None:
                    raise NotUnderstood(f"The server does not know requests for many subjects: {text}", code=code)
                yield message
        if done is None or not int(header_value(done.header, b"Nats-Num-Pending") or 0):
            return
        if whole:
            raise TooManySubjects("More matches than one answer holds")
        request["seq"] = int(header_value(done.header, b"Nats-Last-Sequence") or 0) + 1
        request["up_to_seq"] = int(header_value(done.header, b"Nats-UpTo-Sequence") or 0)


async def from_leader(api: Api, stream: str, **request: Any) -> StoredMessage | None:
    """One message by `seq`, `last_by_subj` or `next_by_subj` from the stream's leader: never stale.

    None when there is none. Raises StreamNotFound, PermissionDenied.
    """
    try:
        reply = await api.call(f"STREAM.MSG.GET.{stream}", request, retry=True)
    except NotFoundError as error:
        if type(error) is NotFoundError:
            return None
        raise
    message = reply["message"]
    return StoredMessage(
        stream, message["subject"], int(message["seq"]), parse_time(message["time"]),
        base64.b64decode(message.get("hdrs") or ""), base64.b64decode(message.get("data") or ""),
    )  # fmt: skip


def _decode(frame: Frame) -> StoredMessage | None:
    header = frame.header
    code, text = status(header)
    if code == 404:
        return None
    if code == 413:
        raise TooManySubjects(f"More than {MANY_LIMIT} subjects match: {text}", code=code)
    if code == 408:
        raise NotUnderstood(f"The server does not understand the request: {text}", code=code)
    sequence = header_value(header, b"Nats-Sequence")
    if code or sequence is None:
        raise ServerError(f"The server refused a direct get: {code} {text}".rstrip(), code=code)
    pending = header_value(header, b"Nats-Num-Pending")
    return StoredMessage(
        (header_value(header, b"Nats-Stream") or b"").decode(),
        (header_value(header, b"Nats-Subject") or b"").decode(errors="surrogateescape"),
        int(sequence),
        parse_time((header_value(header, b"Nats-Time-Stamp") or b"").decode()),
        header,
        frame.payload,
        None if pending is None else int(pending),
    )
