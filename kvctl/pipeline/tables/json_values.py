"""Values decoded into a column: JSON by a schema, as Spark's `from_json` reads it.

What does not fit the schema is null: a value that is not an object, a field of another type. The bytes stay beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.types as types

from kvctl.errors import UsageError

COLUMN = "json"
"""Column of the decoded values: a struct, so that its fields have any names."""

Reader = Callable[[Any], Any]


def with_json(batch: pa.RecordBatch, kind: pa.StructType) -> pa.RecordBatch:
    """Return the batch with its decoded values."""
    read = _reader(kind)
    decoded = pa.array([read(_loaded(value)) for value in batch["value"].to_pylist()], kind)
    return batch.append_column(pa.field(COLUMN, kind), decoded)


def check_type(kind: pa.DataType, name: str = "") -> None:
    """Raises UsageError for a type that JSON has no values of, and for fields that only case distinguishes."""
    if types.is_struct(kind):
        if len({field.name.lower() for field in kind}) < kind.num_fields:
            raise UsageError(f"The schema of the values has several fields of one name: `{kind}`")
        for field in kind:
            check_type(field.type, f"{name}.{field.name}".lstrip("."))
    elif types.is_list(kind):
        check_type(kind.value_type, name)
    else:
        _reader(kind, name)


def _loaded(value: bytes | None) -> Any:
    try:
        return None if value is None else json.loads(value)
    except (ValueError, RecursionError):
        return None


def _reader(kind: pa.DataType, name: str = "") -> Reader:
    """Return the function from a value of `json` to one of the type."""
    if types.is_struct(kind):
        return partial(_struct, {field.name: _reader(field.type, field.name) for field in kind})
    if types.is_list(kind):
        return partial(_list, _reader(kind.value_type, name))
    if types.is_integer(kind):
        return partial(_integer, 1 << (kind.bit_width - 1))
    for known, read in _SCALARS:
        if known(kind):
            return read
    raise UsageError(
        f"Field `{name}` has type {kind}, which JSON values cannot have",
        hint="Use string, boolean, integers, float, double, date, timestamp, array<...> and struct<...>",
    )


def _struct(readers: dict[str, Reader], value: Any) -> Any:
    if not isinstance(value, dict):
        return None
    return {name: read(value.get(name)) for name, read in readers.items()}


def _list(read: Reader, value: Any) -> Any:
    return [read(item) for item in value] if isinstance(value, list) else None


def _integer(bound: int, value: Any) -> int | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and -bound <= value < bound
    return value if fits else None


def _float(value: Any) -> float | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return float(value) if fits else None
    except OverflowError:
        return None


def _text(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()


def _time(value: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value)
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        return None


def _date(value: Any) -> date | None:
    try:
        return date.fromisoformat(value)
    except (ValueError, TypeError):
        return None


_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], Reader], ...] = (
    (lambda kind: types.is_string(kind) or types.is_large_string(kind), _text),
    (types.is_boolean, lambda value: value if isinstance(value, bool) else None),
    (types.is_floating, _float),
    (types.is_timestamp, _time),
    (types.is_date, _date),
)
