"""Plans: changes of a file, their order and hazards; rendered configurations equal those that `apply` creates."""

from typing import Any

import pytest

import kvctl
from kvctl.documents import parser
from kvctl.jetstream.api import Api
from kvctl.kv.stream_kind import TOPOLOGY, Kind
from kvctl.topology.apply.builders import create_aggregate, create_mirror
from kvctl.topology.model.file import read_topology
from kvctl.topology.model.origins import Aggregate, External, Mirror, Origin
from kvctl.topology.plan import description, planner
from kvctl.topology.plan.change import Action, ResourceChange, TopologyPlan
from kvctl.topology.plan.desired import RenderedStreams, render
from kvctl.topology.plan.planner import ordered
from tests.topology.plain import info, read


async def plan(client: kvctl.Client, text: str, *, prune: bool = False) -> TopologyPlan:
    return await planner.plan(read(text), {"": client.api}, prune=prune)


def steps(found: TopologyPlan) -> list[str]:
    """`+ NAME`, `~ NAME field: before -> after`"""
    return [step(change) for change in found.changes]


def step(change: ResourceChange) -> str:
    lines = [
        f"{item.field}: {text}".replace("→", "->")
        for item in description.differences(change)
        for _, text in description.difference_lines(item)
    ]
    return f"{description.SIGNS[change.action]} {change.name} {'; '.join(lines)}".rstrip()


def names(found: TopologyPlan) -> set[str]:
    return {hazard.name for hazard in found.hazards}


# -- what differs ------------------------------------------------------------------------------------------


async def test_plan_creates_missing_streams_origins_first(client, unique):
    bucket, mirror, first, second = unique(), unique("M"), unique("A"), unique("A")
    found = await plan(
        client,
        f"aggregates: {{{second}: {{origins: [{first}]}}, {first}: {{origins: [{{stream: {mirror}, prefix: p}}]}}}}\n"
        f"mirrors: {{{mirror}: {{origin: {bucket}}}}}\nbuckets: {{{bucket}: {{history: 3, ttl: 1h}}}}",
    )
    assert [change.name for change in found.changes] == [bucket, mirror, first, second]
    assert found.hazards == []
    configs = {change.name: change.after for change in found.changes}
    for config in configs.values():
        assert (config["max_msgs_per_subject"], config["max_age"]) == (3, 3600 * 10**9)
        assert config["metadata"] == {TOPOLOGY: "default"}
    assert (configs[first] or {})["sources"] == [
        {
            "name": mirror,
            "opt_start_seq": 1,
            "subject_transforms": [{"src": f"$KV.{bucket}.>", "dest": f"$KV.{first}.p.>"}],
        }
    ]
    assert found.summary == {"create": 4, "change": 0, "delete": 0, "recreate": 0}


@pytest.mark.guarantee("topology-5")
async def test_plan_compares_only_fields_that_the_file_names(client, raw, unique):
    bucket, mirror, aggregate = unique(), unique("M"), unique("A")
    raw.create_bucket(bucket, max_msgs_per_subject=7, description="theirs", metadata={"team": "a"}, max_bytes=10**6)
    await create_mirror(client, Mirror(mirror, Origin(bucket), description="theirs"))
    await create_aggregate(client, Aggregate(aggregate, (Origin(bucket, prefix="p"),), writable=True))
    text = (
        f"buckets: {{{bucket}: {{}}}}\nmirrors: {{{mirror}: {{origin: {bucket}}}}}\n"
        f"aggregates: {{{aggregate}: {{origins: [{{bucket: {bucket}, prefix: p}}]}}}}"
    )
    assert steps(await plan(client, text)) == []
    found = await plan(client, text.replace(f"{bucket}: {{}}", f"{bucket}: {{history: 9, metadata: {{owner: b}}}}"))
    assert steps(found)[-1] == f"~ {bucket} history: 7 -> 9; metadata.owner: b"
    after = found.changes[-1].after or {}
    kept = {name: text for name, text in after["metadata"].items() if not name.startswith("_nats.")}
    assert kept == {"team": "a", "owner": "b", TOPOLOGY: "default"}
    assert (after["description"], after["max_bytes"]) == ("theirs", 10**6)


