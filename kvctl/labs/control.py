"""Control of a running lab from other processes: through its socket, in a folder that only its user can open.

A request is a line of JSON, and so is the answer. A socket that nobody answers was left behind by a killed lab.
"""

import fcntl
import json
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Self

from kvctl.errors import KvctlError
from kvctl.labs import Lab

CONFIG = "config"
"""Folder in a lab's directory for XDG_CONFIG_HOME."""
_SUFFIX = ".sock"
_LONGEST_LINE = 1 << 16
_ANSWER_TIMEOUT = 2.0
"""Seconds for a description, and for the request of a client."""
_ACTION_TIMEOUT = 600.0
"""Seconds for the start of servers with large stores."""


class ControlSocket:
    """Socket of a running lab, named after its kind, with a number if others of the kind run; a context manager."""

    def __init__(self, lab: Lab) -> None:
        """Listen. Raises KvctlError."""
        self._lab = lab
        self._socket = socket.socket(socket.AF_UNIX)
        folder = _folder()
        try:
            with (folder / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._path = next(path for path in _paths(folder, lab.kind) if not _is_answered(path))
                self._path.unlink(missing_ok=True)
                self._socket.bind(str(self._path))
                self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise KvctlError(f"Cannot listen in `{folder}`: {error.strerror or error}") from None

    def fileno(self) -> int:
        """Return the descriptor that is readable when a client waits."""
        return self._socket.fileno()

    def answer(self) -> None:
        """Do what the next client asks for; one that sends nothing, or nonsense, gets no answer."""
        client, _ = self._socket.accept()
        with client, suppress(OSError, ValueError, KeyError, TypeError):
            client.settimeout(_ANSWER_TIMEOUT)
            request = json.loads(client.makefile("rb").readline(_LONGEST_LINE))
            client.sendall(json.dumps(self._done(**request)).encode() + b"\n")

    def _done(self, *, action: str, servers: list[str]) -> dict[str, Any]:
        acts: dict[str, Callable[[str], bool]] = {"stop": self._lab.stop, "start": self._lab.start}
        try:
            changed = [name for name in servers if acts[action](name)]
        except KvctlError as error:
            return {"error": error.message}
        return {
            "config_home": str(self._lab.directory / CONFIG),
            "clusters": self._lab.clusters,
            "running": {name: server.running for name, server in self._lab.servers.items()},
            "changed": changed,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class RunningLab:
    """Lab that runs in another process."""

    name: str
    config_home: str
    clusters: dict[str, list[str]]
    running: dict[str, bool]
    """Name of each server -> True if it runs."""
    path: Path

    def servers(self, name: str) -> list[str]:
        """Return the server of this name, or the servers of the cluster; empty if there is none."""
        return [name] if name in self.running else self.clusters.get(name, [])

    def do(self, action: str, servers: list[str]) -> list[str]:
        """Stop or start servers, and return those whose state changed. Raises KvctlError."""
        try:
            answer = _ask(self.path, action, servers, _ACTION_TIMEOUT)
        except (OSError, ValueError):
            raise KvctlError(f"The lab `{self.name}` did not answer") from None
        if "error" in answer:
            raise KvctlError(answer["error"])
        changed: list[str] = answer["changed"]
        return changed


def running_labs() -> list[RunningLab]:
    """Return the labs that this user runs. Raises KvctlError if the folder of their sockets is not private."""
    labs = []
    for path in sorted(_folder().glob(f"*{_SUFFIX}"), key=lambda path: path.stem):
        with suppress(OSError, ValueError):
            answer = _ask(path, "describe", [], _ANSWER_TIMEOUT)
            labs.append(RunningLab(path.stem, answer["config_home"], answer["clusters"], answer["running"], path))
    return labs


def _folder() -> Path:
    """Return the folder of the sockets, created if it is missing. Raises KvctlError if others can write to it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    own = os.path.isdir(runtime) and os.stat(runtime).st_uid == os.getuid()
    folder = Path(runtime, "kvctl") if own else Path(gettempdir(), f"kvctl-{os.getuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise KvctlError(
            f"`{folder}` is not a folder that only this user can open",
            hint="Remove it, or set XDG_RUNTIME_DIR to a private folder",
        )
    return folder


def _paths(folder: Path, kind: str) -> Iterator[Path]:
    return (folder / f"{kind}{'' if number == 1 else f'-{number}'}{_SUFFIX}" for number in count(1))


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client, suppress(FileNotFoundError, ConnectionRefusedError):
        client.connect(str(path))
        return True
    return False


def _ask(path: Path, action: str, servers: list[str], timeout: float) -> dict[str, Any]:
    """Send a request and return the answer. Raises OSError, ValueError."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(timeout)
        client.connect(str(path))
        client.sendall(json.dumps({"action": action, "servers": servers}).encode() + b"\n")
        answer: dict[str, Any] = json.loads(client.makefile("rb").readline(_LONGEST_LINE))
        return answer
