"""Streams that a server creates with the messages of a deleted one."""

from typing import Any

import pytest

from kvctl import Client
from kvctl.errors import KvctlError, ServerError
from kvctl.jetstream import leftover_messages, streams

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


def created(messages: int = 0, **config: Any) -> dict[str, Any]:
    """The answer to a creation; messages are older than the stream."""
    state = {"messages": messages, "last_ts": EARLIER}
    return {"did_create": True, "created": CREATED, "state": state, "config": {"name": "S", **config}}


async def creation(monkeypatch: pytest.MonkeyPatch, client: Client, server: Server) -> str:
    """Create a stream on that server as users of the library do; returns its name."""
    monkeypatch.setattr(streams, "create", server.create)
    monkeypatch.setattr(streams, "delete", server.delete)
    monkeypatch.setattr(leftover_messages, "PAUSES_S", (0, 0))
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


async def test_mirror_may_hold_older_messages(client, monkeypatch):
    server = Server(created(3, mirror={"name": "O"}))
    await creation(monkeypatch, client, server)
    assert not server.deleted


async def test_creation_without_files_is_tried_again(client, monkeypatch):
    failure = ServerError("store failed", code=500, err_code=leftover_messages.NO_STORE)
    await creation(monkeypatch, client, Server(failure, created()))