async def test_plan_ignores_notation_of_sources(client, raw, unique):
    one, other, mirror, aggregate = unique(), unique(), unique("M"), unique("A")
    raw.create_bucket(one, allow_direct=False)
    raw.create_bucket(other)
    raw.create_stream(
        mirror,
        storage="file",
        max_msgs_per_subject=1,
        mirror={"name": f"KV_{one}", "subject_transforms": [{"src": f"$KV.{one}.a.>", "dest": f"$KV.{one}.a.>"}]},
    )
    sources = [
        {
            "name": f"KV_{name}",
            "opt_start_seq": 1,
            "subject_transforms": [{"src": f"$KV.{name}.>", "dest": f"$KV.{aggregate}.{name}.>"}],
        }
        for name in (other, one)
    ]
    raw.create_stream(f"KV_{aggregate}", storage="file", max_msgs_per_subject=1, sources=sources)
    text = (
        f"mirrors: {{{mirror}: {{origin: {one}, keys: a.>}}}}\naggregates: {{{aggregate}: {{origins: "
        f"[{{bucket: {one}, prefix: {one}}}, {{bucket: {other}, prefix: {other}}}]}}}}"
    )
    assert steps(await plan(client, text)) == []


async def test_inherited_settings_follow_the_origins(client, unique):
    bucket, mirror, own, aggregate = unique(), unique("M"), unique("M"), unique("A")
    await client.create_bucket(bucket, history=3)
    await create_mirror(client, Mirror(mirror, Origin(bucket)))
    await create_mirror(client, Mirror(own, Origin(bucket), history=5))
    await create_aggregate(client, Aggregate(aggregate, (Origin(mirror),)))
    found = await plan(
        client,
        f"buckets: {{{bucket}: {{history: 5, marker_ttl: 1m}}}}\nmirrors: {{{mirror}: {{origin: {bucket}}}, "
        f"{own}: {{origin: {bucket}}}}}\naggregates: {{{aggregate}: {{origins: [{mirror}]}}}}",
    )
    assert steps(found) == [
        f"~ {aggregate} history: 3 -> 5; allow_msg_ttl: yes",
        f"~ {mirror} history: 3 -> 5; allow_msg_ttl: yes",
        f"~ {own} allow_msg_ttl: yes",
        f"~ {bucket} history: 3 -> 5; allow_msg_ttl: yes; marker_ttl: 1m",
    ]
    assert found.hazards == []


async def test_plan_needs_one_listing_for_any_number_of_buckets(client, raw, unique, monkeypatch):
    names = [unique() for _ in range(20)]
    for name in names:
        raw.create_bucket(name)
    mirrors = "".join(f"  {unique('M')}: {{origin: {name}}}\n" for name in names)
    topology = read("buckets:\n" + "".join(f"  {name}: {{history: 3}}\n" for name in names) + f"mirrors:\n{mirrors}")
    asked: list[str] = []
    call = Api.call

    async def counted(self: Api, endpoint: str, *rest: Any, **settings: Any) -> dict[str, Any]:
        asked.append(endpoint)
        return await call(self, endpoint, *rest, **settings)

    monkeypatch.setattr(Api, "call", counted)
    found = await planner.plan(topology, {"": client.api})
    assert len(found.changes) == 40
    own = {f"KV_{name}" for name in (*topology.buckets, *topology.mirrors)}
    assert not [endpoint for endpoint in asked if endpoint.rpartition(".")[2] in own]


# -- what is made anew -------------------------------------------------------------------------------------


async def test_aggregate_history_follows_longer_history_of_origin(client, unique):
    one, other, aggregate, own = unique(), unique(), unique("A"), unique("A")
    await client.create_bucket(one, history=2)
    for name, history in ((aggregate, None), (own, 3)):
        await create_aggregate(client, Aggregate(name, (Origin(one, prefix="1"),), history=history))
    origins = f"origins: [{{bucket: {one}, prefix: 1}}, {{bucket: {other}, prefix: 2}}]"
    text = f"buckets: {{{other}: {{history: 5}}}}\naggregates: {{{aggregate}: {{{origins}}}, {own}: {{{origins}}}}}"
    found = {change.name: step(change) for change in (await plan(client, text)).changes}
    assert "history: 2 -> 5" in found[aggregate]
    assert "history" not in found[own]


