"""The shape of the source: who may import whom, what heavy libraries stay behind which door, docstrings, names."""

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "kvctl"
TREES = {
    path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))
}
MODULES = list(TREES)

LINES = (
    ("errors",),
    ("quantities", "documents", "tokens", "atomic_file"),
    ("addresses",),
    ("contexts",),
    ("connection",),
    ("jetstream",),
    ("kv",),
    ("topology", "tables", "versions"),
    ("pipeline", "doctor"),
    ("cli",),
)
"""A part imports from the lines above its own, never from its own line or below."""
BESIDE = {"render": {"errors", "quantities"}, "server": {"errors", "contexts"}}
"""Parts off the main line, which only `cli` imports, and what they may import."""
PART_OF = dict.fromkeys(("wire", "handshake", "deferred", "dial", "outage"), "connection") | {"labs": "server"}
"""Modules that belong to a part under another name."""

DOORS = {
    "nats": ("connection.py", "dial.py", "jetstream/"),
    "typer": ("cli/",),
    "rich": ("render/",),
    "yaml": ("documents.py", "render/formats.py", "render/yaml_text.py"),
    "pyspark": ("pipeline/",),
    "pyarrow": ("pipeline/",),
    "pandas": ("pipeline/",),
    "py4j": ("pipeline/",),
    "grpc": ("pipeline/",),
}
"""The only places that may import a library."""

PURE = {"errors.py", "quantities.py", "kv/names.py", "kv/config.py", "kv/fields.py", "kv/kinds.py", "render/view.py"}
"""Plain values in, plain values out; modules that say `[pure]` in their docstring join them."""
INPUT_OUTPUT = {
    "asyncio", "concurrent", "fcntl", "http", "io", "os", "pathlib", "select", "shutil", "signal", "socket", "ssl",
    "subprocess", "sys", "tempfile", "threading", "urllib", *DOORS,
}  # fmt: skip

PROTOCOL_METHODS = {
    method.name
    for tree in TREES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef) and "Protocol" in {getattr(base, "id", "") for base in node.bases}
    for method in node.body
    if isinstance(method, ast.FunctionDef) and ast.get_docstring(method)
}
EMPTY_WORDS = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
LONGEST_FUNCTION = 45
HOT = {"wire.py: parse"}
"""Runs for every message, where a call costs more than what it does."""


def test_imports_run_one_way() -> None:
    wrong = {
        str(module): sorted(more)
        for module in MODULES
        if len(module.parts) > 1 or not module.stem.startswith("__")
        if (more := _own_imports(module) - _allowed_for(_part_of(str(module.with_suffix("")))))
    }
    assert not wrong


@pytest.mark.parametrize("library", DOORS)
def test_a_library_comes_in_by_its_own_door(library: str) -> None:
    users = [str(module) for module in MODULES if library in {name.split(".")[0] for name in _imports_of(module)}]
    assert not [user for user in users if not user.startswith(DOORS[library])]


def test_the_package_that_spark_looks_for_holds_nothing_of_its_own() -> None:
    tree = ast.parse((PACKAGE.parent / "pyspark_kvctl" / "__init__.py").read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in found] == [
        "from contextlib import suppress",
        "from kvctl.pipeline.data_source import KvDataSource as DefaultSource",
    ]


def test_pure_modules_touch_nothing_outside() -> None:
    pure = [module for module in MODULES if str(module) in PURE or "[pure]" in _docstring(TREES[module])]
    touched = {str(module): INPUT_OUTPUT & {name.split(".")[0] for name in _imports_of(module)} for module in pure}
    assert len(pure) >= len(PURE)
    assert not {module: libraries for module, libraries in touched.items() if libraries}


def test_modules_have_telling_names() -> None:
    assert not [module for module in MODULES if EMPTY_WORDS & {*module.with_suffix("").parts, *module.stem.split("_")}]


def test_everything_public_has_a_docstring() -> None:
    silent = [f"{module}: {name}" for module in MODULES for name in _undocumented(module)]
    assert not silent


def test_functions_fit_on_a_screen() -> None:
    functions = (
        (f"{module}: {node.name}", _length(node))
        for module in MODULES
        for node in ast.walk(TREES[module])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert not [(name, lines) for name, lines in functions if lines > LONGEST_FUNCTION and name not in HOT]


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _imports_of(module: Path) -> Iterator[str]:
    """Dotted names of everything that a module imports: at the top, in functions, and for typing alone."""
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{module} imports relatively: say `from kvctl...`"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _own_imports(module: Path) -> set[str]:
    """The other parts of kvctl that a module imports."""
    known = {*(part for line in LINES for part in line), *BESIDE, *PART_OF}
    found = {name.split(".")[1] for name in _imports_of(module) if name.startswith("kvctl.")}
    return {_part_of(name) for name in found & known} - {_part_of(str(module.with_suffix("")))}


def _part_of(path: str) -> str:
    """The part of the house that `errors` or `kv/bucket` stands in."""
    first = path.split("/")[0]
    return PART_OF.get(first, first)


def _allowed_for(part: str) -> set[str]:
    if part in BESIDE:
        return BESIDE[part]
    above: set[str] = set()
    for line in LINES:
        if part in line:
            return above | (set(BESIDE) if part == "cli" else set())
        above |= set(line)
    raise AssertionError(f"`{part}` has no place yet: give it one in LINES or BESIDE")


def _undocumented(module: Path) -> list[str]:
    """What is public and says nothing; the module itself as an empty name.

    What a base class or a protocol explains needs no second explanation where it is implemented.
    """
    silent = [name for name, node in _public(TREES[module]) if not _docstring(node)]
    missing = [name for name in silent if not _explained_elsewhere(module, name)]
    return missing if _docstring(TREES[module]) or module.name == "__main__.py" else ["", *missing]


def _explained_elsewhere(module: Path, name: str) -> bool:
    owner, _, method = name.rpartition(".")
    if not owner:
        return False
    loaded = import_module(".".join(("kvctl", *module.with_suffix("").parts)))
    return method in PROTOCOL_METHODS or bool(inspect.getdoc(getattr(getattr(loaded, owner), method)))


def _public(node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, _Definition]]:
    for child in node.body:
        if isinstance(child, _Definition) and not child.name.startswith("_"):
            yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from _public(child, f"{prefix}{child.name}.")


def _docstring(node: ast.Module | _Definition) -> str:
    return ast.get_docstring(node) or ""


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function, its docstring not counted."""
    first = function.body[0]
    text = (first.end_lineno or first.lineno) - first.lineno + 1 if _docstring(function) else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - text
