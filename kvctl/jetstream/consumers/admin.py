"""Administration of consumers: create, update, info, list, pause, delete, in the server's own JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from kvctl.errors import ConflictError, ConsumerNotFound, StreamNotFound
from kvctl.jetstream.api import Api, all_pages
from kvctl.jetstream.config_diff import differences
from kvctl.jetstream.config_text import CONSUMER
from kvctl.jetstream.edits import EditTarget
from kvctl.tokens import check_filter_subject, check_name

_SHORT = 5 * 10**9
"""Nanoseconds after which a consumer created for counting removes itself."""


async def create(api: Api, stream: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Create a consumer and return its info; succeed if an equal one exists.

    Raises ConflictError (another configuration), StreamNotFound, OutcomeUnknown, ServerError, ReadOnly.
    """
    return await _send(api, stream, config, "create")


async def update(api: Api, stream: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Replace a consumer's configuration; return its info. Raises ConsumerNotFound, ServerError, ReadOnly."""
    return await _send(api, stream, config, "update")


async def create_or_update(api: Api, stream: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Create the consumer, or apply the configuration to the existing one. Raises as both."""
    return await _send(api, stream, config, "")


async def info(api: Api, stream: str, consumer: str, *, timeout: float | None = None) -> dict[str, Any]:
    """Return the consumer's info: config, delivered, ack_floor, counts. Raises ConsumerNotFound, StreamNotFound."""
    with _naming(stream, consumer):
        return await api.call(f"CONSUMER.INFO.{stream}.{consumer}", timeout=timeout, retry=True)


async def delete(api: Api, stream: str, consumer: str) -> None:
    """Delete the consumer. Raises ConsumerNotFound, OutcomeUnknown, ReadOnly."""
    with _naming(stream, consumer):
        await api.change(f"CONSUMER.DELETE.{stream}.{consumer}")


async def count(api: Api, stream: str, **selection: Any) -> int:
    """Return the number of messages that a consumer of this configuration would deliver, by creating one.

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
    """Pause delivery until a time (RFC 3339); None resumes. Returns `{paused, pause_until, pause_remaining}`.

    Raises ConsumerNotFound, OutcomeUnknown, ReadOnly.
    """
    with _naming(stream, consumer):
        return await api.change(f"CONSUMER.PAUSE.{stream}.{consumer}", {"pause_until": until} if until else None)


async def names(api: Api, stream: str) -> list[str]:
    """Return the names of a stream's consumers, every page. Raises StreamNotFound."""

    async def page(offset: int) -> tuple[dict[str, None], int, int]:
        with _naming(stream):
            reply = await api.call(f"CONSUMER.NAMES.{stream}", {"offset": offset}, retry=True)
        found = dict.fromkeys(reply.get("consumers") or [])
        return found, len(found), reply.get("total", 0)

    return sorted((await all_pages(page))[0])


async def listing(api: Api, stream: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the infos of a stream's consumers, every page, and the names of those that do not answer.

    Raises StreamNotFound.
    """
    missing: set[str] = set()

    async def page(offset: int) -> tuple[dict[str, dict[str, Any]], int, int]:
        limit = max(api.connection.timeout, 10)  # a server that waits for dead hosts takes four seconds
        with _naming(stream):
            reply = await api.call(f"CONSUMER.LIST.{stream}", {"offset": offset}, timeout=limit, retry=True)
        found = {item["name"]: item for item in reply.get("consumers") or []}
        missing.update(reply.get("missing") or [])
        return found, len(found) or reply.get("limit", 256), reply.get("total", 0)

    found, _ = await all_pages(page)
    return [found[name] for name in sorted(found)], sorted(missing - found.keys())


def target(api: Api, stream: str, name: str) -> EditTarget[dict[str, Any]]:
    """Return a consumer as the target of edits."""
    return EditTarget(
        api,
        f"consumer `{name}` of stream `{stream}`",
        f"kvctl consumer show {stream} {name}",
        partial(differences, schema=CONSUMER),
        read=lambda: info(api, stream, name),
        create=lambda config: create(api, stream, config),
        update=lambda config: update(api, stream, config),
        delete=lambda: delete(api, stream, name),
    )


def new_name() -> str:
    """Return a random name for an unnamed consumer."""
    return f"kvctl-{os.urandom(6).hex()}"


async def _send(api: Api, stream: str, config: Mapping[str, Any], action: str) -> dict[str, Any]:
    name = config.get("name") or config.get("durable_name") or new_name()
    for subject in filter(None, (config.get("filter_subject"), *(config.get("filter_subjects") or ()))):
        check_filter_subject(subject)
    endpoint = f"CONSUMER.CREATE.{stream}.{name}"
    if config.get("filter_subject") and not config.get("filter_subjects"):  # the server reports the error for both
        endpoint += f".{config['filter_subject']}"
    body: dict[str, Any] = {"stream_name": stream, "config": {**config, "name": name}}
    if action:
        body["action"] = action
    with _naming(stream, name):
        return await api.change(endpoint, body)


@contextmanager
def _naming(stream: str, consumer: str = "") -> Iterator[None]:
    """Rewrite errors to name the consumer or stream that is missing or exists. Raises UsageError for invalid names."""
    check_name(stream, "stream")
    if consumer:
        check_name(consumer, "consumer")
    try:
        yield
    except ConsumerNotFound:
        raise ConsumerNotFound(
            f"Consumer `{consumer}` of stream `{stream}` does not exist",
            hint=f"List its consumers with `kvctl consumer ls {stream}`",
        ) from None
    except StreamNotFound:
        raise StreamNotFound(
            f"Stream `{stream}` does not exist", hint="List the streams with `kvctl stream ls`"
        ) from None
    except ConflictError:
        raise ConflictError(
            f"Consumer `{consumer}` of stream `{stream}` already exists with another configuration",
            hint=f"See it with `kvctl consumer show {stream} {consumer}`, change it with `kvctl consumer edit`",
        ) from None
