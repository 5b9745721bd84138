"""Description, edit and compaction of a bucket, with its dependents and the data that a change would lose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from kvctl.dataclass import dataclass
from kvctl.errors import KvctlError, WaitExpired
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import Source, sources_of
from kvctl.kv import catalog
from kvctl.kv.bucket import Bucket
from kvctl.kv.catalog import Edit
from kvctl.kv.config import BucketStatus
from kvctl.kv.maintenance import compaction
from kvctl.kv.maintenance.compaction import Tombstones
from kvctl.kv.stream_kind import Kind
from kvctl.topology.hazards import hazards, inspection
from kvctl.topology.hazards.hazards import LAGGING_REPLICA, Hazard
from kvctl.topology.health import arrival
from kvctl.topology.model import Origin
from kvctl.topology.survey import edit_cost, graph, inventory
from kvctl.topology.survey.graph import Dependent, Place, Upstream
from kvctl.topology.survey.origin_lookup import OriginView

_BUSY = timedelta(seconds=0.3)
"""Time for entries that are written concurrently to arrive."""


@dataclass(frozen=True, slots=True)
class Description:
    """A bucket with its origins and dependents."""

    status: BucketStatus
    upstreams: list[Upstream]
    """Origins of a mirror or an aggregate."""
    dependents: list[Dependent] | None
    """Streams of this account and domain that read from it; None if the streams cannot be listed."""
    place: Place | None = None
    """The streams in view; None if they cannot be listed."""


@dataclass(frozen=True, slots=True)
class EditPlan:
    """A change and its hazards."""

    edit: Edit
    hazards: list[Hazard]


async def describe(api: Api, name: str) -> Description:
    """Return the bucket, its origins and its dependents. Raises BucketNotFound."""
    info = await catalog.find(api, name)
    stream = info["config"]["name"]
    dependents, place = None, None
    with suppress(KvctlError):
        place = await inventory.view("", api)
        dependents = place.dependents(stream)
    others = {name: other["config"] for name, other in place.infos.items()} if place else {}
    return Description(BucketStatus.from_info(info, others), graph.upstreams(info), dependents, place)


async def plan_edit(api: Api, name: str, changes: Mapping[str, Any], clear: Collection[str] = ()) -> EditPlan:
    """Return the change with data lost and replicas harmed. Raises BucketNotFound, UsageError, RefusedError."""
    edit = await catalog.plan_edit(api, name, changes, clear)
    if not edit.differences:
        return EditPlan(edit, [])
    cost = await edit_cost.cost(api, edit.before, edit.info, edit.after)
    found = [*hazards.of_foreign(edit.before), *hazards.lossy(edit.before, edit.after, cost)]
    return EditPlan(edit, [*found, *await inspection.of_edit(api, edit.before, edit.after)])


async def plan_compaction(bucket: Bucket, api: Api, older_than: timedelta) -> tuple[Tombstones, list[Hazard]]:
    """Return the tombstones, and the replicas that have not received them: a removed marker never reaches those.

    Raises BucketNotFound, RefusedError for a mirror.
    """
    found = await compaction.find(bucket, older_than=older_than)
    assert bucket.binding.info is not None
    foreign = hazards.of_foreign(bucket.binding.info["config"])
    newest = max((entry.revision for entry in found.entries), default=0)
    if not newest:
        return found, foreign
    readers = await inventory.dependents(api, found.stream)
    names = {found.stream, *(item.node.stream for item in readers)}
    # One after the other, the nearest first: what one of them has received, its readers have to receive.
    late = [
        Hazard(LAGGING_REPLICA, _late(item))
        for item in readers
        if item.node.kind != Kind.UNKNOWN and not await _has(api, item, names)
    ]
    return found, [*foreign, *late, *graph.unknown(readers)]


async def compact(bucket: Bucket, found: Tombstones, advance: Callable[[int], None] = lambda _: None) -> int:
    """Remove the tombstones and return the number of removed messages. Raises PartlyDone."""
    return await compaction.remove(bucket, found, advance)


async def _has(api: Api, reader: Dependent, origins: Collection[str]) -> bool:
    """Return whether a reader has everything that these origins hold now."""
    if reader.offline:
        return False
    info = await streams.find(api, reader.node.stream)
    if info is None:
        return True
    sources = [source for source in sources_of(info["config"]) if any(map(Source.parse(source).reads_locally, origins))]
    infos = await asyncio.gather(*(streams.find(api, source["name"]) for source in sources))
    wanted = await arrival.goals([
        (number, source, OriginView(Origin(stream=source["name"]), api, origin, origin is not None))
        for number, (source, origin) in enumerate(zip(sources, infos, strict=True))
    ])  # fmt: skip
    try:
        await arrival.until_filled(api, reader.node.stream, wanted, _BUSY)
    except WaitExpired:
        return False
    return True


def _late(item: Dependent) -> str:
    upstream, what = item.upstream, f"{item.node.kind} `{item.node.name}`"
    if upstream is None or item.last_revision is None:
        return f"{what} does not answer: it may keep the deleted keys permanently"
    state = f"has a lag of {upstream.lag}" if upstream.lag else "has not received the last deletions"
    if upstream.last_seen is None:
        state = "never connected"
    if upstream.error:
        state = f"reports `{upstream.error}`"
    return f"{what} {state}: it would keep the deleted keys permanently"
