"""Plugin of pytest: a real nats-server, a client and fresh buckets for the tests of other projects.

pytest loads it in every project that has kvctl installed, so it imports nothing more before a fixture is used.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket
    from kvctl.kv.client import Client
    from kvctl.server import Server

_FIXTURES = {"kvctl_server", "kvctl_client", "kvctl_bucket", "kvctl_bucket_name"}
_MARKER = "kvctl_bucket(**settings): settings of the bucket of this test, such as `history=5`"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini option on a missing server."""
    parser.addini("kvctl_missing_server", "Without nats-server: `fail` (default) or `skip` the tests", default="fail")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and the asynchronous fixtures with the loop of pytest-asyncio if that is in use."""
    config.addinivalue_line("markers", _MARKER)
    uses_asyncio = config.pluginmanager.hasplugin("asyncio")
    config.pluginmanager.register(_asynchronous() if uses_asyncio else _unavailable(), "kvctl-client")


@pytest.fixture(scope="session")
def kvctl_server(pytestconfig: pytest.Config) -> "Iterator[Server]":
    """Server with JetStream on a free port, `kvctl_server.url`, for the whole session; its store is temporary."""
    from kvctl.errors import KvctlError
    from kvctl.server import run_server

    try:
        running = run_server(name="pytest")
    except KvctlError as error:
        _stop(pytestconfig, f"{error.message}\n{error.hint or ''}".rstrip())
    with running:
        yield running


@pytest.fixture
def kvctl_bucket_name(kvctl_server: "Server", request: pytest.FixtureRequest) -> Iterator[str]:
    """Name of a fresh bucket, which is deleted after the test; for tests without asyncio."""
    from uuid import uuid4

    from kvctl.errors import BucketNotFound

    marker = request.node.get_closest_marker("kvctl_bucket")
    settings: dict[str, Any] = marker.kwargs if marker else {}
    name = f"test-{uuid4().hex[:12]}"
    _run(kvctl_server.url, lambda client: client.create_bucket(name, **settings))
    yield name
    with suppress(BucketNotFound):
        _run(kvctl_server.url, lambda client: client.delete_bucket(name))


def _asynchronous() -> ModuleType:
    """Return the fixtures that run in the loop of the test, and what makes their tests run there."""
    from inspect import iscoroutinefunction

    import pytest_asyncio

    @pytest_asyncio.fixture
    async def kvctl_client(kvctl_server: "Server") -> "AsyncIterator[Client]":
        """Client of the library, connected to `kvctl_server`."""
        import kvctl

        async with kvctl.connect(kvctl_server.url) as client:
            yield client

    @pytest_asyncio.fixture
    async def kvctl_bucket(kvctl_client: "Client", kvctl_bucket_name: str) -> "Bucket":
        """Fresh bucket, which is deleted after the test: `await kvctl_bucket.put("key", b"value")`."""
        return kvctl_client.bucket(kvctl_bucket_name)

    # Called last, so that the marker is there when pytest-asyncio looks for it.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
        """Mark asynchronous tests that use the fixtures: pytest-asyncio runs no others unless its mode is `auto`."""
        found = yield
        for item in found if isinstance(found, list) else [found]:
            uses = isinstance(item, pytest.Function) and not _FIXTURES.isdisjoint(item.fixturenames)
            if uses and not item.get_closest_marker("anyio") and iscoroutinefunction(item.obj):
                item.add_marker("asyncio")
        return found

    return _module(
        kvctl_client=kvctl_client, kvctl_bucket=kvctl_bucket, pytest_pycollect_makeitem=pytest_pycollect_makeitem
    )


def _unavailable() -> ModuleType:
    """Return the same fixtures for a project without pytest-asyncio, where they explain what is missing."""

    @pytest.fixture
    def kvctl_client() -> NoReturn:
        """Client of the library; needs pytest-asyncio."""
        pytest.fail(
            "`kvctl_client` and `kvctl_bucket` need pytest-asyncio\n"
            "Install it with `pip install pytest-asyncio`, or use `kvctl_server` and `kvctl_bucket_name`",
            pytrace=False,
        )

    @pytest.fixture
    def kvctl_bucket(kvctl_client: NoReturn) -> None:
        """Fresh bucket; needs pytest-asyncio."""

    return _module(kvctl_client=kvctl_client, kvctl_bucket=kvctl_bucket)


def _module(**members: Any) -> ModuleType:
    module = ModuleType("kvctl_client")
    module.__dict__.update(members)
    return module


def _run(url: str, work: "Callable[[Client], Awaitable[object]]") -> None:
    """Run a coroutine of a client in a thread, beside any loop of the test."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    import kvctl

    async def connected() -> None:
        async with kvctl.connect(url) as client:
            await work(client)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(asyncio.run, connected()).result()


def _stop(config: pytest.Config, reason: str) -> NoReturn:
    if config.getini("kvctl_missing_server") == "skip":
        pytest.skip(reason)
    pytest.fail(reason, pytrace=False)
