"""Checks of the connection and its server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from kvctl.connection import Connection
from kvctl.doctor.finding import NOTE, WARNING, Finding
from kvctl.errors import KvctlError, NoResponders, PermissionDenied
from kvctl.jetstream.permissions import round_trip

SUBJECT = "connection"
SLOW_ROUND_TRIP_S = 0.25
"""Round trip in seconds above which every command is noticeably slow."""
LACKS = (
    ((2, 10), "subject transforms (required by aggregates), metadata, compression"),
    ((2, 11), "per-key TTLs, reads of many keys in one request"),
    ((2, 12), "atomic batches (required by transactions)"),
)
"""Features that servers before a version do not support."""

_VARZ = "$SYS.REQ.SERVER.PING.VARZ"
_TIMEOUT_S = 0.5


async def examine(connection: Connection) -> list[Finding]:
    """Check round trip, version, encryption, and disk syncs of the server."""
    context, url = connection.context, connection.url
    encrypted = url.startswith(("tls://", "wss://")) or bool(connection.server_info.get("tls_required"))
    secret = any((context.password, context.token, context.user_jwt)) or "@" in context.url
    found = [*version(connection.server_version), *([] if encrypted else clear(url, secret=secret))]
    try:
        seconds = await round_trip(connection)
    except KvctlError as error:
        return [*found, Finding(WARNING, "round-trip", SUBJECT, error.message)]
    if seconds > SLOW_ROUND_TRIP_S:
        text = f"A message takes {seconds * 1000:.0f} ms to the server and back"
        found.append(Finding(NOTE, "round-trip", SUBJECT, text, "Connect to a server nearby, or read from a mirror"))
    return [*found, *await _syncing(connection)]


def version(number: tuple[int, ...]) -> Iterator[Finding]:
    """Yield the finding on missing features of a server of this version."""
    lacking = [text for since, text in LACKS if number < since]
    if lacking:
        text = f"nats-server {'.'.join(map(str, number))} does not support {'; '.join(lacking)}"
        yield Finding(WARNING if len(lacking) > 1 else NOTE, "server-version", SUBJECT, text, "Use a newer server")


def clear(url: str, *, secret: bool) -> Iterator[Finding]:
    """Yield the finding on an unencrypted connection to another machine; `secret` if a password or token is sent."""
    if not _here(url):
        text = "The connection is not encrypted" + (", and the password is sent in the clear" if secret else "")
        yield Finding(WARNING if secret else NOTE, "no-tls", SUBJECT, text, "Enable TLS on the server: `tls {}`")


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
        async with asyncio.timeout(_TIMEOUT_S):
            frame = await connection.request(_VARZ, timeout=_TIMEOUT_S)
        config = json.loads(frame.payload)["data"]["jetstream"]["config"]
        always = bool(config.get("sync_always"))
    if always:
        return []
    seen = "" if always is False else " by default (the setting is not readable from this account)"
    text = f"Servers acknowledge writes before syncing to disk, every two minutes{seen}: a power failure can lose them"
    return [
        Finding(
            NOTE,
            "fsync",
            SUBJECT,
            text,
            "Set `jetstream { sync_interval: always }` on each server; writes become slower",
        )
    ]