async def test_removed_origin_takes_its_keys_along(client, unique):
    one, other, aggregate, mirror = unique(), unique(), unique("A"), unique("M")
    for name in (one, other):
        await client.create_bucket(name)
    origins = (Origin(one, prefix="1"), Origin(other, prefix="2"))
    await create_aggregate(client, Aggregate(aggregate, origins))
    text = f"aggregates: {{{aggregate}: {{origins: [{{bucket: {one}, prefix: 1}}]}}}}"
    found = await plan(client, text)
    assert steps(found) == [f"~ {aggregate} origins: - {other}: > -> 2.>"]
    assert description.remarks(found.changes[0]) == [f"removes keys that came only from `{other}`"]
    await create_mirror(client, Mirror(mirror, Origin(aggregate)))
    assert names(await plan(client, text)) == {"recreated-origin"}  # purges do not reach it
    found = await plan(client, f"{text}\nmirrors: {{{mirror}: {{origin: {aggregate}}}}}")
    assert [(str(change.action), change.name) for change in found.changes] == [
        ("change", aggregate),
        ("recreate", mirror),
    ]
    await create_aggregate(client, Aggregate(denying := unique("A"), origins, deny_purge=True))
    assert steps(await plan(client, text.replace(aggregate, denying)))[0].startswith(f"-/+ {denying}")


async def test_new_origin_is_added_and_changed_origin_recreates_the_aggregate(client, unique):
    one, other, aggregate = unique(), unique(), unique("A")
    for name in (one, other):
        await client.create_bucket(name)
    await create_aggregate(client, Aggregate(aggregate, (Origin(one, prefix="1"),)))
    text = f"aggregates: {{{aggregate}: {{origins: [{{bucket: {one}, prefix: 1}}, {{bucket: {other}, prefix: 2}}]}}}}"
    assert steps(await plan(client, text)) == [f"~ {aggregate} origins: + {other}: > -> 2.>"]
    found = await plan(client, text.replace("prefix: 1", "prefix: x"))
    assert steps(found) == [
        f"-/+ {aggregate} origins: - {one}: > -> 1.>; origins: + {one}: > -> x.>; origins: + {other}: > -> 2.>"
    ]


# -- what is deleted ---------------------------------------------------------------------------------------


@pytest.mark.guarantee("topology-3")
async def test_prune_deletes_only_marked_streams_readers_first(client, raw, unique):
    title, bucket, mirror, theirs, unmarked = unique("t"), unique(), unique("M"), unique(), unique()
    raw.create_bucket(unmarked)
    raw.create_bucket(theirs, metadata={TOPOLOGY: "another"})
    raw.create_bucket(bucket, metadata={TOPOLOGY: title})
    raw.create_stream(mirror, storage="file", metadata={TOPOLOGY: title}, mirror={"name": f"KV_{bucket}"})
    found = await plan(client, f"name: {title}")
    assert (steps(found), [change.name for change in found.unlisted]) == ([], [bucket, mirror])
    found = await plan(client, f"name: {title}", prune=True)
    assert steps(found) == [f"- {mirror}", f"- {bucket}"]
    assert not any(change.asks_name for change in found.changes)
    text = f"name: {title}\nmirrors: {{{mirror}: {{origin: {bucket}}}}}"
    (deletion,) = (await plan(client, text, prune=True)).changes
    assert (deletion.name, deletion.readers, deletion.asks_name) == (bucket, (mirror,), True)


async def test_stream_of_another_topology_keeps_its_mark(client, raw, unique):
    bucket = unique()
    raw.create_bucket(bucket, metadata={TOPOLOGY: "another"})
    (change,) = (await plan(client, f"buckets: {{{bucket}: {{history: 2}}}}")).changes
    assert (change.after or {})["metadata"][TOPOLOGY] == "another"


# -- what speaks against it --------------------------------------------------------------------------------


