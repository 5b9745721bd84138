"""Changes of streams and consumers: what got no answer is looked after, what a server drops is found."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import kvctl
from kvctl.contexts import Context
from kvctl.errors import ConflictError, KvctlError, OutcomeUnknown, StreamNotFound
from kvctl.jetstream import edits, streams
from kvctl.jetstream.consumers import admin
from kvctl.jetstream.edits import merge
from tests.support.proxy import DOWN, Proxy, Replace, Swallow

Config = dict[str, Any]
Send = Callable[[Config], Awaitable[Config]]


@pytest.fixture
def name(unique):
    return unique("CHANGING")


@pytest.fixture
def target(client, name):
    return edits.stream(client.api, name)


def unanswered(send: Send | None) -> Send:
    """The request is carried out, or with None is not; the answer is lost."""

    async def lost(config: Config) -> Config:
        if send is not None:
            await send(config)
        raise OutcomeUnknown("No answer")

    return lost


def dropping(send: Send, field: str) -> Send:
    """As a server does that does not know the field."""

    async def old(config: Config) -> Config:
        return await send({key: value for key, value in config.items() if key != field})

    return old


async def test_creating_an_equal_stream_again_succeeds(target, name):
    config = {"name": name, "max_age": 10**9}
    assert (await edits.create(target, config))[1]
    assert not (await edits.create(target, config))[1]
    with pytest.raises(ConflictError, match="max_age: 1s -> 2s"):
        await edits.create(target, config | {"max_age": 2 * 10**9})


async def test_change_with_a_lost_answer_is_found(target, name):
    lossy = replace(target, create=unanswered(target.create), update=unanswered(target.update))
    assert (await edits.create(lossy, {"name": name}))[1]
    before = await target.read()
    info = await edits.edit(lossy, before, before["config"] | {"description": "changed"})
    assert info["config"]["description"] == "changed"

    async def delete() -> None:
        await target.delete()
        raise OutcomeUnknown("No answer")

    await edits.delete(replace(target, delete=delete))
    with pytest.raises(StreamNotFound):
        await target.read()


async def test_change_with_a_malformed_answer_is_found_or_unknown(own_server, name):
    with Proxy(own_server.url) as proxy:
        answers = re.compile(rb'"type":"io\.nats\.jetstream\.api\.v1\.stream_(create|update|delete)_response"')
        proxy.on(answers, lambda frame: Replace(frame.replace(b'":', b'";')), way=DOWN, times=None)
        async with kvctl.connect(Context(url=proxy.url, timeout=timedelta(seconds=1))) as client:
            target = edits.stream(client.api, name)
            assert (await edits.create(target, {"name": name}))[1]
            before = await target.read()
            info = await edits.edit(target, before, before["config"] | {"description": "changed"})
            assert info["config"]["description"] == "changed"
            await edits.delete(target)
            assert await target.find() is None
            proxy.on(b"STREAM.INFO", Swallow(), times=None)
            with pytest.raises(OutcomeUnknown, match="is malformed"):
                await edits.create_new(target, {"name": name})


async def test_lost_creation_never_deletes_the_stream_of_another_client(target, name):
    async def taken(config: Config) -> Config:
        await target.create(config | {"max_age": 2 * 10**9})
        raise OutcomeUnknown("No answer")

    with pytest.raises(ConflictError, match="by another client"):
        await edits.create(replace(target, create=taken), {"name": name, "max_age": 10**9})
    assert (await target.read())["config"]["max_age"] == 2 * 10**9


async def test_change_that_may_still_arrive_is_unknown(client, target, name, monkeypatch):
    monkeypatch.setattr(client.connection, "timeout", 0.3)
    with pytest.raises(OutcomeUnknown, match="Could not find out if"):
        await edits.create(replace(target, create=unanswered(None)), {"name": name})


async def test_stream_with_dropped_fields_is_removed(client, target, name):
    config = {"name": name, "description": "x", "allow_direct": True}
    with pytest.raises(KvctlError, match="dropped or changed `allow_direct`"):
        await edits.create(replace(target, create=dropping(target.create, "allow_direct")), config)
    assert await streams.find(client.api, name) is None
    await edits.create(target, {"name": name})
    before = await target.read()
    dropped = replace(target, update=dropping(target.update, "allow_direct"))
    with pytest.raises(KvctlError, match="the previous configuration was restored"):
        await edits.edit(dropped, before, before["config"] | {"allow_direct": True})
    assert (await target.read())["config"] == before["config"]


async def test_removed_field_that_the_server_keeps_is_an_error(target, name):
    await edits.create(target, {"name": name, "description": "kept"})
    before = await target.read()
    keeping = replace(target, update=lambda config: target.update(config | {"description": "kept"}))
    with pytest.raises(KvctlError, match="dropped or changed `description`"):
        await edits.edit(keeping, before, {**before["config"], "description": ""})


async def test_removed_field_with_a_default_of_the_server_is_changed(target, name):
    await edits.create(target, {"name": name, "duplicate_window": 10**9})
    before = await target.read()
    info = await edits.edit(target, before, {**before["config"], "duplicate_window": 0})
    assert info["config"]["duplicate_window"] == 120 * 10**9


async def test_stream_with_an_unknown_field_that_the_server_drops_is_removed(client, target, name):
    config = {"name": name, "allow_flying": True}
    with pytest.raises(KvctlError, match="dropped or changed `allow_flying`"):
        await edits.create(replace(target, create=dropping(target.create, "allow_flying")), config)
    assert await streams.find(client.api, name) is None


async def test_stream_that_differs_in_an_unknown_field_is_another_configuration(target, name):
    await edits.create(target, {"name": name})
    with pytest.raises(ConflictError, match="allow_flying: none -> yes"):
        await edits.create(target, {"name": name, "allow_flying": True})


@pytest.mark.parametrize("kind", ["stream", "consumer"])
async def test_change_that_another_tool_overwrites_is_made_again(client, target, name, kind):
    await edits.create(target, {"name": name})
    if kind == "consumer":
        target = admin.target(client.api, name, "c")
        await edits.create(target, {"name": "c", "durable_name": "c", "ack_policy": "explicit"})
    before, left = await target.read(), [2]

    async def overwritten(config: Config) -> Config:
        stored = await target.update(config)
        if left[0]:
            left[0] -= 1
            await target.update(before["config"])
        return stored

    shared = replace(target, update=overwritten)
    info = await edits.edit(shared, before, before["config"] | {"description": "ours"})
    assert info["config"]["description"] == "ours"
    await target.update(before["config"])
    left[0] = 100
    with pytest.raises(ConflictError, match="is being edited concurrently"):
        await edits.edit(shared, before, before["config"] | {"description": "ours"})


@pytest.mark.parametrize("kind", ["stream", "consumer"])
async def test_recreated_in_the_meantime_is_a_conflict(client, target, name, kind):
    await edits.create(target, {"name": name})
    config = {"name": name}
    if kind == "consumer":
        target, config = admin.target(client.api, name, "c"), {"name": "c", "durable_name": "c"}
        await edits.create(target, config)
    before = await target.read()
    await target.delete()
    await edits.create(target, config)
    with pytest.raises(ConflictError, match=f"{kind.capitalize()} .* was recreated"):
        await edits.edit(target, before, before["config"] | {"description": "ours"})
    assert "description" not in (await target.read())["config"]


async def test_consumers_are_targets_too(client, target, name):
    await edits.create(target, {"name": name})
    consumer = admin.target(client.api, name, "c")
    config = {"name": "c", "durable_name": "c", "ack_policy": "explicit"}
    assert (await edits.create(consumer, config))[1]
    assert not (await edits.create(consumer, config))[1]
    with pytest.raises(ConflictError, match="ack_policy: explicit -> all"):
        await edits.create(consumer, config | {"ack_policy": "all"})
    await edits.delete(consumer)
    assert await consumer.find() is None


# -- merge ---------------------------------------------------------------------------------------------------


def a(name: str, **more: Any) -> Config:
    return {"name": name, **more}


@pytest.mark.parametrize(
    ("before", "after", "live", "merged"),
    [
        ({"x": 1}, {"x": 2}, {"x": 1, "y": 3}, {"x": 2, "y": 3}),
        ({"x": 1, "y": 1}, {"y": 1}, {"x": 1, "y": 2}, {"y": 2}),
        ({"x": 1}, {"x": 2}, {"x": 2}, {"x": 2}),
        ({}, {"subjects": []}, {"x": 1}, {"x": 1}),
        (
            {"metadata": {"a": "1", "b": "1"}},
            {"metadata": {"b": "2"}},
            {"metadata": {"a": "1", "b": "1", "c": "1"}},
            {"metadata": {"b": "2", "c": "1"}},
        ),
        (
            {"placement": {"cluster": "c"}},
            {"placement": {"cluster": "d"}},
            {"placement": {"cluster": "c", "tags": ["t"]}},
            {"placement": {"cluster": "d", "tags": ["t"]}},
        ),
        (
            {"sources": [a("A")]},
            {"sources": [a("A"), a("B")]},
            {"sources": [a("A"), a("C")]},
            {"sources": [a("A"), a("C"), a("B")]},
        ),
        (
            {"sources": [a("A"), a("B")]},
            {"sources": [a("A")]},
            {"sources": [a("A"), a("B"), a("C")]},
            {"sources": [a("A"), a("C")]},
        ),
        (
            {"sources": [a("A")]},
            {"sources": [a("A"), a("B")]},
            {"sources": [a("A"), a("B", opt_start_seq=1)]},
            {"sources": [a("A"), a("B", opt_start_seq=1)]},
        ),
        (
            {"sources": [a("A")]},
            {"sources": [a("A", opt_start_seq=1)]},
            {"sources": [a("A"), a("B")]},
            {"sources": [a("A", opt_start_seq=1), a("B")]},
        ),
        ({"sources": [a("A")]}, {"sources": [a("A"), a("B")]}, {}, {"sources": [a("B")]}),
    ],
)
def test_change_is_made_to_what_is_there_now(before, after, live, merged):
    assert merge(before, after, live) == merged


@pytest.mark.parametrize(
    ("before", "after", "live", "field"),
    [
        ({"x": 1}, {"x": 2}, {"x": 3}, "x"),
        ({"x": 1}, {}, {"x": 3}, "x"),
        ({"metadata": {"a": "1"}}, {"metadata": {"a": "2"}}, {"metadata": {"a": "3"}}, "metadata.a"),
        ({"metadata": {"a": "1"}}, {"metadata": {"a": "2"}}, {}, "metadata.a"),
    ],
)
def test_field_that_both_changed_is_a_conflict(before, after, live, field):
    with pytest.raises(ConflictError, match=f"`{field}` was changed in the meantime"):
        merge(before, after, live)
