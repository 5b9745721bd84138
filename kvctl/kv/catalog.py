"""Create, change, list and delete buckets; results are read back, and failed changes are reverted."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from kvctl.errors import (
    Away,
    BucketExists,
    BucketNotFound,
    ConflictError,
    PermissionDenied,
    RefusedError,
    RequestTimeout,
    StreamNotFound,
)
from kvctl.jetstream import edits, streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.config_diff import Difference
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo
from kvctl.kv import resolve, stream_kind
from kvctl.kv.config import BucketConfig, BucketStatus, differences, edited
from kvctl.kv.names import STREAM_PREFIX, check_bucket
from kvctl.kv.settings import FIXED
from kvctl.kv.stream_kind import Kind, described, kind_of, started
from kvctl.phrases import indented

_OF_THE_STREAM = ("discard", "allow_direct", "allow_rollup_hdrs", "deny_delete", "deny_purge", "retention")
"""Fields of ADR-8's configuration without an option of `bucket edit`."""
_USABLE = (Kind.BUCKET, Kind.AGGREGATE, Kind.MIRROR)


class Creation(NamedTuple):
    """Result of a creation."""

    info: StreamInfo
    created: bool
    """False if the bucket already existed with the same configuration."""


class Edit(NamedTuple):
    """Planned change of a bucket's stream configuration."""

    info: StreamInfo
    after: StreamConfig

    @property
    def before(self) -> StreamConfig:
        """Return the current configuration."""
        config: StreamConfig = self.info["config"]
        return config

    @property
    def differences(self) -> list[Difference]:
        """Return the changed fields; empty without changes."""
        return differences(self.before, self.after)


class Listing(NamedTuple):
    """Buckets in view, and the streams whose servers do not answer."""

    statuses: list[BucketStatus]
    unreachable: list[str]
    offline: list[BucketStatus]
    """Unreachable ones with a known configuration; their state is meaningless."""


async def create(api: Api, config: BucketConfig) -> Creation:
    """Create a bucket and read it back; succeed if it exists with the same configuration.

    Raises BucketExists (with another configuration, or as a mirror), OutcomeUnknown, ServerError, UsageError, and
    KvctlError when the server dropped fields: then nothing is left behind.
    """
    return await create_like(api, config.to_stream())


async def create_like(api: Api, wanted: StreamConfig) -> Creation:
    """Create a bucket from its stream configuration. Raises as `create`."""
    found = await existing(api, wanted)
    if found is None:
        try:
            return Creation(await create_stream(api, wanted), created=True)
        except ConflictError:
            found = await streams.info(api, wanted["name"])
            require_same(found["config"], wanted)
    return Creation(found, created=False)


async def existing(api: Api, wanted: StreamConfig) -> StreamInfo | None:
    """Return the stream if it exists as wanted, None if it does not exist. Raises BucketExists."""
    name = wanted["name"].removeprefix(STREAM_PREFIX)
    found, _ = await asyncio.gather(streams.find(api, wanted["name"]), refuse_namesake(api, name))
    if found is not None:
        require_same(found["config"], wanted)
    return found


async def create_stream(api: Api, wanted: StreamConfig) -> StreamInfo:
    """Create a stream that does not exist and compare the stored configuration.

    Raises ConflictError if it exists nevertheless, OutcomeUnknown, KvctlError if fields were dropped: it is removed.
    """
    wanted = started(wanted)
    return await edits.create_new(_target(api, wanted["name"]), wanted)


async def find(api: Api, name: str) -> StreamInfo:
    """Return the stream info of the bucket, aggregate or mirror of this name. Raises BucketNotFound."""
    try:
        info = (await resolve.locate(api, check_bucket(name))).info
    except RequestTimeout as error:
        error.hint = "Its servers may be down; see which buckets are offline with `kvctl bucket ls`"
        raise
    assert info is not None
    return info


async def plan_edit(api: Api, name: str, changes: Mapping[str, Any], clear: Collection[str] = ()) -> Edit:
    """Plan a change of fields of BucketConfig on the complete current configuration; nothing is changed yet.

    Raises BucketNotFound, UsageError, RefusedError for changes that no server supports.
    """
    info = await find(api, name)
    if kind_of(info["config"]) is Kind.INCOMPLETE:
        raise _incomplete(name)
    after = edited(started(info["config"]), changes, clear)
    for row in FIXED:
        if row.from_stream(after) != row.from_stream(info["config"]):
            option = f"--{row.option_name} {row.from_stream(after)}"
            raise RefusedError(
                f"The {row.option_name.replace('-', ' ')} of `{name}` cannot be changed after its creation",
                hint=f"Copy it with `kvctl bucket copy {name} NEWNAME --data history {option}`",
            )
    return Edit(info, after)


async def apply_edit(api: Api, edit: Edit) -> StreamInfo:
    """Apply the change to the current configuration and read it back; return the new info. Raises as `edits.edit`."""
    streams.require_writable(api)
    return await edits.edit(_target(api, edit.after["name"]), edit.info, edit.after)


async def update(api: Api, config: BucketConfig) -> StreamInfo:
    """Apply all fields of the configuration to an existing bucket; fields that BucketConfig does not cover are kept.

    Deletes history or entries if the new limits are smaller. Raises BucketNotFound, and as `apply_edit`.
    """
    edit = await plan_edit(api, config.name, config.settings(), clear=["metadata"])
    return await apply_edit(api, edit) if edit.differences else edit.info


