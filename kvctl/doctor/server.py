"""The connection and the servers at its other end."""

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
SLOW = 0.25
"""Seconds there and back above which every command is felt."""
LACKS = (
    ((2, 10), "subject transforms, which aggregates need, nor metadata and compression"),
    ((2, 11), "ttls of keys, nor reads of many keys in one request"),
    ((2, 12), "atomic batches, which transactions need"),
)
"""What servers before a version cannot do for kvctl."""

_VARZ = "$SYS.REQ.SERVER.PING.VARZ"
_PATIENCE = 0.5


async def examine(connection: Connection) -> list[Finding]:
    """Distance, versions, encryption, and when servers write to disk."""
    context, url = connection.context, connection.url
    encrypted = url.startswith(("tls://", "wss://")) or bool(connection.server_info.get("tls_required"))
    secret = any((context.password, context.token, context.user_jwt)) or "@" in context.url
    found = [*version(connection.server_version), *([] if encrypted else clear(url, secret=secret))]
    try:
        seconds = await round_trip(connection)
    except KvctlError as error:
        return [*found, Finding(WARNING, "round-trip", SUBJECT, error.message)]
    if seconds > SLOW:
        text = f"A message takes {seconds * 1000:.0f} ms to the server and back"
        found.append(Finding(NOTE, "round-trip", SUBJECT, text, "Connect to a server nearby, or read from a mirror"))
    return [*found, *await _syncing(connection)]


def version(number: tuple[int, ...]) -> Iterator[Finding]:
    """What a server of this version cannot do for kvctl."""
    lacking = [text for since, text in LACKS if number < since]
    if lacking:
        text = f"nats-server {'.'.join(map(str, number))} does not have {'; '.join(lacking)}"
        yield Finding(WARNING if len(lacking) > 1 else NOTE, "server-version", SUBJECT, text, "Use a newer server")


def clear(url: str, *, secret: bool) -> Iterator[Finding]:
    """A connection without encryption, to another machine; `secret` if a password or a token goes over it."""
    if not _here(url):
        text = "Everything goes over the network in the clear" + (", the password included" if secret else "")
        yield Finding(WARNING if secret else NOTE, "no-tls", SUBJECT, text, "Enable TLS on the server: `tls {}`")


def _here(url: str) -> bool:
    """Whether the server is on this machine."""
    host = urlsplit(url if "://" in url else f"nats://{url}").hostname or ""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


async def _syncing(connection: Connection) -> list[Finding]:
    """Whether servers acknowledge before data is on disk; only a system account can see it."""
    always: bool | None = None
    with suppress(KvctlError, NoResponders, PermissionDenied, ValueError, TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            frame = await connection.request(_VARZ, timeout=_PATIENCE)
        config = json.loads(frame.payload)["data"]["jetstream"]["config"]
        always = bool(config.get("sync_always"))
    if always:
        return []
    seen = "" if always is False else ", unless told otherwise, which cannot be seen from this account"
    text = (
        f"Servers acknowledge writes before they are on disk, and sync every two minutes{seen}: a power cut takes them"
    )
    return [
        Finding(
            NOTE, "fsync", SUBJECT, text, "`jetstream { sync_interval: always }` on each server, at a price in speed"
        )
    ]
