"""Direct gets of one message: every form, from replicas and from the leader."""

import base64

import pytest

from kvctl.errors import ConnectionLost, NoResponders, ServerError, StreamNotFound, UsageError
from kvctl.jetstream import direct_get, multi_get
from kvctl.jetstream.direct_get import (
    DirectRequest,
    NotUnderstood,
    StoredMessage,
    TooManySubjects,
    message_from_answer,
    message_from_leader,
    messages_from_answers,
)
from kvctl.jetstream.multi_get import MessagePage, MomentLost, NotReached

MISSING = 99


@pytest.fixture
def stream(raw, bucket_name):
    """A bucket's stream with keys k.0 to k.9, written twice."""
    raw.create_bucket(bucket_name, max_msgs_per_subject=5)
    for number in range(20):
        raw.put(bucket_name, f"k.{number % 10}", b"%d" % number)
    return f"KV_{bucket_name}"


def subject(stream: str, key: str) -> str:
    return f"$KV.{stream.removeprefix('KV_')}.{key}"


async def test_message_is_returned_with_all_fields(client, stream):
    message = await direct_get.last(client.api, stream, subject(stream, "k.3"))
    assert (message.stream, message.subject, message.sequence) == (stream, subject(stream, "k.3"), 14)
    assert (message.payload, message.pending, message.last_sequence) == (b"13", None, None)
    assert await direct_get.from_leader(client.api, stream, seq=14) == StoredMessage(
        stream, message.subject, 14, message.time_ns, b"", b"13"
    )
    assert await direct_get.last(client.api, stream, subject(stream, "none")) is None


@pytest.mark.parametrize("leader", [False, True])
async def test_every_form_finds_its_message(client, stream, leader):
    fifth = await direct_get.get(client.api, stream, DirectRequest(sequence=5))
    time, k0, k4 = fifth.time_ns, subject(stream, "k.0"), subject(stream, "k.4")
    for request, sequence in (
        (DirectRequest(sequence=4), 4),
        (DirectRequest(sequence=MISSING), None),
        (DirectRequest(last_for=k0), 11),
        (DirectRequest(last_for=subject(stream, "none")), None),
        (DirectRequest(next_for=k0), 1),
        (DirectRequest(next_for=k0, sequence=2), 11),
        (DirectRequest(next_for=subject(stream, "*.0"), sequence=2), 11),
        (DirectRequest(next_for=k0, sequence=12), None),
        (DirectRequest(start_time_ns=time), 5),
        (DirectRequest(start_time_ns=time + 1), 6),
        (DirectRequest(start_time_ns=0), 1),
        (DirectRequest(start_time_ns=4 * 10**18), None),
        (DirectRequest(start_time_ns=time, next_for=k4), 5),
        (DirectRequest(start_time_ns=time + 1, next_for=k4), 15),
    ):
        found = await direct_get.get(client.api, stream, request, leader=leader)
        assert (found and found.sequence) == sequence, request


async def test_forms_that_servers_refuse_or_misread_are_not_sent(client):
    with pytest.raises(UsageError):
        await direct_get.get(client.api, "KV_NONE", DirectRequest())


async def test_missing_stream_or_direct_get_has_no_responders(raw, client, bucket_name):
    raw.create_bucket(bucket_name, allow_direct=False)
    for stream in (f"KV_{bucket_name}", "KV_NONE"):
        with pytest.raises(NoResponders):
            await direct_get.last(client.api, stream, "a")
        with pytest.raises(NoResponders):
            await direct_get.get(client.api, stream, DirectRequest(sequence=1))
    with pytest.raises(StreamNotFound):
        await direct_get.get(client.api, "KV_NONE", DirectRequest(sequence=1), leader=True)


def test_answer_without_its_fields_is_an_error():
    with pytest.raises(ServerError):
        direct_get.message_from_answer(b"NATS/1.0\r\nNats-Sequence: 1\r\n\r\n", b"")


@pytest.mark.parametrize("form", ["empty", "malformed", "payload beside a subject"])
async def test_a_request_that_is_none_is_not_understood(client, stream, form):
    endpoint, request = {
        "empty": (stream, b""),
        "malformed": (stream, b"{"),
        "payload beside a subject": (f"{stream}.{subject(stream, 'k.0')}", b'{"seq": 1}'),
    }[form]
    with pytest.raises(NotUnderstood) as caught:
        await direct_get._get(client.api, endpoint, request)
    assert caught.value.code == 408