async def test_plan_finds_all_hazards(client, unique):
    bucket, mirror, aggregate, losing, lost = unique(), unique("M"), unique("A"), unique(), unique("NONE")
    await client.create_bucket(bucket, history=5)
    holder = await client.create_bucket(losing, history=2)
    await holder.put_many(("k", value) for value in (b"1", b"2"))
    found = await plan(
        client,
        f"buckets: {{{losing}: {{history: 1}}}}\nmirrors: {{{mirror}: {{origin: {bucket}, keys: a.>, history: 1}}}}\n"
        f"aggregates: {{{aggregate}: {{origins: [{bucket}, {{bucket: {losing}}}, {lost}]}}}}",
    )
    assert names(found) == {"filtered-mirror", "shorter-history", "key-collision", "missing-origin", "lossy-edit"}
    by_name = {change.name: [hazard.name for hazard in change.hazards] for change in found.changes}
    assert by_name[losing] == ["lossy-edit"]
    assert all(any(f"`{name}`" in hazard.evidence for name in by_name) for hazard in found.hazards)
    shorter = next(hazard.evidence for hazard in found.hazards if hazard.name == "shorter-history")
    assert shorter.startswith(f"Mirror `{mirror}` keeps 1 revision, fewer than `{bucket}` (5)")


async def test_plan_finds_cycles_across_domains(leaf, unique):
    one, other = unique("A"), unique("A")
    async with kvctl.connect(leaf.contexts["hub"]) as hub, kvctl.connect(leaf.contexts["leaf"]) as edge:
        bucket = await hub.create_bucket(unique())
        await create_aggregate(edge, Aggregate(one, (Origin(bucket.name, external=External.of_domain("hub")),)))
        found = await planner.plan(
            read(
                f"contexts: {{hub: {{}}, edge: {{}}}}\naggregates:\n  {other}: {{in: hub, origins: [{{bucket: {one}, "
                f"domain: leaf}}]}}\n  {one}: {{in: edge, origins: [{{bucket: {bucket.name}, domain: hub}}, "
                f"{{bucket: {other}, domain: hub, prefix: p}}]}}"
            ),
            {"hub": hub.api, "edge": edge.api},
        )
        assert "cycle" in names(found)


async def test_plan_reports_unreachable_domain(leaf, unique):
    async with kvctl.connect(leaf.contexts["leaf"]) as client:
        found = await plan(client, f"mirrors: {{{unique('M')}: {{origin: {unique()}, origin_domain: nowhere}}}}")
        assert names(found) == {"unconnected"}


async def test_origin_in_another_domain_may_be_outside_the_file(leaf, unique):
    mirror = unique("M")
    async with kvctl.connect(leaf.contexts["hub"]) as hub, kvctl.connect(leaf.contexts["leaf"]) as client:
        bucket = await hub.create_bucket(unique(), history=4)
        found = await plan(client, f"mirrors: {{{mirror}: {{origin: {bucket.name}, origin_domain: hub}}}}")
        assert found.hazards == []
        assert (found.changes[0].after or {})["max_msgs_per_subject"] == 4
        await create_mirror(client, Mirror(mirror, Origin(bucket.name, external=External.of_domain("hub"))))
        assert steps(await plan(client, f"mirrors: {{{mirror}: {{origin: {bucket.name}, origin_domain: hub}}}}")) == []


# -- the order --------------------------------------------------------------------------------------------


def change(
    action: Action, name: str, *, origins: str = "", reads: str = "", leaving: str = "", **more: Any
) -> ResourceChange:
    found = ResourceChange(
        kind=Kind.AGGREGATE,
        name=name,
        place="",
        stream=name,
        live=None if action is Action.CREATE else info({"name": name, "sources": [{"name": one} for one in leaving]}),
        after=None if action is Action.DELETE else {"name": name},
        origins=tuple(("", origin) for origin in origins),
        reads=tuple(("", origin) for origin in reads),
        recreated=action is Action.RECREATE,
        **more,
    )
    assert found.action is action
    return found


def order(*changes: ResourceChange) -> str:
    return "".join(item.name for item in ordered(changes))


def test_created_streams_come_before_their_readers():
    assert order(change(Action.CREATE, "R", origins="O"), change(Action.CREATE, "O")) == "OR"
    assert order(change(Action.CHANGE, "R", origins="O"), change(Action.RECREATE, "O")) == "OR"


