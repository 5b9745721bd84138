"""What a connection may do: each API subject is asked in a way that changes nothing.

Permissions are checked before anything else, so a request for a stream that does not exist, or with a body that
names another one than its subject, tells whether its subject is allowed. Nothing here can succeed in changing anything.
Servers log a warning of each body that they cannot read, so all of them are well-formed.
"""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from kvctl.connection import Connection
from kvctl.errors import KvctlError, NoResponders, PermissionDenied, RequestTimeout
from kvctl.jetstream.api import Api
from kvctl.wire import encode_headers

SILENCE_S = 1.0
"""For which an answer is waited for: a denial comes at once."""
_ELSEWHERE = b'{"name":"kvctl-probe-elsewhere"}'
"""A stream's configuration under another name than the subject's: servers refuse it (10056)."""
_CONSUMER_ELSEWHERE = b'{"stream_name":"kvctl-probe-elsewhere","config":{}}'
"""The same for a consumer."""
# A stream that takes the subject all the same refuses the message: it is not the expected one.
_REFUSED = encode_headers({"Nats-Expected-Stream": "kvctl-probe"})


@dataclass(frozen=True, slots=True)
class Access:
    """One subject and whether the account may use it; `reason` says why not."""

    action: str
    """What it is for: "read a key"."""
    subject: str
    """With BUCKET and KEY for the names that were tried."""
    allowed: bool | None
    """None where nobody said: the server was silent."""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class _Probe:
    action: str
    subject: str
    payload: bytes = b""
    header: bytes = b""
    silent: bool = False
    """Nobody answers where there is no such bucket."""


async def probe(api: Api, bucket: str | None = None, *, timeout: float | None = None) -> list[Access]:
    """What is allowed on the bucket, or on one that does not exist: permissions may name buckets one by one.

    An existing bucket is asked for reading and writing only, never for deletion. `timeout` is each request's.
    """
    name = bucket or f"kvctl-probe-{os.urandom(4).hex()}"
    asked = (_ask(api.connection, item, timeout) for item in _probes(api, name, absent=not bucket))
    found = await asyncio.gather(*asked)
    return [replace(item, subject=_shown(item.subject, name, bucket)) for item in found]


async def round_trip(connection: Connection) -> float:
    """Seconds to the server and back, the best of three. Raises RequestTimeout, NoServer."""
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
    yield _Probe("look at a bucket", f"{api.prefix}.STREAM.INFO.{stream}")
    yield _Probe("read a key", f"{api.prefix}.DIRECT.GET.{stream}.{key}", silent=True)
    yield _Probe("read several keys", f"{api.prefix}.DIRECT.GET.{stream}", last, silent=True)
    yield _Probe("read a key at the leader", f"{api.prefix}.STREAM.MSG.GET.{stream}", last)
    yield _Probe("list and watch keys", f"{api.prefix}.CONSUMER.CREATE.{stream}.kvctl.{key}", _CONSUMER_ELSEWHERE)
    yield _Probe("receive what is listed", f"{api.prefix}.CONSUMER.MSG.NEXT.{stream}.kvctl-probe", silent=True)
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
    except RequestTimeout as error:  # servers of a cluster leave requests about what is not there to one another
        return Access(item.action, item.subject, None, error.message)
    except NoResponders:
        reason = None if item.silent else "nobody answers"
    except PermissionDenied as error:
        reason = "permission denied" if error.subject == item.subject else f"replies: {error.message}"
    except KvctlError as error:
        reason = error.message
    return Access(item.action, item.subject, reason is None, reason)
