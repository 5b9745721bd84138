"""Runs kvctl a thousand times without importing it a thousand times.

A process that has imported everything forks for every run. What runs is a process of its own in all that kvctl can
tell: arguments, environment, directory, streams, signals, exit code. What Python itself does before the first line is
another matter: tests of starting (`test_light_start`, `start`) execute the real thing.
"""

import gc
import importlib
import json
import os
import pkgutil
import random
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_STREAMS = 3


class Child:
    """One run: its process's number, and what it ends with."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers
        self.pid = int(answers.recv(16))
        self.returncode: int | None = None

    def wait(self, timeout: float) -> int:
        """The exit code, negative for a signal, as subprocess has it. Raises TimeoutExpired."""
        if self.returncode is None:
            self._answers.settimeout(timeout)
            try:
                self.returncode = int(self._answers.recv(16))
            except TimeoutError:
                raise subprocess.TimeoutExpired("kvctl", timeout) from None
            self._answers.close()
        return self.returncode

    def kill(self) -> None:
        """Kill it if it runs still; `wait` for its end."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Forkserver:
    """The process that forks; started at the first run, it ends with this one."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def start(self, args: Sequence[str], env: Mapping[str, str], streams: Sequence[int], program: str) -> Child:
        """Run `main` of the module `program` on these three file descriptors, which stay the caller's to close."""
        if self._socket is None:
            self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with closing(other):
                command = [sys.executable, "-m", __name__, str(other.fileno())]
                subprocess.Popen(command, pass_fds=[other.fileno()], cwd=_ROOT)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with closing(theirs), open(os.memfd_create("request"), "w+b") as request:
            request.write(json.dumps({"program": program, "args": args, "env": dict(env), "cwd": os.getcwd()}).encode())
            request.flush()
            socket.send_fds(self._socket, [b"run"], [*streams, theirs.fileno(), request.fileno()])
        return Child(ours)


def serve(connection: socket.socket) -> None:
    """Fork for every request until nobody can ask any more."""
    wake, woken = socket.socketpair()
    woken.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([connection, wake], [], [])
        if wake in ready:
            wake.recv(4096)
            for pid, status in _ended(running):
                _tell(running.pop(pid), os.waitstatus_to_exitcode(status))
        if connection in ready:
            message, received, *_ = socket.recv_fds(connection, 16, _STREAMS + 2)
            if not message:
                return
            *streams, answers, request = received
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _run(streams, request)
            os.write(answers, str(pid).encode())
            running[pid] = answers
            for descriptor in (*streams, request):
                os.close(descriptor)


def _ended(running: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            yield pid, status


def _tell(answers: int, code: int) -> None:
    with suppress(OSError):  # the test is over
        os.write(answers, str(code).encode())
    os.close(answers)


def _run(streams: Sequence[int], request: int) -> None:
    """Become the run. Never returns."""
    code = 70
    try:
        with open(request, "rb", closefd=False) as file:
            file.seek(0)
            asked = json.loads(file.read())
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        os.closerange(_STREAMS, 256)
        sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(asked["env"])
        os.chdir(asked["cwd"])
        sys.argv = [str(_ROOT / "kvctl" / "__main__.py"), *asked["args"]]
        random.seed()
        code = importlib.import_module(asked["program"]).main()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _import_everything() -> None:
    import kvctl

    for module in pkgutil.walk_packages(kvctl.__path__, "kvctl."):
        if module.name not in ("kvctl.__main__", "kvctl.pytest_plugin"):
            with suppress(Exception):  # the run that needs it says so
                importlib.import_module(module.name)
    importlib.import_module("tests.cli.demo")
    _be_patient()
    gc.freeze()


def _be_patient() -> None:
    """What a user would see of a slow machine no test is to see: progress on a terminal, completion that gives up."""
    importlib.import_module("kvctl.render.progress").DELAY = 600.0
    importlib.import_module("kvctl.cli.app.live_names").BUDGET = 60.0


if __name__ == "__main__":
    _import_everything()
    importlib.import_module("tests.support.record_check").install()
    serve(socket.socket(fileno=int(sys.argv[1])))
