"""Create, change, list and delete buckets: ADR-8's stream configurations, read back, with nothing left half done."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from kvctl.errors import (
    BucketExists,
    BucketNotFound,
    ConflictError,
    PermissionDenied,
    RefusedError,
    RequestTimeout,
    StreamNotFound,
)
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.config import ensure, leftover_messages
from kvctl.jetstream.config.config_merge import merge
from kvctl.jetstream.config.edit_lock import edit_lock
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.kv import reserved_streams, resolve
from kvctl.kv.config import BucketConfig, BucketStatus
from kvctl.kv.config_diff import (
    Difference,
    differences,
    listed,
    missing,
)
from kvctl.kv.config_edit import edited
from kvctl.kv.names import STREAM_PREFIX, check_bucket
from kvctl.kv.stream_kind import Kind, kind_of, started

EDIT_ATTEMPTS = 5
"""How often a change is written that others overwrite."""
_OF_THE_STREAM = ("discard", "allow_direct", "allow_rollup_hdrs", "deny_delete", "deny_purge", "retention")
"""Fields of ADR-8's configuration that `bucket edit` has no option for."""
_COMPARISON = ensure.Comparison(differences, missing, differences)
_USABLE = (Kind.BUCKET, Kind.AGGREGATE, Kind.MIRROR)


@dataclass(frozen=True, slots=True)
class Creation:
    """What became of a creation."""

    info: StreamInfo
    created: bool
    """False when the bucket was there already, with the same configuration."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a bucket's stream configuration, not yet made."""

    info: StreamInfo
    after: StreamConfig

    @property
    def before(self) -> StreamConfig:
        """The configuration as it is."""
        config: StreamConfig = self.info["config"]
        return config

    @property
    def differences(self) -> list[Difference]:
        """What changes, field by field; empty when nothing does."""
        return differences(self.before, self.after)


@dataclass(frozen=True, slots=True)
class Listing:
    """The buckets in view, and the streams whose servers do not answer."""

    statuses: list[BucketStatus]
    unreachable: list[str]
    offline: list[BucketStatus] = field(default_factory=list)
    """Of those of the unreachable ones whose configuration is known; their state says nothing."""


async def create(api: Api, config: BucketConfig) -> Creation:
    """Create a bucket; the same configuration again is no error. What the server stored is read back.

    Raises BucketExists (with another configuration, or as a mirror), OutcomeUnknown, ServerError, UsageError, and
    KvctlError when the server dropped fields: then nothing is left behind.
    """
    return await create_like(api, config.to_stream())


async def create_like(api: Api, wanted: StreamConfig) -> Creation:
    """`create` for a bucket's stream configuration. Raises as `create`."""
    found = await existing(api, wanted)
    if found is None:
        try:
            return Creation(await create_stream(api, wanted), created=True)
        except ConflictError:
            found = await streams.info(api, wanted["name"])
            require_same(found["config"], wanted)
    return Creation(found, created=False)


async def existing(api: Api, wanted: StreamConfig) -> StreamInfo | None:
    """The stream when it is there as wanted, None when it is not there. Raises BucketExists."""
    name = wanted["name"].removeprefix(STREAM_PREFIX)
    found, _ = await asyncio.gather(streams.find(api, wanted["name"]), refuse_namesake(api, name))
    if found is not None:
        require_same(found["config"], wanted)
    return found


async def create_stream(api: Api, wanted: StreamConfig) -> StreamInfo:
    """Create a stream that does not exist and compare what the server made of it.

    Raises ConflictError when it exists after all, OutcomeUnknown, KvctlError when fields were dropped: it is removed.
    """
    wanted = started(wanted)
    return await ensure.create_new(_target(api, wanted["name"]), wanted)


async def find(api: Api, name: str) -> StreamInfo:
    """The stream info of the bucket, aggregate or mirror that the name means. Raises BucketNotFound."""
    try:
        info = (await resolve.locate(api, check_bucket(name))).info
    except RequestTimeout as error:
        error.hint = "The servers that hold it may be down: `kvctl bucket ls` shows what is unreachable"
        raise
    assert info is not None
    return info


async def plan_edit(api: Api, name: str, changes: Mapping[str, Any], clear: Collection[str] = ()) -> Edit:
    """The change of fields of BucketConfig on the full live configuration; nothing is changed yet.

    Raises BucketNotFound, UsageError, RefusedError for what no server can change.
    """
    info = await find(api, name)
    if kind_of(info["config"]) is Kind.INCOMPLETE:
        raise _incomplete(name)
    after = edited(started(info["config"]), changes, clear)
    if after.get("storage", "file") != info["config"].get("storage", "file"):
        raise RefusedError(
            f"The storage of `{name}` cannot be changed: it is chosen when a bucket is made",
            hint=f"`kvctl bucket copy {name} NEWNAME --data history --storage {after['storage']}` makes another",
        )
    return Edit(info, after)


async def apply_edit(api: Api, edit: Edit) -> StreamInfo:
    """Make the change to the configuration as it is now and read it back; returns the new info.

    What others have changed since the edit was planned stays. A change that the server drops is taken back. Raises
    ConflictError for a field that another editor changed, a stream that was recreated, and a change that others
    overwrite again and again; OutcomeUnknown, ServerError, and KvctlError when the server dropped fields.
    """
    streams.require_writable(api)
    stream = edit.after["name"]
    async with edit_lock(api, stream):
        for _ in range(EDIT_ATTEMPTS):
            live = await streams.info(api, stream)
            after = _merged(edit, live)
            if after == live["config"]:
                return live
            await ensure.update(_target(api, stream), live["config"], after)
            found = await streams.info(api, stream)
            if not differences(found["config"], _merged(edit, found)):
                return found
    raise ConflictError(
        f"`{stream.removeprefix(STREAM_PREFIX)}` is being changed by others: what was written is overwritten each time",
        hint="Run it again when nobody else changes it",
    )


