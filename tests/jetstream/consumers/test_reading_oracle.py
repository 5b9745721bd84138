"""Readings of a bucket beside the list of every operation ever: listings, histories and watches, whatever happens.

The model is that list, and what a stream of that history does with it. Writers go around the proxy through which the
readings come; the proxy loses connections at random, consumers are deleted, the server restarts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

import kvctl
from kvctl import CURRENT, Bucket, Client, Entry
from kvctl.contexts import Context
from kvctl.jetstream.consumers import ordered_consumer, server_consumer
from kvctl.jetstream.consumers.message import delivery
from kvctl.jetstream.consumers.server_consumer import Selection
from kvctl.jetstream.direct_get import DirectRequest, NotUnderstood
from kvctl.jetstream.multi_get import read as read_pages
from kvctl.kv.maintenance.statistics import statistics
from kvctl.server import Server, run_server
from tests.support.proxy import Proxy
from tests.support.raw import RawClient

LIMIT = 90.0
"""Seconds after which a reading hangs."""
LONG = range(1, 201)
"""Sequences of a stream that takes several pulls to read."""
KEYS = [f"k{number}" for number in range(12)]
Stored = tuple[int, str, str, bytes]
"""Revision, key, operation, value."""


@dataclass
class Model:
    """Every operation ever, and what a stream with this history holds after them."""

    history: int
    ever: list[Stored] = field(default_factory=list)
    held: list[Stored] = field(default_factory=list)

    def store(self, revision: int, key: str, operation: str, value: bytes = b"") -> None:
        entry = (revision, key, operation, value)
        self.ever.append(entry)
        if operation == "PURGE":
            self.held = [other for other in self.held if other[1] != key]
        self.held.append(entry)
        same = [other for other in self.held if other[1] == key]
        for old in same[: max(len(same) - self.history, 0)]:
            self.held.remove(old)

    def remove(self, revision: int) -> None:
        self.held = [entry for entry in self.held if entry[0] != revision]

    def compact(self) -> None:
        """Markers go, and what they left behind them."""
        gone = {key for key, (_, _, operation, _) in self.last().items() if operation != "PUT"}
        self.held = [entry for entry in self.held if entry[1] not in gone]

    def last(self) -> dict[str, Stored]:
        return {entry[1]: entry for entry in self.held}

    def living(self) -> list[str]:
        return [key for _, key, operation, _ in sorted(self.last().values()) if operation == "PUT"]


class Run:
    """One bucket, its model, and what is done to both."""

    def __init__(self, seed: int, server: Server, history: int) -> None:
        self.random = random.Random(seed)
        self.server = server
        self.model = Model(history)
        self.done: list[str] = []
        """What led here, to be read when the test fails."""

    def note(self, text: str) -> None:
        self.done.append(text)

    async def write(self, bucket: Bucket) -> None:
        key = self.random.choice(KEYS)
        kind = self.random.choices(["put", "delete", "purge"], [8, 1, 1])[0]
        alive = key in self.model.living()
        value = self._value()
        if kind == "put":
            self.model.store(await bucket.put(key, value), key, "PUT", value)
        elif kind == "delete" and alive:
            self.model.store(await bucket.delete(key), key, "DEL")
        elif kind == "purge" and key in self.model.last():
            self.model.store(await bucket.purge(key), key, "PURGE")
        else:
            return
        self.note(f"{kind} {key} -> {self.model.ever[-1][0]}")

    def _value(self) -> bytes:
        """Return a number, or bytes that go on like the line before them or like a frame of a usual length."""
        value = b"%d" % self.random.randrange(10**6)
        if self.random.random() < 0.5:
            return value
        begin = self.random.choice((b"", b"\r\n", b"f %d\r\n" % len(value), b" 1 f %d\r\n" % len(value)))
        frame = self.random.choice((b"MSG f 1 r %d\r\n%b\r\n", b"HMSG f 1 r 0 %d\r\n%b\r\n")) % (len(value), value)
        return (begin + value + b"\r\n" + frame + frame)[: self.random.choice((None, -2, -1, 40))]

    def remove(self, raw: RawClient, stream: str) -> None:
        """Delete messages as nobody but an administrator does: the last one of all more often than not."""
        if not self.model.held:
            return
        last = max(self.model.held)
        revision = last[0] if self.random.random() < 0.6 else self.random.choice(self.model.held)[0]
        answer = raw.api(f"STREAM.MSG.DELETE.{stream}", {"seq": revision})
        assert answer.get("success"), answer
        self.model.remove(revision)
        self.note(f"delete message {revision}")

    def compact(self, raw: RawClient, stream: str, bucket: str) -> None:
        for key, entry in self.model.last().items():
            if entry[2] != "PUT":
                raw.api(f"STREAM.PURGE.{stream}", {"filter": f"$KV.{bucket}.{key}"})
        self.model.compact()
        self.note("compact")


def brief(entry: Entry) -> Stored:
    return entry.revision, entry.key, str(entry.operation), entry.value


@asynccontextmanager
async def noted(run: Run) -> AsyncIterator[None]:
    """The operations that led to a failure, shown with it."""
    try:
        async with asyncio.timeout(LIMIT * 4):
            yield
    except BaseException:
        print("\n".join(run.done[-200:]))
        raise


async def check_contents(run: Run, client: Client, name: str) -> None:
    """Each way to read all, compared with all that the model holds."""
    model, bucket = run.model, client.bucket(name)
    stream, held = f"KV_{name}", sorted(run.model.held)
    last = sorted(model.last().values())
    async with asyncio.timeout(LIMIT):
        assert [key async for key in bucket.keys()] == model.living()
        assert [brief(entry) async for entry in bucket.entries(deleted=True)] == last
        assert [brief(entry) async for entry in bucket.history()] == held
        for deliver, expected in (("all", held), ("last_per_subject", last)):
            frames = [
                frame
                async for batch in ordered_consumer.read(
                    client.api, stream, Selection(subjects=(">",), deliver=deliver)
                )
                for frame in batch
            ]
            found = [(delivery(frame[1])[0], frame[0].decode().rpartition(".")[2]) for frame in frames]
            assert found == [entry[:2] for entry in expected], deliver
        await check_range(run, client, stream, [entry[0] for entry in held])
        some = run.random.sample(KEYS, 4)
        chosen = [entry for entry in last if entry[1] in some]
        assert [brief(entry) async for entry in bucket.entries(*some, deleted=True)] == chosen
        assert [entry[1] for entry in chosen if entry[2] == "PUT"] == [key async for key in bucket.keys(*some)]
        found_many = await bucket.get_many(KEYS)
        assert [entry and entry.key for entry in found_many] == [key if key in model.living() else None for key in KEYS]
        for request, wanted in (
            (DirectRequest(sequence=1, batch=1000), held),
            (DirectRequest(last_of=(f"$KV.{name}.>",)), last),
        ):
            try:
                pages = [page async for page in read_pages(client.api, stream, request)]
            except NotUnderstood:  # an import that passes on one answer a request
                assert client.api.answers_once
            else:
                sequences = [message.sequence for page in pages for message in page.messages]
                assert sequences == [entry[0] for entry in wanted]
        watched = [item async for item in await watched_until_current(bucket)]
        assert [brief(item) for item in watched] == last


async def check_range(run: Run, client: Client, stream: str, held: Sequence[int]) -> None:
    """A range of sequences, compared with those that the stream holds."""
    first, end = sorted(run.random.randrange(1, max(held, default=0) + 3) for _ in range(2))
    bounded = Selection((">",), "by_start_sequence", first, last=end)
    batches = ordered_consumer.read(client.api, stream, bounded)
    sequences = [delivery(frame[1])[0] async for batch in batches for frame in batch]
    assert sequences == [sequence for sequence in held if first <= sequence <= end], (first, end)


async def watched_until_current(bucket: Bucket) -> AsyncIterator[Entry]:
    async def items() -> AsyncIterator[Entry]:
        async with await bucket.watch(follow=False) as watcher:
            async for item in watcher:
                if isinstance(item, Entry):
                    yield item

    return items()


@pytest.mark.guarantee("reading-9", "reading-10", "reading-11")
@pytest.mark.oracle
@pytest.mark.parametrize(
    ("limit", "history", "storage"), [(0, 1, "file"), (0, 4, "memory"), (1, 1, "file"), (3, 4, "file")]
)
async def test_every_reading_gives_what_every_operation_left(seed, steps, monkeypatch, limit, history, storage):
    """Step by step: some operations, then everything is read in every way, over an import and directly.

    Ranges of a longer stream are read while the server pauses before each message, as far as a reading can tell.
    """
    with limited(limit) as server, RawClient(server.url, user="owner", password="owner") as raw:
        run = Run(seed * 1000 + limit * 10 + history, server, history)
        async with kvctl.connect(Context(url=server.url, user="owner", password="owner")) as client, noted(run):
            raw.create_bucket("B", max_msgs_per_subject=history, storage=storage, deny_delete=False)
            raw.create_bucket("LONG")
            await client.bucket("LONG").put_many((f"k{number}", b"x") for number in LONG)
            bucket = client.bucket("B")
            guest = Context(url=server.url, user="guest", password="guest", api_prefix="owner")
            for number in range(steps(12)):
                for _ in range(run.random.randrange(8)):
                    await run.write(bucket)
                if run.random.random() < 0.4:
                    run.remove(raw, "KV_B")
                if run.random.random() < 0.1:
                    run.compact(raw, "KV_B", "B")
                await check_contents(run, client, "B")
                with monkeypatch.context() as pausing:
                    pausing.setattr(ordered_consumer, "IDLE_S", 0)
                    await check_range(run, client, "KV_LONG", LONG)
                if number % 10 == 0:
                    async with kvctl.connect(guest) as far:
                        await check_contents(run, far, "B")


def limited(limit: int) -> Server:
    """A server that limits pulls to so many messages, and exports its API as a plain service."""
    limits = f", limits {{ max_request_batch: {limit} }}" if limit else ""
    config = f"""
