"""Lock on a stream's configuration that every kvctl holds while it edits it.

It is a consumer of a fixed name: servers create one atomically, refuse a second one with other content (10148), and
remove it by themselves when nobody has used it for a while, so that a killed editor blocks nobody. It reads nothing.
Other tools do not know it: conflicts with these are found by reading the edit back.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from kvctl.errors import ConflictError, KvctlError
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers import admin

NAME = "kvctl-edit"
LEASE_S = 3.0
"""Seconds after which an unreleased lock is free: an edit takes milliseconds."""
_MARGIN_S = 0.5
_PAUSE_S = 0.05


@asynccontextmanager
async def edit_lock(api: Api, stream: str) -> AsyncIterator[None]:
    """Hold the lock of a stream; if the server refuses it (permissions, limits), continue without it.

    Raises ConflictError when another editor holds it longer than the connection's timeout.
    """
    taken = await _take(api, stream)
    try:
        yield
    finally:
        if taken is not None and time.monotonic() - taken < LEASE_S - _MARGIN_S:  # later it may be another editor's
            with suppress(KvctlError):
                await asyncio.shield(admin.delete(api, stream, NAME))


async def _take(api: Api, stream: str) -> float | None:
    """Take the lock and return the time; None if it cannot be had."""
    config: dict[str, Any] = {
        "name": NAME, "ack_policy": "none", "deliver_policy": "new", "mem_storage": True, "num_replicas": 1,
        "inactive_threshold": round(LEASE_S * 10**9), "metadata": {"kvctl.editor": os.urandom(8).hex()},
    }  # fmt: skip
    deadline = time.monotonic() + max(api.connection.timeout, LEASE_S + 1)
    while True:
        begun = time.monotonic()
        try:
            await admin.create(api, stream, config)
        except ConflictError:
            if time.monotonic() > deadline:
                raise ConflictError(
                    f"Another kvctl is editing `{stream}`", hint="Run the command again when that one has ended"
                ) from None
            await asyncio.sleep(_PAUSE_S)
        except KvctlError:
            return None
        else:
            return begun
