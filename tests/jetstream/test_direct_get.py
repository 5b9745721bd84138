"""Direct gets of one message: every form, from replicas and from the leader."""

import pytest

from kvctl.errors import ConnectionLost, NoResponders, ServerError, StreamNotFound, UsageError
from kvctl.jetstream import direct_get
from kvctl.jetstream.direct_get import DirectRequest, NotUnderstood, StoredMessage, TooManySubjects

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
    assert message is not None
    assert (message.stream, message.subject, message.sequence) == (stream, subject(stream, "k.3"), 14)
    assert (message.payload, message.pending, message.last_sequence) == (b"13", None, None)
    assert await direct_get.from_leader(client.api, stream, seq=14) == StoredMessage(
        stream, message.subject, 14, message.time_ns, b"", b"13"
    )
    assert await direct_get.last(client.api, stream, subject(stream, "none")) is None


@pytest.mark.parametrize("leader", [False, True])
async def test_every_form_finds_its_message(client, stream, leader):
    fifth = await direct_get.get(client.api, stream, DirectRequest(sequence=5))
    assert fifth is not None
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


@pytest.mark.parametrize(
    "request_",
    [
        DirectRequest(),
        DirectRequest(sequence=0),
        DirectRequest(sequence=1, batch=0),
        DirectRequest(sequence=1, last_for="a"),
        DirectRequest(last_for="a", batch=2),
        DirectRequest(last_for="a", next_for="b"),
        DirectRequest(sequence=1, start_time_ns=1),
        DirectRequest(last_of=("a",), next_for="b"),
        DirectRequest(last_of=("a",), start_time_ns=1),
        DirectRequest(sequence=1, up_to_sequence=2),
        DirectRequest(sequence=1, up_to_time_ns=2),
        DirectRequest(last_of=("a",), up_to_sequence=1, up_to_time_ns=2),
        DirectRequest(sequence=1, max_bytes=5),
    ],
)
async def test_forms_that_servers_refuse_or_misread_are_not_sent(client, request_):
    with pytest.raises(UsageError):
        await direct_get.get(client.api, "KV_NONE", request_)


async def test_missing_stream_or_direct_get_has_no_responders(raw, client, bucket_name):
    raw.create_bucket(bucket_name, allow_direct=False)
    for stream in (f"KV_{bucket_name}", "KV_NONE"):
        with pytest.raises(NoResponders):
            await direct_get.last(client.api, stream, "a")
        with pytest.raises(NoResponders):
            await direct_get.get(client.api, stream, DirectRequest(sequence=1))
    with pytest.raises(StreamNotFound):
        await direct_get.get(client.api, "KV_NONE", DirectRequest(sequence=1), leader=True)


@pytest.mark.parametrize(
    ("header", "error"),
    [
        (b"NATS/1.0 408 Bad Request\r\n\r\n", NotUnderstood),
        (b"NATS/1.0 413 Too Many Results\r\n\r\n", TooManySubjects),
        (b"NATS/1.0 500 disk full\r\n\r\n", ServerError),
        (b"NATS/1.0\r\nNats-Sequence: 1\r\n\r\n", ServerError),
        (b"", ServerError),
    ],
)
def test_other_answers_are_errors(header, error):
    with pytest.raises(error):
        direct_get.message_from_answer(header, b"")


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
