"""What a connection may do: yes, no, or unknown where servers leave the question to one another."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

import kvctl
from kvctl import Context
from kvctl.jetstream.access import probe
from kvctl.labs import Lab
from kvctl.server import run_server

PUSHING = """
listen: 127.0.0.1:@client@
jetstream { store_dir: "@store@" }
authorization { users: [ { user: u, password: p, permissions: { publish: { deny: "$JS.API.CONSUMER.MSG.NEXT.>" } } } ] }
"""


@pytest.fixture
def pushing() -> Iterator[Context]:
    """A user who may make consumers and not pull from them."""
    with run_server(config=PUSHING) as server:
        yield Context(url=server.url, user="u", password="p")


async def test_pulling_is_asked_for(pushing: Context) -> None:
    async with kvctl.connect(pushing) as client:
        found = {item.action: item for item in await probe(client.api)}
    assert [name for name, item in found.items() if not item.allowed] == ["receive what is listed"]
    assert found["receive what is listed"].reason == "permission denied"
    assert found["receive what is listed"].subject == "$JS.API.CONSUMER.MSG.NEXT.KV_BUCKET.KEY"


async def test_silence_in_a_cluster_is_unknown_after_a_second(cluster: Lab) -> None:
    async with kvctl.connect(replace(cluster.contexts["cluster"], name=None)) as client:
        begun = time.monotonic()
        found = {item.action: item for item in await probe(client.api)}
        assert time.monotonic() - begun < 4
    assert found["back up buckets"].allowed is None
    assert not [item for item in found.values() if item.allowed is False]
