"""Create, edit and delete streams and consumers reliably.

Creating an equal one again succeeds, fields dropped silently by the server are detected, lost answers are resolved.

JetStream has no compare-and-set on configurations: an update replaces all of it. So the planned change is applied to
the current configuration, rather than writing the planned configuration, and every kvctl holds a lock on the stream
while it edits it. Other tools do not know the lock: conflicts with these are found by reading the edit back.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from kvctl.errors import Away, ConflictError, KvctlError, NotFoundError, OutcomeUnknown
from kvctl.jetstream import streams
from kvctl.jetstream.answer import MalformedAnswer
from kvctl.jetstream.api import Api
from kvctl.jetstream.config_diff import Difference, differences, overlaid
from kvctl.jetstream.config_text import STREAM, Config
from kvctl.jetstream.stream_info import Source, SourceConfig, StreamInfo
from kvctl.phrases import indented

Info = TypeVar("Info", bound=Mapping[str, Any])
"""Answer of the server that has the stored configuration as `config`, and `created`."""

READ_BACK_INTERVAL_S = 0.1
EDIT_ATTEMPTS = 5
"""Number of times that a change overwritten by others is written again."""
LOCK_NAME = "kvctl-edit"
LEASE_S = 3.0
"""Seconds after which an unreleased lock is free: an edit takes milliseconds."""
_MARGIN_S = 0.5
_LOCK_INTERVAL_S = 0.05
_MERGED = ("metadata", "placement")
"""Objects whose members are merged one by one."""
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class EditTarget(Generic[Info]):
    """Stream or consumer to change: its name, and how it is read, written and compared."""

    api: Api
    what: str
    """Its name in messages: "stream `S`"."""
    show: str
    """Command that shows it."""
    differences: Callable[[Config, Config], list[Difference]]
    read: Callable[[], Awaitable[Info]]
    create: Callable[[Config], Awaitable[Info]]
    update: Callable[[Config], Awaitable[Info]]
    delete: Callable[[], Awaitable[None]]
    lock: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """Held while it is edited."""
    completed: Callable[[Config], Config] = dict
    """Completes a configuration before it is written."""

    async def find(self) -> Info | None:
        """Return its info; None if it does not exist."""
        try:
            return await self.read()
        except NotFoundError:
            return None


def stream(api: Api, name: str) -> EditTarget[StreamInfo]:
    """Return a stream as a target."""
    return EditTarget(
        api,
        f"stream `{name}`",
        f"kvctl stream show {name}",
        partial(differences, schema=STREAM),
        read=lambda: streams.info(api, name),
        create=lambda config: streams.create(api, config),
        update=lambda config: streams.update(api, config),
        delete=lambda: streams.delete(api, name),
        lock=lambda: edit_lock(api, name),
    )


async def existing(target: EditTarget[Info], wanted: Config) -> Info | None:
    """Return the existing one if it is as wanted; None for none. Raises ConflictError, with the differences."""
    found = await target.find()
    if found is None:
        return None
    if differing := _lacking(target, wanted, found):
        raise ConflictError(
            indented(
                f"{_capitalized(target.what)} already exists with another configuration (current -> requested):",
                differing,
            ),
            hint=f"See it with `{target.show}`, change it with `{target.show.replace(' show ', ' edit ')}`",
        )
    return found


async def create(target: EditTarget[Info], wanted: Config) -> tuple[Info, bool]:
    """Create it, or find it as wanted; return its info and whether it was created.

    Raises ConflictError for another configuration, and as `create_new`.
    """
    if (found := await existing(target, wanted)) is not None:
        return found, False
    return await create_new(target, wanted), True


async def create_new(target: EditTarget[Info], wanted: Config) -> Info:
    """Create what does not exist and compare what the server stored. One that lacks fields is deleted again.

    Raises ConflictError when another client creates it at the same time, OutcomeUnknown, ServerError, and KvctlError
    when the server silently dropped fields.
    """
    try:
        made = await target.create(wanted)
    except OutcomeUnknown as error:
        found = await _found_after(error, target, "created", lambda info: info is not None)
        assert found is not None
        if _lacking(target, wanted, found):
            # Never deleted: it may belong to another client.
            raise ConflictError(f"{_capitalized(target.what)} was created by another client in the meantime") from None
        return found
    if dropped := _lacking(target, wanted, made):
        await target.delete()
        raise _too_old(target, [item.field for item in dropped], "nothing was created")
    return made


async def edit(target: EditTarget[Info], planned: Info, after: Config) -> Info:
    """Apply the change from the configuration of `planned` to `after` to the current one; return what is stored then.

    Changes by others since the edit was planned are kept. A change that the server drops is reverted. Raises
    ConflictError for a field that another editor changed, for one that was recreated, and for a change that others
    overwrite repeatedly; OutcomeUnknown, ServerError, and KvctlError when the server dropped fields.
    """
    # A consumer held as a lock would count as one that retains messages.
    free = planned["config"].get("retention", "limits") != "limits"
    async with nullcontext() if free else target.lock():
        for _ in range(EDIT_ATTEMPTS):
            live = await target.read()
            _require_same_instance(target, planned, live)
            wanted = target.completed(merge(planned["config"], after, live["config"]))
            changed = {item.field for item in target.differences(live["config"], wanted)}
            if not changed:
                return live
            stored = await _update(target, live["config"], wanted, changed)
            found = await target.read()
            _require_same_instance(target, planned, found)
            if not changed & {item.field for item in target.differences(stored["config"], found["config"])}:
                return found
    raise ConflictError(
        f"{_capitalized(target.what)} is being edited concurrently: the change was overwritten each time",
        hint="Run it again when nobody else edits it",
    )


async def _update(target: EditTarget[Info], before: Config, after: Config, changed: set[str]) -> Info:
    """Replace the configuration `before` by `after`, and restore it when the server silently drops part of the change.

    Raises OutcomeUnknown, ServerError, and KvctlError when fields were dropped.
    """
    try:
        info = await target.update(after)
    except OutcomeUnknown as error:

        def done(found: Info | None) -> bool:
            return found is not None and not _dropped(target, before, after, found, changed)

        found = await _found_after(error, target, "changed", done)
        assert found is not None
        info = found
    if dropped := _dropped(target, before, after, info, changed):
        await target.update(before)
        raise _too_old(target, dropped, "the previous configuration was restored")
    return info


async def delete(target: EditTarget[Info]) -> None:
    """Delete it. Raises NotFoundError, OutcomeUnknown, ReadOnly."""
    try:
        await target.delete()
    except OutcomeUnknown as error:
        await _found_after(error, target, "deleted", lambda info: info is None)


async def _found_after(
    error: OutcomeUnknown, target: EditTarget[Info], verb: str, done: Callable[[Info | None], bool]
) -> Info | None:
    """Read the target until a change with a lost or malformed answer appears, for at most the connection's timeout."""
    deadline = time.monotonic() + target.api.connection.timeout
    while True:
        with suppress(Away, MalformedAnswer):
            info = await target.find()
            if done(info):
                return info
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(READ_BACK_INTERVAL_S)
    raise OutcomeUnknown(
        f"Could not find out if {target.what} was {verb}: {getattr(error.__cause__, 'message', error.message)}",
        hint=f"Check with `{target.show}`, then run it again",
    ) from None


