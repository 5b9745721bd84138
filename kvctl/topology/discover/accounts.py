"""The contexts of a topology file, opened: one API for each."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from kvctl.contexts import Context, resolve
from kvctl.jetstream.api import Api
from kvctl.topology.file.document import Topology
from kvctl.topology.model import External

if TYPE_CHECKING:
    from kvctl.kv.client import Client

HERE = ""
"""What the context in use is called among a file's own."""

_ABOUT_THE_SERVER = ("context", "server", "domain", "api_prefix")
_FOR_ALL = ("read_only", "timeout", "inbox_prefix", "tls_ca")


async def opened(
    topology: Topology,
    here: Callable[[], Awaitable[Client]],
    connect: Callable[[Context], Awaitable[Client]],
    flags: Mapping[str, object] | None = None,
) -> dict[str, Api]:
    """An API for each context of the file, and for the one in use, under HERE, when anything is in it.

    `here` gives the client in use, and is not asked where nothing needs it; `connect` opens another. `flags` are those
    of the connection in use, as `contexts.resolve` takes them. Raises what either raises, ContextNotFound, UsageError.
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
    """How to connect to a context of a file.

    A URL counts as `--server` does: with the credentials of flags and environment, and with no context's, which were
    not made for it. A named context has its own. What is for reading only stays so. Raises ContextNotFound, UsageError.
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
    """The same connection, in another domain or under another prefix where the settings say one."""
    prefix = External.of_domain(settings["domain"]).api if "domain" in settings else settings.get("api_prefix")
    return api.at(prefix) if prefix else api


def _somewhere_else(topology: Topology) -> bool:
    """Whether anything is in no context of the file."""
    everything = (*topology.buckets, *topology.mirrors, *topology.aggregates)
    return any(name not in topology.places for name in everything)
