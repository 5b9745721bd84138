"""Run a SQL script, statement by statement, with the values of variables, on buckets and on tables by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvctl.errors import KvctlError, UsageError
from kvctl.pipeline.spark.failure import planning_error
from kvctl.pipeline.tables import file_rows
from kvctl.pipeline.tables.storage import TablePlace

if TYPE_CHECKING:
    from kvctl.pipeline.spark.engine import Engine

_VARIABLE = re.compile(r"\$\{([^${}]*)\}")
_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.)*(?:'|\Z) | "(?:[^"\\]|\\.)*(?:"|\Z) | `[^`]*(?:`|\Z)
    | (?P<comment>--[^\n]* | /\*(?!\+).*?\*/) | /\*(?!\+).*\Z | (?P<end>;)""",
    re.DOTALL | re.VERBOSE,
)
"""What is not closed extends to the end, for Spark to refuse: no character is looked at twice."""
_OF_SESSION = re.compile(r"(create\s+(or\s+replace\s+)?(global\s+)?temp(orary)?|declare|set|use)\b", re.IGNORECASE)
"""Statements that change only the session: a dry run runs them, as later ones need them."""
_VIEW = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_NO_PLAN = "Error occurred during query planning"
_POSITION = re.compile(r"[ ;]*\(?\bline (\d+),? pos \d+\)?")
"""Place of an error in a statement, as Spark names it."""


@dataclass(frozen=True, slots=True)
class Statement:
    """Statement of a script, and where it is."""

    text: str
    number: int
    line: int

    @contextmanager
    def named(self) -> Iterator[None]:
        """Name the statement and its line in KvctlErrors of the block."""
        try:
            yield
        except KvctlError as error:
            found = _POSITION.search(error.message)
            line = self.line + int(found[1]) - 1 if found else self.line
            error.message = f"Statement {self.number}, line {line}: {_POSITION.sub('', error.message)}"
            error.args = (error.message,)
            raise


@dataclass(frozen=True, slots=True)
class PlannedStatement:
    """Statement of a dry run, with Spark's plan; the plan is empty if only the session is changed."""

    statement: str
    plan: str


def statements(text: str, values: Mapping[str, str]) -> list[Statement]:
    """Return the statements of a script, without comments, and with `${name}` replaced by its value.

    Raises UsageError for variables without a value, and for values without a variable.
    """
    names = set(_VARIABLE.findall(text))
    for name in sorted(names - values.keys()):
        raise UsageError(f"Variable `${{{name}}}` has no value", hint=f"Set it with `--set {name}=VALUE`")
    for name in sorted(values.keys() - names):
        raise UsageError(f"The script has no variable `${{{name}}}`", hint="Statements get values only by variables")
    return _split(_VARIABLE.sub(lambda found: values[found[1]], text))


def _split(text: str) -> list[Statement]:
    """Split at semicolons outside of quotes and comments; lines stay where they are."""
    pieces, position = [[""]], 0
    for token in _TOKEN.finditer(text):
        pieces[-1].append(text[position : token.start()])
        position = token.end()
        if token["end"]:
            pieces.append([])
        else:
            pieces[-1].append(("\n" * token[0].count("\n") or " ") if token["comment"] else token[0])
    pieces[-1].append(text[position:])
    parts = map("".join, pieces)
    found: list[Statement] = []
    line = 1
    for part in parts:
        if part.strip():
            begun = line + part[: len(part) - len(part.lstrip())].count("\n")
            found.append(Statement(part.strip(), len(found) + 1, begun))
        line += part.count("\n")
    return found


@dataclass(frozen=True, slots=True)
class NamedTable:
    """Delta table or Parquet files that statements read by a name."""

    name: str
    place: TablePlace
    format: str


def open_tables(uris: Mapping[str, str], storage_options: Sequence[str]) -> list[NamedTable]:
    """Find the tables of names; the options are for those in object stores. Raises NotFoundError, UsageError."""
    remote = {name for name, uri in uris.items() if "://" in uri and not uri.startswith("file://")}
    if storage_options and not remote:
        raise UsageError("`--storage-option` requires `--table` with a URL of an object store")
    tables = []
    for name, uri in uris.items():
        if not _VIEW.fullmatch(name):
            raise UsageError(f"`{name}` is not a name of a table", hint="Use letters, digits and underscores")
        place = TablePlace.parse(uri, storage_options if name in remote else ())
        tables.append(NamedTable(name, place, file_rows.columnar_format(place)))
    return tables


def run(engine: Engine, script: Sequence[Statement], tables: Sequence[NamedTable] = ()) -> int:
    """Run the statements up to the first that fails, and return their number. Raises as the data source."""
    _name(engine, tables)
    for statement in script:
        engine.doing = f"statement {statement.number} of {len(script)}"
        with statement.named(), engine.explaining():
            engine.spark.sql(statement.text)
    return len(script)


def plan(engine: Engine, script: Sequence[Statement], tables: Sequence[NamedTable] = ()) -> list[PlannedStatement]:
    """Plan the statements without running them. Raises UsageError for an invalid one."""
    _name(engine, tables)
    planned = []
    for statement in script:
        with statement.named(), engine.explaining():
            planned.append(PlannedStatement(statement.text, _plan(engine, statement.text)))
    return planned


def _name(engine: Engine, tables: Sequence[NamedTable]) -> None:
    """Make the tables, as of now, views of the session."""
    for table in tables:
        with engine.explaining():
            file_rows.read_columns(engine, table.place, table.format).createOrReplaceTempView(table.name)


def _plan(engine: Engine, statement: str) -> str:
    if _OF_SESSION.match(statement):
        engine.spark.sql(statement)
        return ""
    rows = engine.spark.sql(f"explain formatted {statement}").collect()
    text = "\n".join(row.plan for row in rows).strip()
    if text.startswith(_NO_PLAN):
        raise planning_error(text.removeprefix(_NO_PLAN).lstrip(": \n"))
    return text
