"""The trace of a key on live servers: what each stream holds, and why not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from kvctl.errors import KvctlError, StreamNotFound, StreamOffline
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import StreamInfo, sources_of
from kvctl.jetstream.streams import ServerClock
from kvctl.kv.names import is_wild
from kvctl.topology.audit.side import AuditReader
from kvctl.topology.audit.verdict import Ages, held, source_of
from kvctl.topology.health import arrival
from kvctl.topology.health.arrival import Goal
from kvctl.topology.health.inspection import lineage
from kvctl.topology.survey.graph import Inventory, Link, Node, node_id
from kvctl.topology.survey.inventory import survey, with_domains
from kvctl.topology.survey.origin_lookup import PATIENCE
from kvctl.topology.views import key_state
from kvctl.topology.views.drawing import Drawing, Edge, configured
from kvctl.topology.views.key_state import KeyReading, Passage, TraceState
from kvctl.topology.views.trace import LIMIT, KeyTrace, Stop, follow, key_of, origins, replicas, start_of, subject_of

MAX_CANDIDATES = 20
"""Keys of one origin that are examined, if several land in one place."""
MAX_CONCURRENT_READS = 32


async def trace(apis: Mapping[str, Api], name: str, key: str) -> KeyTrace:
    """Return where a key goes and came from. Raises BucketNotFound, RefusedError, and what a listing raises."""
    inventory = await with_domains(await survey(apis), apis)
    graph, links = configured(inventory)
    graph = _without_contexts(graph, set(inventory.places) - set(apis))
    node = start_of(graph, name)
    walk = _LiveTrace(graph, links, inventory, await ServerClock.of_connection(next(iter(apis.values()))))
    found = await walk.trace(node, subject_of(graph, node, key))
    unknown = (stream for place in inventory.places.values() for stream in place.unknown if stream != node.stream)
    return replace(found, offline=tuple(unknown))


def _without_contexts(graph: Drawing, domains: set[str]) -> Drawing:
    """Return the graph with the nodes of these domains, which are not contexts of the user."""
    return graph._replace(
        nodes=tuple(node._replace(context=None) if node.context in domains else node for node in graph.nodes)
    )


class _LiveTrace:
    """Readings of the streams on the way of one key, each made once, and the trace that follows from them."""

    def __init__(self, graph: Drawing, links: Mapping[Edge, Link], inventory: Inventory, clock: ServerClock) -> None:
        self._graph, self._links, self._clock = graph, links, clock
        self._apis = _apis(inventory)
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_READS)
        self._infos: dict[str, asyncio.Task[StreamInfo | None]] = {}
        self._readings: dict[tuple[str, str], asyncio.Task[KeyReading]] = {}

    async def trace(self, node: Node, subject: str) -> KeyTrace:
        """Return the trace of a subject in a stream."""
        before, after = (follow(self._graph, node, subject, step) for step in (origins, replicas))
        first, found, reached = await asyncio.gather(
            self._reading(node, subject),
            self._origins(before, node, subject, None),
            asyncio.gather(*(self._replica(stop, node, subject, None) for stop in after)),
        )
        state, evidence = key_state.of_start(first)
        start = Stop(
            node, subject, key_of(self._graph, node, subject), state=state, evidence=evidence, message=first.message
        )
        return KeyTrace(start, found, tuple(reached))

    async def _replica(self, stop: Stop, origin: Node, subject: str, before: TraceState | None) -> Stop:
        """Return the trace of a stop and what follows; `before` is the state in the stop before it, the origin."""
        if stop.subject is None:
            return stop
        judged = await self._judged(stop, (origin, subject), (stop.node, stop.subject), before)
        ways = (self._replica(other, stop.node, stop.subject, judged.state) for other in stop.onward)
        return replace(judged, onward=tuple(await asyncio.gather(*ways)))

    async def _origins(
        self, stops: Sequence[Stop], replica: Node, landed: str, after: TraceState | None
    ) -> tuple[Stop, ...]:
        """Return the traces of stops that lead to a subject, whose own state is `after`, with what leads to them."""
        found = await asyncio.gather(*(self._candidates(stop, replica, landed) for stop in stops))
        several = [stop for candidates in found for stop in candidates]
        return tuple(await asyncio.gather(*(self._origin(stop, replica, landed, after) for stop in several)))

    async def _origin(self, stop: Stop, replica: Node, landed: str, after: TraceState | None) -> Stop:
        if stop.subject is None:
            return stop
        if is_wild(stop.subject):
            text = "several keys land here, and they cannot be listed"
            return replace(stop, state=TraceState.UNKNOWN, evidence=text)
        judged = await self._judged(stop, (stop.node, stop.subject), (replica, landed), after)
        return replace(judged, onward=await self._origins(stop.onward, stop.node, stop.subject, judged.state))

    async def _candidates(self, stop: Stop, replica: Node, landed: str) -> list[Stop]:
        """Return a stop for each key of the origin that lands there; the one that the entry names comes first."""
        if stop.subject is None or not is_wild(stop.subject):
            return [stop]
        here = await self._reading(replica, landed)
        named = source_of(here.message.header) if here.message else None
        subjects: list[str] = []
        if named is not None and named.stream == stop.node.stream and named.subject:
            subjects.append(named.subject)
        with suppress(KvctlError):
            subjects += sorted(await streams.subjects(self._apis[stop.node.id], stop.node.stream, stop.subject))
        found = list(dict.fromkeys(subjects))
        several = [self._candidate(stop, subject) for subject in found]
        rest = [replace(stop, end=LIMIT)] if len(found) > MAX_CANDIDATES else []
        return [*several[:MAX_CANDIDATES], *rest] if found else [stop]

    def _candidate(self, stop: Stop, subject: str) -> Stop:
        onward = () if stop.end else follow(self._graph, stop.node, subject, origins)
        return replace(stop, subject=subject, key=key_of(self._graph, stop.node, subject), onward=onward)

    async def _judged(
        self, stop: Stop, there: tuple[Node, str], here: tuple[Node, str], before: TraceState | None
    ) -> Stop:
        """Return a stop with the state of its replication and its last message; `before` is the other side's state."""
        link = self._links[stop.edges[0]]
        origin, replica = await asyncio.gather(self._reading(*there), self._reading(*here))
        judged = key_state.judge(await self._passage(link, there, here, origin, replica))
        reading, other = (origin, here[0]) if stop.node is there[0] else (replica, there[0])
        state, evidence = key_state.inherited(before, other.name, judged)
        return replace(stop, state=state, evidence=evidence, message=reading.message)

    async def _passage(
        self, link: Link, there: tuple[Node, str], here: tuple[Node, str], origin: KeyReading, replica: KeyReading
    ) -> Passage:
        info = await self._info(here[0]) or link.info
        if link.source not in sources_of(info["config"]):  # changed in the meantime
            info = link.info
        return Passage(
            origin=there[0].name,
            stream=link.source["name"],
            subject=there[1],
            there=origin,
            here=replica,
            upstream=link._replace(info=info).upstream,
            mirror=bool(info["config"].get("mirror")),
            arrived=await self._arrived(link, info, there[1]),
            ages=Ages.of(info["config"]),
            now_ns=self._clock.now_ns(),
            earlier_instance=await self._earlier_instance(link, info, there[0]),
        )

    async def _arrived(self, link: Link, info: StreamInfo, subject: str) -> int | None:
        with suppress(KvctlError):
            return await arrival.arrived(link.place.api, info, Goal(link.view, link.source, None, subject))
        return None

    async def _earlier_instance(self, link: Link, info: StreamInfo, origin: Node) -> str:
        """Return the evidence that a replica holds entries of an earlier stream instance of its origin."""

        def evidence(current: StreamInfo | None) -> str:
            if current is None or link.silent:
                return ""
            found = lineage(info, current, link.source)
            return found.evidence if found.same is False else ""

        if not evidence(await self._info(origin)):
            return ""
        with suppress(KvctlError):  # it may have been read before the replica
            return evidence(await streams.info(self._apis[origin.id], origin.stream, timeout=PATIENCE))
        return ""

    async def _info(self, node: Node) -> StreamInfo | None:
        """Return the info of a stream; None if it cannot be read."""
        if node.id not in self._infos:
            self._infos[node.id] = asyncio.ensure_future(self._ask(node))
        return await self._infos[node.id]

    async def _ask(self, node: Node) -> StreamInfo | None:
        if not node.offline:
            with suppress(KvctlError):
                async with self._slots:
                    return await streams.info(self._apis[node.id], node.stream, timeout=PATIENCE)
        return None

    async def _reading(self, node: Node, subject: str) -> KeyReading:
        """Return the last entry on a subject, read after the stream's info."""
        if (node.id, subject) not in self._readings:
            self._readings[node.id, subject] = asyncio.ensure_future(self._read(node, subject))
        return await self._readings[node.id, subject]

    async def _read(self, node: Node, subject: str) -> KeyReading:
        if node.offline:
            return KeyReading(error=f"the servers of `{node.name}` do not answer", offline=True)
        await self._info(node)
        try:
            async with self._slots:
                reader = await AuditReader(self._apis[node.id], node.stream).ready()
                message = (await reader.latest([subject])).get(subject)
        except StreamNotFound:
            return KeyReading(error=f"`{node.name}` does not exist")
        except KvctlError as error:
            return KeyReading(error=error.message, offline=isinstance(error, StreamOffline))
        return KeyReading(held(message), message=message)


def _apis(inventory: Inventory) -> dict[str, Api]:
    """Return the API to read each stream, by the id of its node."""
    places = inventory.places.values()
    found = {node_id(place.name, name): place.api for place in places for name in (*place.infos, *place.unreachable)}
    return {link.origin_node.id: link.api for link in inventory.links} | found
