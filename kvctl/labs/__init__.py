"""Sample server layouts to try topologies on: a cluster, a supercluster, a leaf node, two accounts.

The servers' configurations are the templates beside this file.
"""

import asyncio
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
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

MOST_SERVERS = 5
"""Maximum number of servers of a cluster, as of the replicas of a stream."""
INNER_PORT = 20
"""Distance of the first port between servers from the first server's port."""
LAST_PORT = 65_490
"""Maximum port of the first server, as those of the others and between them follow."""
TIE_BREAKER = "tie"
"""Cluster of one server that keeps JetStream's majority when one of two larger clusters is lost."""
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
    clusters: dict[str, list[str]] = field(default_factory=dict)
    """Name of each cluster -> names of its servers."""
    _known: set[str] = field(default_factory=set)
    """Servers that do not run, and whose end is known: stopped on request, or returned by `ended`."""

    def inner_ports(self, count: int) -> list[int]:
        """Return ports for connections between the servers."""
        return _free_ports(count) if self.port is None else [self.port + INNER_PORT + at for at in range(count)]

    def stop(self, name: str) -> bool:
        """Stop a server; return False if it was not running."""
        self._known.add(name)
        running = self.servers[name].running
        self.servers[name].stop()
        return running

    def start(self, name: str) -> bool:
        """Start a stopped server again, with its port and data; return False if it was running. Raises KvctlError."""
        if self.servers[name].running:
            return False
        self.servers[name].start()
        self._known.discard(name)
        return True

    def ended(self) -> Iterator[Server]:
        """Yield the servers that ended on their own since the last call."""
        for name, server in self.servers.items():
            if not server.running and name not in self._known:
                self._known.add(name)
                yield server

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


def run_lab(kind: LabKind, *, servers: int | None = None, store: Path | None = None, port: int | None = None) -> Lab:
    """Start a sample layout and wait until buckets can be created everywhere. Raises KvctlError.

    `servers` is the number in each cluster, by default 3 in a `cluster` and otherwise 1. They listen on free ports, or
    on `port` and the next ones, and on INNER_PORT above for each other.
    """
    lab = Lab(kind, store or Path(mkdtemp(prefix=f"kvctl-{kind}-")), temporary=store is None, port=port)
    try:
        _lay_out(lab, servers or (3 if kind == "cluster" else 1))
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


_CLUSTERS: dict[LabKind, dict[str, str]] = {
    "cluster": {"lab": "cluster"},
    "supercluster": {"lon": "supercluster", "nyc": "supercluster"},
    "leaf": {"hub": "hub", "leaf": "leaf"},
    "accounts": {"accounts": "accounts"},
}
"""Name of each cluster -> template of its servers."""
_CLUSTERED = """cluster {
  name: @cluster@
  listen: 127.0.0.1:@route@
  routes: [@routes@]
}"""
"""Part of a configuration that joins servers which could also stand alone."""


def _lay_out(lab: Lab, size: int) -> None:
    """Add the servers of all clusters, each of this size."""
    templates = dict(_CLUSTERS[lab.kind])
    lab.clusters = {cluster: _members(cluster, size) for cluster in templates}
    if lab.kind == "supercluster" and size > 1:
        templates[TIE_BREAKER], lab.clusters[TIE_BREAKER] = "supercluster", [TIE_BREAKER]
    names = [name for members in lab.clusters.values() for name in members]
    ports = lab.inner_ports(2 * len(names))
    routes = dict(zip(names, ports[::2], strict=True))
    doors = dict(zip(names, ports[1::2], strict=True))  # of gateways, or of leaf nodes
    values: dict[str, object] = {"gateways": ", ".join(map(partial(_gateway, lab, doors), lab.clusters))}
    values["hubs"] = _urls("nats-leaf://app:app@", doors, lab.clusters.get("hub", ()))
    for cluster, template in templates.items():
        members = lab.clusters[cluster]
        joined = {"clustered": _CLUSTERED if len(members) > 1 else "", "cluster": cluster, **values}
        joined["routes"] = _urls("nats://", routes, members)
        for name in members:
            _add(lab, name, template, {**joined, "route": routes[name], "door": doors[name]})


def _members(cluster: str, size: int) -> list[str]:
    """Name the servers of a cluster: n1, n2, n3 in the only one, else by it."""
    if cluster == "lab":
        return [f"n{number}" for number in range(1, size + 1)]
    return [cluster] if size == 1 else [f"{cluster}{number}" for number in range(1, size + 1)]


def _gateway(lab: Lab, doors: Mapping[str, int], cluster: str) -> str:
    return f"{{ name: {cluster}, urls: [{_urls('nats://', doors, lab.clusters[cluster])}] }}"


def _urls(scheme: str, ports: Mapping[str, int], names: Sequence[str]) -> str:
    return ", ".join(f'"{scheme}127.0.0.1:{ports[name]}"' for name in names)


def _add(lab: Lab, name: str, template: str, values: Mapping[str, object]) -> None:
    config = fill((_TEMPLATES / f"{template}.conf").read_text(), values)
    port = 0 if lab.port is None else lab.port + len(lab.servers)
    lab.servers[name] = Server(name=name, config=config, store=lab.directory / name, port=port)


def _add_contexts(lab: Lab) -> None:
    urls = {cluster: [lab.servers[name].url for name in members] for cluster, members in lab.clusters.items()}
    everywhere = [server.url for server in lab.servers.values()]
    for name, description, settings in _CONTEXTS[lab.kind]:
        url = ",".join(urls.get(settings.get("url", name), everywhere))
        settings = {**settings, "url": url, "description": description, "origin": f"context `{name}`"}
        lab.contexts[name] = Context(name=name, **settings)


_CONTEXTS: dict[LabKind, tuple[tuple[str, str, dict[str, Any]], ...]] = {
    "cluster": (("cluster", "a cluster, for buckets with stream replicas", {}),),
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
    for context, config in _everywhere(lab):
        async with kvctl.connect(context) as client:
            while not await _can_place(client.api, config):
                if time.monotonic() > deadline:
                    raise UnreachableError(f"The {lab.kind} lab was not ready in {_READY_TIMEOUT:.0f} s")
                await asyncio.sleep(0.05)


def _everywhere(lab: Lab) -> Iterator[tuple[Context, dict[str, Any]]]:
    """Yield contexts with the settings of a stream that needs all servers there."""
    if lab.kind == "supercluster":
        for cluster, members in lab.clusters.items():
            context = lab.contexts.get(cluster) or next(iter(lab.contexts.values()))
            yield context, {"num_replicas": len(members), "placement": {"cluster": cluster}}
        return
    for context in lab.contexts.values():
        if not context.api_prefix:
            yield context, {"num_replicas": len(next(iter(lab.clusters.values())))}


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
