"""Lazy name resolution, leader fallback and read-your-writes for one bucket."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from kvctl.contexts import read_only_error
from kvctl.errors import (
    BucketNotFound,
    KvctlError,
    NoResponders,
    PermissionDenied,
    ReadOnly,
    RefusedError,
    RequestTimeout,
    StreamNotFound,
    UnreachableError,
)
from kvctl.jetstream import direct_get, multi_get, streams
from kvctl.jetstream.api import DEFAULT_PREFIX, Api
from kvctl.jetstream.direct_get import StoredMessage
from kvctl.jetstream.stream_info import StreamConfig
from kvctl.kv import conditional_write, stream_kind
from kvctl.kv import resolve as bindings
from kvctl.kv.entry import Entry, Operation, from_message
from kvctl.kv.names import check_bucket, check_key
from kvctl.kv.oddity import BULK, WRITES, refusal
from kvctl.kv.resolve import Binding
from kvctl.kv.stream_kind import Kind, kind_of
from kvctl.phrases import joined
from kvctl.tokens import encoded

RETRY_PAUSE = 0.1
ATTEMPTS = 2
"""Gets from the nearest replicas, which may lag behind this session's writes, before the leader is asked."""
RESOLVE_TIMEOUT = 1.0
CONFIRM_TIMEOUT_S = 2.0
"""Seconds to wait for the leader that confirms a miss."""
UNCONFIRMED_KEYS = 10_000
"""Maximum number of keys to remember."""


