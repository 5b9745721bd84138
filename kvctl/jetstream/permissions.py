"""Permissions of a connection, probed by requests on each API subject that change nothing.

Servers check permissions first, so a request for a missing stream, or with a body that names another stream than its
subject, shows if its subject is allowed. No probe can change anything. Servers log a warning for each unreadable body,
so all bodies are well-formed.
"""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from kvctl.connection import Connection
from kvctl.errors import KvctlError, NoResponders, PermissionDenied, RequestTimeout
from kvctl.jetstream.api import Api
from kvctl.wire import encode_headers

SILENCE_S = 1.0
"""Seconds to wait for an answer: a denial comes immediately."""
_ELSEWHERE = b'{"name":"kvctl-probe-elsewhere"}'
"""Stream configuration whose name differs from the subject's: servers refuse it (10056)."""
_CONSUMER_ELSEWHERE = b'{"stream_name":"kvctl-probe-elsewhere","config":{}}'
"""The same for a consumer."""
# A stream that nevertheless takes the subject refuses the message by its expected stream.
_REFUSED = encode_headers({"Nats-Expected-Stream": "kvctl-probe"})


@dataclass(frozen=True, slots=True)
class Access:
    """A subject and whether the account may use it; `reason` says why not."""

    action: str
    """Action that needs it, as in "read a key"."""
    subject: str
    """Subject, with BUCKET and KEY for the names that were probed."""
    allowed: bool | None
    """None if unknown: the server did not answer."""
    reason: str | None = None


class _Probe(NamedTuple):
    action: str
    subject: str
    payload: bytes = b""
    header: bytes = b""
    silent: bool = False
    """Nobody answers if the bucket does not exist."""


async def probe(api: Api, bucket: str | None = None, *, timeout: float | None = None) -> list[Access]:
    """Probe the permissions on the bucket, or on a missing one: permissions may name buckets one by one.

    On an existing bucket only reading and writing is probed, never deletion. `timeout` is each request's.
    """
    name = bucket or f"kvctl-probe-{os.urandom(4).hex()}"
    asked = (_ask(api.connection, item, timeout) for item in _probes(api, name, absent=not bucket))
    found = await asyncio.gather(*asked)
    return [replace(item, subject=_shown(item.subject, name, bucket)) for item in found]


async def round_trip(connection: Connection) -> float:
    """Return the seconds of a round trip to the server, the best of three. Raises RequestTimeout, NoServer."""
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        with suppress(NoResponders, PermissionDenied):  # either is the server's answer
            await connection.request("kvctl-probe", header=_REFUSED)
        times.append(time.perf_counter() - begun)
    return min(times)


def _shown(subject: str, name: str, bucket: str | None) -> str:
    return subject.replace(name, bucket or "BUCKET").replace("kvctl-probe", "KEY")


def _probes(api: Api, name: str, *, absent: bool) -> Iterator[_Probe]:
    stream, key = f"KV_{name}", f"$KV.{name}.kvctl-probe"
    last = json.dumps({"last_by_subj": key}).encode()
    yield _Probe("list buckets", f"{api.prefix}.STREAM.LIST", b'{"subject":"kvctl-probe"}')
    yield _Probe("show a bucket", f"{api.prefix}.STREAM.INFO.{stream}")
    yield _Probe("read a key", f"{api.prefix}.DIRECT.GET.{stream}.{key}", silent=True)
    yield _Probe("read several keys", f"{api.prefix}.DIRECT.GET.{stream}", last, silent=True)
    yield _Probe("read a key at the leader", f"{api.prefix}.STREAM.MSG.GET.{stream}", last)
    yield _Probe("list and watch keys", f"{api.prefix}.CONSUMER.CREATE.{stream}.kvctl.{key}", _CONSUMER_ELSEWHERE)
    yield _Probe("receive listings", f"{api.prefix}.CONSUMER.MSG.NEXT.{stream}.kvctl-probe", silent=True)
    yield _Probe("write a key", f"{api.write_prefix}{key}", b"", _REFUSED, silent=True)
    if absent:
        yield _Probe("create buckets", f"{api.prefix}.STREAM.CREATE.{stream}", _ELSEWHERE)
        yield _Probe("change buckets", f"{api.prefix}.STREAM.UPDATE.{stream}", _ELSEWHERE)
        yield _Probe("remove old revisions", f"{api.prefix}.STREAM.PURGE.{stream}", b'{"filter":"kvctl-probe"}')
        yield _Probe("delete buckets", f"{api.prefix}.STREAM.DELETE.{stream}", _ELSEWHERE)
        yield _Probe("back up buckets", f"{api.prefix}.STREAM.SNAPSHOT.{stream}", b'{"deliver_subject":""}')


async def _ask(connection: Connection, item: _Probe, timeout: float | None) -> Access:
    reason = None
    limit = SILENCE_S if timeout is None else min(timeout, SILENCE_S)
    try:
        await connection.request(item.subject, item.payload, item.header, timeout=limit)
    except RequestTimeout:  # no server of a cluster answers for something that does not exist
        return Access(item.action, item.subject, None, f"no answer within {limit:g}s")
    except NoResponders:
        reason = None if item.silent else "nobody answers"
    except PermissionDenied as error:
        reason = "permission denied" if error.subject == item.subject else f"replies: {error.message}"
    except KvctlError as error:
        reason = error.message
    return Access(item.action, item.subject, reason is None, reason)
