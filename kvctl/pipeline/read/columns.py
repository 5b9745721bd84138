"""Columns of the data source: their names and types, and the schema of a read."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kvctl.errors import UsageError
from kvctl.suggest import did_you_mean

TYPES: dict[str, DataType] = {
    "key": StringType(),
    "value": BinaryType(),
    "revision": LongType(),
    "created": TimestampType(),
    "operation": StringType(),
    "headers": MapType(StringType(), StringType()),
    "ttl": DoubleType(),
    "bucket": StringType(),
    "origin": StringType(),
}
"""All columns; headers are the writer's own, ttl is in seconds, created in UTC to the microsecond."""
ROW_HEADER = b"Kvctl-Row"
"""Header with the id of a row that the pipeline wrote, which is not among an entry's headers."""
PROBLEM = "_problem"
"""Column that is not written: the reason why its row cannot be written, if known."""
DEFAULT = ("key", "value", "revision", "created", "operation")
ALWAYS = ("key", "revision", "created", "operation", "bucket")
"""Columns that are never null."""


def schema_of(names: Sequence[str], *more: str) -> StructType:
    """Return the schema of these columns, by default of DEFAULT, and of `more` ones. Raises UsageError."""
    for name in names:
        _check_name(name, "The option `columns`")
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice:
        raise UsageError(f"The option `columns` names `{twice}` twice")
    chosen = dict.fromkeys((*(names or DEFAULT), *more))
    return StructType([StructField(name, TYPES[name], name not in ALWAYS) for name in chosen])


def check_schema(schema: StructType) -> None:
    """Raises UsageError for an unknown column, or one of another type."""
    for field in schema.fields:
        _check_name(field.name, "The schema")
        kind, wanted = field.dataType.simpleString(), TYPES[field.name].simpleString()
        if kind != wanted:
            raise UsageError(
                f"Column `{field.name}` has type {wanted}, not {kind}",
                hint=f"Use `{field.name} {wanted}` in the schema, and cast it afterwards",
            )


def _check_name(name: str, where: str) -> None:
    if name not in TYPES:
        hint = did_you_mean(name, TYPES, f"Columns are {', '.join(TYPES)}")
        raise UsageError(f"{where} has an unknown column `{name}`", hint=hint)
