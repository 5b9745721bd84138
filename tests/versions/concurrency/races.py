"""Concurrent writers, readers, committers and collectors on one branch, recorded and checked afterwards.

- What was acknowledged is in exactly one commit, or staged; nothing else is, but what was never answered.
- What was acknowledged before a commit began is in it; before a listing began, in that.
- The values of a key that one task writes in order stand in that order in the history.
- No two creations of a key are accepted.
- All keys of a load are there, or none.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from kvctl.errors import ConflictError
from kvctl.versions.branch import epochs
from kvctl.versions.branch.staging import IdentityMismatch
from kvctl.versions.commits import NothingToCommit
from kvctl.versions.repository import Repository
from kvctl.versions.store.protocol import Store
from tests.versions.concurrency.steps import Fuse, Killed, SteppedStore
from tests.versions.repos import held, history_ids, staged, whole

MESSAGE = "recorded"


@dataclass
class Record:
    """Recorded operations."""

    tried: set[str] = field(default_factory=set)
    """Keys of which each was written once."""
    acknowledged: set[str] = field(default_factory=set)
    counted: dict[str, int] = field(default_factory=dict)
    """Keys that one task each counts up, and how far that was acknowledged."""
    created: dict[str, list[int]] = field(default_factory=dict)
    """Keys that many create, and whose creations were accepted."""
    loads: list[set[str]] = field(default_factory=list)
    """Keys that were loaded together, acknowledged or not."""
    commits: int = 0
    abandoned: int = 0
    listings: int = 0
    collections: int = 0


class Race:
    """Tasks that run until the time is up, each on its own session."""

    def __init__(self, open_store: Callable[[], Store], sessions: int, dice: random.Random) -> None:
        self.record = Record()
        self.ended = asyncio.Event()
        self._open = open_store
        self._dice = dice
        self.repos = [Repository(open_store()) for _ in range(sessions)]

    async def run(
        self, seconds: float, *roles: Awaitable[None], enough: Callable[[Record], bool] = lambda _: True
    ) -> None:
        """Run the roles for this time, and until enough was done; then check."""
        await asyncio.gather(*roles, self._end(seconds, enough))
        await check(Repository(self._open()), self.record)

    async def _end(self, seconds: float, enough: Callable[[Record], bool]) -> None:
        await asyncio.sleep(seconds)
        for _ in range(600):
            if enough(self.record):
                break
            await asyncio.sleep(0.1)
        self.ended.set()

    async def writer(self, number: int) -> None:
        """Unique keys, a key that is counted up, and keys that all want to create."""
        repo, record = self._repo(number), self.record
        for count in range(1 << 30):
            if self.ended.is_set():
                return
            key = f"w{number}.{count}"
            record.tried.add(key)
            await repo.put("main", key, key.encode())
            record.acknowledged.add(key)
            await repo.put("main", f"count.{number}", b"%d" % count)
            record.counted[f"count.{number}"] = count
            if count % 8 == 0:
                await self._create(repo, number, count)
            await asyncio.sleep(0)

    async def loader(self, number: int) -> None:
        """Unique keys that are staged together, and a key that is counted up; some loads end at any write."""
        repo, record = self._repo(number), self.record
        for count in range(1 << 30):
            if self.ended.is_set():
                return
            keys = {f"l{number}.{count}.{one}": b"%d" % one for one in range(self._dice.randrange(3, 30))}
            record.tried.update(keys)
            record.loads.append(set(keys))
            if self._dice.random() < 0.3:
                fuse = Fuse(self._dice.randrange(1, 2 * len(keys)), kill=True)
                with suppress(Killed):
                    await Repository(SteppedStore(repo.store, fuse)).put_each("main", dict(keys))
                if fuse.blown:
                    continue
            else:
                await repo.put_each("main", {**keys, f"count.l{number}": b"%d" % count})
                record.counted[f"count.l{number}"] = count
            record.acknowledged.update(keys)
            await asyncio.sleep(0)

    async def committer(self, number: int, every: float) -> None:
        """Commit staged changes; they include all that was acknowledged before."""
        repo, record = self._repo(number), self.record
        while not self.ended.is_set():
            before, counted = set(record.acknowledged), dict(record.counted)
            try:
                made = await repo.commit("main", MESSAGE)
            except NothingToCommit as error:
                if error.taken_by is None:
                    await asyncio.sleep(every)
                    continue
                await self._holds(repo, error.taken_by, before, counted)
            except ConflictError:
                continue
            else:
                record.commits += 1
                await self._holds(repo, made.id, before, counted)
            await asyncio.sleep(every)

    async def abandoner(self, number: int, every: float) -> None:
        """Start commits that end at any write."""
        while not self.ended.is_set():
            fuse = Fuse(self._dice.randrange(1, 8), kill=True)
            repo = Repository(SteppedStore(self._repo(number).store, fuse))
            with suppress(NothingToCommit, ConflictError, Killed):
                await repo.commit("main", MESSAGE)
            self.record.abandoned += fuse.blown
            await asyncio.sleep(every)

    async def reader(self, number: int) -> None:
        """List entries, which include all that was acknowledged before."""
        repo, record = self._repo(number), self.record
        while not self.ended.is_set():
            before, counted = set(record.acknowledged), dict(record.counted)
            with suppress(ConflictError):
                self._check(await held(repo), before, counted)
                record.listings += 1
            await asyncio.sleep(0.01)

    async def collector(self, number: int, every: float) -> None:
        """Collections of garbage."""
        while not self.ended.is_set():
            with suppress(ConflictError):
                await self._repo(number).gc()
                self.record.collections += 1
            await asyncio.sleep(every)

    async def _create(self, repo: Repository, number: int, count: int) -> None:
        key = f"created.{count}"
        self.record.tried.add(key)
        with suppress(IdentityMismatch):
            await repo.write_if("main", key, b"%d" % number, None)
            self.record.acknowledged.add(key)
            self.record.created.setdefault(key, []).append(number)

    async def _holds(self, repo: Repository, identity: str, before: set[str], counted: dict[str, int]) -> None:
        self._check(await held(repo, identity), before, counted)

    def _check(self, found: dict[str, bytes], before: set[str], counted: dict[str, int]) -> None:
        assert before - found.keys() == set()
        assert {key: count for key, count in counted.items() if int(found[key]) < count} == {}
        assert [keys for keys in self.record.loads if not keys.isdisjoint(found) and not keys <= found.keys()] == []

    def _repo(self, number: int) -> Repository:
        return self.repos[number % len(self.repos)]


async def check(repo: Repository, record: Record) -> None:
    """Check a finished record against the history."""
    introduced: list[str] = []
    counted: dict[str, list[int]] = {}
    commits = list(reversed(await history_ids(repo)))
    for before, after in pairwise(commits):
        for change in await repo.diff(before, after):
            assert isinstance(change.after, bytes)
            if change.key.startswith("count."):
                counted.setdefault(change.key, []).append(int(change.after))
            else:
                introduced.append(change.key)
    left = await staged(repo)
    unique = [*introduced, *(key for key in left if not key.startswith("count."))]
    assert len(unique) == len(set(unique)), "a change is in two places"
    assert record.acknowledged <= set(unique) <= record.tried
    now = await held(repo)
    for key, count in record.counted.items():
        assert counted.get(key, []) == sorted(set(counted.get(key, [])))
        assert int(now[key]) >= count
    assert {key: by for key, by in record.created.items() if len(by) > 1} == {}
    assert {key: now[key] for key, by in record.created.items() if int(now[key]) != by[0]} == {}
    await whole(repo)
    await _left_nothing(repo)


async def _left_nothing(repo: Repository) -> None:
    """Check that a commit and a collection leave nothing staged and no garbage."""
    with suppress(NothingToCommit):
        await repo.commit("main", MESSAGE)
    before = await held(repo)
    with pytest.MonkeyPatch.context() as later:
        later.setattr(epochs, "RESERVATION_S", 0)  # killed loads leave their epochs
        await repo.gc()
    found = await repo.gc()
    assert (found.objects, found.commits, found.epochs) == (0, 0, 0)
    assert (await held(repo), await staged(repo)) == (before, {})
    await whole(repo)


def roles(race: Race, *, writers: int, committers: Sequence[float], extra: bool = True) -> list[Awaitable[None]]:
    """Return writers, committers with an interval in seconds, and with `extra` one each of the others."""
    found: list[Awaitable[None]] = [race.writer(number) for number in range(writers)]
    found += [race.committer(number, every) for number, every in enumerate(committers)]
    if extra:
        found += [race.abandoner(1, 0.03), race.reader(2), race.collector(0, 1), race.loader(1), race.loader(2)]
    return found
