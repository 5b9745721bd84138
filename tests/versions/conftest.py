"""Both stores, as tests of everything above them see them."""

from collections.abc import AsyncIterator, Callable

import pytest

import kvctl
from kvctl.kv.bucket import Bucket
from kvctl.versions.bucket_store import BucketStore
from kvctl.versions.memory_store import MemoryStore
from kvctl.versions.store import Store
from tests.raw import RawClient

Open = Callable[[], Store]
"""Opens a store on what the test's first store holds, as another session would, where there are sessions."""


@pytest.fixture(params=["memory", "bucket"])
async def reopen(
    request: pytest.FixtureRequest, client: kvctl.Client, raw: RawClient, unique: Callable[..., str]
) -> AsyncIterator[Open]:
    """Both stores."""
    if request.param == "memory":
        held = MemoryStore()
        yield lambda: held
        return
    name = unique("STORE")
    raw.create_bucket(name, allow_atomic=True, allow_msg_ttl=True, first_seq=10**15)
    yield lambda: BucketStore(Bucket(client.api, name))


@pytest.fixture
def store(reopen: Open) -> Store:
    return reopen()
