"""Sample server layouts to try topologies on: a cluster, a supercluster, a leaf node, two accounts.

The servers' configurations are the templates beside this file.
"""

import asyncio
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Literal, Self

import kvctl
from kvctl.contexts import Context
from kvctl.errors import KvctlError, UnreachableError
from kvctl.jetstream.api import Api
from kvctl.server import Server, fill

LabKind = Literal["cluster", "supercluster", "leaf", "accounts"]

INNER_PORT = 10
"""Distance of the first port between servers from the first server's port."""
_TEMPLATES = Path(__file__).parent
_PROBE = "kvctl-ready"
"""Stream that shows by its creation that streams can be placed."""
_READY_TIMEOUT = 120.0
_ASK_TIMEOUT = 0.5
"""Seconds for an answer that may never come: servers without a leader do not answer."""
_LED_TIMEOUT = 10.0
"""Seconds for an answer once there is a leader."""


@dataclass
class Lab:
    """Servers of a layout, and the contexts to reach them; a context manager that stops them all."""

    kind: LabKind
    directory: Path
    """Parent of the servers' stores."""
    servers: dict[str, Server] = field(default_factory=dict)
    contexts: dict[str, Context] = field(default_factory=dict)
    temporary: bool = True
    port: int | None = None
    """Port of the first server, the others have the next ones; None for free ports."""

    def inner_ports(self, count: int) -> list[int]:
        """Return ports for connections between the servers."""
        return _free_ports(count) if self.port is None else [self.port + INNER_PORT + at for at in range(count)]

    def close(self) -> None:
        """End all servers and remove everything temporary: temporary stores need not be closed first."""
        with ExitStack() as stack:
            if self.temporary:
                stack.callback(rmtree, self.directory, ignore_errors=True)
            for server in self.servers.values():
                stack.callback(server.close)
                if self.temporary:
                    stack.callback(server.kill)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run_lab(kind: LabKind, *, store: Path | None = None, port: int | None = None) -> Lab:
    """Start a sample layout and wait until buckets can be created everywhere. Raises KvctlError.

    The servers listen on free ports, or on `port` and the next ones, and on INNER_PORT above for each other.
    """
    lab = Lab(kind, store or Path(mkdtemp(prefix=f"kvctl-{kind}-")), temporary=store is None, port=port)
    try:
        _BUILDERS[kind](lab)
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


def _cluster(lab: Lab) -> None:
    names = ("n1", "n2", "n3")
    routes = dict(zip(names, lab.inner_ports(len(names)), strict=True))
    values = {"routes": ", ".join(f"nats://127.0.0.1:{port}" for port in routes.values())}
    for name in names:
        _add(lab, name, "cluster", {**values, "route": routes[name]})


def _supercluster(lab: Lab) -> None:
    lon_route, nyc_route, lon_gateway, nyc_gateway = lab.inner_ports(4)
    values = {"lon_gateway": lon_gateway, "nyc_gateway": nyc_gateway}
    _add(lab, "lon", "supercluster", {**values, "route": lon_route, "gateway": lon_gateway})
    _add(lab, "nyc", "supercluster", {**values, "route": nyc_route, "gateway": nyc_gateway})


def _leaf(lab: Lab) -> None:
    (leafnodes,) = lab.inner_ports(1)
    _add(lab, "hub", "hub", {"leafnodes": leafnodes})
    _add(lab, "leaf", "leaf", {"leafnodes": leafnodes})


def _accounts(lab: Lab) -> None:
    _add(lab, "accounts", "accounts", {})


_BUILDERS = {"cluster": _cluster, "supercluster": _supercluster, "leaf": _leaf, "accounts": _accounts}


def _add(lab: Lab, name: str, template: str, values: Mapping[str, object]) -> None:
    config = fill((_TEMPLATES / f"{template}.conf").read_text(), values)
    port = 0 if lab.port is None else lab.port + len(lab.servers)
    lab.servers[name] = Server(name=name, config=config, store=lab.directory / name, port=port)


def _add_contexts(lab: Lab) -> None:
    urls = {name: server.url for name, server in lab.servers.items()}
    for name, description, settings in _CONTEXTS[lab.kind]:
        settings = {"url": urls.get(name, ",".join(urls.values())), **settings}
        settings["url"] = urls.get(settings["url"], settings["url"])
        settings |= {"description": description, "origin": f"context `{name}`"}
        lab.contexts[name] = Context(name=name, **settings)


_CONTEXTS: dict[LabKind, tuple[tuple[str, str, dict[str, Any]], ...]] = {
    "cluster": (("cluster", "three servers, up to three replicas", {}),),
    "supercluster": (("lon", "cluster lon, joined with nyc", {}), ("nyc", "cluster nyc, joined with lon", {})),
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
    """Wait until a stream can be placed everywhere in the layout. Raises UnreachableError."""
    with ThreadPoolExecutor(1) as thread:  # the caller's may run an event loop
        thread.submit(asyncio.run, _until_usable(lab)).result()


async def _until_usable(lab: Lab) -> None:
    deadline = time.monotonic() + _READY_TIMEOUT
    for name, context in lab.contexts.items():
        if context.api_prefix:
            continue
        placement = {"placement": {"cluster": name}} if lab.kind == "supercluster" else {}
        replicas = len(lab.servers) if lab.kind == "cluster" else 1
        async with kvctl.connect(context) as client:
            while not await _can_place(client.api, {"num_replicas": replicas, **placement}):
                if time.monotonic() > deadline:
                    raise UnreachableError(f"The {lab.kind} lab was not ready in {_READY_TIMEOUT:.0f} s")
                await asyncio.sleep(0.05)


async def _can_place(api: Api, config: Mapping[str, Any]) -> bool:
    stream = {"name": _PROBE, "subjects": [_PROBE], "storage": "memory", **config}
    with suppress(KvctlError):
        await api.call(f"STREAM.CREATE.{_PROBE}", stream, timeout=_ASK_TIMEOUT)
        await api.call(f"STREAM.DELETE.{_PROBE}", timeout=_LED_TIMEOUT)
        return True
    return False


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
