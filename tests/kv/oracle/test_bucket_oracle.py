"""A bucket beside a model that is a list of every operation ever, and loads that are interrupted beside their rows."""

import asyncio
import io
import json
import random
import shutil
from collections import defaultdict
from collections.abc import Awaitable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from nats.js import JetStreamContext

import kvctl
from kvctl import Bucket, Client
from kvctl.errors import HistoryLost, KeyExists, KeyNotFound, OutcomeUnknown, PartlyDone, ServerError, WrongRevision
from kvctl.jetstream.request_window import RequestWindow
from kvctl.kv import catalog
from kvctl.kv.bulk import checkpoint, dump_file, loader
from kvctl.kv.bulk.bulk_writer import RowCounts
from kvctl.kv.bulk.input_file import open_input
from kvctl.kv.bulk.loader import Loader, LoadOptions
from kvctl.kv.bulk.rows import BadRow, Mode
from kvctl.kv.config import BucketConfig
from kvctl.kv.copy_key import copy, rename
from kvctl.kv.entry import Entry
from kvctl.kv.maintenance import bucket_backup, compaction, copy_bucket
from kvctl.kv.read.as_of import Past
from kvctl.kv.read.moment import Moment
from kvctl.kv.read.watch import CURRENT
from kvctl.server import Server, run_server
from tests.kv.oracle.bucket_model import FILTERS, KEYS, Model, Operation, matching
from tests.kv.oracle.more_operations import MoreOperations, beside
from tests.support.differences import differences

pytestmark = pytest.mark.oracle
HOUR = timedelta(hours=1)


