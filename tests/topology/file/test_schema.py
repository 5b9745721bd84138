"""The JSON Schema: the reader's fields, shipped as generated, and consistent with the reader."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kvctl.documents import parser
from kvctl.errors import UsageError
from kvctl.topology.file.document import read_topology
from kvctl.topology.file.schema import json_schema

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
    "", "[]", "version: 2", "version: true", "version: '1'", "buckets: {}", "version: 1\nbucket: {}",
    "version: 1\nname: a b", "version: 1\nbuckets: [B]", "version: 1\nbuckets: {a b: {}}",
    "version: 1\nbuckets: {B: 5}", "version: 1\nbuckets: {B: {entries: {a: 5}}}",
    "version: 1\nbuckets: {B: {entries: {a b: x}}}", "version: 1\nbuckets: {B: {entries: [a]}}",
    "version: 1\nbuckets: {B: {histroy: 5}}", "version: 1\nbuckets: {B: {history: 65}}",
    "version: 1\nbuckets: {B: {history: 0}}", "version: 1\nbuckets: {B: {history: many}}",
    "version: 1\nbuckets: {B: {history: true}}", "version: 1\nbuckets: {B: {replicas: 6}}",
    "version: 1\nbuckets: {B: {ttl: soon}}", "version: 1\nbuckets: {B: {ttl: 5}}",
    "version: 1\nbuckets: {B: {ttl: [1h]}}",
    "version: 1\nbuckets: {B: {max_bytes: -1}}", "version: 1\nbuckets: {B: {max_bytes: 0}}",
    "version: 1\nbuckets: {B: {max_bytes: 10 potatoes a day}}", "version: 1\nbuckets: {B: {compress: maybe}}",
    "version: 1\nbuckets: {B: {storage: floppy}}", "version: 1\nbuckets: {B: {description: ''}}",
    "version: 1\nbuckets: {B: {description: {a: b}}}", "version: 1\nbuckets: {B: {tags: {a: b}}}",
    "version: 1\nbuckets: {B: {metadata: [a]}}", "version: 1\nbuckets: {B: {metadata: {a: [b]}}}",
    "version: 1\nbuckets: {B: {metadata: {'': b}}}", "version: 1\nbuckets: {B: {republish: somewhere}}",
    "version: 1\nbuckets: {B: {republish_headers_only: true}}", "version: 1\nbuckets: {B: {origin: C}}",
    "version: 1\nmirrors: {M: }", "version: 1\nmirrors: {M: {}}", "version: 1\nmirrors: {KV_M: {origin: B}}",
    "version: 1\nmirrors: {M: {origin: B, keys: a..b}}", "version: 1\nmirrors: {M: {origin: B, deliver: D}}",
    "version: 1\nmirrors: {M: {origin: B, origin_domain: a.b}}",
    "version: 1\nmirrors: {M: {origin: B, origin_domain: hub, origin_api: X.API}}",
    "version: 1\nmirrors: {M: {origin: B, origin_api: 'X.*'}}", "version: 1\nmirrors: {M: {origin: B, atomic: true}}",
    "version: 1\naggregates: {A: {}}", "version: 1\naggregates: {A: {origins: []}}",
    "version: 1\naggregates: {A: {origins: B}}", "version: 1\naggregates: {A: {origins: [5]}}",
    "version: 1\naggregates: {A: {origins: [{}]}}", "version: 1\naggregates: {A: {origins: [{buckt: B}]}}",
    "version: 1\naggregates: {A: {origins: [{bucket: B, keys: [a.b*]}]}}",
    "version: 1\naggregates: {A: {origins: [{bucket: B, map: {'a': ''}}]}}",
    "version: 1\naggregates: {A: {origins: [{bucket: B, domain: d, api: X}]}}",
    "version: 1\naggregates: {A: {origins: [{bucket: B, deliver: D}]}}",
    "version: 1\ncontexts: {h: {context: a, url: b}}", "version: 1\ncontexts: {h: {server: b}}",
    "version: 1\ncontexts: {h: {domain: a, api_prefix: b}}",
]  # fmt: skip


def read(text: str) -> Any:
    return parser.parse(text.encode(), "t.yaml")


def test_schema_is_valid_json_schema():
    Draft202012Validator.check_schema(json_schema())


def test_shipped_schema_is_up_to_date():
    shipped = json.loads((ROOT / "schemas" / "topology.json").read_text(encoding="utf-8"))
    assert shipped == json_schema(), "run `kvctl topology schema > schemas/topology.json`"


@pytest.mark.parametrize("text", RIGHT)
def test_schema_accepts_everything_that_the_reader_accepts(text):
    read_topology(read(text))
    assert [error.message for error in VALIDATOR.iter_errors(read(text).data)] == []


@pytest.mark.parametrize("text", WRONG)
def test_schema_and_reader_refuse_the_same_files(text):
    with pytest.raises(UsageError):
        read_topology(read(text))
    assert not VALIDATOR.is_valid(read(text).data)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_schema_accepts_the_examples(path):
    document = parser.read(str(path))
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
