"""Streams whose servers are away, as far as other servers and streams describe them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kvctl.errors import KvctlError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import StreamInfo
from kvctl.phrases import quoted
from kvctl.topology.survey.origin_lookup import PATIENCE

MAX_CONCURRENT_REQUESTS = 32
"""Streams that are asked concurrently for those that can answer in their place."""


@dataclass(frozen=True, slots=True)
class Clue:
    """Facts about a stream that does not answer, from the streams that it mirrors."""

    origin: str
    """Stream of which it is a mirror."""
    cluster: str | None

    @property
    def source(self) -> dict[str, str]:
        """The mirror's source, as far as known."""
        return {"name": self.origin}


async def clues(api: Api, infos: Iterable[StreamInfo], offline: Collection[str]) -> dict[str, Clue]:
    """Return what answering streams report of offline ones as their alternates, by stream; only clusters do so."""
    slots = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
    found: dict[str, Clue] = {}

    async def ask(stream: str) -> None:
        async with slots:
            try:
                info = await streams.info(api, stream, timeout=PATIENCE)
            except KvctlError:
                return
        for other in info.get("alternates") or ():
            if other["name"] in offline:
                found[other["name"]] = Clue(stream, other.get("cluster") or None)

    if offline:
        await asyncio.gather(*(ask(info["config"]["name"]) for info in infos))
    return found


def placed_in(info: StreamInfo) -> str | None:
    """Return the cluster in the placement of an offline stream; its info names that of the server that answered."""
    return (info["config"].get("placement") or {}).get("cluster") or None


def servers(info: StreamInfo) -> list[str]:
    """Return the servers that hold an offline stream, as far as they are known."""
    return [peer["name"] for peer in (info.get("cluster") or {}).get("replicas") or ()]


def silence(names: Collection[str], of: str = "") -> str:
    """Say that the servers of a stream do not answer; without `of`, the sentence is about "its" servers."""
    what, listed = "only server" if len(names) == 1 else "servers", quoted(names)
    verb = "does" if len(names) == 1 else "do"
    if of:
        return f"the {what} of {of}{f', {listed},' if listed else ''} {verb} not answer"
    return f"its {what}{f' {listed}' if listed else ''} {verb} not answer"


def lost_majority(info: StreamInfo) -> str:
    """Return the evidence that too few servers of a stream are up to elect a leader; empty if enough are."""
    cluster = info.get("cluster") or {}
    peers = cluster.get("replicas") or []
    away = [peer["name"] for peer in peers if peer.get("offline")]
    count = len(peers) + bool(cluster.get("leader"))
    if not away or (count - len(away)) * 2 > count:
        return ""
    return f"{quoted(away)} of {count} servers {'is' if len(away) == 1 else 'are'} offline"