class Handle:
    """Name of a bucket, the stream it resolves to as far as known, and the writes made through it."""

    def __init__(
        self, api: Api, name: str, *, stream: str | None = None, prefix: str | None = None, read_only: bool = False
    ) -> None:
        self.name = check_bucket(name)
        self.read_only = read_only or api.connection.context.read_only
        self.own = OwnWrites()
        self.unconfirmed: set[str] = set()
        """Keys that a replica misses, and filters that match nothing there, which no leader could confirm."""
        self.binding = bindings.assumed(api, name, stream, prefix)
        self.fixed = stream is not None or prefix is not None
        """True if the stream was given, so that the name is not resolved."""
        self._located = False
        self._assumes = api.prefix == DEFAULT_PREFIX
        """True if requests for a stream that does not exist are answered: a leaf node cannot tell across domains."""
        self._configs: dict[str, asyncio.Future[StreamConfig]] = {}
        """Configurations of streams that were written without being known."""
        self._api = api

    async def locate(self, *, fresh: bool = False) -> Binding:
        """Resolve the name at the server. Raises BucketNotFound."""
        if self.fixed:
            info = await streams.find(self._api, self.binding.stream)
            if info is None:
                raise BucketNotFound(f"Bucket `{self.name}` does not exist: no stream `{self.binding.stream}`")
            self.binding = bindings.with_info(self.binding, info)
        elif fresh or not self._located:
            self.binding = _of_a_bucket(await bindings.locate(self._api, self.name))
        self._located = True
        return self.binding

    async def readable(self, *, fresh: bool = False) -> Binding:
        """Return the stream to read with a consumer: the origin where the mirror lags behind this session's writes."""
        try:
            binding = await self.locate(fresh=fresh)
        except PermissionDenied:
            return self.binding
        if binding.origin is not None and self.own.any():
            info = await streams.find(binding.api, binding.stream)
            if info is None or info["state"]["last_seq"] < self.own.highest:
                return self.source_as_own(binding)
        return binding

    def source_as_own(self, binding: Binding) -> Binding:
        """Return the stream that takes the writes, with entries under this handle's name."""
        return replace(binding.source, bucket=self.name)

    async def moved(self) -> bool:
        """After a miss, return True if the name resolves to another stream or prefix than assumed."""
        if self._located:
            return False
        before = self.binding
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT):
                await self.locate()
        except RefusedError:
            raise
        except (TimeoutError, KvctlError):
            return False
        return (before.stream, before.prefix) != (self.binding.stream, self.binding.prefix)

    async def locate_elsewhere(self) -> None:
        """Resolve the name before the first request to another domain, where one for no stream is not answered.

        What is assumed remains without permission or an answer. Raises BucketNotFound, RefusedError.
        """
        if self._assumes or self._located:
            return
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT):
                await self.locate()
        except (BucketNotFound, RefusedError):
            raise
        except (TimeoutError, KvctlError):
            self._assumes = True

    async def last_entry(self, key: str, *, leader: bool = False) -> Entry | None:
        """Return the key's last entry, deletions included; None for a key never written. Raises as `get`.

        Any server of the stream, or a mirror, answers. A miss is a claim that the leader has to confirm: see `confirm`.
        """
        for _ in range(ATTEMPTS):
            if leader or not self.binding.direct:
                break
            message = await self._direct(key)
            if message is None and await self.moved():
                return await self.last_entry(key)
            sequence, stream = (message.sequence, message.stream) if message else (0, None)
            if self.binding.direct and not self.behind(key, sequence, stream):
                return await self._checked(key, self.entry(key, message))
        return self.entry(key, await self._from_leader(key))

    async def _checked(self, key: str, entry: Entry | None) -> Entry | None:
        """Return a replica's answer, a miss as the leader confirms it."""
        if entry is not None and entry.operation is Operation.PUT:
            return entry
        return (await self.confirm({key: entry}))[key]

    async def confirm(self, missing: Mapping[str, Entry | None]) -> dict[str, Entry | None]:
        """Return the last entries of keys that a replica misses, from the leader of the stream, or a mirror's origin.

        A key without an answer keeps what is given, and `unconfirmed` has it. A mirror's own leader
        confirms the absence of keys that its filter leaves out.
        """
        found: dict[str, Entry | None] = dict(missing)
        asked: dict[Binding, list[str]] = {}
        for key in missing:
            own = not self.binding.replicates(key)
            asked.setdefault(self.binding if own else self.binding.source, []).append(key)
        told: set[str] = set()
        for judge, keys in asked.items():
            subjects = {judge.subject(key): key for key in keys}
            with suppress(KvctlError, TimeoutError):
                async with asyncio.timeout(CONFIRM_TIMEOUT_S + len(keys) / 1000):
                    answers = await multi_get.last_of_each(judge.api, judge.stream, list(subjects), leader=True)
                told.update(subjects[subject] for subject in answers)
                for subject, message in answers.items():
                    if message is not None and message.subject == subject:
                        found[subjects[subject]] = from_message(self.name, len(judge.prefix), message)
        self.unconfirmed -= told
        if len(self.unconfirmed) < UNCONFIRMED_KEYS:
            self.unconfirmed |= missing.keys() - told
        return found

    async def newest(self, filters: Sequence[str]) -> int | None:
        """Return the last revision of matching keys, deletions included, at the leader that confirms what is missing.

        0 for none; None without an answer, and `unconfirmed` has the filters then.
        """
        subjects = [self.judge.subject(text) for text in filters]
        with suppress(KvctlError, TimeoutError):
            async with asyncio.timeout(CONFIRM_TIMEOUT_S):
                found = await multi_get.last_of_each(self.judge.api, self.judge.stream, subjects, leader=True)
            if len(found) == len(set(subjects)):
                self.unconfirmed.difference_update(filters)
                return max((message.sequence for message in found.values() if message), default=0)
        self.unconfirmed.update(filters)
        return None

    @property
    def judge(self) -> Binding:
        """Return the stream whose leader knows which keys exist: a mirror's origin, unless a filter leaves keys out."""
        return self.binding if self.binding.filtered else self.binding.source

    async def last_revision(self, key: str) -> int:
        """Return the revision of the key's last entry at the leader, deletions included; 0 for none."""
        entry = await self.last_entry(key, leader=True)
        return entry.revision if entry else 0

    def same_as(self, other: Handle) -> bool:
        """Return True if both are handles on the same bucket."""
        return self._api is other._api and self.binding.source.write_prefix == other.binding.source.write_prefix

    def entry(self, key: str, message: StoredMessage | None) -> Entry | None:
        """Return the message as the key's entry; None for another key's: `a.*` is a wildcard and may match `a.b`."""
        if message is None or message.subject != self.binding.subject(key):
            return None
        return from_message(self.name, len(self.binding.prefix), message)

    def behind(self, key: str, revision: int, stream: str | None) -> bool:
        """Return True if a replica's answer (0, None: no message) may be older than this handle's writes."""
        info = self.binding.info
        sole = info is not None and info["config"].get("num_replicas", 1) == 1
        return self.own.stale(key, revision, sole=sole and stream == self.binding.stream)

    def check_writes_go_somewhere(self, key: str | None = None, *, operation: str = BULK) -> None:
        """Raise ReadOnly for an aggregate without own subjects, and for a mirror of something other than a bucket.

        Raises BucketNotFound if the stream of this name was replaced by one with other subjects, and RefusedError if it
        does not keep what is written, or does not acknowledge it.
        """
        source = self.binding.source
        if source.info is not None and (oddity := refusal(source.info["config"], operation)):
            text = oddity.evidence(source.info["config"])
            raise RefusedError(f"{text}; nothing was written", hint=oddity.fix(source.info["config"]))
        if self.fixed and not source.takes_writes:
            raise BucketNotFound(f"Stream `{source.stream}` does not accept writes to `{source.write_prefix}>`")
        if stream_kind.NAMES.match(source.stream) and not self.fixed:
            raise ReadOnly(
                f"`{self.name}` mirrors `{source.stream}`, which is not a bucket: keys cannot be written to it"
            )
        if not source.writable:
            names = joined(f"`{name}`" for name in source.origins)
            raise ReadOnly(
                f"`{self.name}` is a read-only aggregate of {names}",
                hint="Write to the origin that holds the key",
                aggregate=source.info and source.info["config"],
                key=key,
            )
        if not self.fixed and key is not None:
            source.check_heard(key)

    @property
    def _down(self) -> str:
        """Hint for a bucket that does not answer."""
        return f"Its servers may be down; check with `kvctl bucket show {self.name}`"

    async def _direct(self, key: str) -> StoredMessage | None:
        """Send a direct get; if nobody answers, resolve the name and continue from there."""
        await self.locate_elsewhere()
        if not self.binding.direct:
            return None
        deadline = time.monotonic() + self._api.connection.timeout
        while True:
            try:
                return await direct_get.last(self.binding.api, self.binding.stream, self.binding.subject(key))
            except RequestTimeout as error:
                raise RequestTimeout(
                    f"Bucket `{self.name}` does not answer: {error.message}", hint=self._down
                ) from None
            except NoResponders:
                try:
                    await self.locate(fresh=True)
                except PermissionDenied:
                    self.binding = replace(self.binding, direct=False)  # the leader may still be asked
                if not self.binding.direct:
                    return None
                if time.monotonic() > deadline:
                    raise UnreachableError(f"No replica of bucket `{self.name}` answers", hint=self._down) from None
                await asyncio.sleep(RETRY_PAUSE)

    async def _from_leader(self, key: str, revision: int | None = None) -> StoredMessage | None:
        """Return the key's last message, or that of a revision, from the leader of the stream that takes the writes."""
        while True:
            source = self.binding.source
            request = {"last_by_subj": source.subject(key)} if revision is None else {"seq": revision}
            try:
                message = await direct_get.from_leader(source.api, source.stream, **request)
            except RequestTimeout as error:
                error.hint = error.hint or self._down
                raise
            except StreamNotFound:
                if self._located:
                    raise BucketNotFound(f"Bucket `{source.bucket}` does not exist") from None
                await self.locate()
                continue
            if message is not None and message.subject == source.subject(key):
                return message
            if not await self.moved():
                return None

    async def write_message(
        self,
        key: str,
        value: bytes,
        header: bytes,
        expected: int | None = None,
        *,
        literal: bool = False,
        identity: bytes | None = None,
    ) -> int:
        """Write a message with these headers to the key's subject, and return its revision.

        `expected` is the last revision that the headers name; `identity` is that of an earlier attempt, else a new one.
        Raises WrongRevision, BucketNotFound, ReadOnly, OutcomeUnknown, UnreachableError, ServerError, UsageError.
        """
        await self.locate_elsewhere()
        self.check_writable(None if literal else key)
        deadline = time.monotonic() + self._api.connection.timeout
        while True:
            try:
                target, after = self.binding.source, self.own.last(key)
                if (config := self._config(target)) is not None:
                    await self._check_kept(key, config, sent=False)
                revision = await conditional_write.write(
                    target, key, value, header, expected, after=after, identity=identity, config=config
                )
                if config is not None:
                    await self._check_kept(key, config, sent=True)
            except NoResponders:
                with suppress(RequestTimeout):  # no answer here either: a leader is being elected
                    await self._no_stream(key)
                if time.monotonic() > deadline:
                    raise UnreachableError(
                        f"Bucket `{self.name}` does not accept writes at the moment",
                        hint=f"Its stream has no leader, or is not imported; see `kvctl bucket show {self.name}`",
                    ) from None
                await asyncio.sleep(RETRY_PAUSE)
            else:
                self.own.note(key, revision)
                return revision

    def _config(self, target: Binding) -> asyncio.Future[StreamConfig] | None:
        """Return the configuration of the stream of a handle's first write, which is read at the same time.

        None if there is nothing to check: this is not the first write, and the stream acknowledges and keeps writes.
        """
        info = target.info
        if self.fixed or (info is not None and not info["config"].get("no_ack")):
            return None
        known = self._configs.get(target.stream)
        if known is None:
            known = self._configs[target.stream] = asyncio.ensure_future(_config_of(target))
        elif known.done() and not (known.result().get("no_ack") or refusal(known.result(), WRITES)):
            return None
        return known

    @property
    def values_may_return(self) -> bool:
        """True if an earlier value of a key may outlive the last one, which the bucket's ttl ends, as far as known."""
        source = self.binding.source
        known, stream = self._configs.get(source.stream), {}
        if source.info is not None:
            stream = source.info["config"]
        elif known is not None and known.done():
            stream = known.result()
        return bool(stream.get("max_age") and stream.get("allow_msg_ttl") and stream["max_msgs_per_subject"] != 1)

    async def _check_kept(self, key: str, config: asyncio.Future[StreamConfig], *, sent: bool) -> None:
        """Raise KvctlError for a write to a stream that does not keep it as a key, as far as known.

        For one that was sent, the configuration is waited for.
        """
        if sent:
            await asyncio.wait((config,), timeout=RESOLVE_TIMEOUT)
        stream = config.result() if config.done() else {}
        if stream and (oddity := refusal(stream, WRITES)):
            text, why = f"`{self.name}` does not keep keys", oddity.evidence(stream)
            text = (
                f"The write to `{key}` was acknowledged, but {text}: {why}" if sent else f"{why}; nothing was written"
            )
            raise (KvctlError if sent else RefusedError)(text, hint=oddity.fix(stream))

    async def _no_stream(self, key: str) -> None:
        """Resolve the name after a write that nobody took. Raises BucketNotFound, ReadOnly."""
        before = self.binding.source.write_prefix
        binding = await self.locate(fresh=True)
        source = binding.source
        self.check_writes_go_somewhere(key, operation=WRITES)
        if (
            source is not binding
            and source.write_prefix == before
            and await streams.find(source.api, source.stream) is None
        ):
            raise BucketNotFound(f"Bucket `{source.bucket}`, the origin of mirror `{self.name}`, does not exist")

    def check_writable(self, key: str | None) -> None:
        """Check, without asking the server, that this handle may write the key, or at all.

        Raises ReadOnly, UsageError (not a key, or too long for one), HazardRefused (a table's or repository's stream).
        """
        if self.read_only:
            raise read_only_error(f"Bucket `{self.name}`")
        if self.binding.info is not None and not self.fixed:  # already known, so this needs no request
            stream_kind.refuse(self.binding.info["config"], forcible=False)
            if self.binding.origin is not None or refusal(self.binding.info["config"], WRITES):
                self.check_writes_go_somewhere(key, operation=WRITES)
        if key is not None:
            check_key(key)
            self._check_length(key)

    def _check_length(self, key: str) -> None:
        """Refuse a key too long to read: the longest request has API, stream and subject on one protocol line."""
        binding = self.binding
        asked = f"{binding.api.prefix}.CONSUMER.CREATE.{binding.stream}.kvctl-000000000000.{binding.subject(key)}"
        self._api.connection.check_message(encoded(asked), b"", b"")


