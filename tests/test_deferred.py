"""Deferred modules, each in a process of its own."""

import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from kvctl.cli.app import deferrals

PACKAGE = {
    "part/__init__.py": "",
    "part/slow.py": (
        "import threading, time\n"
        "runs = globals().get('runs', 0) + 1\n"
        "time.sleep(0.05)\n"
        "LIMIT = 7\n"
        "class Kind: pass\n"
        "def double(number): return 2 * number\n"
        "class Maker:\n"
        "    def __init__(self, number): self.number = number\n"
        "last = 'complete'\n"
    ),
    "part/early.py": "from part.slow import Maker, last\n",
    "part/broken.py": "import part\npart.tries = getattr(part, 'tries', 0) + 1\nraise ValueError(part.tries)\n",
}
START = """
import sys
from kvctl.deferred import defer, function, is_deferred, maker, stand_in, when_run
defer({
    "part.slow": {
        "LIMIT": 7, "Kind": stand_in("Kind"), "double": function("part.slow", "double"),
        "Maker": maker("part.slow", "Maker"), ("part.early", "last"): "early",
    },
    "part.broken": {}, "part.missing": {},
})
"""


def run(tmp_path: Path, code: str) -> str:
    """Output of a process that runs `code` with the package on its path."""
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    line = [sys.executable, "-c", f"{START}sys.path.insert(0, {str(tmp_path)!r})\n{code}"]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=True).stdout


def test_import_of_deferred_module_runs_no_code(tmp_path):
    code = """
import part.slow
from part.slow import LIMIT, Kind, double
from part import slow
assert is_deferred(slow) and part.slow is slow is sys.modules["part.slow"]
assert not isinstance(3, Kind) and LIMIT == 7 and is_deferred(slow)
assert double(4) == 8 and not is_deferred(slow) and slow.Kind is not Kind
assert slow.double(1) == 2 and slow.runs == 1 and slow.__loader__ is slow.__spec__.loader
try:
    slow.nothing
except AttributeError as error:
    print(error)
"""
    assert run(tmp_path, code) == "module 'part.slow' has no attribute 'nothing'\n"


def test_stand_in_of_a_class_makes_instances_of_the_class(tmp_path):
    code = """
from part import slow
from part.slow import Maker
class Other:
    kind = Maker
assert is_deferred(slow)
made = Other().kind(number=3)
print(made.number, type(made) is slow.Maker)
"""
    assert run(tmp_path, code) == "3 True\n"


def test_value_for_one_module_lasts_until_the_code_runs(tmp_path):
    code = """
from part import early, slow
assert is_deferred(slow) and early.last == "early"
from part.slow import last
print(last, is_deferred(slow), early.last)
"""
    assert run(tmp_path, code) == "complete False complete\n"


def test_action_waits_for_the_module(tmp_path):
    code = """
import part.slow
when_run(part.slow, lambda: print("after", part.slow.last))
print("before")
part.slow.double(1)
when_run(part.slow, lambda: print("now"))
"""
    assert run(tmp_path, code) == "before\nafter complete\nnow\n"


def test_threads_wait_for_the_complete_module(tmp_path):
    code = """
from threading import Thread
import part.slow
found = []
threads = [Thread(target=lambda: found.append(part.slow.last)) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(found == ["complete"] * 8, part.slow.runs)
"""
    assert run(tmp_path, code) == "True 1\n"


def test_failed_module_is_tried_again(tmp_path):
    code = """
import part.broken
for _ in range(2):
    try:
        part.broken.value
    except ValueError as error:
        print(error)
try:
    import part.missing
except ModuleNotFoundError as error:
    print(error)
"""
    assert run(tmp_path, code) == "1\n2\nNo module named 'part.missing'\n"


def test_values_are_those_of_the_modules():
    for module, values in deferrals.rare_modules().items():
        for key, value in values.items():
            name = key if isinstance(key, str) else key[1]
            real = getattr(import_module(module), name)
            assert real == value or callable(real), f"{module}.{name}"


@pytest.mark.parametrize("package", ["nats-py", "typer"])
def test_version_is_that_of_the_metadata(package):
    assert deferrals.version(package) == version(package)
