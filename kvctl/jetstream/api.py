"""JetStream API requests: subject, JSON, and mapping of the server's error codes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from kvctl.connection import Connection
from kvctl.errors import (
    ConflictError,
    ConnectionLost,
    ConsumerNotFound,
    JetStreamDisabled,
    KvctlError,
    NoResponders,
    NotFoundError,
    OutcomeUnknown,
    RequestTimeout,
    ServerError,
    StreamNotFound,
    StreamOffline,
    Unanswered,
)
from kvctl.jetstream.answer import MalformedAnswer, answer_to, parsed
from kvctl.phrases import one_line
from kvctl.tokens import check_prefix

Value = TypeVar("Value")

DEFAULT_PREFIX = "$JS.API"

STREAM_NAME_IN_USE = 10058
STREAM_OFFLINE = 10118
STREAM_SEALED = 10109
CONSUMER_NAME_IN_USE = (10013, 10105, 10148)
WRONG_LAST_SEQUENCE = (10071, 10164)
BUSY = 10164
"""Another write on the subject is in flight: not a failure yet (its text is the same as 10071's)."""
_UNAVAILABLE = {10008: "no leader", 10039: "not enabled for this account", 10076: "not enabled on this server"}
_NOT_FOUND: dict[int, type[KvctlError]] = {
    10014: ConsumerNotFound,
    10149: ConsumerNotFound,
    10037: NotFoundError,
    10043: NotFoundError,
    10059: StreamNotFound,
}
_TRANSIENT = (10008,)
OFFLINE_HINT = "Start the servers that store it; `kvctl doctor` names the known ones"
_LIMITS = "See usage and limits of the account with `kvctl context test`"
_SPACE = "Free space or raise the limits of the servers; `kvctl context test` shows usage and limits of the account"
HINTS = {
    10002: _LIMITS,
    10005: "Use a cluster and tags that enough servers have, or fewer stream replicas",
    10023: _SPACE,
    10026: "Delete consumers with `kvctl consumer delete`, or raise the limit `max_consumers` of the stream or the "
    "account; `kvctl stream show` and `kvctl context test` show them",
    10027: f"Delete streams with `kvctl stream delete`, or raise the limit. {_LIMITS}",
    10028: f"Use `--storage file`, or a smaller `--max-bytes`. {_SPACE}",
    10047: f"Use a smaller `--max-bytes` or fewer stream replicas. {_SPACE}",
    10052: "See the current configuration with `kvctl stream show`; some settings cannot be changed after creation",
    10058: "See the existing stream with `kvctl stream show`, or choose another name",
    10065: "Find the other stream with `kvctl stream ls --subject SUBJECT`",
    10074: "Use one stream replica, or connect to a cluster",
    10084: "The stream is a work queue: its messages cannot be listed or watched, only consumed with `--ack explicit`",
    10109: "The stream is sealed, which is permanent: copy it into a new one",
    10113: "The account requires a limit for each stream: set `--max-bytes`",
    10118: OFFLINE_HINT,
    10120: f"The account has no limits for this number of stream replicas. {_LIMITS}",
    10153: "Remove the limits for consumers: `kvctl stream edit STREAM --set consumer_limits=null`",
    10122: f"Use a smaller `--max-bytes`. {_LIMITS}",
}
"""Next steps after errors of the server, by JetStream's error code."""
_HINTS = {"detected cycle": "A stream would replicate another one twice, or itself, through others"}


WALKS = 4
"""Maximum number of passes over the pages until their totals agree."""
SINGLE_ANSWERS = "The account that exports the service can set `response_type: stream`"
_single: WeakKeyDictionary[Connection, set[str]] = WeakKeyDictionary()
"""Prefixes of imports that pass on one answer a request."""


class Api:
    """JetStream API of one connection, in its domain or under its prefix. Raises UsageError for the prefix."""

    def __init__(self, connection: Connection, prefix: str | None = None) -> None:
        context = connection.context
        if prefix:
            check_prefix("api_prefix", prefix)
        self.connection = connection
        self.prefix = (
            prefix or context.api_prefix or (f"$JS.{context.domain}.API" if context.domain else DEFAULT_PREFIX)
        )

    @property
    def answers_once(self) -> bool:
        """True if requests get one answer each, as far as noticed.

        JetStream may be imported from another account as a plain service. The exporting account decides:
        `response_type: stream` lets all answers through. Without it a pull delivers only its first message, and so does
        a request for many messages; nobody learns that the others are dropped. So a reader that finds answers missing
        records it here, and readers through the same import then request one message at a time.
        """
        return self.prefix in _single.get(self.connection, ())

    def note_single_answers(self) -> None:
        """Record that requests get one answer each."""
        _single.setdefault(self.connection, set()).add(self.prefix)

    @property
    def write_prefix(self) -> str:
        """Prefix of a stream's own subjects when publishing: empty, or the API prefix and a dot."""
        return "" if self.prefix == DEFAULT_PREFIX else f"{self.prefix}."

    def at(self, prefix: str) -> Api:
        """Return the API of the same connection under the prefix of another domain or account; an empty one is this."""
        return Api(self.connection, prefix) if prefix else self

    async def call(
        self, endpoint: str, body: object = None, *, timeout: float | None = None, retry: bool = False
    ) -> dict[str, Any]:
        """Request `<prefix>.<endpoint>`; `retry` repeats safe requests while leader or connection is unavailable.

        Raises StreamNotFound, ConsumerNotFound, NotFoundError, JetStreamDisabled, ServerError, and as
        `Connection.request`.
        """
        payload = b"" if body is None else json.dumps(body).encode()
        limit = self.connection.timeout if timeout is None else timeout
        deadline, repeats = time.monotonic() + limit, self.connection.repeats if retry and timeout is None else 0
        patience = deadline - max(limit - self.connection.timeout, 0)  # for refusals, which come at once
        met: KvctlError | None = None
        if not retry:
            await self.connection.require_replies()
        with self.connection.told(lambda: met.message if met else f"no answer on `{self.prefix}.{endpoint}`"):
            while True:
                left = max(deadline - time.monotonic(), 0.05)
                try:
                    frame = await self.connection.request(f"{self.prefix}.{endpoint}", payload, timeout=left)
                    return self.parse_reply(endpoint, frame.payload)
                except StreamOffline:
                    raise
                except NoResponders:
                    raise self._nobody(endpoint) from None
                except (JetStreamDisabled, ConnectionLost) as error:
                    transient = isinstance(error, ConnectionLost) or error.__cause__ is not None
                    if not retry or not transient or time.monotonic() + 0.1 > patience:
                        raise
                    met = error
                    await asyncio.sleep(0.1)
                except RequestTimeout:
                    if met is not None:
                        raise met from None  # the actual obstacle, rather than that the remaining time was too short
                    if repeats:
                        deadline, repeats = time.monotonic() + limit, repeats - 1
                        continue
                    if self.prefix.startswith("$JS.") or not retry:
                        raise
                    raise self._nobody(endpoint) from None

    async def change(self, endpoint: str, body: object = None) -> dict[str, Any]:
        """Request a change, once. Raises OutcomeUnknown for a lost or malformed answer, ReadOnly, and as `call`."""
        self.connection.context.require_writable()
        try:
            return await self.call(endpoint, body)
        except (Unanswered, MalformedAnswer) as error:
            raise OutcomeUnknown(
                f"Could not find out if the server did what `{self.prefix}.{endpoint}` requests: {error.message}",
                hint="Check the stream or the consumer, then run it again",
            ) from error

    def parse_reply(self, endpoint: str, payload: bytes) -> dict[str, Any]:
        """Parse the reply to a request. Raises the error that it reports, or ServerError for a malformed one."""
        with answer_to(f"{self.prefix}.{endpoint}"):
            reply = parsed(endpoint, payload)
        if reply.get("error"):
            raise server_error(reply["error"])
        return reply

    async def account_info(self) -> dict[str, Any]:
        """Return usage and limits of the account, in the server's own fields."""
        return await self.call("INFO", retry=True)

    def _nobody(self, endpoint: str) -> JetStreamDisabled:
        where, hint = "", "Enable JetStream on the server and for the account, or name another domain with `--domain`"
        if self.prefix != DEFAULT_PREFIX:
            where = f" under `{self.prefix}`"
            hint = "The leaf node connection to its servers may be down: check it, and `--domain` or `--api-prefix`"
        return JetStreamDisabled(f"JetStream does not answer{where} (asked `{self.prefix}.{endpoint}`)", hint=hint)


def server_error(error: dict[str, Any]) -> KvctlError:
    """Build the error for a server's `{code, err_code, description}`."""
    code, err_code = error.get("code", 0), error.get("err_code", 0)
    text = one_line(error.get("description", "")) or f"status {code}"
    if err_code in _NOT_FOUND:
        return _NOT_FOUND[err_code](f"{text[:1].upper()}{text[1:]}")
    if err_code in _UNAVAILABLE:
        unavailable = JetStreamDisabled(f"{text} ({err_code})", hint=_disabled_hint(err_code))
        if err_code in _TRANSIENT:
            unavailable.__cause__ = ServerError(text, code=code, err_code=err_code)
        return unavailable
    if err_code == STREAM_OFFLINE:
        return StreamOffline(f"No server that stores the stream answers ({err_code})", hint=HINTS[err_code])
    if err_code in (STREAM_NAME_IN_USE, *CONSUMER_NAME_IN_USE):
        return ConflictError(f"{text[:1].upper()}{text[1:]} ({err_code})", hint=HINTS.get(err_code))
    refused = f"The server refused: {text}{f' ({err_code})' if err_code else ''}"
    return ServerError(refused, code=code, err_code=err_code, hint=_HINTS.get(text) or HINTS.get(err_code))


def _disabled_hint(err_code: int) -> str:
    if err_code == 10008:
        return "The cluster has no leader at the moment; try again"
    return "Enable JetStream with `-js` or a `jetstream {}` block, and for the account; `kvctl server run` enables it"


async def all_pages(
    page: Callable[[int], Awaitable[tuple[Mapping[str, Value], int, int]]],
) -> tuple[dict[str, Value], int]:
    """Return the items of all pages and their total; `page` returns items at an offset, their number, and the total.

    If the total changes between two pages, items that moved to an earlier page may be missing, and all are read again.
    """
    for _ in range(WALKS):
        found: dict[str, Value] = {}
        totals: set[int] = set()
        offset = 0
        while True:
            batch, count, total = await page(offset)
            found.update(batch)
            totals.add(total)
            offset += count
            if not count or offset >= total:
                break
        if len(totals) == 1:
            break
    return found, max(totals)