def _lacking(target: EditTarget[Info], wanted: Config, found: Info) -> list[Difference]:
    """Return the requested fields with another value, from the current to the requested one."""
    return target.differences(found["config"], overlaid(found["config"], wanted))


def _dropped(target: EditTarget[Info], before: Config, wanted: Config, found: Info, changed: set[str]) -> list[str]:
    """Return the changed fields that the server stored otherwise; a removed one may become the server's default."""
    moved = {item.field for item in target.differences(before, found["config"])}
    return [
        item.field
        for item in target.differences(wanted, found["config"])
        if item.field in changed and not (item.before is None and item.field in moved)
    ]


def _require_same_instance(target: EditTarget[Info], planned: Info, live: Info) -> None:
    if live["created"] != planned["created"]:
        raise ConflictError(
            f"{_capitalized(target.what)} was recreated in the meantime", hint="Check it, then run the command again"
        )


def _too_old(target: EditTarget[Any], dropped: Iterable[str], outcome: str) -> KvctlError:
    version = ".".join(map(str, target.api.connection.server_version))
    fields = [f"`{field}`" for field in dropped]
    them = "it" if len(fields) == 1 else "them"
    return KvctlError(
        f"The server silently dropped or changed {', '.join(fields)} of {target.what}; {outcome}",
        hint=f"nats-server {version} does not support {them} like this: omit {them}, change {them}, "
        "or use a newer server",
    )


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


# -- the lock of a stream's configuration -----------------------------------------------------------------------


