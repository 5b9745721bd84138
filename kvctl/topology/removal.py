"""Take an origin out of an aggregate, and with it the keys that came from it and from nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from kvctl.errors import KvctlError, NotFoundError, PartlyDone, RefusedError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.ordered import Selection, read
from kvctl.kv import catalog
from kvctl.kv.kinds import StreamConfig
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX, check_bucket, matches
from kvctl.topology import hazards
from kvctl.topology.builders import find_aggregate
from kvctl.topology.hazards import Hazard
from kvctl.topology.replica_hazards import LAST_ORIGIN, landing, name_of
from kvctl.topology.subjects import meet
from kvctl.wire import header_value

AT_ONCE = 64
"""Keys that are purged at the same time."""

StreamInfo = dict[str, Any]
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Removal:
    """What would be taken out of an aggregate. Nothing is changed yet."""

    info: StreamInfo
    after: StreamConfig
    origin: str
    hazards: list[Hazard]
    whole: list[str] = field(default_factory=list)
    """Filters of subjects that came from this origin alone."""
    keys: list[str] = field(default_factory=list)
    """Subjects whose entries, looked at one by one, all came from this origin."""
    mixed: list[str] = field(default_factory=list)
    """Subjects that others wrote too: they stay."""

    @property
    def name(self) -> str:
        """The aggregate, as users type it."""
        return name_of(self.info["config"])

    @property
    def contested(self) -> list[str]:
        """Those of the keys that another origin may have written, too, before this one did."""
        others = tuple(pattern for source in self.after["sources"] for pattern in landing(source))
        return [subject for subject in self.keys if others and matches(subject, others)]


async def plan(api: Api, name: str, bucket: str, *, keep_data: bool = False) -> Removal:
    """What goes when `bucket` feeds the aggregate no more; once more after an interruption, what is left of it.

    Raises BucketNotFound, RefusedError for what is no aggregate or denies purges, NotFoundError without such an origin.
    """
    info = await find_aggregate(api, name)
    config = info["config"]
    gone = [source for source in config["sources"] if _is_called(source, check_bucket(bucket))]
    stay = [source for source in config["sources"] if source not in gone]
    after = {**config, "sources": stay}
    if not stay:
        after["subjects"] = [f"{SUBJECT_PREFIX}{name}.>"]  # else servers take the stream's name for its subject
    found = (
        [Hazard(LAST_ORIGIN, f"`{bucket}` is its last origin: it would become an ordinary bucket")] if not stay else []
    )
    if keep_data:
        _require(bool(gone), name, bucket)
        return Removal(info, after, bucket, found)
    if config.get("deny_purge"):
        raise RefusedError(
            f"`{name}` denies purges, so the keys of `{bucket}` cannot be removed from it",
            hint="`--keep-data` removes the origin and leaves its keys",
        )
    whole, shared = _told_apart(gone, stay, writable=bool(config.get("subjects")))
    if not gone:
        shared = [">"]  # interrupted before: the origin has gone, its keys may not have
    keys, mixed = await _looked_at(api, config["name"], shared, _names(gone, bucket))
    _require(bool(gone or keys), name, bucket)
    return Removal(info, after, bucket, found, whole, keys, mixed)


async def carry_out(api: Api, removal: Removal, force: Collection[str] = (), advance: Advance = lambda _: None) -> int:
    """Remove the origin, then its keys; returns how many messages went. Raises HazardRefused, PartlyDone."""
    hazards.refuse(removal.hazards, force, f"`{removal.name}` would lose its last origin")
    if removal.after["sources"] != removal.info["config"]["sources"]:
        await catalog.apply_edit(api, catalog.Edit(removal.info, removal.after))
    try:
        return await _purge(api, removal.after["name"], [*removal.whole, *removal.keys], advance)
    except KvctlError as error:
        raise PartlyDone(
            f"`{removal.origin}` feeds `{removal.name}` no more, but not all of its keys are gone: {error.message}",
            hint=f"`kvctl aggregate remove-origin {removal.name} {removal.origin}` again removes the rest",
        ) from None


async def take_out(api: Api, config: StreamConfig, gone: list[dict[str, Any]]) -> int:
    """Remove what came from sources that feed an aggregate no more, and from no other; returns how many messages went.

    `config` is the aggregate's without these sources; none that it still has reads the same stream.
    """
    whole, shared = _told_apart(gone, config["sources"], writable=bool(config.get("subjects")))
    keys, _ = await _looked_at(api, config["name"], shared, {source["name"].encode() for source in gone})
    return await _purge(api, config["name"], [*whole, *keys])


async def _purge(api: Api, stream: str, subjects: Iterable[str], advance: Advance = lambda _: None) -> int:
    slots = asyncio.Semaphore(AT_ONCE)

    async def purge(subject: str) -> int:
        async with slots:
            count = await streams.purge(api, stream, filter=subject)
        advance(count)
        return count

    return sum(await asyncio.gather(*(purge(subject) for subject in subjects)))


def _is_called(source: dict[str, Any], bucket: str) -> bool:
    """Whether people would call the source so: by its bucket, its stream, or whose keys it brings."""
    spaces = {
        rule["src"].split(".")[1]
        for rule in source.get("subject_transforms") or ()
        if rule.get("src", "").startswith(SUBJECT_PREFIX)
    }
    return bucket in (source["name"], name_of(source)) or (
        not source["name"].startswith(STREAM_PREFIX) and spaces == {bucket}
    )


def _names(gone: Iterable[dict[str, Any]], bucket: str) -> set[bytes]:
    return {source["name"].encode() for source in gone} or {bucket.encode(), (STREAM_PREFIX + bucket).encode()}


def _told_apart(
    gone: list[dict[str, Any]], stay: list[dict[str, Any]], *, writable: bool
) -> tuple[list[str], list[str]]:
    """Where the keys of the leaving sources lie: alone, and together with keys of others."""
    others = [pattern for source in stay for pattern in landing(source)]
    mine = list(dict.fromkeys(pattern for source in gone for pattern in landing(source)))
    shared = [text for text in mine if writable or any(meet(text, other) for other in others)]
    return [text for text in mine if text not in shared], shared


async def _looked_at(api: Api, stream: str, filters: list[str], wanted: set[bytes]) -> tuple[list[str], list[str]]:
    """Subjects that hold only what came from the wanted streams, and those that hold it among others."""
    if not filters:
        return [], []
    mine: set[bytes] = set()
    foreign: set[bytes] = set()
    selection = Selection(subjects=_apart(filters), deliver="all", headers_only=True)
    async for batch in read(api, stream, selection):
        for subject, _, header, _ in batch:
            (mine if _source_of(header) in wanted else foreign).add(subject)
    alone = sorted(subject.decode("utf-8", "surrogateescape") for subject in mine if subject not in foreign)
    return alone, sorted(subject.decode("utf-8", "surrogateescape") for subject in mine if subject in foreign)


def _source_of(header: bytes) -> bytes:
    """The stream that an aggregate's message came from: `KV_ORDERS`, with a hash behind it for another account's."""
    return (header_value(header, b"Nats-Stream-Source") or b"").partition(b" ")[0].partition(b":")[0]


def _apart(filters: list[str]) -> tuple[str, ...]:
    """Filters for one consumer: servers refuse overlapping ones (10138)."""
    overlap = any(meet(one, other) for at, one in enumerate(filters) for other in filters[at + 1 :])
    return (">",) if overlap else tuple(filters)


def _require(found: bool, name: str, bucket: str) -> None:
    if not found:
        raise NotFoundError(
            f"`{bucket}` is no origin of `{name}`", hint=f"`kvctl aggregate show {name}` lists its origins"
        )
