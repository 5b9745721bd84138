"""Streams in the server's own JSON: create, update, info, list, purge, delete; and the server's clock."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from kvctl.connection import Connection
from kvctl.errors import (
    KvctlError,
    NotFoundError,
    OutcomeUnknown,
    PermissionDenied,
    RefusedError,
    RequestTimeout,
    ServerError,
    StreamNotFound,
    StreamOffline,
    UsageError,
)
from kvctl.jetstream.api import OFFLINE_HINT, Api, all_pages
from kvctl.jetstream.stream_info import StreamConfig, StreamInfo, parsed_sources
from kvctl.phrases import counted, quoted
from kvctl.tokens import check_filter_subject, check_name
from kvctl.units import parse_time
from kvctl.wire import MALFORMED

_NO_MESSAGE = ("no message found", "stream store EOF", "deleted message")
PAUSES_S = (0.2, 0.5, 1.0, 3.0)
"""Seconds given to the server to remove a deleted stream's files before the next attempt to create it."""
NO_STORE = 10049
"""Server error: the stream's files could not be created."""
_USER_INFO = "$SYS.REQ.USER.INFO"
_ASK_S = 1.0
NO_PLACE = 10005


class StreamListing(NamedTuple):
    """Streams of an account: those that answered, and those that did not. Silence does not prove absence."""

    answering: tuple[StreamInfo, ...]
    """Infos."""
    silent: Mapping[str, StreamInfo | None]
    """Streams whose servers did not answer, by name; with their info (state zero, no leader) if known."""

    def complete(self) -> tuple[StreamInfo, ...]:
        """Return the infos of all streams. Raises StreamOffline when one did not answer."""
        if self.silent:
            names = sorted(self.silent)
            listed = quoted(names)
            raise StreamOffline(f"Streams that do not answer: {listed}", streams=tuple(names), hint=OFFLINE_HINT)
        return self.answering


async def create(api: Api, config: StreamConfig) -> StreamInfo:
    """Create a stream and return its info; succeed if an equal one exists.

    Servers up to 2.15 remove a deleted stream's files in the background. A stream created under the same name in the
    meantime may be read from these files (seen up to a tenth of a second later), and the removal may delete new files,
    too. So the stream is deleted once more and created again after a pause. The removal may also delete the new
    stream's folder while the server fills it: then the creation fails (10049) and is tried again.

    Raises KvctlError when it still holds an earlier one's messages after the last attempt; ConflictError, ServerError,
    ReadOnly.
    """
    created = await _created(api, config)
    for pause in PAUSES_S:
        if not _has_older_messages(created):
            return created
        await delete(api, config["name"])
        await asyncio.sleep(pause)
        created = await _created(api, config)
    if not _has_older_messages(created):
        return created
    await delete(api, config["name"])
    raise KvctlError(
        f"The server created `{config['name']}` with entries of a deleted stream of the same name",
        hint="It was deleted again; wait some seconds before the next attempt",
    )


def _has_older_messages(created: StreamInfo) -> bool:
    """Check whether the answer to a creation shows an earlier stream's messages, or its sequence. Mirrors have both."""
    state, config = created["state"], created["config"]
    if not created.get("did_create") or config.get("mirror"):
        return False
    if not state["messages"]:  # of a stream that was purged before it was deleted
        return not config.get("sources") and state["last_seq"] >= max(config.get("first_seq", 1), 1)
    return parse_time(state["last_ts"]) < parse_time(created["created"])


async def _created(api: Api, config: StreamConfig) -> StreamInfo:
    """Create the stream, a second time when the server could not make its files; return the answer."""
    try:
        return await _create(api, config)
    except ServerError as error:
        if error.err_code != NO_STORE:
            raise
        await asyncio.sleep(PAUSES_S[0])
        return await _create(api, config)


async def _create(api: Api, config: StreamConfig) -> StreamInfo:
    async with _placed(api, config):
        answer = await api.change(f"STREAM.CREATE.{_checked(config['name'])}", config)
    return cast("StreamInfo", answer)


