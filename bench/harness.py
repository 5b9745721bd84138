"""The harness: one server, seeded buckets, both trees of kvctl, and the results of the cases."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from bench import units
from bench.case import BEFORE, Case, Comparison, Prepared, Result, Table
from bench.measure import AtMost, Contender, Run, in_turn, run
from kvctl.server import Server

ROOT = Path(__file__).parent.parent
WORKS = ROOT / "bench" / "works"
NATS = shutil.which("nats") or ""
Opened = TypeVar("Opened")
_COMPILE = """import compileall, importlib.util
for name in ("kvctl", "pyspark_kvctl"):
    compileall.compile_dir(importlib.util.find_spec(name).submodule_search_locations[0], quiet=1)
"""


@dataclass(frozen=True)
class Tree:
    """A checkout of kvctl with the interpreter it is installed for."""

    name: str
    python: str
    works: Path = WORKS
    """The scripts of its commit, which import modules by the names that they have there."""

    @property
    def kvctl(self) -> str:
        """The command."""
        return str(Path(self.python).with_name("kvctl"))

    @classmethod
    def at(cls, name: str, folder: Path) -> Tree:
        """Return the checkout in a folder, whose `.venv` it is installed in. Raises FileNotFoundError."""
        python = folder.resolve() / ".venv" / "bin" / "python"
        if not python.with_name("kvctl").exists():
            raise FileNotFoundError(f"{python.with_name('kvctl')} does not exist")
        return cls(name, str(python), folder.resolve() / "bench" / "works")

    def compile(self) -> None:
        """Write the byte code of its modules, so that no measured process compiles them."""
        run((self.python, "-I", "-c", _COMPILE))


class Bench:
    """What cases are prepared with."""

    def __init__(
        self,
        server: Server,
        *,
        place: Path,
        before: Tree | None = None,
        rounds: int = 0,
        quick: bool = False,
        ten_million: bool = False,
    ) -> None:
        self.server, self.url, self.place = server, server.url, place
        self.ours, self.before = Tree("kvctl", sys.executable), before
        self.rounds, self.quick, self.ten_million = rounds, quick, ten_million
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.env |= {"NATS_URL": self.url, "XDG_CONFIG_HOME": str(place / "config"), "XDG_CACHE_HOME": str(place)}
        self.loops: list[float] = []
        self.trips: list[float] = []
        self._made: set[str] = set()
        self._stack = ExitStack()

    # -- cases

    def measure(self, case: Case) -> Result:
        """Prepare and run a case; a quick run checks no aims. Raises RuntimeError if its preparation fails."""
        begun, count = time.perf_counter(), self.sized(case.count)
        print(f"{case.name}: {case.title(count)}", file=sys.stderr, flush=True)
        if not self.quick or not self.loops:
            self.take_units()
        with ExitStack() as self._stack:
            prepared = case.prepare(self, count)
            if self.quick:
                case, prepared = replace(case, aims=()), _quick(prepared)
            if isinstance(prepared, Table):
                found: Comparison | Table = prepared
            else:
                rounds, warmup = (1, 0) if self.quick else (self.rounds or case.rounds, case.warmup)
                found = Comparison(in_turn(prepared, rounds, warmup))
        return Result(case, case.title(count), found, time.perf_counter() - begun)

    def take_units(self) -> None:
        """Measure the machine's units once more."""
        self.loops.append(min(units.loop() for _ in range(3)))
        self.trips.append(units.trip(self.server.url))

    def sized(self, count: int) -> int:
        """Return the count, or a hundredth of it in a quick run."""
        return max(count // 100, min(count, 100)) if self.quick else count

    def open(self, manager: AbstractContextManager[Opened]) -> Opened:
        """Enter a context manager until the case ends."""
        return self._stack.enter_context(manager)

    def folder(self) -> Path:
        """Return an empty folder that is removed when the case ends."""
        return Path(self.open(tempfile.TemporaryDirectory(dir=self.place)))

    # -- contenders

    @property
    def trees(self) -> tuple[Tree, ...]:
        """Our tree, and that of --before."""
        return (self.ours, self.before) if self.before else (self.ours,)

    def both(self, name: str, make: Callable[[Tree], Contender], *, slow: bool = False) -> dict[str, Contender]:
        """Return one contender by its name and, with --before, the same one of that tree, once if it is slow."""
        before = {BEFORE: make(self.before)} if self.before else {}
        if slow:
            before = {name: AtMost(1, contender) for name, contender in before.items()}
        return {name: make(self.ours), **before}

    def kvctl(self, *words: str, **options: Any) -> dict[str, Contender]:
        """Return the complete process `kvctl WORDS` of both trees."""
        name = " ".join(("kvctl", words[0], *words[1:2])) if words[0] in GROUPS else f"kvctl {words[0]}"
        return self.both(name, lambda tree: lambda: self.process(tree.kvctl, *words, **options))

    def nats(self, name: str, *words: str) -> dict[str, Contender]:
        """Return the complete process `nats WORDS`, if it is installed."""
        return {name: lambda: self.process(NATS, *words)} if NATS else {}

    def work(self, script: str, work: str, *arguments: object, **where: Any) -> Contender:
        """Return a contender that measures itself: `bench/works/SCRIPT.py WORK URL ARGUMENT...`; `where` as `tell`."""
        return lambda: _taken(self.tell(script, work, *arguments, **where))

    def tell(
        self, script: str, work: str, *arguments: object, tree: Tree | None = None, url: str = "", **options: Any
    ) -> Any:
        """Run a tree's script that prints its result as JSON, with the process's own peak memory as `peak`."""
        tree = tree or self.ours
        command = (tree.python, str(tree.works / f"{script}.py"), work, url or self.url, *map(str, arguments))
        done = self.process(*command, keep=True, **{"timeout": 900, **options})
        return {"peak": done.peak, **json.loads(done.output.splitlines()[-1])}

    def process(self, *command: str, **options: Any) -> Run:
        """Run a command against the server, not in a checkout: Spark's workers import from the current folder first."""
        return run(command, **{"env": self.env, "cwd": self.place, **options})

    # -- fixtures

    def once(self, name: str, make: Callable[[], object]) -> str:
        """Return the fixture of this name, created at its first use."""
        if name not in self._made:
            make()
            self._made.add(name)
        return name

    def bucket(self, name: str, keys: int = 0) -> str:
        """Return a bucket with this number of keys of 20 bytes and values of 100."""

        def make() -> None:
            self.process(self.ours.kvctl, "bucket", "add", name)
            if keys:
                self.tell("bucket", "seed", name, keys)

        return self.once(name, make)

    def keys(self, count: int) -> str:
        """Return the bucket with this number of keys that all readers share."""
        return self.bucket(f"K{count}", count)

    def rows(self, count: int, longest: int = 0) -> str:
        """Return a file with this number of rows in NDJSON, values of 100 bytes, or of 10 to `longest` at random."""
        path = self.place / f"{count}-{longest}.ndjson"

        def make() -> None:
            dice = random.Random(1)
            sizes = (dice.randint(10, longest) if longest else 100 for _ in range(count))
            with path.open("w") as file:
                file.writelines(f'{{"key": "k.{n:018d}", "value": "{"v" * size}"}}\n' for n, size in enumerate(sizes))

        self.once(path.name, make)
        return str(path)


GROUPS = {"table", "repo", "pipeline", "topology", "bucket", "mirror"}


def split(work: Callable[[], dict[str, Any]], *names: str) -> dict[str, Contender]:
    """Return contenders that one run measures together: the first runs it, the others report from it."""
    last: dict[str, Any] = {}

    def contender(name: str) -> Contender:
        def one() -> Run:
            if name == names[0]:
                last.clear()
                last.update(work())
            if name not in last:
                raise RuntimeError("not measured")
            return _taken(last[name])

        return one

    return {name: contender(name) for name in names}


def _quick(prepared: Prepared) -> Prepared:
    """Leave out slow contenders, and the verdicts of a table."""
    if isinstance(prepared, Table):
        return replace(prepared, verdicts=[])
    return {name: one for name, one in prepared.items() if not isinstance(one, AtMost)}


def _taken(told: dict[str, Any]) -> Run:
    return replace(Run(0), **{name: told[name] for name in ("seconds", "cpu", "peak") if name in told})
