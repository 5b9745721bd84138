"""Publish messages: one with its acknowledgement, a window of many with deadlines, or an atomic batch."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import Any

from kvctl.connection import Connection
from kvctl.deferred import pattern
from kvctl.errors import (
    ConnectionLost,
    KvctlError,
    NoResponders,
    NoServer,
    ServerError,
    Unanswered,
    UnreachableError,
    UsageError,
    WrongRevision,
)
from kvctl.jetstream.answer import answer_to, parsed
from kvctl.jetstream.api import BUSY, WRONG_LAST_SEQUENCE, server_error
from kvctl.jetstream.request_window import LONGEST_NUMBER, WINDOW, WINDOW_BYTES, Failed, RequestWindow, number_of
from kvctl.phrases import one_line
from kvctl.tokens import check_subjects
from kvctl.wire import CRLF, MALFORMED, status, subjects_of

Done = Callable[[Any, int], object]
AllDone = Callable[[Sequence[Any], list[int]], object]

_SEQUENCE = pattern(rb'"seq":\s*(\d{1,20})\b')
_FOUND = pattern(r"last sequence: (\d{1,20})\b")


class OtherStream(KvctlError):
    """Another stream than expected stored a message; `stream` is its name."""

    stream = ""


async def publish(
    connection: Connection,
    subject: str,
    payload: bytes,
    header: bytes = b"",
    timeout: float | None = None,
    *,
    stream: str | None = None,
) -> int:
    """Publish and wait for the stream's acknowledgement; return the sequence.

    While the stream is busy with another write of the subject (10164), the message is sent again until the timeout;
    each attempt gets the full time to answer, so that the outcome of the last one is known. Raises WrongRevision,
    ServerError, NoResponders and UnreachableError (nothing was stored, as far as one leader knows), BusyRefusal and
    StillBusy after an attempt that found the stream busy, RequestTimeout and ConnectionLost (the outcome is unknown),
    OtherStream if not `stream` acknowledges it, UsageError.
    """
    limit = connection.timeout if timeout is None else timeout
    deadline, busy = time.monotonic() + limit, False
    while True:
        await connection.require_replies()
        frame = await connection.request(subject, payload, header, timeout=limit)
        found = _SEQUENCE.search(frame.payload)
        if found and b'"error"' not in frame.payload:
            if stream is not None and b'"%b"' % stream.encode() not in frame.payload:
                with answer_to(subject):
                    other = str(parsed(subject, frame.payload)["stream"])
                raise OtherStream(f"Stream `{one_line(other)}` stored the message", stream=other)
            return int(found[1])
        error = acknowledgement_error(frame.payload)
        if not isinstance(error, Busy):
            raise BusyRefusal(error.message, found=error.found) if busy and type(error) is WrongRevision else error
        busy = True
        if time.monotonic() > deadline:
            raise StillBusy(
                f"`{subject}` does not accept writes: the server is busy with another one; nothing was written",
                hint="Try again",
            )
        await asyncio.sleep(random.uniform(0.001, 0.02))


async def publish_soon(connection: Connection, subject: bytes, payload: bytes, header: bytes) -> int:
    """Publish once, in one socket write with other messages of the moment; raises Busy besides."""
    await connection.require_replies()
    frame = await connection.request_soon(subject, payload, header)
    found = _SEQUENCE.search(frame.payload)
    if found and b'"error"' not in frame.payload:
        return int(found[1])
    raise refusal(b"" if status(frame.header)[0] == 503 else frame.payload)


def refusal(payload: bytes) -> KvctlError:
    """Return the error of a negative answer to a message; an empty one comes from the server if no stream listens."""
    return acknowledgement_error(payload) if payload else NoResponders("No stream accepts the write")


def _is_refusal(payload: bytes) -> bool:
    return b'"error"' in payload or not _SEQUENCE.search(payload)


def _sequences(answers: Sequence[bytes]) -> list[int]:
    """Return the sequences of different messages in one stream that all answers acknowledge; else none."""
    text = b"\n".join(answers)
    found = _SEQUENCE.search(text)
    if found is None or b'"error"' in text or text.count(text[: found.start(1)]) != len(answers):
        return []  # streams of two servers may answer: together they do not acknowledge every message
    return sorted(set(map(int, _SEQUENCE.findall(text))))


class Unreadable(Unanswered):
    """A malformed acknowledgement: the message may have been stored."""


class Busy(WrongRevision):
    """Another write of the subject is in flight (10164); sending again decides."""


class BusyRefusal(WrongRevision):
    """A refusal after an attempt that one leader was too busy for: another one may have stored that attempt."""


class StillBusy(UnreachableError):
    """The stream stays busy with another write of the subject, as far as one leader knows."""


def acknowledgement_error(payload: bytes) -> KvctlError:
    """Parse the error of a negative acknowledgement."""
    try:
        error: dict[str, Any] = parsed("", payload)["error"] or {}
        if not error:
            raise ValueError("it has neither a sequence nor an error")
    except MALFORMED as problem:
        return Unreadable(f"The server's acknowledgement is malformed: {one_line(str(problem))[:200]}")
    if error.get("err_code") in WRONG_LAST_SEQUENCE:
        found = _FOUND.search(error.get("description", ""))
        kind = Busy if error["err_code"] == BUSY else WrongRevision
        return kind(
            f"Wrong last revision{f': the last one is {found[1]}' if found else ''}",
            found=int(found[1]) if found else None,
        )
    return server_error(error)


class Run:
    """Messages sent in one write with one reply subject. They are acknowledged by count."""

    __slots__ = ("answers", "denied", "tags")

    def __init__(self, tags: Sequence[Any]) -> None:
        self.tags = tags
        self.answers: list[bytes] = []
        self.denied: dict[int, KvctlError] = {}
        """Positions of messages that the account may not publish."""

    @property
    def complete(self) -> bool:
        """True if each message has its answer."""
        return len(self.answers) + len(self.denied) >= len(self.tags)


class UnmatchedRun(ConnectionLost):
    """Some messages of a run are refused: the answers do not say which."""


class PublishWindow(RequestWindow):
    """Window of messages in flight, each acknowledged; an async context manager.

    As its base class, but each message ends in `done(tag, sequence)` or `failed(tag, error)`. After RequestTimeout or
    ConnectionLost the message may have been stored. Messages of a run that are all stored end in one call of
    `all_done(tags, sequences)`.
    """

    def __init__(
        self,
        connection: Connection,
        done: Done,
        failed: Failed,
        *,
        all_done: AllDone | None = None,
        window: int = WINDOW,
        resend: bool = False,
    ) -> None:
        super().__init__(connection, self._acknowledged, failed, window=window, resend=resend)
        self._done = done
        self._all_done = all_done
        self._runs = 0
        self._head, self._length = b"?", 1
        """Beginning of the stream's acknowledgements, up to the sequence."""

    async def __aenter__(self) -> PublishWindow:
        await self._connection.require_replies()
        await super().__aenter__()
        return self

    async def send_run(self, tags: Sequence[Any], encode: Callable[[bytes], bytes]) -> None:
        """Send messages, encoded for a reply subject; a third of the cost of `send`, for clients and servers.

        Fit for messages that are refused rarely: if some are refused and some stored, all fail with Unmatched; if some
        are not answered, all with ConnectionLost. The caller checks them. Not with `resend`: their answers would be
        mixed with those of the first attempt.
        """
        await self._write()
        frames, number = encode(b"%b%d" % (self._prefix, self._number)), self._number
        self._open[number] = Run(tags), frames, b""
        self._number += 1
        self._runs += 1
        self._more += len(tags) - 1
        self._bytes += len(frames)
        while len(self._open) > 1 and (len(self._open) + self._more > self._window or self._bytes > WINDOW_BYTES):
            await self._collect()
        if number in self._open:  # else the connection was lost: later messages must not overtake those in flight
            self._ready.append(frames)
            await self._write()

    @property
    def oldest(self) -> Any:
        """Return the tag of the first message without an outcome; None if all have one."""
        tag = super().oldest
        return tag.tags[0] if isinstance(tag, Run) else tag

    def _take(self, frames: list[tuple[bytes, bytes, bytes, bytes]]) -> None:
        if not self._runs:
            super()._take(frames)
            return
        for subject, answers in groupby(frames, itemgetter(0)):
            number = number_of(subject[len(self._prefix) :])
            run = self._open.get(number, (None,))[0]
            if isinstance(run, Run):
                run.answers += [answer[3] for answer in answers]
                if run.complete:
                    self._close(number)
            else:
                super()._take(list(answers))

    def _close(self, number: int, error: KvctlError | None = None) -> None:
        """End a run: all its messages have answers, or no more come, for this reason."""
        run, frames, _ = self._open.pop(number)
        self._runs -= 1
        self._more -= len(run.tags) - 1
        self._bytes -= len(frames)
        for position, denial in run.denied.items():
            self._failed(run.tags[position], denial)
        left = [tag for at, tag in enumerate(run.tags) if at not in run.denied] if run.denied else run.tags
        sequences = _sequences(run.answers)
        if len(sequences) == len(left):
            if left and self._all_done is not None:
                self._all_done(left, sequences)
            return
        refused = next((answer for answer in run.answers if _is_refusal(answer)), None)
        problem = error or (KvctlError("Several streams answer") if refused is None else refusal(refused))
        if run.answers and error is not None:
            problem = ConnectionLost(error.message, hint=error.hint)
        elif error is None and (refused is None or len(set(run.answers)) > 1):
            problem = UnmatchedRun(problem.message, hint=problem.hint)
        for tag in left:
            self._failed(tag, problem)

    def _give_up(self, numbers: Iterable[int], error: KvctlError) -> None:
        for number in numbers:
            if isinstance(self._open[number][0], Run):
                self._close(number, error)
            else:
                super()._give_up([number], error)

    def _drop_denied(self) -> None:
        for number, (run, frames, _) in list(self._open.items()) if self._runs and self._subscription.denials else ():
            if isinstance(run, Run):
                for position, subject in enumerate(subjects_of(frames)):
                    if position not in run.denied and (denial := self._subscription.denied(subject)):
                        run.denied[position] = denial
                if run.complete:
                    self._close(number)
        super()._drop_denied()

    def _acknowledged(self, tag: Any, header: bytes, payload: bytes) -> None:
        number = payload[self._length : -1]
        if payload[: self._length] == self._head and number.isdigit() and len(number) <= LONGEST_NUMBER:
            self._done(tag, int(number))
            return
        found = None if b'"error"' in payload else _SEQUENCE.search(payload)
        if found is not None:
            self._length = found.start(1)
            self._head = payload[: self._length]
            self._done(tag, int(found[1]))
        else:
            self._failed(tag, refusal(b"" if status(header)[0] == 503 else payload))


