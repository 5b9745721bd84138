"""Streams in the formats of other tools: valid, complete or refused, and read back."""

from typing import Any

import pytest

from kvctl.documents import hcl, parser
from kvctl.errors import RefusedError, UsageError
from kvctl.kv.config_diff import differences
from kvctl.topology.file.document import Topology, read_topology
from kvctl.topology.formats import lossy_format, nack, nats_config, terraform
from kvctl.topology.formats.imported import READERS, topology_file
from kvctl.topology.formats.placed import Placed, SourceFile
from kvctl.topology.plan.rendered import render
from tests.topology.formats import schemas

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


def topology(text: str) -> Topology:
    return read_topology(parser.parse(f"version: 1\n{text}".encode(), "t.yaml"))


def streams(text: str) -> list[Placed]:
    found = render(topology(text))
    return [Placed(config, place) for config, place in zip(found.streams, found.places, strict=True)]


def refused(format: str, text: str) -> list[str]:
    return [hazard.evidence for hazard in lossy_format.of_format(format, streams(text), topology(text).contexts)]


def read(format: str, *data: Any) -> dict[str, Any]:
    return topology_file(READERS[format](SourceFile("file", item) for item in data)).document


def written(format: str, text: str) -> list[Any]:
    """Return the documents of a file in a format."""
    found = streams(text)
    if format == "nats":
        return [stream.config for stream in found]
    contexts = topology(text).contexts
    if format == "nack":
        return nack.resources(found, contexts)
    return [hcl.from_json(terraform.resources(found, contexts))]


def bodies(format: str, text: str) -> list[dict[str, Any]]:
    """Return the streams of a file in a format, without what surrounds them."""
    found = written(format, text)
    if format == "terraform":
        return list(found[0]["resource"]["jetstream_stream"].values())
    return [item["spec"] for item in found] if format == "nack" else found


TABLES = {"nats": schemas.NATS, "nack": schemas.NACK, "terraform": schemas.TERRAFORM}


@pytest.mark.parametrize("format", TABLES)
def test_rendered_streams_are_valid_by_the_schema_of_the_tool(format):
    for stream in bodies(format, EVERYTHING):
        schemas.validator(TABLES[format]).validate(stream)


@pytest.mark.parametrize("format", TABLES)
def test_imported_file_renders_the_same_streams(format):
    again = topology_file(READERS[format](SourceFile("f", item) for item in written(format, EVERYTHING)))
    assert not again.left_out
    assert not again.remarks
    before = {stream.name: stream.config for stream in streams(EVERYTHING)}
    after = {config["name"]: config for config in render(read_topology(parser.Document(again.document, "f"))).streams}
    assert not [item for name, config in before.items() for item in differences(config, after[name])]
    assert all(after[name]["metadata"] == config["metadata"] for name, config in before.items())


def test_format_of_nothing_lost_is_not_refused():
    assert refused("nats", EVERYTHING) == refused("nack", EVERYTHING) == refused("terraform", EVERYTHING) == []


@pytest.mark.parametrize(
    ("format", "fields", "evidence"),
    [
        ("nack", "republish: 'a.>=b.>', republish_headers_only: true",
         "a `Stream` resource cannot express republish_headers_only yes"),
        ("terraform", "ttl: 1500ms", "the provider cannot express ttl 1s500ms"),
        ("terraform", "marker_ttl: 1500ms", "the provider cannot express marker_ttl 1s500ms"),
        ("terraform", "tags: [a, b]", "the provider cannot express tags a, b"),
    ],
)  # fmt: skip
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
        "KV_B": None, "KV_C": None, "M": ["jetstream_stream.KV_B"],
        "KV_A": ["jetstream_stream.M", "jetstream_stream.KV_C"],
    }  # fmt: skip


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
        ("hub", "h"), ("eu-1", None), (None, "leaf"), (None, None),
    ]  # fmt: skip
    assert nack.warnings(streams(PLACES), topology(PLACES).contexts) == [
        "The resources refer to `Account` resources that have to exist: `hub`, `eu-1`",
        "The controller has to run with `--control-loop`, or it ignores `mirrorDirect` and `jsDomain`",
    ]
    assert read("nack", *written("nack", PLACES))["contexts"] == {
        "hub-h": {"context": "hub", "domain": "h"}, "eu-1": {"context": "eu-1"}, "leaf": {"domain": "leaf"},
    }  # fmt: skip


