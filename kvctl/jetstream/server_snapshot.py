"""Snapshots of a stream by the server: received and sent in acknowledged chunks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

from kvctl.connection import Subscription, permission_denied
from kvctl.errors import ConnectionLost, KvctlError, NoResponders, RequestTimeout, ServerError
from kvctl.jetstream.api import Api, server_error
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo, StreamState
from kvctl.tokens import check_name
from kvctl.wire import status

CHUNK = 512 << 10
FINISHING = 60.0
"""Minimum seconds that a server may take to assemble a restored stream."""
FINISHING_RATE = 20 << 20
"""Minimum rate of assembling in bytes per second."""
PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Pauses until the servers of a cluster know the subject of a restore."""

RESTORE_FAILED = 10062
RESTORE_NAME_IN_USE = 10130


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Stream at the moment the snapshot began; the chunks have its messages in the server's own format."""

    config: StreamConfig
    state: StreamState
    chunks: AsyncIterator[bytes]


@asynccontextmanager
async def taking(api: Api, stream: str) -> AsyncIterator[Snapshot]:
    """Have the server take a snapshot; each chunk is acknowledged when the next one is requested.

    Raises StreamNotFound, ServerError (also for damaged messages), PermissionDenied, ConnectionLost, RequestTimeout.
    """
    connection = api.connection
    async with connection.subscribe() as subscription:
        request = {
            "deliver_subject": subscription.subject,
            "no_consumers": True,
            "chunk_size": min(CHUNK, connection.max_payload),
            "jsck": True,
        }
        reply = await api.call(f"STREAM.SNAPSHOT.{stream}", request, timeout=max(connection.timeout, FINISHING))
        yield Snapshot(reply["config"], reply["state"], _chunks(api, subscription))


class RestoreSession:
    """Restore of a stream. Until it is complete, and after a failure, the stream may exist in part."""

    def __init__(self, api: Api, config: StreamConfig, state: StreamState) -> None:
        self._api = api
        self._request = {"config": config, "state": state}
        self._subject = ""

    async def begin(self) -> None:
        """Announce the stream. Raises ServerError (10130: the name is in use), ReadOnly."""
        self._api.connection.context.require_writable()
        endpoint = f"STREAM.RESTORE.{check_name(self._request['config']['name'], 'stream')}"
        self._subject = (await self._api.call(endpoint, self._request))["deliver_subject"]

    async def send(self, chunk: bytes) -> None:
        """Send a chunk of the snapshot. Raises ServerError, NoResponders."""
        for pause in PAUSES_S:
            with suppress(NoResponders):  # nobody has received it
                await self._ask(chunk, max(self._api.connection.timeout, 10))
                return
            await asyncio.sleep(pause)
        await self._ask(chunk, max(self._api.connection.timeout, 10))

    async def finish(self) -> StreamInfo:
        """Finish and return the info of the complete stream. Raises ServerError."""
        patience = FINISHING + self._request["state"].get("bytes", 0) / FINISHING_RATE
        return cast("StreamInfo", await self._ask(b"", patience))

    def abort(self) -> None:
        """Abort the restore immediately, instead of after five seconds of silence. Raises NoServer."""
        if self._subject:
            self._api.connection.publish(self._subject, b"-")  # without a reply subject: a protocol error that ends it

    async def _ask(self, chunk: bytes, timeout: float) -> dict[str, Any]:
        frame = await self._api.connection.request(self._subject, chunk, timeout=timeout)
        reply: dict[str, Any] = json.loads(frame.payload) if frame.payload else {}
        if reply.get("error"):
            raise server_error(reply["error"])
        return reply


def pieces(chunks: Iterable[bytes], size: int) -> Iterable[bytes]:
    """The chunks cut to what one message may hold."""
    for chunk in chunks:
        for start in range(0, len(chunk), size):
            yield chunk[start : start + size]


async def _chunks(api: Api, subscription: Subscription) -> AsyncIterator[bytes]:
    connection, epoch = api.connection, api.connection.epoch
    timeout = max(connection.timeout, 10)
    while True:
        frames = await subscription.inbox.take(timeout)
        if connection.epoch != epoch:
            raise ConnectionLost("The connection was lost in the middle of the snapshot")
        if subscription.denials:
            raise permission_denied(*next(iter(subscription.denials)))
        if not frames:
            raise RequestTimeout(f"The snapshot stopped: nothing came within {timeout:g}s")
        for _, reply, header, payload in frames:
            if not payload:
                _check_end(header)
                return
            yield payload
            if reply:
                connection.publish(reply.decode())


def _check_end(header: bytes) -> None:
    code, text = status(header)
    if code >= 400:
        problem: KvctlError = ServerError(f"The server gave the snapshot up: {text} ({code})", code=code)
        raise problem
