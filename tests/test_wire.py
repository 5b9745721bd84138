"""The frame parser sees what the client library's own parser sees, for the same bytes in any pieces."""

import asyncio
import json
import random
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from kvctl import wire
from kvctl.wire import FrameParser, Inbox, decode_headers, encode_headers, header_value, publish_frame, status

OURS = (1, 2, 3)
"""Subscriptions with a function of ours; the others are the library's."""


class Recorder:
    """Stands where the client is and writes down what a parser tells it."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self.events.append(("message", sid, bytes(subject), bytes(reply), headers or b"", data))

    async def _process_err(self, text: str) -> None:
        self.events.append(("error", text))

    async def _process_ping(self) -> None:
        self.events.append(("ping",))

    async def _process_pong(self) -> None:
        self.events.append(("pong",))

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.events.append(("info", info))


def fast_parser(recorder: Recorder, **options: Any) -> FrameParser:
    parser = FrameParser(recorder._process_msg, Parser(recorder), options.get("on_error", lambda _: False))
    for sid in OURS:
        parser.sinks[b"%d" % sid] = lambda frame, sid=sid: recorder.events.append(("message", sid, *frame))
    return parser


async def events_of(parser: Any, recorder: Recorder, chunks: list[bytes]) -> list[tuple[Any, ...]]:
    for chunk in chunks:
        await parser.parse(chunk)
    return recorder.events


token = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_categories=("Cc", "Zs")), min_size=1, max_size=12
)
subject = st.lists(token, min_size=1, max_size=4).map(lambda tokens: ".".join(tokens).encode())
payload = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"\r\n", b"PING\r\n", b"MSG a 1 2\r\nhi\r\n", b"\r\n\r\n", b"-ERR 'no'\r\n", b"x" * 5000]),
)
header = st.dictionaries(
    st.from_regex(r"\A[A-Za-z-]{1,10}\Z"), st.from_regex(r"\A[ -~]{0,20}\Z"), min_size=1, max_size=3
).map(encode_headers)
sid = st.integers(1, 6)


@st.composite
def message(draw: st.DrawFn) -> bytes:
    reply = draw(st.one_of(st.just(b""), subject.map(lambda text: text + b" ")))
    body = draw(payload)
    if draw(st.booleans()):
        return b"MSG %b %d %b%d\r\n%b\r\n" % (draw(subject), draw(sid), reply, len(body), body)
    head = draw(st.one_of(header, st.sampled_from([b"NATS/1.0 503\r\n\r\n", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n"])))
    total = len(head) + len(body)
    return b"HMSG %b %d %b%d %d\r\n%b%b\r\n" % (draw(subject), draw(sid), reply, len(head), total, head, body)


control = st.sampled_from(
    [
        b"PING\r\n",
        b"PONG\r\n",
        b"+OK\r\n",
        b"-ERR 'Unknown Protocol Operation'\r\n",
        b"-ERR 'Permissions Violation for Publish to \"a.B\"'\r\n",
        b'INFO {"server_id":"N","max_payload":1048576}\r\n',
        b"INFO %b\r\n" % json.dumps({"connect_urls": [f"127.0.0.1:{port}" for port in range(4000, 4400)]}).encode(),
    ]
)


@settings(deadline=None)
@given(st.lists(st.one_of(message(), control), max_size=8), st.data())
def test_both_parsers_see_the_same_frames_in_any_pieces(frames, data):
    stream = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    edges = [0, *cuts, len(stream)]
    chunks = [stream[start:end] for start, end in pairwise(edges)]
    stock, fast = Recorder(), Recorder()
    expected = asyncio.run(events_of(Parser(stock), stock, chunks))
    assert asyncio.run(events_of(fast_parser(fast), fast, chunks)) == expected
    assert len(expected) == len(frames) - frames.count(b"+OK\r\n")


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_frames_come_byte_by_byte(size):
    stream = b"PING\r\nMSG a.b 1 _INBOX.x 5\r\nhello\r\nHMSG c 2 12 14\r\nNATS/1.0\r\n\r\nhi\r\nMSG a 9 0\r\n\r\n"
    recorder = Recorder()
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert await events_of(fast_parser(recorder), recorder, chunks) == [
        ("ping",),
        ("message", 1, b"a.b", b"_INBOX.x", b"", b"hello"),
        ("message", 2, b"c", b"", b"NATS/1.0\r\n\r\n", b"hi"),
        ("message", 9, b"a", b"", b"", b""),
    ]


def plain_frames(stream: bytes) -> list[tuple[Any, ...]]:
    """Parse complete frames one after the other, by the protocol's definition and nothing else."""
    events: list[tuple[Any, ...]] = []
    while stream:
        line, _, stream = stream.partition(b"\r\n")
        word, *words = line.split(b" ")
        if word == b"PING":
            events.append(("ping",))
            continue
        total = int(words[-1])
        header = int(words[-2]) if word == b"HMSG" else 0
        name, number, *reply = words[: -2 if word == b"HMSG" else -1]
        body, end, stream = stream[:total], stream[total : total + 2], stream[total + 2 :]
        assert end == b"\r\n"
        events.append(("message", int(number), name, reply[0] if reply else b"", body[:header], body[header:]))
    return events


