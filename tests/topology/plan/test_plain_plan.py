"""Plans and their hazards on plain streams: changes, refusals and warnings, without a server."""

from datetime import timedelta
from typing import Any

import pytest

from kvctl.cli.topology.plan import plan_markdown, plan_text
from kvctl.errors import BucketExists, RefusedError, UnreachableError
from kvctl.kv.stream_kind import KIND, Kind
from kvctl.topology.hazards.hazards import Hazard
from kvctl.topology.model.origins import External
from kvctl.topology.plan import description
from kvctl.topology.plan.change import ABSENT, Action, ResourceChange, TopologyPlan, fingerprint
from kvctl.topology.plan.plan_hazards import PlanHazards
from kvctl.topology.survey.graph import Inventory
from kvctl.topology.survey.origin_lookup import OriginView
from tests.topology.plain import Info, Origin, aggregate, bucket, compared, info, inventory, judged, mirror

B, C = bucket("B"), bucket("C")
M = mirror("M", B)
A = aggregate("A", (Origin("B", prefix="b"), B), (Origin("C", prefix="c"), C))
TEXT = (
    "buckets: {B: {}, C: {}}\nmirrors: {M: {origin: B}}\n"
    "aggregates: {A: {origins: [{bucket: B, prefix: b}, {bucket: C, prefix: c}]}}"
)
HERE = inventory(B, C, M, A)


def changes(text: str, seen: Inventory, *, prune: bool = False) -> dict[str, str]:
    """Return the action for each name that changes."""
    return {change.name: str(change.action) for change in compared(text, seen, prune=prune).changes}


def one(text: str, seen: Inventory, name: str, *, prune: bool = False) -> ResourceChange:
    return next(change for change in compared(text, seen, prune=prune).changes if change.name == name)


def marked(*streams: Info) -> list[Info]:
    return [info(stream["config"], mark="t") for stream in streams]


# -- what changes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seen", "shown"), [(inventory(), "3"), (HERE, "1 → 3")])
def test_setting_of_something_new_is_shown_without_the_default(seen, shown):
    """Nothing had one replica before."""
    plan = TopologyPlan([one("buckets: {B: {replicas: 3}}", seen, "B")])
    lines = plan_text(plan).splitlines()
    assert f"    replicas  {shown}" in lines
    assert f"replicas: {shown}" in plan_markdown(plan)


def test_stream_that_matches_the_file_does_not_change():
    assert changes(TEXT, HERE) == {}


def test_missing_stream_is_created():
    assert changes(TEXT, inventory()) == dict.fromkeys("BCMA", "create")
    made = one(TEXT, inventory(), "A")
    assert (made.kind, made.live, made.reads, made.leaving) == (Kind.AGGREGATE, None, (), [])
    assert (made.origins, made.where) == ((("", "KV_B"), ("", "KV_C")), ("", "KV_A"))
    assert {"sources", "history"} < {difference.field for difference in made.differences} - {"name"}


def test_replica_follows_changes_of_its_origin():
    text = TEXT.replace("{B: {}", "{B: {history: 3}")
    assert changes(text, HERE) == dict.fromkeys("BMA", "change")
    follows = {name: one(text, HERE, name).follows for name in "BMA"}
    assert follows == {"B": False, "M": True, "A": True}
    assert description.remarks(one(text, HERE, "M")) == ["changed before its origin `B`"]
    assert description.remarks(one(text, HERE, "A")) == ["changed before its origin `B`"]
    changed = one(text, HERE, "A")
    assert (changed.reads, changed.origins) == ((("", "KV_B"), ("", "KV_C")), (("", "KV_B"), ("", "KV_C")))
    assert [str(difference) for difference in changed.differences] == ["history: 1 -> 3"]
    assert changed.live == A


def test_origin_out_of_view_has_no_location():
    stray = info({**M["config"], "mirror": {"name": "KV_B", "external": {"api": "$JS.far.API"}}})
    changed = one("mirrors: {M: {origin: B}}", inventory(B, stray), "M")
    assert (changed.action, changed.origins) == (Action.RECREATE, (("", "KV_B"),))
    assert changed.reads == ()


