"""Streams that are created with the messages of a deleted one: a fault of servers, noticed and undone.

Servers up to 2.15 remove a deleted stream's files in the background. One that is created under the same name in the
meantime may be read from these files (seen up to a tenth of a second later), and what removes them may take new files
along. So the stream is deleted once more and created when the server has had time.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kvctl.errors import KvctlError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.quantities import parse_time

PAUSES_S = (0.2, 0.5, 1.0, 3.0)
"""Seconds that the server has to remove the files before the next attempt."""


def held(created: dict[str, Any]) -> bool:
    """Whether the answer to a creation shows messages that are older than the stream, as only mirrors may hold."""
    state = created["state"]
    if not created.get("did_create") or not state["messages"] or created["config"].get("mirror"):
        return False
    return parse_time(state["last_ts"]) < parse_time(created["created"])


async def create(api: Api, wanted: dict[str, Any]) -> dict[str, Any]:
    """Create a stream, again where it holds an earlier one's messages; return the server's answer.

    Raises KvctlError where that does not help, and as `streams.create`.
    """
    created = await streams.create(api, wanted)
    for pause in PAUSES_S:
        if not held(created):
            return created
        await streams.delete(api, wanted["name"])
        await asyncio.sleep(pause)
        created = await streams.create(api, wanted)
    if not held(created):
        return created
    await streams.delete(api, wanted["name"])
    raise KvctlError(
        f"The server created `{wanted['name']}` with entries of a deleted stream of this name",
        hint="It was deleted again; wait some seconds before the next attempt",
    )
