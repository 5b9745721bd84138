"""Rows in files: read the entries of a table of kvctl, or the rows of one from elsewhere: Delta, Parquet, JSON or CSV.

Tasks read Delta tables, and Parquet in object stores, with pyarrow. Other files are read by Spark, which needs file
systems of its own for object stores.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from kvctl.errors import KvctlError, NotFoundError, UsageError
from kvctl.phrases import quoted
from kvctl.pipeline.error_transport import crossing
from kvctl.pipeline.read.columns import PROBLEM
from kvctl.pipeline.spark.tasks import TaskRows
from kvctl.pipeline.tables import stored_table
from kvctl.pipeline.tables.delta import KvTable
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.pipeline.tables.stored_table import StoredTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from kvctl.pipeline.spark.engine import Engine

READ = ("key", "value", "revision", "operation", "ttl", "headers")
"""Columns that are read back."""
EXTENSIONS = {
    ".parquet": "parquet",
    ".json": "json",
    ".ndjson": "json",
    ".jsonl": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
}
FORMATS = tuple(dict.fromkeys(("delta", *EXTENSIONS.values())))
"""Forms of tables from elsewhere."""

ROWS = 10_000
"""Maximum rows of a batch."""
_HEADING_CHARACTERS = 1 << 20
SHARE_BYTES = 32 << 20
"""Bytes of a file for each task."""
_CSV = {"header": "true", "escape": '"', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
_BROKEN = "_kvctl_broken"
_MALFORMED = {
    "json": "The line is not a JSON object",
    "csv": "The number of fields differs from the header",
    "tsv": "The number of fields differs from the header",
}
_NOT_BASE64 = "'The value is not base64'"
_UNKNOWN_ENCODING = "concat('`', encoding, '` is not an encoding: use utf-8 or base64')"
_TTL = "if(lower(cast(ttl as string)) = 'never', double('Infinity'), try_cast(ttl as double))"
_NO_TTL = "concat('`', ttl, '` is not a ttl in seconds')"


@dataclass(frozen=True, slots=True)
class FileShare:
    """Share of a task in a data file of a table: every `of`-th row group, from `number` on."""

    place: TablePlace
    name: str
    number: int
    of: int


def shares(table: StoredTable) -> list[FileShare]:
    """Return the tasks' shares in the rows of a table of kvctl."""
    counts = [(part.name, -(-part.bytes // SHARE_BYTES)) for part in table.parts]
    return [FileShare(table.place, name, number, count) for name, count in counts for number in range(count)]


def read_share(share: FileShare, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield rows of a table of kvctl, with these columns. Raises KvctlError."""
    from kvctl.pipeline.tables import parts

    with crossing(), share.place.explained("read"), share.place.opened(share.name) as stream:
        yield from parts.rows_in(stream, columns, ROWS, number=share.number, of=share.of)


def rows_of(table: StoredTable, columns: Sequence[str] | None = None) -> TaskRows:
    """Return the rows of a table of kvctl, with these columns, or those of the data source that are written."""
    from pyspark.sql.types import StructField, StructType

    from kvctl.pipeline.read.columns import TYPES

    if columns is None:  # only a history needs revisions
        without = () if table.origin.history else ("revision",)
        columns = [name for name in READ if name in table.origin.columns and name not in without]
    schema = StructType([StructField(name, TYPES[name]) for name in columns])
    return TaskRows(shares(table), partial(read_share, columns=columns), schema)


def columnar_format(place: TablePlace) -> str:
    """Return `delta` or `parquet`. Raises NotFoundError without a file, UsageError for other formats."""
    if place.path is not None and not place.path.exists():
        raise NotFoundError(f"`{place}` does not exist")
    format = format_of(place) or ("parquet" if place.path is None else None)
    if format not in ("delta", "parquet"):
        raise UsageError(f"`{place}` is neither a Delta table nor Parquet files")
    return format


def read_columns(engine: Engine, place: TablePlace, format: str) -> DataFrame:
    """Read a table from elsewhere, with its own columns. Raises UsageError, ConflictError, KvctlError."""
    from pyspark.errors import AnalysisException

    if format != "delta" and not (format == "parquet" and place.path is None):
        try:
            return _table(engine.spark, place, format)
        except AnalysisException as error:
            if "PARQUET_TYPE_" not in str(error):  # such as a time, or one in nanoseconds
                raise
    return _read_files(engine, place, format)


class _FileItem(NamedTuple):
    """File that a task reads by itself, without the log of its table."""

    place: TablePlace
    path: str
    format: Any
    partition: Any
    """Expression that holds in its rows, with the values of partitions."""
    schema: pa.Schema
    wanted: pa.Schema
    """With the types that Spark has."""


def _read_files(engine: Engine, place: TablePlace, format: str) -> DataFrame:
    """Read a Delta table, or Parquet files of an object store, file by file. Raises ConflictError, KvctlError."""
    from pyspark.sql.pandas.types import from_arrow_schema

    inside, found = _dataset(place, format)
    schema = _spark_schema(found.schema)
    items = [
        _FileItem(inside, file.path, file.format, file.partition_expression, found.schema, schema)
        for file in found.get_fragments()
    ]
    return TaskRows(items, _read_file, from_arrow_schema(schema)).frame(engine)


def _read_file(item: _FileItem) -> Iterator[pa.RecordBatch]:
    with crossing(), item.place.explained("read"):
        file = item.format.make_fragment(item.path, item.place.file_system(), item.partition)
        for batch in file.to_batches(item.schema, batch_size=ROWS):
            yield batch.cast(item.wanted, safe=False)


def _spark_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with types that Spark has: times in microseconds, text for what it has no type for."""
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

    def known(kind: pa.DataType) -> pa.DataType:
        try:
            return to_arrow_type(from_arrow_type(kind), timezone="UTC")
        except (PySparkException, ValueError):
            return pa.string()

    return pa.schema([(field.name, known(field.type)) for field in schema])


def _dataset(place: TablePlace, format: str) -> tuple[TablePlace, Any]:
    """Return the rows of a Delta table, or of Parquet files in or at a place, and the place that has their paths."""
    from pyarrow import dataset

    if format == "delta":
        if (table := KvTable.find(place)) is None:
            raise UsageError(f"`{place}` is not a Delta table")
        return place, table.dataset()
    folder, _, name = place.uri.rpartition("/")
    if EXTENSIONS.get(PurePosixPath(name).suffix) == "parquet":
        place, names = TablePlace(folder, place.options), [name]
    elif not (names := sorted(name for name in place.listing() if not stored_table.hidden(name))):
        raise NotFoundError(f"`{place}` has no files")
    with place.explained("read"):
        return place, dataset.dataset(names, filesystem=place.file_system(), format="parquet")


def read_table(engine: Engine, place: TablePlace, format: str, key: str, value: str) -> DataFrame:
    """Read a table from elsewhere as `key`, `value`, `ttl` if it has one, and `_problem`. Raises UsageError.

    Column `_problem` says why a row cannot be read, or would not be written as it is.
    """
    found = read_columns(engine, place, format)
    types = dict(found.dtypes)
    broken = types.pop(_BROKEN, None) is not None
    for name, option in ((key, "--key"), (value, "--value")):
        if name not in types:
            shown = quoted(types)
            there = f"Set `{option}` to one of {shown}" if shown else "The table has no columns"
            raise UsageError(f"The table has no column `{name}`", hint=there)
    encoded = types.get("encoding") == types[value] == "string" and "encoding" not in (key, value)
    has_ttl = "ttl" in types and "ttl" not in (key, value)
    name, text = f"cast({_quoted(key)} as string)", f"cast({_quoted(value)} as string)"
    problems = {
        f"{_BROKEN} is not null": f"'{_MALFORMED[format]}'" if broken else "",
        f"not is_valid_utf8({name})": "'The key is not UTF-8'" if types[key] == "binary" else "",
        "encoding not in ('utf-8', 'base64')": _UNKNOWN_ENCODING if encoded else "",
        f"encoding = 'base64' and {text} is not null and try_to_binary({text}, 'base64') is null": _NOT_BASE64
        if encoded
        else "",
        f"ttl is not null and {_TTL} is null": _NO_TTL if has_ttl else "",
    }
    cases = " ".join(f"when {condition} then {problem}" for condition, problem in problems.items() if problem)
    return found.selectExpr(
        f"case when is_valid_utf8({name}) then {name} end as key",
        f"{_value(_quoted(value), types[value], encoded=encoded, blank=format in ('csv', 'tsv'))} as value",
        *([f"{_TTL} as ttl"] if has_ttl else []),
        *([f"case {cases} end as {PROBLEM}"] if cases else []),
    )


def _table(spark: SparkSession, place: TablePlace, format: str) -> DataFrame:
    """Read the table as it is; a separate column has each malformed row. Nested JSON is its text, not parsed."""
    from pyspark.sql.types import StringType, StructField, StructType

    reader = spark.read.format("csv" if format == "tsv" else format).options(**_table_options(format))
    found = reader.load(_inferred(place, format))
    if format == "json" and any(_nested(type) for _, type in found.dtypes):
        texts = [StructField(field.name, StringType()) for field in found.schema]
        return reader.schema(StructType(texts)).load(literal(place))
    if not found.columns or format not in ("csv", "tsv"):
        return found
    return reader.schema(found.schema.add(_BROKEN, "string")).option("enforceSchema", "false").load(literal(place))


def _inferred(place: TablePlace, format: str) -> str:
    """Return a path whose columns Spark infers. Raises UsageError if Spark would then read it as a pattern."""
    if place.path is not None and format != "parquet" and literal(place) != f"file:{place}":
        raise UsageError(
            f"Spark cannot read `{place}`: it interprets the name as a pattern",
            hint="Use a path without `[]{}*?` and backslashes",
        )
    return literal(place)


def format_of(place: TablePlace) -> str | None:
    """Return `delta` for a table with a log, else the format given by the extension of a file, or a folder's first."""
    path = place.path
    if (path is None or path.is_dir()) and KvTable.find(place) is not None:
        return "delta"
    if path is None:
        return EXTENSIONS.get(PurePosixPath(place.uri).suffix.lower())
    first = path if path.is_file() else next(data_files(path), path)
    return EXTENSIONS.get(first.suffix.lower())


def column_names(place: TablePlace, format: str) -> list[str]:
    """Return the columns of files from elsewhere, as their first line or schema has them; empty if not known."""
    path = place.path
    with suppress(KvctlError, OSError, ValueError, TypeError, RecursionError, csv.Error):
        if format == "parquet":
            return list(_dataset(place, format)[1].schema.names)
        first = path if path is None or path.is_file() else next(data_files(path), None)
        if first is not None:
            with first.open(encoding="utf-8", newline="") as file:
                line = file.readline(_HEADING_CHARACTERS)
            if format == "json":
                return list(dict(json.loads(line)))
            return next(csv.reader([line], delimiter="\t" if format == "tsv" else ","), [])
    return []


def data_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that readers take for data: no name, or folder name, begins with `_` or `.`."""
    yield from _data_files(folder, frozenset({folder.resolve()}))


def _data_files(folder: Path, above: frozenset[Path]) -> Iterator[Path]:
    """Yield them through linked folders, too, as Spark does; links to folders above are not followed."""
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith(("_", ".")))
    except OSError:
        return
    yield from (path for path in paths if not path.is_dir())
    for path in paths:
        if path.is_dir() and (place := path.resolve()) not in above:
            yield from _data_files(path, above | {place})


def _value(column: str, type: str, *, encoded: bool, blank: bool) -> str:
    """Return a column of any type as bytes; an empty field of a table is an empty value."""
    if type == "binary":
        return column
    if _nested(type):
        return f"cast(to_json({column}, map('ignoreNullFields', 'false')) as binary)"
    text = f"cast({column} as string)"
    text = f"coalesce({text}, '')" if blank else text
    plain = f"cast({text} as binary)"
    return f"case when encoding = 'base64' then try_to_binary({text}, 'base64') else {plain} end" if encoded else plain


def _nested(type: str) -> bool:
    return type.startswith(("struct", "array", "map", "variant"))


def _table_options(format: str) -> Mapping[str, str]:
    if format == "json":
        return {"primitivesAsString": "true", "columnNameOfCorruptRecord": _BROKEN}
    if format in ("csv", "tsv"):
        separator = "\t" if format == "tsv" else ","
        return {**_CSV, "multiLine": "true", "sep": separator, "columnNameOfCorruptRecord": _BROKEN}
    return {}


def literal(place: TablePlace) -> str:
    """Return a place as Spark names it: an escaped path of this machine, or a URL for Hadoop."""
    if place.path is None:
        return re.sub("^s3:", "s3a:", place.uri)
    return "file:" + re.sub(r"[\\\[\]{}*?]", r"\\\g<0>", place.uri)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
