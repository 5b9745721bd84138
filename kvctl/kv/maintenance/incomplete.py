"""Streams being filled: marked in their metadata, so that leftovers of a killed attempt are recognised."""

from __future__ import annotations

import asyncio
import secrets

from kvctl.errors import ConflictError, KvctlError, StreamNotFound
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.kv.names import STREAM_PREFIX
from kvctl.kv.stream_kind import UNFINISHED

_ATTEMPTS = 3
_CLEANUP_TIMEOUT_S = 2.0
"""Seconds for one request during cleanup: the server may be what failed."""


def new_token() -> str:
    """Create the name of an attempt."""
    return secrets.token_hex(8)


def marked(config: StreamConfig, token: str) -> StreamConfig:
    """Return the configuration with the attempt's mark."""
    return {**config, "metadata": {**(config.get("metadata") or {}), UNFINISHED: token}}


def mark_of(info: StreamInfo | None) -> str | None:
    """Return the attempt that left the stream incomplete, if any."""
    return ((info["config"].get("metadata") or {}) if info else {}).get(UNFINISHED)


async def clear_away(api: Api, info: StreamInfo) -> None:
    """Delete leftovers of an attempt. Raises ConflictError while it is still running."""
    stream = info["config"]["name"]
    await asyncio.sleep(1)
    later = await streams.find(api, stream)
    if later is None:
        return
    if later["state"] != info["state"] or mark_of(later) != mark_of(info):
        raise ConflictError(f"`{stream.removeprefix(STREAM_PREFIX)}` is being filled by another process")
    await streams.delete(api, stream)


async def remove(api: Api, stream: str, token: str) -> bool:
    """Delete the stream if it carries this attempt's mark; return True if so. Raises nothing."""
    for _ in range(_ATTEMPTS):
        try:
            if mark_of(await streams.info(api, stream, timeout=_CLEANUP_TIMEOUT_S)) != token:
                return False
            await streams.delete(api, stream)
            return True
        except StreamNotFound:
            return False
        except KvctlError:
            pass
        await asyncio.sleep(0.2)
    return False
