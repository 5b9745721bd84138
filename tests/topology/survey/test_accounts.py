"""Contexts of a topology file: servers and credentials, opened only if needed."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

import kvctl
from kvctl.contexts import Context, ContextStore
from kvctl.documents import parser
from kvctl.errors import ContextNotFound, UsageError
from kvctl.topology.model.file import Topology, read_topology
from kvctl.topology.survey import accounts


def read(text: str) -> Topology:
    return read_topology(parser.parse(f"version: 1\n{text}".encode(), "t.yaml"))


def test_url_uses_credentials_of_flags_and_environment_only(home, monkeypatch):
    store = ContextStore()
    store.save(Context(name="prod", url="nats://127.0.0.1:1", user="alice", password="secret"))
    store.select("prod")
    settings = {"url": "nats://127.0.0.1:2", "domain": "leaf"}
    context = accounts.context_of(settings, {"context": "prod", "domain": "hub", "read_only": True})
    assert (context.url, context.domain, context.user, context.read_only) == ("nats://127.0.0.1:2", "leaf", None, True)
    assert accounts.context_of(settings, {"user": "bob"}).user == "bob"
    monkeypatch.setenv("NATS_USER", "carol")
    assert accounts.context_of(settings, {}).user == "carol"


def test_named_context_uses_its_own_credentials(home):
    ContextStore().save(Context(name="prod", url="nats://127.0.0.1:1", user="alice", password="secret", domain="a"))
    flags = {"server": "nats://127.0.0.1:9", "user": "bob", "domain": "c", "read_only": True}
    context = accounts.context_of({"context": "prod", "domain": "b"}, flags)
    assert (context.url, context.user, context.password) == ("nats://127.0.0.1:1", "alice", "secret")
    assert (context.domain, context.read_only) == ("b", True)
    with pytest.raises(ContextNotFound):
        accounts.context_of({"context": "other"}, {})


@pytest.mark.parametrize(
    "settings", ["[]", "{context: a, url: 'nats://b:1'}", "{domain: a, api_prefix: b}", "{url: 1, user: me}"]
)
def test_invalid_context_is_refused(settings):
    with pytest.raises(UsageError, match=r"t\.yaml:2"):
        read(f"contexts: {{a: {settings}}}")


async def test_only_needed_contexts_are_opened(leaf):
    opened: list[str] = []
    async with kvctl.connect(leaf.contexts["leaf"]) as client:

        async def here() -> kvctl.Client:
            opened.append("here")
            return client

        apis = await accounts.opened(
            read("contexts: {hub: {domain: hub}}\nbuckets: {B: {in: hub}}"), here, _connect([])
        )
        assert {name: api.prefix for name, api in apis.items()} == {"hub": "$JS.hub.API"}
        assert (await apis["hub"].account_info())["domain"] == "hub"
        opened.clear()
        url = leaf.servers["hub"].url
        wanted = read(f"contexts: {{hub: {{url: '{url}'}}}}\nbuckets: {{B: {{in: hub}}}}")
        others: list[kvctl.Client] = []
        apis = await accounts.opened(wanted, here, _connect(others))
        assert list(apis) == ["hub"]
        assert not opened
        wanted = replace(wanted, places={})
        assert list(await accounts.opened(wanted, here, _connect(others))) == ["", "hub"]
        for other in others:
            await other.close()


def _connect(opened: list[kvctl.Client]) -> Callable[[Context], Awaitable[kvctl.Client]]:
    async def connect(context: Context) -> kvctl.Client:
        from kvctl.connection import connect as open_connection

        opened.append(kvctl.Client(await open_connection(context)))
        return opened[-1]

    return connect
