"""Resolve a bucket's name to a stream and the subjects of its keys."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvctl.errors import BucketNotFound, KvctlError, RefusedError, UsageError
from kvctl.jetstream import streams
from kvctl.jetstream.api import DEFAULT_PREFIX, Api
from kvctl.jetstream.stream_info import Source, readers_of_others
from kvctl.kv import stream_kind
from kvctl.kv.names import STREAM_PREFIX, SUBJECT_PREFIX, matches
from kvctl.suggest import did_you_mean, nearest
from kvctl.tokens import check_name, check_prefix

if TYPE_CHECKING:
    from kvctl.jetstream.stream_info import StreamConfig, StreamInfo

NOBODY_KNOWS = 1.0
"""Seconds without an answer after which a bucket may be unreachable rather than slow."""
MAX_CHAIN = 8
"""Maximum number of mirrors followed to a bucket."""
MOST_LISTED = 256
"""Maximum number of streams among which replicas of a bucket elsewhere are looked for: those of one page."""
MOST_PLAIN = 8
"""Maximum number of streams asked whether a name that is near may be a bucket's: each takes a request."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Stream of a bucket, the subject prefix of its keys, and the target of writes and watches."""

    bucket: str
    stream: str
    prefix: str
    api: Api
    origin: Binding | None = None
    """For a mirror: the bucket it replicates."""
    origins: tuple[str, ...] = ()
    """For an aggregate: the buckets or streams it replicates from."""
    writable: bool = True
    direct: bool = True
    info: StreamInfo | None = field(default=None, compare=False, repr=False)

    @property
    def source(self) -> Binding:
        """Binding for writes and watches: the origin of a mirror, else this one."""
        return self.origin.source if self.origin else self

    @property
    def write_prefix(self) -> str:
        """Subject prefix of writes."""
        return self.api.write_prefix + self.prefix

    @property
    def takes_writes(self) -> bool:
        """True if the stream has subjects below the prefix, as far as known."""
        subjects = [] if self.info is None else self.info["config"].get("subjects") or []
        heads = [subject.removesuffix(">") for subject in subjects]
        return not heads or any(head.startswith(self.prefix) or self.prefix.startswith(head) for head in heads)

    @property
    def takes_all_keys(self) -> bool:
        """True if the stream has subjects for every key, as far as known."""
        subjects = [] if self.info is None else self.info["config"].get("subjects") or []
        heads = [subject[:-1] for subject in subjects if subject.endswith(">")]
        return not subjects or any(self.prefix.startswith(head) for head in heads)

    def check_heard(self, key: str) -> None:
        """Raise UsageError for a key that the stream has no subject for, if that is known."""
        if self.takes_all_keys or self.info is None:
            return
        if not matches(self.subject(key), tuple(self.info["config"]["subjects"])):
            raise UsageError(
                f"Stream `{self.stream}` does not listen on `{self.subject(key)}`; the key was not written",
                hint=f"See its subjects with `kvctl stream show {self.stream}`",
            )

    @property
    def filtered(self) -> bool:
        """True if a mirror, or one that it mirrors, has only some of its origin's keys."""
        mirror = (self.info["config"].get("mirror") if self.info else None) or {}
        own = bool(mirror.get("filter_subject") or mirror.get("subject_transforms"))
        return own or (self.origin is not None and self.origin.filtered)

    def replicates(self, key: str) -> bool:
        """Return False for a mirror whose filter leaves the key out."""
        mirror = (self.info["config"].get("mirror") if self.info else None) or {}
        filters = [each["src"] for each in mirror.get("subject_transforms") or ()] or [mirror.get("filter_subject")]
        kept = [text.removeprefix(self.prefix) for text in filters if text and text.startswith(self.prefix)]
        return not kept or matches(key, tuple(kept))

    def subject(self, key: str) -> str:
        """Return the subject of the key in the stream."""
        return self.prefix + key