async def _config_of(target: Binding) -> StreamConfig:
    """Return the configuration of the binding's stream; empty if it cannot be read."""
    with suppress(KvctlError):
        info = await streams.find(target.api, target.stream)
        return info["config"] if info else {}
    return {}


def _of_a_bucket(binding: Binding) -> Binding:
    """Return the binding. Raises RefusedError for a stream named like a bucket that accepts none of its keys."""
    assert binding.info is not None
    config = binding.info["config"]
    elsewhere = not (config.get("mirror") or config.get("sources"))
    if kind_of(config) is Kind.STREAM and elsewhere and not _takes_keys(config.get("subjects") or (), binding.prefix):
        raise RefusedError(
            f"Stream `{binding.stream}` is not a bucket: it does not listen on `{binding.prefix}>`",
            hint=f"See its subjects with `kvctl stream show {binding.stream}`",
        )
    return binding


def _takes_keys(subjects: Iterable[str], prefix: str) -> bool:
    """Return True if one of the subjects can match a key under the prefix."""
    wanted = prefix.split(".")
    return any(
        all(token in ("*", ">", want) for token, want in zip(subject.split("."), wanted[:-1], strict=False))
        for subject in subjects
        if subject.endswith(">") or subject.count(".") >= len(wanted) - 1
    )


