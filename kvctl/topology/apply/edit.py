"""Edit and compaction of a bucket, with the data that it would lose and the replicas that it would harm."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from kvctl.errors import KvctlError, WaitExpired
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import Source, StreamConfig, StreamInfo, sources_of
from kvctl.kv import catalog
from kvctl.kv.bucket import Bucket
from kvctl.kv.catalog import Edit
from kvctl.kv.maintenance import compaction
from kvctl.kv.maintenance.compaction import Tombstones
from kvctl.kv.stream_kind import Kind
from kvctl.topology.hazards import hazards, lossy_edit
from kvctl.topology.hazards.hazards import LAGGING_REPLICA, Hazard, name_of
from kvctl.topology.hazards.lossy_edit import Words
from kvctl.topology.health import arrival, inspection
from kvctl.topology.model.origins import Origin
from kvctl.topology.survey import edit_cost, graph, inventory
from kvctl.topology.survey.graph import Dependent
from kvctl.topology.survey.origin_lookup import OriginView

_BUSY = timedelta(seconds=0.3)
"""Time for entries that are written concurrently to arrive."""


@dataclass(frozen=True, slots=True)
class EditPlan:
    """A change and its hazards."""

    edit: Edit
    hazards: list[Hazard]


async def plan_edit(api: Api, name: str, changes: Mapping[str, Any], clear: Collection[str] = ()) -> EditPlan:
    """Return the change with data lost and replicas harmed. Raises BucketNotFound, UsageError, RefusedError."""
    edit = await catalog.plan_edit(api, name, changes, clear)
    found = await hazards_of(api, edit.info, edit.after, lossy_edit.BUCKET) if edit.differences else []
    return EditPlan(edit, found)


async def hazards_of(api: Api, info: StreamInfo, after: StreamConfig, words: Words) -> list[Hazard]:
    """Return the hazards of giving the stream this configuration: foreign owners, data lost, replicas harmed."""
    before: StreamConfig = info["config"]
    cost = await edit_cost.cost(api, before, info, after)
    found = [*hazards.of_foreign(before), *lossy_edit.lossy(before, after, cost, words)]
    return [*found, *await _of_replicas(api, before, after)]


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


async def _of_replicas(api: Api, before: StreamConfig, after: StreamConfig) -> list[Hazard]:
    """Return the hazards that a change introduces, in the replica itself and in the replicas that read from it.

    Replicas in other accounts and domains are not examined.
    """
    if not hazards.concerns_replicas(before, after):
        return []
    origins = await _configs_read(api, before)
    changed = origins if before.get("sources") == after.get("sources") else await _configs_read(api, after)
    found = hazards.introduced(before, after, origins, changed) if changed else []
    known = {before["name"]: before}
    with suppress(KvctlError):
        place = await inventory.view("", api)
        known = {stream: info["config"] for stream, info in place.known.items()} | known
        found += graph.unknown(place.dependents(before["name"]))
    for reader in known.values():
        sources = sources_of(reader)
        current = [known.get(source["name"]) if not Source.parse(source).is_external else None for source in sources]
        if before not in current:
            continue
        updated = [after if config == before else config for config in current]
        for hazard in hazards.introduced(reader, reader, current, updated):
            found.append(replace(hazard, evidence=f"`{name_of(reader)}` reads from it: {hazard.evidence}"))
    return found


async def _configs_read(api: Api, config: StreamConfig) -> list[StreamConfig | None]:
    return [origin["config"] if origin else None for origin in await inspection.origins_of(api, config)]


async def _has(api: Api, reader: Dependent, origins: Collection[str]) -> bool:
    """Return whether a reader has everything that these origins hold now."""
    if reader.offline:
        return False
    info = await streams.find(api, reader.node.stream)
    if info is None:
        return True
    sources = [source for source in sources_of(info["config"]) if any(map(Source.parse(source).reads_locally, origins))]
    infos = await asyncio.gather(*(streams.find(api, source["name"]) for source in sources))
    views = [
        OriginView(Origin(stream=source["name"]), api, info, info is not None)
        for source, info in zip(sources, infos, strict=True)
    ]
    wanted = await arrival.goals([(number, *pair) for number, pair in enumerate(zip(sources, views, strict=True))])
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
