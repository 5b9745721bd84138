"""Direct get (ADR-31) from the nearest replica, and STREAM.MSG.GET from the leader: one message."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kvctl.deferred import pattern
from kvctl.errors import ConnectionLost, NotFoundError, ServerError, UsageError
from kvctl.jetstream.answer import answer_to
from kvctl.jetstream.api import Api
from kvctl.tokens import check_subject
from kvctl.units import format_time, parse_utc
from kvctl.wire import RawFrame, status

DIRECT_GET = "DIRECT.GET"
MANY_LIMIT = 1024
"""Maximum number of subjects that one `multi_last` may match."""

_NEEDS = "Batches and last messages of many subjects need nats-server 2.11 or later"
_PLAIN = b"NATS/1.0\r\n"
_SERVERS = b"Nats-Stream: "
# The server's headers come last: a republished message that was stored again has older ones. They replace the two last
# bytes of the writer's, so that they begin within a line if those were not the end of one.
_ONE = rb"Nats-Stream: ([^\r]*)\r\nNats-Subject: ([^\r]*)\r\nNats-Sequence: (\d{1,20})\r\nNats-Time-Stamp: ([^\r]*)\r\n"
_OF_MANY = rb"Nats-Num-Pending: (\d{1,20})\r\nNats-Last-Sequence: (\d{1,20})\r\n"
_TOLD = re.compile(_ONE + b"(?:" + _OF_MANY + b")?")
_COUNTED = pattern(_ONE + _OF_MANY)


class CannotAnswerMany(ServerError):
    """A request for many messages has no answer of this form; others may have."""


class TooManySubjects(CannotAnswerMany):
    """A request for many subjects matched more than 1,024 (status 413)."""


class NotUnderstood(CannotAnswerMany):
    """The server does not know this form of request (status 408; batches and many subjects need 2.11)."""


class DirectRequest(NamedTuple):
    """Selection of messages in the forms of ADR-31; `check` says which fields can be combined.

    `sequence`, `last_for`, `next_for` (with `sequence`: from there on) and `start_time_ns` select one message; `batch`
    makes it the first of that many, except for `last_for`. `last_of` are subjects, wildcards allowed, whose last
    messages are requested, as of `up_to_sequence` or `up_to_time_ns` if given.
    """

    sequence: int | None = None
    last_for: str | None = None
    next_for: str | None = None
    start_time_ns: int | None = None
    batch: int | None = None
    max_bytes: int | None = None
    last_of: tuple[str, ...] = ()
    up_to_sequence: int | None = None
    up_to_time_ns: int | None = None
    """Inclusive: a message of exactly this time counts (the server's `up_to_time` excludes it)."""

    @property
    def many(self) -> bool:
        """True if more than one message is requested."""
        return self.batch is not None or bool(self.last_of)

    def check(self) -> None:
        """Raise UsageError for combinations that servers refuse (408) or misunderstand."""
        numbers = (self.sequence, self.batch, self.max_bytes, self.up_to_sequence)
        if any(number is not None and number < 1 for number in numbers):
            raise UsageError("Sequences, batches and sizes start at 1")
        if self.last_for is not None and (self.next_for is not None or self.sequence or self.many):
            raise UsageError("`last_for` cannot be combined with a sequence or a batch")
        if self.start_time_ns is not None and (self.sequence or self.last_for is not None or self.last_of):
            raise UsageError("A start time cannot be combined with a sequence or with last messages")
        if self.last_of and self.next_for is not None:
            raise UsageError("`last_of` and `next_for` cannot be combined")
        if (self.up_to_sequence or self.up_to_time_ns is not None) and not self.last_of:
            raise UsageError("A sequence or time to read up to needs `last_of`")
        if self.up_to_sequence and self.up_to_time_ns is not None:
            raise UsageError("A sequence and a time cannot be combined")
        if self.max_bytes and not self.many:
            raise UsageError("A size limit needs a batch")
        if not self.many and (self.sequence, self.last_for, self.next_for, self.start_time_ns) == (None,) * 4:
            raise UsageError("Give a sequence, a subject or a time")
        for subject in (self.last_for, self.next_for, *self.last_of):
            if subject is not None:
                check_subject(subject.encode(errors="surrogatepass"))

    def body(self) -> dict[str, Any]:
        """Return the request's JSON."""
        fields = {
            "seq": self.sequence,
            "last_by_subj": self.last_for,
            "next_by_subj": self.next_for,
            "start_time": _time(self.start_time_ns),
            "batch": self.batch,
            "max_bytes": self.max_bytes,
            "multi_last": list(self.last_of) or None,
            "up_to_seq": self.up_to_sequence,
            "up_to_time": _time(None if self.up_to_time_ns is None else self.up_to_time_ns + 1),
        }
        if self.batch and not self.last_of and (self.sequence, self.next_for, self.start_time_ns) == (None,) * 3:
            fields["seq"] = 1  # servers take a batch alone for an empty request
        if self.start_time_ns is not None and self.next_for is None:
            fields["next_by_subj"] = ">"  # without, servers look at one sequence, which may have been deleted
        return {name: value for name, value in fields.items() if value is not None}


class StoredMessage(NamedTuple):
    """Message stored in a stream. `stream` is the replica that answered; `time_ns` counts from the epoch.

    `header` is the writer's own, empty for none: the server's additions are in the other fields.
    """

    stream: str
    subject: str
    sequence: int
    time_ns: int
    header: bytes
    payload: bytes
    pending: int | None = None
    """In a batch: number of matching messages after this one."""
    last_sequence: int | None = None
    """In a batch: sequence of the previous message, 0 for none."""


async def get(
    api: Api, stream: str, request: DirectRequest, *, leader: bool = False, timeout: float | None = None
) -> StoredMessage | None:
    """Get one message in any of ADR-31's forms; with `leader`, from the stream's leader, never stale. None for none.

    Raises UsageError, NoResponders if the stream has no direct get (or does not exist), NotUnderstood (servers before
    2.11 do not know start times), with `leader` StreamNotFound; PermissionDenied.
    """
    request.check()
    if leader:
        found = await from_leader(api, stream, **request.body())
    else:
        answers = [await _get(api, stream, json.dumps(asked).encode(), timeout) for asked in _in_parts(request.body())]
        found = max(filter(None, answers), key=lambda message: message.sequence, default=None)
    if found is not None and request.start_time_ns is not None and found.time_ns < request.start_time_ns:
        raise NotUnderstood("The server does not know requests by time")  # it used the subject alone
    return found


async def last(api: Api, stream: str, subject: str, *, timeout: float | None = None) -> StoredMessage | None:
    """Get the last message on one subject, in the form that permissions can allow subject by subject.

    Returns None if there is none. Raises NoResponders if the stream has no direct get (or does not exist),
    PermissionDenied.
    """
    if subject == ">":
        return await get(api, stream, DirectRequest(last_for=subject), timeout=timeout)
    return await _get(api, f"{stream}.{subject}", b"", timeout)


async def from_leader(api: Api, stream: str, **request: Any) -> StoredMessage | None:
    """Get one message by `seq`, `last_by_subj`, `next_by_subj` or `start_time` from the stream's leader: never stale.

    Returns None if there is none. Raises StreamNotFound, PermissionDenied.
    """
    found = []
    for asked in _in_parts(request):
        try:
            found.append(message_from_leader(stream, await api.call(f"STREAM.MSG.GET.{stream}", asked, retry=True)))
        except NotFoundError as error:
            if type(error) is not NotFoundError:
                raise
    return max(found, key=lambda message: message.sequence, default=None)


def _in_parts(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Split a request for the last message of all subjects in two.

    Servers answer `>` by their last sequence alone: if that message was deleted or has expired, they report that there
    is none (2.10 to 2.15). For any other filter they look for the last existing one.
    """
    if request.get("last_by_subj") != ">":
        return [request]
    return [request | {"last_by_subj": subject} for subject in ("*", "*.>")]


def message_from_leader(stream: str, reply: dict[str, Any]) -> StoredMessage:
    """Parse the reply to a STREAM.MSG.GET."""
    message = reply["message"]
    with answer_to(f"STREAM.MSG.GET.{stream}"):
        header, payload = (base64.b64decode(message.get(name) or "") for name in ("hdrs", "data"))
        return StoredMessage(stream, message["subject"], message["seq"], parse_utc(message["time"]), header, payload)


def message_from_answer(header: bytes, payload: bytes) -> StoredMessage | None:
    """Parse the answer to a direct get; None for a missing message (404).

    Raises TooManySubjects (413), NotUnderstood (408), ServerError.
    """
    start = header.rfind(_SERVERS)
    found = _TOLD.match(header, start) if start >= 0 else None
    if found is None:
        _check(*status(header))
        return None
    stream, subject, sequence, stamp, pending, last_sequence = found.groups()
    own = b"" if start == len(_PLAIN) else header[:start] + b"\r\n"
    name = subject.decode(errors="surrogateescape")
    with answer_to(DIRECT_GET):
        counts = () if pending is None else (int(pending), int(last_sequence))
        return StoredMessage(stream.decode(), name, int(sequence), parse_utc(stamp), own, payload, *counts)


class AnswerFields(NamedTuple):
    """Fields of the answers to a request for many messages, each in the order of the answers."""

    told: list[tuple[bytes, ...]]
    """Stream, subject, sequence, time, number of later messages, and sequence of the previous one."""
    times_ns: list[int]
    own: list[bytes]
    """The writers' headers."""


def fields_of_answers(answers: Sequence[RawFrame]) -> AnswerFields:
    """Parse the headers of the answers to a request for many messages, in one search.

    Raises NotUnderstood for one that does not count the others, TooManySubjects (413), ServerError.
    """
    headers = [answer[2] for answer in answers]
    starts = [header.rfind(_SERVERS) for header in headers]
    # Each piece begins with the only place in it at which a match can begin.
    told = _COUNTED.findall(b"".join([header[start:] for header, start in zip(headers, starts, strict=True)]))
    if len(told) != len(headers):
        for header, start in zip(headers, starts, strict=True):
            if start < 0:
                _check(*status(header))
        raise NotUnderstood("The server does not know requests for many messages", hint=_NEEDS)
    plain = len(_PLAIN)
    own = [b"" if start == plain else header[:start] + b"\r\n" for header, start in zip(headers, starts, strict=True)]
    with answer_to(DIRECT_GET):
        b"".join([fields[0] for fields in told]).decode()
        return AnswerFields(told, _times([fields[3] for fields in told]), own)


def messages_from_answers(answers: Sequence[RawFrame]) -> list[StoredMessage]:
    """Build the messages of the answers to a request for many. Raises as `fields_of_answers`."""
    new, fields, text = tuple.__new__, fields_of_answers(answers), ("utf-8", "surrogateescape")
    return [
        new(StoredMessage, (name.decode(), key.decode(*text), int(at), time_ns, own, answer[3], int(left), int(before)))
        for (name, key, at, _, left, before), time_ns, own, answer in zip(*fields, answers, strict=True)
    ]


def _times(stamps: Iterable[bytes]) -> list[int]:
    """Parse times in UTC; many have the same second."""
    second, begin, times = b"", 0, []
    for stamp in stamps:
        if stamp[:19] != second:
            second, begin = stamp[:19], parse_utc(stamp[:19] + b"Z")
        times.append(begin + int(stamp[20:-1].ljust(9, b"0")))
    return times


def _check(code: int, text: str) -> None:
    """Raise the error for a status other than an absent message."""
    if code == 404:
        return
    if code == 413:
        raise TooManySubjects(
            f"More than {MANY_LIMIT} subjects match: {text}", code=code, hint="Read fewer subjects at once"
        )
    if code == 408:
        raise NotUnderstood(f"The server does not understand the request: {text}", code=code, hint=_NEEDS)
    raise ServerError(f"The server refused a direct get: {code} {text}".rstrip(), code=code)


async def _get(api: Api, endpoint: str, request: bytes, timeout: float | None = None) -> StoredMessage | None:
    connection = api.connection
    deadline = time.monotonic() + (connection.timeout if timeout is None else timeout)
    while True:
        left = max(deadline - time.monotonic(), 0.05)
        try:
            frame = await connection.request(f"{api.prefix}.DIRECT.GET.{endpoint}", request, timeout=left)
            return message_from_answer(frame.header, frame.payload)
        except ConnectionLost:  # a read may be repeated
            if time.monotonic() > deadline:
                raise


def _time(nanoseconds: int | None) -> str | None:
    return None if nanoseconds is None else format_time(nanoseconds)
