"""Deferred modules, each in a process of its own."""

import subprocess
import sys
from pathlib import Path

PACKAGE = {
    "kvctl/__init__.py": "",
    "kvctl/slow.py": (
        "import threading, time\n"
        "runs = globals().get('runs', 0) + 1\n"
        "time.sleep(0.05)\n"
        "def double(number): return 2 * number\n"
        "last = 'complete'\n"
    ),
    "kvctl/first.py": "from kvctl import second\nname = 'first'\ndef both(): return name + second.name\n",
    "kvctl/second.py": "from kvctl import first\nname = 'second'\nseen = hasattr(first, 'name')\n",
    "kvctl/broken.py": "import kvctl\nkvctl.tries = getattr(kvctl, 'tries', 0) + 1\nraise ValueError(kvctl.tries)\n",
    "other.py": "value = 1\n",
}
FILE = Path(__file__).parents[1] / "kvctl/deferred.py"
START = """
from kvctl import deferred
deferred.defer_modules()
def waits(module): return isinstance(module, deferred.DeferredModule)
"""


def run(tmp_path: Path, code: str) -> str:
    """Output of a process that runs `code` in a package with our finder."""
    for name, text in {**PACKAGE, "kvctl/deferred.py": FILE.read_text()}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    line = [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{START}{code}"]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=True).stdout


def test_import_of_a_module_runs_no_code(tmp_path):
    code = """
import kvctl.slow
from kvctl import slow
import kvctl.slow as again
assert waits(slow) and kvctl.slow is slow is again is sys.modules["kvctl.slow"] and waits(slow)
assert slow.double(4) == 8 and not waits(slow) and type(slow) is type(sys)
assert slow.runs == 1 and slow.__loader__ is slow.__spec__.loader
try:
    slow.nothing
except AttributeError as error:
    print(error)
"""
    assert run(tmp_path, code) == "module 'kvctl.slow' has no attribute 'nothing'\n"


def test_import_of_a_name_runs_the_code(tmp_path):
    assert run(tmp_path, "from kvctl.slow import last\nprint(last, waits(sys.modules['kvctl.slow']))") == (
        "complete False\n"
    )


def test_only_our_modules_and_the_named_ones_are_deferred(tmp_path):
    code = "import other, ssl, json\nprint(waits(other), waits(json), waits(ssl), ssl.OP_ALL > 0, waits(ssl))"
    assert run(tmp_path, code) == "False False True True False\n"


def test_modules_may_import_each_other(tmp_path):
    code = "from kvctl import first\nprint(first.both(), sys.modules['kvctl.second'].seen)"
    assert run(tmp_path, code) == "firstsecond True\n"


def test_threads_wait_for_the_complete_module(tmp_path):
    code = """
from threading import Thread
import kvctl.slow
found = []
threads = [Thread(target=lambda: found.append(kvctl.slow.last)) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(found == ["complete"] * 8, kvctl.slow.runs)
"""
    assert run(tmp_path, code) == "True 1\n"


def test_failed_module_is_tried_again(tmp_path):
    code = """
import kvctl.broken
for _ in range(2):
    try:
        kvctl.broken.value
    except ValueError as error:
        print(error)
try:
    import kvctl.missing
except ModuleNotFoundError as error:
    print(error)
"""
    assert run(tmp_path, code) == "1\n2\nNo module named 'kvctl.missing'\n"