@asynccontextmanager
async def edit_lock(api: Api, stream: str) -> AsyncIterator[None]:
    """Hold the lock of a stream; if the server refuses it (permissions, limits), continue without it.

    It is a consumer of a fixed name that reads nothing: servers create one atomically, refuse a second one with other
    content (10148), and remove it by themselves when nobody has used it for a while, so that a killed editor blocks
    nobody. Raises ConflictError when another editor holds it longer than the connection's timeout.
    """
    taken = await _take_lock(api, stream)
    try:
        yield
    finally:
        if taken is not None and time.monotonic() - taken < LEASE_S - _MARGIN_S:  # later it may be another editor's
            with suppress(KvctlError):
                await asyncio.shield(api.call(f"CONSUMER.DELETE.{stream}.{LOCK_NAME}"))


async def _take_lock(api: Api, stream: str) -> float | None:
    """Take the lock and return the time; None if it cannot be had."""
    config: dict[str, Any] = {
        "name": LOCK_NAME,
        "ack_policy": "none",
        "deliver_policy": "new",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": round(LEASE_S * 10**9),
        "metadata": {"kvctl.editor": os.urandom(8).hex()},
    }
    request = {"stream_name": stream, "config": config, "action": "create"}
    deadline = time.monotonic() + max(api.connection.timeout, LEASE_S + 1)
    while True:
        begun = time.monotonic()
        try:
            streams.require_writable(api)
            await api.call(f"CONSUMER.CREATE.{stream}.{LOCK_NAME}", request)
        except ConflictError:
            if time.monotonic() > deadline:
                raise ConflictError(
                    f"Another kvctl is editing `{stream}`", hint="Run the command again when that one has ended"
                ) from None
            await asyncio.sleep(_LOCK_INTERVAL_S)
        except KvctlError:
            return None
        else:
            return begun


# -- three-way merge ---------------------------------------------------------------------------------------------


def merge(before: Config, after: Config, live: Config) -> Config:
    """Apply one editor's change, from `before` to `after`, to the result of another editor. [pure]

    Raises ConflictError for a field changed on both sides.
    """
    merged = dict(live)
    for name in dict.fromkeys([*before, *after]):
        if _same(before.get(name), after.get(name)):
            continue
        if name == "sources":
            merged[name] = _sources(before.get(name) or [], after.get(name) or [], live.get(name) or [])
        elif name in _MERGED:
            merged[name] = _members(name, before.get(name) or {}, after.get(name) or {}, live.get(name) or {})
        else:
            _set(merged, name, before.get(name), after.get(name, _ABSENT), name)
    return merged


def _members(name: str, before: Config, after: Config, live: Config) -> Config:
    merged = dict(live)
    for member in dict.fromkeys([*before, *after]):
        if not _same(before.get(member), after.get(member)):
            _set(merged, member, before.get(member), after.get(member, _ABSENT), f"{name}.{member}")
    return merged


def _set(merged: Config, name: str, before: Any, after: Any, field: str) -> None:
    there = merged.get(name)
    wanted = None if after is _ABSENT else after
    if _same(there, wanted):
        return
    if not _same(there, before):
        raise ConflictError(
            f"`{field}` was changed in the meantime: it was {_text(before)}, is now {_text(there)}, and was to become "
            f"{_text(wanted)}",
            hint="Check its current value, then run the command again",
        )
    if after is _ABSENT:
        merged.pop(name, None)
    else:
        merged[name] = after


def _sources(before: list[SourceConfig], after: list[SourceConfig], live: list[SourceConfig]) -> list[SourceConfig]:
    """Remove, replace and add sources as the change does, and keep all others."""
    gone = [source for source in before if source not in after]
    new = [source for source in after if source not in before]
    replacements = {_identity(source): source for source in new}
    merged = []
    for source in live:
        if source not in gone:
            merged.append(source)
        elif (replacement := replacements.get(_identity(source))) is not None:
            merged.append(replacement)
    there = {_identity(source) for source in merged}
    return [*merged, *(source for identity, source in replacements.items() if identity not in there)]


def _identity(source: SourceConfig) -> tuple[Any, ...]:
    """Return a source's identity for servers: origin and transforms, but not the start position."""
    found = Source.parse(source)
    return found.name, found.api, found.filter_subject, found.transforms


def _same(one: Any, other: Any) -> bool:
    """Return True if both are equal: servers omit empty fields."""
    return one == other or (not one and not other)


def _text(value: Any) -> str:
    return "unset" if not value else f"`{value}`"
