"""Streams on the server: every page of them, and what can be done with one."""

from typing import Any

import pytest

import kvctl
from kvctl import Client
from kvctl.errors import ConflictError, KvctlError, NotFoundError, ServerError, StreamNotFound, StreamOffline
from kvctl.jetstream import streams
from tests.support.raw import RawClient


def config(name: str, **settings: Any) -> dict[str, Any]:
    return {"name": name, "subjects": [f"{name}.>"], "storage": "memory", **settings}


async def test_thousands_are_listed_page_by_page(own_server):
    count = 1100  # names come by 1,024, infos by 256
    with RawClient(own_server.url) as raw:
        for number in range(count):
            assert "error" not in raw.api(f"STREAM.CREATE.S{number}", config(f"S{number}"))
    expected = {f"S{number}" for number in range(count)}
    async with kvctl.connect(own_server.url) as client:
        names = await streams.names(client.api)
        assert (len(names), set(names)) == (count, expected)
        assert await streams.names(client.api, "S7.>") == ["S7"]
        listed = await streams.listing(client.api)
        infos = listed.complete()
        assert (len(infos), {info["config"]["name"] for info in infos}, listed.silent) == (count, expected, {})
        wanted = ["S5", "NONE", "S3"]
        found = [(name, info and info["config"]["name"]) async for name, info in streams.infos(client.api, wanted)]
        assert found == [("S5", "S5"), ("NONE", None), ("S3", "S3")]


async def test_names_are_complete_though_streams_are_deleted_between_pages(own_server, monkeypatch):
    with RawClient(own_server.url) as raw:
        for number in range(1100):
            assert "error" not in raw.api(f"STREAM.CREATE.S{number:04}", config(f"S{number:04}"))
        async with kvctl.connect(own_server.url) as client:
            call, calls = client.api.call, 0

            async def deleting(endpoint: str, *args: Any, **options: Any) -> Any:
                nonlocal calls
                reply = await call(endpoint, *args, **options)
                calls += 1
                if calls == 1:
                    for number in range(50):
                        raw.api(f"STREAM.DELETE.S{number:04}")
                return reply

            monkeypatch.setattr(client.api, "call", deleting)
            names = await streams.names(client.api)
    assert names == [f"S{number:04}" for number in range(50, 1100)]


async def test_an_account_without_streams_has_none(own_server):
    async with kvctl.connect(own_server.url) as client:
        assert await streams.names(client.api) == []
        assert (await streams.listing(client.api)).complete() == ()


def test_a_listing_without_an_answer_of_each_stream_is_not_complete():
    listed = streams.StreamListing(({"config": {"name": "A"}},), {"M": None, "KV_B": None})
    with pytest.raises(StreamOffline, match="`KV_B`, `M`") as caught:
        listed.complete()
    assert (caught.value.streams, caught.value.exit_code) == (("KV_B", "M"), 5)


async def test_one_is_made_found_changed_and_deleted(client, bucket_name):
    api, wanted = client.api, config(bucket_name)
    assert await streams.find(api, bucket_name) is None
    made = await streams.create(api, wanted)
    await streams.create(api, wanted)  # the same again
    with pytest.raises(ConflictError):
        await streams.create(api, config(bucket_name, max_msgs=5))
    updated = await streams.update(api, {**made["config"], "description": "new"})
    assert updated["config"]["description"] == "new"
    assert (await streams.info(api, bucket_name))["config"] == updated["config"]
    await streams.delete(api, bucket_name)
    for attempt in (streams.delete(api, bucket_name), streams.info(api, bucket_name), streams.update(api, wanted)):
        with pytest.raises(StreamNotFound):
            await attempt


async def test_messages_are_counted_purged_and_deleted(raw, client, bucket_name):
    await streams.create(client.api, config(bucket_name))
    for number in range(10):
        raw.request(f"{bucket_name}.{'ab'[number % 2]}.x")
    assert await streams.subjects(client.api, bucket_name) == {f"{bucket_name}.a.x": 5, f"{bucket_name}.b.x": 5}
    assert await streams.subjects(client.api, bucket_name, f"{bucket_name}.a.>") == {f"{bucket_name}.a.x": 5}
    assert await streams.subjects(client.api, bucket_name, "none") == {}
    assert await streams.purge(client.api, bucket_name, filter=f"{bucket_name}.b.>") == 5
    assert await streams.purge(client.api, bucket_name, keep=3) == 2
    await streams.delete_message(client.api, bucket_name, 9)
    with pytest.raises(NotFoundError):
        await streams.delete_message(client.api, bucket_name, 9)
    assert (await streams.info(client.api, bucket_name))["state"]["messages"] == 2


CREATED = "2026-01-02T00:00:00Z"
EARLIER = "2026-01-01T00:00:00Z"


class Server:
    """A server whose answers to creations are given, the last one for all that follow."""

    def __init__(self, *answers: dict[str, Any] | ServerError) -> None:
        self.answers = [*answers]
        self.deleted: list[str] = []

    async def create(self, _api: object, _config: dict[str, Any]) -> dict[str, Any]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, ServerError):
            raise answer
        return answer

    async def delete(self, _api: object, name: str) -> None:
        self.deleted.append(name)


def created(messages: int = 0, last: int = 0, **config: Any) -> dict[str, Any]:
    """The answer to a creation; messages are older than the stream."""
    state = {"messages": messages, "last_ts": EARLIER, "last_seq": messages or last}
    return {"did_create": True, "created": CREATED, "state": state, "config": {"name": "S", **config}}


async def creation(monkeypatch: pytest.MonkeyPatch, client: Client, server: Server) -> str:
    """Create a stream on that server as users of the library do; returns its name."""
    monkeypatch.setattr(streams, "_create", server.create)
    monkeypatch.setattr(streams, "delete", server.delete)
    monkeypatch.setattr(streams, "PAUSES_S", (0, 0))
    return (await client.jetstream.create_stream("S")).name


async def test_stream_with_older_messages_is_created_again(client, monkeypatch):
    server = Server(created(3), created(3), created())
    assert await creation(monkeypatch, client, server) == "S"
    assert server.deleted == ["S", "S"]


async def test_stream_that_stays_with_older_messages_is_deleted(client, monkeypatch):
    server = Server(created(3))
    with pytest.raises(KvctlError, match="of a deleted stream"):
        await creation(monkeypatch, client, server)
    assert server.deleted == ["S", "S", "S"]


async def test_stream_that_continues_an_earlier_sequence_is_created_again(client, monkeypatch):
    """Of one that was purged, and so has no messages to be seen (2 of 378 creations under load)."""
    server = Server(created(last=10), created(last=1000, first_seq=1000), created(last=999, first_seq=1000))
    assert await creation(monkeypatch, client, server) == "S"
    assert server.deleted == ["S", "S"]
    server = Server(created(last=10, sources=[{"name": "O"}]))
    assert await creation(monkeypatch, client, server) == "S"
    assert not server.deleted


async def test_mirror_may_hold_older_messages(client, monkeypatch):
    server = Server(created(3, mirror={"name": "O"}))
    await creation(monkeypatch, client, server)
    assert not server.deleted


async def test_creation_without_files_is_tried_again(client, monkeypatch):
    failure = ServerError("store failed", code=500, err_code=streams.NO_STORE)
    await creation(monkeypatch, client, Server(failure, created()))