class Stream:
    """Random frames in runs of few lengths, whose headers and payloads contain frames and parts of frames."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lengths = [(self.random.choice((12, 20, 33)), self.random.randrange(4, 70)) for _ in range(3)]
        self.odd = self.random.choice((0, 0.02, 0.3))

    def forged(self) -> bytes:
        """Return bytes that look like frames of the same lengths, or nearly."""
        header, payload = self.random.choice(self.lengths)
        off = self.random.choice((-1, 0, 0, 1))
        line = self.random.choice(
            (
                b"\r\nHMSG f 1 %d %d\r\n" % (header, header + payload + off),
                b"\r\nMSG f 1 r %d\r\n" % (payload + off),
                b"HMSG f 1 r %d %d\r\n" % (header + off, header + payload),
                b"MSG f 2 %d\r\n" % payload,
                b"\r\n",
                b"PING\r\n",
                b" 1 ",
                b"f 1 r %d %d\r\n" % (header, header + payload),
            )
        )
        return (line + b"x" * (payload if self.random.random() < 0.5 else 3) + b"\r\n") * self.random.randrange(1, 4)

    def cut(self, size: int) -> bytes:
        """Return hostile bytes of this size."""
        text = self.forged() + self.forged() + b"v" * size
        start = self.random.randrange(12) if self.random.random() < 0.5 else 0
        return text[start : start + size]

    def continued(self) -> bytes:
        """Return bytes that complete a frame of the same lengths, if the line before them went on in them."""
        header, payload = self.random.choice(self.lengths)
        if self.random.random() < 0.7:
            return b"f %d\r\n%b" % (payload, self.cut(payload))
        return b"f %d %d\r\n%b" % (header, header + payload, self.cut(header + payload))

    def frame(self, kind: int) -> bytes:
        """Return one frame; its kind decides on reply and header."""
        if self.random.random() < self.odd / 4:
            return b"PING\r\n"
        header, payload = self.random.choice(self.lengths)
        if self.random.random() < self.odd:
            payload += self.random.randrange(1, 90)
        sid = 1 if self.random.random() > self.odd else self.random.randrange(1, 6)
        line = b"s.%d %d%b" % (
            self.random.randrange(10**6),
            sid,
            b" $JS.ACK.%d" % self.random.randrange(99) * (kind & 1),
        )
        if self.random.random() < self.odd / 2:
            body = self.continued()
            return b"%b %b %d\r\n%b\r\n" % (
                b"HMSG" if kind & 2 else b"MSG",
                b"%b 0" % line if kind & 2 else line,
                len(body),
                body,
            )
        if kind & 2:
            return b"HMSG %b %d %d\r\n%b%b\r\n" % (line, header, header + payload, self.cut(header), self.cut(payload))
        return b"MSG %b %d\r\n%b\r\n" % (line, payload, self.cut(payload))

    def frames(self, count: int) -> list[bytes]:
        """Return frames in long runs of one kind."""
        found: list[bytes] = []
        while len(found) < count:
            kind = self.random.randrange(4)
            found += [self.frame(kind) for _ in range(self.random.choice((1, 5, 60)))]
        return found


@pytest.fixture
def eager(monkeypatch):
    """Make parsers look for runs after few frames, in short pieces."""
    for name, value in (("FIRST_SAMPLES", 2), ("MOST_SAMPLES", 8), ("LONGEST_PAUSE", 2), ("RUN_BYTES", 700)):
        monkeypatch.setattr(wire, name, value)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.usefixtures("eager")
async def test_runs_of_frames_that_contain_frames_are_parsed_as_one_by_one(seed):
    made = Stream(seed)
    stream = b"".join(made.frames(400))
    recorder = Recorder()
    pieces = made.random.choice((1, 3, 40, len(stream) // 7))
    edges = [0, *sorted(made.random.randrange(len(stream)) for _ in range(pieces)), len(stream)]
    chunks = [stream[start:end] for start, end in pairwise(edges)]
    assert await events_of(fast_parser(recorder), recorder, chunks) == plain_frames(stream)


@pytest.mark.usefixtures("eager")
async def test_a_payload_forges_no_frame_wherever_the_buffer_is_split():
    made = Stream(5)
    made.odd = 0
    frames = [made.frame(3) for _ in range(60)]
    taken = 0

    class Counting(FrameParser):
        async def _take_run(self, data: bytes, position: int) -> int:
            nonlocal taken
            before = len(recorder.events)
            after = await super()._take_run(data, position)
            taken += len(recorder.events) - before
            return after

    recorder = Recorder()
    parser = Counting(recorder._process_msg, Parser(recorder), lambda _: False)
    for sid in OURS:
        parser.sinks[b"%d" % sid] = lambda frame, sid=sid: recorder.events.append(("message", sid, *frame))
    await parser.parse(b"".join(frames))
    stream = b"".join(frames[:12])
    expected = plain_frames(stream)
    taken = 0
    for at in range(len(stream)):
        recorder.events.clear()
        assert await events_of(parser, recorder, [stream[:at], stream[at:]]) == expected
    assert taken > len(stream) * len(expected) / 2, "the frames were not parsed in runs"


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("reply", [b"", b" r", b" 7"])
@pytest.mark.parametrize("end", [b"\r\n", b""])
async def test_a_payload_is_no_part_of_a_line_without_reply(reply, end):
    payload = b"f 12\r\nMSG f 2 r 2\r" + end  # with its first word a reply, a frame of a length in the run
    frames = [b"MSG a 1 r 12\r\nxxxxxxxxxxxx\r\n"] * 40
    frames[20:20] = [b"MSG a 1%b %d\r\n%b\r\n" % (reply, len(payload), payload)]
    recorder = Recorder()
    assert await events_of(fast_parser(recorder), recorder, [b"".join(frames)]) == plain_frames(b"".join(frames))


async def test_a_large_message_in_many_pieces_takes_linear_time():
    body = b"x" * (16 << 20)
    stream = b"MSG big 1 %d\r\n%b\r\n" % (len(body), body)
    recorder = Recorder()
    begun = time.process_time()
    await events_of(fast_parser(recorder), recorder, [stream[at : at + 4096] for at in range(0, len(stream), 4096)])
    assert time.process_time() - begun < 2  # joining at each of the 4,096 pieces takes more than ten
    assert [len(event[-1]) for event in recorder.events] == [len(body)]


@pytest.mark.parametrize(
    "line",
    [
        b"BOGUS 1 2\r\n",
        b"MSG a\r\n",
        b"MSG a x 5\r\nhello\r\n",
        b"MSG a 1 five\r\nhello\r\n",
        b"MSG a 1 -5\r\nhello\r\n",
        b"HMSG a 12\r\n",
        b"HMSG a 1 30 12\r\nNATS/1.0\r\n\r\n\r\n",
        b"MSG a 1 %d\r\nhello" % (wire.MAX_FRAME + 1),
        b"MSG a 1 " + b"9" * 5000 + b"\r\nhello",
        b"HMSG a 1 12 %d\r\nNATS/1.0\r\n\r\n" % (wire.MAX_FRAME + 1),
        b"INFO {" + b"x" * wire.MAX_LINE,
        b"INFO {\r\n",
        b"INFO []\r\n",
        b"-ERR '\xff'\r\n",
    ],
    ids=lambda line: str(line[:24]),
)
async def test_invalid_frame_is_a_protocol_error_and_the_library_reconnects(line):
    recorder, heard = Recorder(), list[str]()
    recorder._process_info = no_object  # type: ignore[method-assign]
    with pytest.raises(ProtocolError):
        await events_of(fast_parser(recorder, on_error=lambda text: heard.append(text)), recorder, [line])
    assert line == b"BOGUS 1 2\r\n" or heard[-1].startswith("The server")


async def no_object(info: Any) -> None:
    info.get("connect_urls")


async def test_errors_of_the_server_are_offered_to_us_first():
    heard: list[str] = []
    recorder = Recorder()
    parser = fast_parser(recorder, on_error=lambda text: heard.append(text) or text.startswith("Invalid"))
    await parser.parse(b"-ERR 'Invalid Publish Subject'\r\n-ERR 'Stale Connection'\r\nPING\r\n")
    assert heard == ["Invalid Publish Subject", "Stale Connection"]
    assert recorder.events == [("error", "'stale connection'"), ("ping",)]


async def test_a_reset_forgets_half_a_frame():
    recorder = Recorder()
    parser = fast_parser(recorder)
    await parser.parse(b"MSG a 1 500\r\nonly the beg")
    parser.reset()
    await parser.parse(b"PING\r\n")
    assert recorder.events == [("ping",)]


async def test_nothing_after_a_reset_is_read_from_the_old_connection():
    recorder = Recorder()
    parser = fast_parser(recorder)

    async def given_up() -> None:
        parser.reset()

    recorder._process_ping = given_up  # type: ignore[method-assign]
    await parser.parse(b"PING\r\nMSG a 1 2\r\nhi\r\n")
    assert recorder.events == []


class TestHeaders:
    def test_come_back_as_they_were_written(self):
        assert decode_headers(encode_headers({"A": "1", "Long-Name": "a b: c"})) == {"A": "1", "Long-Name": "a b: c"}
        assert encode_headers({}) == b""

    def test_header_value_is_found_by_its_full_name(self):
        block = b"NATS/1.0\r\nX-Nats-TTL: 1\r\nNats-TTL:5\r\nNats-TTLs: 9\r\n\r\n"
        assert header_value(block, b"Nats-TTL") == b"5"
        assert header_value(block, b"TTL") is None
        assert header_value(b"", b"Nats-TTL") is None

    def test_repeated_names_are_joined_and_binary_bytes_are_kept(self):
        assert decode_headers(b"NATS/1.0\r\nA: 1\r\nA: 2\r\nB: \xff\r\n\r\n") == {"A": "1, 2", "B": "\udcff"}
        assert encode_headers({"B": "\udcff"}) == b"NATS/1.0\r\nB: \xff\r\n\r\n"

    @pytest.mark.parametrize(
        ("block", "expected"),
        [
            (b"", (0, "")),
            (b"NATS/1.0\r\nA: 1\r\n\r\n", (0, "")),
            (b"NATS/1.0 503\r\n\r\n", (503, "")),
            (b"NATS/1.0 409 Consumer Deleted\r\nNats-Pending-Messages: 3\r\n\r\n", (409, "Consumer Deleted")),
            (b"NATS/1.0 what\r\n\r\n", (0, "")),
        ],
    )
    def test_a_status_is_read_with_and_without_text(self, block, expected):
        assert status(block) == expected

    def test_first_line_of_a_stored_message_is_not_a_status(self):
        stored = b"\r\nNats-Stream: S\r\nNats-Subject: a\r\nNats-Sequence: 7\r\nNats-Time-Stamp: x\r\n\r\n"
        assert [status(b"NATS/1.0 %d No Messages" % code + stored) for code in (503, 404, 408, 204)] == [(0, "")] * 4

    def test_frames_out_announce_their_sizes(self):
        assert publish_frame(b"a", b"r", b"", b"xy") == b"PUB a r 2\r\nxy\r\n"
        head = b"NATS/1.0\r\n\r\n"
        assert publish_frame(b"a", b"r", head, b"xy") == b"HPUB a r 12 14\r\n" + head + b"xy\r\n"


class TestInbox:
    async def test_gives_all_there_is_at_once(self):
        inbox = Inbox()
        frames = [(b"a", b"", b"", b"1"), (b"b", b"", b"", b"2")]
        inbox.frames.extend(frames)
        assert await inbox.take(0) == frames
        assert inbox.frames == []

    async def test_waits_no_longer_than_told(self):
        assert await Inbox().take(0.01) == []

    async def test_wakes_who_waits(self):
        inbox = Inbox()
        waiting = asyncio.create_task(inbox.take(300))
        await asyncio.sleep(0)
        inbox.frames.append((b"a", b"", b"", b""))
        inbox.wake()
        assert len(await asyncio.wait_for(waiting, 60)) == 1

    async def test_waiting_inbox_is_woken_by_a_frame(self):
        parser, inbox = fast_parser(Recorder()), Inbox()
        parser.sinks[b"7"], parser.inboxes[b"7"] = inbox.frames.append, inbox
        waiting = asyncio.create_task(inbox.take(300))
        await asyncio.sleep(0)
        await parser.parse(b"MSG a 7 2\r\nhi\r\n")
        assert await asyncio.wait_for(waiting, 60) == [(b"a", b"", b"", b"hi")]

    async def test_waiting_inbox_is_not_woken_by_an_earlier_timeout(self):
        inbox = Inbox()
        first = asyncio.create_task(inbox.take(0.2))
        await asyncio.sleep(0)
        inbox.wake()
        assert await asyncio.wait_for(first, 60) == []
        second = asyncio.create_task(inbox.take(300))
        await asyncio.sleep(0.5)
        assert not second.done()
        inbox.wake()
        assert await asyncio.wait_for(second, 60) == []
