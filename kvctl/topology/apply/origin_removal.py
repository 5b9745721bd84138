"""Removal of an origin from an aggregate, with the keys that came from it alone."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvctl.errors import KvctlError, NotFoundError, PartlyDone, RefusedError
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.consumers.message import delivery
from kvctl.jetstream.consumers.ordered_consumer import read
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.kv import catalog
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX, apart, check_bucket, is_plain, matches, meet
from kvctl.phrases import quoted
from kvctl.topology.apply.builders import find_aggregate
from kvctl.topology.hazards import hazards
from kvctl.topology.hazards.hazards import LAST_ORIGIN, Hazard, landing, name_of
from kvctl.topology.health.arrival import Advance
from kvctl.topology.model.origins import leaving, marked_leaving
from kvctl.wire import header_value

MAX_CONCURRENT_PURGES = 64
"""Keys that are purged concurrently."""
MAX_ROUNDS = 5
"""Maximum number of searches for remaining keys."""


@dataclass(frozen=True, slots=True)
class OriginRemoval:
    """Planned removal from an aggregate. Nothing is changed yet."""

    info: StreamInfo
    after: StreamConfig
    origin: str
    hazards: list[Hazard]
    gone: list[dict[str, Any]] = field(default_factory=list)
    """Sources to remove, and those removed before whose keys remain."""
    keep_data: bool = False
    keys: list[str] = field(default_factory=list)
    """Subjects whose entries, examined one by one, all came from this origin."""
    mixed: list[str] = field(default_factory=list)
    """Subjects that others wrote too: they stay."""

    @property
    def name(self) -> str:
        """Name of the aggregate, as users type it."""
        return name_of(self.info["config"])

    @property
    def links(self) -> list[dict[str, Any]]:
        """The sources that are removed now."""
        return [source for source in self.info["config"]["sources"] if source not in self.after["sources"]]

    @property
    def contested(self) -> list[str]:
        """The keys that another origin may have written before this one did."""
        others = tuple(pattern for source in self.after["sources"] for pattern in landing(source))
        return [subject for subject in self.keys if others and matches(subject, others)]


@dataclass(slots=True)
class KeyRemoval:
    """Keys that were removed from an aggregate with their sources."""

    messages: int = 0
    kept: list[str] = field(default_factory=list)
    """Subjects that others wrote too, or that cannot be named in a purge."""


async def plan(api: Api, name: str, bucket: str, *, keep_data: bool = False) -> OriginRemoval:
    """Plan the removal of `bucket` from an aggregate; after an interruption, of the rest.

    Raises BucketNotFound, RefusedError if it is not an aggregate or denies purges, NotFoundError without such an
    origin.
    """
    info = await find_aggregate(api, name)
    config = info["config"]
    gone = [source for source in config["sources"] if _is_called(source, check_bucket(bucket))]
    stay = [source for source in config["sources"] if source not in gone]
    after = {**config, "sources": stay}
    if not stay:
        after["subjects"] = [f"{SUBJECT_PREFIX}{name}.>"]  # else servers use the stream's name as its subject
    found = (
        [Hazard(LAST_ORIGIN, f"`{bucket}` is the last origin: `{name}` would become an ordinary bucket")]
        if not stay
        else []
    )
    if keep_data:
        _require(bool(gone), name, bucket)
        return OriginRemoval(info, after, bucket, found, gone, keep_data=True)
    if config.get("deny_purge"):
        raise RefusedError(
            f"`{name}` denies purges: keys of `{bucket}` cannot be removed",
            hint="Use `--keep-data` to remove the origin and keep its keys",
        )
    gone += [source for source in leaving(config) if _is_called(source, bucket)]
    _, shared = _places(gone, after)
    keys, mixed = await _looked_at(api, config["name"], shared, _names(gone, bucket))
    _require(bool(gone or keys), name, bucket)
    return OriginRemoval(info, after, bucket, found, gone, keys=[*keys], mixed=mixed)


async def apply(
    api: Api, removal: OriginRemoval, force: Collection[str] = (), advance: Advance = lambda _: None
) -> KeyRemoval:
    """Remove the origin, then its keys. Raises HazardRefused, ConflictError, PartlyDone."""
    hazards.refuse(removal.hazards, force, f"`{removal.name}` would lose its last origin")
    if removal.keep_data:
        await catalog.apply_edit(api, catalog.Edit(removal.info, removal.after))
        return KeyRemoval()
    names = _names(removal.gone, removal.origin)
    return await leave(api, removal.info, removal.after, removal.gone, names, advance)


async def leave(
    api: Api,
    info: StreamInfo,
    after: StreamConfig,
    gone: Sequence[dict[str, Any]],
    names: Collection[bytes] | None = None,
    advance: Advance = lambda _: None,
) -> KeyRemoval:
    """Remove sources from an aggregate, then the keys that only they brought.

    Until the keys are removed the aggregate is marked, so that the removal can be completed after an interruption, and
    keeps its history: entries that a shorter one drops come back if a server up to 2.15 is killed after their key was
    purged (nats-server issue 8505). Raises ConflictError, OutcomeUnknown, PartlyDone.
    """
    others = [source for source in leaving(info["config"]) if source not in gone]
    limit = {"max_msgs_per_subject": _longer_history(info["config"], after)}
    live = await catalog.apply_edit(api, catalog.Edit(info, {**marked_leaving(after, [*others, *gone]), **limit}))
    try:
        taken = await take_out(api, after["name"], gone, names, advance)
        limit = {"max_msgs_per_subject": after.get("max_msgs_per_subject", -1)}
        await catalog.apply_edit(api, catalog.Edit(live, {**marked_leaving(live["config"], others), **limit}))
    except KvctlError as error:
        origins = quoted(dict.fromkeys(name_of(source) for source in gone)) or "the origin"
        name = name_of(after)
        raise PartlyDone(
            f"`{name}` no longer replicates {origins}, but some of its keys remain: {error.message}",
            hint="Run the command again to remove the rest",
        ) from None
    return taken


async def take_out(
    api: Api,
    stream: str,
    gone: Sequence[dict[str, Any]],
    names: Collection[bytes] | None = None,
    advance: Advance = lambda _: None,
) -> KeyRemoval:
    """Remove the keys that came only from removed sources of an aggregate, as found now.

    No remaining source may read the same stream. Each purge ends at the last entry that was examined: later writes
    stay.
    """
    found = KeyRemoval()
    wanted = {source["name"].encode() for source in gone} if names is None else names
    for number in range(MAX_ROUNDS):  # entries in flight when the sources were removed may still arrive
        info = await streams.info(api, stream)
        exclusive, shared = _places(gone, info["config"])
        if number:
            exclusive = [text for text in exclusive if await streams.subjects(api, stream, text)]
        keys, mixed = await _looked_at(api, stream, shared, wanted)
        found.kept = [*mixed, *(subject for subject in keys if not is_plain(subject))]
        bounds = dict.fromkeys(exclusive, info["state"]["last_seq"])
        bounds |= {subject: last for subject, last in keys.items() if is_plain(subject)}
        messages = await _purge(api, stream, bounds, advance)
        found.messages += messages
        if not messages:
            break
    return found


async def _purge(api: Api, stream: str, bounds: Mapping[str, int], advance: Advance) -> int:
    """Remove the messages on these subjects up to a sequence each, and return their number."""
    slots = asyncio.Semaphore(MAX_CONCURRENT_PURGES)

    async def purge(subject: str, last: int) -> int:
        async with slots:
            count = await streams.purge(api, stream, filter=subject, seq=last + 1)
        advance(count)
        return count

    return sum(await asyncio.gather(*(purge(*item) for item in bounds.items())))


def _longer_history(*configs: StreamConfig) -> int:
    """Return the highest limit of entries per key; -1 for none."""
    limits = [config.get("max_msgs_per_subject") or -1 for config in configs]
    return -1 if -1 in limits else max(limits)


def _is_called(source: dict[str, Any], bucket: str) -> bool:
    """Return whether the source has this name: its bucket, its stream, or the bucket whose keys it brings."""
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


def _places(gone: Sequence[dict[str, Any]], config: StreamConfig) -> tuple[list[str], list[str]]:
    """Return where the keys of the removed sources lie: alone, and together with keys of others.

    Without sources, as an interrupted older kvctl leaves it, they may lie anywhere.
    """
    if not gone:
        return [], [">"]
    others = [pattern for source in config.get("sources") or () if source not in gone for pattern in landing(source)]
    mine = list(dict.fromkeys(pattern for source in gone for pattern in landing(source)))
    writable = bool(config.get("subjects"))
    shared = [text for text in mine if writable or any(meet(text, other) for other in others)]
    return [text for text in mine if text not in shared], shared


async def _looked_at(
    api: Api, stream: str, filters: list[str], wanted: Collection[bytes]
) -> tuple[dict[str, int], list[str]]:
    """Return subjects that hold only entries of the wanted streams, each with its last sequence, and mixed ones."""
    if not filters:
        return {}, []
    mine: dict[bytes, int] = {}
    others: set[bytes] = set()
    selection = Selection(subjects=apart(filters), deliver="all", headers_only=True)
    async for batch in read(api, stream, selection):
        for subject, reply, header, _ in batch:
            if _source_of(header) in wanted:
                mine[subject] = delivery(reply)[0]
            else:
                others.add(subject)
    texts = {subject: subject.decode("utf-8", "surrogateescape") for subject in sorted(mine)}
    alone = {text: mine[subject] for subject, text in texts.items() if subject not in others}
    return alone, [text for subject, text in texts.items() if subject in others]


def _source_of(header: bytes) -> bytes:
    """Return the stream that an aggregate's message came from: `KV_ORDERS`, plus a hash for another account."""
    return (header_value(header, b"Nats-Stream-Source") or b"").partition(b" ")[0].partition(b":")[0]


def _require(found: bool, name: str, bucket: str) -> None:
    if not found:
        raise NotFoundError(
            f"`{bucket}` is not an origin of `{name}`", hint=f"List its origins with `kvctl aggregate show {name}`"
        )
