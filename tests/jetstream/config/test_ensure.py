"""Changes of streams and consumers: what got no answer is looked after, what a server drops is found."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from kvctl.errors import ConflictError, KvctlError, OutcomeUnknown, RequestTimeout, StreamNotFound
from kvctl.jetstream import streams
from kvctl.jetstream.config import ensure

Send = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


@pytest.fixture
def name(unique):
    return unique("CHANGING")


@pytest.fixture
def target(client, name):
    return ensure.stream(client.api, name)


def unanswered(send: Send | None) -> Send:
    """The request is carried out, or with None is not; the answer is lost."""

    async def lost(config: dict[str, Any]) -> dict[str, Any]:
        if send is not None:
            await send(config)
        raise RequestTimeout("No answer")

    return lost


def dropping(send: Send, field: str) -> Send:
    """As a server does that does not know the field."""

    async def old(config: dict[str, Any]) -> dict[str, Any]:
        return await send({key: value for key, value in config.items() if key != field})

    return old


async def test_creating_an_equal_stream_again_succeeds(target, name):
    config = {"name": name, "max_age": 10**9}
    assert (await ensure.create(target, config))[1]
    assert not (await ensure.create(target, config))[1]
    with pytest.raises(ConflictError, match="max_age: 1s -> 2s"):
        await ensure.create(target, config | {"max_age": 2 * 10**9})


async def test_change_with_a_lost_answer_is_found(target, name):
    lossy = replace(target, create=unanswered(target.create), update=unanswered(target.update))
    assert (await ensure.create(lossy, {"name": name}))[1]
    before = (await target.read())["config"]
    info = await ensure.edit(lossy, before, before | {"description": "changed"})
    assert info["config"]["description"] == "changed"

    async def delete() -> None:
        await target.delete()
        raise RequestTimeout("No answer")

    await ensure.delete(replace(target, delete=delete))
    with pytest.raises(StreamNotFound):
        await target.read()


async def test_lost_creation_never_deletes_the_stream_of_another_client(target, name):
    async def taken(config: dict[str, Any]) -> dict[str, Any]:
        await target.create(config | {"max_age": 2 * 10**9})
        raise RequestTimeout("No answer")

    with pytest.raises(ConflictError, match="by another client"):
        await ensure.create(replace(target, create=taken), {"name": name, "max_age": 10**9})
    assert (await target.read())["config"]["max_age"] == 2 * 10**9


async def test_change_that_may_still_arrive_is_unknown(client, target, name, monkeypatch):
    monkeypatch.setattr(client.connection, "timeout", 0.3)
    with pytest.raises(OutcomeUnknown, match="Could not find out if"):
        await ensure.create(replace(target, create=unanswered(None)), {"name": name})


async def test_stream_with_dropped_fields_is_removed(client, target, name):
    config = {"name": name, "description": "x", "allow_direct": True}
    with pytest.raises(KvctlError, match="dropped or changed `allow_direct`"):
        await ensure.create(replace(target, create=dropping(target.create, "allow_direct")), config)
    assert await streams.find(client.api, name) is None
    await ensure.create(target, {"name": name})
    before = (await target.read())["config"]
    with pytest.raises(KvctlError, match="the previous configuration was restored"):
        await ensure.edit(
            replace(target, update=dropping(target.update, "allow_direct")), before, before | {"allow_direct": True}
        )
    assert (await target.read())["config"] == before


async def test_consumers_are_targets_too(client, target, name):
    await ensure.create(target, {"name": name})
    consumer = ensure.consumer(client.api, name, "c")
    config = {"name": "c", "durable_name": "c", "ack_policy": "explicit"}
    assert (await ensure.create(consumer, config))[1]
    assert not (await ensure.create(consumer, config))[1]
    with pytest.raises(ConflictError, match="ack_policy: explicit -> all"):
        await ensure.create(consumer, config | {"ack_policy": "all"})
    await ensure.delete(consumer)
    assert await consumer.find() is None
