"""Operations of the bucket's oracle beside those on single keys: transactions, another client, edits, refusals."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError

from kvctl import CURRENT, Bucket, Client
from kvctl.errors import (
    BucketExists,
    ConditionsFailed,
    ConflictError,
    KvctlError,
    ReadOnly,
    RevisionNotFound,
    ServerError,
    UsageError,
)
from kvctl.kv import catalog
from kvctl.kv.maintenance import bucket_backup
from kvctl.kv.transaction.transaction import Transaction
from kvctl.server import Server
from tests.kv.oracle.bucket_model import KEYS, Model

FULL = 10077
NOT_KEYS = ["*", ">", "a.*", "a.>", "*.1", "a..b", ".a", "a.", "a b", "", "\n", "a\r\nPING"]


@asynccontextmanager
async def beside(server: Server) -> AsyncIterator[JetStreamContext]:
    """The official client library, connected to the server and to its successors."""
    connection = await nats.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05)
    yield connection.jetstream(timeout=10)
    await connection.close()


class MoreOperations:
    """What World does with more than one key, with another client, or in vain."""

    bucket: Bucket
    model: Model
    other: JetStreamContext

    def __init__(self, client: Client, chance: random.Random, directory: Path) -> None:
        self.client, self.chance, self.directory = client, chance, directory
        self.number = 0
        self.settings: dict[str, Any] = {}

    def told(self, *what: object) -> None:
        self.number += 1
        print(self.number, *what)

    def value(self) -> bytes:
        """Empty, text, bytes, or long."""
        return self.chance.choice([b"", b"v%d" % self.number, self.chance.randbytes(5), b"long" * 500])

    async def transact(self) -> None:
        """Change up to four keys under conditions on these and others."""
        transaction, wrong = Transaction(), set[str]()
        keys = self.chance.sample(KEYS, len(KEYS))
        changed = keys[: self.chance.randint(1, 4)]
        stored = []
        for key in changed:
            kind, value = self.chance.choice(["put", "create", "update", "delete", "purge"]), b"t%d" % self.number
            right, expected = self._expectation(key)
            if kind == "put":
                transaction.put(key, value)
            elif kind == "create":
                transaction.create(key, value)
                wrong |= {key} & self.model.living().keys()
            elif kind == "update":
                transaction.update(key, value, expected)
                wrong |= {key} if expected != right else set()
            else:
                condition = self.chance.choice([None, expected])
                getattr(transaction, kind)(key, revision=condition)
                wrong |= {key} if condition not in (None, right) else set()
            stored.append((key, {"delete": "DEL", "purge": "PURGE"}.get(kind, "PUT"), value))
        for key in keys[4 : 4 + self.chance.randint(0, 2)]:
            wrong |= self._guard(transaction, key)
        self.told("transaction", transaction)
        if transaction.messages == len(changed):  # else revisions would be repeated
            await self._commit(transaction, wrong, stored)

    def _expectation(self, key: str) -> tuple[int, int]:
        """The revision of a key, and one to expect."""
        last = self.model.latest().get(key)
        right = last.revision if last else 0
        return right, right if self.chance.random() < 0.8 else self.chance.randint(0, self.model.last + 1)

    def _guard(self, transaction: Transaction, key: str) -> set[str]:
        """Add a condition on a key that is not changed; the key if it does not hold."""
        living, (right, expected) = self.model.living(), self._expectation(key)
        kind = self.chance.choice(["revision", "exists", "absent", "value"])
        if kind == "revision":
            transaction.expect(key, revision=expected)
            return {key} if expected != right else set()
        if kind == "value":
            value = self.chance.choice([living.get(key, b"none"), b"other"])
            transaction.expect(key, value=value)
            return {key} if living.get(key) != value else set()
        transaction.expect(key, exists=kind == "exists", absent=kind == "absent")
        return {key} if (key in living) != (kind == "exists") else set()

    async def _commit(self, transaction: Transaction, wrong: set[str], stored: list[tuple[str, str, bytes]]) -> None:
        if not self.settings["atomic"]:
            with pytest.raises(KvctlError, match="nothing was sent"):
                await self.bucket.commit(transaction)
        elif wrong:
            with pytest.raises(ConditionsFailed) as refused:
                await self.bucket.commit(transaction)
            assert {failure.key for failure in refused.value.failures} == wrong
        elif revisions := await self._unless_full(self.bucket.commit(transaction)):
            assert revisions == [*range(self.model.last + 1, self.model.last + 1 + len(stored))]
            for revision, (key, kind, value) in zip(revisions, stored, strict=True):
                self.model.add(revision, key, kind, b"" if kind != "PUT" else value)

    async def beside(self) -> None:
        """Write a key with another client."""
        theirs = await self.other.key_value("B")
        kind, key, value = self.chance.choice(["put", "put", "delete", "purge"]), self.chance.choice(KEYS), b"theirs"
        self.told("another client:", kind, key)
        try:
            await (theirs.put(key, value) if kind == "put" else getattr(theirs, kind)(key))
        except nats.js.errors.APIError as error:
            if error.err_code != FULL or "max_bytes" not in self.settings:
                raise
        else:
            kinds = {"put": "PUT", "delete": "DEL", "purge": "PURGE"}
            self.model.add(self.model.last + 1, key, kinds[kind], value if kind == "put" else b"")

    async def beside_again(self) -> None:
        """Wait until the other client is connected again."""
        async with asyncio.timeout(30):
            while not self.other._nc.is_connected:
                await asyncio.sleep(0.02)

    async def compare_beside(self, key: str) -> None:
        """Compare what another client reads."""
        theirs = await self.other.key_value("B")
        wanted = self.model.living().get(key)
        try:
            found = await theirs.get(key)
        except KeyNotFoundError:
            assert wanted is None
        else:
            assert (found.value or b"") == wanted
            assert found.revision == self.model.latest()[key].revision

    async def refused(self) -> None:
        """Try what is refused before anything is sent."""
        key, bucket = self.chance.choice(KEYS), self.bucket
        reader, large = self.client.bucket("B", read_only=True), self.client.connection.max_payload + 1
        name = self.chance.choice(NOT_KEYS)
        tries: list[tuple[type[KvctlError], Callable[[], Awaitable[object]]]] = [
            (UsageError, lambda: bucket.put(name, b"")),
            (UsageError, lambda: bucket.create(name, b"")),
            (UsageError, lambda: bucket.update(name, b"", 1)),
            (UsageError, lambda: bucket.delete(name)),
            (UsageError, lambda: bucket.purge(name)),
            (UsageError, lambda: bucket.put_many([(name, b"")])),
            (UsageError, lambda: bucket.put(key, bytes(large + self.chance.randrange(10_000)))),
            (UsageError, lambda: bucket.create(key, bytes(large - 1))),
            (ReadOnly, lambda: reader.put(key, b"")),
            (ReadOnly, lambda: reader.create(key, b"")),
            (ReadOnly, lambda: reader.update(key, b"", 1)),
            (ReadOnly, lambda: reader.delete(key)),
            (ReadOnly, lambda: reader.purge(key)),
            (ReadOnly, lambda: reader.put_many([(key, b"")])),
            (ReadOnly, lambda: reader.commit(Transaction().put(key, b""))),
            (ReadOnly, reader.destroy),
        ]
        chosen = self.chance.randrange(len(tries))
        self.told("refused", chosen, key, repr(name))
        error, attempt = tries[chosen]
        with pytest.raises(error):
            await attempt()

    async def create_again(self) -> None:
        self.told("create again")
        await self.client.create_bucket("B", **self.settings)
        with pytest.raises(BucketExists):
            await self.client.create_bucket("B", **self.settings | {"history": self.settings["history"] + 1})

    async def edit(self) -> None:
        """Change one setting; all others stay as they are."""
        name = self.chance.choice(["description", "max_value_size", "metadata"])
        values = {"description": f"d{self.number}", "max_value_size": 10_000 + self.number, "metadata": {"n": "x"}}
        self.told("edit", name)
        before = await self._config()
        await catalog.apply_edit(self.client.api, await catalog.plan_edit(self.client.api, "B", {name: values[name]}))
        self.settings[name] = values[name]
        after = await self._config()
        field = {"max_value_size": "max_msg_size"}.get(name, name)
        assert {**after, field: None} == {**before, field: None}

    async def _config(self) -> dict[str, Any]:
        """The stream's configuration as the server reports it."""
        config: dict[str, Any] = (await self.client.api.call("STREAM.INFO.KV_B"))["config"]
        return config

    async def restore_damaged(self, directory: Path) -> None:
        """A backup with a bit that changed, or without its end, is refused."""
        for _ in range(4):
            damaged = self.directory / "damaged"
            shutil.copytree(directory, damaged)
            file = self.chance.choice(sorted(path for path in damaged.iterdir() if path.is_file()))
            content, at = file.read_bytes(), self.chance.randrange(file.stat().st_size)
            changed = content[:at] + bytes([content[at] ^ 1 << self.chance.randrange(8)]) + content[at + 1 :]
            self.told("damage", file.name, at)
            file.write_bytes(self.chance.choice([changed, changed, content[:at]]))
            with pytest.raises((ConflictError, UsageError)):  # a bit in its heading makes it another kind or version
                await bucket_backup.restore(self.client.api, damaged)
            assert "B" not in await self.client.bucket_names()
            shutil.rmtree(damaged)

    async def compare_watch(self, first: int) -> None:
        """Watch from a revision on."""
        if first > self.model.last + 1:
            with pytest.raises(RevisionNotFound):
                await self._watched(first)
        else:
            wanted = [(one.revision, one.value) for one in self.model.held() if one.revision >= first]
            assert await self._watched(first) == wanted

    async def _watched(self, first: int) -> list[tuple[int, bytes]]:
        async with await self.bucket.watch(from_revision=first, follow=False) as watcher:
            items = [item async for item in watcher]
        assert items.pop() is CURRENT
        return [(item.revision, item.value) for item in items]

    async def _stored(self, key: str, kind: str, value: bytes, work: Awaitable[int]) -> bool:
        """Wait for the write; it is in the model if it was stored."""
        revision = await self._unless_full(work)
        if revision:
            self.model.add(revision, key, kind, value)
        return bool(revision)

    async def _unless_full(self, work: Awaitable[Any]) -> Any:
        """What the write returns, None where the bucket is full."""
        try:
            return await work
        except ServerError as error:
            if error.err_code != FULL or "max_bytes" not in self.settings:
                raise
            return None
