"""Both stores, for tests of the layers above."""

from collections.abc import Callable
from contextlib import suppress

import pytest

import kvctl
from kvctl.errors import StreamNotFound
from kvctl.kv.bucket import Bucket
from kvctl.versions.repository import Repository
from kvctl.versions.store.jetstream_store import BucketStore
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.store.protocol import Store

Open = Callable[[], Store]
"""Opens a store on what the test's first store holds, as another session would, where there are sessions."""


@pytest.fixture(params=["memory", "bucket", pytest.param("replicas", marks=pytest.mark.slow)])
async def reopen(request):
    """Both stores; all on three servers among the slow tests, those that ask for `replicas` always."""
    if request.param == "memory":
        held = MemoryStore()
        yield lambda: held
    else:
        replicated = request.param == "replicas"
        context = request.getfixturevalue("cluster").contexts["cluster"] if replicated else None
        async with kvctl.connect(context or request.getfixturevalue("server").url) as client:
            bucket = await stored(client, request.getfixturevalue("unique")("STORE"), 3 if replicated else 1)
            yield lambda: BucketStore(Bucket(client.api, bucket))
            with suppress(StreamNotFound):  # servers have work with idle streams on three of them
                await client.api.call(f"STREAM.DELETE.KV_{bucket}")


async def stored(client: kvctl.Client, name: str, replicas: int) -> str:
    """A bucket as a store needs it."""
    stream = {
        "name": f"KV_{name}",
        "subjects": [f"$KV.{name}.>"],
        "max_msgs_per_subject": 1,
        "discard": "new",
        "deny_delete": True,
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "allow_atomic": True,
        "allow_msg_ttl": True,
        "first_seq": 10**15,
        "num_replicas": replicas,
    }
    await client.api.call(f"STREAM.CREATE.KV_{name}", stream)
    return name


@pytest.fixture
def store(reopen):
    return reopen()


@pytest.fixture
async def repo(store):
    """A repository with its first commit."""
    made = Repository(store, author="ann")
    await made.init()
    return made
