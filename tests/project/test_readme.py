"""README's examples, run as they stand, from top to bottom on one server: their output is compared."""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.readme import README, ROOT, Block, blocks, setup_commands

SETUP = "Try it"
"""The two commands there are test_install.py's."""
SECTIONS = list(dict.fromkeys(block.heading for block in blocks() if block.heading != SETUP))
COLUMNS = 90

CHANGING = {
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z": "TIME",
    r"127\.0\.0\.1:\d+": "127.0.0.1:PORT",
    r"\b(just now|\d+[smhdy] ago)": "AGE",
    r"\(\d\d:\d\d:\d\d\)": "(CLOCK)",
    r"\bin \d+\.\d s\b": "in SECONDS",
    r"`/\S*/\.config/": "`HOME/.config/",
    r"\b[0-9a-f]{12}\b": "COMMIT",
    r"\S+@\S+(?=, AGE)": "AUTHOR",
    r"(?<=\S) {2,}": "  ",
    "─{2,}": "──",
}
"""What differs from run to run; columns get as wide as what they hold."""


PROGRESS = re.compile(r"\x1b\[\?25l.*?\x1b\[\?25h(\r?\x1b\[1A\x1b\[2K)?", re.DOTALL)
"""Bar of something that took longer than half a second, which a person sees for a moment."""


class Machine:
    """A directory, an environment with kvctl on PATH, and maybe a server that an example started."""

    def __init__(self, directory: Path, home: Path) -> None:
        self.directory = directory
        self.environment = {
            "PATH": os.pathsep.join([os.path.dirname(sys.executable), "/usr/bin", "/bin"]),
            "HOME": str(home),
            "TERM": "xterm-256color",
            "NO_COLOR": "1",
        }
        self._server: subprocess.Popen[bytes] | None = None
        self._started = ""
        """Output of the server's start."""
        self._screens: list[int] = []

    def run(self, block: Block) -> str:
        """Run an example; what it printed, for a session with the commands between."""
        if block.text.startswith("$ kvctl server run"):
            return self._started
        if block.language == "console":
            return "".join(f"$ {command}\n{self._typed(command)}" for command in commands_of(block))
        program = ["/bin/sh", "-eu"] if block.language == "sh" else [sys.executable, "-"]
        at = {"env": self.environment, "cwd": self.directory}
        done = subprocess.run(program, input=block.text, **at, text=True, capture_output=True, timeout=900)
        assert done.returncode == 0, f"README.md:{block.line}: {done.stderr}"
        return done.stdout

    def start(self, block: Block) -> None:
        """Start the server of all sections, as README does in one of them."""
        (command,) = commands_of(block)
        self._started = f"$ {command}\n{self._typed(command)}"

    def close(self) -> None:
        """End the server, as Ctrl-C does."""
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)
            assert self._server.wait(60) == 0
        for screen in self._screens:
            os.close(screen)

    def _typed(self, command: str) -> str:
        """What a person sees who types the command on a terminal."""
        master, slave = pty.openpty()
        self._screens.append(master)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        serves = command.startswith("kvctl server run")
        shell = ["/bin/sh", "-c", f"exec {command} --port 0" if serves else command]
        process = subprocess.Popen(
            shell,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=self.environment,
            cwd=self.directory,
            start_new_session=True,
        )
        os.close(slave)
        if not serves:
            return _everything(master, process)
        self._server = process
        text = _until(master, r"Ctrl-C(.*\n)+.*kvctl.*\n") + _until(master, None, 0.5)
        self.environment |= dict(re.findall(r"export (\w+)=(\S+)", text))
        return text


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A stranger's machine, with a server."""
    with TemporaryDirectory(prefix="home") as home:  # short, as people's are: messages wrap
        machine = Machine(tmp_path_factory.mktemp("readme"), Path(home))
        machine.start(next(block for block in blocks() if block.text.startswith("$ kvctl server run")))
        yield machine
        machine.close()


# Spark is started five times there.
RUN = [pytest.param(heading, marks=pytest.mark.slow) if heading == "Spark" else heading for heading in SECTIONS]


@pytest.mark.parametrize("heading", RUN)
def test_examples_do_what_they_show(heading, machine):
    section = [block for block in blocks() if block.heading == heading]
    printed = ""
    for block in section:
        if block.language == "text":
            assert readable(printed) == readable(block.text), f"README.md:{block.line}"
            continue
        printed = machine.run(block)
        if block.language == "console":
            assert readable(printed) == readable(block.text), f"README.md:{block.line}"


def test_every_example_is_run():
    assert {block.language for block in blocks()} <= {"sh", "console", "python", "text"}
    assert README.count("\n```") == 2 * len(blocks())
    assert {"console", "python", "sh"} <= {block.language for block in blocks() if block.heading in SECTIONS}


def test_readme_is_short():
    assert README.count("\n") <= 350


def test_two_commands_do_all_the_set_up():
    assert len(setup_commands()) == 2
    assert not [command for command in setup_commands() if "\n" in command or "sudo" in command]


def test_ci_runs_the_same_test_command():
    script = (ROOT / ".ci" / "run").read_text()
    _venv, install, test = setup_commands()[1].split(" && ")
    assert install.replace("install", "install --quiet") in script
    assert f"step {test}\n" in script


def test_links_lead_somewhere():
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    assert not [target for target in targets if "://" not in target and not (ROOT / target).exists()]


def commands_of(block: Block) -> list[str]:
    """The command lines of a session; `>` continues one."""
    joined = re.sub(r"\\\n> ", "", block.text)
    return [line.removeprefix("$ ") for line in joined.splitlines() if line.startswith("$ ")]


def readable(text: str) -> list[str]:
    """The lines without what changes from run to run, and without empty ones, which set commands apart."""
    text = re.sub(r"\\\n> ", "", text)
    for pattern, word in CHANGING.items():
        text = re.sub(pattern, word, text)
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def _everything(master: int, process: "subprocess.Popen[bytes]") -> str:
    text = _until(master, None)
    process.wait(120)
    return PROGRESS.sub("", text)


def _until(master: int, pattern: str | None, seconds: float = 120) -> str:
    """What appears on the terminal until the pattern does, or its last user has gone."""
    text, deadline = "", time.monotonic() + seconds
    decoder = codecs.getincrementaldecoder("utf-8")()
    while not (pattern and re.search(pattern, text)) and time.monotonic() < deadline:
        if not select.select([master], [], [], 0.2)[0]:
            continue
        try:
            data = os.read(master, 65536)
        except OSError:  # Linux: nobody holds the other end any more
            break
        text += decoder.decode(data).replace("\r\n", "\n")
    return text