def assumed(api: Api, bucket: str, stream: str | None = None, prefix: str | None = None) -> Binding:
    """Return ADR-8's stream `KV_<bucket>` and subjects `$KV.<bucket>.` without a request. Raises UsageError."""
    if stream is not None:
        check_name(stream, "stream")
    if prefix is not None:
        check_prefix("prefix", prefix.removesuffix("."))
    return Binding(bucket, stream or STREAM_PREFIX + bucket, prefix or f"{SUBJECT_PREFIX}{bucket}.", api)


def with_info(binding: Binding, info: StreamInfo) -> Binding:
    """Return the binding updated from the stream's info."""
    return replace(binding, info=info, direct=bool(info["config"].get("allow_direct")))


async def locate(api: Api, bucket: str) -> Binding:
    """Resolve the name at the server: bucket or aggregate `KV_<bucket>`, else the mirror stream `<bucket>`.

    Raises BucketNotFound, with the nearest existing name; RefusedError for a table or a repository.
    """
    asked = asyncio.ensure_future(streams.find(api, STREAM_PREFIX + bucket))
    try:
        await asyncio.wait([asked], timeout=NOBODY_KNOWS)
        info: StreamInfo | None = None
        if not asked.done():
            # With its cluster down nobody reports the bucket as missing; a mirror of this name may answer. But a
            # stream that is listed and does not answer, as in an election, exists: the mirror is another bucket's.
            with suppress(KvctlError):
                info = await _mirror(api, bucket)
                if info and await _is_listed(api, bucket):
                    info = None
        info = info or await asked or await _mirror(api, bucket)
    finally:
        asked.cancel()
    if info is None:
        raise await _missing(api, bucket)
    return await _bind(api, bucket, info, MAX_CHAIN)


async def _is_listed(api: Api, bucket: str) -> bool:
    """Return True if the servers that answer know the bucket's stream."""
    with suppress(KvctlError, TimeoutError):
        async with asyncio.timeout(NOBODY_KNOWS):
            return STREAM_PREFIX + bucket in await streams.names(api, f"{SUBJECT_PREFIX}{bucket}.>")
    return False


async def _mirror(api: Api, name: str) -> StreamInfo | None:
    """Return the info of the mirror stream of this name, or None."""
    info = await streams.find(api, name)
    return info if info is not None and info["config"].get("mirror") else None


async def bind(api: Api, name: str, info: StreamInfo) -> Binding:
    """Return the binding of the stream with this info for users who call it `name`."""
    return await _bind(api, name, info, MAX_CHAIN)


async def _bind(api: Api, bucket: str, info: StreamInfo, depth: int) -> Binding:
    config = info["config"]
    direct = bool(config.get("allow_direct"))
    mirror = config.get("mirror")
    if mirror:
        origin = await _origin(api, mirror, depth)
        return Binding(bucket, config["name"], origin.prefix, api, origin=origin, direct=direct, info=info)
    origins = tuple(_bucket_of(source["name"]) for source in config.get("sources") or ())
    subjects = config.get("subjects") or []
    prefix = f"{SUBJECT_PREFIX}{bucket}."
    return Binding(
        bucket,
        config["name"],
        prefix,
        api,
        origins=origins,
        writable=bool(subjects) or not origins,
        direct=direct,
        info=info,
    )


async def _origin(api: Api, mirror: dict[str, Any], depth: int) -> Binding:
    name = mirror["name"]
    prefix = Source.parse(mirror).api
    there = api.at(prefix) if prefix and prefix != DEFAULT_PREFIX else api
    if not name.startswith(STREAM_PREFIX) and depth:
        with suppress(KvctlError):
            info = await streams.find(there, name)
            if info is not None:
                return await _bind(there, name, info, depth - 1)
    if stream_kind.NAMES.match(name):
        kind, _, of = name.partition("_")
        return Binding(of, name, f"${kind}.{of}.", there, writable=False)
    bucket = _bucket_of(name)
    return Binding(bucket, name, f"{SUBJECT_PREFIX}{bucket}.", there)


def _bucket_of(stream: str) -> str:
    return stream.removeprefix(STREAM_PREFIX)


