"""Creation of streams that a server fills with the messages of a deleted one of the same name.

Servers up to 2.15 remove a deleted stream's files in the background. A stream created under the same name in the
meantime may be read from these files (seen up to a tenth of a second later), and the removal may delete new files, too.
So the stream is deleted once more and created again after a pause. The removal may also delete the new stream's folder
while the server fills it: then the creation fails (10049) and is tried again.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kvctl.errors import KvctlError, ServerError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.units import parse_time

PAUSES_S = (0.2, 0.5, 1.0, 3.0)
"""Seconds given to the server to remove the files before the next attempt."""
NO_STORE = 10049
"""Server error: the stream's files could not be created."""


def _has_older_messages(created: StreamInfo) -> bool:
    """Check whether the answer to a creation shows messages older than the stream, as only mirrors may hold."""
    state = created["state"]
    if not created.get("did_create") or not state["messages"] or created["config"].get("mirror"):
        return False
    return parse_time(state["last_ts"]) < parse_time(created["created"])


async def create(api: Api, wanted: dict[str, Any]) -> StreamInfo:
    """Create a stream, again when it holds an earlier one's messages; return the server's answer.

    Raises KvctlError when it still does after the last attempt, and as `streams.create`.
    """
    created = await _created(api, wanted)
    for pause in PAUSES_S:
        if not _has_older_messages(created):
            return created
        await streams.delete(api, wanted["name"])
        await asyncio.sleep(pause)
        created = await _created(api, wanted)
    if not _has_older_messages(created):
        return created
    await streams.delete(api, wanted["name"])
    raise KvctlError(
        f"The server created `{wanted['name']}` with entries of a deleted stream of the same name",
        hint="It was deleted again; wait some seconds before the next attempt",
    )


async def _created(api: Api, wanted: dict[str, Any]) -> StreamInfo:
    """Create the stream, a second time when the server could not make its files; return the answer."""
    try:
        return await streams.create(api, wanted)
    except ServerError as error:
        if error.err_code != NO_STORE:
            raise
        await asyncio.sleep(PAUSES_S[0])
        return await streams.create(api, wanted)