def test_unchangeable_stream_is_recreated_with_its_readers():
    text = TEXT.replace("{B: {}", "{B: {storage: memory}")
    assert changes(text, HERE) == dict.fromkeys("BMA", "recreate")
    assert {name: one(text, HERE, name).cascades for name in "BMA"} == {"B": False, "M": True, "A": True}


def test_removed_origin_is_named_unless_the_aggregate_is_recreated():
    text = "aggregates: {A: {origins: [{bucket: B, prefix: b}]}}"
    left = one(text, HERE, "A")
    assert (left.action, [source["name"] for source in left.leaving]) == (Action.CHANGE, ["KV_C"])
    assert (left.origins, left.reads) == ((("", "KV_B"),), (("", "KV_B"), ("", "KV_C")))
    anew = one(text.replace("A: {origins", "A: {storage: memory, origins"), HERE, "A")
    assert (anew.action, anew.leaving) == (Action.RECREATE, [])


# -- what is deleted ---------------------------------------------------------------------------------------


def test_only_marked_streams_are_unlisted():
    seen = inventory(*marked(B, M), info(C["config"], mark="another"), A)
    found = compared("buckets: {B: {}}", seen)
    assert ([change.name for change in found.changes], [change.name for change in found.unlisted]) == ([], ["M"])
    [deletion] = found.unlisted
    assert (deletion.kind, deletion.action, deletion.stream) == (Kind.MIRROR, Action.DELETE, "M")
    assert (deletion.origins, deletion.live) == ((("", "KV_B"),), seen.places[""].infos["M"])
    assert changes("buckets: {B: {}}", seen, prune=True) == {"M": "delete"}


def test_marked_stream_of_no_kind_is_deleted_by_its_name():
    plain = info({"name": "S", "subjects": ["s.>"]}, mark="t")
    assert (one("", inventory(plain), "S", prune=True).kind) == Kind.STREAM


def test_account_with_two_contexts_is_pruned_once():
    held = marked(B, C)
    seen = inventory(a=held, b=held)
    text = "contexts: {a: {}, b: {}}\nbuckets: {B: {in: b}}"
    found = compared(text, seen, prune=True).changes
    assert [(change.name, change.place) for change in found] == [("C", "a")]


@pytest.mark.parametrize(
    ("text", "streams", "readers"),
    [
        ("", marked(B), ()),
        ("", [*marked(B), M], ("M",)),
        ("", [*marked(B), M, A, C], ("M", "A")),
        ("", marked(B, M), ()),  # which is deleted as well
        ("mirrors: {M: {origin: B}}", marked(B), ("M",)),
        ("mirrors: {M: {origin: B}}", marked(B, M), ("M",)),
        ("buckets: {C: {}}", [*marked(B), C], ()),
        ("mirrors: {M: {origin: C}}", [*marked(B), C, M], ()),  # it reads from another then
    ],
)
def test_deletion_names_remaining_readers(text, streams, readers):
    deletion = one(text, inventory(*streams), "B", prune=True)
    assert deletion.readers == readers
    assert deletion.asks_name is bool(readers)


def test_links_from_a_stream_are_those_of_other_streams():
    own = info({**A["config"], "sources": [{"name": "KV_A"}, {"name": "KV_B"}]})
    seen = inventory(B, M, own)
    assert [link.reader for link in seen.leading_from(("", "KV_B"))] == ["M", "KV_A"]
    assert seen.leading_from(("", "KV_A")) == []
    assert seen.leading_from(("other", "KV_B")) == []
    assert inventory(M).leading_from(("", "KV_B")) == []


# -- names that mean something else ------------------------------------------------------------------------

UNFINISHED = info({**B["config"], "metadata": {"kvctl.unfinished": "1"}})


