"""Kills and concurrent operations at every step: no partial state is seen, nothing acknowledged is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import pytest

from kvctl.errors import ConflictError, NotFoundError
from kvctl.kv.bucket import Bucket
from kvctl.tokens import untoken
from kvctl.versions import commits, garbage, refs
from kvctl.versions.branch import epochs, private_epoch
from kvctl.versions.branch.staging import IdentityMismatch
from kvctl.versions.commits import HasStagedChanges, NothingToCommit
from kvctl.versions.garbage import CollectedGarbage
from kvctl.versions.model import Commit
from kvctl.versions.refs import BranchNotFound, RefNotFound
from kvctl.versions.repository import Repository
from kvctl.versions.store.jetstream_store import BucketStore
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.store.protocol import Store
from kvctl.versions.tree import objects
from kvctl.versions.tree.tree import Strategy
from tests.versions.concurrency.steps import Fuse, StagingRecord, SteppedStore, at_every_step
from tests.versions.conftest import stored
from tests.versions.repos import committed, held, history, reservations, seal, staged, whole

LARGE = b"x" * 70_000
"""Apart, and written before the commit."""
_FORKED = MemoryStore()
"""As `forked` makes it, once for all."""


async def forked(store: Store) -> Repository:
    """main and side changed different keys; `third` has staged changes; one commit is unreachable."""
    if not isinstance(store, MemoryStore):
        return await fork(store)
    if not _FORKED._values:
        await fork(_FORKED)
    store._values = {partition: dict(held) for partition, held in _FORKED._values.items()}
    store._keys = {partition: list(keys) for partition, keys in _FORKED._keys.items()}
    store._sequence = count(10**6)
    return Repository(store)


async def fork(store: Store) -> Repository:
    repo = Repository(store)
    await repo.init()
    await committed(repo, "main", "base", a=b"1", b=b"1", c=LARGE)
    await repo.create_branch("side")
    await repo.create_branch("third")
    await committed(repo, "side", "side", b=b"2", d=LARGE + b"side")
    await committed(repo, "main", "main", a=b"2", e=LARGE + b"main")
    await repo.put_many("third", {"t": LARGE + b"third", "u": b"1"})
    await seal(store, "third")
    await repo.put("third", "v", b"1")
    await repo.create_branch("lost", "side")
    await committed(repo, "lost", "before", w=b"1")
    await committed(repo, "lost", "lost", x=LARGE + b"lost", y=b"1")
    await repo.delete_branch("lost")
    return repo


async def state(repo: Repository) -> dict[str, object]:
    """Return all visible state: heads, tags, contents."""
    branches = await repo.branches()
    contents = {branch: (await held(repo, f"{branch}@"), await staged(repo, branch)) for branch in branches}
    return {"branches": branches, "tags": await repo.tags(), "contents": contents}


async def lost_commit(repo: Repository) -> str:
    """Return the id of the unreachable commit."""
    found = [Commit.decode(entry.value) async for entry in repo.store.scan(b"commits")]
    (identity,) = [commit.id for commit in found if commit.message == "lost"]
    return identity


async def epochs_with_changes(store: Store) -> set[bytes]:
    if isinstance(store, MemoryStore):
        partitions = {name for name, held in store._values.items() if held}
    else:
        assert isinstance(store, BucketStore)
        partitions = {untoken(key.partition(".")[0][1:].encode()) async for key in store.bucket.keys()}
    return {name for name in partitions if name.startswith(b"epoch/")}


async def known_epochs(repo: Repository) -> set[bytes]:
    held = [(await refs.branch(repo.store, branch)).branch for branch in await repo.branches()]
    return {epochs.partition_of(epoch) for one in held for epoch in one.epochs}


async def commit(repo: Repository) -> object:
    return await repo.commit("third", "third")


async def reuse(repo: Repository) -> object:
    """A commit that recreates an existing unreferenced object."""
    await repo.put("main", "again", LARGE + b"lost")
    return await repo.commit("main", "again")


async def merge(repo: Repository) -> object:
    return await repo.merge("side", "main", "together")


async def reset_prefix(repo: Repository) -> object:
    return await repo.reset_prefix("third", "t")


async def reset_hard(repo: Repository) -> object:
    return await repo.reset_hard("main", "side")


async def record(repo: Repository) -> object:
    return await repo.record("main", {"c": LARGE, "only": LARGE + b"only"}, "recorded")


async def create_branch(repo: Repository) -> object:
    return await repo.create_branch("more", "side")


async def reset(repo: Repository) -> object:
    return await repo.reset("third")


async def delete_branch(repo: Repository) -> object:
    return await repo.delete_branch("third")


async def load(repo: Repository) -> object:
    return await repo.put_each("third", {"t": b"2", "u": None, "v": b"2", "w": LARGE})


WRITING = [commit, merge, reset_prefix, reset_hard, record, reset, create_branch, delete_branch, load]


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(private_epoch, "FEW", 2)


@pytest.fixture
async def fresh(request, client, unique):
    """Makes stores of the kind that the test's parameter says."""
    made = count()

    async def make() -> Store:
        if request.param == "memory":
            return MemoryStore()
        bucket = await stored(client, unique(f"STEP{next(made)}"), 1)
        return BucketStore(Bucket(client.api, bucket))

    return make