class World(MoreOperations):
    """One bucket under random operations, compared with the model."""

    def __init__(self, client: Client, server: Server, chance: random.Random, directory: Path) -> None:
        super().__init__(client, chance, directory)
        self.server = server
        self.restarts = 0
        history = chance.choice([1, 1, 2, 3, 5])
        self.settings |= {"history": history, "atomic": chance.random() < 0.5}
        if chance.random() < 0.3:
            self.settings["max_bytes"] = 20_000
        if chance.random() < 0.5:
            self.settings["marker_ttl"] = HOUR
        self.model = Model(history)
        self.times: dict[int, int] = {}

    async def begin(self, other: JetStreamContext) -> None:
        print(f"bucket {self.settings}")
        self.bucket = await self.client.create_bucket("B", **self.settings)
        self.other = other

    async def step(self) -> None:
        """One operation of a kind that the chance decides on."""
        kinds = {
            self.put: 30,
            self.create: 12,
            self.update: 12,
            self.delete: 12,
            self.purge: 6,
            self.revert: 4,
            self.move: 6,
            self.compact: 3,
            self.load: 3,
            self.copy: 2,
            self.dump: 3,
            self.back_up: 1,
            self.restart: 1,
            self.transact: 10,
            self.beside: 8,
            self.refused: 6,
            self.create_again: 2,
            self.edit: 3,
            self.touch: 6,
        }
        [kind] = self.chance.choices([*kinds], [*kinds.values()])
        await kind()

    async def put(self) -> None:
        key, value = self.chance.choice(KEYS), self.value()
        self.told("put", key, value[:20])
        await self._stored(key, "PUT", value, self.bucket.put(key, value))

    async def create(self) -> None:
        key, value = self.chance.choice(KEYS), self.value()
        self.told("create", key, value[:20])
        if key in self.model.living():
            with pytest.raises(KeyExists):
                await self.bucket.create(key, value)
        else:
            await self._stored(key, "PUT", value, self.bucket.create(key, value))

    async def update(self) -> None:
        key, value = self.chance.choice(KEYS), self.value()
        last = self.model.latest().get(key)
        right = last.revision if last else 0
        expected = right if self.chance.random() < 0.6 else self.chance.randint(0, self.model.last + 1)
        self.told("update", key, value[:20], expected)
        if expected != right:
            await self._mismatch(key, self.bucket.update(key, value, expected))
        else:
            await self._stored(key, "PUT", value, self.bucket.update(key, value, expected))

    async def delete(self) -> None:
        key, expected = self.chance.choice(KEYS), self._expected()
        self.told("delete", key, expected)
        last = self.model.latest().get(key)
        if last is not None and expected not in (None, last.revision):
            await self._mismatch(key, self.bucket.delete(key, revision=expected))
        elif key not in self.model.living():
            with pytest.raises(KeyNotFound):
                await self.bucket.delete(key, revision=expected)
        else:
            await self._stored(key, "DEL", b"", self.bucket.delete(key, revision=expected))

    async def purge(self) -> None:
        key, expected = self.chance.choice(KEYS), self._expected()
        self.told("purge", key, expected)
        if key not in self.model.latest():
            with pytest.raises(KeyNotFound):
                await self.bucket.purge(key, revision=expected)
        elif expected not in (None, self.model.latest()[key].revision):
            await self._mismatch(key, self.bucket.purge(key, revision=expected))
        else:
            await self._stored(key, "PURGE", b"", self.bucket.purge(key, revision=expected))

    def _expected(self) -> int | None:
        return self.chance.choice([None, None, self.chance.randint(0, self.model.last)])

    async def _mismatch(self, key: str, work: Awaitable[int]) -> None:
        """A condition that does not hold: the error names the revision found."""
        with pytest.raises(WrongRevision) as refused:
            await work
        last = self.model.latest().get(key)
        assert (refused.value.found or 0) == (last.revision if last else 0)

    async def revert(self) -> None:
        values = [one for one in self.model.held() if one.kind == "PUT"]
        if not values:
            return
        old = self.chance.choice(values)
        self.told("revert", old.key, old.revision)
        await self._stored(old.key, "PUT", old.value, self.bucket.revert(old.key, old.revision))

    async def touch(self) -> None:
        """Write a value again with a ttl, which ends after the test."""
        key, living = self.chance.choice(KEYS), self.model.living()
        self.told("touch", key)
        work = self.bucket.touch(key, HOUR)
        if key not in living:
            with pytest.raises(KeyNotFound):
                await work
        elif "marker_ttl" not in self.settings:
            with pytest.raises(ServerError, match="TTL"):
                await work
        elif await self._stored(key, "PUT", living[key], work):
            assert (await self.bucket.get(key)).ttl == HOUR

    async def move(self) -> None:
        """Copy or rename a key."""
        key, new = self.chance.sample(KEYS, 2)
        moving, overwrite = self.chance.random() < 0.5, self.chance.random() < 0.5
        self.told("rename" if moving else "copy", key, new, overwrite)
        living = self.model.living()
        work = (rename if moving else copy)(self.bucket, key, self.bucket, new, overwrite=overwrite)
        if key not in living:
            with pytest.raises(KeyNotFound):
                await work
        elif new in living and not overwrite:
            with pytest.raises(KeyExists):
                await work
        elif await self._stored(new, "PUT", living[key], work) and moving:
            self.model.add(self.model.last + 1, key, "DEL")

    async def compact(self) -> None:
        self.told("compact")
        found = await compaction.find(self.bucket)
        await compaction.remove(self.bucket, found)
        assert len(found.entries) == self.model.compact()

    async def load(self) -> None:
        rows = [(self.chance.choice(KEYS), f"row {n} {self.number}") for n in range(self.chance.randint(0, 12))]
        mode = self.chance.choice([*loader.Mode])
        self.told("load", mode, rows)
        content = b"".join(json.dumps({"key": key, "value": value}).encode() + b"\n" for key, value in rows)
        living, stored = self.model.living(), []
        for key, value in rows:
            same = living.get(key) == value.encode() if mode is loader.Mode.IF_DIFFERENT else key in living
            if mode is loader.Mode.PUT or not same:
                stored.append((key, value.encode()))
                living[key] = value.encode()
        source = open_input("rows.ndjson", io.BytesIO(content))
        loaded = await loader.load(self.bucket, source, LoadOptions(mode=mode))
        assert (loaded.written, loaded.unchanged) == (len(stored), len(rows) - len(stored))
        if mode is loader.Mode.CREATE_ONLY:  # over a marker a row is written once more, after others
            new = [entry async for entry in self.bucket.history() if entry.revision > self.model.last]
            assert sorted(stored) == sorted((entry.key, entry.value) for entry in new)
            stored = [(entry.key, entry.value) for entry in new]
        for key, value in stored:
            self.model.add(self.model.last + 1, key, "PUT", value)

    async def copy(self) -> None:
        """Copy the bucket, and compare the copy with what is held."""
        data = self.chance.choice([copy_bucket.LATEST, copy_bucket.HISTORY])
        self.told("bucket copy", data)
        await copy_bucket.copy(self.bucket, self.client.api, "COPY", data=data)
        await self._compare_copy("COPY", data == copy_bucket.HISTORY)

    async def dump(self) -> None:
        """Dump the bucket or its past, load the dump into a new one, and compare that."""
        what = self.chance.choice(["latest", "history", "past"])
        revision = self.chance.randint(1, max(self.model.last, 1))
        self.told("dump", what, revision if what == "past" else "")
        file = io.BytesIO()
        if what == "past":
            if not self.model.last:
                return
            past = await self.bucket.as_of(Moment(revision=revision))
            if self.model.lost(revision) or self._untold(past):
                with pytest.raises(HistoryLost):
                    await dump_file.dump_past(self.bucket, Moment(revision=revision), file)
                return
            known = past.caveat is None and not self.model.unexplained(revision)
            made = await dump_file.dump_past(self.bucket, Moment(revision=revision), file)
            assert made.exact == known
        else:
            made = await dump_file.dump(self.bucket, file, history=what == "history")
            assert made.exact
        settings = {name: value for name, value in self.settings.items() if name != "max_bytes"}
        loaded = await self.client.create_bucket("COPY", **settings)
        file.seek(0)
        await loader.load(loaded, open_input("dump", file), LoadOptions())
        if what == "past":
            found = {entry.key: entry.value async for entry in loaded.entries()}
            await self.client.delete_bucket("COPY")
            assert found == self.model.at(revision)
        else:
            await self._compare_copy("COPY", what == "history")

    async def back_up(self) -> None:
        self.told("backup, delete, restore")
        directory = self.directory / "backup"
        await bucket_backup.backup(self.client.api, "B", directory)
        await self.client.delete_bucket("B")
        await self.restore_damaged(directory)
        await bucket_backup.restore(self.client.api, directory)
        shutil.rmtree(directory)
        self.bucket = self.client.bucket("B")

    async def restart(self) -> None:
        if self.restarts == 2:
            return
        self.restarts += 1
        self.told("restart")
        await asyncio.to_thread(self.server.restart)
        await self.client.connection.wait_online(10)
        await self.beside_again()

    async def compare(self) -> None:
        """All contents, in every form in which they can be read."""
        model, bucket = self.model, self.chance.choice([self.bucket, self.client.bucket("B", read_only=True)])
        held, latest, living = model.held(), model.latest(), model.living()
        found = [entry async for entry in bucket.history()]
        entries = [(entry.revision, entry.key, entry.operation, entry.value) for entry in found]
        assert differences(entries, [(one.revision, one.key, one.kind, one.value) for one in held]) == []
        assert not any("Kvctl-Id" in entry.headers for entry in found)
        self.times |= {entry.revision: entry.created_ns for entry in found}
        assert {entry.key: entry.value async for entry in bucket.entries()} == living
        everything = {entry.key: entry.revision async for entry in bucket.entries(deleted=True)}
        assert everything == {key: one.revision for key, one in latest.items()}
        assert sorted([key async for key in bucket.keys()]) == sorted(living)
        text = self.chance.choice(FILTERS)
        assert sorted([key async for key in bucket.keys(text)]) == sorted(matching([*living], text)), text
        for leader in (False, True):
            many = await bucket.get_many(KEYS, leader=leader)
            assert [entry and entry.value for entry in many] == [living.get(key) for key in KEYS]
        await self.compare_watch(self.chance.randint(1, model.last + 3))
        await self._compare_since()
        await self.compare_beside(self.chance.choice(KEYS))
        for _ in range(2 if model.last else 0):
            await self._compare_past(self.chance.randint(1, model.last))

    async def _compare_since(self) -> None:
        """Read from the time of an entry on, held or not: every entry of that time or later."""
        if not self.times:
            return
        since = self.times[self.chance.choice([*self.times])] + self.chance.choice([0, 0, 1])
        wanted = [one.revision for one in self.model.held() if self.times[one.revision] >= since]
        moment = Moment(time_ns=since)
        assert [entry.revision async for entry in self.bucket.history(since=moment)] == wanted
        async with await self.bucket.watch(since=moment, follow=False) as watcher:
            assert [item.revision async for item in watcher if item is not CURRENT] == wanted

    async def _compare_past(self, revision: int) -> None:
        moment = Moment(revision=revision)
        if revision in self.times and self.chance.random() < 0.5:
            moment = Moment(time_ns=self.times[revision])
        past = await self.bucket.as_of(moment)
        assert past.revision >= revision if moment.time_ns else past.revision == revision
        lost = self.model.lost(past.revision)
        if lost:
            with pytest.raises(HistoryLost) as refused:
                print([entry async for entry in past.entries()])
            assert set(refused.value.keys) == lost
        elif self._untold(past):
            with pytest.raises(HistoryLost):
                print([entry async for entry in past.entries()])
        else:
            known = past.caveat is None and not self.model.unexplained(past.revision)
            found = {entry.key: entry.value async for entry in past.entries()}
            assert found == self.model.at(past.revision), f"as of {moment}"
            assert (past.caveat is None) == known

    def _untold(self, past: Past) -> bool:
        """Whether the entry of the moment itself was removed, which may have been a value or a deletion."""
        told = past.caveat is not None and any(one.revision <= past.revision for one in self.model.held())
        return self.model.unexplained(past.revision) == past.revision and not told

    async def _compare_copy(self, name: str, history: bool) -> None:
        copied = self.client.bucket(name)
        entries = [entry async for entry in copied.history()]
        assert not any("Kvctl-Id" in entry.headers for entry in entries)
        found = [(entry.key, str(entry.operation), entry.value) for entry in entries]
        await self.client.delete_bucket(name)
        held = self.model.held() if history else [one for one in self.model.held() if one in self._latest_values()]
        assert differences(found, [(one.key, one.kind, one.value) for one in held]) == []

    def _latest_values(self) -> list[Operation]:
        return [one for one in self.model.latest().values() if one.kind == "PUT"]


