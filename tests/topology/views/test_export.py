"""Export of live streams: settings written, left to defaults and origins, or not expressible."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kvctl.documents.parser import Document
from kvctl.errors import BucketNotFound, RefusedError
from kvctl.jetstream.stream_info import sources_of
from kvctl.kv.config import BucketConfig, Republish, differences
from kvctl.topology.apply.builders import create_aggregate, create_mirror
from kvctl.topology.model.file import read_topology
from kvctl.topology.model.origins import Aggregate, External, Mirror, Origin
from kvctl.topology.plan import planner
from kvctl.topology.plan.desired import render
from kvctl.topology.survey.graph import Inventory, Link, Place
from kvctl.topology.survey.inventory import survey
from kvctl.topology.views.export import TopologyExport, export
from tests.topology.conftest import source

ORDERS = BucketConfig("ORDERS", history=5, ttl=timedelta(days=30))
EVERYTHING = BucketConfig(
    "ALL",
    description="on",
    history=64,
    ttl=timedelta(hours=36),
    marker_ttl=timedelta(minutes=5),
    replicas=3,
    storage="memory",
    max_value_size=1500,
    max_bytes=10 * 1024**2,
    compress=True,
    cluster="lon",
    tags=("a", "b:1"),
    republish=Republish("$KV.ALL.>", "copies.>", headers_only=True),
    metadata={"1e3": "no", "e": ""},
    atomic=True,
)


def world_of(*configs: dict[str, Any]) -> Inventory:
    """Return one account with streams of these configurations."""
    infos = {config["name"]: {"config": config, "state": {}, "created": "2026-01-01T00:00:00Z"} for config in configs}
    place = Place("", None, None, infos)  # type: ignore[arg-type]
    links = [
        Link(place, info, source, place, None if source.get("external") else infos.get(source["name"]))
        for info in infos.values()
        for source in sources_of(info["config"])
    ]
    return Inventory({"": place}, tuple(links))


def exported(*configs: dict[str, Any], names: tuple[str, ...] = ()) -> TopologyExport:
    return export(world_of(*configs), names)


def test_export_of_bucket_has_only_settings_that_are_not_default():
    assert exported(ORDERS.to_stream(), BucketConfig("PLAIN").to_stream()).document == {
        "version": 1,
        "buckets": {"ORDERS": {"history": 5, "ttl": "30d"}, "PLAIN": {}},
    }


def test_export_writes_every_setting_as_a_file_does():
    assert exported(EVERYTHING.to_stream()).document["buckets"]["ALL"] == {
        "description": "on",
        "history": 64,
        "ttl": "1d12h",
        "replicas": 3,
        "storage": "memory",
        "max_bytes": "10MiB",
        "cluster": "lon",
        "tags": ["a", "b:1"],
        "marker_ttl": "5m",
        "max_value_size": 1500,
        "compress": True,
        "republish": "$KV.ALL.>=copies.>",
        "republish_headers_only": True,
        "metadata": {"1e3": "no", "e": ""},
        "atomic": True,
    }


def test_export_omits_settings_inherited_from_origins_in_the_file():
    origin = ORDERS.to_stream()
    mirror = Mirror("M", Origin("ORDERS")).to_stream(origin)
    aggregate = Aggregate("A", (Origin("ORDERS", keys=("NEW.>",)),)).to_stream([origin])
    found = exported(origin, mirror, aggregate).document
    assert found["mirrors"] == {"M": {"origin": "ORDERS"}}
    assert found["aggregates"] == {"A": {"origins": [{"bucket": "ORDERS", "keys": "NEW.>"}]}}
    inherited = {"history": 5, "ttl": "30d"}
    assert exported(origin, mirror, aggregate, names=("M",)).document == {
        "version": 1,
        "mirrors": {"M": {"origin": "ORDERS", **inherited}},
    }


def test_export_has_settings_that_differ_from_the_origin():
    origin = ORDERS.to_stream()
    mirror = Mirror("M", Origin("ORDERS"), ttl=timedelta(), history=9).to_stream(origin)
    assert exported(origin, mirror).document["mirrors"]["M"] == {"origin": "ORDERS", "history": 9, "ttl": "0s"}


def test_export_writes_origins_in_shortest_notation():
    origins = (
        Origin("A"),
        Origin("B", keys=("NEW.>", "OLD.>"), prefix="p"),
        Origin("C", maps=(("*.*", "stock.$2.$1"),), external=External.of_domain("hub")),
        Origin("D", stream="M", external=External("X.API", "D.x")),
    )
    stream = Aggregate("AGG", origins, writable=True, deny_purge=True).to_stream()
    assert exported(stream).document["aggregates"]["AGG"] == {
        "origins": [
            "A",
            {"bucket": "B", "keys": ["NEW.>", "OLD.>"], "prefix": "p"},
            {"bucket": "C", "domain": "hub", "map": {"*.*": "stock.$2.$1"}},
            {"bucket": "D", "stream": "M", "api": "X.API", "deliver": "D.x"},
        ],
        "writable": True,
        "deny_purge": True,
    }


@pytest.mark.parametrize(
    "external", [None, External.of_domain("hub"), External("X.API"), External("X.API", "D.x")], ids=str
)
def test_exported_file_recreates_the_same_streams(external):
    origin = EVERYTHING.to_stream()
    mirror = Mirror("M", Origin("ALL", external=external), cluster="nyc", max_bytes=10**9).to_stream(origin)
    aggregate = Aggregate("A", (Origin("ALL", prefix="p", external=external),), history=3).to_stream([origin])
    found = exported(origin, mirror, aggregate)
    again = {stream["name"]: stream for stream in render(read_topology(Document(found.document, "f"))).streams}
    for stream in (origin, mirror, aggregate):
        fields = {item.field for item in differences(again[stream["name"]], stream)}
        assert fields <= ({"allow_msg_ttl"} if external else set())  # not known of an origin that is not seen


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"duplicate_window": 60 * 10**9}, "duplicate_window 1m"),
        ({"allow_direct": False}, "no allow_direct"),
        ({"max_msgs_per_subject": 65}, "history 65"),
        ({"allow_msg_ttl": True}, "allow_msg_ttl yes"),
        ({"metadata": {"": "x", "a": "b"}}, "metadata. x"),
    ],
)
def test_export_remarks_settings_that_a_file_cannot_express(change, remark):
    found = exported(ORDERS.to_stream() | change)
    assert found.remarks == {"ORDERS": [remark]}
    assert "history" not in found.document["buckets"]["ORDERS"] or change.get("max_msgs_per_subject") is None


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        ({"name": "EVENTS", "subjects": ["e.>"]}, "not a bucket"),
        (ORDERS.to_stream() | {"metadata": {"kvctl.kind": "table"}}, "part of a table"),
        (ORDERS.to_stream() | {"metadata": {"kvctl.unfinished": "1"}}, "left behind by an interrupted restore or copy"),
        (ORDERS.to_stream() | {"name": "KV_é", "subjects": ["$KV.é.>"]}, "`é` is not a bucket name"),
        (ORDERS.to_stream() | {"subjects": [], "sources": [{"name": "KV_B"}]}, "its origins cannot be fully described"),
        (
            ORDERS.to_stream() | {"name": "M", "mirror": {"name": "KV_B", "opt_start_seq": 5}},
            "its origins cannot be fully described",
        ),
        (
            ORDERS.to_stream()
            | {
                "name": "M",
                "mirror": {"name": "KV_B", "subject_transforms": [{"src": "$KV.B.a.>", "dest": "$KV.B.b.>"}]},
            },
            "its origins cannot be fully described",
        ),
        (
            ORDERS.to_stream() | {"name": "KV_M", "mirror": {"name": "KV_B"}},
            "`KV_M` is a bucket stream name; the name of a mirror must not start with `KV_`",
        ),
        (
            ORDERS.to_stream()
            | {
                "subjects": [],
                "sources": [{"name": "KV_B", "subject_transforms": [{"src": "$KV.B.>", "dest": "elsewhere.>"}]}],
            },
            "`$KV.B.>` to `elsewhere.>` maps keys out of the bucket",
        ),
    ],
)
def test_export_leaves_out_other_streams_with_the_reason(stream, reason):
    found = exported(stream, BucketConfig("OTHER").to_stream())
    assert list(found.left_out.values()) == [reason]
    assert found.names == ["OTHER"]
    with pytest.raises(RefusedError, match="cannot be exported to a topology file"):
        exported(stream, names=tuple(found.left_out))


def test_export_of_ambiguous_name_has_the_bucket():
    bucket, other = BucketConfig("SAME").to_stream(), BucketConfig("B").to_stream()
    mirror = Mirror("SAME", Origin("B")).to_stream(other)
    second = Mirror("SECOND", Origin("B", stream="SAME")).to_stream(other)
    found = exported(bucket, other, mirror, second)
    assert found.names == ["B", "SAME"]
    assert set(found.left_out) == {"SAME", "SECOND"}


def test_export_takes_name_from_common_mark():
    marked = [config.to_stream() | {"metadata": {"kvctl.topology": "eu"}} for config in (ORDERS, BucketConfig("B"))]
    assert exported(*marked).document["name"] == "eu"
    assert "name" not in exported(*marked, BucketConfig("C").to_stream()).document


def test_export_of_missing_name_is_not_found():
    with pytest.raises(BucketNotFound, match="`NONE` does not exist"):
        exported(ORDERS.to_stream(), names=("ORDERS", "NONE"))


async def test_plan_of_exported_file_is_empty(client, raw, replicas, unique):
    """Any stream of kvctl or another tool that a file can describe."""
    orders, stock, odd, mirror, second, edge, other, loose = (unique(letter) for letter in "OSXMMAAA")
    await client.create_bucket(replace(EVERYTHING, name=orders, replicas=1, cluster=None, tags=(), republish=None))
    await client.create_bucket(stock)
    raw.create_bucket(odd, max_msgs_per_subject=70, duplicate_window=60 * 10**9, allow_direct=False)
    await create_mirror(client, Mirror(mirror, Origin(orders), description="1e3"))
    await create_mirror(client, Mirror(second, Origin(orders, stream=mirror), max_bytes=10**9))
    origins = (Origin(orders, keys=("NEW.>", "*.OLD"), prefix="p"), Origin(stock, maps=(("*.*", "s.$2.$1"),)))
    await create_aggregate(client, Aggregate(edge, origins, metadata={"a": "b"}), force=["ttl-not-inherited"])
    await create_aggregate(client, Aggregate(loose, (Origin(orders, stream=mirror), Origin(stock, prefix="x"))))
    some = source(stock, other, "a.>", "b.a.>", opt_start_seq=1)
    replicas.aggregate(other, some, max_msgs_per_subject=3, discard="old")
    names = (orders, stock, odd, mirror, second, edge, other, loose)
    for named in (names, *((name,) for name in names)):
        found = export(await survey({"": client.api}), named)
        assert sorted(found.names) == sorted(named)
        topology = read_topology(Document(found.document, "f"))
        assert (await planner.plan(topology, {"": client.api})).changes == []
