"""Inventory of all streams in view: paged listings, and few requests to follow origins."""

from typing import Any

import pytest

import kvctl
from kvctl.errors import KvctlError
from kvctl.jetstream.api import Api
from kvctl.topology.apply.builders import create_aggregate, create_mirror
from kvctl.topology.model.origins import Aggregate, External, Mirror, Origin
from kvctl.topology.survey.inventory import survey


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
