"""Traces of keys on a real server: what each replica holds, and the reason why not."""

from typing import Any

import kvctl
from kvctl.topology.views import live_trace
from kvctl.topology.views.trace import KeyTrace, flat
from tests.support.raw import RawClient
from tests.support.waiting import until
from tests.topology.conftest import Replicas, source

Found = dict[tuple[str, str | None], tuple[str, str]]
"""State and evidence by stream and key."""


async def traced(client: kvctl.Client, bucket: str, key: str) -> KeyTrace:
    return await live_trace.trace({"": client.api}, bucket, key)


def found(trace: KeyTrace) -> Found:
    return {(item.node.name, item.key): (str(item.state), item.evidence) for _, _, _, item in flat(trace)}


async def until_caught_up(client: kvctl.Client, bucket: str, key: str) -> Found:
    """Return the states of a trace as soon as the replicas are connected and no entry is on its way."""
    while True:
        states = found(await traced(client, bucket, key))
        if not {"on its way", "link down"} & {state for state, _ in states.values()}:
            return states


async def test_key_is_overwritten_by_another_origin_another_key_and_a_client(client, raw, replicas, unique):
    first, second, merged, writable, copy = unique("O"), unique("P"), unique("A"), unique("W"), unique("M")
    raw.create_bucket(first)
    raw.create_bucket(second)
    replicas.aggregate(merged, source(first, merged, "*.*", "{{wildcard(2)}}"), source(second, merged))
    replicas.aggregate(writable, source(first, writable), subjects=[f"$KV.{writable}.>"])
    replicas.mirror(copy, merged)

    def put(bucket: str, key: str, stream: str, messages: int) -> None:
        raw.put(bucket, key, f"{bucket} {key}".encode())
        until(lambda: replicas.info(stream)["state"]["last_seq"] >= messages)

    put(first, "1.k", f"KV_{merged}", 1)
    put(first, "2.k", f"KV_{merged}", 2)
    other = f"by `2.k` of `{first}`"
    states = await until_caught_up(client, first, "1.k")
    assert states[merged, "k"] == ("overwritten", other)
    assert states[copy, "k"] == ("overwritten", f"in `{merged}`")
    back = await traced(client, merged, "k")
    assert [item.key for item in back.origins[:2]] == ["2.k", "1.k"]  # the source of the entry comes first
    assert found(back)[first, "2.k"] == ("arrived", "")
    put(second, "k", f"KV_{merged}", 3)
    states = await until_caught_up(client, merged, "k")
    assert states[first, "2.k"] == ("overwritten", f"by `{second}`")
    assert states[second, "k"] == ("arrived", "")
    put(writable, "1.k", f"KV_{writable}", 3)
    states = await until_caught_up(client, first, "1.k")
    assert states[writable, "1.k"] == ("overwritten", "by a client of the aggregate")


async def test_key_is_deleted_expired_kept_or_absent(client, raw, replicas, unique):
    origin, short, long = unique("O"), unique("SHORT"), unique("LONG")
    raw.create_bucket(origin)
    replicas.aggregate(short, source(origin, short), max_age=10**9)
    replicas.aggregate(long, source(origin, long))
    raw.put(origin, "expired", b"v")
    raw.put(origin, "kept", b"v")
    for name in (short, long):
        until(lambda name=name: replicas.info(f"KV_{name}")["state"]["last_seq"] == 2)
    raw.api(f"STREAM.PURGE.KV_{origin}", {"filter": f"$KV.{origin}.kept"})
    until(lambda: not replicas.subjects(f"KV_{short}"))
    raw.put(origin, "deleted", b"", {"KV-Operation": "DEL"})
    states = await until_caught_up(client, origin, "deleted")
    assert states[origin, "deleted"][0] == states[long, "deleted"][0] == "deleted"
    assert states[short, "deleted"][0] in {"deleted", "expired"}  # as markers do, after a second
    states = await until_caught_up(client, origin, "expired")
    assert states[short, "expired"] == ("expired", "after 1s")
    assert states[long, "expired"] == ("arrived", "")
    states = await until_caught_up(client, origin, "kept")
    assert states[long, "kept"] == ("kept", f"`{origin}` no longer holds its revision 2")
    assert states[short, "kept"] == states[origin, "kept"] == ("absent", "")
    assert not (await traced(client, origin, "none")).exists


async def test_key_behind_a_missing_origin_and_in_a_stale_mirror(client, raw, replicas, unique):
    origin, mirror, aggregate = unique("O"), unique("M"), unique("A")
    raw.create_bucket(origin)
    replicas.mirror(mirror, origin)
    raw.put(origin, "k", b"old")
    raw.put(origin, "k", b"older")
    until(lambda: replicas.info(mirror)["state"]["last_seq"] == 2)
    raw.api(f"STREAM.DELETE.KV_{origin}")
    raw.create_bucket(origin, {"k": b"new"})
    replicas.aggregate(aggregate, source("NOBODY", aggregate))
    (state, evidence) = found(await traced(client, origin, "k"))[mirror, "k"]
    assert (state, "recreated" in evidence) == ("stale", True)
    states = found(await traced(client, aggregate, "k"))
    assert states["NOBODY", "k"] == ("unknown", "`NOBODY` does not exist")


async def test_trace_passes_domains(leaf, unique):
    origin, edge, copy = unique("O"), unique("EDGE"), unique("M")
    with RawClient(leaf.servers["hub"].url) as hub, RawClient(leaf.servers["leaf"].url) as raw:
        hub.create_bucket(origin, {"NEW.7": b"v"})
        Replicas(hub).mirror(copy, origin)
        rules = source(origin, edge, "NEW.>", "o.>", external={"api": "$JS.hub.API"})
        Replicas(raw).aggregate(edge, rules)
        until(lambda: Replicas(raw).subjects(f"KV_{edge}") and Replicas(hub).info(copy)["state"]["messages"])
    async with kvctl.connect(leaf.servers["leaf"].url) as client:
        back = await traced(client, edge, "o.7")
        (there,) = back.origins
        assert (there.node.name, there.key, str(there.state)) == (origin, "NEW.7", "arrived")
        assert (there.node.domain, there.node.context) == ("hub", None)
        # The hub's other replicas are in view, because the leaf node replicates from there.
        forth: Any = found(await traced(client, origin, "NEW.7"))
        assert {place: state for place, (state, _) in forth.items()} == {
            (origin, "NEW.7"): "held",
            (copy, "NEW.7"): "arrived",
            (edge, "o.7"): "arrived",
        }