@pytest.mark.parametrize(
    ("text", "streams", "said"),
    [
        ("buckets: {A: {}}", [A, B, C], "`A` is an aggregate on the server, not a bucket"),
        ("buckets: {M: {}}", [M, B], "`M` is a mirror on the server, not a bucket"),
        (
            "buckets: {X: {}}",
            [info({"name": "KV_X", "mirror": {"name": "KV_B"}}), B],
            "`X` is a mirror on the server, not a bucket",
        ),
        ("mirrors: {B: {origin: C}}", [B, C], "`B` is a bucket on the server, not a mirror"),
        ("aggregates: {B: {origins: [C]}}", [B, C], "`B` is a bucket on the server, not an aggregate"),
        (
            "mirrors: {S: {origin: B}}",
            [info({"name": "S", "subjects": ["s.>"]}), B],
            "`S` is a stream on the server, not a mirror",
        ),
        ("buckets: {B: {}}", [UNFINISHED], "`B` is incomplete, left by an interrupted restore or copy"),
    ],
)
def test_name_of_another_kind_is_a_conflict(text, streams, said):
    with pytest.raises(BucketExists) as caught:
        compared(text, inventory(*streams))
    assert caught.value.message == f"Names in the file are already taken:\n  {said}"


def test_all_conflicts_are_reported():
    with pytest.raises(BucketExists) as caught:
        compared("buckets: {A: {}, M: {}}", HERE)
    assert len(caught.value.message.splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "streams"),
    [
        ("mirrors: {M: {origin: B}}", [M, B]),
        ("mirrors: {M: {origin: C}}", [M, B, C]),
        ("mirrors: {X: {origin: M}}", [info({"name": "X", "mirror": {"name": "M"}}), M, B]),
        ("mirrors: {X: {origin: B}}", [info({"name": "X", "mirror": {"name": "S"}}), B]),
        ("buckets: {B: {}}", [B, info({"name": "B", "subjects": ["b.>"]})]),
    ],
)
def test_name_of_the_same_kind_is_not_a_conflict(text, streams):
    compared(text, inventory(*streams))


def test_name_is_free_when_its_stream_is_deleted_in_the_same_plan():
    text, seen = "mirrors: {B: {origin: C}}", inventory(*marked(B), C)
    with pytest.raises(BucketExists):
        compared(text, seen)
    assert [str(change.action) for change in compared(text, seen, prune=True).changes] == ["create", "delete"]


def test_stream_whose_servers_are_silent_is_not_planned():
    with pytest.raises(UnreachableError, match="`B` is offline"):
        compared(TEXT, inventory(C, unreachable=["KV_B"]))
    assert changes("buckets: {C: {}}", inventory(C, unreachable=["KV_B"])) == {}


# -- one change, one plan ----------------------------------------------------------------------------------


def change(action: Action, live: Info = B, **more: Any) -> ResourceChange:
    found = ResourceChange(
        **{
            "kind": Kind.BUCKET,
            "name": "B",
            "place": "",
            "stream": "KV_B",
            "live": None if action is Action.CREATE else live,
            "after": None if action is Action.DELETE else B["config"],
            "recreated": action is Action.RECREATE,
        }
        | more
    )
    assert found.action is action
    return found


@pytest.mark.parametrize(
    ("action", "drops"),
    [(Action.DELETE, (2, 20)), (Action.RECREATE, (2, 20)), (Action.CHANGE, None), (Action.CREATE, None)],
)
def test_deleted_and_recreated_streams_drop_their_entries(action, drops):
    assert change(action).drops == drops


@pytest.mark.parametrize(
    ("live", "is_copy"), [(M, True), (A, True), (B, False), (aggregate("W", (Origin("B"), B), writable=True), False)]
)
def test_content_of_a_recreated_copy_is_refilled(live, is_copy):
    assert change(Action.RECREATE, live).is_copy is is_copy
    assert change(Action.RECREATE, live).refilled is is_copy
    assert change(Action.DELETE, live).refilled is False
    assert change(Action.CREATE, after=live["config"]).is_copy is is_copy


