"""What a command does not need, it does not import: start-up is part of the contract, and imports are most of it."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvctl.cli.app.main import root
from tests.cli.conftest import run_process

PROGRAM = """
import sys
from kvctl.deferred import DeferredModule, defer_modules
defer_modules()
from kvctl.cli.app.main import main
for line in sys.argv[1].split("\\n"):
    code = main(line.split("\\t"))
    names = sorted(name for name, module in sys.modules.items() if not isinstance(module, DeferredModule))
    made = {value for name in names if name.startswith("kvctl") for value in vars(sys.modules[name]).values()
        if isinstance(value, type) and value.__module__ == name and "__dataclass_fields__" in vars(value)}
    print("MODULES", code, len(made), *names, file=sys.stderr)
"""
HEAVY = (
    *"""
    nats yaml rich pydantic pyspark pyarrow pandas asyncio base64 ssl socket typer.rich_utils kvctl.connection
    kvctl.kv.bucket
""".split(),
)
OTHERS = (*"yaml rich pydantic pyspark pyarrow typer.rich_utils kvctl.topology kvctl.server kvctl.labs".split(),)

RARE = tuple("nats.js aiohttp asyncio.sslproto asyncio.staggered csv bz2 lzma locale getpass hashlib".split())
"""Modules that Python, Typer and nats-py import, and that no command needs for a connection without TLS."""
FILES = ("kvctl.atomic_file", "tempfile")


def loaded(*lines: Sequence[str]) -> list[tuple[set[str], int]]:
    """The modules that a process holds after each of these command lines, and the number of our dataclasses in them."""
    line = [sys.executable, "-c", PROGRAM, "\n".join(map("\t".join, lines))]
    done = subprocess.run(line, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=120)
    found = [told.split(" ") for told in done.stderr.splitlines() if told.startswith("MODULES ")]
    assert [code for _, code, *_ in found] == ["0"] * len(lines), done.stderr
    return [({*modules}, int(dataclasses)) for _, _, dataclasses, *modules in found]


def imported(*args: str) -> set[str]:
    return loaded(args)[0][0]


def offenders(modules: set[str], unwanted: tuple[str, ...]) -> list[str]:
    """Modules and packages among `unwanted`."""
    return sorted(
        name for name in unwanted if name in modules or any(module.startswith(f"{name}.") for module in modules)
    )


def test_words_about_commands_need_no_client():
    lines = [
        ("--version",),
        ("version",),
        ("--help",),
        ("help", "exit-codes"),
        *((name, "--help") for name in root().list_commands(None)),
        ("bucket", "ls", "--help"),
        ("completion", "bash"),
        ("__complete", "--", "buck"),
        ("__complete", "--", "bucket", "l"),
        ("__complete", "--", "bucket", "ls", "--o"),
        ("__complete", "--", "-o", ""),
        ("__complete", "--", "--context", ""),
    ]
    for line, (modules, _) in zip(lines, loaded(*lines), strict=True):
        assert offenders(modules, HEAVY) == [], line


def test_a_command_loads_no_other_command():
    loaded = {module for module in imported("version", "-o", "json") if module.startswith("kvctl.cli.")}
    rooms = ("kvctl.cli.bucket", "kvctl.cli.keys", "kvctl.cli.context", "kvctl.cli.server")
    assert offenders(loaded, (*rooms, "kvctl.cli.app.completion", "kvctl.cli.app.manual")) == []


def modules_with(imported: str) -> set[str]:
    line = [sys.executable, "-c", f"import {imported}; print(*sys.modules)"]
    return set(subprocess.run(line, capture_output=True, text=True, timeout=120, check=True).stdout.split())


def test_library_import_is_free():
    assert modules_with("sys, kvctl") - modules_with("sys") == {"kvctl"}


def test_a_writers_worker_loads_no_tables():
    loaded = modules_with("sys, kvctl.pipeline.write.writer")
    assert offenders(loaded, ("pyarrow.compute", "pyarrow.parquet", "deltalake", "kvctl.pipeline.tables.delta")) == []


@pytest.mark.parametrize(
    ("line", "unwanted", "limit"),
    [
        ("put BUCKET key value", (*OTHERS, *RARE, *FILES), 58),
        ("get BUCKET key", (*OTHERS, *RARE, *FILES), 54),
        ("keys BUCKET", (*OTHERS, *RARE, *FILES), 60),
        ("watch BUCKET --until-current", (*OTHERS, *RARE), 60),
        ("bucket add BUCKET-2", RARE, 84),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_command_loads_what_it_needs(server, bucket_name, line, unwanted, limit):
    if not line.startswith("bucket"):
        assert run_process("bucket", "add", bucket_name, "-s", server.url).exit_code == 0
        assert run_process("put", bucket_name, "key", "value", "-s", server.url).exit_code == 0
    modules = imported(*line.replace("BUCKET", bucket_name).split(), "-s", server.url)
    assert "nats.aio.client" in modules
    assert offenders(modules, unwanted) == []
    assert len([name for name in modules if name.startswith("kvctl")]) <= limit


@pytest.mark.parametrize(
    ("line", "limit"),
    [("get BUCKET key", 4), ("keys BUCKET", 6), ("bucket ls", 9), ("topology status -o tsv", 16), ("repo ls", 10)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_command_makes_few_dataclasses(server, bucket_name, line, limit):
    assert run_process("bucket", "add", bucket_name, "-s", server.url).exit_code == 0
    assert run_process("put", bucket_name, "key", "value", "-s", server.url).exit_code == 0
    [(_, dataclasses)] = loaded([*line.replace("BUCKET", bucket_name).split(), "-s", server.url])
    assert dataclasses <= limit


def test_topology_plan_loads_no_format_but_yaml(server, tmp_path):
    file = tmp_path / "topology.yaml"
    file.write_text("version: 1\nbuckets:\n  planned: {history: 5}\n")
    modules = imported("topology", "plan", "-f", str(file), "-s", server.url)
    assert "yaml" in modules
    assert offenders(modules, ("rich", "pyspark", "pyarrow", "nats.js", "aiohttp")) == []
    assert len([name for name in modules if name.startswith("kvctl")]) <= 100


def test_source_of_classes_is_found_beside_deferred_modules():
    code = (
        "from kvctl.deferred import defer_modules\n"
        "defer_modules()\n"
        "import inspect, kvctl.errors, traceback\n"
        "print(inspect.getsource(kvctl.errors.KvctlError).splitlines()[0])\n"
    )
    line = [sys.executable, "-c", code]
    shown = subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2], check=True)
    assert shown.stdout.startswith("class KvctlError")


def test_only_bounded_tables_load_rich(server, bucket_name):
    assert run_process("bucket", "add", bucket_name, "-s", server.url).exit_code == 0
    assert "rich" not in imported("put", bucket_name, "key", "value", "-o", "table", "-s", server.url)
    assert "rich" not in imported("keys", bucket_name, "-o", "table", "-s", server.url)
    assert "rich" not in imported("delete", bucket_name, "key", "--dry-run", "-o", "table", "-s", server.url)
    assert "rich" not in imported("bucket", "ls", "-s", server.url)
    assert "rich" in imported("bucket", "ls", "-o", "table", "-s", server.url)


def test_public_names_are_there():
    import kvctl

    assert all(getattr(kvctl, name) for name in kvctl.__all__)
    assert not hasattr(kvctl, "nothing")