class OwnWrites:
    """Highest revision acknowledged to this session for each key, so that reads never show older ones."""

    LIMIT = 10_000

    def __init__(self) -> None:
        self._last: OrderedDict[str, int] = OrderedDict()
        self._forgotten = 0
        self.highest = 0
        """Highest revision of any key."""

    def note(self, key: str, revision: int) -> None:
        """Record an acknowledged write."""
        self.note_all((key,), (revision,))

    def note_all(self, keys: Sequence[str], revisions: Sequence[int]) -> None:
        """Record acknowledged writes of distinct keys."""
        last = self._last
        for key, revision in zip(keys, revisions, strict=True):
            last[key] = max(revision, last.pop(key)) if key in last else revision
        self.highest = max(self.highest, *revisions)
        while len(last) > self.LIMIT:
            _, oldest = last.popitem(last=False)
            self._forgotten = max(self._forgotten, oldest)

    def note_many(self, revision: int) -> None:
        """Record that any key may have been written, up to this revision."""
        self._forgotten = max(self._forgotten, revision)
        self.highest = max(self.highest, revision)

    def last(self, key: str) -> int:
        """Return the revision of the key's last write; 0 for none or one too long ago."""
        return self._last.get(key, 0)

    def any(self) -> bool:
        """Return True if there were any writes."""
        return bool(self._last or self._forgotten)

    def stale(self, key: str, revision: int, *, sole: bool = False) -> bool:
        """Return True if an answer of this revision (0: none) may be older than this session's writes.

        `sole` means that it came from the only replica, which cannot be behind.
        """
        known = self._last.get(key)
        return revision < ((0 if sole else self._forgotten) if known is None else known)