def test_contexts_become_provider_aliases():
    found = bodies("terraform", PLACES)
    assert [stream.get("provider") for stream in found] == ["jetstream.hub", "jetstream.EU_1", None, None]
    assert read("terraform", *written("terraform", PLACES))["buckets"]["B"] == {"in": "EU_1"}
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
    found = [*streams(PLACES), Placed({"name": "KV_X"}, "../etc"), Placed({"name": "KV_X"}, "/etc")]
    names = [nats_config.file_name(stream) for stream in found]
    assert names == ["hub/KV_A.json", "EU_1/KV_B.json", "leaf/KV_C.json", "KV_D.json", "_._etc/KV_X.json",
                     "_etc/KV_X.json"]  # fmt: skip


def test_bucket_of_the_same_name_in_another_context_is_left_out():
    config = {"name": "KV_A", "subjects": ["$KV.A.>"], "max_msgs_per_subject": 1}
    exported = topology_file(READERS["nats"](SourceFile("a", config, place) for place in ("x", "y")))
    assert exported.document["buckets"] == {"A": {"in": "x"}}
    assert exported.left_out == {"A in y": "another context has the same name"}


# -- files by other hands ----------------------------------------------------------------------------------

RESOURCE = {"apiVersion": "jetstream.nats.io/v1beta2", "kind": "Stream", "metadata": {"name": "x"}}


def test_stream_of_a_running_server_is_read_like_a_file():
    config = {"name": "KV_A", "subjects": ["$KV.A.>"], "max_msgs_per_subject": 2}
    assert read("nats", {"config": config, "state": {}})["buckets"] == {"A": {"history": 2}}
    assert read("nats", [config, {**config, "name": "KV_B", "subjects": ["$KV.B.>"]}])["buckets"].keys() == {"A", "B"}


@pytest.mark.parametrize("data", [[], {}, {"name": 5}, {"name": ""}, "text", [[]], None])
def test_what_is_no_stream_configuration_is_named(data):
    with pytest.raises((UsageError, RefusedError), match=r"file is not a stream configuration|no bucket"):
        read("nats", data)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"max_age": "soon"}, "max_age: `soon` is not a duration"),
        ({"storage": "tape"}, "storage: `storage` must be `file` or `memory`, not `tape`"),
        ({"sources": [{"name": 5}]}, "sources.0.name: `name` must be a text, not `5`"),
        ({"sources": [{"subject_transforms": []}]}, "it has an incomplete origin"),
        ({"mirror": {"name": "KV_B", "subject_transforms": [None]}}, "it has an incomplete origin"),
        ({"sources": [None]}, "it has an incomplete origin"),
        ({"metadata": {"a": 5}}, "metadata must be text"),
        ({"max_msgs": 2**64}, "a number is out of range"),
    ],
)
def test_stream_with_wrong_values_is_left_out_with_the_reason(fields, reason):
    bucket = {"name": "KV_A", "subjects": ["$KV.A.>"], "max_msgs_per_subject": 1}
    found = topology_file(READERS["nats"]([SourceFile("f", [bucket, {**bucket, "name": "KV_B", **fields}])]))
    assert found.left_out == {"stream KV_B": reason}


def test_fields_of_newer_servers_are_named():
    config = {"name": "KV_A", "subjects": ["$KV.A.>"], "max_msgs_per_subject": 1, "discard": "new", "newer": True}
    assert topology_file(READERS["nats"]([SourceFile("f", config)])).remarks["A"][-1] == "`newer`"


def test_mark_that_is_not_the_name_of_a_topology_is_ignored():
    config = {"name": "KV_A", "subjects": ["$KV.A.>"], "max_msgs_per_subject": 1}
    assert "name" not in read("nats", {**config, "metadata": {"kvctl.topology": "a b"}})
    assert read("nats", {**config, "metadata": {"kvctl.topology": "a-b"}})["name"] == "a-b"


