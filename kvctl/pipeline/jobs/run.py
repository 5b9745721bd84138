"""Run a SQL script, statement by statement, with the values of variables; check that Spark and its workers run."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import kvctl
from kvctl.errors import KvctlError, UsageError
from kvctl.pipeline.spark import tasks
from kvctl.pipeline.spark.java import find_java

if TYPE_CHECKING:
    from kvctl.pipeline.spark.engine import Engine


_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `[^`]*` | (?P<comment>--[^\n]* | /\*(?!\+).*?\*/) | (?P<end>;)""",
    re.DOTALL | re.VERBOSE,
)
_OF_SESSION = re.compile(r"(create\s+(or\s+replace\s+)?(global\s+)?temp(orary)?|declare|set|use)\b", re.IGNORECASE)
"""Statements that change only the session: a dry run runs them, as later ones need them."""
_NO_PLAN = "Error occurred during query planning"


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """Result of a run."""

    statements: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PlannedStatement:
    """Statement of a dry run, with Spark's plan; the plan is empty if only the session is changed."""

    statement: str
    plan: str


def statements(text: str, values: Mapping[str, str]) -> list[str]:
    """Return the statements of a script, without comments, and with `${name}` replaced by its value.

    Raises UsageError for variables without a value, and for values without a variable.
    """
    names = set(_VARIABLE.findall(text))
    for name in sorted(names - values.keys()):
        raise UsageError(f"Variable `${{{name}}}` has no value", hint=f"Set it with `--set {name}=VALUE`")
    for name in sorted(values.keys() - names):
        raise UsageError(f"The script has no variable `${{{name}}}`", hint="Statements get values only by variables")
    return _split(_VARIABLE.sub(lambda found: values[found[1]], text))


def _split(text: str) -> list[str]:
    """Split at semicolons outside of quotes and comments."""
    parts, position = [""], 0
    for token in _TOKEN.finditer(text):
        parts[-1] += text[position : token.start()]
        position = token.end()
        if token["end"]:
            parts.append("")
        else:
            parts[-1] += " " if token["comment"] else token[0]
    parts[-1] += text[position:]
    return [part.strip() for part in parts if part.strip()]


def run(engine: Engine, script: Sequence[str]) -> ScriptRun:
    """Run the statements; ends with the first that fails. Raises KvctlError, and as the data source."""
    begun = time.monotonic()
    with engine.explaining():
        for number, statement in enumerate(script, 1):
            engine.doing = f"statement {number} of {len(script)}"
            engine.spark.sql(statement)
    return ScriptRun(len(script), time.monotonic() - begun)


def plan(engine: Engine, script: Sequence[str]) -> list[PlannedStatement]:
    """Plan the statements without running them. Raises UsageError for an invalid one."""
    with engine.explaining():
        return [PlannedStatement(statement, _plan(engine, statement)) for statement in script]


def _plan(engine: Engine, statement: str) -> str:
    if _OF_SESSION.match(statement):
        engine.spark.sql(statement)
        return ""
    from kvctl.pipeline.spark.failure import planning_error

    rows = engine.spark.sql(f"explain formatted {statement}").collect()
    text = "\n".join(row.plan for row in rows).strip()
    if text.startswith(_NO_PLAN):
        raise planning_error(text.removeprefix(_NO_PLAN).lstrip(": \n"))
    return text


TASKS = 4
"""Number of tasks run: on a small cluster, each worker gets one."""


@dataclass(frozen=True, slots=True, order=True)
class Worker:
    """Machine that runs tasks: its Python and its kvctl."""

    host: str
    python: str
    kvctl: str


@dataclass(frozen=True, slots=True)
class SparkCheck:
    """Versions and workers of a session."""

    spark: str
    java: str | None
    """None behind a Connect server, which does not report it."""
    master: str | None
    workers: tuple[Worker, ...]


def check(engine: Engine) -> SparkCheck:
    """Run a task on the workers. Raises KvctlError if kvctl is missing or has another version."""
    engine.doing = "asking the workers"
    workers = tuple(sorted(set(tasks.over_items(engine, range(TASKS), _answer))))
    for worker in workers:
        if worker.kvctl != kvctl.__version__:
            raise KvctlError(
                f"The workers on `{worker.host}` have kvctl {worker.kvctl}, but this is {kvctl.__version__}",
                hint="Install the same version on both",
            )
    if engine.target.remote:
        return SparkCheck(engine.spark.version, None, None, workers)
    return SparkCheck(engine.context.version, find_java().build, engine.context.master, workers)


def _answer(_: int) -> Iterator[Worker]:
    """Report this worker's versions (runs on a worker)."""
    from kvctl.pipeline.read import arrow_decoder  # raises the errors that a read would raise

    assert arrow_decoder
    yield Worker(platform.node(), platform.python_version(), kvctl.__version__)
