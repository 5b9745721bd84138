"""Promotion of a mirror to an ordinary bucket, for when its origin is lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import dataclass

from kvctl.errors import BucketExists, ConflictError, RefusedError, UsageError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.stream_info import Source, StreamConfig, StreamInfo
from kvctl.kv import catalog, stream_kind
from kvctl.kv.client import Client
from kvctl.kv.entry import Entry
from kvctl.kv.maintenance import copy_bucket
from kvctl.kv.names import STREAM_PREFIX, check_bucket
from kvctl.topology.apply.builders import find_mirror
from kvctl.topology.hazards import hazards
from kvctl.topology.hazards.hazards import RECREATED_ORIGIN, Hazard, name_of
from kvctl.topology.health.arrival import Advance


@dataclass(frozen=True, slots=True)
class Promotion:
    """Planned bucket from a mirror. Nothing is changed yet."""

    info: StreamInfo
    config: StreamConfig
    hazards: list[Hazard]

    @property
    def mirror(self) -> str:
        """Name of the mirror."""
        return name_of(self.info["config"])

    @property
    def entries(self) -> int:
        """Number of entries in the mirror."""
        return int(self.info["state"]["messages"])


async def plan(api: Api, mirror: str, bucket: str, *, delete_mirror: bool = False) -> Promotion:
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
    return Promotion(info, copy_bucket.copied_config(info["config"], bucket), found)


async def apply(
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
    hazards.refuse(promotion.hazards, force, f"The bucket created from `{promotion.mirror}` would be hidden")
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
    async with aclosing(_entries(ones)) as first, aclosing(_entries(others)) as second:
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


async def _entries(batches: AsyncGenerator[list[Entry]]) -> AsyncGenerator[Entry]:
    async with aclosing(batches) as source:
        async for batch in source:
            for entry in batch:
                yield entry


def _content(entry: Entry) -> tuple[str, str, bytes]:
    return entry.key, entry.operation, entry.value