async def update(api: Api, config: StreamConfig) -> StreamInfo:
    """Replace a stream's configuration; return its info. Raises StreamNotFound, ServerError, as `Api.change`."""
    async with _placed(api, config):
        answer = await api.change(f"STREAM.UPDATE.{_checked(config['name'])}", config)
    return cast("StreamInfo", answer)


async def seal(api: Api, config: StreamConfig) -> None:
    """Make a stream permanently read-only; its entries no longer expire. Raises as `update`."""
    try:
        await update(api, {**config, "sealed": True})
    except OutcomeUnknown:
        if not (await info(api, config["name"]))["config"].get("sealed"):
            raise


async def info(api: Api, stream: str, *, timeout: float | None = None, **request: Any) -> StreamInfo:
    """Return the stream's info: config, state, cluster, mirror, sources, alternates. Raises StreamNotFound."""
    answer = await api.call(f"STREAM.INFO.{_checked(stream)}", request or None, timeout=timeout, retry=True)
    return cast("StreamInfo", answer)


async def last_sequence(api: Api, stream: str) -> int:
    """Return the sequence of the stream's last message. Raises StreamNotFound."""
    return int((await info(api, stream))["state"]["last_seq"])


async def find(api: Api, stream: str) -> StreamInfo | None:
    """Return the stream's info, or None if it does not exist."""
    try:
        return await info(api, stream)
    except StreamNotFound:
        return None


_versions: WeakKeyDictionary[Connection, dict[tuple[int, str, str], tuple[int, ...]]] = WeakKeyDictionary()


def version_of(info: StreamInfo) -> tuple[int, ...]:
    """Return the version of the server that answered for the stream; 2.10 if it does not say: servers since 2.11 do."""
    text = (info["config"].get("metadata") or {}).get("_nats.ver", "2.10")
    return tuple(int(part) for part in re.findall(r"\d{1,9}", text)[:3])


async def version(api: Api, stream: str) -> tuple[int, ...]:
    """Return the version of the server on which the stream lives, asked once for each connection.

    The client may be connected to another one, through a leaf or a gateway, which says nothing about the stream's own
    (ADR-8, ADR-44). Only a user who may not read the stream's info has to rely on it.
    """
    known, key = _versions.setdefault(api.connection, {}), (api.connection.epoch, api.prefix, stream)
    if key not in known:
        try:
            known[key] = version_of(await info(api, stream))
        except PermissionDenied:
            known[key] = api.connection.server_version
        except StreamNotFound:  # the write finds out
            return api.connection.server_version
    return known[key]


async def delete(api: Api, stream: str) -> None:
    """Delete the stream with all its messages. Raises StreamNotFound, OutcomeUnknown, ReadOnly."""
    await api.change(f"STREAM.DELETE.{_checked(stream)}")


async def purge(api: Api, stream: str, **request: Any) -> int:
    """Remove messages by `filter`, up to `seq`, or all but the last `keep`; return their number.

    Raises StreamNotFound, OutcomeUnknown, ServerError, ReadOnly.
    """
    if request.get("filter"):
        check_filter_subject(request["filter"])
    return int((await api.change(f"STREAM.PURGE.{_checked(stream)}", request or None))["purged"])


async def delete_message(api: Api, stream: str, sequence: int, *, erase: bool = True) -> None:
    """Remove one message; with `erase` its bytes are overwritten. Raises NotFoundError, and as `purge`."""
    try:
        await api.change(f"STREAM.MSG.DELETE.{_checked(stream)}", {"seq": sequence, "no_erase": not erase})
    except (NotFoundError, ServerError) as error:
        absent = isinstance(error, ServerError) and any(text in error.message for text in _NO_MESSAGE)
        if absent or type(error) is NotFoundError:
            raise NotFoundError(f"Stream `{stream}` has no message {sequence}") from None
        raise


async def names(api: Api, subject: str | None = None) -> list[str]:
    """Return the names of all streams, every page; a subject filter hides mirrors and read-only aggregates."""
    request = {"subject": check_filter_subject(subject)} if subject else {}

    async def page(offset: int) -> tuple[dict[str, None], int, int]:
        reply = await api.call("STREAM.NAMES", {**request, "offset": offset}, retry=True)
        found = dict.fromkeys(reply.get("streams") or [])
        return found, len(found), reply.get("total", 0)

    return sorted((await all_pages(page))[0])