def test_follower_comes_before_its_changed_or_recreated_origin():
    follower = change(Action.CHANGE, "R", origins="O", reads="O", follows=True)
    for action in (Action.CHANGE, Action.RECREATE):
        assert order(change(action, "O"), follower) == "RO"
    assert order(change(Action.CHANGE, "O"), change(Action.CHANGE, "R", origins="O", reads="O")) == "OR"


def test_follower_of_old_origin_with_new_origin_comes_between_them():
    changes = (
        change(Action.CHANGE, "A"),
        change(Action.CHANGE, "R", origins="AN", reads="A", follows=True),
        change(Action.CREATE, "N"),
    )
    assert order(*changes) == "NRA"


def test_origin_loses_keys_before_it_gets_a_reader():
    changes = change(Action.CHANGE, "R", origins="O", follows=True), change(Action.CHANGE, "O", leaving="X")
    assert order(*changes) == "OR"


def test_deletions_are_last_and_readers_first_unless_they_free_a_name():
    gone = change(Action.DELETE, "G"), change(Action.DELETE, "H", origins="G"), change(Action.DELETE, "N")
    assert order(*gone, change(Action.CREATE, "N")) == "NNHG"


def test_cycle_is_ordered():
    assert order(change(Action.CREATE, "A", origins="B"), change(Action.CREATE, "B", origins="A")) == "BA"


HOUR = 3600 * 10**9


def rendered(text: str) -> RenderedStreams:
    return render(read_topology(parser.parse(f"version: 1\n{text}".encode(), "t.yaml")))


def configs(text: str) -> dict[str, dict[str, Any]]:
    return {stream["name"]: stream for stream in rendered(text).streams}


def test_every_source_begins_with_the_first_entry():
    found = configs(
        "buckets: {B: {}, C: {}}\naggregates: {A: {origins: [{bucket: B, prefix: b}, {bucket: C, keys: c.>}]}}"
    )
    assert [source["opt_start_seq"] for source in found["KV_A"]["sources"]] == [1, 1]


def test_mirror_of_a_mirror_reads_the_mirror_s_stream():
    found = configs("buckets: {B: {ttl: 1h, history: 5}}\nmirrors: {M2: {origin: M1}, M1: {origin: B}}")
    assert (found["M2"]["mirror"]["name"], found["M1"]["mirror"]["name"]) == ("M1", "KV_B")
    assert {(stream["max_age"], stream["max_msgs_per_subject"]) for stream in found.values()} == {(HOUR, 5)}
    assert list(found) == ["KV_B", "M1", "M2"]


def test_aggregates_inherit_from_mirrors_and_from_aggregates_further_down():
    found = configs(
        "aggregates: {A2: {origins: [{bucket: A1, prefix: p}]}, A1: {origins: [{stream: M, prefix: q}]}}\n"
        "mirrors: {M: {origin: B}}\nbuckets: {B: {ttl: 1h, history: 5, marker_ttl: 5s}}"
    )
    assert list(found) == ["KV_B", "M", "KV_A1", "KV_A2"]
    assert {(stream["max_age"], stream["max_msgs_per_subject"]) for stream in found.values()} == {(HOUR, 5)}
    assert all(stream["allow_msg_ttl"] for stream in found.values())
    assert found["KV_A1"]["sources"][0]["subject_transforms"] == [{"src": "$KV.B.>", "dest": "$KV.A1.q.>"}]


def test_origin_outside_the_file_is_named_and_its_mirror_answers_reads():
    found = rendered("mirrors: {M: {origin: B}, N: {origin: B, history: 1, ttl: 1h}}")
    assert all(stream["mirror_direct"] for stream in found.streams)
    assert found.warnings == [
        "`B` is not in the file, so the history and ttl that `M` inherits from it is unknown here"
    ]


def test_origins_in_a_context_of_unknown_domain_are_found_by_name():
    found = configs(
        "contexts: {hub: {context: prod}, edge: {url: 'nats://h:4222', domain: leaf}}\n"
        "buckets: {B: {ttl: 1h, in: hub}}\naggregates: {A: {in: edge, origins: [{bucket: B, domain: hub}]}}"
    )
    assert found["KV_A"]["max_age"] == HOUR
    assert found["KV_A"]["sources"][0]["external"] == {"api": "$JS.hub.API"}