@pytest.mark.guarantee("versions-9", by="kill")
@pytest.mark.parametrize(
    ("fresh", "operation"),
    [*(("memory", one) for one in WRITING), *(("bucket", one) for one in (commit, merge))],
    indirect=["fresh"],
    ids=lambda one: getattr(one, "__name__", one),
)
async def test_operation_killed_at_any_write_is_done_or_not_and_the_next_completes_it(fresh, operation, monkeypatch):
    monkeypatch.setattr(epochs, "RESERVATION_S", 0)
    done = await forked(MemoryStore())
    await operation(done)
    expected = [(await state(await forked(MemoryStore())))["contents"], (await state(done))["contents"]]

    async def scenario(fuse: Fuse) -> None:
        store = await fresh()
        repo = await forked(store)
        with fuse.killing():
            await operation(Repository(SteppedStore(store, fuse)))
        seen = (await state(repo))["contents"]
        assert seen in expected
        await whole(repo)
        await repo.gc()
        assert (await state(repo))["contents"] == seen
        with suppress(NothingToCommit, ConflictError, NotFoundError):
            await operation(repo)
        assert (await state(repo))["contents"] == expected[1]
        await whole(repo)
        await repo.gc()
        assert await epochs_with_changes(store) <= await known_epochs(repo)

    assert await at_every_step(scenario, kill=True) >= 1


@pytest.mark.guarantee("versions-14", by="kill")
@pytest.mark.parametrize(("fresh", "together"), [("memory", 1), ("bucket", 400)], indirect=["fresh"])
async def test_collection_killed_at_any_write_leaves_all_reachable_data(fresh, together, monkeypatch):
    monkeypatch.setattr(garbage, "DELETIONS_PER_WRITE", together)
    done = await forked(MemoryStore())
    gone = await done.gc()
    assert (gone.commits, gone.objects > 0) == (2, True)

    async def scenario(fuse: Fuse) -> None:
        store = await fresh()
        repo = await forked(store)
        before = await state(repo)
        with fuse.killing():
            await Repository(SteppedStore(store, fuse)).gc()
        assert await state(repo) == before
        await whole(repo)
        with suppress(ValueError):  # it is gone; where it is not, it is whole
            await repo.create_branch("found", await lost_commit(repo))
            await whole(repo)
            await repo.delete_branch("found")
        await repo.gc()
        assert await repo.gc(dry_run=True) == CollectedGarbage()
        assert await reservations(store) == []
        await merge(repo)
        await commit(repo)
        await whole(repo)

    assert await at_every_step(scenario, kill=True) >= 5


async def gc(repo: Repository) -> object:
    return await repo.gc()


async def pick(repo: Repository) -> object:
    return await repo.cherry_pick("main", await lost_commit(repo))


async def tag_lost(repo: Repository) -> object:
    return await repo.create_tag("lost", await lost_commit(repo))


async def merge_lost(repo: Repository) -> object:
    return await repo.merge(await lost_commit(repo), "main", strategy=Strategy.SOURCE_WINS)


async def hard_lost(repo: Repository) -> object:
    return await repo.reset_hard("side", await lost_commit(repo))


LINKING = [pick, tag_lost, merge_lost, hard_lost]