BATCH_MESSAGES = 1000
"""Maximum number of messages in a batch."""
WRITE_MESSAGES, WRITE_BYTES = 250, 1 << 20
"""Messages and bytes per write to the socket: the server stores them while the next ones are encoded."""

_COMMIT = b"Nats-Batch-Commit: 1\r\n\r\n"

BatchMessage = tuple[bytes, bytes, bytes]
"""Subject, payload, and the lines of its own headers as of `tokens.header_lines`, encoded."""


class MessageTooLarge(UsageError):
    """A message of a batch exceeds a limit; nothing was sent. `number` counts from 0, `size` includes headers."""

    def __init__(self, number: int, size: int, most: int) -> None:
        super().__init__(f"Message {number + 1} of the batch has {size} bytes; the limit is {most}")
        self.number, self.size, self.most = number, size, most


async def publish_batch(
    connection: Connection, messages: Sequence[BatchMessage], identity: bytes | None = None, most: int = 0
) -> int:
    """Store all messages atomically; return the sequence of the last, the others are contiguous before it.

    `identity` is stored with each of them, as their header Nats-Batch-Id. `most` is the stream's own limit on a
    message: the server silently drops all but the last one if they are larger. Only for streams whose stored
    configuration has `allow_atomic`: servers before 2.12 store the messages one by one. Raises MessageTooLarge,
    WrongRevision (some condition failed, without saying which), ServerError, PermissionDenied, NoResponders and
    NoServer (nothing was stored), RequestTimeout and ConnectionLost (the outcome is unknown).
    """
    identity = identity or os.urandom(12).hex().encode()
    largest = _check(connection, messages, identity, most)
    end = len(messages) - 1
    to, payload, lines = messages[end]
    step = min(max(WRITE_BYTES // largest, 1), WRITE_MESSAGES)
    if not connection.online:
        await connection.wait_online(connection.timeout)
    await connection.require_replies()
    with connection.denials() as denials:
        with suppress(NoServer):  # the request waits for the connection, and the server reports the gap
            for start in range(0, end, step):
                frames = b"".join(_frames(messages[start : min(start + step, end)], start + 1, identity))
                if start + step < end:
                    connection.write(frames)
                    await connection.drain()
                else:
                    connection.write_soon(frames)  # in one write with the request
        header = _header(lines, identity, len(messages)) + _COMMIT
        try:
            frame = await connection.request(to.decode(errors="surrogateescape"), payload, header)
            found = _SEQUENCE.search(frame.payload)
            if found is None or b'"error"' in frame.payload:
                raise acknowledgement_error(frame.payload)
        except ServerError:
            # A message that was not permitted leaves a gap, which is all that the answer reports.
            for subject, _, _ in messages:
                if denied := denials.denied(subject.decode(errors="surrogateescape")):
                    raise denied from None
            raise
    return int(found[1])


def _header(lines: bytes, identity: bytes, number: int) -> bytes:
    """Return a message's header block without its end."""
    return b"NATS/1.0\r\n%bNats-Batch-Id: %b\r\nNats-Batch-Sequence: %d\r\n" % (lines, identity, number)


def _frames(messages: Sequence[BatchMessage], first: int, identity: bytes) -> Iterator[bytes]:
    """Encode messages but for the last one of the batch, which alone is acknowledged; `first` is the first's number."""
    middle = b"Nats-Batch-Id: %b\r\nNats-Batch-Sequence: " % identity
    fixed = len(b"NATS/1.0\r\n" + middle + b"\r\n\r\n")
    for number, (subject, payload, lines) in enumerate(messages, first):
        size = fixed + len(lines) + len(str(number))
        values = subject, size, size + len(payload), lines, middle, number, payload
        yield b"HPUB %b  %d %d\r\nNATS/1.0\r\n%b%b%d\r\n\r\n%b\r\n" % values


def _check(connection: Connection, messages: Sequence[BatchMessage], identity: bytes, most: int) -> int:
    """Check all messages before the first one is sent; return a size that none exceeds.

    Raises UsageError, MessageTooLarge.
    """
    subjects = [subject for subject, _, _ in messages]
    check_subjects(subjects)
    connection.check_message(max(subjects, key=len), b"", b"")
    most = min(most, connection.max_payload) if most > 0 else connection.max_payload
    largest = max([len(payload) + len(lines) for _, payload, lines in messages])
    largest += len(_header(b"", identity, len(messages)) + _COMMIT)
    if largest > most:
        for number, (_, payload, lines) in enumerate(messages, 1):
            size = len(_header(lines, identity, number)) + len(payload)
            size += len(_COMMIT if number == len(messages) else CRLF)
            if size > most:
                raise MessageTooLarge(number - 1, size, most)
    return largest
