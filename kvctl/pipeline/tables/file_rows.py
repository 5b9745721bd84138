"""Rows in files: read the entries of an export, or the rows of a table from elsewhere: Parquet, JSON or CSV."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kvctl.errors import UsageError
from kvctl.phrases import quoted
from kvctl.pipeline.tables.stored_table import StoredTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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

_SCHEMA = "key string, value binary, revision bigint, operation string, ttl double, headers map<string, string>"
_CSV = {"header": "true", "escape": '"', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
PROBLEM = "_problem"
"""Column that is not written: the reason why its row cannot be written, if known."""
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


def read(spark: SparkSession, table: StoredTable) -> DataFrame:
    """Read the rows of an export, with columns of the data source except `created` and empty columns."""
    wanted = [name for name in READ if name in table.origin.columns]
    folder = Path(table.place.uri)
    paths = [literal(folder / part.name) for part in table.parts if part.rows]
    rows = spark.read.schema(_SCHEMA).parquet(*paths) if paths else spark.createDataFrame([], _SCHEMA)
    return rows.select(*wanted)


def read_table(spark: SparkSession, path: Path, format: str, key: str, value: str) -> DataFrame:
    """Read a table from elsewhere as `key`, `value`, `ttl` if it has one, and `_problem`. Raises UsageError.

    Column `_problem` says why a row cannot be read, or would not be written as it is.
    """
    found = _table(spark, path, format)
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


def _table(spark: SparkSession, path: Path, format: str) -> DataFrame:
    """Read the table as it is; a separate column has each malformed row."""
    reader = spark.read.format("csv" if format == "tsv" else format).options(**_table_options(format))
    found = reader.load(_inferred(path, format))
    if format not in ("csv", "tsv") or not found.columns:
        return found
    return reader.schema(found.schema.add(_BROKEN, "string")).option("enforceSchema", "false").load(literal(path))


def _inferred(path: Path, format: str) -> str:
    """Return a path whose columns Spark infers. Raises UsageError if Spark would then read it as a pattern."""
    if format != "parquet" and literal(path) != f"file:{path}":
        raise UsageError(
            f"Spark cannot read `{path}`: it interprets the name as a pattern",
            hint="Use a path without `[]{}*?` and backslashes",
        )
    return literal(path)


def format_of(path: Path) -> str | None:
    """Return the format given by the extension of a file, or of a folder's first file."""
    first = path if path.is_file() else next(data_files(path), path)
    return EXTENSIONS.get(first.suffix.lower())


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
    if type.startswith(("struct", "array", "map", "variant")):
        return f"cast(to_json({column}) as binary)"
    text = f"cast({column} as string)"
    text = f"coalesce({text}, '')" if blank else text
    plain = f"cast({text} as binary)"
    return f"case when encoding = 'base64' then try_to_binary({text}, 'base64') else {plain} end" if encoded else plain


def _table_options(format: str) -> Mapping[str, str]:
    if format == "json":
        return {"primitivesAsString": "true", "columnNameOfCorruptRecord": _BROKEN}
    if format in ("csv", "tsv"):
        separator = "\t" if format == "tsv" else ","
        return {**_CSV, "multiLine": "true", "sep": separator, "columnNameOfCorruptRecord": _BROKEN}
    return {}


def literal(path: Path) -> str:
    """Return a path as a Spark path: on this machine's file system, and not a pattern."""
    return "file:" + re.sub(r"[\\\[\]{}*?]", r"\\\g<0>", str(path))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
