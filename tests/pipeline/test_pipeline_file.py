"""Pipeline file: accepted and refused files, error positions, and a matching JSON Schema."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from kvctl.documents import parser
from kvctl.errors import UsageError
from kvctl.pipeline.pipeline_file import Bucket, Declared, Files, json_schema, read_declared

ROOT = Path(__file__).parents[2]
VALIDATOR = Draft202012Validator(json_schema())

RIGHT = [
    "version: 1\nsource: {bucket: B}\nsink: {bucket: C}",
    "version: 1\nsource: {bucket: B, filter: ['a.>', b], include_deleted: true, partitions: 4}\nsink: {path: o.csv}",
    "version: 1\nsource: {path: in, format: csv}\nselect: {key: a, value: b}\nwhere: a > 1\nsink: {bucket: C}",
    "version: 1\nsources: {a: {bucket: A}, b: {path: b.json}}\nsql: SELECT 1\nsink: {path: o.csv, mode: append}",
    "version: 1\nsource: {bucket: B}\nsql: |\n  -- why\n  (WITH x AS (SELECT 1) SELECT 1)\nsink: {bucket: C}",
]
WRONG = [
    "", "[]", "source: {bucket: B}\nsink: {bucket: C}", "version: 2\nsource: {bucket: B}\nsink: {bucket: C}",
    "version: 1\nsink: {bucket: C}", "version: 1\nsource: {bucket: B}",
    "version: 1\nsource: {bucket: B}\nsources: {a: {bucket: A}}\nsink: {bucket: C}",
    "version: 1\nsources: {}\nsql: SELECT 1\nsink: {bucket: C}",
    "version: 1\nsources: {a b: {bucket: B}}\nsql: SELECT 1\nsink: {bucket: C}",
    "version: 1\nsource: {bucket: B, path: p}\nsink: {bucket: C}", "version: 1\nsource: {}\nsink: {bucket: C}",
    "version: 1\nsource: {bucket: B, fliter: a}\nsink: {bucket: C}",
    "version: 1\nsource: {bucket: B, write_mode: put}\nsink: {bucket: C}",
    "version: 1\nsource: {bucket: B}\nsink: {bucket: C, mode: latest}",
    "version: 1\nsource: {path: p, format: xml}\nsink: {bucket: C}",
    "version: 1\nsource: {bucket: B}\nsink: {path: out.csv, mode: replace}",
]  # fmt: skip
READER_ALONE = [
    "version: 1\nsource: {bucket: B, mode: newest}\nsink: {bucket: C}",
    "version: 1\nsource: {bucket: no name}\nsink: {bucket: C}",
    "version: 1\nsource: {path: p}\nsink: {bucket: C}",
    "version: 1\nsource: {bucket: B}\nsql: DROP TABLE x\nsink: {bucket: C}",
    "version: 1\nsource: {bucket: B}\nsql: SELECT 1\nwhere: a\nsink: {bucket: C}",
    "version: 1\nsources: {a: {bucket: A}, b: {bucket: B}}\nsink: {bucket: C}",
    "version: 1\nsource: {bucket: B, url: 'nats://ann:secret@h'}\nsink: {bucket: C}",
]
"""What the schema has no words for."""


def read(text: str) -> Declared:
    return read_declared(parser.parse(text.encode(), "p.yaml"), Path("/there"))


@pytest.mark.parametrize("text", RIGHT)
def test_accepted_files_are_valid_by_the_schema(text):
    read(text)
    VALIDATOR.validate(parser.parse(text.encode(), "p.yaml").data)


def test_paths_begin_at_the_files_folder():
    options = "creds: ../a.creds, dead_letter: bad, tls_ca: /etc/ca.pem"
    sink = read(f"version: 1\nsource: {{bucket: B}}\nsink: {{bucket: C, {options}}}").sink
    assert isinstance(sink, Bucket)
    found = {name: sink.options[name] for name in ("creds", "deadLetter", "tlsCa")}
    assert found == {"creds": "/a.creds", "deadLetter": "/there/bad", "tlsCa": "/etc/ca.pem"}
    lake = read("version: 1\nsource: {bucket: B}\nsink: {bucket: C, dead_letter: 's3://lake/bad'}").sink
    assert isinstance(lake, Bucket)
    assert lake.options["deadLetter"] == "s3://lake/bad"


@pytest.mark.parametrize("text", WRONG)
def test_files_invalid_by_the_schema_are_refused(text):
    with pytest.raises(UsageError):
        read(text)
    assert not VALIDATOR.is_valid(parser.parse(text.encode(), "p.yaml").data)


@pytest.mark.parametrize("text", READER_ALONE)
def test_files_valid_by_the_schema_may_be_refused_by_the_reader(text):
    with pytest.raises(UsageError):
        read(text)


def test_options_are_those_of_the_data_source():
    found = read(RIGHT[1])
    assert found.sources == {
        "source": Bucket({"bucket": "B", "filter": "a.>,b", "includeDeleted": "true", "partitions": "4"})
    }
    assert found.sink == Files(Path("/there/o.csv"), "csv", "error")


def test_error_names_line_and_field():
    with pytest.raises(UsageError) as caught:
        read("version: 1\nsource:\n  bucket: B\n  fliter: a\nsink: {bucket: C}")
    assert caught.value.message == "p.yaml:4:3: source.fliter: `fliter` is not a field of `source`"
    assert caught.value.hint == "Did you mean `filter`?"


def test_shipped_schema_is_current():
    shipped = json.loads((ROOT / "schemas" / "pipeline.json").read_text(encoding="utf-8"))
    assert shipped == json_schema(), "run `kvctl pipeline schema > schemas/pipeline.json`"
