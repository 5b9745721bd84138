"""Direct gets: one subject, many at once, from replicas and from the leader."""

import pytest

from kvctl import Client
from kvctl.errors import ConnectionLost, NoResponders, ServerError, StreamNotFound
from kvctl.jetstream import direct
from kvctl.jetstream.direct import NotUnderstood, StoredMessage, TooManySubjects
from tests.raw import RawClient


@pytest.fixture
def stream(raw: RawClient, bucket_name: str) -> str:
    """A bucket's stream with keys k.0 to k.9, written twice."""
    raw.create_bucket(bucket_name, max_msgs_per_subject=5)
    for number in range(20):
        raw.put(bucket_name, f"k.{number % 10}", b"%d" % number)
    return f"KV_{bucket_name}"


def subject(stream: str, key: str) -> str:
    return f"$KV.{stream.removeprefix('KV_')}.{key}"


async def all_of(client: Client, stream: str, *keys: str) -> list[StoredMessage]:
    subjects = [subject(stream, key) for key in keys]
    return [message async for batch in direct.last_of_many(client.api, stream, subjects) for message in batch]


async def test_one_message_is_told_whole(client: Client, stream: str) -> None:
    message = await direct.last(client.api, stream, subject(stream, "k.3"))
    assert message is not None
    assert (message.stream, message.subject, message.sequence) == (stream, subject(stream, "k.3"), 14)
    assert (message.payload, message.pending) == (b"13", None)
    assert await direct.from_leader(client.api, stream, seq=14) == StoredMessage(
        stream, message.subject, 14, message.time_ns, b"", b"13"
    )
    assert await direct.last(client.api, stream, subject(stream, "none")) is None
    assert await direct.from_leader(client.api, stream, seq=99) is None


async def test_messages_are_found_by_sequence_and_subject(client: Client, stream: str) -> None:
    for request, sequence in (
        ({"seq": 4}, 4),
        ({"last_by_subj": subject(stream, "k.0")}, 11),
        ({"next_by_subj": subject(stream, "k.0"), "seq": 2}, 11),
        ({"seq": 99}, None),
    ):
        found = await direct.at(client.api, stream, **request)
        assert (found and found.sequence) == sequence


async def test_many_come_in_order_each_subject_once(client: Client, stream: str) -> None:
    assert [message.payload for message in await all_of(client, stream, "k.*")] == [b"%d" % n for n in range(10, 20)]
    found = await all_of(client, stream, "k.7", "k.*", "none", "k.2")
    assert [message.sequence for message in found] == list(range(11, 21))
    assert await all_of(client, stream, "none", "neither.*") == []


async def test_more_than_a_thousand_are_too_many(client: Client, bucket_name: str) -> None:
    bucket = await client.create_bucket(bucket_name)
    await bucket.put_many((str(number), b"") for number in range(1025))
    with pytest.raises(TooManySubjects):
        await all_of(client, f"KV_{bucket_name}", "*")
    named = await all_of(client, f"KV_{bucket_name}", *(str(number) for number in range(1024)))
    assert len(named) == 1024


async def test_more_than_fits_into_an_answer_is_too_many(client: Client, raw: RawClient, stream: str) -> None:
    for number in range(10):
        raw.put(stream.removeprefix("KV_"), f"large.{number}", b"x" * 1_000_000)
    with pytest.raises(TooManySubjects):
        await all_of(client, stream, "large.*")
    assert len(await all_of(client, stream, *(f"large.{number}" for number in range(7)))) == 7


async def test_without_a_stream_or_direct_get_nobody_answers(raw: RawClient, client: Client, bucket_name: str) -> None:
    raw.create_bucket(bucket_name, allow_direct=False)
    for stream in (f"KV_{bucket_name}", "KV_NONE"):
        with pytest.raises(NoResponders):
            await direct.last(client.api, stream, "a")
        with pytest.raises(NoResponders):
            await all_of(client, stream, "a")
        assert await direct.last_of_each(client.api, stream, ["a", "b"]) == {}
    with pytest.raises(StreamNotFound):
        await direct.from_leader(client.api, "KV_NONE", seq=1)
    with pytest.raises(StreamNotFound):
        await direct.last_of_each(client.api, "KV_NONE", ["a"], leader=True)


@pytest.mark.parametrize("leader", [False, True])
async def test_each_of_thousands_has_its_answer(client: Client, stream: str, leader: bool) -> None:
    subjects = [subject(stream, f"k.{number}") for number in range(3000)]
    found = await direct.last_of_each(client.api, stream, subjects, leader=leader)
    answers = [found[subject] for subject in subjects]
    assert [message and message.sequence for message in answers] == [*range(11, 21), *[None] * 2990]


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
def test_other_answers_are_errors(header: bytes, error: type[ServerError]) -> None:
    with pytest.raises(error):
        direct._decode(header, b"")


async def test_a_request_that_is_no_request_is_not_understood(client: Client, stream: str) -> None:
    with pytest.raises(NotUnderstood):
        await direct.at(client.api, stream)


async def test_a_get_is_asked_again_when_the_connection_breaks(client: Client, stream: str) -> None:
    request, calls = client.connection.request, 0

    async def breaks_once(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ConnectionLost("cut")
        return await request(*arguments, **options)  # type: ignore[arg-type]

    client.connection.request = breaks_once  # type: ignore[method-assign, assignment]
    assert await direct.last(client.api, stream, subject(stream, "k.1")) is not None
    assert calls == 2