@pytest.mark.guarantee("versions-14", by="race")
@pytest.mark.parametrize("operation", [*WRITING, reuse, *LINKING], ids=lambda one: one.__name__)
@pytest.mark.parametrize("first", [True, False], ids=["gc-meets-it", "it-meets-gc"])
async def test_collection_at_any_step_leaves_other_operations_complete(operation, first):
    """Each runs completely at every step of the other; unreachable commits may be missing, but never incomplete."""

    async def scenario(fuse: Fuse) -> None:
        store = MemoryStore()
        repo = await forked(store)
        outer, inner = (gc, operation) if first else (operation, gc)

        async def between() -> None:
            with suppress(RefNotFound, ValueError):
                await inner(Repository(store))

        fuse.then = between
        try:
            await outer(Repository(SteppedStore(store, fuse)))
        except (RefNotFound, ValueError):
            assert operation in LINKING
        await whole(repo)
        if operation not in LINKING:
            done = await forked(MemoryStore())
            await operation(done)
            if fuse.blown or not first:
                assert (await state(repo))["contents"] == (await state(done))["contents"]

    assert await at_every_step(scenario, kill=False) > 2


@pytest.mark.parametrize(("kept", "prepared"), [(1 << 20, 1), (0, 2)])
async def test_commit_goes_on_after_a_collection_that_deleted_its_objects(kept, prepared, monkeypatch):
    """Else collections that follow each other keep a large commit from its end; what it cannot keep is made again."""
    monkeypatch.setattr(commits, "OBJECTS_PER_WRITE", 0)
    monkeypatch.setattr(objects, "STORED_BYTES", kept)
    store, prepare, collected = MemoryStore(), commits._prepare, []
    repo = await forked(store)
    await repo.put_each("main", {f"k{number}": b"%d" % number for number in range(500)} | {"large": LARGE})

    async def preparing(*arguments: Any) -> Any:
        found = await prepare(*arguments)
        collected.append(0 if collected else (await Repository(store).gc()).objects)
        return found

    monkeypatch.setattr(commits, "_prepare", preparing)
    made = await repo.commit("main", "many")
    assert (len(collected), collected[0] > 2) == (prepared, True)
    await whole(Repository(store))
    assert (await held(Repository(store), made.id))["large"] == LARGE
    assert (await repo.gc()).objects == 0


@pytest.mark.guarantee("versions-3", by="race")
@pytest.mark.parametrize("operation", WRITING[:5], ids=lambda one: one.__name__)
async def test_key_creation_at_any_step_is_kept_or_refused(operation):
    """A key that is created while another operation runs was absent then, and nothing is committed under it."""
    outcomes: set[bool] = set()

    async def scenario(fuse: Fuse) -> None:
        store = MemoryStore()
        repo = await forked(store)
        branch = "third" if operation in (commit, reset_prefix) else "main"
        accepted: set[str] = set()

        async def create() -> None:
            for key in ("d", "only", "t", "zz"):
                with suppress(ConflictError):
                    await Repository(store).write_if(branch, key, b"created", None)
                    accepted.add(key)

        fuse.then = create
        try:
            await operation(Repository(SteppedStore(store, fuse)))
            outcomes.add(True)
        except HasStagedChanges:
            outcomes.add(False)
        found, under = await held(repo, branch), await held(repo, f"{branch}@")
        assert {key for key in accepted if found.get(key) != b"created"} <= {"t"}  # which a reset may drop
        assert {key for key in accepted if under.get(key, b"created") != b"created"} == set()

    assert await at_every_step(scenario, kill=False) > 2
    assert outcomes == ({True} if operation in (commit, reset_prefix) else {True, False})


@pytest.mark.parametrize("operation", [merge, reset_hard, record], ids=lambda one: one.__name__)
async def test_branch_change_during_key_creation_is_seen_or_refused(operation):
    outcomes: set[bool] = set()

    async def scenario(fuse: Fuse) -> None:
        store = MemoryStore()
        repo = await forked(store)
        moved = True

        async def between() -> None:
            nonlocal moved
            try:
                await operation(Repository(store))
            except HasStagedChanges:
                moved = False

        fuse.then = between
        key = "only" if operation is record else "d"
        try:
            await Repository(SteppedStore(store, fuse)).write_if("main", key, b"created", None)
            created = True
        except IdentityMismatch:
            created = False
        outcomes.add(created)
        under = (await held(repo, "main@")).get(key)
        assert (await held(repo))[key] == (b"created" if created else under)
        assert under is None if created else moved

    assert await at_every_step(scenario, kill=False) > 2
    assert outcomes == {True, False}


