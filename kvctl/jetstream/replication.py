"""Refusal to purge streams that replicate or are replicated, unless confirmed."""

from __future__ import annotations

import asyncio

from kvctl.errors import RefusedError, UsageError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_source import parsed_sources
from kvctl.jetstream.streams import Listing


async def require_alone(api: Api, stream: str, confirm: str | None) -> None:
    """Raise RefusedError if purging the stream makes replicas and origins differ, unless its name confirms it.

    Only streams in this account and domain are seen; a stream that does not answer may be a replica. Raises UsageError
    for another name, StreamNotFound, and errors of a listing.
    """
    if confirm is not None:
        if confirm != stream:
            raise UsageError(f"`confirm` is `{confirm}`, but the stream is `{stream}`")
        return
    info, found = await asyncio.gather(streams.info(api, stream), streams.listing(api))
    reasons = [f"it replicates from `{source.name}`" for source in parsed_sources(info["config"])]
    reasons += [f"`{name}` {verb} from it" for name, verb in _readers(found, stream)]
    if reasons:
        raise RefusedError(
            f"Stream `{stream}` was not purged: {', '.join(reasons)}",
            hint="Replicas keep their copies, and messages purged from a replica are not copied again; "
            f"`confirm={stream!r}` purges it anyway",
        )


def _readers(found: Listing, stream: str) -> list[tuple[str, str]]:
    infos = [*found.answering, *(info for info in found.silent.values() if info is not None)]
    reading = [
        info["config"]["name"]
        for info in infos
        if any(source.reads_locally(stream) for source in parsed_sources(info["config"]))
    ]
    unknown = [name for name, info in found.silent.items() if info is None and name != stream]
    return [
        *((name, "replicates") for name in reading),
        *((name, "does not answer and may replicate") for name in unknown),
    ]
