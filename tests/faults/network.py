"""Hosts on this machine, each a network namespace, whose links can be cut.

All stand on one bridge, on addresses that exist only here; the tests themselves are one more host, `CLIENT`.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from typing import Self

CLIENT = "client"
_numbers = itertools.count()


def available() -> bool:
    """Whether this process may make namespaces."""
    if os.geteuid() != 0:
        return False
    name = f"kvctl-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode != 0:
        return False
    subprocess.run(["ip", "netns", "del", name], check=True)
    return True


class Network:
    """Hosts by their names, joined by a bridge; a context manager that removes them."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._mark = f"kv{os.getpid() % 100_000}n{next(_numbers)}"
        self._bridge = f"{self._mark}b"
        self._net = 16 + (os.getpid() + next(_numbers)) % 200
        self._addresses = {name: f"10.77.{self._net}.{number}" for number, name in enumerate(hosts, 1)}
        self._addresses[CLIENT] = f"10.77.{self._net}.250"

    def address(self, host: str) -> str:
        """Where a host listens."""
        return self._addresses[host]

    def command(self, host: str, *command: str) -> list[str]:
        """The command as it runs on a host."""
        return list(command) if host == CLIENT else ["ip", "netns", "exec", self._space(host), *command]

    def cut(self, one: str, other: str, *, both: bool = True) -> None:
        """Drop what `one` sends to `other`, and with `both` what comes back."""
        self._route(one, "add", other)
        if both:
            self._route(other, "add", one)

    def heal(self) -> None:
        """Let everything pass again."""
        for one, other in itertools.permutations(self._addresses, 2):
            with suppress(subprocess.CalledProcessError):
                self._route(one, "del", other)

    def slow(self, host: str, rate: str) -> None:
        """Limit what a host sends, to `8mbit` a second for example."""
        number = list(self._addresses).index(host)
        device = ["dev", f"{self._mark}i{number}", "root", "tbf", "rate", rate, "burst", "64kb", "latency", "200ms"]
        subprocess.run(self.command(host, "tc", "qdisc", "replace", *device), check=True, capture_output=True)

    def isolate(self, host: str, *, but: Iterable[str] = ()) -> None:
        """Cut a host off from all others, both ways."""
        for other in self._addresses:
            if other != host and other not in but:
                self.cut(host, other)

    def __enter__(self) -> Self:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("link", "set", self._bridge, "up")
        _ip("addr", "add", f"{self._addresses[CLIENT]}/24", "dev", self._bridge)
        for number, host in enumerate(name for name in self._addresses if name != CLIENT):
            space, inner, outer = self._space(host), f"{self._mark}i{number}", f"{self._mark}o{number}"
            _ip("netns", "add", space)
            _ip("link", "add", outer, "type", "veth", "peer", "name", inner)
            _ip("link", "set", inner, "netns", space)
            _ip("link", "set", outer, "master", self._bridge, "up")
            _ip("-n", space, "addr", "add", f"{self._addresses[host]}/24", "dev", inner)
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "link", "set", inner, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._addresses:
            if host != CLIENT:
                with suppress(subprocess.CalledProcessError):
                    _ip("netns", "del", self._space(host))
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._bridge)

    def _space(self, host: str) -> str:
        return f"{self._mark}-{host}"

    def _route(self, host: str, verb: str, other: str) -> None:
        where = [] if host == CLIENT else ["-n", self._space(host)]
        _ip(*where, "route", verb, "blackhole", f"{self._addresses[other]}/32")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
