"""Buckets of random settings that other tools may give: each success is true, and nothing hangs.

The model is the stream itself, read by requests that go around the code under test: after each operation it has, or has
not, the entry that was reported.
"""

import asyncio
import base64
import random
from contextlib import suppress
from typing import Any

import pytest

from kvctl import Bucket
from kvctl.doctor.content import of_buckets
from kvctl.errors import KvctlError, NotFoundError
from kvctl.kv.conditional_write import LOOK_AGAIN_S
from kvctl.kv.entry import Operation
from kvctl.kv.transaction.transaction import Transaction
from tests.support.raw import RawClient

pytestmark = pytest.mark.oracle
KEYS = ("a", "a.b", "b.c", "c", "d.e.f")
PATIENCE = 12.0
"""Seconds after which an operation hangs: more than twice the timeout of the connection."""
CHOICES: dict[str, list[Any]] = {
    "retention": ["interest", "workqueue"],
    "no_ack": [True],
    "persist_mode": ["async"],
    "discard_new_per_subject": [True],
    "discard": ["old"],
    "max_msgs": [1, 2, 4],
    "max_bytes": [150, 400, 1000],
    "max_msg_size": [1, 30, 80, 120],
    "max_msgs_per_subject": [-1, 2, 65],
    "max_consumers": [1, 2],
    "consumer_limits": [{"inactive_threshold": 10**9}, {"max_ack_pending": 1}],
    "subjects": [["$KV.{}.a.>", "$KV.{}.a"], ["$KV.{}.*"], ["$KV.{}.>", "odd.{}.>"], ["$KV.{}.*.>"]],
    "subject_transform": [
        {"src": ">", "dest": "x.>"},
        {"src": "$KV.{}.>", "dest": "$KV.{}.>"},
        {"src": "$KV.{}.a.>", "dest": "$KV.{}.x.>"},
    ],
    "republish": [{"src": ">", "dest": "again.{}.>"}],
    "allow_msg_counter": [True],
    "allow_msg_schedules": [True],
    "allow_msg_ttl": [True],
    "allow_atomic": [True],
    "allow_batched": [True],
    "allow_rollup_hdrs": [False],
    "allow_direct": [False],
    "deny_delete": [False],
    "deny_purge": [True],
    "max_age": [10**12],
    "duplicate_window": [10**8],
    "first_seq": [1000],
    "storage": ["memory"],
    "compression": ["s2"],
    "sealed": [True],
}
"""Setting -> values that ADR-8 does not have."""


def named(value: Any, name: str) -> Any:
    """Put the bucket's name into a setting."""
    if isinstance(value, str):
        return value.replace("{}", name)
    if isinstance(value, list):
        return [named(item, name) for item in value]
    return {field: named(item, name) for field, item in value.items()} if isinstance(value, dict) else value


