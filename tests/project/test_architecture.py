"""The shape of the source: imports, doors of heavy libraries, rooms, names, docstrings, words."""

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

from tests.support import house_map

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "kvctl"
LINES = (
    ("deferred",),
    ("errors", "phrases"),
    ("units", "tokens", "atomic_file", "suggest"),
    ("documents",),
    ("urls",),
    ("contexts",),
    ("connection",),
    ("jetstream",),
    ("kv",),
    ("topology", "tables", "versions"),
    ("pipeline", "doctor"),
    ("cli",),
)
"""A part imports from the lines above its own, never from its own line or below."""
BESIDE: dict[str, set[str]] = {
    "render": {"deferred", "errors", "phrases", "units"},
    "server": {"errors", "contexts"},
    "labs": {"errors", "contexts", "server", "jetstream"},
    "topics": set(),
    "pytest_plugin": {"errors", "kv", "server"},
}
"""Parts off the main line, which only `cli` imports, and what they may import. Only pytest imports its plugin."""
PART_OF = {"wire": "connection"}
"""Modules that belong to a part under another name."""

TOPOLOGY = ("model", "hazards", "survey", "health", "plan", "apply", "audit", "views")
"""Rooms of `topology/`: each imports from those before it, never from a later one, for typing neither."""

DOORS = {
    "nats": ("connection/nats_client.py",),
    "typer": ("cli/",),
    "rich": ("render/",),
    "yaml": ("documents/", "render/formats.py", "render/yaml_text.py"),
    "pyspark": ("pipeline/",),
    "pyarrow": ("pipeline/",),
    "deltalake": ("pipeline/tables/",),
    "pandas": ("pipeline/",),
    "py4j": ("pipeline/",),
    "grpc": ("pipeline/",),
}
"""The only places that may import a library."""

PURE = set("errors.py units.py kv/names.py kv/config.py kv/stream_kind.py render/view.py".split())
"""Plain values in, plain values out; modules that say `[pure]` in their docstring join them."""
INPUT_OUTPUT = {*DOORS, *"asyncio concurrent fcntl http io os pathlib select shutil signal socket ssl".split()}
INPUT_OUTPUT |= {*"subprocess sys tempfile threading urllib".split()}

EMPTY_WORDS = {"base", "common", "helper", "helpers", "misc", "util", "utils"}
BANNED = re.compile(
    r"\bis no (?!longer|more)|\banew\b|\bexclude each other|\bfor ever\b|\bbecame of\b|\bat the most\b|\bit is said\b"
    r"|\bsays so\b|\ball the time\b|\bmeanwhile\b|\bthereof\b|\bmends?\b|\bamiss\b|\bdo not ask\b|\bforeign key"
    r"|\bincarnation|\bpoisoned\b|\bcarr(?:y|ies|ied|ying) out\b|\bfed by\b|\bfeeds?\b|\b(?:is|are) gone\b|\bso many\b",
    re.IGNORECASE,
)
"""Phrases that a reader stops at; docs/CONTRIBUTING.md names what to write instead."""
REPLACED = """(after add-origin)
which answers its reads near
could write the same keys
clients near the mirror would
because its origin changes
drops 2 entries
it is empty, but
may replicate from others
Start its servers in cluster
it has caught up, but does not hold
f"Deleting bucket
f"Purging stream
see current versions with `kvctl table get -o json`
to create it before its origin
`-o json` has all
look at a bucket
receive what is listed
Later writes exit 1
named like a bucket that is not a bucket
less than an hour of stored history
the same is listed for each prefix
what the file does not name stays
nothing else runs it
Where it is installed, with a server
fail where none is installed
It is one line.
where no client of the aggregate looks
servers let no mirror answer
hide columns, from the right
""".splitlines()
"""Sentences that readers had to read twice, each replaced by another."""
JSON_VALUES = {"feed", "incarnation"}
"""Fields and values of JSON that keep their names."""
PARTICIPLE = re.compile(
    "_?(Found|Seen|Made|Held|Looked|Told|Known|Gone|Lost|Taken|Given|Kept|Left|Read|Written|Sent|Stored|[A-Z][a-z]+[^e]ed)"
)
"""A class says what was found, not that something was."""
ERRORS = re.compile("Error|Exception|Away|Unanswered|CannotAnswer")
BUDGETS = {
    "topology doctor labs": (12_318, 53),
    "versions tables": (8_717, 47),
    "pipeline": (8_205, 42),
    "cli render documents deferred phrases suggest units topics __main__": (21_401, 111),
    "core": (19_791, 84),
}
"""Lines and files of each package; `core` is all that no other names."""
LONGEST_FUNCTION = 45
MODULES_A_ROOM = 16
TESTS_A_ROOM = 20
NOUNS = {"drawing", "finding", "listing", "mapping", "staging"}
"""Words of the field that end as gerunds do."""
SAME_PART = {"catalog", "config", "entry", "model"}
"""Names that several packages have for the same part of them."""
OWN_NAMES = ("cli/", "doctor/", "pipeline/jobs/")
"""Rooms whose modules are named after commands, or after what they examine."""
PRIVATE = {
    "connection/nats_client.py": "nats-py",
    "pipeline/spark/java.py": "pyspark",
    "pipeline/spark/engine.py": "pyspark",
}
"""The modules that may touch private names of a library, and of which."""
PUBLIC_DESPITE_ITS_NAME = {"_replace", "_exit", "_asdict", "_fields", "_get_running_loop", "_getframe"}
"""Names of the standard library that are documented."""
HOT = {"wire.py: parse"}
"""Runs for every message, where a call costs more than what it does."""


