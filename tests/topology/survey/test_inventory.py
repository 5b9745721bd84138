"""Links within and between accounts, and the contexts of a topology file that lead to these."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

import kvctl
from kvctl.contexts import Context, ContextStore
from kvctl.errors import ContextNotFound, KvctlError, UsageError
from kvctl.jetstream.api import Api
from kvctl.topology.apply.builders import create_aggregate, create_mirror
from kvctl.topology.model.origins import Aggregate, External, Mirror, Origin
from kvctl.topology.survey import inventory
from kvctl.topology.survey.inventory import survey
from tests.topology.plain import read


async def test_origins_in_another_domain_are_found_by_one_request(leaf, unique, monkeypatch):
    hub_way = External.of_domain("hub")
    async with kvctl.connect(leaf.contexts["hub"]) as hub, kvctl.connect(leaf.contexts["leaf"]) as edge:
        buckets = [(await hub.create_bucket(unique())).name for _ in range(3)]
        mirrors = {unique("M"): bucket for bucket in buckets}
        for mirror, bucket in mirrors.items():
            await create_mirror(edge, Mirror(mirror, Origin(bucket, external=hub_way)))
        aggregate, origins = unique("A"), [Origin(name, external=hub_way, prefix=name) for name in buckets[::-1]]
        await create_aggregate(edge, Aggregate(aggregate, (*origins, Origin(next(iter(mirrors)), prefix="near"))))
        asked: list[str] = []
        call = Api.call

        async def counted(self: Api, endpoint: str, *rest: Any, **settings: Any) -> dict[str, Any]:
            asked.append(f"{self.prefix}.{endpoint}")
            return await call(self, endpoint, *rest, **settings)

        monkeypatch.setattr(Api, "call", counted)
        inventory = await survey({"hub": hub.api, "edge": edge.api})
        links = {link.info["config"]["name"]: link for link in inventory.links}
        assert all(links[mirror].origin_place is inventory.places["hub"] for mirror in mirrors)
        assert [(links[mirror].origin or {})["config"]["name"] for mirror in mirrors] == [
            f"KV_{name}" for name in buckets
        ]
        mine = [link for link in inventory.links if link.info["config"]["name"] == f"KV_{aggregate}"]
        assert [link.source["name"] for link in mine] == [
            *(f"KV_{name}" for name in buckets[::-1]),
            next(iter(mirrors)),
        ]
        assert [(link.origin_place or link.place).name for link in mine] == ["hub", "hub", "hub", "edge"]
        followed = [text for text in asked if text.startswith("$JS.hub.API.STREAM.INFO")]
        assert len(followed) < 4


async def test_inventory_error_names_the_context(leaf):
    async with kvctl.connect(leaf.contexts["leaf"]) as client:
        with pytest.raises(KvctlError) as caught:
            await survey({"far": client.api.at("$JS.nowhere.API")})
        assert caught.value.message.endswith("in context `far`")


def test_url_uses_credentials_of_flags_and_environment_only(home, monkeypatch):
    store = ContextStore()
    store.save(Context(name="prod", url="nats://127.0.0.1:1", user="alice", password="secret"))
    store.select("prod")
    settings = {"url": "nats://127.0.0.1:2", "domain": "leaf"}
    context = inventory.context_of(settings, {"context": "prod", "domain": "hub", "read_only": True})
    assert (context.url, context.domain, context.user, context.read_only) == ("nats://127.0.0.1:2", "leaf", None, True)
    assert inventory.context_of(settings, {"user": "bob"}).user == "bob"
    monkeypatch.setenv("NATS_USER", "carol")
    assert inventory.context_of(settings, {}).user == "carol"


def test_named_context_uses_its_own_credentials(home):
    ContextStore().save(Context(name="prod", url="nats://127.0.0.1:1", user="alice", password="secret", domain="a"))
    flags = {"server": "nats://127.0.0.1:9", "user": "bob", "domain": "c", "read_only": True}
    context = inventory.context_of({"context": "prod", "domain": "b"}, flags)
    assert (context.url, context.user, context.password) == ("nats://127.0.0.1:1", "alice", "secret")
    assert (context.domain, context.read_only) == ("b", True)
    with pytest.raises(ContextNotFound):
        inventory.context_of({"context": "other"}, {})


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

        apis = await inventory.opened(
            read("contexts: {hub: {domain: hub}}\nbuckets: {B: {in: hub}}"), here, _connect([])
        )
        assert {name: api.prefix for name, api in apis.items()} == {"hub": "$JS.hub.API"}
        assert (await apis["hub"].account_info())["domain"] == "hub"
        opened.clear()
        url = leaf.servers["hub"].url
        wanted = read(f"contexts: {{hub: {{url: '{url}'}}}}\nbuckets: {{B: {{in: hub}}}}")
        others: list[kvctl.Client] = []
        apis = await inventory.opened(wanted, here, _connect(others))
        assert list(apis) == ["hub"]
        assert not opened
        wanted = replace(wanted, places={})
        assert list(await inventory.opened(wanted, here, _connect(others))) == ["", "hub"]
        for other in others:
            await other.close()


def _connect(opened: list[kvctl.Client]) -> Callable[[Context], Awaitable[kvctl.Client]]:
    async def connect(context: Context) -> kvctl.Client:
        from kvctl.connection import connect as open_connection

        opened.append(kvctl.Client(await open_connection(context)))
        return opened[-1]

    return connect
