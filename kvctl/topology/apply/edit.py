"""Edit, compaction and promotion of a bucket, with what it would lose and the replicas that it would harm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Any, NamedTuple

from kvctl.errors import BucketExists, ConflictError, KvctlError, RefusedError, UsageError, WaitExpired
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import Source, StreamConfig, StreamInfo, sources_of
from kvctl.kv import catalog, stream_kind
from kvctl.kv.bucket import Bucket
from kvctl.kv.catalog import Edit
from kvctl.kv.client import Client
from kvctl.kv.entry import Entry
from kvctl.kv.maintenance import compaction, copy_bucket
from kvctl.kv.maintenance.compaction import Tombstones
from kvctl.kv.names import STREAM_PREFIX, check_bucket
from kvctl.kv.read.listing import each
from kvctl.kv.stream_kind import Kind
from kvctl.topology.apply.builders import find_mirror
from kvctl.topology.hazards import hazards, lossy_edit
from kvctl.topology.hazards.hazards import LAGGING_REPLICA, RECREATED_ORIGIN, Hazard, name_of
from kvctl.topology.hazards.lossy_edit import Words
from kvctl.topology.health import arrival, inspection
from kvctl.topology.health.arrival import Advance
from kvctl.topology.model.origins import Origin
from kvctl.topology.survey import graph, inventory, origin_lookup
from kvctl.topology.survey.graph import Dependent
from kvctl.topology.survey.origin_lookup import OriginView

_BUSY = timedelta(seconds=0.3)
"""Time for entries that are written concurrently to arrive."""


async def plan_edit(
    api: Api, name: str, changes: Mapping[str, Any], clear: Collection[str] = ()
) -> tuple[Edit, list[Hazard]]:
    """Return the change with data lost and replicas harmed. Raises BucketNotFound, UsageError, RefusedError."""
    edit = await catalog.plan_edit(api, name, changes, clear)
    return edit, await hazards_of(api, edit.info, edit.after, lossy_edit.BUCKET) if edit.differences else []


async def hazards_of(api: Api, info: StreamInfo, after: StreamConfig, words: Words) -> list[Hazard]:
    """Return the hazards of giving the stream this configuration: foreign owners, data lost, replicas harmed."""
    before: StreamConfig = info["config"]
    cost = await lossy_edit.cost(api, before, info, after)
    found = [*hazards.of_foreign(before), *lossy_edit.lossy(before, after, cost, words)]
    if any(before.get(field) != after.get(field) for field in ("republish", "subjects", "sources")):
        found += await origin_lookup.cycles(api, after, ())
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
            found.append(hazards.of_reader(reader, after, hazard))
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
    wanted = await arrival.goals(zip(sources, views, strict=True))
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


class Promotion(NamedTuple):
    """Planned bucket from a mirror. Nothing is changed yet."""

    info: StreamInfo
    config: StreamConfig
    hazards: list[Hazard]
    doubts: list[str]
    """Warnings of origins that cannot be read."""

    @property
    def mirror(self) -> str:
        """Name of the mirror."""
        return name_of(self.info["config"])

    @property
    def entries(self) -> int:
        """Number of entries in the mirror."""
        return int(self.info["state"]["messages"])


async def plan_promotion(api: Api, mirror: str, bucket: str, *, delete_mirror: bool = False) -> Promotion:
    """Plan the bucket that a mirror would become. Raises BucketNotFound, RefusedError, BucketExists, UsageError."""
    info = await find_mirror(api, mirror)
    if info["config"]["name"] == STREAM_PREFIX + check_bucket(bucket):
        raise UsageError(f"`{bucket}` is the mirror itself", hint="Choose another name for the bucket")
    existing = await streams.find(api, STREAM_PREFIX + bucket)
    if existing is not None and not copy_bucket.mark_of(existing):
        raise BucketExists(
            f"`{bucket}` already exists", hint="Choose another name for the bucket, or delete the existing one"
        )
    source = info["config"]["mirror"]
    if stream_kind.NAMES.match(source["name"]):
        raise RefusedError(f"`{mirror}` mirrors `{source['name']}`, which is not a bucket: it cannot be promoted")
    found: list[Hazard] = []
    if source["name"] == STREAM_PREFIX + bucket and not Source.parse(source).is_external and not delete_mirror:
        found = [
            Hazard(
                RECREATED_ORIGIN,
                f"`{mirror}` would take the new `{bucket}` for its old origin and serve its reads with the current "
                "values",
                "Use `--delete-mirror`, then create the mirror again",
            )
        ]
    config = copy_bucket.copied_config(info["config"], bucket)
    for hazard in hazards.shadowed(info["config"], config, None) if not delete_mirror else ():
        found.append(hazard._replace(remedy="Use `--delete-mirror`, or choose another name"))
    late, doubts = await arrival.behind(api, info)
    return Promotion(info, config, [*found, *late], doubts)


async def promote(
    client: Client,
    promotion: Promotion,
    *,
    delete_mirror: bool = False,
    force: Collection[str] = (),
    advance: Advance = lambda _: None,
) -> int:
    """Create the bucket, compare every entry with the mirror's, delete the mirror if requested; return the entry count.

    Raises HazardRefused, ConflictError if the two differ: then both stay as they are.
    """
    hazards.refuse(promotion.hazards, force, f"`{promotion.mirror}` was not promoted")
    source, name = client.bucket(promotion.mirror), name_of(promotion.config)
    await copy_bucket.copy(source, client.api, name, data=copy_bucket.HISTORY, advance=advance)
    count = await _compare(source.history_batches(), client.bucket(name).history_batches(), promotion.mirror, name)
    if delete_mirror:
        await catalog.delete(client.api, promotion.info["config"]["name"])
    return count


async def _compare(
    ones: AsyncGenerator[list[Entry]], others: AsyncGenerator[list[Entry]], mirror: str, name: str
) -> int:
    """Return the number of entries that both have, in one order. Raises ConflictError at the first difference."""
    count = 0
    async with aclosing(each(ones)) as first, aclosing(each(others)) as second:
        async for one in first:
            other = await anext(second, None)
            if other is None or _content(one) != _content(other):
                raise ConflictError(
                    f"`{name}` differs from `{mirror}`: entry {count + 1}, key `{one.key}`",
                    hint="There may have been concurrent writes: delete the bucket, and promote again after they stop",
                )
            count += 1
        if (other := await anext(second, None)) is not None:
            raise ConflictError(f"`{name}` has an entry that `{mirror}` does not: key `{other.key}`")
    return count


def _content(entry: Entry) -> tuple[str, str, bytes]:
    return entry.key, entry.operation, entry.value
