"""Origins and dependents as seen from one account."""

import asyncio
from typing import Any

import kvctl
from kvctl.jetstream import streams
from kvctl.kv.config import Kind
from kvctl.topology.survey import graph, inventory
from tests.support.raw import RawClient

STATE = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 7}


def mirror_of(raw: RawClient, origin: str, name: str, **config: Any) -> None:
    """Return a mirror stream."""
    stream = {"name": name, "mirror": {"name": origin}, "storage": "memory", **config}
    raw.create_stream(**stream)


def info(name: str, **config: Any) -> dict[str, Any]:
    """Return a stream's info as the server does."""
    return {"config": {"name": name, **config}, "state": STATE}


async def test_mirrors_aggregates_and_their_own_readers_are_dependents(client, raw, unique):
    origin, mirror, second, aggregate, other = (unique(letter) for letter in "OMSAX")
    raw.create_bucket(origin)
    raw.create_bucket(other)
    mirror_of(raw, f"KV_{origin}", mirror)
    mirror_of(raw, mirror, second)
    mirror_of(raw, f"KV_{other}", f"{mirror}-other")
    transforms = [{"src": f"$KV.{origin}.>", "dest": f"$KV.{aggregate}.o.>"}]
    sources = [{"name": f"KV_{origin}", "subject_transforms": transforms}, {"name": f"KV_{other}"}]
    raw.create_bucket(aggregate, subjects=[], sources=sources, duplicate_window=0)
    async with asyncio.timeout(60):
        while any(item.upstream.last_seen is None for item in await inventory.dependents(client.api, f"KV_{origin}")):
            await asyncio.sleep(0.05)
    found = {item.node.name: item for item in await inventory.dependents(client.api, f"KV_{origin}")}
    assert {name: item.node.kind for name, item in found.items()} == {
        mirror: Kind.MIRROR,
        second: Kind.MIRROR,
        aggregate: Kind.AGGREGATE,
    }
    assert found[aggregate].node.stream == f"KV_{aggregate}"
    assert found[aggregate].upstream.source.transforms == ((transforms[0]["src"], transforms[0]["dest"]),)
    assert [item.node.name for item in await inventory.dependents(client.api, mirror)] == [second]


async def test_deleted_origin_becomes_an_error(client, raw, unique):
    mirror = unique("M")
    mirror_of(raw, "KV_never-there", mirror)
    (upstream,) = graph.upstreams(await streams.info(client.api, mirror))
    assert (upstream.source.name, upstream.last_seen) == ("KV_never-there", None)


async def test_origins_in_other_domains_are_not_local_origins(leaf, unique):
    origin, mirror = unique("O"), unique("M")
    with RawClient(leaf.contexts["hub"].url) as hub, RawClient(leaf.contexts["leaf"].url) as edge:
        hub.create_bucket(origin)
        external = {"api": "$JS.hub.API"}
        stream = {"name": mirror, "mirror": {"name": f"KV_{origin}", "external": external}, "storage": "memory"}
        edge.create_stream(**stream)
    async with kvctl.connect(leaf.contexts["leaf"]) as client:
        (upstream,) = graph.upstreams(await streams.info(client.api, mirror))
        assert (upstream.source.domain, upstream.source.api) == ("hub", "$JS.hub.API")
        assert await inventory.dependents(client.api, f"KV_{origin}") == []


def test_account_prefix_is_not_a_domain():
    stream = info("M", mirror={"name": "KV_O", "external": {"api": "ORIGIN.API"}})
    (upstream,) = graph.upstreams(stream)
    assert (upstream.source.domain, upstream.source.api) == (None, "ORIGIN.API")


def test_sources_of_one_origin_are_matched_by_filter():
    sources = [{"name": "KV_O", "filter_subject": "$KV.O.a.>"}, {"name": "KV_O", "filter_subject": "$KV.O.b.>"}]
    live = [{**sources[1], "lag": 2, "active": -1}, {**sources[0], "lag": 1, "active": 10**9}]
    found = graph.upstreams(info("KV_A", sources=sources) | {"sources": live})
    assert [(up.source.filter_subject, up.lag, up.last_seen) for up in found] == [
        ("$KV.O.a.>", 1, 1.0),
        ("$KV.O.b.>", 2, None),
    ]


def test_unlisted_source_is_not_matched_with_another_of_its_stream():
    first, second = ({"name": "KV_O", "subject_transforms": [{"src": src, "dest": ""}]} for src in ("a", "b"))
    assert graph.live_part(second, [{**first, "seq": 7}]) == {}
    assert graph.live_part(second, [{"name": "KV_O", "seq": 7}])["seq"] == 7  # servers that do not tell them apart


def test_upstream_error_keeps_the_server_s_text_and_code():
    error = {"code": 404, "err_code": 10059, "description": "stream not found"}
    live = {"name": "KV_O", "lag": 0, "active": 5, "error": error}
    (upstream,) = graph.upstreams(info("M", mirror={"name": "KV_O"}) | {"mirror": live})
    assert upstream.error == "stream not found (10059)"


def test_readers_in_a_cycle_are_listed_once():
    names = {"KV_A": "KV_B", "KV_B": "KV_A"}
    infos = {name: info(name, sources=[{"name": other}], max_msgs_per_subject=1) for name, other in names.items()}
    place = graph.Place("", None, None, infos)  # type: ignore[arg-type]
    assert [item.node.name for item in place.dependents("KV_A")] == ["B"]


def test_streams_in_a_cycle_are_reached_with_what_leads_to_them_and_from_them():
    edges = [("origin", "a"), ("a", "b"), ("b", "a"), ("b", "reader"), ("other", "reader")]
    assert graph.reach({"a"}, edges) == {"origin", "a", "b", "reader"}