def _merged(edit: Edit, live: StreamInfo) -> StreamConfig:
    if live["created"] != edit.info["created"]:
        name = live["config"]["name"].removeprefix(STREAM_PREFIX)
        raise ConflictError(f"`{name}` was recreated in the meantime", hint="Look at it again, then run it again")
    return started(merge(edit.before, edit.after, live["config"]))


async def update(api: Api, config: BucketConfig) -> StreamInfo:
    """Give an existing bucket all of the configuration's fields; what a BucketConfig does not say stays.

    Loses history or entries where the new limits are smaller. Raises BucketNotFound, and as `apply_edit`.
    """
    edit = await plan_edit(api, config.name, config.settings(), clear=["metadata"])
    return await apply_edit(api, edit) if edit.differences else edit.info


async def create_or_update(api: Api, config: BucketConfig) -> Creation:
    """Create the bucket, or update the one that exists. Raises as `create` and `update`."""
    if await streams.find(api, STREAM_PREFIX + check_bucket(config.name)) is not None:
        return Creation(await update(api, config), created=False)
    return await create(api, config)


async def delete(api: Api, stream: str) -> None:
    """Delete the stream of a bucket with all it holds. Raises BucketNotFound, OutcomeUnknown."""
    try:
        await ensure.delete(_target(api, stream))
    except StreamNotFound:
        raise BucketNotFound(f"Bucket `{stream.removeprefix(STREAM_PREFIX)}` does not exist") from None


async def listing(api: Api) -> Listing:
    """Every bucket, aggregate, mirror and stream named like a bucket, by name; pages through all streams."""
    found = await streams.listing(api)
    offline = [info for info in found.silent.values() if info is not None]
    known = {info["config"]["name"]: info["config"] for info in (*found.answering, *offline)}
    statuses, away = (
        [BucketStatus.from_info(info, known) for info in infos if kind_of(info["config"], known)]
        for infos in (found.answering, offline)
    )
    ordered = sorted(statuses, key=lambda status: (status.bucket, status.stream))
    return Listing(ordered, [*found.silent], away)


async def statuses(api: Api) -> list[BucketStatus]:
    """The status of every bucket, aggregate and mirror."""
    return [status for status in (await listing(api)).statuses if status.kind in _USABLE]


async def names(api: Api) -> list[str]:
    """The names of all buckets, aggregates and mirrors."""
    return [status.bucket for status in await statuses(api)]


async def refuse_namesake(api: Api, name: str) -> None:
    """Raises BucketExists for a mirror stream of this name, which the bucket would hide."""
    with suppress(PermissionDenied):
        info = await streams.find(api, name)
        if info is not None and info["config"].get("mirror"):
            raise BucketExists(
                f"`{name}` is a mirror of `{info['config']['mirror']['name'].removeprefix(STREAM_PREFIX)}`",
                hint=f"Choose another name, or delete the mirror with `kvctl bucket delete {name}`",
            )


def require_same(found: StreamConfig, wanted: StreamConfig) -> None:
    """Raises BucketExists, with the differences, unless both configurations say the same."""
    kind, name = kind_of(found), found["name"].removeprefix(STREAM_PREFIX)
    if kind is Kind.INCOMPLETE:
        raise _incomplete(name)
    if reserved_streams.evidence(found):
        raise BucketExists(f"The stream `{found['name']}` belongs to a {kind}", hint="Choose another name")
    if kind is Kind.STREAM:
        raise BucketExists(f"A stream `{found['name']}` exists that is no bucket", hint="Choose another name")
    differing = differences(started(found), wanted)
    if differing:
        what = "Bucket" if kind is Kind.BUCKET else str(kind).capitalize()
        changes = f"`kvctl bucket edit {name}` changes it"
        if settings := [_setting(item) for item in differing if item.field in _OF_THE_STREAM]:
            changes = f"`kvctl stream edit {found['name']} {' '.join(settings)}` changes it"
            if len(settings) < len(differing):
                changes += f" together with `kvctl bucket edit {name}`"
        if kind is Kind.AGGREGATE and any(item.field == "sources" for item in differing):
            changes = f"`kvctl aggregate add-origin {name}` and `remove-origin` change what it reads"
        raise BucketExists(
            f"{what} `{name}` exists with another configuration (there -> asked for):\n{listed(differing)}",
            hint=f"{changes}, `kvctl bucket show {name}` shows it",
        )


def _setting(difference: Difference) -> str:
    """The option of `stream edit` that gives the field the value that was asked for."""
    value = difference.after if difference.after is not None else False
    return f"--set {difference.field}={str(value).lower() if isinstance(value, bool) else value}"


def _incomplete(name: str) -> ConflictError:
    return BucketExists(
        f"`{name}` is what an interrupted restore or copy left behind",
        hint=f"Run `kvctl bucket restore DIR` again, which starts over, or remove it with `kvctl bucket delete {name}`",
    )


def _target(api: Api, stream: str) -> ensure.Target[StreamInfo]:
    """The stream of a bucket, compared in the words of buckets and read back after its creation."""

    async def create(wanted: StreamConfig) -> StreamInfo:
        made = await leftover_messages.create(api, wanted)
        with suppress(*ensure.NO_ANSWER):
            return await streams.info(api, stream)
        return made  # without an answer now, the first one still shows that it was created

    show = f"kvctl bucket show {stream.removeprefix(STREAM_PREFIX)}"
    return replace(ensure.stream(api, stream), what=f"`{stream}`", show=show, comparison=_COMPARISON, create=create)
