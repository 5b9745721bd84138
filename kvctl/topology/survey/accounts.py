"""Connections to the contexts of a topology file: one API for each."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from kvctl.contexts import Context, resolve
from kvctl.jetstream.api import Api
from kvctl.topology.model.file import Topology
from kvctl.topology.model.origins import External

if TYPE_CHECKING:
    from kvctl.kv.client import Client

HERE = ""
"""Name of the context in use among those of a file."""

_ABOUT_THE_SERVER = ("context", "server", "domain", "api_prefix")
_FOR_ALL = ("read_only", "timeout", "inbox_prefix", "tls_ca")


async def opened(
    topology: Topology,
    here: Callable[[], Awaitable[Client]],
    connect: Callable[[Context], Awaitable[Client]],
    flags: Mapping[str, object] | None = None,
) -> dict[str, Api]:
    """Return an API for each context of the file, and under HERE for the one in use if anything belongs to it.

    `here` returns the client in use, and is called only if needed; `connect` opens another. `flags` are those of the
    connection in use, as `contexts.resolve` takes them. Raises what either raises, ContextNotFound, UsageError.
    """
    apis: dict[str, Api] = {}
    if not topology.contexts or _somewhere_else(topology):
        apis[HERE] = (await here()).api
    for name, settings in topology.contexts.items():
        if "url" in settings or "context" in settings:
            apis[name] = (await connect(context_of(settings, flags or {}))).api
        else:
            apis[name] = _elsewhere((await here()).api, settings)
    return apis


def context_of(settings: Mapping[str, str], flags: Mapping[str, object]) -> Context:
    """Return the connection settings of a context of a file.

    A URL counts as `--server` does: with the credentials of flags and environment, and never with those of another
    context. A named context has its own. A read-only connection stays read-only. Raises ContextNotFound, UsageError.
    """
    if "url" in settings:
        kept = {name: value for name, value in flags.items() if name not in _ABOUT_THE_SERVER}
        where: dict[str, object] = {"server": settings["url"]}
    else:
        kept = {name: value for name, value in flags.items() if name in _FOR_ALL}
        where = {"context": settings["context"]}
    where |= {name: settings[name] for name in ("domain", "api_prefix") if name in settings}
    return resolve({**kept, **where}, os.environ)


def _elsewhere(api: Api, settings: Mapping[str, str]) -> Api:
    """Return the same connection in the domain or under the prefix of the settings."""
    prefix = External.of_domain(settings["domain"]).api if "domain" in settings else settings.get("api_prefix")
    return api.at(prefix) if prefix else api


def _somewhere_else(topology: Topology) -> bool:
    """Return whether anything belongs to no context of the file."""
    everything = (*topology.buckets, *topology.mirrors, *topology.aggregates)
    return any(name not in topology.places for name in everything)