async def listing(api: Api) -> StreamListing:
    """List all streams, every page."""
    silent: dict[str, StreamInfo | None] = {}

    async def page(offset: int) -> tuple[dict[str, StreamInfo], int, int]:
        if not offset:
            silent.clear()
        limit = max(2 * api.connection.timeout, 5)  # a server that waits for unavailable hosts takes four seconds
        reply = await api.call("STREAM.LIST", {"offset": offset}, timeout=limit, retry=True)
        batch = {item["config"]["name"]: item for item in reply.get("streams") or []}
        missing = {*(reply.get("missing") or ()), *(reply.get("offline") or ())}
        silent.update((name, batch.get(name)) for name in missing)
        found = {name: item for name, item in batch.items() if name not in missing}
        count = len(batch.keys() | missing) or reply.get("limit", 256)  # a page counts those that do not answer
        return found, count, reply.get("total", 0)

    found, total = await all_pages(page)
    if len({*found, *silent}) < total:
        silent |= dict.fromkeys(await names(api))  # a stream that is counted, but not reported as missing
    return StreamListing(tuple(found.values()), {name: silent[name] for name in sorted(silent) if name not in found})


async def infos(api: Api, wanted: Sequence[str], at_once: int = 32) -> AsyncIterator[tuple[str, StreamInfo | None]]:
    """Yield name and info of each stream in order; None for one that did not answer or does not exist."""
    slots = asyncio.Semaphore(at_once)

    async def one(name: str) -> StreamInfo | None:
        async with slots:
            try:
                return await info(api, name)
            except (NotFoundError, RequestTimeout, ServerError):
                return None

    tasks = [asyncio.create_task(one(name)) for name in wanted]
    try:
        for name, task in zip(wanted, tasks, strict=True):
            yield name, await task
    finally:
        for task in tasks:
            task.cancel()


async def subjects(api: Api, stream: str, subject: str = ">") -> dict[str, int]:
    """Return the subjects matching the filter, with their message counts, every page of 100,000."""
    check_filter_subject(subject)

    async def page(offset: int) -> tuple[dict[str, int], int, int]:
        reply = await info(api, stream, subjects_filter=subject, offset=offset)
        found = reply["state"].get("subjects") or {}
        return found, len(found), int(reply.get("total", 0))  # type: ignore[call-overload]

    return (await all_pages(page))[0]


def _checked(stream: str) -> str:
    return check_name(stream, "stream")


def require_writable(api: Api) -> None:
    """Raise ReadOnly if the connection is read-only."""
    api.connection.context.require_writable()


# -- replicas ------------------------------------------------------------------------------------------------


async def require_alone(api: Api, stream: str, confirm: str | None) -> None:
    """Raise RefusedError if purging the stream makes replicas and origins differ, unless its name confirms it.

    Only streams in this account and domain are seen; a stream that does not answer may be a replica. Raises UsageError
    for another name, StreamNotFound, and errors of a listing.
    """
    if confirm is not None:
        if confirm != stream:
            raise UsageError(f"`confirm` is `{confirm}`, but the stream is `{stream}`")
        return
    own, found = await asyncio.gather(info(api, stream), listing(api))
    reasons = [f"it replicates from `{source.name}`" for source in parsed_sources(own["config"])]
    reasons += [f"`{name}` {verb} from it" for name, verb in _readers(found, stream)]
    if reasons:
        raise RefusedError(
            f"Stream `{stream}` was not purged: {', '.join(reasons)}",
            hint="Replicas keep their copies, and messages purged from a replica are not copied again; "
            f"`confirm={stream!r}` purges it anyway",
        )


def _readers(found: StreamListing, stream: str) -> list[tuple[str, str]]:
    infos = [*found.answering, *(info for info in found.silent.values() if info is not None)]
    reading = [
        info["config"]["name"]
        for info in infos
        if any(source.reads_locally(stream) for source in parsed_sources(info["config"]))
    ]
    unknown = [name for name, info in found.silent.items() if info is None and name != stream]
    return [
        *((name, "replicates") for name in reading),
        *((name, "does not answer and may replicate") for name in unknown),
    ]


