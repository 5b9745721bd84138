"""All that doctor looks at, in one go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from kvctl.doctor import account, imports, replication, repositories, server, storage, tables
from kvctl.doctor.finding import ERROR, WARNING, Finding, ordered
from kvctl.errors import JetStreamDisabled, KvctlError, PermissionDenied
from kvctl.jetstream.api import Api
from kvctl.topology.discover.inventory import Place, survey


async def examine(api: Api) -> list[Finding]:
    """Findings, the worst first. What cannot be looked at is a finding, too; raises nothing but a lost connection."""
    parts = [server.examine(api.connection), account.examine(api), _streams(api)]
    return ordered(finding for found in await asyncio.gather(*map(_guarded, parts)) for finding in found)


async def _streams(api: Api) -> list[Finding]:
    try:
        world = await survey({"": api})
    except PermissionDenied as error:
        text = f"The streams of this account cannot be listed, so nothing is known of its buckets: {error.message}"
        return [Finding(WARNING, "unseen", "account", text, "Use an account that may list them")]
    except JetStreamDisabled:
        return []  # which the account's part says
    except KvctlError as error:
        return [Finding(ERROR, "unseen", "account", f"The streams cannot be listed: {error.message}", error.hint or "")]
    place = world.places[""]
    found = [*storage.examine(place.infos, _servers(api)), *_unreachable(place)]
    found += tables.examine(place.infos, place.unreachable)
    found += [*await repositories.examine(api, place.infos), *await imports.examine(api, place.infos)]
    return [*found, *await replication.examine(world)]


def _unreachable(place: Place) -> list[Finding]:
    return [storage.unreachable(stream, place.offline.get(stream)) for stream in place.unreachable]


async def _guarded(part: Awaitable[Iterable[Finding]]) -> list[Finding]:
    """A part that fails as a whole is a finding: the others still say theirs."""
    try:
        return list(await part)
    except KvctlError as error:
        return [Finding(ERROR, "unseen", "connection", error.message, error.hint or "")]


def _servers(api: Api) -> int:
    """Servers of the cluster that this one belongs to, as far as it tells."""
    return len(set(api.connection.server_info.get("connect_urls") or ())) or 1