async def _missing(api: Api, bucket: str) -> KvctlError:
    known: list[str] = []
    with suppress(KvctlError):
        names = await streams.names(api)
        if other := await other_owner(api, bucket, names):
            return other
        listable = api.prefix == DEFAULT_PREFIX and len(names) <= MOST_LISTED
        if listable and (elsewhere := await _missing_here(api, bucket)):
            return elsewhere
        known = await _without_plain(api, bucket, possible_buckets(names), names)
    return missing(bucket, known, f", or create it with `kvctl bucket add {bucket}`")


async def _missing_here(api: Api, bucket: str) -> BucketNotFound | None:
    """Return the error for a bucket of another domain or account with a replica here; None if it is not known there."""
    replica = await replica_of(api, bucket)
    if replica is None:
        return None
    config, source = replica
    name = _bucket_of(config["name"])
    what = f"{stream_kind.kind_of(config)} `{name}`"
    text = f"Bucket `{bucket}` does not exist here; {what} replicates the one {source.where}"
    with suppress(KvctlError, TimeoutError):
        async with asyncio.timeout(NOBODY_KNOWS):
            if await streams.find(api.at(source.api), source.name) is None:
                return None
        return _elsewhere(text, f"Use `{source.way}`, or read {what}, as in `kvctl keys {name}`")
    return _elsewhere(f"{text}, which does not answer", f"Read {what} instead, as in `kvctl keys {name}`")


def _elsewhere(text: str, hint: str) -> BucketNotFound:
    error = BucketNotFound(text, hint=hint)
    error.confirmed = False  # its keys are not missing
    return error


async def replica_of(api: Api, bucket: str) -> tuple[StreamConfig, Source] | None:
    """Return a mirror, else an aggregate, of a bucket of this name in another domain or account; None for none."""
    found: list[tuple[StreamConfig, Source]] = []
    with suppress(KvctlError, TimeoutError):
        async with asyncio.timeout(NOBODY_KNOWS):
            answering = (await streams.listing(api)).answering
        found = readers_of_others([info["config"] for info in answering], STREAM_PREFIX + bucket)
    kinds = (stream_kind.Kind.MIRROR, stream_kind.Kind.AGGREGATE)
    return next((pair for pair in found if stream_kind.kind_of(pair[0]) in kinds), None)


async def _without_plain(api: Api, bucket: str, known: list[str], names: Iterable[str]) -> list[str]:
    """Return the known names, from which the nearest ones are not those of plain streams; none if many are."""
    for _ in range(MOST_PLAIN):
        near = nearest(bucket, known)
        if near is None or STREAM_PREFIX + near in names:
            return known
        info = await streams.find(api, near)
        if info and (info["config"].get("mirror") or info["config"].get("sources")):
            return known
        known.remove(near)
    return []


async def other_owner(api: Api, bucket: str, names: Iterable[str]) -> RefusedError | None:
    """Return the error for a name that belongs to a table or a repository, not to a bucket; `names` are all streams."""
    other = stream_kind.namesake(names, bucket)
    info = await streams.find(api, other) if other else None
    if info is not None and (owner := stream_kind.owner(info["config"])):
        keys = f", or a branch for its keys, as in `{bucket}@main`" if owner == "repository" else ""
        return RefusedError(f"`{bucket}` is a {owner}, not a bucket", hint=stream_kind.remedy(info["config"]) + keys)
    return None


def possible_buckets(names: Iterable[str]) -> list[str]:
    """Return the names under which streams with these names may be buckets, aggregates or mirrors."""
    return [_bucket_of(name) for name in names if not stream_kind.NAMES.match(name)]


def missing(bucket: str, known: Iterable[str], then: str = "") -> BucketNotFound:
    """Build the error for a bucket that does not exist; the hint suggests a known one, and ends with `then`."""
    remedy = f"List buckets with `kvctl bucket ls`{then}"
    return BucketNotFound(f"Bucket `{bucket}` does not exist", hint=did_you_mean(bucket, known, remedy))