# -- the server's clock --------------------------------------------------------------------------------------


class ServerClock:
    """Clock of the server that leads a stream, which dates messages and expires keys; the client's may be hours off.

    Servers since 2.10 date the info of a stream (`ts`). From there the client's monotonic clock continues.
    """

    def __init__(self, now_ns: int) -> None:
        self._ahead_ns = now_ns - time.monotonic_ns()

    @classmethod
    def from_info(cls, info: StreamInfo) -> ServerClock:
        """Return the clock for an info of a stream or consumer that has just arrived. Raises ServerError."""
        if not info.get("ts"):
            raise ServerError("The server does not report its time", hint="Use nats-server 2.10 or later")
        return cls(parse_time(info["ts"]))

    @classmethod
    async def read(cls, api: Api, stream: str) -> ServerClock:
        """Ask the leader of a stream. Raises StreamNotFound, PermissionDenied, ServerError."""
        return cls.from_info(await info(api, stream))

    @classmethod
    async def of_connection(cls, api: Api) -> ServerClock:
        """Ask the connected server; fall back to the client's clock if it does not answer."""
        try:
            answer = json.loads((await api.connection.request(_USER_INFO, b"", timeout=_ASK_S)).payload)
            return cls(parse_time(answer["server"]["time"]))
        except (KvctlError, *MALFORMED):
            return cls(time.time_ns())

    def now_ns(self) -> int:
        """Return the nanoseconds since the epoch."""
        return self._ahead_ns + time.monotonic_ns()


# -- placement -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def _placed(api: Api, config: StreamConfig) -> AsyncGenerator[None]:
    """Explain the server's refusal to place a stream of this configuration (10005)."""
    try:
        yield
    except ServerError as error:
        if error.err_code != NO_PLACE:
            raise
        clusters = await _clusters(api)
        message = f"{_unplaced(config, clusters)} ({NO_PLACE})"
        hint = f"Clusters: {', '.join(f'`{name}` ({_servers(count)})' for name, count in clusters.items())}"
        hint = hint if clusters else "Use fewer stream replicas, or other tags"
        raise ServerError(message, code=error.code, err_code=error.err_code, hint=hint) from None


def _unplaced(config: StreamConfig, clusters: Mapping[str, int]) -> str:
    """Say why no server can store a stream, as far as the known clusters show it."""
    placement, replicas = config.get("placement") or {}, config.get("num_replicas") or 1
    cluster, tags = placement.get("cluster"), placement.get("tags") or []
    if cluster and clusters and cluster not in clusters:
        return f"Cluster `{cluster}` does not exist, or is not in view: it cannot store `{config['name']}`"
    if cluster and clusters.get(cluster, replicas) < replicas:
        return f"Cluster `{cluster}` has {_servers(clusters[cluster])}, {replicas} are needed for `{config['name']}`"
    where, tagged = f" in cluster `{cluster}`" if cluster else "", f" with tags {quoted(tags)}" if tags else ""
    several = f", {replicas} are needed" if replicas > 1 else ""
    return f"No server{where}{tagged} can store `{config['name']}`{several}"


def _servers(count: int) -> str:
    return counted(count, "server")


async def _clusters(api: Api) -> dict[str, int]:
    """Return the clusters with streams of this account, and the number of their servers; a listing shows no others."""
    found: dict[str, set[str]] = {}
    with suppress(KvctlError):
        own = api.connection.server_info
        if own.get("cluster"):
            found.setdefault(own["cluster"], set()).add(own["server_name"])
        for info in (await listing(api)).answering:
            cluster = info.get("cluster") or {}
            peers = [cluster.get("leader"), *(peer["name"] for peer in cluster.get("replicas") or ())]
            if cluster.get("name"):
                found.setdefault(cluster["name"], set()).update(filter(None, peers))
    return {name: len(servers) for name, servers in sorted(found.items())}
