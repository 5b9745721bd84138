"""Create, edit and delete streams and consumers reliably.

Creating an equal one again succeeds, fields dropped silently by the server are detected, lost answers are resolved.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from kvctl.dataclass import dataclass
from kvctl.errors import (
    ConflictError,
    ConnectionLost,
    JetStreamDisabled,
    KvctlError,
    NoServer,
    NotFoundError,
    OutcomeUnknown,
    RequestTimeout,
)
from kvctl.jetstream import streams
from kvctl.jetstream.api import Api
from kvctl.jetstream.config import leftover_messages
from kvctl.jetstream.config.config_merge import merge
from kvctl.jetstream.config.config_text import CONSUMER, STREAM, Config, Schema, changes, missing
from kvctl.jetstream.config.edit_lock import edit_lock
from kvctl.jetstream.consumers import admin
from kvctl.jetstream.stream_info import StreamInfo

Info = TypeVar("Info", bound=Mapping[str, Any])
"""Answer of the server that has the stored configuration as `config`."""

LOST_ANSWER = (RequestTimeout, ConnectionLost)
"""After these a request may or may not have been applied."""
NO_ANSWER = (*LOST_ANSWER, NoServer, JetStreamDisabled)
READ_BACK_INTERVAL_S = 0.1


class FieldChange(Protocol):
    """Field in which two configurations differ."""

    @property
    def field(self) -> str:
        """Name of the field in messages."""


Compare = Callable[[Config, Config], Sequence[FieldChange]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ways to compare two configurations of one kind."""

    changes: Compare
    """Fields that differ, from the first to the second."""
    not_created: Compare
    """Fields of the first, which was to be created, that the second does not have."""
    not_updated: Compare
    """Fields of the first, which was to replace an earlier configuration, that the second does not have."""


def by_schema(schema: Schema) -> Comparison:
    """Compare as the schema reads the fields."""
    lacking = partial(missing, schema=schema)
    return Comparison(partial(changes, schema=schema), lacking, lacking)


@dataclass(frozen=True, slots=True)
class Target(Generic[Info]):
    """Stream or consumer to change: its name, and how it is read and written."""

    api: Api
    what: str
    """Its name in messages: "stream `S`"."""
    show: str
    """Command that shows it."""
    comparison: Comparison
    read: Callable[[], Awaitable[Info]]
    create: Callable[[Config], Awaitable[Info]]
    update: Callable[[Config], Awaitable[Info]]
    delete: Callable[[], Awaitable[None]]
    lock: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """Held while it is edited."""

    async def find(self) -> Info | None:
        """Return its info; None if it does not exist."""
        try:
            return await self.read()
        except NotFoundError:
            return None


def stream(api: Api, name: str) -> Target[StreamInfo]:
    """Return a stream as a target."""
    return Target(
        api, f"stream `{name}`", f"kvctl stream show {name}", by_schema(STREAM),
        read=lambda: streams.info(api, name),
        create=lambda config: leftover_messages.create(api, config),
        update=lambda config: streams.update(api, config),
        delete=lambda: streams.delete(api, name),
        lock=lambda: edit_lock(api, name),
    )  # fmt: skip


def consumer(api: Api, stream: str, name: str) -> Target[dict[str, Any]]:
    """Return a consumer as a target."""
    return Target(
        api, f"consumer `{name}` of stream `{stream}`", f"kvctl consumer show {stream} {name}",
        by_schema(CONSUMER),
        read=lambda: admin.info(api, stream, name),
        create=lambda config: admin.create(api, stream, config),
        update=lambda config: admin.update(api, stream, config),
        delete=lambda: admin.delete(api, stream, name),
    )  # fmt: skip


async def existing(target: Target[Info], wanted: Config) -> Info | None:
    """Return the existing one if it is as wanted; None for none. Raises ConflictError, with the differences."""
    found = await target.find()
    if found is None:
        return None
    differing = target.comparison.not_created(wanted, found["config"])
    if differing:
        listed = "\n".join(f"  {change}" for change in differing)
        raise ConflictError(
            f"{_capitalized(target.what)} already exists with another configuration (current -> requested):\n{listed}",
            hint=f"See it with `{target.show}`, change it with `{target.show.replace(' show ', ' edit ')}`",
        )
    return found