@pytest.mark.guarantee("versions-5", by="race")
@pytest.mark.parametrize("first", [True, False], ids=["commit-meets-reset", "reset-meets-commit"])
@pytest.mark.parametrize("prefix", ["t", "v", ""])
async def test_concurrent_reset_and_commit_are_serialized(prefix, first):
    """For a sealed key, an unsealed key, all keys: the change is dropped, or committed."""
    outcomes: set[bool] = set()
    content = {"t": LARGE + b"third", "u": b"1", "v": b"1"}

    async def reset_some(repo: Repository) -> object:
        return await (repo.reset_prefix("third", prefix) if prefix else repo.reset("third"))

    async def commit_some(repo: Repository) -> object:
        with suppress(NothingToCommit):
            return await commit(repo)
        return None

    async def scenario(fuse: Fuse) -> None:
        store = MemoryStore()
        repo = await forked(store)
        outer, inner = (commit_some, reset_some) if first else (reset_some, commit_some)
        fuse.then = lambda: inner(Repository(store))
        await outer(Repository(SteppedStore(store, fuse)))
        if fuse.finished:
            await inner(repo)
        under = {key: value for key, value in (await held(repo, "third@")).items() if key in content}
        left = {key: value for key, value in content.items() if not key.startswith(prefix)}
        assert under in (content, left)
        assert await staged(repo, "third") == {}
        outcomes.add(under == content)

    await at_every_step(scenario, kill=False)
    assert outcomes == {True, False}


async def fold(repo: Repository) -> object:
    return await epochs.fold(repo.store, await refs.branch(repo.store, "main"))


async def reset_t(repo: Repository) -> object:
    return await repo.reset_key("main", "t")


@pytest.mark.guarantee("versions-6", by="race")
@pytest.mark.parametrize("beside", [fold, reset_t], ids=lambda one: one.__name__)
async def test_commit_beside_what_moves_staged_changes_takes_those_that_stay(beside):
    """At some steps the epochs as read are empty, although a key is staged in another one."""

    async def scenario(fuse: Fuse) -> None:
        store = MemoryStore()
        repo = Repository(store)
        await repo.init()
        await repo.put_many("main", {"t": b"1", "u": b"1"})
        await seal(store, "main")
        fuse.then = lambda: beside(Repository(store))
        made = await Repository(SteppedStore(store, fuse)).commit("main", "mine")
        assert (await held(repo, made.id))["u"] == b"1"
        assert await staged(repo) == {}

    assert await at_every_step(scenario, kill=False) > 5


@pytest.mark.parametrize("first", [True, False], ids=["commit-meets-deletion", "deletion-meets-commit"])
async def test_branch_deleted_during_a_commit_is_removed_completely(first):
    async def commit_if_there(repo: Repository) -> object:
        with suppress(BranchNotFound, NothingToCommit):
            await repo.put("third", "w", b"1")
            await commit(repo)
            await repo.put("third", "w", b"2")
        return None

    async def scenario(fuse: Fuse) -> None:
        store = MemoryStore()
        repo = await forked(store)
        outer, inner = (commit_if_there, delete_branch) if first else (delete_branch, commit_if_there)
        fuse.then = lambda: inner(Repository(store))
        await outer(Repository(SteppedStore(store, fuse)))
        if fuse.finished:
            await inner(repo)
        assert set(await repo.branches()) == {"main", "side"}
        assert await epochs_with_changes(store) == set()
        await whole(repo)

    assert await at_every_step(scenario, kill=False) > 2


