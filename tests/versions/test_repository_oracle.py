"""Random operations on a repository beside a model of dictionaries; all contents are compared after each."""

import asyncio
import random
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

import kvctl
from kvctl.errors import KvctlError, NotFoundError
from kvctl.kv.bucket import Bucket
from kvctl.versions.branch import epochs, private_epoch
from kvctl.versions.branch.private_epoch import Load
from kvctl.versions.repository import Repository
from kvctl.versions.store.jetstream_store import BucketStore
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.store.protocol import Store
from kvctl.versions.transfer import checkout
from kvctl.versions.tree.tree import Strategy
from tests.versions.concurrency.steps import Fuse, SteppedStore
from tests.versions.concurrency.test_races import lines
from tests.versions.conftest import stored
from tests.versions.plain_model import Made, Model, Refused
from tests.versions.repos import held, seal, staged

pytestmark = pytest.mark.oracle

ENDS = ["-", "--", "-.-", "0", "=", "A", "Z", "_", "a", "y" * 2048, "z", "zz", "zzz"]
"""Keys at both ends of what keys there are."""
VALUES = [b"", b"1", b"2", b"\x00\xff", b"m" * 4095, b"m" * 4096, b"m" * 4097, b"l" * 70_000]
"""Few, so that equal ones meet; inline, apart, and so large that they go before the commit."""
BRANCHES = ["main", "left", "right", "l/x.y"]
TAGS = ["v1", "v2"]
SHOWN = 25
FEW = 4
"""Number of changes that a load stages without an epoch of its own."""

Real = Callable[[Repository], Awaitable[object]]
Plain = Callable[[Model], Made | None]


@dataclass
class Step:
    """One operation on both."""

    text: str
    real: Real
    plain: Plain
    killed: bool = False
    by_process: bool = False
    """Whether it may be done or not, as one that is killed."""


@dataclass
class Loading:
    """A load on a branch that has not ended, and its rows so far."""

    branch: str
    block: AbstractAsyncContextManager[Load]
    load: Load
    rows: dict[str, bytes | None] = field(default_factory=dict)