def test_resources_that_are_no_streams_are_left_out_with_the_reason():
    spec = {"name": "KV_A", "subjects": ["$KV.A.>"], "maxMsgsPerSubject": 1, "storage": "file", "maxAge": "1h"}
    found = topology_file(READERS["nack"]([SourceFile("f", {"kind": "List", "items": [
        {**RESOURCE, "spec": spec},
        {**RESOURCE, "spec": {**spec, "maxAge": "soon"}},
        {**RESOURCE, "metadata": {"name": "y"}},
        {**RESOURCE, "kind": "Consumer", "spec": {}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}},
        {**RESOURCE, "metadata": {"name": "events"}, "spec": {"name": "EVENTS", "subjects": ["e"]}},
    ]}), SourceFile("f", None)]))  # fmt: skip
    assert found.document == {"version": 1, "buckets": {"A": {"ttl": "1h"}}}
    other = "not a `Stream` or `KeyValue` of `jetstream.nats.io/v1beta2`"
    assert found.left_out == {
        "Stream x": "`maxAge` `soon` is not a duration", "Stream y": "it has no `spec`", "Consumer x": other,
        "Secret s": other, "EVENTS": "not a bucket",
    }  # fmt: skip


def test_fields_of_resources_that_a_file_cannot_express_are_named():
    spec = {"name": "KV_A", "subjects": ["$KV.A.>"], "maxMsgsPerSubject": 1, "discard": "new", "preventDelete": True}
    found = topology_file(READERS["nack"]([SourceFile("f", {**RESOURCE, "spec": {**spec, "servers": ["nats://h"]}})]))
    assert found.document["buckets"] == {"A": {"storage": "memory"}}
    assert found.remarks["A"][-3:] == [
        "`preventDelete`", "`servers`", "no `maxAge` (a year, if the controller runs with `--control-loop`)",
    ]  # fmt: skip


def test_key_value_resource_is_read_as_the_controller_creates_it():
    spec = {"bucket": "A", "history": 3, "ttl": "1h", "limitMarkerTtl": 5 * 10**9, "compression": True,
            "maxBytes": -1, "placement": {"tags": ["x"]},
            "republish": {"source": ">", "destination": "c.>"}}  # fmt: skip
    other = {"bucket": "S", "sources": [{"name": "A", "subjectTransforms": [{"source": "x", "dest": "y"}]}]}
    document = read("nack", *({**RESOURCE, "kind": "KeyValue", "spec": one} for one in (spec, other)))
    assert document["buckets"] == {
        "A": {"history": 3, "ttl": "1h", "marker_ttl": "5s", "compress": True, "tags": ["x"], "republish": ">=c.>"}
    }
    assert document["aggregates"]["S"]["origins"] == ["A"]


def test_kv_bucket_of_terraform_is_read_as_the_provider_creates_it():
    body = {"name": "A", "ttl": 60, "limit_marker_ttl": 5, "max_value_size": 1024, "placement_tags": ["lost"]}
    blocks = {"jetstream_kv_bucket": {"a": body}, "jetstream_stream": {"s": [{"name": "EVENTS", "subjects": ["e"]}]},
              "jetstream_kv_entry": {"e": {}}}  # fmt: skip
    found = topology_file(READERS["terraform"]([SourceFile("f", {"resource": blocks, "variable": {}})]))
    assert found.document["buckets"] == {"A": {"history": 5, "ttl": "1m", "marker_ttl": "5s", "max_value_size": "1KiB"}}
    assert found.left_out == {
        "jetstream_kv_entry.e": "not a `jetstream_stream` or `jetstream_kv_bucket`",
        "EVENTS": "not a bucket",
    }


def test_tables_of_fields_are_those_of_the_tools():
    """Each setting of the tool's schema is read, or deliberately not."""
    rows = {row.theirs.partition(".")[0] for row in nack._STREAM}
    connection = {
        "account",
        "creds",
        "nkey",
        "preventDelete",
        "preventUpdate",
        "servers",
        "tls",
        "tlsFirst",
        "jsDomain",
    }
    assert schemas.fields(schemas.NACK) - rows == connection
    rows = {row.theirs for row in terraform._ROWS}
    assert schemas.fields(schemas.TERRAFORM) - rows == {"ack", "subject_transform", "provider", "depends_on"}