async def test_an_answer_from_before_the_time_asked_for_was_by_an_older_server(client, stream, monkeypatch):
    monkeypatch.setattr(DirectRequest, "body", lambda request: {"next_by_subj": request.next_for})
    with pytest.raises(NotUnderstood):
        await direct_get.get(
            client.api, stream, DirectRequest(start_time_ns=4 * 10**18, next_for=subject(stream, "k.0"))
        )


async def test_a_get_is_asked_again_when_the_connection_breaks(client, stream):
    request, calls = client.connection.request, 0

    async def breaks_once(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ConnectionLost("cut")
        return await request(*arguments, **options)  # type: ignore[arg-type]

    client.connection.request = breaks_once  # type: ignore[method-assign, assignment]
    assert await direct_get.last(client.api, stream, subject(stream, "k.1")) is not None
    assert calls == 2


T, STAMP = 1_769_860_800_000_000_001, "2026-01-31T12:00:00.000000001Z"


def answer(own: bytes = b"", tail: bytes = b"") -> bytes:
    """The header of a server's answer: what the writer said, and what the server adds."""
    return (
        b"NATS/1.0" + own + b"\r\nNats-Stream: S\r\nNats-Subject: s.\xff\r\nNats-Sequence: 7\r\n"
        b"Nats-Time-Stamp: " + STAMP.encode() + b"\r\n" + tail + b"\r\n"
    )


def end(code: str, **fields: object) -> bytes:
    lines = "".join(f"\r\n{name.replace('_', '-')}: {value}" for name, value in fields.items())
    return f"NATS/1.0 {code}{lines}\r\n\r\n".encode()


def stored(sequence: int, pending: int | None = None) -> StoredMessage:
    return StoredMessage("S", "s", sequence, 0, b"", b"", pending)


# -- requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (DirectRequest(sequence=0), "start at 1"),
        (DirectRequest(sequence=1, batch=0), "start at 1"),
        (DirectRequest(batch=1, max_bytes=0), "start at 1"),
        (DirectRequest(last_of=("a",), up_to_sequence=0), "start at 1"),
        (DirectRequest(last_for="a", sequence=1), "cannot be combined"),
        (DirectRequest(last_for="a", next_for="b"), "cannot be combined"),
        (DirectRequest(last_for="a", batch=2), "cannot be combined"),
        (DirectRequest(last_for="a", last_of=("b",)), "cannot be combined"),
        (DirectRequest(start_time_ns=1, sequence=1), "A start time"),
        (DirectRequest(start_time_ns=1, last_for="a"), "A start time"),
        (DirectRequest(start_time_ns=1, last_of=("a",)), "A start time"),
        (DirectRequest(last_of=("a",), next_for="b"), "`last_of` and `next_for` cannot be combined"),
        (DirectRequest(sequence=1, up_to_sequence=2), "needs `last_of`"),
        (DirectRequest(sequence=1, up_to_time_ns=0), "needs `last_of`"),
        (DirectRequest(last_of=("a",), up_to_sequence=1, up_to_time_ns=0), "cannot be combined"),
        (DirectRequest(sequence=1, max_bytes=5), "needs a batch"),
        (DirectRequest(), "Give a sequence"),
        (DirectRequest(last_for="a b"), "subject"),
        (DirectRequest(next_for="a..b"), "subject"),
        (DirectRequest(last_of=("a", "b\n")), "subject"),
    ],
)
def test_request_that_servers_refuse_is_refused_with_its_reason(request_, why):
    with pytest.raises(UsageError, match=why):
        request_.check()