async def test_collection_between_any_two_steps_of_a_reset_removes_nothing_it_keeps():
    """Three parts: some steps of the reset, some of the collection, then the rest of both."""
    for pause in range(1, 8):

        async def scenario(fuse: Fuse, pause: int = pause) -> None:
            store = MemoryStore()
            repo = await forked(store)
            reached, go_on = asyncio.Event(), asyncio.Event()
            collecting: list[asyncio.Task[object]] = []

            async def wait() -> None:
                reached.set()
                await go_on.wait()

            async def collect_in_part() -> None:
                paused = Fuse(pause, kill=False)
                paused.then = wait
                collecting.append(asyncio.create_task(gc(Repository(SteppedStore(store, paused)))))
                waiting = asyncio.create_task(reached.wait())
                await asyncio.wait({collecting[0], waiting}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()

            fuse.then = collect_in_part
            await reset_prefix(Repository(SteppedStore(store, fuse)))
            go_on.set()
            await asyncio.gather(*collecting)
            assert set(await staged(repo, "third")) == {"u", "v"}

        assert await at_every_step(scenario, kill=False) > 5


@asynccontextmanager
async def begun_collection(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Hold a collection that has found the reachable objects; yields the function that lets it end."""
    reach, reached, go_on = garbage._reach, asyncio.Event(), asyncio.Event()

    async def slow_reach(*arguments: Any) -> object:
        found = await reach(*arguments)
        reached.set()
        await go_on.wait()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(garbage, "_reach", slow_reach)
        collecting = asyncio.create_task(gc(Repository(store)))
        await reached.wait()

        async def end_it() -> object:
            go_on.set()
            return await collecting

        yield end_it
        await end_it()


@pytest.mark.guarantee("versions-14", by="race")
@pytest.mark.parametrize("again", [True, False])
async def test_recorded_commit_is_complete_after_a_reset_and_the_end_of_a_collection(again, monkeypatch):
    """The collection began before: its number does not tell that objects of the old head are removed."""
    content = {f"k{number:03}": LARGE if number == 1 else b"1" for number in range(300)}
    wanted = {**content, "new": b"1"}

    async def scenario(fuse: Fuse) -> None:
        store = MemoryStore()
        repo = Repository(store)
        first = await repo.init()
        await repo.record("main", content, "old")
        async with begun_collection(store, monkeypatch) as end_it:

            async def reset_and_collect() -> None:
                await Repository(store).reset_hard("main", first.id)
                await end_it()

            fuse.then = reset_and_collect
            given = wanted if again else iter(sorted(wanted.items()))
            refused = ""
            try:
                await Repository(SteppedStore(store, fuse)).record("main", given, "recorded")
            except ConflictError as error:
                refused = error.message
        await whole(repo)
        assert (again, refused) in ((True, ""), (False, ""), (False, "A reset of branch `main` interfered"))
        assert await held(repo) == ({} if refused else wanted)

    assert await at_every_step(scenario, kill=False) > 5


async def test_commit_reports_no_missing_object_after_its_branch_was_recreated(monkeypatch):
    async def scenario(fuse: Fuse) -> None:
        store = MemoryStore()
        repo = Repository(store)
        await repo.init()
        await repo.create_branch("side")
        await repo.put_many("side", {f"k{number:03}": b"1" for number in range(300)})
        await repo.commit("side", "old")
        await repo.put("side", "k100", b"2")
        async with begun_collection(store, monkeypatch) as end_it:

            async def recreate_and_collect() -> None:
                await Repository(store).delete_branch("side")
                await Repository(store).create_branch("side")
                await end_it()

            fuse.then = recreate_and_collect
            with suppress(BranchNotFound, NothingToCommit):
                await Repository(SteppedStore(store, fuse)).commit("side", "mine")
        await whole(repo)

    assert await at_every_step(scenario, kill=False) > 5


async def test_commit_succeeds_despite_many_concurrent_commits():
    store = MemoryStore()
    repo = await forked(store)
    begun = 0

    class Crowd(Fuse):
        async def step(self, *, writes: bool) -> None:
            nonlocal begun
            if not writes:  # somebody stages, seals, and is killed
                begun += 1
                await Repository(store).put("third", f"more.{begun}", b"1")
                await seal(store, "third")

    made = await Repository(SteppedStore(store, Crowd(0, kill=False))).commit("third", "mine")
    assert begun > 5
    assert {"t", "u", "v"} <= (await held(repo, made.id)).keys()
    assert {key for key in await held(repo, "third") if key.startswith("more.")} == {
        f"more.{number + 1}" for number in range(begun)
    }


async def test_commit_without_changes_during_another_becomes_its_parent():
    """The tree that the other has prepared still fits the epochs, but not the head."""

    async def scenario(fuse: Fuse) -> None:
        store = MemoryStore()
        repo = await forked(store)
        pause = StagingRecord()
        empty = asyncio.create_task(Repository(SteppedStore(store, pause)).commit("side", "empty", allow_empty=True))
        await pause.reached.wait()
        await repo.put("side", "n", b"1")

        async def go_on() -> None:
            pause.go_on.set()
            await empty

        fuse.then = go_on
        await Repository(SteppedStore(store, fuse)).commit("side", "mine")
        await go_on()
        assert set((await history(repo, "side"))[:2]) == {"empty", "mine"}
        assert (await held(repo, "side@"))["n"] == b"1"

    assert await at_every_step(scenario, kill=False) > 5
