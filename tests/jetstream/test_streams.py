"""Streams on the server: every page of them, and what can be done with one."""

from typing import Any

import pytest

import kvctl
from kvctl.errors import ConflictError, NotFoundError, StreamNotFound, StreamOffline
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
    listed = streams.Listing(({"config": {"name": "A"}},), {"M": None, "KV_B": None})
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