class OddBucket:
    """A bucket of random settings, operations on it, and the stream as it is."""

    def __init__(self, raw: RawClient, name: str, dice: random.Random) -> None:
        self.raw, self.name, self.dice = raw, name, dice
        fields = dice.sample(sorted(CHOICES), dice.choice((1, 1, 2, 3)))
        self.settings = {field: named(dice.choice(CHOICES[field]), name) for field in fields}
        self.sealed = self.settings.pop("sealed", False)

    def create(self) -> bool:
        """Create the stream; False if the server does not accept the settings."""
        with suppress(AssertionError):
            made = self.raw.create_bucket(self.name, **self.settings)
            for key in KEYS[:2] if self.sealed else ():
                self.raw.publish(f"$KV.{self.name}.{key}", b"before")
            self.raw.flush()
            if self.sealed:
                self.raw.api(f"STREAM.UPDATE.KV_{self.name}", {**made["config"], "sealed": True})
            return True
        return False

    def last(self, key: str) -> tuple[int, bytes, bytes] | None:
        """Return revision, value and headers of the last message of a key."""
        answer = self.raw.api(f"STREAM.MSG.GET.KV_{self.name}", {"last_by_subj": f"$KV.{self.name}.{key}"})
        if "error" in answer:
            return None
        message = answer["message"]
        parts = (base64.b64decode(message.get(field, "")) for field in ("data", "hdrs"))
        return message["seq"], *parts  # type: ignore[return-value]

    def living(self) -> dict[str, bytes]:
        """Return the value of each key that has one."""
        found = {key: self.last(key) for key in KEYS}
        return {key: last[1] for key, last in found.items() if last and b"KV-Operation:" not in last[2]}

    async def check(self, bucket: Bucket) -> None:
        """Do one operation, and compare what it reports."""
        dice, key, value = self.dice, self.dice.choice(KEYS), b"%d" % self.dice.randrange(1000)
        before = self.living()
        operation = dice.choice("put put create update delete purge put_many commit get keys history watch".split())
        error = None
        try:
            async with asyncio.timeout(PATIENCE):
                await getattr(self, f"_{operation}")(bucket, key, value)
        except KvctlError as problem:
            error = problem
        if isinstance(error, NotFoundError):
            assert operation in ("get", "delete", "purge", "update")
            assert key not in before, (operation, key)
        elif error is not None:
            assert operation != "get", error
            # Without acknowledgements, a refused write cannot be told from one that may still arrive.
            codes = (1, 2, 4, 6) if "no_ack" in self.settings else (1, 2, 4)
            assert error.exit_code in codes, f"{operation}: {error!r}"
            assert "within" not in error.message, f"{operation}: {error!r}"  # the timeout
            assert error.hint or error.exit_code == 4 or "sealed" in error.message, f"{operation}: {error!r}"

    def _is_stored(self, key: str, revision: int, value: bytes | None) -> None:
        last = self.last(key)
        assert last is not None, f"`{key}` was reported at {revision} and is not stored"
        assert last[0] == revision
        assert (b"KV-Operation:" in last[2]) if value is None else (last[1] == value), last

    async def _put(self, bucket: Bucket, key: str, value: bytes) -> None:
        self._is_stored(key, await bucket.put(key, value), value)

    async def _create(self, bucket: Bucket, key: str, value: bytes) -> None:
        before = self.living()
        self._is_stored(key, await bucket.create(key, value), value)
        assert key not in before

    async def _update(self, bucket: Bucket, key: str, value: bytes) -> None:
        self._is_stored(key, await bucket.update(key, value, await bucket.last_revision(key)), value)

    async def _delete(self, bucket: Bucket, key: str, value: bytes) -> None:
        self._is_stored(key, await bucket.delete(key), None)

    async def _purge(self, bucket: Bucket, key: str, value: bytes) -> None:
        self._is_stored(key, await bucket.purge(key), None)

    async def _put_many(self, bucket: Bucket, key: str, value: bytes) -> None:
        keys = self.dice.sample(KEYS, 2)
        summary = await bucket.put_many([(each, value) for each in keys])
        failed = {each for each, _ in summary.failed}
        assert summary.written == len(keys) - len(failed)
        if summary.written:
            last = [each for each in keys if each not in failed][-1]
            self._is_stored(last, summary.last_revision, value)

    async def _commit(self, bucket: Bucket, key: str, value: bytes) -> None:
        keys = self.dice.sample(KEYS, 2)
        transaction = Transaction()
        for each in keys:
            transaction.put(each, value)
        revisions = await bucket.commit(transaction)
        self._is_stored(keys[-1], revisions[-1], value)

    async def _get(self, bucket: Bucket, key: str, value: bytes) -> None:
        assert (await bucket.get(key)).value == self.living()[key]

    async def _keys(self, bucket: Bucket, key: str, value: bytes) -> None:
        listed = {key async for key in bucket.keys()} & {*KEYS}
        assert listed == set(self.living())

    async def _history(self, bucket: Bucket, key: str, value: bytes) -> None:
        entries = {entry.key: entry async for entry in bucket.history()}
        living = {name for name, entry in entries.items() if entry.operation is Operation.PUT} & {*KEYS}
        assert living == set(self.living())

    async def _watch(self, bucket: Bucket, key: str, value: bytes) -> None:
        async with await bucket.watch(follow=False, ignore_deletes=True) as watcher:
            found = {entry.key: entry.value async for entry in watcher if hasattr(entry, "key") and entry.key in KEYS}
        assert found == self.living()


@pytest.mark.guarantee("writing-19", by="oracle")
@pytest.mark.asyncio
async def test_random_streams_store_what_is_reported(raw, client, unique, seed, steps):
    assert LOOK_AGAIN_S < PATIENCE
    dice = random.Random(seed)
    for number in range(steps(60)):
        odd = OddBucket(raw, unique(), dice)
        if not odd.create():
            continue
        print(f"{number}: {odd.settings}{' sealed' * bool(odd.sealed)}")
        info = raw.api(f"STREAM.INFO.KV_{odd.name}")
        assert all("{" not in item.evidence for item in of_buckets({f"KV_{odd.name}": info}, 1))
        bucket = client.bucket(odd.name)
        for step in range(12):
            if step == 6:
                bucket = client.bucket(odd.name)  # which does not know the stream
            await odd.check(bucket)
        raw.api(f"STREAM.DELETE.KV_{odd.name}")
