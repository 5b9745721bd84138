"""All checks of doctor, and those of the connection, its server, and the account."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from kvctl.connection import Connection
from kvctl.doctor import content, replication
from kvctl.doctor.finding import ERROR, NOTE, WARNING, Finding, ordered
from kvctl.errors import JetStreamDisabled, KvctlError, NoResponders, PermissionDenied
from kvctl.jetstream.api import SINGLE_ANSWERS, Api
from kvctl.jetstream.direct_get import DirectRequest
from kvctl.jetstream.multi_get import pages
from kvctl.jetstream.permissions import probe, round_trip
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.topology.survey.graph import Place
from kvctl.topology.survey.inventory import survey
from kvctl.units import format_size


async def examine(api: Api) -> list[Finding]:
    """Return findings, the worst first. A failed check is a finding too; only a lost connection is raised."""
    parts = [of_connection(api.connection), of_account(api), _streams(api)]
    return ordered(finding for found in await asyncio.gather(*map(_guarded, parts)) for finding in found)


async def _streams(api: Api) -> list[Finding]:
    try:
        inventory = await survey({"": api})
    except PermissionDenied as error:
        text = f"Could not list the streams of this account, so its buckets were not checked: {error.message}"
        return [Finding(WARNING, "unseen", ACCOUNT, text, "Use a user who may list streams")]
    except JetStreamDisabled:
        return []  # reported by the check of the account
    except KvctlError as error:
        return [Finding(ERROR, "unseen", ACCOUNT, f"Could not list the streams: {error.message}", error.hint or "")]
    place = inventory.places[""]
    found = [*content.of_buckets(place.infos, *_servers(api)), *_offline(place)]
    found += [*content.of_tables(place.infos, place.unreachable), *await content.of_repositories(api, place.infos)]
    found += [*await of_import(api, place.infos), *await content.of_unlisted(api, place.infos)]
    return [*found, *await replication.examine(inventory)]


def _offline(place: Place) -> list[Finding]:
    origins = {stream: clue.origin for stream, clue in place.clues.items()}
    return [
        content.of_offline(stream, place.offline.get(stream), place.cluster_of(stream), origins.get(stream))
        for stream in place.unreachable
    ]


async def _guarded(part: Awaitable[Iterable[Finding]]) -> list[Finding]:
    """Return the findings of a check; one that fails is a finding itself."""
    try:
        return list(await part)
    except KvctlError as error:
        return [Finding(ERROR, "unseen", CONNECTION, error.message, error.hint or "")]


def _servers(api: Api) -> tuple[int, str]:
    """Return the number of servers in this server's cluster, as far as it reports them, and the cluster's name."""
    found = api.connection.server_info
    return len(set(found.get("connect_urls") or ())) or 1, found.get("cluster") or ""


CONNECTION = "connection"
SLOW_ROUND_TRIP_S = 0.25
"""Round trip in seconds above which every command is noticeably slow."""
LACKS = (
    ((2, 10), "subject transforms (required by aggregates), metadata, compression"),
    ((2, 11), "per-key TTLs, reads of many keys in one request"),
    ((2, 12), "atomic batches (required by transactions)"),
)
"""Features that servers before a version do not support."""

_VARZ = "$SYS.REQ.SERVER.PING.VARZ"
_VARZ_TIMEOUT_S = 0.5


async def of_connection(connection: Connection) -> list[Finding]:
    """Check round trip, version, encryption, and disk syncs of the server."""
    context, url = connection.context, connection.url
    encrypted = url.startswith(("tls://", "wss://")) or bool(connection.server_info.get("tls_required"))
    secret = any((context.password, context.token, context.user_jwt)) or "@" in context.url
    found = [*version(connection.server_version), *([] if encrypted else clear(url, secret=secret))]
    try:
        seconds = await round_trip(connection)
    except KvctlError as error:
        return [*found, Finding(WARNING, "round-trip", CONNECTION, error.message)]
    if seconds > SLOW_ROUND_TRIP_S:
        text = f"A message takes {seconds * 1000:.0f} ms to the server and back"
        found.append(Finding(NOTE, "round-trip", CONNECTION, text, "Connect to a server nearby, or read from a mirror"))
    return [*found, *await _syncing(connection)]


def version(number: tuple[int, ...]) -> Iterator[Finding]:
    """Yield the finding on missing features of a server of this version."""
    lacking = [text for since, text in LACKS if number < since]
    if lacking:
        text = f"nats-server {'.'.join(map(str, number))} does not support {'; '.join(lacking)}"
        yield Finding(WARNING if len(lacking) > 1 else NOTE, "server-version", CONNECTION, text, "Use a newer server")


def clear(url: str, *, secret: bool) -> Iterator[Finding]:
    """Yield the finding on an unencrypted connection to another machine; `secret` if a password or token is sent."""
    if not _here(url):
        text = "The connection is not encrypted" + (", and the password is sent in the clear" if secret else "")
        yield Finding(WARNING if secret else NOTE, "no-tls", CONNECTION, text, "Enable TLS on the server: `tls {}`")


def _here(url: str) -> bool:
    """Return whether the server is on this machine."""
    host = urlsplit(url if "://" in url else f"nats://{url}").hostname or ""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


async def _syncing(connection: Connection) -> list[Finding]:
    """Return the finding on servers that acknowledge before syncing to disk; only a system account sees the setting."""
    always: bool | None = None
    with suppress(KvctlError, NoResponders, PermissionDenied, ValueError, TimeoutError):
        async with asyncio.timeout(_VARZ_TIMEOUT_S):
            frame = await connection.request(_VARZ, timeout=_VARZ_TIMEOUT_S)
        config = json.loads(frame.payload)["data"]["jetstream"]["config"]
        always = bool(config.get("sync_always"))
    if always:
        return []
    seen = "" if always is False else " by default (the setting is not readable from this account)"
    text = f"Servers acknowledge writes before syncing to disk, every two minutes{seen}: a power failure can lose them"
    remedy = "Set `jetstream { sync_interval: always }` on each server; writes become slower"
    return [Finding(NOTE, "fsync", CONNECTION, text, remedy)]


ACCOUNT = "account"
PROBE_TIMEOUT_S = 1.0
"""Seconds for the answer to a probe: a refusal comes immediately, and in clusters some get no answer."""
NEAR, FULL = 0.8, 0.98
"""Parts of a limit at which to warn, and to report an error."""

_LIMITS = {"memory": "max_memory", "storage": "max_storage", "streams": "max_streams", "consumers": "max_consumers"}


async def of_account(api: Api) -> list[Finding]:
    """Check the usage of the account's limits, in each tier, and its user's permissions."""
    found = await _denied(api)
    try:
        info = await api.account_info()
    except PermissionDenied:
        return found  # reported by the probes
    except KvctlError as error:
        return [*found, Finding(ERROR, "jetstream", ACCOUNT, error.message, error.hint or "")]
    found += _near(info, "")
    for tier, usage in (info.get("tiers") or {}).items():
        found += _near(usage, f" of tier {tier}")
    return found


def _near(usage: Mapping[str, Any], where: str) -> Iterator[Finding]:
    limits = usage.get("limits") or {}
    for name, of in _LIMITS.items():
        used = max(usage.get(name, 0), usage.get(f"reserved_{name}", 0))
        limit = limits.get(of, -1)
        part = used / limit if limit > 0 else 0.0  # no limit is 0 or less
        if part >= NEAR:
            shown = [format_size(value) if name in ("memory", "storage") else str(value) for value in (used, limit)]
            text = f"{part:.0%} of the account's {name}{where} limit is used: {shown[0]} of {shown[1]}"
            severity = ERROR if part >= FULL else WARNING
            yield Finding(severity, "account-limit", ACCOUNT, text, "Raise the account's limit, or delete unused data")


async def _denied(api: Api) -> list[Finding]:
    denied = [
        item
        for item in await probe(api, timeout=PROBE_TIMEOUT_S)
        if not item.allowed and item.reason == "permission denied"
    ]
    if not denied:
        return []
    actions = ", ".join(item.action for item in denied)
    subjects = ", ".join(f"`{item.subject}`" for item in denied)
    remedy = f"Allow the user to publish to {subjects}"
    return [Finding(NOTE, "permissions", ACCOUNT, f"Not allowed to {actions}", remedy)]


async def of_import(api: Api, infos: Mapping[str, StreamInfo]) -> list[Finding]:
    """Request one message from one stream, which takes two answers: the message, and the end."""
    if api.prefix.startswith("$JS."):
        return []
    for stream, info in infos.items():
        if info["state"]["messages"] and info["config"].get("allow_direct"):
            request = DirectRequest(sequence=info["state"]["first_seq"], batch=1)
            with suppress(KvctlError):  # other errors are reported elsewhere
                async with aclosing(pages(api, stream, request)) as answers:
                    await anext(answers)
            break
    if not api.answers_once:
        return []
    text = f"Requests to `{api.prefix}` get only one answer: listings, watches and `consume` request each message"
    return [Finding(WARNING, "single-answers", ACCOUNT, text, SINGLE_ANSWERS)]
