"""All checks of doctor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from kvctl.doctor import account, imports, replication, repositories, server, storage, tables, unlisted
from kvctl.doctor.finding import ERROR, WARNING, Finding, ordered
from kvctl.errors import JetStreamDisabled, KvctlError, PermissionDenied
from kvctl.jetstream.api import Api
from kvctl.topology.survey.graph import Place
from kvctl.topology.survey.inventory import survey


async def examine(api: Api) -> list[Finding]:
    """Return findings, the worst first. A failed check is a finding too; only a lost connection is raised."""
    parts = [server.examine(api.connection), account.examine(api), _streams(api)]
    return ordered(finding for found in await asyncio.gather(*map(_guarded, parts)) for finding in found)


async def _streams(api: Api) -> list[Finding]:
    try:
        inventory = await survey({"": api})
    except PermissionDenied as error:
        text = f"Could not list the streams of this account, so its buckets were not checked: {error.message}"
        return [Finding(WARNING, "unseen", "account", text, "Use a user who may list streams")]
    except JetStreamDisabled:
        return []  # reported by the check of the account
    except KvctlError as error:
        return [Finding(ERROR, "unseen", "account", f"Could not list the streams: {error.message}", error.hint or "")]
    place = inventory.places[""]
    found = [*storage.examine(place.infos, *_servers(api)), *_offline(place)]
    found += tables.examine(place.infos, place.unreachable)
    found += [*await repositories.examine(api, place.infos), *await imports.examine(api, place.infos)]
    found += await unlisted.examine(api, place.infos)
    return [*found, *await replication.examine(inventory)]


def _offline(place: Place) -> list[Finding]:
    origins = {stream: clue.origin for stream, clue in place.clues.items()}
    return [
        storage.offline(stream, place.offline.get(stream), place.cluster_of(stream), origins.get(stream))
        for stream in place.unreachable
    ]


async def _guarded(part: Awaitable[Iterable[Finding]]) -> list[Finding]:
    """Return the findings of a check; one that fails is a finding itself."""
    try:
        return list(await part)
    except KvctlError as error:
        return [Finding(ERROR, "unseen", "connection", error.message, error.hint or "")]


def _servers(api: Api) -> tuple[int, str]:
    """Return the number of servers in this server's cluster, as far as it reports them, and the cluster's name."""
    found = api.connection.server_info
    return len(set(found.get("connect_urls") or ())) or 1, found.get("cluster") or ""
