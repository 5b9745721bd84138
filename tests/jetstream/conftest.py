"""Streams with messages in them."""

from collections.abc import Awaitable, Callable

import pytest

from kvctl import Client
from kvctl.jetstream.consumers.context import Stream

MakeStream = Callable[..., Awaitable[Stream]]


async def publish(client: Client, stream: str, count: int, size: int = 3) -> None:
    """Store messages on subjects STREAM.0, STREAM.1, ..."""
    for number in range(count):
        await client.connection.request(f"{stream}.{number}", b"x" * size)


@pytest.fixture
async def make_stream(client, unique):
    """`await make_stream(10)`: a fresh stream with ten messages on its subjects; options as in its configuration."""

    async def make(messages: int = 0, size: int = 3, **config: object) -> Stream:
        name = unique("STREAM")
        stream = await client.jetstream.create_stream(name, subjects=[f"{name}.>"], **config)
        await publish(client, name, messages, size)
        return stream

    return make