listen: "127.0.0.1:@client@"
server_name: "@name@"
jetstream {{ store_dir: "@store@"{limits} }}
accounts {{
  OWNER: {{ jetstream: enabled, users: [{{user: owner, password: owner}}], exports: [{{service: "$JS.API.>"}}] }}
  GUEST: {{ users: [{{user: guest, password: guest}}],
    imports: [{{service: {{account: OWNER, subject: "$JS.API.>"}}, to: "owner.>"}}] }}
}}
"""
    return run_server(name="oracle", config=config)


class Disturbances:
    """What happens to readings under way, at random, until they are done."""

    def __init__(self, run: Run, proxy: Proxy, raw: Callable[[], RawClient], *, restarts: bool) -> None:
        self._run, self._proxy, self._raw, self._restarts = run, proxy, raw, restarts

    async def go_on(self) -> None:
        choices = [self._cut, self._refuse, self._delete_consumers, self._calm, self._calm]
        choices += [self._restart] if self._restarts else []
        while True:
            await asyncio.sleep(self._run.random.random() * 0.4)
            act = self._run.random.choice(choices)
            self._run.note(act.__name__)
            await asyncio.to_thread(act)

    def _calm(self) -> None:
        pass

    def _cut(self) -> None:
        self._proxy.cut()

    def _refuse(self) -> None:
        self._proxy.refuse(0.3)
        self._proxy.cut()

    def _delete_consumers(self) -> None:
        with suppress(OSError, ValueError), self._raw() as raw:
            for name in raw.api("CONSUMER.NAMES.KV_B").get("consumers") or []:
                raw.api(f"CONSUMER.DELETE.KV_B.{name}")

    def _restart(self) -> None:
        self._run.server.restart()


async def write_on(run: Run, client: Client, count: int) -> None:
    """Operations of a client of its own that sees no disturbance but restarts; each is known to be done."""
    bucket = client.bucket("B")
    for _ in range(count):
        try:
            await run.write(bucket)
        except kvctl.errors.KvctlError:
            await resolve(run, client)
        await asyncio.sleep(run.random.random() * 0.01)


async def resolve(run: Run, client: Client) -> None:
    """A write whose answer a restart took: read what came of it."""
    known = run.model.ever[-1][0] if run.model.ever else 0
    while True:
        with suppress(kvctl.errors.KvctlError):
            async with asyncio.timeout(10):
                after = [entry async for entry in client.bucket("B").history()]
            break
        await asyncio.sleep(0.1)
    for entry in after:
        if entry.revision > known:
            run.model.store(*brief(entry))
            run.note(f"{entry.operation} {entry.key} -> {entry.revision}, answer lost")


def check_listing(before: Model, listed: list[str], run: Run, since: int) -> None:
    """Keys that lived throughout come once; none that never did comes at all."""
    lived = set(before.living())
    touched = [entry for entry in run.model.ever if entry[0] > since]
    removed = {entry[1] for entry in touched if entry[2] != "PUT"}
    may = lived | {entry[1] for entry in touched if entry[2] == "PUT"}
    assert len(listed) == len(set(listed)), listed
    assert lived - removed <= set(listed) <= may, (sorted(lived - removed), listed, sorted(may))


def snapshot(model: Model) -> Model:
    return Model(model.history, list(model.ever), list(model.held))


@pytest.mark.guarantee("reading-6", "reading-9", "reading-15")
@pytest.mark.oracle
@pytest.mark.parametrize(("history", "restarts"), [(64, False), (1, False), (64, True)])
async def test_readings_under_disturbances_show_every_operation(seed, steps, monkeypatch, history, restarts):
    """A watch shows each operation once, in order (of a history of one, the last of each key); listings are whole."""
    monkeypatch.setattr(server_consumer, "BATCH_MESSAGES", 5)
    with run_server(name="oracle") as server, Proxy(server.url) as proxy:
        run = Run(seed * 100 + history + restarts, server, history)
        away = kvctl.connect(Context(url=proxy.url))
        async with kvctl.connect(server.url) as client, away as far, noted(run):
            await client.create_bucket("B", history=history)
            for _ in range(30):
                await run.write(client.bucket("B"))
            seen: list[Any] = []
            marks = 0

            async def watch() -> None:
                nonlocal marks
                async with await far.bucket("B").watch(history=True) as watcher:
                    async for item in watcher:
                        if item is CURRENT:
                            marks += 1
                        elif isinstance(item, Entry):
                            seen.append(brief(item))

            begun = snapshot(run.model)
            tasks = [asyncio.create_task(watch())]
            disturbing = Disturbances(run, proxy, lambda: RawClient(server.url), restarts=restarts)
            tasks.append(asyncio.create_task(disturbing.go_on()))
            writing = asyncio.create_task(write_on(run, client, steps(150)))
            try:
                while not writing.done():
                    before = snapshot(run.model)
                    since = before.ever[-1][0]
                    async with asyncio.timeout(LIMIT):
                        listed = [key async for key in far.bucket("B").keys()]
                        with suppress(kvctl.errors.KvctlError):  # the server is away when it begins
                            total = (await statistics(far.bucket("B"))).total
                            assert total.keys + total.deleted <= len(KEYS), total
                    # An operation whose answer is on its way counts as done during the listing.
                    await asyncio.sleep(0)
                    run.note(f"listed {len(listed)} since {since}")
                    await settled(run, server)
                    check_listing(before, listed, run, since)
                await writing
                tasks[1].cancel()
                proxy.refuse(0)
                last = run.model.ever[-1][0]
                async with asyncio.timeout(LIMIT):
                    while not seen or seen[-1][0] < last:
                        assert not tasks[0].done(), tasks[0].exception()
                        await asyncio.sleep(0.05)
                check_watch(begun, run.model, seen)
                assert marks == 1
            finally:
                for task in (*tasks, writing):
                    task.cancel()
                await asyncio.gather(*tasks, writing, return_exceptions=True)


async def settled(run: Run, server: Server) -> None:
    """Wait until the model knows of every operation that the stream has."""
    async with asyncio.timeout(LIMIT):
        while True:
            with suppress(OSError, KeyError, ValueError), RawClient(server.url) as raw:
                last = raw.api("STREAM.INFO.KV_B")["state"]["last_seq"]
                break
            await asyncio.sleep(0.05)
        while run.model.ever[-1][0] < last:
            await asyncio.sleep(0.005)


def check_watch(begun: Model, model: Model, seen: list[Stored]) -> None:
    """Every revision once, in order, as it was written; none is missing that was not overwritten or purged."""
    ever = {entry[0]: entry for entry in model.ever}
    revisions = [entry[0] for entry in seen]
    assert revisions == sorted(set(revisions))
    assert seen == [ever[revision] for revision in revisions]
    start = begun.ever[-1][0]
    initial = {entry[0] for entry in begun.held}
    replaced = {
        entry[0]
        for entry in model.ever
        if any(
            later[1] == entry[1] and later[0] > entry[0] and (later[2] == "PURGE" or model.history == 1)
            for later in model.ever
        )
    }
    must = {revision for revision in ever if (revision > start or revision in initial)} - replaced
    assert must <= set(revisions), sorted(must - set(revisions))
