"""Streams in the formats of other tools: valid, complete or refused."""

from typing import Any

import pytest

from kvctl.kv.config import differences
from kvctl.topology.plan.desired import render
from kvctl.topology.views import deployers
from kvctl.topology.views.deployers import PlacedStream
from tests.topology.plain import read as topology
from tests.topology.views import tools

EVERYTHING = """
name: shop
buckets:
  ORDERS: {history: 5, ttl: 30d, marker_ttl: 1h, description: 'all "${x}" $${y}', compress: true, max_bytes: 10MiB,
           max_value_size: 64KiB, metadata: {team: a, "a b": "%{x}"}, atomic: true, replicas: 3, first_revision: 77}
  STOCK: {republish: "$KV.STOCK.>=copies.>", storage: memory, cluster: nyc, tags: [ssd, "az:1"], ttl: 90s}
  stock: {}
mirrors:
  COPY: {origin: ORDERS}
  2ND: {origin: COPY, max_bytes: 1GB}
  PARTS: {origin: STOCK, keys: [a.>, b.>]}
  FAR: {origin: ORDERS, origin_api: HUB.API, deliver: HUB.deliver}
aggregates:
  ALL: {origins: [stock], deny_purge: true}
  EDGE:
    writable: true
    origins:
      - {bucket: ORDERS, keys: ["NEW.>"], prefix: orders.new}
      - {bucket: STOCK, map: {"*.*": "stock.$2.$1", "*": "one.$1"}, domain: hub}
      - {stream: COPY, prefix: copy}
"""


def streams(text: str) -> list[PlacedStream]:
    found = render(topology(text))
    return [PlacedStream(config, place) for config, place in zip(found.streams, found.places, strict=True)]


def refused(format: str, text: str) -> list[str]:
    return [hazard.evidence for hazard in deployers.lossy(format, streams(text), topology(text).contexts)]


def written(format: str, text: str) -> list[Any]:
    """Return the documents of a file in a format."""
    found = streams(text)
    if format == "nats":
        return [stream.config for stream in found]
    contexts = topology(text).contexts
    return deployers.nack(found, contexts) if format == "nack" else [deployers.terraform(found, contexts)]


def bodies(format: str, text: str) -> list[dict[str, Any]]:
    """Return the streams of a file in a format, without what surrounds them."""
    found = written(format, text)
    if format == "terraform":
        return list(found[0]["resource"]["jetstream_stream"].values())
    return [item["spec"] for item in found] if format == "nack" else found


TABLES = {"nats": tools.NATS, "nack": tools.NACK, "terraform": tools.TERRAFORM}


@pytest.mark.parametrize("format", TABLES)
def test_rendered_streams_are_valid_by_the_schema_of_the_tool(format):
    for stream in bodies(format, EVERYTHING):
        tools.validator(TABLES[format]).validate(stream)


@pytest.mark.parametrize(
    ("format", "created"), [("nack", tools.created_by_nack), ("terraform", tools.created_by_terraform)]
)
def test_tool_creates_the_same_streams(format, created):
    before = {stream.name: stream.config for stream in streams(EVERYTHING)}
    after = {config["name"]: config for config in map(created, bodies(format, EVERYTHING))}
    assert before.keys() == after.keys()
    assert not [item for name, config in before.items() for item in differences(config, after[name])]
    assert all(after[name]["metadata"] == config["metadata"] for name, config in before.items())


def test_format_of_nothing_lost_is_not_refused():
    assert refused("nats", EVERYTHING) == refused("nack", EVERYTHING) == refused("terraform", EVERYTHING) == []


@pytest.mark.parametrize(
    ("format", "fields", "evidence"),
    [
        (
            "nack",
            "republish: 'a.>=b.>', republish_headers_only: true",
            "a `Stream` resource cannot express republish_headers_only yes",
        ),
        ("terraform", "ttl: 1500ms", "the provider cannot express ttl 1s500ms"),
        ("terraform", "marker_ttl: 1500ms", "the provider cannot express marker_ttl 1s500ms"),
        ("terraform", "tags: [a, b]", "the provider cannot express tags a, b"),
    ],
)
def test_setting_that_a_format_cannot_express_is_refused_by_name(format, fields, evidence):
    """The duplicate window follows a short ttl."""
    found = refused(format, f"buckets: {{B: {{{fields}}}, C: {{}}}}")
    assert f"`KV_B`: {evidence}" in found
    assert all("KV_B" in text for text in found)
    others = {"nats", "nack", "terraform"} - {format}
    assert all(refused(other, f"buckets: {{B: {{{fields}}}}}") == [] for other in others)


def test_lost_setting_expires_nothing_early():
    (stream,) = bodies("terraform", "buckets: {B: {ttl: 1500ms}}")
    assert stream["max_age"] == 2