@pytest.mark.guarantee(
    "writing-3",
    "writing-5",
    "writing-6",
    "writing-8",
    "writing-9",
    "writing-10",
    "writing-11",
    "transactions-1",
    "transactions-3",
    "reading-5",
    "reading-7",
    "reading-12",
    "buckets-1",
    "buckets-2",
    "buckets-3",
    "buckets-5",
    "buckets-6",
    "commands-4",
    "commands-5",
)
async def test_a_bucket_is_what_every_operation_made_of_it(seed, steps, tmp_path):
    worlds, length = 3, steps(240)
    for number in range(worlds):
        print(f"world {number} of seed {seed}")
        with run_server(name=f"oracle{number}") as server:
            async with kvctl.connect(server.url) as client, AsyncExitStack() as exits:
                world = World(client, server, random.Random(seed * 1000 + number), tmp_path)
                await world.begin(await exits.enter_async_context(beside(server)))
                for step in range(length // worlds):
                    await world.step()
                    if step % 4 == 3:
                        await world.compare()
                await world.back_up()
                await world.compare()


# -- interrupted loads --------------------------------------------------------------------------------------


class Killed(BaseException):
    """Ends a load without letting it tidy up."""


@dataclass
class Loads:
    """One file, loaded into one bucket with interruptions, while others write the same keys."""

    client: Client
    config: BucketConfig
    file: Path
    history: int
    rows: list[dict[str, Any]]
    chance: random.Random
    mode: Mode = Mode.PUT
    before: dict[str, str] = field(default_factory=dict)
    """Values that keys had before the load."""
    cuts: int = 0
    """How often the connection may be lost still."""
    lost: bool = False
    foreign: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    """What somebody else wrote last over a key, and the last row that the key had until then (-1 for none)."""
    rejected: list[BadRow] = field(default_factory=list)
    counts: RowCounts = field(default_factory=RowCounts)

    @property
    def bucket(self) -> Bucket:
        return self.client.bucket(self.config.name)

    async def run(self) -> None:
        """Load until it is through; each interruption is followed by other writers."""
        kills, resume = self.chance.randint(0, 3), False
        await self.bucket.put_many((key, value.encode()) for key, value in self.before.items())
        while not await self._through(self.chance.randint(1, 40) if kills > 0 else None, resume=resume):
            print(f"interrupted at revision {(await self.bucket.status()).last_revision}")
            await self._others_write()
            kills, resume = kills - 1, True
        await self._check()

    async def _through(self, after: int | None, *, resume: bool) -> bool:
        """Whether the load comes to its end before so many batches."""
        left = iter(range(after) if after else ())

        def kill(_: int) -> None:
            if after and next(left, None) is None:
                patch.setattr(Loader, "_save", lambda self: None)
                raise Killed

        collect = RequestWindow._collect

        async def cut(window: RequestWindow) -> None:
            if self.cuts and self.chance.random() < 0.1:
                self.cuts, self.lost = self.cuts - 1, True
                self.client.connection._client.cut()
            await collect(window)

        with pytest.MonkeyPatch.context() as patch, self.file.open("rb") as opened:
            patch.setattr(RequestWindow, "_collect", cut)
            source = open_input(str(self.file), opened)
            options = LoadOptions(
                mode=self.mode,
                progress=checkpoint.path_for(str(self.file)),
                resume=resume,
                advance=kill,
                rejected=self.rejected.append,
            )
            try:
                self.counts = await loader.load(self.bucket, source, options)
            except Killed:
                return False
            except OutcomeUnknown as unknown:
                print(f"unknown: {unknown.message}")
                assert self.lost
                return False
            except (PartlyDone, ServerError) as full:
                print(f"full: {full.message}")
                if not resume:
                    written = int(full.message.split()[0]) if isinstance(full, PartlyDone) else 0
                    stored = (await self.bucket.status()).last_revision - len(self.before)
                    traces = self.history == 64 and not any("operation" in row for row in self.rows)
                    assert written == stored if traces else written >= stored
                await catalog.update(self.client.api, replace(self.config, max_bytes=10_000_000))
                return False
            return True

    async def _others_write(self) -> None:
        for key in self.chance.sample(sorted({row["key"] for row in self.rows}), self.chance.randint(0, 6)):
            entry = await self.bucket.last_entry(key, leader=True)
            seen = self._row(entry) if entry else -1
            value = b"foreign %d" % self.chance.getrandbits(40)
            print(f"somebody writes {key} over row {seen}")
            if seen < 0 and key in self.foreign:
                seen = self.foreign[key][1]
            with suppress(ServerError):  # full
                await self.bucket.put(key, value)
                self.foreign[key] = value, seen

    async def _check(self) -> None:
        held: dict[str, list[Entry]] = defaultdict(list)
        async for entry in self.bucket.history():
            held[entry.key].append(entry)
        limit = self.config.max_value_size or 10_000
        large = {number for number, row in enumerate(self.rows) if len(row["value"]) > limit}
        # Of rows that differ in size some fit into a full bucket after one that did not.
        passed = {bad.line - 1 for bad in self.rejected if "A later write" in bad.reason}
        assert self.config.max_bytes or not passed
        lacking = large | passed
        for key in sorted({row["key"] for row in self.rows}):
            found = [self._row(entry) for entry in held[key]]
            own = [number for number in found if number >= 0]
            lacking |= {number for number in self._unknown() if self.rows[number]["key"] == key} - {*own}
            mine = self._written(key, lacking)
            purged = [at for at, number in enumerate(mine) if self._purges(number)]
            mine = mine[purged[-1] if purged else 0 :]
            assert not passed.intersection(own)
            assert own == sorted(set(own)), f"{key}: rows are doubled or out of order: {found}"
            if key not in self.foreign:
                assert found == mine[-self.history :], key
                continue
            value, seen = self.foreign[key]
            assert held[key][-1].value == value or found[-1] > seen, f"{key}: row {found[-1]} lies over a newer value"
            if (
                self.history == 64 and not purged and self.mode is Mode.PUT
            ):  # a purge leaves no trace of the rows before it
                assert own == mine, f"{key}: {set(mine) - set(own)} are missing"
        unknown = self._unknown()
        named = {self.rows[bad.line - 1]["key"] for bad in self.rejected if bad.line - 1 not in lacking | unknown}
        assert named <= self.foreign.keys()
        assert large <= {bad.line - 1 for bad in self.rejected}
        self._check_counts(lacking)

    def _check_counts(self, lacking: set[int]) -> None:
        counts = self.counts
        assert counts.written + counts.unchanged + counts.rejected == len(self.rows)
        if self.history == 64 and not any("operation" in row for row in self.rows):
            assert counts.presumed == 0
        if self.foreign:
            return
        unknown = len(self._unknown())
        assert len(lacking) - counts.presumed <= counts.rejected <= len(lacking) + unknown
        changing = sum(len(self._written(key, lacking)) - (key in self.before) for key in {r["key"] for r in self.rows})
        assert changing - unknown <= counts.written <= changing + counts.presumed

    def _unknown(self) -> set[int]:
        """The rows that are named after a kill, since a write of their key has no room for an identity."""
        return {bad.line - 1 for bad in self.rejected if "no room for an identity" in bad.reason}

    def _written(self, key: str, lacking: set[int]) -> list[int]:
        """The rows that the key receives if nobody else writes it, after -1 for a value from before."""
        value = self.before.get(key)
        written = [] if value is None else [-1]
        for number, row in enumerate(self.rows):
            if row["key"] == key and number not in lacking:
                new = None if "operation" in row else row["value"]
                changes = value is None if self.mode is Mode.CREATE_ONLY else new != value
                if changes or self.mode is Mode.PUT:
                    written.append(number)
                    value = new
        return written

    def _purges(self, number: int) -> bool:
        return number >= 0 and self.rows[number].get("operation") == "PURGE"

    def _row(self, entry: Entry) -> int:
        number = entry.headers.get("Row", entry.value.decode().strip())
        return int(number) if number.isdigit() else -1


def _rows(chance: random.Random, keys: int, limit: int | None, mode: Mode) -> list[dict[str, Any]]:
    """Rows of varying sizes, some over the limit; in some files also deletions, purges and headers.

    Under a condition the values repeat.
    """
    sizes = [0] * 20 + ([limit - less for less in (-1, 0, 30, 50, 90, 110)] if limit else [300, 600])
    more = 0.1 if chance.random() < 0.5 and mode is not Mode.CREATE_ONLY else 0.0
    rows: list[dict[str, Any]] = []
    for number in range(chance.choice([300, 1500])):
        key, value = f"k.{chance.randrange(keys)}", str(number).ljust(chance.choice(sizes))
        rows.append({"key": key, "value": value})
        if mode is not Mode.PUT:
            rows[-1] |= {"value": chance.choice("ab"), "headers": {"Row": str(number)}}
        if chance.random() < more:
            rows[-1] |= {"value": "", "operation": chance.choice(["DEL", "PURGE"]), "headers": {"Row": str(number)}}
    return rows


@pytest.fixture
def small_steps(monkeypatch):
    """Inputs come some fifty rows at a time, and the position is saved about as often."""
    monkeypatch.setattr("kvctl.kv.bulk.input_file.BLOCK", 2000)
    monkeypatch.setattr("kvctl.kv.bulk.checkpoint.SAVE_ROWS", 60)
    monkeypatch.setattr("kvctl.kv.bulk.checkpoint.SAVE_BYTES", 4000)


@pytest.mark.guarantee("writing-12", "commands-6", "commands-7")
async def test_an_interrupted_load_stores_each_row_once_and_hides_nothing_newer(
    client, seed, steps, unique, tmp_path, small_steps
):
    for number in range(steps(96) // 8):
        chance = random.Random(seed * 1000 + number)
        history, keys = chance.choice([1, 2, 64]), chance.choice([60, 200, 2000])
        mode = chance.choice([Mode.PUT, Mode.PUT, Mode.PUT, Mode.IF_DIFFERENT, Mode.CREATE_ONLY])
        limit = chance.choice([None, None, 200]) if mode is Mode.PUT else None
        rows = _rows(chance, keys, limit, mode)
        print(f"load {number} of seed {seed}: {mode}, history {history}, {keys} keys, {len(rows)} rows, limit {limit}")
        before = {f"k.{at}": chance.choice("ab") for at in range(0, min(keys, 200), 2)} if mode is not Mode.PUT else {}
        file = tmp_path / f"{number}.ndjson"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        most = chance.choice([None, None, 30_000])
        config = BucketConfig(unique(), history=history, storage="memory", max_bytes=most, max_value_size=limit)
        await client.create_bucket(config)
        cuts = chance.choice([0, 0, 0, 0, 6, steps(6)])
        await Loads(client, config, file, history, rows, chance, mode, before, cuts).run()
        assert not checkpoint.noted(checkpoint.path_for(str(file)))
        await client.delete_bucket(config.name)