def test_imports_run_one_way():
    wrong = {
        str(module): sorted(more)
        for module in _modules()
        if len(module.parts) > 1 or not module.stem.startswith("__")
        if (more := _own_imports(module) - _allowed_for(_part_of(str(module.with_suffix("")))))
    }
    assert not wrong


def test_rooms_of_topology_import_one_way():
    rooms = {
        module: module.parts[1] for module in _modules() if module.parts[0] == "topology" and len(module.parts) > 2
    }
    assert set(rooms.values()) == set(TOPOLOGY)
    wrong = {
        str(module): sorted(later)
        for module, room in rooms.items()
        if (later := _topology_imports(module) & {*TOPOLOGY[TOPOLOGY.index(room) + 1 :]})
    }
    assert not wrong


def test_imports_form_no_cycle():
    """Imports in functions count, imports for typing do not."""
    trees = {_dotted(module): tree for module, tree in _trees().items()}
    graph = {name: {*_imported_at_runtime(tree)} & trees.keys() - {name} for name, tree in trees.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("library", DOORS)
def test_a_library_comes_in_by_its_own_door(library):
    users = [str(module) for module in _modules() if library in {name.split(".")[0] for name in _imports_of(module)}]
    assert not [user for user in users if not user.startswith(DOORS[library])]


def test_the_package_that_spark_looks_for_holds_nothing_of_its_own():
    tree = ast.parse((PACKAGE.parent / "pyspark_kvctl" / "__init__.py").read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in found] == [
        "from contextlib import suppress",
        "from kvctl.pipeline.data_source import KvDataSource as DefaultSource",
    ]


def test_commands_import_at_the_top():
    """Modules are deferred by one rule (`kvctl/deferred.py`), not by where an import stands."""
    inside = [
        f"{module}:{node.lineno}"
        for module, tree in _trees().items()
        if str(module).startswith("cli/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in tree.body
    ]
    assert inside == []


def test_pure_modules_touch_nothing_outside():
    pure = [module for module in _modules() if str(module) in PURE or "[pure]" in _docstring(_trees()[module])]
    touched = {str(module): INPUT_OUTPUT & {name.split(".")[0] for name in _imports_of(module)} for module in pure}
    assert len(pure) >= len(PURE)
    assert not {module: libraries for module, libraries in touched.items() if libraries}


def test_modules_have_telling_names():
    assert not [
        module for module in _modules() if EMPTY_WORDS & {*module.with_suffix("").parts, *module.stem.split("_")}
    ]


def test_everything_public_has_a_docstring():
    silent = [f"{module}: {name}" for module in _modules() for name in _undocumented(module)]
    assert not silent


def test_functions_fit_on_a_screen():
    functions = (
        (f"{module}: {node.name}", _length(node))
        for module in _modules()
        for node in ast.walk(_trees()[module])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert not [(name, lines) for name, lines in functions if lines > LONGEST_FUNCTION and name not in HOT]


def test_rooms_hold_about_fifteen_modules():
    tests = (path.relative_to(PROJECT) for path in sorted((PROJECT / "tests").rglob("*.py")))
    crowded = {**_crowded(_modules(), MODULES_A_ROOM), **_crowded(tests, TESTS_A_ROOM)}
    assert not crowded


def test_modules_are_named_with_nouns_and_verbs():
    assert not [str(module) for module in _modules() if module.stem.endswith("ing") and module.stem not in NOUNS]


def test_a_name_of_a_module_is_used_once():
    named = Counter(
        module.stem
        for module in _modules()
        if not str(module).startswith(OWN_NAMES) and not module.stem.startswith("__")
    )
    assert not [name for name, times in named.items() if times > 1 and name not in SAME_PART]


def test_folders_import_each_other_one_way():
    """Imports in functions and for typing count; a folder and one inside it may do as they like."""
    edges = {
        (str(module.parent), room)
        for module in _modules()
        if len(module.parts) > 1
        for name in _imports_of(module)
        if (room := _room_of(name)) and not _are_nested(room, str(module.parent))
    }
    assert not [f"{one} and {other}" for one, other in edges if (other, one) in edges and one < other]


def test_class_names_are_used_once():
    public = (node for tree in _trees().values() for _, node in _public(tree) if isinstance(node, ast.ClassDef))
    named = Counter(node.name for node in public)
    assert not [name for name, times in named.items() if times > 1]


def test_classes_are_not_named_by_participles():
    """Errors may be: `Unanswered` says what happened."""
    classes = [node for tree in _trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    named = {node.name for node in classes if not any(ERRORS.search(ast.unparse(base)) for base in node.bases)}
    assert not [name for name in named if PARTICIPLE.fullmatch(name)]


def test_layout_is_the_formatters():
    skipping = [path for path in _files(PACKAGE) for line in path.read_text().splitlines() if "# fmt: skip" in line]
    assert len(skipping) < 20


@pytest.mark.parametrize("part", BUDGETS)
def test_packages_keep_their_budgets(part):
    """Lines and files; a commit that raises one says what they buy."""
    own = [module for module in _modules() if _budget_of(module) == part]
    lines = sum(len((PACKAGE / module).read_text(encoding="utf-8").splitlines()) for module in own)
    assert own
    assert lines <= BUDGETS[part][0]
    assert len(own) <= BUDGETS[part][1]


def test_private_names_of_libraries_are_touched_in_adapters_alone():
    own = {name for tree in _trees().values() for name in _defined(tree)} | PUBLIC_DESPITE_ITS_NAME
    users = {
        str(module): private
        for module, tree in _trees().items()
        if (private := {name for name in _private_names(tree) if name not in own}) and str(module) not in PRIVATE
    }
    assert not users


def test_map_in_architecture_page_equals_tree():
    assert house_map.page_map() == house_map.house_map(), f"run `{house_map.COMMAND}`"


def test_every_folder_has_a_purpose_in_one_line():
    purposes = {path.parent: house_map.purpose(path.parent) for path in PACKAGE.rglob("__init__.py")}
    assert not [folder for folder, text in purposes.items() if not text.endswith(".") or len(text) > 110]


def test_files_named_in_architecture_page_exist():
    text = house_map.PAGE.read_text(encoding="utf-8").partition(house_map.END)[2]
    named = {path for path in re.findall(r"`([a-z_/]+(?:\.py|/))`", text) if "/" in path.rstrip("/")}
    assert named
    assert not [path for path in named if not (PACKAGE / path).exists() and not (PROJECT / path).exists()]


def test_pages_avoid_banned_phrases():
    """Inline code is exempt: it quotes."""
    pages = (*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md"), *PACKAGE.glob("topics/*.md"))
    texts = {page.name: re.sub(r"`[^`\n]+`", "", page.read_text(encoding="utf-8")) for page in pages}
    assert not [f"{name}: {phrase}" for name, text in texts.items() for phrase in BANNED.findall(text)]


def test_replaced_sentences_are_in_no_text():
    files = (*PACKAGE.rglob("*.py"), *PACKAGE.glob("topics/*.md"), *PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md"))
    texts = {path.name: path.read_text(encoding="utf-8").lower() for path in files}
    assert not [f"{name}: {old}" for old in REPLACED for name, text in texts.items() if old.lower() in text]


def test_strings_and_docstrings_avoid_banned_phrases():
    texts = (
        (f"{module}:{node.lineno}", node.value)
        for module, tree in _trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in JSON_VALUES
    )
    assert not [f"{place}: {phrase}" for place, text in texts for phrase in BANNED.findall(text)]


@cache
def _trees() -> dict[Path, ast.Module]:
    """Every module of kvctl, by its path in the package; parsed by the one process that runs these tests."""
    return {path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8")) for path in _files(PACKAGE)}


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def _modules() -> list[Path]:
    return list(_trees())


@cache
def _protocol_methods() -> set[str]:
    """Names of documented methods of protocols."""
    return {
        method.name
        for tree in _trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and "Protocol" in {getattr(base, "id", "") for base in node.bases}
        for method in node.body
        if isinstance(method, ast.FunctionDef) and ast.get_docstring(method)
    }


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _imports_of(module: Path) -> Iterator[str]:
    """Dotted names of everything that a module imports: at the top, in functions, and for typing alone."""
    for node in ast.walk(_trees()[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{module} imports relatively: say `from kvctl...`"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _room_of(name: str) -> str:
    """The folder of the module that `name` imports from, "" for what is not kvctl's."""
    if not name.startswith("kvctl."):
        return ""
    path = Path(*name.split(".")[1:])
    if (PACKAGE / path).is_dir():
        return str(path)
    at = path if (PACKAGE / path.with_suffix(".py")).exists() else path.parent
    return str(at.parent) if at.name and (PACKAGE / at.with_suffix(".py")).exists() else ""


def _are_nested(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _budget_of(module: Path) -> str:
    return next((part for part in BUDGETS if module.with_suffix("").parts[0] in part.split()), "core")


def _dotted(module: Path) -> str:
    return ".".join(("kvctl", *module.with_suffix("").parts)).removesuffix(".__init__")


def _imported_at_runtime(tree: ast.AST) -> Iterator[str]:
    """Modules that a module imports, in functions too, but not for typing alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from _imported_at_runtime(node)


def _crowded(modules: Iterable[Path], limit: int) -> dict[str, int]:
    """Folders with more modules than the limit."""
    rooms = Counter(str(module.parent) for module in modules if not module.stem.startswith("__"))
    return {room: number for room, number in rooms.items() if number > limit}


def _defined(tree: ast.Module) -> Iterator[str]:
    """Every name that a module gives to something, attributes included."""
    for node in ast.walk(tree):
        if isinstance(node, _Definition):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr if ast.unparse(node.value) in ("self", "cls") else ""
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def _private_names(tree: ast.Module) -> Iterator[str]:
    """Private attributes that a module uses, and private names that it imports from libraries."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr):
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and not str(node.module).startswith("kvctl"):
            yield from (alias.name for alias in node.names if re.match("_[^_]", alias.name))


def _own_imports(module: Path) -> set[str]:
    """The other parts of kvctl that a module imports."""
    known = {*(part for line in LINES for part in line), *BESIDE, *PART_OF}
    found = {name.split(".")[1] for name in _imports_of(module) if name.startswith("kvctl.")}
    return {_part_of(name) for name in found & known} - {_part_of(str(module.with_suffix("")))}


def _topology_imports(module: Path) -> set[str]:
    """The rooms of topology that a module imports from."""
    names = (name.split(".") for name in _imports_of(module))
    return {parts[2] for parts in names if parts[:2] == ["kvctl", "topology"] and len(parts) > 2}


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
    silent = [name for name, node in _public(_trees()[module]) if not _docstring(node)]
    missing = [name for name in silent if not _explained_elsewhere(module, name)]
    return missing if _docstring(_trees()[module]) or module.name == "__main__.py" else ["", *missing]


def _explained_elsewhere(module: Path, name: str) -> bool:
    owner, _, method = name.rpartition(".")
    if not owner:
        return False
    loaded = import_module(".".join(("kvctl", *module.with_suffix("").parts)))
    return method in _protocol_methods() or bool(inspect.getdoc(getattr(getattr(loaded, owner), method)))


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