def test_bucket_without_ttl_says_so_to_controllers():
    """In control-loop mode a stream without `maxAge` expires its entries after a year."""
    assert [stream["maxAge"] for stream in bodies("nack", "buckets: {B: {}, C: {ttl: 36h}}")] == ["0s", "36h"]


def test_aggregate_has_no_duplicate_window_with_terraform():
    """The provider's default are two minutes."""
    text = "buckets: {B: {}}\naggregates: {A: {origins: [B]}}"
    assert [stream["duplicate_window"] for stream in bodies("terraform", text)] == [120, 0]


def test_origins_are_created_before_their_replicas_with_terraform():
    text = "mirrors: {M: {origin: B}}\nbuckets: {B: {}, C: {}}\naggregates: {A: {origins: [{stream: M, prefix: m}, C]}}"
    depends = {stream["name"]: stream.get("depends_on") for stream in bodies("terraform", text)}
    assert depends == {
        "KV_B": None,
        "KV_C": None,
        "M": ["jetstream_stream.KV_B"],
        "KV_A": ["jetstream_stream.M", "jetstream_stream.KV_C"],
    }


def test_origins_in_a_cycle_do_not_depend_on_each_other():
    text = "aggregates: {A: {origins: [{bucket: C, keys: [c.>]}]}, C: {origins: [{bucket: A, keys: [a.>]}]}}"
    depends = [stream.get("depends_on") for stream in bodies("terraform", text)]
    assert sum(item is not None for item in depends) == 1


def test_names_are_valid_and_unique():
    text = "buckets: {a_b: {}, A-B: {}, A_b: {}}\nmirrors: {1M: {origin: a_b}, _1M: {origin: a_b}}"
    names = [resource["metadata"]["name"] for resource in written("nack", text)]
    assert names == ["kv-a-b", "kv-a-b-2", "kv-a-b-3", "1m", "1m-2"]
    labels = list(written("terraform", text)[0]["resource"]["jetstream_stream"])
    assert labels == ["KV_a_b", "KV_A-B", "KV_A_b", "_1M", "_1M-2"]


PLACES = """
contexts: {hub: {context: prod, domain: h}, "EU 1": {url: nats://h:4222}, leaf: {domain: leaf}}
buckets: {A: {in: hub}, B: {in: EU 1}, C: {in: leaf}, D: {}}
"""


def test_contexts_become_accounts_and_domains_of_resources():
    specs = bodies("nack", PLACES)
    assert [(spec.get("account"), spec.get("jsDomain")) for spec in specs] == [
        ("hub", "h"),
        ("eu-1", None),
        (None, "leaf"),
        (None, None),
    ]
    assert list(deployers.nack_warnings(written("nack", PLACES))) == [
        "The resources refer to `Account` resources that have to exist: `hub`, `eu-1`",
        "The controller has to run with `--control-loop`, or it ignores `mirrorDirect` and `jsDomain`",
    ]


def test_contexts_become_provider_aliases():
    found = bodies("terraform", PLACES)
    assert [stream.get("provider") for stream in found] == ["jetstream.hub", "jetstream.EU_1", None, None]
    assert list(deployers.terraform_warnings(*written("terraform", PLACES))) == [
        "The resources use provider aliases that have to be defined: `hub`, `EU_1`"
    ]
    assert refused("terraform", PLACES) == [
        "context `hub`: the provider cannot express domain h",
        "context `leaf`: the provider cannot express domain leaf",
    ]


def test_contexts_that_differ_in_characters_alone_stay_apart():
    text = (
        "contexts: {e u: {context: a}, e.u: {context: b}}\nbuckets: {A: {in: e u}, B: {in: e.u}}\n"
        "aggregates: {C: {in: e.u, origins: [{bucket: A, domain: d}]}}"
    )
    assert [spec["account"] for spec in bodies("nack", text)] == ["e-u", "e-u-2", "e-u-2"]
    found = bodies("terraform", text)
    assert [stream["provider"] for stream in found] == ["jetstream.e_u", "jetstream.e_u-2", "jetstream.e_u-2"]
    assert found[2]["depends_on"] == ["jetstream_stream.KV_A"]


def test_contexts_become_folders():
    found = [*streams(PLACES), PlacedStream({"name": "KV_X"}, "../etc"), PlacedStream({"name": "KV_X"}, "/etc")]
    names = [deployers.file_name(stream) for stream in found]
    assert names == "hub/KV_A.json EU_1/KV_B.json leaf/KV_C.json KV_D.json _._etc/KV_X.json _etc/KV_X.json".split()


def test_field_that_no_tool_has_is_refused():
    config = {**streams("buckets: {B: {}}")[0].config, "newer": True}
    assert [hazard.evidence for format in TABLES for hazard in deployers.lossy(format, [PlacedStream(config)], {})] == [
        "`KV_B`: a `Stream` resource cannot express newer yes",
        "`KV_B`: the provider cannot express newer yes",
    ]
