"""Values decoded by a schema: what fits, and what does not is null."""

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from kvctl.errors import UsageError
from kvctl.pipeline.tables.json_values import check_type, with_json

KIND = pa.struct(
    [
        ("text", pa.string()),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("yes", pa.bool_()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("tags", pa.list_(pa.string())),
        ("inner", pa.struct([("n", pa.int64())])),
    ]
)
NOTHING = dict.fromkeys([field.name for field in KIND])


def decoded(*values: bytes | None) -> list[Any]:
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"])
    found: list[Any] = with_json(batch, KIND)["json"].to_pylist()
    return found


def test_values_of_every_type_are_decoded():
    value = b"""{"text": "\xc3\xa9", "n": 7, "x": 1, "yes": true, "at": "2026-01-31T12:00:00+02:00",
        "day": "2026-01-31", "tags": ["a", null, 1], "inner": {"n": 1, "more": 2}, "other": {}}"""
    assert decoded(value) == [
        {
            "text": "é",
            "n": 7,
            "x": 1.0,
            "yes": True,
            "at": datetime(2026, 1, 31, 10, tzinfo=UTC),
            "day": date(2026, 1, 31),
            "tags": ["a", None, "1"],
            "inner": {"n": 1},
        }
    ]


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"no json", b"7", b"[{}]", b"null", b"[" * 100_000])
def test_value_that_is_not_an_object_is_null(value):
    assert decoded(value, b"{}") == [None, NOTHING]


MISFITS = f"""
"n": 2147483648|"n": 1.5|"n": true|"n": "7"|"x": "1"|"x": 1{"0" * 400}|"yes": 1|"tags": "a"|"inner": []
|"at": "yesterday"|"at": 5|"at": "0001-01-01T00:00:00+14:00"|"day": "2026-13-01"
"""


def test_field_that_does_not_fit_is_null():
    for field in MISFITS.split("|"):
        assert decoded(f"{{{field}}}".encode()) == [NOTHING], field


def test_text_field_has_other_values_as_json():
    values = decoded(b'{"text": {"a": [1]}}', b'{"text": "\\ud800"}', b'{"text": 1.50}')
    assert [value["text"] for value in values] == ['{"a": [1]}', "?", "1.5"]


@pytest.mark.parametrize("kind", [pa.binary(), pa.map_(pa.string(), pa.string()), pa.decimal128(10, 2)])
def test_type_without_json_values_is_refused(kind):
    with pytest.raises(UsageError, match=r"Field `a.b` has type"):
        check_type(pa.struct([("a", pa.struct([("b", pa.list_(kind))]))]))