@pytest.mark.parametrize(
    ("action", "readers", "asks"),
    [
        (Action.RECREATE, (), True),
        (Action.DELETE, (), False),
        (Action.DELETE, ("M",), True),
        (Action.CHANGE, ("M",), False),
        (Action.CREATE, (), False),
    ],
)
def test_confirmation_requires_name_when_data_or_an_origin_is_lost(action, readers, asks):
    assert change(action, readers=readers).asks_name is asks


def test_plan_counts_changes_and_names_them_in_hazards():
    hazards = (Hazard("a", "it is bad"), Hazard("a", "`B` is bad"))
    plan = TopologyPlan([change(Action.DELETE, hazards=hazards), change(Action.DELETE, hazards=hazards)])
    assert plan.summary == {"create": 0, "change": 0, "delete": 2, "recreate": 0}
    assert plan.hazards == [Hazard("a", "`B`: it is bad"), Hazard("a", "`B` is bad")]


def test_fingerprint_tells_stream_instance_and_configuration():
    of = fingerprint(B)
    assert fingerprint(None) == ABSENT
    assert of == fingerprint({**B, "state": {}}) == fingerprint(bucket("B"))
    served = {**B["config"], "metadata": {"_nats.ver": "2.15"}}
    assert of == fingerprint({**B, "config": served})
    turned = dict(reversed(B["config"].items()))
    assert of == fingerprint({**B, "config": turned})
    others = [bucket("B", history=2), bucket("B", metadata={"a": "b"}), {**B, "created": "later"}]
    assert len({of, *(fingerprint(other) for other in others)}) == 4


# -- what speaks against it --------------------------------------------------------------------------------


def hazards(text: str, seen: Inventory, *, prune: bool = False) -> dict[str, list[str]]:
    """Return the names of the hazards by subject."""
    found = judged(text, seen, prune=prune).hazards
    return {name: [hazard.name for hazard in some] for name, some in found.items() if some}


def test_plan_without_problems_has_no_hazards_and_no_warnings():
    for seen in (inventory(), HERE):
        found = judged(TEXT, seen)
        assert ([some for some in found.hazards.values() if some], found.warnings) == ([], [])


def test_accepted_hazards_are_not_reported_again():
    origin = bucket("B", history=5)
    seen = inventory(origin, mirror("M", origin, history=1))
    assert hazards("mirrors: {M: {origin: B, history: 1, description: x}}", seen) == {}
    assert hazards("mirrors: {M: {origin: B, history: 1}}", inventory(origin)) == {"M": ["shorter-history"]}


def test_origin_neither_live_nor_in_the_file_is_missing():
    assert hazards("mirrors: {M: {origin: B}}", inventory()) == {"M": ["missing-origin"]}
    assert hazards("mirrors: {M: {origin: B}}\nbuckets: {B: {}}", inventory()) == {}


def test_deletion_of_the_stream_of_a_table_is_a_hazard():
    table = info({"name": "KVT_B", "subjects": ["b.>"], "metadata": {KIND: "table"}}, mark="t")
    [found] = hazards("", inventory(table), prune=True).values()
    assert found == ["foreign-kind"]
    assert hazards("", inventory(*marked(B)), prune=True) == {}


def test_origins_that_do_not_fit_into_an_aggregate_are_a_hazard():
    text = "aggregates: {A: {max_bytes: %d, origins: [{bucket: B, prefix: b}, {bucket: C, prefix: c}]}}"
    bounded = [bucket(name, max_bytes=10) for name in "BC"]  # each holds 20 bytes
    for limit, fits in ((39, False), (40, True), (41, True)):
        assert hazards(text % limit, inventory(*bounded)) == ({} if fits else {"A": ["smaller-limits"]})


def test_change_of_origin_has_hazards_of_mirror_outside_the_file():
    seen = inventory(B, M)
    [hazard] = judged("buckets: {B: {history: 3}}", seen).hazards["B"]
    assert hazard.name == "shorter-history"
    assert hazard.evidence.startswith("Mirror `M` keeps 1 revision, fewer than `B` (3)")
    assert hazard.remedy == "First `kvctl mirror edit M --history 3`, then repeat"
    assert hazards("buckets: {B: {ttl: 1h}}", seen) == {"B": ["ttl-not-inherited"]}
    assert hazards("buckets: {B: {description: x}}", seen) == {}
    assert hazards("buckets: {B: {history: 3}}\nmirrors: {M: {origin: B}}", seen) == {}
    accepted = bucket("B", history=2)
    assert hazards("buckets: {B: {description: x}}", inventory(accepted, mirror("M", accepted, history=1))) == {}


