"""Get one message for each of many subjects, by one request per subject, thousands in flight."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvctl.errors import KvctlError, NotFoundError
from kvctl.jetstream.api import Api, parse_reply
from kvctl.jetstream.direct_get import StoredMessage, message_from_answer, message_from_leader
from kvctl.jetstream.request_window import RequestWindow
from kvctl.wire import status


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
                    _from_leader(stream, payload) if requests[subject] else message_from_answer(header, payload)
                )
        except KvctlError as error:
            errors.append(error)

    def failed(_: str, error: KvctlError) -> None:
        errors.append(error)

    async with RequestWindow(api.connection, answered, failed, resend=True) as window:
        for subject, asked in requests.items():
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


def _from_leader(stream: str, payload: bytes) -> StoredMessage | None:
    try:
        return message_from_leader(stream, parse_reply(payload))
    except NotFoundError as error:
        if type(error) is NotFoundError:
            return None
        raise
