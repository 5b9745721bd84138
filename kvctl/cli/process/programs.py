"""Programs that commands run for the user: looked up as a shell does, and ended at a deadline or with this process."""

import asyncio
import ctypes
import os
import select
import shutil
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from kvctl.errors import KvctlError
from kvctl.kv.lease import clock

NOT_FOUND, NOT_EXECUTABLE = 127, 126
FOREVER = float("inf")
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to its foreground process group, which includes the program."""
_PR_SET_PDEATHSIG = 1
_UPDATE = struct.Struct("dq")
"""Message to the watcher: a deadline (seconds of `clock`), and the program's process id or 0."""


class CannotRun(KvctlError):
    """Error for a program that cannot be run; exit codes as in a shell: 127 not found, 126 not executable."""

    def __init__(self, message: str, exit_code: int, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


def find_program(name: str) -> str:
    """Return the program's path, searching PATH if the name has no slash. Raises CannotRun."""
    found = shutil.which(name)
    if found is not None:
        return found
    if shutil.which(name, mode=os.F_OK) is not None or os.path.isdir(name):
        raise CannotRun(f"`{name}` is not executable", NOT_EXECUTABLE)
    hint = "Commands run without a shell; for pipes and variables use `sh -c '...'`" if " " in name else None
    raise CannotRun(f"Command `{name}` not found", NOT_FOUND, hint=hint)


def cannot_run(name: str, error: OSError) -> CannotRun:
    """Return the error for a program that the system failed to start."""
    if isinstance(error, FileNotFoundError):
        return CannotRun(f"`{name}` cannot be run: its interpreter is missing", NOT_FOUND)
    return CannotRun(f"`{name}` cannot be run: {error.strerror}", NOT_EXECUTABLE)


class SupervisedProgram:
    """Program that ends, with its children, at a deadline or when this process ends in any way.

    A watcher process enforces it even while this process is stopped: SIGTERM `grace` seconds before the deadline,
    SIGKILL at the deadline. In the foreground of a terminal the program stays in kvctl's process group, so that keys
    such as Ctrl-C reach it. Elsewhere it has its own group, and its children end with it.
    """

    def __init__(self, words: Sequence[str], *, grace: float) -> None:
        self._words = words
        self._grace = grace
        self._group = not _in_foreground()
        self._deadline = 0.0
        self._watcher = -1
        self._process: asyncio.subprocess.Process | None = None
        self._early: list[int] = []
        """Signals that arrived before the program started."""

    async def start(self, variables: Mapping[bytes, bytes], deadline: float) -> None:
        """Start the program with these variables added to the environment. Raises CannotRun."""
        path = find_program(self._words[0])
        self._deadline = deadline
        self._watcher, early = _start_watcher(self._group, deadline, self._grace), len(self._early)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._words,
                executable=path,
                env={**os.environb, **variables},
                preexec_fn=_prepared(self._watcher, deadline),
                process_group=0 if self._group else None,
            )
        except OSError as error:
            self.finish()
            raise cannot_run(self._words[0], error) from None
        for place, number in enumerate(self._early):
            if place < early or self._group or number not in FROM_TERMINAL:  # the program has had the others
                _send(self.process.pid, number, group=self._group)

    @property
    def process(self) -> "asyncio.subprocess.Process":
        """Return the program's process; valid after `start`."""
        assert self._process is not None
        return self._process

    async def wait(self) -> int:
        """Wait for the program and return its exit code, 128 plus the number for a signal."""
        code = await self.process.wait()
        return 128 - code if code < 0 else code

    def allow_until(self, deadline: float) -> None:
        """Move the deadline, in seconds of `kvctl.kv.lease.clock`."""
        self._deadline = deadline
        with suppress(OSError):
            os.write(self._watcher, _UPDATE.pack(deadline, 0))

    async def end(self) -> None:
        """Send SIGTERM now, SIGKILL after the grace period or at the deadline, and wait for the end."""
        self.allow_until(min(clock() + self._grace, self._deadline))
        try:
            async with asyncio.timeout(self._grace + 0.5):
                await self.process.wait()
        except TimeoutError:  # the watcher is not running
            _send(self.process.pid, signal.SIGKILL, group=self._group)
            await self.process.wait()

    def finish(self) -> None:
        """Release the watcher after the program has ended; its background processes keep running."""
        self.allow_until(FOREVER)

    @contextmanager
    def signals_passed_on(self) -> Iterator[None]:
        """Pass signals that would end kvctl on to the program, except those that the terminal sends to both."""
        heeded = [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._pass_on) for number in heeded}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if self._process is None:
            self._early.append(number)
        elif self._process.returncode is None and (self._group or number not in FROM_TERMINAL):
            _send(self._process.pid, number, group=self._group)


def _in_foreground() -> bool:
    """Return True if this process group is in the foreground of a terminal."""
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False


def _send(pid: int, number: int, *, group: bool) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def _prepared(watcher: int, deadline: float) -> Callable[[], None]:
    """Return the child's `preexec_fn`, which reports its process id to the watcher and makes it die with its parent.

    On Linux the kernel enforces the latter (PR_SET_PDEATHSIG), when the thread that forked ends: here the main thread.
    """
    prctl = None
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def prepare() -> None:
        os.write(watcher, _UPDATE.pack(deadline, os.getpid()))
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the signal was requested
            os._exit(128 + signal.SIGKILL)

    return prepare


def _start_watcher(group: bool, deadline: float, grace: float) -> int:
    """Start the watcher and return the write end of its pipe; when that closes, it kills the program immediately."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(reading)
        return writing
    try:
        os.setsid()  # signals that end or stop kvctl's group must not reach the watcher
        for number in PASSED_ON:
            signal.signal(number, signal.SIG_IGN)
        os.dup2(reading, 0)
        os.closerange(1, 1 << 16)
        _watch(group, deadline, grace)
    finally:
        os._exit(0)


def _watch(group: bool, deadline: float, grace: float) -> None:
    pid, asked = 0, False
    while (now := clock()) < deadline:
        if now >= deadline - grace and pid and not asked:
            asked = True
            _send(pid, signal.SIGTERM, group=group)
            _send(pid, signal.SIGCONT, group=group)
        due = deadline if asked else deadline - grace
        if not select.select([0], [], [], max(min(due - now, 1.0), 0.001))[0]:
            continue
        data = os.read(0, 1 << 12)
        if not data:  # kvctl has ended
            break
        for moved, started in _UPDATE.iter_unpack(data):
            deadline, pid = moved, started or pid
        if deadline == FOREVER:
            return
    if pid:
        _send(pid, signal.SIGKILL, group=group)