@pytest.mark.parametrize(
    ("text", "streams", "prune", "found"),
    [
        ("buckets: {B: {storage: memory}}", [B, M], False, {"B": ["recreated-origin"]}),
        ("buckets: {B: {storage: memory}}\nmirrors: {M: {origin: B}}", [B, M], False, {}),
        ("buckets: {B: {storage: memory}}", [B, A, C], False, {}),  # an aggregate gets the new entries
        ("", [*marked(B), M], True, {"B": ["recreated-origin"]}),
        ("", marked(B, M), True, {}),
        (
            "aggregates: {A: {origins: [{bucket: B, prefix: b}]}}",
            [A, B, C, mirror("X", A)],
            False,
            {"A": ["recreated-origin"]},
        ),
        ("buckets: {B: {description: x}}", [B, M], False, {}),
    ],
)
def test_mirror_outside_of_the_file_would_be_stale(text, streams, prune, found):
    assert hazards(text, inventory(*streams), prune=prune) == found


@pytest.mark.parametrize(
    ("text", "prune", "told"),
    [
        ("buckets: {B: {history: 3}}", False, True),
        ("buckets: {B: {description: x}}", False, False),
        ("buckets: {B: {storage: memory}}", False, True),
        ("buckets: {D: {}}", False, False),
        ("", True, True),
        ("aggregates: {A: {origins: [{bucket: B, prefix: b}]}}", False, True),
    ],
)
def test_unreachable_stream_that_may_be_a_reader_is_a_hazard(text, prune, told):
    found = judged(text, inventory(*marked(B), C, A, unreachable=["LOST"]), prune=prune).hazards
    named = {hazard.name for some in found.values() for hazard in some}
    assert ("unreachable-stream" in named) is told


def test_message_of_a_stale_mirror_names_both_and_what_to_do():
    [hazard] = judged("buckets: {B: {storage: memory}}", inventory(B, M)).hazards["B"]
    assert hazard.evidence.startswith("Mirror `M` reads from `B` and is not in the file")
    assert hazard.remedy == "Add `M` to the file, or delete it first"


def test_plan_warns_of_keys_that_a_removed_origin_overwrote():
    text = "aggregates: {A: {origins: [B]}}"
    both = aggregate("A", (Origin("B"), B), (Origin("C", prefix="c"), C))
    [warning] = judged(text, inventory(B, C, both)).warnings
    assert warning.startswith(
        "Removing `C` from `A` also removes keys that it overwrote: `kvctl topology audit A --repair`"
    )
    assert judged(text.replace("[B]", "[{bucket: B, prefix: b}]"), inventory(B, C, A)).warnings == []
    third = bucket("D")
    three = aggregate("A", (Origin("B", prefix="b"), B), (Origin("C", prefix="c"), C), (Origin("D", prefix="c"), third))
    kept = "aggregates: {A: {origins: [{bucket: B, prefix: b}]}}"  # those that overlap leave both
    assert judged(kept, inventory(B, C, third, three)).warnings == []


def test_cycle_is_reported_once_at_the_first_change():
    text = "aggregates: {X: {origins: [Y], writable: true}, Y: {origins: [X]}}"
    found = {name: some for name, some in judged(text, inventory()).hazards.items() if some}
    [[hazard]] = found.values()
    assert hazard.name == "cycle"
    assert hazard.evidence == "`Y` <- `X` <- `Y`: every write would circulate endlessly"


def test_cycle_of_mirrors_is_found_once():
    text = "mirrors: {M: {origin: N}, N: {origin: M}}\naggregates: {A: {origins: [M]}}"
    [found] = hazards(text, inventory()).values()
    assert found == ["cycle"]


