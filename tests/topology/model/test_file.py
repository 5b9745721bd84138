"""Topology files: contents and errors."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kvctl.documents import parser
from kvctl.errors import UsageError
from kvctl.topology.model.file import Topology, json_schema, read_topology
from kvctl.topology.plan.desired import render

CONTRACT = """
version: 1
contexts:
  hub: {context: prod-hub}
  edge: {url: nats://127.0.0.1:4223, domain: leaf}
buckets:
  ORDERS: {history: 5, ttl: 30d, replicas: 3, cluster: lon, in: hub}
mirrors:
  ORDERS_NYC: {origin: ORDERS, cluster: nyc, in: hub}
aggregates:
  EDGE:
    in: edge
    origins:
      - {bucket: ORDERS, domain: hub, keys: ["NEW.>"], prefix: orders.new}
      - {bucket: STOCK, domain: hub, map: {"*.*": "stock.$2.$1"}}
"""


def read(text: str) -> Topology:
    return read_topology(parser.parse(text.encode(), "t.yaml"))


def test_document_reads_example_of_the_contract():
    topology = read(CONTRACT)
    assert topology.places == {"ORDERS": "hub", "ORDERS_NYC": "hub", "EDGE": "edge"}
    assert topology.contexts["edge"] == {"url": "nats://127.0.0.1:4223", "domain": "leaf"}
    streams = {stream["name"]: stream for stream in render(topology).streams}
    assert list(streams) == ["KV_ORDERS", "ORDERS_NYC", "KV_EDGE"]
    mirror = streams["ORDERS_NYC"]
    assert (mirror["max_msgs_per_subject"], mirror["max_age"]) == (5, 30 * 86400 * 10**9)
    assert mirror["placement"] == {"cluster": "nyc"}
    hub = {"external": {"api": "$JS.hub.API"}}
    place = "$KV.EDGE.stock.{{wildcard(2)}}.{{wildcard(1)}}"
    assert streams["KV_EDGE"]["sources"] == [
        {
            "name": "KV_ORDERS",
            **hub,
            "opt_start_seq": 1,
            "subject_transforms": [{"src": "$KV.ORDERS.NEW.>", "dest": "$KV.EDGE.orders.new.>"}],
        },
        {
            "name": "KV_STOCK",
            **hub,
            "opt_start_seq": 1,
            "subject_transforms": [{"src": "$KV.STOCK.*.*", "dest": place}],
        },
    ]


def test_document_reports_all_errors_in_their_order():
    text = """
version: 1
name: a b
mirors: {}
buckets:
  A: {histroy: 5, replicas: 9}
  B: [1]
  C: {in: nowhere, republish_headers_only: true}
mirrors:
  M: {orign: A, storage: floppy}
  A: {origin: B}
"""
    with pytest.raises(UsageError) as caught:
        read(text)
    assert caught.value.message.splitlines() == [
        "t.yaml has 10 errors:",
        "  t.yaml:3:1: name: `a b` is not a valid topology name. Use `A-Z a-z 0-9 _ - .`",
        "  t.yaml:4:1: mirors: `mirors` is not a field of a topology file. Did you mean `mirrors`?",
        "  t.yaml:6:7: buckets.A.histroy: `histroy` is not a field of a bucket. Did you mean `history`?",
        "  t.yaml:6:19: buckets.A.replicas: `replicas` must be 1 to 5, not 9",
        "  t.yaml:7:3: buckets.B: A bucket must be a mapping",
        "  t.yaml:8:7: buckets.C.in: `nowhere` is not a context of this file. None are defined",
        "  t.yaml:8:20: buckets.C.republish_headers_only: `republish_headers_only` requires `republish`",
        "  t.yaml:10:7: mirrors.M.orign: `orign` is not a field of a mirror. Did you mean `origin`?",
        "  t.yaml:10:17: mirrors.M.storage: `storage` must be `file` or `memory`, not `floppy`",
        "  t.yaml:11:3: mirrors.A: `A` appears twice in the file: names must be unique",
    ]
    assert caught.value.hint is None


def test_document_of_another_version_is_not_read_further():
    with pytest.raises(UsageError, match=r"t\.yaml:1:1: version: This kvctl reads version 1, not `2`$"):
        read("version: 2\nbuckets: {B: {colour: red}}")


def test_document_reads_every_setting_of_a_bucket():
    topology = read(
        "version: 1\nbuckets: {B: {description: d, history: 2, ttl: 1h, marker_ttl: 5m, replicas: 3, storage: memory, "
        "max_value_size: 1KiB, max_bytes: 1MiB, compress: true, cluster: c, tag: t, metadata: {a: b}, "
        "republish: a.>=b.>, republish_headers_only: true, atomic: true}, C: {}}"
    )
    bucket = topology.buckets["B"]
    assert (bucket.tags, bucket.max_value_size, bucket.metadata) == (("t",), 1024, {"a": "b"})
    assert bucket.republish.headers_only
    assert topology.buckets["C"].history == 1


def test_document_reads_entries_of_a_bucket():
    topology = read("version: 1\nbuckets: {B: {entries: {a.b: x, c: '', d: '1e3'}}, C: {entries: }}")
    assert topology.entries == {"B": {"a.b": "x", "c": "", "d": "1e3"}}
    assert "1e3" not in repr(topology)
    assert render(topology).warnings == [
        "Configurations do not contain entries: `topology apply` creates 3 entries in `B`"
    ]


def test_document_reads_origins_in_command_line_notation():
    topology = read("version: 1\naggregates: {A: {origins: ['bucket=B,keys=NEW.>,prefix=p', C], writable: true}}")
    (stream,) = render(topology).streams
    assert [source["name"] for source in stream["sources"]] == ["KV_B", "KV_C"]
    assert stream["subjects"] == ["$KV.A.>"]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("buckets: {}", "The topology file has no `version`", "`version: 1`"),
        ("version: 2", "t.yaml:1:1: version: This kvctl reads version 1, not `2`", ""),
        ("version: 1\nbuckets:\n  B:\n    histroy: 5", "t.yaml:4:5: buckets.B.histroy: `histroy` is not", "`history`?"),
        ("version: 1\nbuckets: {B: {context: lon}}", "`context` is not a field of a bucket", "Did you mean `in`?"),
        ("version: 1\nbuckets: {B: {colour: 1}}", "`colour` is not a field of a bucket", "`atomic`, `cluster`"),
        ("version: 1\nbucket: {}", "t.yaml:2:1: bucket: `bucket` is not a field of a topology file", "`buckets`?"),
        ("version: 1\nbuckets: {B: {history: 65}}", "t.yaml:2:15: buckets.B.history: `history` must be 1 to 64", ""),
        ("version: 1\nbuckets: {B: {tags: [a, '']}}", "t.yaml:2:25: buckets.B.tags[1]: `tags` must be text", ""),
        ("version: 1\nmirrors: {M: {origin: B, keys: [a, b..c]}}", "t.yaml:2:36: mirrors.M.keys[1]: `b..c` is not", ""),
        ("version: 1\nmirrors: {M: {origin: a b}}", "t.yaml:2:15: mirrors.M.origin: `a b` is not a bucket name", ""),
        ("version: 1\nbuckets: {B: {history: many}}", "buckets.B.history: `history` must be an integer", ""),
        ("version: 1\nbuckets: {B: {ttl: soon}}", "buckets.B.ttl: ", ""),
        ("version: 1\nbuckets: {B: {compress: maybe}}", "`compress` must be true or false", ""),
        ("version: 1\nbuckets: {a b: {}}", "buckets.a b: `a b` is not a bucket name", ""),
        ("version: 1\nbuckets: [B]", "buckets: `buckets` must be a mapping of names", ""),
        ("version: 1\nmirrors: {M: {}}", "mirrors.M: The mirror has no `origin`", ""),
        ("version: 1\nmirrors: {KV_M: {origin: B}}", "mirrors.KV_M: `KV_M` is a bucket stream name", ""),
        ("version: 1\naggregates: {A: {}}", "aggregates.A: The aggregate has no `origins`", ""),
        ("version: 1\naggregates: {A: {origins: B}}", "`origins` must be a list", ""),
        (
            "version: 1\naggregates:\n  A:\n    origins:\n      - {bucket: B}\n      - {buckt: B}",
            "t.yaml:6:10: aggregates.A.origins[1].buckt: `buckt` is not a field of an origin",
            "`bucket`?",
        ),
        ("version: 1\nbuckets: {B: {}}\nmirrors: {B: {origin: C}}", "`B` appears twice in the file", ""),
        ("version: 1\ncontexts: {hub: {}}\nbuckets: {B: {in: hbu}}", "`hbu` is not a context of this file", "`hub`?"),
        ("version: 1\nbuckets: {B: {in: hub}}", "`hub` is not a context of this file", "None are defined"),
        ("- a", "A topology file must be a mapping", ""),
        ("version: 1\nbuckets: {B: {entries: {a: 5}}}", "entries.a: `a` must be text, not a number", 'it: `"5"`'),
        ("version: 1\nbuckets: {B: {entries: {'a b': x}}}", "t.yaml:2:25: buckets.B.entries.a b: `a b` is not", ""),
        ("version: 1\nbuckets: {B: {entries: [a]}}", "buckets.B.entries: `entries` must be a mapping", ""),
        ("version: 1\naggregates: {A: {origins: [B], entries: {}}}", "`entries` is not a field of an aggregate", ""),
    ],
)
def test_document_error_names_place_and_suggestion(text, message, hint):
    with pytest.raises(UsageError) as caught:
        read(text)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_hint_of_several_errors_is_printed_once():
    with pytest.raises(UsageError) as caught:
        read("version: 1\nbuckets:\n  A: {colour: 1}\n  B: {shade: 1}\n")
    assert caught.value.message.count("Use one of `atomic`") == 1
    assert "`tag`" not in caught.value.message


ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
VALIDATOR = Draft202012Validator(json_schema())

RIGHT = [
    "version: 1",
    "version: 1\nname: eu.orders\nbuckets:\nmirrors: {}",
    "version: 1\nbuckets: {B: , C: {}}",
    "version: 1\nbuckets: {B: {entries: {a.b: x, c: ''}}, C: {entries: }}",
    "version: 1\nbuckets: {B: {history: 64, ttl: 0, marker_ttl: 1h30m, max_bytes: 1024, max_value_size: 1.5MiB}}",
    "version: 1\nbuckets: {B: {tags: a, tag: [b, 5], description: 12, metadata: {a: b, c: 1, d: ''}}}",
    "version: 1\nbuckets: {B: {republish: 'a.>=b.>', republish_headers_only: true, compress: true, atomic: false}}",
    "version: 1\nmirrors: {M: {origin: B, origin_domain: hub, keys: ['a.>', b]}}",
    "version: 1\nmirrors: {M: {origin: B, origin_api: X.API, deliver: D.x, storage: memory, deny_purge: true}}",
    "version: 1\nmirrors: {M: {origin: B, compress: true, max_value_size: 1KiB, metadata: {a: b}}}",
    "version: 1\naggregates: {A: {origins: [B, 'bucket=C,keys=NEW.>', {stream: M, map: {'*.*': $2.$1}}]}}",
    "version: 1\ncontexts: {hub: {context: h, domain: d}, here: }\nbuckets: {B: {in: hub}}",
]
WRONG = [
    "",
    "[]",
    "version: 2",
    "version: true",
    "version: '1'",
    "buckets: {}",
    "version: 1\nbucket: {}",
    "version: 1\nname: a b",
    "version: 1\nbuckets: [B]",
    "version: 1\nbuckets: {a b: {}}",
    "version: 1\nbuckets: {B: 5}",
    "version: 1\nbuckets: {B: {entries: {a: 5}}}",
    "version: 1\nbuckets: {B: {entries: {a b: x}}}",
    "version: 1\nbuckets: {B: {entries: [a]}}",
    "version: 1\nbuckets: {B: {histroy: 5}}",
    "version: 1\nbuckets: {B: {history: 65}}",
    "version: 1\nbuckets: {B: {history: 0}}",
    "version: 1\nbuckets: {B: {history: many}}",
    "version: 1\nbuckets: {B: {history: true}}",
    "version: 1\nbuckets: {B: {replicas: 6}}",
    "version: 1\nbuckets: {B: {ttl: soon}}",
    "version: 1\nbuckets: {B: {ttl: 5}}",
    "version: 1\nbuckets: {B: {ttl: [1h]}}",
    "version: 1\nbuckets: {B: {max_bytes: -1}}",
    "version: 1\nbuckets: {B: {max_bytes: 0}}",
    "version: 1\nbuckets: {B: {max_bytes: 10 potatoes a day}}",
    "version: 1\nbuckets: {B: {compress: maybe}}",
    "version: 1\nbuckets: {B: {storage: floppy}}",
    "version: 1\nbuckets: {B: {description: ''}}",
    "version: 1\nbuckets: {B: {description: {a: b}}}",
    "version: 1\nbuckets: {B: {tags: {a: b}}}",
    "version: 1\nbuckets: {B: {metadata: [a]}}",
    "version: 1\nbuckets: {B: {metadata: {a: [b]}}}",
    "version: 1\nbuckets: {B: {metadata: {'': b}}}",
    "version: 1\nbuckets: {B: {republish: somewhere}}",
    "version: 1\nbuckets: {B: {republish_headers_only: true}}",
    "version: 1\nbuckets: {B: {origin: C}}",
    "version: 1\nmirrors: {M: }",
    "version: 1\nmirrors: {M: {}}",
    "version: 1\nmirrors: {KV_M: {origin: B}}",
    "version: 1\nmirrors: {M: {origin: B, keys: a..b}}",
    "version: 1\nmirrors: {M: {origin: B, deliver: D}}",
    "version: 1\nmirrors: {M: {origin: B, origin_domain: a.b}}",
    "version: 1\nmirrors: {M: {origin: B, origin_domain: hub, origin_api: X.API}}",
    "version: 1\nmirrors: {M: {origin: B, origin_api: 'X.*'}}",
    "version: 1\nmirrors: {M: {origin: B, atomic: true}}",
    "version: 1\naggregates: {A: {}}",
    "version: 1\naggregates: {A: {origins: []}}",
    "version: 1\naggregates: {A: {origins: B}}",
    "version: 1\naggregates: {A: {origins: [5]}}",
    "version: 1\naggregates: {A: {origins: [{}]}}",
    "version: 1\naggregates: {A: {origins: [{buckt: B}]}}",
    "version: 1\naggregates: {A: {origins: [{bucket: B, keys: [a.b*]}]}}",
    "version: 1\naggregates: {A: {origins: [{bucket: B, map: {'a': ''}}]}}",
    "version: 1\naggregates: {A: {origins: [{bucket: B, domain: d, api: X}]}}",
    "version: 1\naggregates: {A: {origins: [{bucket: B, deliver: D}]}}",
    "version: 1\ncontexts: {h: {context: a, url: b}}",
    "version: 1\ncontexts: {h: {server: b}}",
    "version: 1\ncontexts: {h: {domain: a, api_prefix: b}}",
]


def data(text: str) -> Any:
    return parser.parse(text.encode(), "t.yaml")


def test_schema_is_valid_json_schema():
    Draft202012Validator.check_schema(json_schema())


def test_shipped_schema_is_up_to_date():
    shipped = json.loads((ROOT / "schemas" / "topology.json").read_text(encoding="utf-8"))
    assert shipped == json_schema(), "run `kvctl topology schema > schemas/topology.json`"


@pytest.mark.parametrize("text", RIGHT)
def test_schema_accepts_everything_that_the_reader_accepts(text):
    read_topology(data(text))
    assert [error.message for error in VALIDATOR.iter_errors(data(text).data)] == []


@pytest.mark.parametrize("text", WRONG)
def test_schema_and_reader_refuse_the_same_files(text):
    with pytest.raises(UsageError):
        read_topology(data(text))
    assert not VALIDATOR.is_valid(data(text).data)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_schema_accepts_the_examples(path):
    document = parser.parse(path.read_bytes(), str(path))
    read_topology(document)
    assert [error.message for error in VALIDATOR.iter_errors(document.data)] == []


def test_schema_describes_every_field():
    silent = [
        f"{name}.{field}"
        for name, part in json_schema()["$defs"].items()
        for field, schema in part["properties"].items()
        if not schema["description"]
    ]
    assert not silent
