"""NATS wire protocol: outgoing frames, and a frame parser ten times faster than the client library's.

The parser takes over a live connection's read path. It passes messages of our own subscriptions to plain functions and
leaves everything else (PING, INFO, errors, the library's own subscriptions) to the stock parser.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from kvctl.tokens import encoded, header_lines

CRLF = b"\r\n"
MAX_CONTROL_LINE = 4096
MAX_FRAME = (64 << 20) + (64 << 10)
"""Maximum bytes of a message that is received: servers allow payloads of 64 MiB, headers included."""
MAX_LINE = 1 << 20
"""Maximum bytes of a line that is received: INFO names the servers of a cluster."""
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""Errors of reading what is not as expected."""
RUN_BYTES, RUN_FRAME_BYTES = 64 << 10, 4 << 10
"""Maximum bytes of one search for a run of frames, and of the body of a frame in a run."""
RUN_LENGTHS = 8
"""Maximum number of different lengths in a run."""
FIRST_SAMPLES, MOST_SAMPLES = 16, 4096
"""Frames whose lengths are counted before the frequent ones are used: each time twice as many."""
LONGEST_PAUSE = 32
"""Maximum number of frames to parse singly after a run of few."""
_STORED = b"\r\nNats-Sequence: "


class Frame(NamedTuple):
    """A message in wire form; all parts as bytes, empty where absent. `header` starts with `NATS/1.0`."""

    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes


RawFrame = tuple[bytes, bytes, bytes, bytes]
"""Subject, reply, header, payload in wire form."""
Sink = Callable[[RawFrame], object]
Deliver = Callable[[int, bytes, bytes, bytes, bytes | None], Awaitable[None]]
"""Takes number of the subscription, subject, reply, payload and header of a message."""


def publish_frame(subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bytes:
    """Encode a PUB or HPUB frame."""
    if header:
        sizes = len(header), len(header) + len(payload)
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, *sizes, header, payload)
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)


def subjects_of(frames: bytes) -> Iterator[str]:
    """Yield the subjects of encoded PUB and HPUB frames."""
    position = 0
    while position < len(frames):
        end = frames.index(CRLF, position)
        line = frames[position:end].split(b" ")
        yield line[1].decode(errors="surrogateescape")
        position = end + int(line[-1]) + 4


def encode_headers(headers: dict[str, str]) -> bytes:
    """Encode a header block; empty for no headers. Raises UsageError for multi-line values."""
    if not headers:
        return b""
    return b"NATS/1.0\r\n" + encoded(header_lines(headers)) + CRLF


def header_value(header: bytes, name: bytes) -> bytes | None:
    """Return the first value of a header in a raw block, without decoding the others."""
    at = header.find(b"\r\n" + name + b":")
    if at < 0:
        return None
    start = at + len(name) + 3
    return header[start : header.find(CRLF, start)].strip()