def test_cycle_through_a_stream_outside_of_the_file_is_found():
    x = aggregate("X", (Origin("B", prefix="b"), B), writable=True)
    y = aggregate("Y", (Origin("X"), x))
    text = "aggregates: {X: {origins: [{bucket: B, prefix: b}, {bucket: Y, prefix: y}], writable: true}}"
    assert hazards(text, inventory(B, x, y)) == {"X": ["cycle"]}
    assert hazards(text, inventory(B, x, bucket("Y"))) == {}


def test_existing_cycle_of_unchanged_streams_is_not_reported():
    x, y = aggregate("X", (Origin("Y"), B), writable=True), aggregate("Y", (Origin("X"), B))
    assert "cycle" not in str(hazards("buckets: {B: {history: 2}}", inventory(B, x, y)))


def test_origin_that_is_read_twice_is_refused():
    text = "aggregates: {A: {origins: [{bucket: B, prefix: b}, {stream: M, prefix: m}]}}"
    with pytest.raises(RefusedError) as caught:
        judged(text, inventory(B, M))
    assert caught.value.message == (
        "`A` would replicate `B` twice, directly and through `M`: servers refuse that (10052)"
    )


def test_cycle_through_a_deleted_stream_is_not_reported():
    x = aggregate("X", (Origin("Y", prefix="y"), B), writable=True, mark="t")
    y = aggregate("Y", (Origin("X"), B), mark="t")
    assert hazards("", inventory(B, x, y), prune=True) == {}


def test_cycle_that_the_plan_ends_is_not_reported():
    x = aggregate("X", (Origin("B", prefix="b"), B), (Origin("Y", prefix="y"), B), writable=True)
    text = "aggregates: {X: {origins: [{bucket: B, prefix: b}], writable: true}, Y: {origins: [X]}}"
    assert hazards(text, inventory(B, x)) == {}


def test_plan_warns_once_of_keys_that_outlive_an_origin():
    text = "aggregates: {A: {origins: [{bucket: B, prefix: b}, {bucket: C, prefix: c}]}}"
    [warning] = judged(text, inventory(bucket("B", ttl=timedelta(hours=1)), C)).warnings
    assert warning.startswith("Keys of `B` expire after 1h but stay in `A`")


def test_origin_of_unknown_size_counts_as_empty():
    text = "aggregates: {A: {max_bytes: 20, origins: [{bucket: B, prefix: b}, {bucket: C, prefix: c}]}}"
    assert hazards(text, inventory(bucket("B", max_bytes=10))) == {"A": ["missing-origin"]}


@pytest.mark.parametrize(
    ("info_", "exists", "reachable", "named"),
    [(B, True, True, []), (None, None, False, ["unconnected"]), (None, False, True, ["missing-origin"])],
)
def test_origin_out_of_view_has_hazards_of_its_lookup(info_, exists, reachable, named):
    away = Origin("B", external=External.of_domain("far"))
    seen = OriginView(away, None, info_, exists, reachable)  # type: ignore[arg-type]
    found = judged("mirrors: {M: {origin: B, origin_domain: far}}", inventory(), looked={("", away): seen})
    assert [hazard.name for hazard in found.hazards["M"]] == named
    assert found.warnings == []


def test_found_keeps_each_hazard_and_each_warning_once():
    found = PlanHazards()
    for hazards_ in ([Hazard("a", "1")], [Hazard("a", "1"), Hazard("a", "2")]):
        found.add("B", hazards_)
    found.warn(["1"])
    found.warn(["1", "2"])
    assert (found.hazards, found.warnings) == ({"B": [Hazard("a", "1"), Hazard("a", "2")]}, ["1", "2"])


def test_limit_is_removed_by_a_file():
    (change,) = compared("buckets: {B: {max_bytes: none}}", inventory(bucket("B", max_bytes=10, mark="t"))).changes
    assert change.config["max_bytes"] == -1
    assert compared("buckets: {B: {max_bytes: none}}", inventory(bucket("B", mark="t"))).changes == []
