"""Write many keys of a partition, thousands in flight, each only while a fence holds; survives lost connections.

A message has room for one condition, which is the fence. So writes that a lost connection left open are not simply sent
again, which would replace what another session has written since. A key whose last message is newer than the start is
done: the message is ours, or ours came right before it (a store with one revision per key keeps no trace of it). The
others are written in batches, conditional on the fence and on the last revision of each key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping

from kvctl.errors import ConditionsFailed, ConnectionLost, KvctlError, OutcomeUnknown, ServerError, WrongRevision
from kvctl.jetstream import streams
from kvctl.jetstream.direct import direct_get
from kvctl.jetstream.direct.per_subject import last_of_each
from kvctl.jetstream.publish import PublishWindow
from kvctl.kv.bucket import Bucket
from kvctl.kv.load.leader_state import AWAY, LEADER_DEADLINE_S
from kvctl.kv.load.resume import all_arrived
from kvctl.kv.transaction.transaction import LIMIT, Transaction
from kvctl.kv.write import conditional_write, outcome
from kvctl.versions.store.group_commit import in_batches
from kvctl.versions.store.protocol import Change, PredicateFailed
from kvctl.versions.store.store_subjects import subject_token

PAUSE_S = 0.1


class FencedWrites:
    """One fenced bulk write, on a stream with one replica. `fence` is a place and its last revision."""

    def __init__(self, bucket: Bucket, partition: bytes, values: Mapping[bytes, bytes], fence: tuple[str, int]) -> None:
        self._bucket = bucket
        self._binding = bucket.binding
        self._partition = partition
        self._values = values
        self._fence = fence
        self._floor = 0
        """Last revision of the stream before the first write."""
        self._written: set[bytes] = set()
        self._lost: dict[bytes, KvctlError] = {}
        """Keys whose writes the lost connection left open."""
        self._witness = b""
        """A key that was seen: while it exists, the partition has not been cleared."""
        self._refused = False
        """True if the fence has moved."""
        self._error: KvctlError | None = None

    async def run(self) -> None:
        """Write all values. Raises PredicateFailed with the keys written so far, and as `Store.set_many`."""
        binding = self._binding
        self._floor = int((await streams.info(binding.api, binding.stream))["state"]["last_seq"])
        messages = self._messages()
        async with PublishWindow(binding.api.connection, self._done, self._failed) as window:
            while not self._stops():
                await window.send_all(messages, self._stops)
                await window.finish()
                if not self._lost:
                    break
                await self._settle()
        if self._error is not None:
            raise self._explained(self._error)
        if self._refused:
            raise PredicateFailed("The condition does not hold", written=frozenset(self._written))

    def _messages(self) -> Iterator[tuple[bytes, bytes, bytes, bytes]]:
        prefix = self._binding.write_prefix
        header = conditional_write.fence(self._binding.subject(self._fence[0]), self._fence[1])
        for key, value in self._values.items():
            yield key, (prefix + subject_token(self._partition, key)).encode(), value, header

    def _stops(self) -> bool:
        return bool(self._lost or self._refused or self._error)

    def _done(self, key: bytes, _: int) -> None:
        self._written.add(key)
        self._witness = key

    def _failed(self, key: bytes, error: KvctlError) -> None:
        if isinstance(error, ConnectionLost):
            self._lost[key] = error
        elif isinstance(error, WrongRevision):
            self._refused = True
        else:
            self._error = self._error or error

    def _explained(self, error: KvctlError) -> KvctlError:
        if isinstance(error, outcome.OPEN):
            return _unknown(error)
        return conditional_write.explained(error, self._binding) if isinstance(error, ServerError) else error

    # -- after a lost connection - ----------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Write the missing keys, unless the fence has moved. Raises OutcomeUnknown if the server stays unreachable."""
        connection, left = self._binding.api.connection, len(self._lost)
        deadline, arrived = time.monotonic() + LEADER_DEADLINE_S, False
        cause: KvctlError = next(iter(self._lost.values()))
        while self._lost:
            try:
                await connection.wait_online(connection.timeout)
                if not arrived:
                    await all_arrived(self._binding)
                arrived = True
                if not await self._write_again(await self._look()):
                    await self._end_behind_fence()
                    return
            except AWAY as error:
                cause = error
            if len(self._lost) < left:
                left, deadline = len(self._lost), time.monotonic() + LEADER_DEADLINE_S
            elif time.monotonic() > deadline:
                raise _unknown(cause)
            else:
                await asyncio.sleep(PAUSE_S)

    async def _look(self) -> dict[bytes, int]:
        """Record which open keys are written; return the last revisions of the others."""
        keys = {self._binding.subject(subject_token(self._partition, key)): key for key in self._lost}
        missing: dict[bytes, int] = {}
        for subject, message in (await self._last_of(list(keys))).items():
            key = keys[subject]
            if message is not None:
                self._witness = key
            if message is not None and message.sequence > self._floor:
                self._found(key)
            else:
                missing[key] = message.sequence if message else 0
        return missing

    async def _last_of(self, subjects: list[str]) -> dict[str, direct_get.StoredMessage | None]:
        return await last_of_each(self._binding.api, self._binding.stream, subjects, leader=True)

    def _found(self, key: bytes) -> None:
        del self._lost[key]
        self._written.add(key)

    async def _write_again(self, missing: Mapping[bytes, int]) -> bool:
        """Write keys that are still at these revisions, in batches; return False when the fence has moved."""
        changes = [Change(self._partition, key, self._values[key]) for key in missing]
        for some in in_batches(changes, LIMIT - 1):
            transaction = Transaction().expect(self._fence[0], revision=self._fence[1])
            for change in some:
                place = subject_token(self._partition, change.key)
                transaction.update(place, self._values[change.key], missing[change.key])
            try:
                await self._bucket.commit(transaction)
            except ConditionsFailed as error:
                if any(failure.key == self._fence[0] for failure in error.failures):
                    return False
            except WrongRevision:
                pass  # written just now: the next check decides
            else:
                for change in some:
                    self._found(change.key)
        return True

    async def _end_behind_fence(self) -> None:
        """Record what was written before the fence moved. Raises OutcomeUnknown if the partition may be cleared."""
        await self._look()
        self._refused = True
        if self._lost and not await self._is_held():
            raise _unknown(next(iter(self._lost.values())))
        self._lost.clear()

    async def _is_held(self) -> bool:
        """Return whether the partition still holds the key that was seen in it."""
        if not self._witness:
            return False
        subject = self._binding.subject(subject_token(self._partition, self._witness))
        return (await self._last_of([subject])).get(subject) is not None


def _unknown(cause: KvctlError) -> OutcomeUnknown:
    return OutcomeUnknown(f"Could not confirm that all keys were written: {cause.message}")