async def create(target: Target[Info], wanted: Config) -> tuple[Info, bool]:
    """Create it, or find it as wanted; return its info and whether it was created.

    Raises ConflictError for another configuration, and as `create_new`.
    """
    if (found := await existing(target, wanted)) is not None:
        return found, False
    return await create_new(target, wanted), True


async def create_new(target: Target[Info], wanted: Config) -> Info:
    """Create what does not exist and compare what the server stored. One that lacks fields is deleted again.

    Raises ConflictError when another client creates it at the same time, OutcomeUnknown, ServerError, and KvctlError
    when the server silently dropped fields.
    """
    try:
        made = await target.create(wanted)
    except LOST_ANSWER as error:
        found = await _found_after(error, target, "created", lambda info: info is not None)
        assert found is not None
        if target.comparison.not_created(wanted, found["config"]):
            # Never deleted: it may belong to another client.
            raise ConflictError(f"{_capitalized(target.what)} was created by another client in the meantime") from None
        return found
    if dropped := target.comparison.not_created(wanted, made["config"]):
        await target.delete()
        raise _too_old(target, dropped, "nothing was created")
    return made


async def edit(target: Target[Info], before: Config, after: Config) -> Info:
    """Apply the change to the current configuration; one that was stored incompletely is reverted.

    Raises ConflictError for a field that another client has changed, OutcomeUnknown, ServerError, KvctlError if the
    server silently dropped fields.
    """
    # A consumer held as a lock would count as one that retains messages.
    free = before.get("retention", "limits") != "limits"
    async with nullcontext() if free else target.lock():
        live = (await target.read())["config"]
        return await update(target, live, merge(before, after, live))


async def update(target: Target[Info], before: Config, after: Config) -> Info:
    """Replace the configuration `before` by `after`, and restore it when the server silently drops part of the change.

    Raises OutcomeUnknown, ServerError, and KvctlError when fields were dropped.
    """
    lacking = target.comparison.not_updated
    try:
        info = await target.update(after)
    except LOST_ANSWER as error:
        found = await _found_after(
            error, target, "changed", lambda info: info is not None and not lacking(after, info["config"])
        )
        assert found is not None
        info = found
    asked = {change.field for change in target.comparison.changes(before, after)}
    if dropped := [change for change in lacking(after, info["config"]) if change.field in asked]:
        await target.update(before)
        raise _too_old(target, dropped, "the previous configuration was restored")
    return info


async def delete(target: Target[Info]) -> None:
    """Delete it. Raises NotFoundError, OutcomeUnknown, ReadOnly."""
    try:
        await target.delete()
    except LOST_ANSWER as error:
        await _found_after(error, target, "deleted", lambda info: info is None)


async def _found_after(
    error: KvctlError, target: Target[Info], verb: str, done: Callable[[Info | None], bool]
) -> Info | None:
    """Read the target until a change with a lost answer appears, for at most the connection's timeout."""
    deadline = time.monotonic() + target.api.connection.timeout
    while True:
        with suppress(*NO_ANSWER):
            info = await target.find()
            if done(info):
                return info
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(READ_BACK_INTERVAL_S)
    raise OutcomeUnknown(
        f"Could not find out if {target.what} was {verb}: {error.message}",
        hint=f"Check with `{target.show}`, then run it again",
    ) from None


def _too_old(target: Target[Any], dropped: Sequence[FieldChange], outcome: str) -> KvctlError:
    version = ".".join(map(str, target.api.connection.server_version))
    fields = ", ".join(f"`{change.field}`" for change in dropped)
    them = "it" if len(dropped) == 1 else "them"
    return KvctlError(
        f"The server silently dropped or changed {fields} of {target.what}; {outcome}",
        hint=f"nats-server {version} does not support {them} like this: omit {them}, change {them}, "
        "or use a newer server",
    )


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