@dataclass
class Run:
    """Repository and its model, with the operations applied to them."""

    dice: random.Random
    open: Callable[[], Awaitable[Store]]
    target: Bucket | None = None
    """A live bucket to check out to."""
    kill: Callable[[], None] | None = None
    """Kill the server, and start it again."""
    committer: list[str] | None = None
    """Return the command of a process that commits in an endless loop."""
    model: Model = field(default_factory=Model)
    done: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN))
    repo: Repository = field(init=False)
    appended: int = 0
    queued: deque[Step] = field(default_factory=deque)
    """What is done next."""
    loads: "list[Loading]" = field(default_factory=list)
    """Loads that have begun, beside which all other operations are done."""
    seen: set[str] = field(default_factory=set)
    """Contents that were compared since the last collection."""

    async def begin(self) -> None:
        self.repo = Repository(await self.open())
        first = await self.repo.init()
        self.model.commits[first.id], self.model.parents[first.id] = {}, ()
        self.model.branches["main"], self.model.staged["main"] = first.id, {}

    async def steps(self, count: int, *, every: int = 1) -> None:
        for number in range(count):
            step = await self._choose()
            self.done.append(f"{number}: {step.text}{' (killed)' if step.killed else ''}")
            try:
                await self._carry_out(step)
                if number % every == every - 1:
                    await self.compare()
            except Exception:
                print("\n".join(self.done))
                raise

    # -- one step ----------------------------------------------------------------------------------------------

    async def _carry_out(self, step: Step) -> None:
        after, made, refused = self.model.copy(), None, None
        try:
            made = step.plain(after)
        except Refused as error:
            refused = str(error)
        if step.killed and refused is None:
            await self._carry_out_killed(step, after, made)
            return
        if refused is not None:
            with pytest.raises(KvctlError) as raised:
                await step.real(self.repo)
            assert type(raised.value).__name__ == refused
            return
        await step.real(self.repo)
        await self._adopt(after, made)

    async def _adopt(self, after: Model, made: Made | None) -> None:
        if made is not None:
            head = await self.repo.show(f"{made.branch}@")
            assert head.parents == made.parents
            after.adopt(made, head.id)
        self.model = after

    async def _carry_out_killed(self, step: Step, after: Model, made: Made | None) -> None:
        """Kill the operation at any write: it is done or not."""
        fuse = Fuse(self.dice.randrange(1, 9), kill=True)
        if step.by_process:
            await step.real(self.repo)
            fuse.blown = True
        else:
            with fuse.killing():
                await step.real(Repository(SteppedStore(self.repo.store, fuse)))
        if made is not None and (await self.repo.branches())[made.branch] == self.model.branches[made.branch]:
            assert fuse.blown
            return
        if made is not None or fuse.finished:
            await self._adopt(after, made)
            return
        seen = await seen_of(self.repo)
        assert seen in (self.model.seen(), after.seen())
        if seen == after.seen():
            self.model = after

    # -- comparing ---------------------------------------------------------------------------------------------

    async def compare(self, *, commits: bool | None = None) -> None:
        """Compare all branches and tags, and sometimes all reachable commits, in a fresh session."""
        fresh, model = Repository(self.repo.store), self.model
        assert await fresh.branches() == model.branches
        assert await fresh.tags() == model.tags
        for name in model.branches:
            assert await held(fresh, name) == model.content(name)
            assert await held(fresh, f"{name}@") == model.committed(name)
            assert await staged(fresh, name) == model.changes(name)
        if commits is None:
            commits = self.dice.random() < 0.1
        for commit in model.reachable():
            if commits or commit not in self.seen:
                assert await held(fresh, commit) == model.commits[commit]
        self.seen |= model.reachable()

    # -- choosing ----------------------------------------------------------------------------------------------

    async def _choose(self) -> Step:
        if self.queued:
            return self.queued.popleft()
        choice = self.dice.choices([one for one, _ in _WEIGHTS], [weight for _, weight in _WEIGHTS])[0]
        step: Step = await getattr(self, f"_{choice}")()
        whole = choice in _MAY_BE_KILLED and step.text.startswith(choice)  # not another one in its place
        step.killed = step.by_process or (whole and self.dice.random() < 0.15)
        return step

    def _branch(self) -> str:
        return self.dice.choice(sorted(self.model.branches))

    def _commit_id(self) -> str:
        return self.dice.choice(sorted(self.model.reachable()))

    def _key(self, branch: str) -> str:
        known = sorted(self.model.content(branch)) or ["a"]
        kind = self.dice.randrange(6)
        if kind == 0:
            return self.dice.choice(ENDS)
        if kind == 1:
            return self.dice.choice([known[0], known[-1]])
        return self.dice.choice(known) if kind < 4 else f"k{self.dice.randrange(1000):03}"

    def _value(self) -> bytes | None:
        return self.dice.choice([None, *VALUES[:4], *VALUES])

    async def _put(self) -> Step:
        branch = self._branch()
        changes = {self._key(branch): self._value() for _ in range(self.dice.choice([1, 1, 2, 8]))}
        return self._writes(branch, changes)

    async def _append(self) -> Step:
        """Put keys in rising order, after or before all existing ones."""
        branch, count = self._branch(), self.dice.choice([1, 1, 2, 30, 90, 300])
        first, self.appended = self.appended, self.appended + count
        where = self.dice.choice(["n{:06}", "zzz.{:06}", "-{:06}"])
        numbers = range(first, first + count)
        if where.startswith("-") and self.dice.random() < 0.5:
            numbers = range(999_999 - first - count, 999_999 - first)
        changes: dict[str, bytes | None] = {where.format(number): self.dice.choice(VALUES[:4]) for number in numbers}
        return Step(
            f"append {branch} {count} from {min(changes)}",
            lambda repo: repo.put_each(branch, changes),
            lambda model: model.put(branch, changes),
        )

    async def _series(self) -> Step:
        """Commit only keys in rising order, such as times and sequence numbers, on empty or existing content."""
        branch, size = self._branch(), self.dice.choice([1, 1, 1, 3, 40])
        if self.dice.random() < 0.7:
            self.queued += [self._writes(branch, dict.fromkeys(self.model.content(branch))), self._commits(branch)]
        for _ in range(self.dice.choice([10, 90]) // size // (1 if self.target is None else 5) + 1):
            first, self.appended = self.appended, self.appended + size
            changes: dict[str, bytes | None] = {f"zzz.{number:06}": b"1" for number in range(first, first + size)}
            self.queued += [self._writes(branch, changes), self._commits(branch)]
        return self._commits(branch)

    def _writes(self, branch: str, changes: dict[str, bytes | None]) -> Step:
        return Step(
            f"put {branch} {_short(changes)}",
            lambda repo: (repo.put_many if 0 < len(changes) < 900 else repo.put_each)(branch, changes),
            lambda model: model.put(branch, changes),
        )

    def _commits(self, branch: str, *, empty: bool = False) -> Step:
        return Step(
            f"commit {branch}{' --allow-empty' if empty else ''}",
            lambda repo: repo.commit(branch, "m", allow_empty=empty),
            lambda model: model.commit(branch, allow_empty=empty),
        )

    async def _shrink(self) -> Step:
        """Delete a run of neighbours, sometimes all."""
        branch = self._branch()
        keys = sorted(self.model.content(branch), key=str.encode)
        start = self.dice.choice([0, self.dice.randrange(len(keys) + 1)])
        end = self.dice.choice([len(keys), start + self.dice.choice([1, 10, 200])])
        changes: dict[str, bytes | None] = dict.fromkeys(keys[start:end])
        return Step(
            f"shrink {branch} by {len(changes)} from {start} of {len(keys)}",
            lambda repo: repo.put_each(branch, changes),
            lambda model: model.put(branch, changes),
        )

    async def _load(self) -> Step:
        """Add rows to a load that has begun, begin one, or end one, which puts its rows on top of all others."""
        if len(self.loads) < 2 and self.dice.random() < 0.4:
            branch, repo = self._branch(), self.repo
            block = private_epoch.load(repo.store, repo.writer, branch)
            self.loads.append(Loading(branch, block, await block.__aenter__()))
        if not self.loads:
            return await self._put()
        loading = self.dice.choice(self.loads)
        branch, rows = loading.branch, loading.rows
        if rows and self.dice.random() < 0.4:
            self.loads.remove(loading)

            def plain(model: Model) -> None:
                if branch not in model.branches:
                    raise Refused("BranchNotFound")
                model.put(branch, rows)

            return Step(
                f"load {branch} ends: {_short(rows)}", lambda _: loading.block.__aexit__(None, None, None), plain
            )
        known = branch if branch in self.model.branches else self._branch()
        changes = {self._key(known): self._value() for _ in range(self.dice.choice([1, 3, 20]))}

        async def add(_: Repository) -> None:
            await loading.load.add({key.encode(): value for key, value in changes.items()})
            rows.update(changes)

        def unchanged(model: Model) -> None:
            if branch not in model.branches and loading.load.epoch is None and len(rows | changes) > FEW:
                self.loads.remove(loading)
                raise Refused("BranchNotFound")

        return Step(f"load {branch} goes on: {_short(changes)}", add, unchanged)

    async def _load_all(self) -> Step:
        branch = self._branch()
        changes = {self._key(branch): self._value() for _ in range(self.dice.choice([5, 20]))}
        return Step(
            f"load_all {branch} {_short(changes)}",
            lambda repo: repo.put_each(branch, changes),
            lambda model: model.put(branch, changes),
        )

    async def _write_if(self) -> Step:
        branch = self._branch()
        key, value = self._key(branch), self._value()
        (entry,) = await self.repo.get(branch, key)
        identity = entry.identity if entry and self.dice.random() < 0.7 else self.dice.choice([None, "0" * 40])
        right = identity == (entry.identity if entry else None)

        def plain(model: Model) -> None:
            if not right:
                raise Refused("IdentityMismatch")
            model.put(branch, {key: value})

        return Step(
            f"write_if {branch} {_short({key: value})} {right}",
            lambda repo: repo.write_if(branch, key, value, identity),
            plain,
        )

    async def _seal(self) -> Step:
        """Leave the state of a commit killed after its first write."""
        branch = self._branch()
        return Step(f"seal {branch}", lambda repo: seal(repo.store, branch), lambda _: None)

    async def _reset(self) -> Step:
        branch = self._branch()
        return Step(f"reset {branch}", lambda repo: repo.reset(branch), lambda model: model.reset(branch))

    async def _reset_key(self) -> Step:
        branch = self._branch()
        key = self.dice.choice([self._key(branch), *sorted(self.model.staged[branch])[:5]])
        return Step(
            f"reset_key {branch} {key[:20]}",
            lambda repo: repo.reset_key(branch, key),
            lambda model: model.reset(branch, [key]),
        )

    async def _reset_prefix(self) -> Step:
        branch = self._branch()
        prefix = self.dice.choice(["k", "n", "zz", "n0000", "-", self._key(branch)[:2]])
        keys = [key for key in self.model.staged[branch] if key.startswith(prefix)]
        return Step(
            f"reset_prefix {branch} {prefix}",
            lambda repo: repo.reset_prefix(branch, prefix),
            lambda model: model.reset(branch, keys),
        )

    async def _reset_hard(self) -> Step:
        branch, commit = self._branch(), self._commit_id()
        return Step(
            f"reset_hard {branch} {commit[:8]}",
            lambda repo: repo.reset_hard(branch, commit),
            lambda model: model.reset_hard(branch, commit),
        )

    async def _commit(self) -> Step:
        return self._commits(self._branch(), empty=self.dice.random() < 0.1)

    async def _record(self) -> Step:
        branch, other = self._branch(), self._branch()
        content = {**self.model.content(other), self._key(other): b"recorded"}
        return Step(
            f"record {branch} {len(content)} keys",
            lambda repo: repo.record(branch, content, "m"),
            lambda model: model.record(branch, content),
        )

    async def _merge(self) -> Step:
        dest = self._branch()
        source = self.dice.choice([f"{self._branch()}@", self._commit_id(), *sorted(self.model.tags)])
        strategy, squash = self.dice.choice([None, *Strategy]), self.dice.random() < 0.2
        theirs = (await self.repo.show(source)).id
        bases = await self.repo.merge_bases(source, f"{dest}@")
        assert set(bases) == self.model.merge_bases(theirs, self.model.branches[dest])
        return Step(
            f"merge {source[:8]} into {dest} {strategy} squash={squash}",
            lambda repo: repo.merge(source, dest, strategy=strategy, squash=squash),
            lambda model: model.merge(dest, theirs, strategy, squash=squash),
        )

    async def _revert(self) -> Step:
        branch, commit = self._branch(), self._commit_id()
        if not self.model.parents[commit]:
            return await self._put()
        return Step(
            f"revert {branch} {commit[:8]}",
            lambda repo: repo.revert(branch, commit, parent=1),
            lambda model: model.revert(branch, commit),
        )

    async def _pick(self) -> Step:
        branch, commit = self._branch(), self._commit_id()
        if not self.model.parents[commit]:
            return await self._append()
        return Step(
            f"pick {branch} {commit[:8]}",
            lambda repo: repo.cherry_pick(branch, commit, parent=1),
            lambda model: model.pick(branch, commit),
        )

    async def _create_branch(self) -> Step:
        name, commit = self.dice.choice(BRANCHES), self._commit_id()
        return Step(
            f"create_branch {name} {commit[:8]}",
            lambda repo: repo.create_branch(name, commit),
            lambda model: model.create_branch(name, commit),
        )

    async def _delete_branch(self) -> Step:
        if len(self.model.branches) == 1:
            return await self._create_branch()
        name = self._branch()
        return Step(
            f"delete_branch {name}", lambda repo: repo.delete_branch(name), lambda model: model.delete_branch(name)
        )

    async def _create_tag(self) -> Step:
        name, commit = self.dice.choice(TAGS), self._commit_id()
        return Step(
            f"create_tag {name} {commit[:8]}",
            lambda repo: repo.create_tag(name, commit),
            lambda model: model.create_tag(name, commit),
        )

    async def _delete_tag(self) -> Step:
        name = self.dice.choice(TAGS)
        return Step(f"delete_tag {name}", lambda repo: repo.delete_tag(name), lambda model: model.delete_tag(name))

    async def _gc(self) -> Step:
        async def real(repo: Repository) -> None:
            await repo.gc()
            self.seen.clear()

        return Step("gc", real, lambda model: model.collect())

    async def _gc_whole(self) -> Step:
        """Collect, and check that no garbage and no unreachable commit is left."""
        gone = self.model.commits.keys() - self.model.reachable()

        async def real(repo: Repository) -> None:
            await repo.gc()
            self.seen.clear()
            found = await repo.gc(dry_run=True)
            assert (found.objects, found.commits, found.epochs) == (0, 0, 0)
            for commit in gone:
                with suppress(NotFoundError):
                    await Repository(repo.store).show(commit)
                    raise AssertionError(f"{commit} is there")

        return Step("gc_whole", real, lambda model: model.collect())

    async def _checkout(self) -> Step:
        branch, target = self._branch(), self.target
        if target is None:
            return await self._reopen()

        async def real(repo: Repository) -> None:
            rollout = await checkout.plan(repo, f"{branch}@", target)
            done = await checkout.apply(rollout, target)
            assert done.changed_meanwhile == []
            assert {entry.key: entry.value async for entry in target.entries()} == self.model.committed(branch)

        return Step(f"checkout {branch}", real, lambda _: None)

    async def _kill_server(self) -> Step:
        if self.kill is None:
            return await self._reopen()
        kill = self.kill

        async def real(repo: Repository) -> None:
            kill()
            await repo.branches()  # reads wait for it; the outcome of a write may be unknown

        return Step("kill the server", real, lambda _: None)

    async def _commit_by_a_process(self) -> Step:
        """Run a process that commits to main, and kill it at some write."""
        if self.committer is None or "main" not in self.model.branches:
            return await self._commit()
        committer = self.committer

        async def real(_: Repository) -> None:
            process = await asyncio.create_subprocess_exec(*committer, stdout=asyncio.subprocess.PIPE)
            with suppress(TimeoutError):
                await asyncio.wait_for(lines(process.stdout, self.dice.randrange(1, 5)), 2)
            process.kill()
            await process.wait()

        def plain(model: Model) -> Made | None:
            return model.commit("main") if model.changes("main") else None

        return Step("commit main by a process", real, plain, by_process=True)

    async def _reopen(self) -> Step:
        async def real(_: Repository) -> None:
            self.repo = Repository(await self.open())

        return Step("reopen", real, lambda _: None)


_WEIGHTS = [
    ("put", 12),
    ("append", 10),
    ("series", 2),
    ("shrink", 3),
    ("write_if", 4),
    ("load", 10),
    ("load_all", 2),
    ("seal", 3),
    ("reset", 2),
    ("reset_key", 4),
    ("reset_prefix", 4),
    ("reset_hard", 2),
    ("commit", 16),
    ("record", 2),
    ("merge", 8),
    ("revert", 3),
    ("pick", 3),
    ("create_branch", 4),
    ("delete_branch", 2),
    ("create_tag", 2),
    ("delete_tag", 1),
    ("gc", 2),
    ("gc_whole", 1),
    ("checkout", 2),
    ("reopen", 2),
    ("kill_server", 1),
    ("commit_by_a_process", 1),
]
_MAY_BE_KILLED = {
    *"""
    commit record merge revert pick reset reset_key reset_prefix reset_hard create_branch delete_branch
    create_tag gc load_all
""".split()
}


async def seen_of(repo: Repository) -> dict[str, Any]:
    branches = {name: (await held(repo, f"{name}@"), await staged(repo, name)) for name in await repo.branches()}
    return {"branches": branches, "tags": {name: await held(repo, name) for name in await repo.tags()}}


def _short(changes: dict[str, Any]) -> str:
    shown = {key[:12]: None if value is None else f"{value[:2]!r}x{len(value)}" for key, value in changes.items()}
    return str(shown)[:120]


@pytest.fixture(autouse=True)
def quick_folds(monkeypatch):
    monkeypatch.setattr(epochs, "MAX_SEALED", 3)
    monkeypatch.setattr(private_epoch, "FEW", FEW)


async def test_repository_in_memory_equals_the_model(seed, steps):
    store = MemoryStore()

    async def reopened() -> Store:
        return store

    run = Run(random.Random(seed), reopened)
    await run.begin()
    await run.steps(steps(350))
    await run.compare(commits=True)


async def test_repository_on_jetstream_equals_the_model(own_server, seed, steps):
    """The server, and a process that commits, are killed from time to time."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(kvctl.connect(own_server.url))
        name = await stored(client, "O", 1)
        target = await client.create_bucket("LIVE")

        async def reopened() -> Store:
            another = await stack.enter_async_context(kvctl.connect(own_server.url))
            return BucketStore(Bucket(another.api, name))

        def kill() -> None:
            own_server.kill()
            own_server.start()

        committer = [sys.executable, "-m", "tests.versions.concurrency.committer", own_server.url, name]
        run = Run(random.Random(seed), reopened, target, kill, committer)
        await run.begin()
        await run.steps(steps(90), every=3)
        await run.compare(commits=True)