@pytest.mark.parametrize(
    ("request_", "many", "body"),
    [
        (DirectRequest(sequence=1), False, {"seq": 1}),
        (DirectRequest(last_for="a"), False, {"last_by_subj": "a"}),
        (DirectRequest(next_for="a"), False, {"next_by_subj": "a"}),
        (DirectRequest(sequence=2, next_for="a"), False, {"seq": 2, "next_by_subj": "a"}),
        (DirectRequest(start_time_ns=0), False, {"next_by_subj": ">", "start_time": "1970-01-01T00:00:00.000000000Z"}),
        (DirectRequest(start_time_ns=T, next_for="a"), False, {"next_by_subj": "a", "start_time": STAMP}),
        (DirectRequest(batch=1), True, {"batch": 1, "seq": 1}),
        (DirectRequest(batch=3, max_bytes=1), True, {"batch": 3, "max_bytes": 1, "seq": 1}),
        (DirectRequest(batch=3, sequence=2), True, {"batch": 3, "seq": 2}),
        (DirectRequest(batch=3, next_for="a"), True, {"batch": 3, "next_by_subj": "a"}),
        (DirectRequest(batch=3, start_time_ns=T), True, {"batch": 3, "next_by_subj": ">", "start_time": STAMP}),
        (DirectRequest(last_of=("a", "b.>")), True, {"multi_last": ["a", "b.>"]}),
        (DirectRequest(last_of=("a",), batch=1), True, {"multi_last": ["a"], "batch": 1}),
        (DirectRequest(last_of=("a",), up_to_sequence=1), True, {"multi_last": ["a"], "up_to_seq": 1}),
        (DirectRequest(last_of=("a",), up_to_time_ns=T - 1), True, {"multi_last": ["a"], "up_to_time": STAMP}),
        (
            DirectRequest(last_of=("a",), up_to_time_ns=0),
            True,
            {"multi_last": ["a"], "up_to_time": "1970-01-01T00:00:00.000000001Z"},
        ),
    ],
)
def test_request_is_written_as_adr_31_says(request_, many, body):
    request_.check()
    assert (request_.many, request_.body()) == (many, body)


def test_last_message_of_all_is_asked_for_in_two_parts():
    assert direct_get._in_parts({"last_by_subj": ">"}) == [{"last_by_subj": "*"}, {"last_by_subj": "*.>"}]
    assert direct_get._in_parts({"last_by_subj": "a.>"}) == [{"last_by_subj": "a.>"}]
    assert direct_get._in_parts({"seq": 3}) == [{"seq": 3}]


# -- one answer --------------------------------------------------------------------------------------------


def test_message_is_read_without_what_the_server_adds():
    assert message_from_answer(answer(), b"v") == StoredMessage("S", "s.\udcff", 7, T, b"", b"v")
    assert message_from_answer(answer(b"\r\nA: b"), b"") == StoredMessage(
        "S", "s.\udcff", 7, T, b"NATS/1.0\r\nA: b\r\n\r\n", b""
    )
    batched = message_from_answer(answer(tail=b"Nats-Num-Pending: 4\r\nNats-Last-Sequence: 6\r\n"), b"")
    assert (batched.pending, batched.last_sequence) == (4, 6)


def test_message_that_was_republished_is_read_by_what_stands_last():
    older = b"\r\nNats-Stream: OLD\r\nNats-Subject: x\r\nNats-Sequence: 1\r\nNats-Time-Stamp: 2020-01-01T00:00:00Z"
    found = message_from_answer(answer(older), b"")
    assert (found.stream, found.sequence, found.header) == ("S", 7, b"NATS/1.0" + older + b"\r\n\r\n")


@pytest.mark.parametrize("own", [b"\r\nA: b", b"\r\nNats-S", answer()[8:-2].replace(b" 7", b" 9") + b"A", b""])
def test_message_whose_writer_did_not_end_its_header_is_read_by_what_the_server_adds(own):
    tail = b"Nats-Num-Pending: 4\r\nNats-Last-Sequence: 6\r\n"
    header = b"NATS/1.0" + own + answer(tail=tail)[10:]  # the server put its lines in place of the last two bytes
    found = message_from_answer(header, b"v")
    assert (found.subject, found.sequence, found.header) == ("s.\udcff", 7, b"NATS/1.0" + own + b"\r\n")
    assert messages_from_answers([(b"", b"", header, b"v")] * 2) == [found] * 2


def test_message_in_the_leaders_reply_is_read():
    message = {"subject": "s", "seq": 7, "time": STAMP}
    assert message_from_leader("S", {"message": message}) == StoredMessage("S", "s", 7, T, b"", b"")
    held = {name: base64.b64encode(data).decode() for name, data in (("hdrs", b"NATS/1.0\r\n\r\n"), ("data", b"v"))}
    found = message_from_leader("S", {"message": message | held})
    assert (found.header, found.payload) == (b"NATS/1.0\r\n\r\n", b"v")


