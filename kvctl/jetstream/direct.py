"""Direct get (ADR-31), answered by the nearest replica, and the leader's STREAM.MSG.GET beside it."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from kvctl.errors import ConnectionLost, KvctlError, NotFoundError, ServerError
from kvctl.jetstream.api import Api, parse_reply
from kvctl.jetstream.window import RequestWindow
from kvctl.quantities import parse_utc
from kvctl.wire import header_value, status

MANY_LIMIT = 1024
"""Subjects that one `multi_last` may match."""
REQUEST_BYTES = 512 << 10
ANSWER_BYTES = 8 << 20
"""What is asked for at once: servers cut a connection that takes 64 MiB too slowly."""


# What the server adds stands last: a republished message that was stored again carries older ones.
_TOLD = re.compile(
    rb"\r\nNats-Stream: ([^\r]*)\r\nNats-Subject: ([^\r]*)\r\nNats-Sequence: (\d+)\r\nNats-Time-Stamp: ([^\r]*)\r\n"
    rb"(?:Nats-Num-Pending: (\d+)\r\n)?"
)


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
    return await _get(api, f"{stream}.{subject}", b"", timeout)


async def at(api: Api, stream: str, **request: Any) -> StoredMessage | None:
    """One message by `seq`, `last_by_subj`, `next_by_subj` or `start_time`. Raises as `last`."""
    return await _get(api, stream, json.dumps(request).encode())


async def _get(api: Api, endpoint: str, request: bytes, timeout: float | None = None) -> StoredMessage | None:
    connection = api.connection
    deadline = time.monotonic() + (connection.timeout if timeout is None else timeout)
    while True:
        left = max(deadline - time.monotonic(), 0.05)
        try:
            frame = await connection.request(f"{api.prefix}.DIRECT.GET.{endpoint}", request, timeout=left)
            return _decode(frame.header, frame.payload)
        except ConnectionLost:  # reading may be repeated
            if time.monotonic() > deadline:
                raise


async def last_of_many(api: Api, stream: str, subjects: Sequence[str]) -> AsyncGenerator[list[StoredMessage], None]:
    """The last message of each of the subjects, wildcards allowed, in stream order, all of one moment, as they come.

    Raises TooManySubjects (what matches does not go into one answer, found out at its end), NotUnderstood (servers
    before 2.11), NoResponders, PermissionDenied, RequestTimeout, ConnectionLost.
    """
    request = json.dumps({"multi_last": list(subjects), "max_bytes": ANSWER_BYTES}).encode()
    asked = f"{api.prefix}.DIRECT.GET.{stream}"
    async with aclosing(api.connection.stream_replies(asked, request)) as batches:
        async for frames in batches:
            end = _end_of_answer(frames[-1][2])
            messages = [_decode(header, payload) for _, _, header, payload in (frames[:-1] if end else frames)]
            found = [message for message in messages if message is not None]
            if any(message.pending is None for message in found):
                raise NotUnderstood("The server does not know requests for many subjects")
            if found:
                yield found
            if end:
                return


def _end_of_answer(header: bytes) -> bool:
    """Whether this is the last of an answer's messages. Raises TooManySubjects where it is cut short."""
    code, text = status(header)
    if code == 204 and int(header_value(header, b"Nats-Num-Pending") or 0):
        raise TooManySubjects("One answer does not hold all that matches", code=code)
    if code == 404 and text != "No Results":
        raise TooManySubjects("What matches changed under the answer", code=code)  # servers before 2.12
    return code in (204, 404)


async def last_of_each(
    api: Api, stream: str, subjects: Sequence[str], *, leader: bool = False
) -> dict[str, StoredMessage | None]:
    """The last message on each subject, one request a subject, thousands in flight; None where there is none.

    With `leader` from the stream's leader, else from the nearest replicas. A subject that nobody answered for is not in
    the result. Raises the first PermissionDenied, RequestTimeout, ConnectionLost or ServerError there is.
    """
    found: dict[str, StoredMessage | None] = {}
    errors: list[KvctlError] = []

    def answered(subject: str, header: bytes, payload: bytes) -> None:
        try:
            if status(header)[0] != 503:
                found[subject] = _stored(stream, payload) if leader else _decode(header, payload)
        except KvctlError as error:
            errors.append(error)

    def failed(_: str, error: KvctlError) -> None:
        errors.append(error)

    asked = f"{api.prefix}.STREAM.MSG.GET.{stream}" if leader else f"{api.prefix}.DIRECT.GET.{stream}."
    async with RequestWindow(api.connection, answered, failed, resend=True) as window:
        for subject in subjects:
            if leader:
                await window.send(subject, asked.encode(), json.dumps({"last_by_subj": subject}).encode())
            else:
                await window.send(subject, (asked + subject).encode(errors="surrogateescape"))
            if errors:
                break
    if errors:
        raise errors[0]
    return found


async def from_leader(api: Api, stream: str, **request: Any) -> StoredMessage | None:
    """One message by `seq`, `last_by_subj` or `next_by_subj` from the stream's leader: never stale.

    None when there is none. Raises StreamNotFound, PermissionDenied.
    """
    try:
        return _message(stream, await api.call(f"STREAM.MSG.GET.{stream}", request, retry=True))
    except NotFoundError as error:
        if type(error) is NotFoundError:
            return None
        raise


def _stored(stream: str, payload: bytes) -> StoredMessage | None:
    try:
        return _message(stream, parse_reply(payload))
    except NotFoundError as error:
        if type(error) is NotFoundError:
            return None
        raise


def _message(stream: str, reply: dict[str, Any]) -> StoredMessage:
    message = reply["message"]
    return StoredMessage(
        stream, message["subject"], int(message["seq"]), parse_utc(message["time"]),
        base64.b64decode(message.get("hdrs") or ""), base64.b64decode(message.get("data") or ""),
    )  # fmt: skip


def _decode(header: bytes, payload: bytes) -> StoredMessage | None:
    code, text = status(header)
    if code == 404:
        return None
    if code == 413:
        raise TooManySubjects(f"More than {MANY_LIMIT} subjects match: {text}", code=code)
    if code == 408:
        raise NotUnderstood(f"The server does not understand the request: {text}", code=code)
    told = _TOLD.match(header, header.rfind(b"\r\nNats-Stream: ")) if not code else None
    if told is None:
        raise ServerError(f"The server refused a direct get: {code} {text}".rstrip(), code=code)
    stream, subject, sequence, stamp, pending = told.groups()
    return StoredMessage(
        stream.decode(), subject.decode(errors="surrogateescape"), int(sequence), parse_utc(stamp.decode()),
        header, payload, None if pending is None else int(pending),
    )  # fmt: skip