def decode_headers(header: bytes) -> dict[str, str]:
    """Decode a raw header block; repeated names are joined by a comma, bytes that are not UTF-8 become surrogates."""
    found: dict[str, str] = {}
    for line in header.split(CRLF)[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            text = value.strip().decode(errors="surrogateescape")
            key = name.decode(errors="surrogateescape")
            found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def status(header: bytes) -> tuple[int, str]:
    """Return code and description of an inline status; (0, "") for an ordinary message. An inline 503 has no text.

    A stored message is an ordinary one, even if its writer put a status into the first line (which servers before 2.15
    keep): it has the sequence that servers add, which no status has.
    """
    if header[8:9] != b" " or _STORED in header:
        return 0, ""
    line = header[9 : header.find(CRLF)]
    code, _, text = line.partition(b" ")
    return (int(code) if code.isdigit() and len(code) == 3 else 0), text.strip().decode(errors="replace")


class Inbox:
    """Queue of one subscription's frames; the reader takes all available ones at once."""

    __slots__ = ("_waiter", "frames")

    def __init__(self) -> None:
        self.frames: list[RawFrame] = []
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Wake a waiting `take`."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self, timeout: float) -> list[RawFrame]:
        """Return all available frames; wait up to `timeout` seconds for the first. Empty on timeout, or when woken."""
        if not self.frames:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            alarm = loop.call_later(timeout, self.wake)
            try:
                await self._waiter
            finally:
                alarm.cancel()
                self._waiter = None
        taken = self.frames[:]
        self.frames.clear()
        return taken


class FrameRuns:
    """Runs of frames of one kind and of frequent lengths, found by one regular expression.

    Each match begins where the last one ends, with the exact lengths, or takes the rest: nothing is ever searched for,
    so that no payload can pass for a frame.
    """

    __slots__ = ("_counts", "_find", "_lengths", "_line", "_samples", "frame")

    def __init__(self, line: bytes) -> None:
        """`line` matches the beginning of a frame's first line: three groups for subject, number and reply."""
        self._line = line
        self._find: Callable[[bytes, int, int], list[tuple[bytes, ...]]] | None = None
        self._lengths: list[tuple[int, int]] = []
        self._counts: Counter[tuple[int, int]] = Counter()
        self._samples = FIRST_SAMPLES
        self.frame: Callable[[tuple[bytes, ...]], RawFrame] = itemgetter(0, 2, 3, 4)
        """Take the frame out of a match, whose second item is the number of its subscription."""

    def find(self, data: bytes, position: int) -> tuple[list[tuple[bytes, ...]], int]:
        """Return the matches of the frames at this position, and the position after them."""
        if self._find is None:
            return [], position
        end = min(position + RUN_BYTES, len(data))
        found = self._find(data, position, end)
        rest = found[-1][-1]
        if rest:
            found.pop()
        return found, end - len(rest)

    def learn(self, header: int, body: int) -> None:
        """Count a frame with this length of its header, and of header and payload."""
        if body <= RUN_FRAME_BYTES:
            self._counts[header, body] += 1
        self._samples -= 1
        if self._samples:
            return
        counted = self._counts.total()
        frequent = [
            lengths for lengths, count in self._counts.most_common(RUN_LENGTHS) if count * RUN_LENGTHS > counted
        ]
        lengths = [*frequent, *(known for known in self._lengths if known not in frequent)][:RUN_LENGTHS]
        if lengths != self._lengths:
            self._expect(lengths)
        self._counts.clear()
        self._samples = min(2 * counted + FIRST_SAMPLES, MOST_SAMPLES)

    def _expect(self, lengths: list[tuple[int, int]]) -> None:
        """Compile the expression: the group that matched the text of the lengths decides on the bytes to take."""
        self._lengths = lengths
        texts = b"|".join([b"(%d %d)" % pair if b"HMSG" in self._line else b"(%d)" % pair[1] for pair in lengths])
        headers, payloads = [header for header, _ in lengths], [body - header for header, body in lengths]
        line = self._line + b" (?:" + texts + b")\r\n"
        pattern = line + b"(" + _by_group(headers) + b")(" + _by_group(payloads) + b")\r\n|(.+)"
        self._find = re.compile(pattern, re.DOTALL).findall
        self.frame = itemgetter(0, 2, 3 + len(lengths), 4 + len(lengths))


def _by_group(sizes: list[int]) -> bytes:
    """Return an expression that takes as many bytes as the group of the same place says, counted from the fourth."""
    *others, last = sizes
    expression = b".{%d}" % last
    for number in range(len(others), 0, -1):
        expression = b"(?(%d).{%d}|%b)" % (number + 3, others[number - 1], expression)
    return expression


_RUN_LINES = {
    (b"MSG", 4): rb"MSG ([^ ]+) (\d+)()",
    (b"MSG", 5): rb"MSG ([^ ]+) (\d+) (?!\d+\r)([^ ]+)",  # not a length at the end of its line
    (b"HMSG", 5): rb"HMSG ([^ ]+) (\d+)()",
    (b"HMSG", 6): rb"HMSG ([^ ]+) (\d+) ([^ ]+)",
}
"""By first word and number of words of the line."""
_SUBSCRIPTION = itemgetter(1)


class FrameParser:
    """Stands in for the client library's parser on a live connection; `deliver` takes what has no sink of ours."""

    def __init__(self, deliver: Deliver, stock: Any, on_error: Callable[[str], bool], begun: bytes = b"") -> None:
        """`begun` is what the stock parser has received of a line; no subscription was made until then."""
        self.sinks: dict[bytes, Sink] = {}
        self.inboxes: dict[bytes, Inbox] = {}
        self._deliver = deliver
        self._stock = stock
        self._on_error = on_error
        self._life = 0
        self._kinds = {kind: FrameRuns(line) for kind, line in _RUN_LINES.items()}
        self._runs: FrameRuns | None = None
        """Runs of the last frame's kind."""
        self._pause = self._singly = 1
        """Frames to parse singly after a run, and how many of them are left."""
        self.reset()
        if begun:
            self._hold(begun, 0)

    def reset(self) -> None:
        """Discard a partial frame, as after a reconnect."""
        self._held: list[bytes] = []
        self._held_size = 0
        self._needed = 0
        self._life += 1
        self._stock.reset()

    async def parse(self, data: bytes = b"") -> None:
        """Dispatch every complete frame received; keep the rest for the next call."""
        if self._held:
            # A large message comes in many chunks: join them once, when it is complete.
            self._held.append(data)
            self._held_size += len(data)
            if self._held_size < self._needed:
                return
            data = b"".join(self._held)
            self._held = []
        position, end, find, sinks, life = 0, len(data), data.find, self.sinks, self._life
        while position < end:
            if self._singly:
                self._singly -= 1
            elif (position := await self._take_run(data, position)) == end:
                break
            eol = find(CRLF, position)
            if eol < 0:
                if end - position > MAX_LINE:
                    await self._refuse(f"The server sent a line of more than {MAX_LINE >> 20} MiB")
                    return
                self._hold(data[position:], 0)
                break
            args = data[position:eol].split(b" ")
            body = eol + 2
            try:
                if args[0] == b"HMSG":
                    stop = body + int(args[-1])
                    edge = body + int(args[-2])
                    reply = args[3] if len(args) == 6 else b""
                elif args[0] == b"MSG":
                    stop = body + int(args[-1])
                    edge = body
                    reply = args[3] if len(args) == 5 else b""
                else:
                    await self._control(data[position:body])
                    if self._life != life:
                        return  # the connection was given up: the rest does not belong to the next one
                    position = body
                    continue
                if not body <= edge <= stop:
                    raise ValueError
                if stop - body > MAX_FRAME:
                    await self._refuse(f"The server announced a message of {stop - body} bytes")
                    return
                if stop + 2 > end:
                    self._hold(data[position:], stop + 2 - position)
                    break
                sink = sinks.get(args[2])
                sid = 0 if sink else int(args[2])
            except (ValueError, IndexError):
                await self._refuse("The server sent a message with an invalid first line")
                return
            if not self._singly:
                self._learn(args, edge - body, stop - body)
            if sink is not None:
                sink((args[1], reply, data[body:edge], data[edge:stop]))
            else:
                header = data[body:edge] if edge > body else None
                await self._deliver(sid, args[1], reply, data[edge:stop], header)
            position = stop + 2
        for inbox in self.inboxes.values():
            if inbox.frames:
                inbox.wake()

    def _learn(self, args: list[bytes], header: int, body: int) -> None:
        """Count the lengths of a frame after which a run is looked for."""
        self._runs = self._kinds.get((args[0], len(args)))
        if self._runs is not None:
            self._runs.learn(header, body)

    async def _take_run(self, data: bytes, position: int) -> int:
        """Dispatch the run of frames at this position, if there is one; return the position after it."""
        if self._runs is None:
            return position
        found, after = self._runs.find(data, position)
        self._pause = 1 if len(found) >= LONGEST_PAUSE // 2 else min(2 * self._pause, LONGEST_PAUSE)
        self._singly = self._pause
        for sid, run in groupby(found, _SUBSCRIPTION):
            frames = list(map(self._runs.frame, run))
            inbox, sink = self.inboxes.get(sid), self.sinks.get(sid)
            if inbox is not None:
                inbox.frames.extend(frames)
                continue
            for frame in frames:
                if sink is not None:
                    sink(frame)
                else:
                    subject, reply, header, payload = frame
                    await self._deliver(int(sid), subject, reply, payload, header or None)
        return after

    def _hold(self, rest: bytes, needed: int) -> None:
        self._held = [rest]
        self._held_size = len(rest)
        self._needed = needed

    async def _control(self, line: bytes) -> None:
        if line.startswith(b"-ERR") and self._on_error(line[4:].strip(b" '\r\n").decode(errors="replace")):
            return
        try:
            await self._stock.parse(line)
        except MALFORMED:
            await self._refuse("The server sent a malformed line")

    async def _refuse(self, why: str) -> None:
        """Raise the library's protocol error, which makes it reconnect, after reporting the reason."""
        self._on_error(why)
        self._stock.reset()
        await self._stock.parse(b"?\r\n")
