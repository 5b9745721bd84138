"""nats-servers on hosts of a network: started, killed, stopped, asked to leave."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from kvctl.server import find_server
from tests.faults.network import Network

PORT, ROUTES, GATEWAYS, LEAVES = 4222, 6222, 7222, 7422
READY_S = 60


class HostServer:
    """One nats-server on a host of its own."""

    def __init__(self, network: Network, name: str, directory: Path, config: str) -> None:
        self.network, self.name = network, name
        self.store = directory / name
        self.store.mkdir(parents=True, exist_ok=True)
        self._config = directory / f"{name}.conf"
        self._pid_file = directory / f"{name}.pid"
        self._log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.configure(config)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{self.network.address(self.name)}:{PORT}"

    def configure(self, config: str) -> None:
        """Write the configuration; a running server takes it with `reload`."""
        head = f'server_name: {self.name}\nlisten: "{self.network.address(self.name)}:{PORT}"\n'
        head += f'pid_file: "{self._pid_file}"\nlog_file: "{self._log}"\n'
        self._config.write_text(head + config.replace("@store@", str(self.store)))

    def start(self) -> None:
        """Start it; clients can connect when this returns."""
        command = self.network.command(self.name, find_server(), "-c", str(self._config))
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + READY_S
        while True:
            try:
                with socket.create_connection((self.network.address(self.name), PORT), 0.5) as sock:
                    if sock.recv(5) == b"INFO ":
                        return
            except OSError:
                pass
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            assert time.monotonic() < deadline, f"{self.name} was not ready"
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        """Send a signal to the server itself."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def leave(self) -> None:
        """Lame duck: send clients away, then end."""
        self.signal(signal.SIGUSR2)
        self._process.wait(90)

    def reload(self) -> None:
        """Take the configuration as it is now."""
        self.signal(signal.SIGHUP)


def cluster_config(network: Network, names: list[str], own: str, *, extra: str = "") -> str:
    """One of several servers of a cluster."""
    routes = ", ".join(f'"nats://{network.address(name)}:{ROUTES}"' for name in names)
    return (
        'jetstream { store_dir: "@store@" }\nlame_duck_duration: "30s"\nlame_duck_grace_period: "1s"\n'
        f'cluster {{ name: lab, listen: "{network.address(own)}:{ROUTES}", routes: [{routes}] }}\n{extra}'
    )


def started(network: Network, directory: Path, configs: Mapping[str, str]) -> dict[str, HostServer]:
    """Servers by their names, running."""
    servers = {name: HostServer(network, name, directory, config) for name, config in configs.items()}
    for server in servers.values():
        server.start()
    return servers


def run(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    """kvctl in a process, connected to this server."""
    command = [sys.executable, "-m", "kvctl", "-s", url, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
