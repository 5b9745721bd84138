"""Streams and consumers created, edited and deleted with care.

The same again is no error, what a server drops in silence is found, and what got no answer is looked after.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

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
from kvctl.jetstream.config.config_merge import merge
from kvctl.jetstream.config.config_text import (
    CONSUMER,
    STREAM,
    Change,
    Config,
    Schema,
    changes,
    missing,
)
from kvctl.jetstream.config.edit_lock import edit_lock
from kvctl.jetstream.consumers import admin

Info = dict[str, Any]

_OPEN = (RequestTimeout, ConnectionLost)
_ABSENT = (*_OPEN, NoServer, JetStreamDisabled)


@dataclass(frozen=True, slots=True)
class Target:
    """A stream, or a consumer of it: what it is called, and how it is read and written."""

    api: Api
    what: str
    """As in messages: "stream `S`"."""
    show: str
    """The command that shows it."""
    schema: Schema
    read: Callable[[], Awaitable[Info]]
    create: Callable[[Config], Awaitable[Info]]
    update: Callable[[Config], Awaitable[Info]]
    delete: Callable[[], Awaitable[None]]
    lock: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """Held while it is edited."""

    async def find(self) -> Info | None:
        """Its info; None when it does not exist."""
        try:
            return await self.read()
        except NotFoundError:
            return None


def stream(api: Api, name: str) -> Target:
    """A stream as a target."""
    return Target(
        api, f"stream `{name}`", f"kvctl stream show {name}", STREAM,
        read=lambda: streams.info(api, name),
        create=lambda config: streams.create(api, config),
        update=lambda config: streams.update(api, config),
        delete=lambda: streams.delete(api, name),
        lock=lambda: edit_lock(api, name),
    )  # fmt: skip


def consumer(api: Api, stream: str, name: str) -> Target:
    """A consumer as a target."""
    return Target(
        api, f"consumer `{name}` of stream `{stream}`", f"kvctl consumer show {stream} {name}", CONSUMER,
        read=lambda: admin.info(api, stream, name),
        create=lambda config: admin.create(api, stream, config),
        update=lambda config: admin.update(api, stream, config),
        delete=lambda: admin.delete(api, stream, name),
    )  # fmt: skip


async def existing(target: Target, wanted: Config) -> Info | None:
    """What is there as wanted; None for nothing. Raises ConflictError, with the differences."""
    found = await target.find()
    if found is None:
        return None
    differing = missing(wanted, found["config"], target.schema)
    if differing:
        listed = "\n".join(f"  {change}" for change in differing)
        raise ConflictError(
            f"{target.what[:1].upper()}{target.what[1:]} exists with another configuration "
            f"(there -> asked for):\n{listed}",
            hint=f"`{target.show}` shows it, `{target.show.replace(' show ', ' edit ')}` changes it",
        )
    return found


async def create(target: Target, wanted: Config) -> tuple[Info, bool]:
    """Create it, or find it as wanted; whether it was created. Nothing is left of one that came out otherwise.

    Raises ConflictError, OutcomeUnknown, ServerError, KvctlError where the server dropped fields in silence.
    """
    if (found := await existing(target, wanted)) is not None:
        return found, False
    made = await _settled(target, "created", lambda: target.create(wanted), lambda info: info is not None)
    dropped = missing(wanted, made["config"], target.schema) if made else []
    if dropped:
        await target.delete()
        raise _too_old(target, dropped, "nothing was created")
    return made or {}, True


async def edit(target: Target, before: Config, after: Config) -> Info:
    """Make the change to the configuration as it is now; one that did not arrive whole is taken back.

    Raises ConflictError for a field that somebody else has changed, OutcomeUnknown, ServerError, KvctlError where the
    server dropped fields in silence.
    """
    # A consumer that only locks would count as one that messages are kept for.
    free = before.get("retention", "limits") != "limits"
    async with nullcontext() if free else target.lock():
        live = (await target.read())["config"]
        return await _edit(target, live, merge(before, after, live))


async def _edit(target: Target, before: Config, after: Config) -> Info:

    def done(info: Info | None) -> bool:
        return info is not None and not missing(after, info["config"], target.schema)

    info = await _settled(target, "changed", lambda: target.update(after), done) or {}
    asked = {change.field for change in changes(before, after, target.schema)}
    dropped = [change for change in missing(after, info["config"], target.schema) if change.field in asked]
    if dropped:
        await target.update(before)
        raise _too_old(target, dropped, "it is as it was")
    return info


async def delete(target: Target) -> None:
    """Delete it. Raises NotFoundError, OutcomeUnknown, ReadOnly."""

    async def send() -> Info | None:
        await target.delete()
        return None

    await _settled(target, "deleted", send, lambda info: info is None)


async def _settled(
    target: Target, verb: str, send: Callable[[], Awaitable[Info | None]], done: Callable[[Info | None], bool]
) -> Info | None:
    """Send a change; when no answer comes, look whether it was made, as long as the connection's timeout."""
    try:
        return await send()
    except _OPEN as error:
        deadline = time.monotonic() + target.api.connection.timeout
        while time.monotonic() < deadline:
            with suppress(*_ABSENT):
                info = await target.find()
                if done(info):
                    return info
            await asyncio.sleep(0.1)
        raise OutcomeUnknown(
            f"Whether {target.what} was {verb} is not known: {error.message}",
            hint=f"`{target.show}` tells; then run it again",
        ) from None


def _too_old(target: Target, dropped: list[Change], outcome: str) -> KvctlError:
    version = ".".join(map(str, target.api.connection.server_version))
    fields = ", ".join(f"`{change.field}`" for change in dropped)
    them = "it" if len(dropped) == 1 else "them"
    return KvctlError(
        f"The server silently dropped or changed {fields} of {target.what}; {outcome}",
        hint=f"nats-server {version} does not take {them} like that: leave {them} out, or change {them}",
    )