async def create_or_update(api: Api, config: BucketConfig) -> Creation:
    """Create the bucket, or update the existing one. Raises as `create` and `update`."""
    if await streams.find(api, STREAM_PREFIX + check_bucket(config.name)) is not None:
        return Creation(await update(api, config), created=False)
    return await create(api, config)


async def plan_seal(api: Api, name: str) -> StreamInfo:
    """Return the info of a bucket that can be sealed, or is. Raises BucketNotFound, RefusedError for other kinds."""
    info = await find(api, name)
    stream_kind.refuse(info["config"], forcible=False)
    kind = kind_of(info["config"])
    if kind is Kind.INCOMPLETE:
        raise _incomplete(name)
    if kind is not Kind.BUCKET:
        raise RefusedError(
            f"`{name}` is {described(kind)}, not a bucket",
            hint="A sealed replica would silently stop replicating; seal its origin instead",
        )
    return info


async def seal(api: Api, name: str) -> bool:
    """Make a bucket permanently read-only; return False if it already was. Its keys no longer expire.

    Raises BucketNotFound, RefusedError for a mirror or an aggregate, ReadOnly, ServerError.
    """
    streams.require_writable(api)
    stream = (await plan_seal(api, name))["config"]["name"]
    async with edits.edit_lock(api, stream):
        config = (await streams.info(api, stream))["config"]
        if config.get("sealed"):
            return False
        await streams.seal(api, config)
    return True


async def delete(api: Api, stream: str) -> None:
    """Delete the stream of a bucket with all its data. Raises BucketNotFound, OutcomeUnknown."""
    try:
        await edits.delete(_target(api, stream))
    except StreamNotFound:
        raise BucketNotFound(f"Bucket `{stream.removeprefix(STREAM_PREFIX)}` does not exist") from None


async def listing(api: Api) -> Listing:
    """List every bucket, aggregate, mirror and stream named like a bucket, by name; every page of streams."""
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
    """Return the status of every bucket, aggregate and mirror."""
    return [status for status in (await listing(api)).statuses if status.kind in _USABLE]


async def names(api: Api) -> list[str]:
    """Return the names of all buckets, aggregates and mirrors."""
    return [status.bucket for status in await statuses(api)]


async def refuse_namesake(api: Api, name: str) -> None:
    """Raise BucketExists for a mirror stream of this name, which the bucket would hide."""
    with suppress(PermissionDenied):
        info = await streams.find(api, name)
        if info is not None and info["config"].get("mirror"):
            raise BucketExists(
                f"`{name}` is a mirror of `{info['config']['mirror']['name'].removeprefix(STREAM_PREFIX)}`",
                hint=f"Choose another name, or delete the mirror with `kvctl bucket delete {name}`",
            )


def require_same(found: StreamConfig, wanted: StreamConfig) -> None:
    """Raise BucketExists, with the differences, unless both configurations are equal."""
    kind, name = kind_of(found), found["name"].removeprefix(STREAM_PREFIX)
    if kind is Kind.INCOMPLETE:
        raise _incomplete(name)
    if stream_kind.evidence(found):
        raise BucketExists(f"The stream `{found['name']}` belongs to a {kind}", hint="Choose another name")
    if kind is Kind.STREAM:
        raise BucketExists(f"Stream `{found['name']}` exists and is not a bucket", hint="Choose another name")
    differing = differences(started(found), wanted)
    if differing:
        what = "Bucket" if kind is Kind.BUCKET else str(kind).capitalize()
        changes = f"change it with `kvctl bucket edit {name}`"
        if settings := [_setting(item) for item in differing if item.field in _OF_THE_STREAM]:
            changes = f"change it with `kvctl stream edit {found['name']} {' '.join(settings)}`"
            if len(settings) < len(differing):
                changes += f" and `kvctl bucket edit {name}`"
        if kind is Kind.AGGREGATE and any(item.field == "sources" for item in differing):
            changes = f"change its origins with `kvctl aggregate add-origin {name}` and `remove-origin`"
        raise BucketExists(
            indented(f"{what} `{name}` already exists with another configuration (current -> requested):", differing),
            hint=f"See it with `kvctl bucket show {name}`, {changes}",
        )


def _setting(difference: Difference) -> str:
    """Return the option of `stream edit` that gives the field the requested value."""
    value = difference.after if difference.after is not None else False
    return f"--set {difference.field}={str(value).lower() if isinstance(value, bool) else value}"


def _incomplete(name: str) -> ConflictError:
    return BucketExists(
        f"`{name}` is incomplete: an interrupted restore or copy left it",
        hint=f"Run `kvctl bucket restore DIR` again, which starts over, or remove it with `kvctl bucket delete {name}`",
    )


def _target(api: Api, stream: str) -> edits.EditTarget[StreamInfo]:
    """Return the stream of a bucket as a target, compared in a bucket's terms and read back after its creation."""

    async def create(wanted: StreamConfig) -> StreamInfo:
        made = await streams.create(api, wanted)
        with suppress(Away):
            return await streams.info(api, stream)
        return made  # without an answer now, the first one still shows that it was created

    name = stream.removeprefix(STREAM_PREFIX)
    return replace(
        edits.stream(api, stream),
        what=f"`{name}`",
        show=f"kvctl bucket show {name}",
        differences=differences,
        create=create,
        completed=started,
    )
