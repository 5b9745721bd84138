"""Consumers on the server: create, update, info, list, pause, delete. Configurations are the server's own JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kvctl.errors import ConflictError, ConsumerNotFound, StreamNotFound
from kvctl.jetstream.api import Api
from kvctl.jetstream.pagination import all_pages
from kvctl.jetstream.streams import require_writable
from kvctl.tokens import check_filter_subject, check_name

_SHORT = 5 * 10**9
"""Nanoseconds after which a consumer that was made for its count goes by itself."""


async def create(api: Api, stream: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Create a consumer and return its info; the same again is no error.

    Raises ConflictError (another configuration), StreamNotFound, ServerError, ReadOnly.
    """
    return await _send(api, stream, config, "create")


async def update(api: Api, stream: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Replace a consumer's configuration; returns its info. Raises ConsumerNotFound, ServerError, ReadOnly."""
    return await _send(api, stream, config, "update")


async def create_or_update(api: Api, stream: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Create the consumer, or give the one that exists this configuration. Raises as both."""
    return await _send(api, stream, config, "")


async def info(api: Api, stream: str, consumer: str, *, timeout: float | None = None) -> dict[str, Any]:
    """The consumer's info: config, delivered, ack_floor, counts. Raises ConsumerNotFound, StreamNotFound."""
    with _naming(stream, consumer):
        return await api.call(f"CONSUMER.INFO.{stream}.{consumer}", timeout=timeout, retry=True)


async def delete(api: Api, stream: str, consumer: str) -> None:
    """Delete the consumer. Raises ConsumerNotFound, ReadOnly."""
    require_writable(api)
    with _naming(stream, consumer):
        await api.call(f"CONSUMER.DELETE.{stream}.{consumer}")


async def count(api: Api, stream: str, **selection: Any) -> int:
    """How many messages a consumer of this configuration would deliver: one is made for it, and nothing is read.

    Raises StreamNotFound, ServerError.
    """
    name = f"kvctl-{os.urandom(6).hex()}"
    fixed = {"ack_policy": "none", "mem_storage": True, "num_replicas": 1, "inactive_threshold": _SHORT}
    body = {"stream_name": stream, "config": {"name": name, **selection, **fixed}}
    only = selection.get("filter_subject")
    if only:
        check_filter_subject(only)
    with _naming(stream):
        made = await api.call(".".join(filter(None, ("CONSUMER.CREATE", stream, name, only))), body)
        await api.call(f"CONSUMER.DELETE.{stream}.{name}")
    return int(made["num_pending"])


async def pause(api: Api, stream: str, consumer: str, until: str | None) -> dict[str, Any]:
    """Deliver nothing until a time (RFC 3339); None goes on. Returns `{paused, pause_until, pause_remaining}`.

    Raises ConsumerNotFound, ReadOnly.
    """
    require_writable(api)
    with _naming(stream, consumer):
        return await api.call(f"CONSUMER.PAUSE.{stream}.{consumer}", {"pause_until": until} if until else None)


async def names(api: Api, stream: str) -> list[str]:
    """The names of a stream's consumers, every page. Raises StreamNotFound."""

    async def page(offset: int) -> tuple[dict[str, None], int]:
        with _naming(stream):
            reply = await api.call(f"CONSUMER.NAMES.{stream}", {"offset": offset}, retry=True)
        return dict.fromkeys(reply.get("consumers") or []), reply.get("total", 0)

    return sorted(await all_pages(page))


async def listing(api: Api, stream: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The infos of a stream's consumers, every page, and the names of those that do not answer.

    Raises StreamNotFound.
    """
    found: dict[str, dict[str, Any]] = {}
    missing: set[str] = set()
    offset = 0
    limit = max(api.connection.timeout, 10)  # a server that waits for dead hosts takes four seconds
    while True:
        with _naming(stream):
            page = await api.call(f"CONSUMER.LIST.{stream}", {"offset": offset}, timeout=limit, retry=True)
        batch = page.get("consumers") or []
        found.update((item["name"], item) for item in batch)
        missing.update(page.get("missing") or [])
        offset += len(batch) or page.get("limit", 256)
        if offset >= page.get("total", 0):
            return [found[name] for name in sorted(found)], sorted(missing - found.keys())


def new_name() -> str:
    """A name for a consumer that nobody names."""
    return f"kvctl-{os.urandom(6).hex()}"


async def _send(api: Api, stream: str, config: Mapping[str, Any], action: str) -> dict[str, Any]:
    require_writable(api)
    name = config.get("name") or config.get("durable_name") or new_name()
    for subject in filter(None, (config.get("filter_subject"), *(config.get("filter_subjects") or ()))):
        check_filter_subject(subject)
    endpoint = f"CONSUMER.CREATE.{stream}.{name}"
    if config.get("filter_subject") and not config.get("filter_subjects"):  # of both the server says what is wrong
        endpoint += f".{config['filter_subject']}"
    body: dict[str, Any] = {"stream_name": stream, "config": {**config, "name": name}}
    if action:
        body["action"] = action
    with _naming(stream, name):
        return await api.call(endpoint, body)


@contextmanager
def _naming(stream: str, consumer: str = "") -> Iterator[None]:
    """Errors say which consumer or stream it is that does not exist, or exists already. Raises UsageError for names."""
    check_name(stream, "stream")
    if consumer:
        check_name(consumer, "consumer")
    try:
        yield
    except ConsumerNotFound:
        raise ConsumerNotFound(
            f"Consumer `{consumer}` of stream `{stream}` does not exist",
            hint=f"`kvctl consumer ls {stream}` lists its consumers",
        ) from None
    except StreamNotFound:
        raise StreamNotFound(
            f"Stream `{stream}` does not exist", hint="`kvctl stream ls` lists those that do"
        ) from None
    except ConflictError:
        raise ConflictError(
            f"Consumer `{consumer}` of stream `{stream}` exists with another configuration",
            hint=f"`kvctl consumer show {stream} {consumer}` shows it, `kvctl consumer edit` changes it",
        ) from None