@pytest.mark.parametrize(
    ("header", "error", "text"),
    [
        (end("408 Bad Request"), NotUnderstood, "The server does not understand the request: Bad Request"),
        (end("413 Too Many Results"), TooManySubjects, "More than 1024 subjects match: Too Many Results"),
        (end("500 disk full"), ServerError, "The server refused a direct get: 500 disk full"),
        (b"", ServerError, "The server refused a direct get: 0"),
    ],
)
def test_status_is_an_error_with_its_code(header, error, text):
    with pytest.raises(error) as caught:
        message_from_answer(header, b"")
    assert type(caught.value) is error
    assert caught.value.message == text
    assert caught.value.code == int(header[9:12] or 0)


def test_status_404_means_no_message():
    assert message_from_answer(end("404 Message Not Found"), b"") is None


# -- pages -------------------------------------------------------------------------------------------------


def test_answers_of_a_page_are_read_in_order_as_each_alone():
    tail = b"Nats-Num-Pending: 1\r\nNats-Last-Sequence: 0\r\n"
    stamps = ["2026-11-23T02:36:52Z", "2026-11-23T02:36:52.5Z", "2026-11-23T02:36:52.000000001Z", STAMP]
    own = [b"", b"\r\nA: b", b"\r\nNats-Stream: OLD\r\nNats-Sequence: 1", answer(tail=tail)[8:-2]]
    headers = [answer(more, tail).replace(STAMP.encode(), at.encode()) for more, at in zip(own, stamps, strict=True)]
    answers = [(b"", b"", header, b"%d" % number) for number, header in enumerate(headers)]
    assert messages_from_answers(answers) == [message_from_answer(header, payload) for *_, header, payload in answers]


@pytest.mark.parametrize("header", [answer(), end("404 Message Not Found")])
def test_answer_of_a_server_without_batches_is_not_understood(header):
    with pytest.raises(NotUnderstood):
        messages_from_answers([(b"", b"", header, b"")])


BATCH, LAST = DirectRequest(batch=5), DirectRequest(last_of=("a",))


@pytest.mark.parametrize(
    ("messages", "header", "request_", "page"),
    [
        ([], end("404 No Results"), LAST, MessagePage([], 0, 0)),
        ([], end("404 Message Not Found"), BATCH, MessagePage([], 0, 0)),
        ([], end("204 EOB"), BATCH, MessagePage([], 0, 0)),
        ([], end("204 EOB", Nats_Num_Pending=3), BATCH, MessagePage([], 3, 0)),
        ([stored(4, 0)], end("204 EOB", Nats_Num_Pending=0), BATCH, MessagePage([stored(4, 0)], 0, 4)),
        (
            [stored(4, 9), stored(6, 8)],
            end("204 EOB", Nats_Num_Pending=8),
            BATCH,
            MessagePage([stored(4, 9), stored(6, 8)], 8, 6),
        ),
        # Servers 2.11 count each message itself in a batch, and one too few at the end of last messages.
        (
            [stored(4, 10), stored(6, 9)],
            end("204 EOB", Nats_Num_Pending=8),
            BATCH,
            MessagePage([stored(4, 9), stored(6, 8)], 8, 6),
        ),
        (
            [stored(4, 2), stored(6, 1)],
            end("204 EOB", Nats_Num_Pending=0, Nats_UpTo_Sequence=9),
            LAST,
            MessagePage([stored(4, 2), stored(6, 1)], 1, 6, 9),
        ),
    ],
)
def test_page_ends_with_what_is_left(messages, header, request_, page):
    assert multi_get._closed(messages, messages[-1] if messages else None, header, request_) == page


@pytest.mark.parametrize(
    ("messages", "header", "request_", "error"),
    [
        ([stored(4, 1)], end("404 No Results"), BATCH, MomentLost),
        ([stored(4, 1)], end("404 No Results"), LAST, MomentLost),
        ([], end("404 Message Not Found"), LAST, MomentLost),
        ([], end("404 No Results"), DirectRequest(last_of=("a",), up_to_sequence=5), NotReached),
        ([], end("408 Bad Request"), BATCH, NotUnderstood),
        ([], end("413 Too Many Results"), LAST, TooManySubjects),
        ([stored(4, 1)], end("500 disk full"), BATCH, ServerError),
    ],
)
def test_page_that_ends_otherwise_is_an_error(messages, header, request_, error):
    with pytest.raises(error) as caught:
        multi_get._closed(messages, messages[-1] if messages else None, header, request_)
    assert type(caught.value) is error
