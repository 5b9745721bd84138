"""Log, the commits that touched a key, the last commit of each key, and the history of keys."""

import random
from collections import Counter
from collections.abc import Iterable

import pytest

import kvctl
from kvctl.errors import NotFoundError, UsageError
from kvctl.versions import history as history_module
from kvctl.versions import refs
from kvctl.versions.ancestry import ancestors, merge_bases
from kvctl.versions.model import Commit
from kvctl.versions.refs import COMMITS, CommitReader, RefNotFound
from kvctl.versions.repository import Repository
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.tree.objects import Objects
from kvctl.versions.tree.tree import EMPTY_ROOT
from tests.versions.concurrency.steps import Fuse, SteppedStore, at_every_step
from tests.versions.repos import committed, history, seal


async def annotated(repo: Repository, ref: str = "main", *pattern: str) -> dict[str, str | None]:
    return {one.key: one.commit and one.commit.message for one in await repo.annotate(ref, *pattern)}


@pytest.fixture
async def forked(repo):
    """main: base, left, merge, after; side: right."""
    await committed(repo, "main", "base", a=b"1", b=b"1", both=b"1", gone=b"1")
    await repo.create_branch("side")
    await committed(repo, "side", "right", b=b"2", d=b"1", both=b"2")
    await committed(repo, "main", "left", a=b"2", gone=None, both=b"2")
    await repo.merge("side", "main", "merge")
    await committed(repo, "main", "after", a=b"3", e=b"1")
    return repo


async def test_log_goes_from_the_newest_to_the_first_commit(forked):
    names = ["after", "merge", "left", "right", "base", "Repository created"]
    assert await history(forked) == names
    assert [one.message async for _, one in forked.log("main", first_parent=True)] == [
        "after",
        "merge",
        "left",
        "base",
        "Repository created",
    ]
    assert [one.message async for _, one in forked.log("main", limit=2)] == names[:2]
    assert [one.message async for _, one in forked.log("main", limit=0)] == []
    for identity, commit in [item async for item in forked.log("side")]:
        assert identity == commit.id
    with pytest.raises(NotFoundError):
        await anext(forked.log("nope"))


async def test_log_of_two_branches_is_ordered_by_time(repo):
    await committed(repo, "main", "base", a=b"1")
    await repo.create_branch("side")
    for number in range(3):
        await committed(repo, "main", f"main {number}", a=b"%d" % number)
    await committed(repo, "side", "side", b=b"1")
    await repo.merge("side", "main", "merge")
    assert await history(repo) == ["merge", "side", "main 2", "main 1", "main 0", "base", "Repository created"]


async def test_children_come_before_parents_whatever_the_clocks_say():
    dice = random.Random(5)
    store = MemoryStore()
    repo = Repository(store)
    made = [(await repo.init()).id]
    for number in range(60):
        parents = tuple(dice.sample(made[-4:], min(len(made), dice.choice([1, 1, 2]))))
        generation = 1 + max([(await repo.show(parent)).generation for parent in parents])
        commit = Commit(
            root=(await repo.show("main")).root,
            parents=parents,
            message=str(number),
            author="",
            created_ns=dice.randrange(10**9),
            generation=generation,
        )
        await store.set(COMMITS, bytes.fromhex(commit.id), commit.encode())
        made.append(commit.id)
    await repo.create_tag("last", made[-1])
    seen: list[str] = []
    async for identity, commit in repo.log("last"):
        assert not set(commit.parents) & set(seen)
        seen.append(identity)
    assert len(seen) == len(set(seen)) > 20
    assert made[0] in seen


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a", ["after", "left", "base"]),
        ("b", ["right", "base"]),
        ("both", ["left", "right", "base"]),
        ("gone", ["left", "base"]),
        ("none", []),
    ],
)
async def test_log_of_a_key_is_the_commits_that_touched_it(forked, key, expected):
    assert [one.message async for _, one in forked.log("main", key=key)] == expected
    assert [one.message async for _, one in forked.log("main", key=key, limit=1)] == expected[:1]


async def test_merge_touches_its_changes_along_first_parents(forked):
    found = [one.message async for _, one in forked.log("main", key="b", first_parent=True)]
    assert found == ["merge", "base"]


async def test_annotate_names_the_last_commit_of_each_key(forked):
    assert await annotated(forked) == {"a": "after", "b": "right", "both": "left", "d": "right", "e": "after"}
    assert await annotated(forked, "main~1", "a") == {"a": "left"}
    assert await annotated(forked, "main~3") == {"a": "base", "b": "base", "both": "base", "gone": "base"}
    await forked.put_many("main", {"a": b"9", "b": b"2", "d": None, "new": b"1"})
    assert await annotated(forked) == {"a": None, "b": "right", "both": "left", "e": "after", "new": None}
    assert await annotated(forked, "main@") == {"a": "after", "b": "right", "both": "left", "d": "right", "e": "after"}
    with pytest.raises(UsageError):
        await forked.annotate("main", "a..b")


class CountingObjects(Objects):
    """Objects that counts how many it is asked for."""

    asked = 0

    async def read(self, wanted: Iterable[bytes], *, keep: bool = True) -> dict[bytes, bytes]:
        identities = list(wanted)
        self.asked += len(identities)
        return await super().read(identities, keep=keep)


async def test_annotate_of_many_keys_reads_differences(repo, monkeypatch):
    for some in (range(700), range(700, 1400)):
        await repo.put_many("main", {f"k.{number}": b"1" for number in some})
    await repo.commit("main", "many")
    await committed(repo, "main", "one", k_7=b"2")
    found = await annotated(repo)
    assert found.pop("k.7") == "one"
    assert set(found.values()) == {"many"}
    assert await annotated(repo, "main", "k.7") == {"k.7": "one"}
    asked = []
    for lookups in (history_module.MAX_LOOKUPS, 10_000):
        monkeypatch.setattr(history_module, "MAX_LOOKUPS", lookups)
        repo.objects = CountingObjects(repo.store)
        await annotated(repo)
        asked.append(repo.objects.asked)
    assert asked[0] < asked[1]


@pytest.mark.parametrize(
    ("name", "valid"), [("a" * 128, True), ("a" * 129, False), ("a..b", False), ("x/y.z-_9", True)]
)
def test_branch_name_is_checked_for_form_and_length(name, valid):
    for check in (refs.check_name, refs.check_new_name):
        if valid:
            assert check(name) == name
        else:
            with pytest.raises(UsageError):
                check(name)


@pytest.mark.parametrize(
    ("digits", "number"),
    [("", 1), ("0", 0), ("000", 0), ("1", 1), ("010", 10), ("9" * 18, int("9" * 18)), ("9" * 40, int("9" * 18))],
)
def test_number_of_a_step_is_read_up_to_18_digits(digits, number):
    assert refs._count(digits) == number


async def plain(store: MemoryStore, message: str, *parents: Commit, at: int = 0) -> Commit:
    """Create an unreachable commit with an empty tree."""
    generation = 1 + max([parent.generation for parent in parents], default=0)
    made = Commit(
        root=EMPTY_ROOT.hex(),
        parents=tuple(parent.id for parent in parents),
        message=message,
        author="",
        created_ns=at,
        generation=generation,
    )
    await store.set(COMMITS, bytes.fromhex(made.id), made.encode())
    return made


async def test_prefix_of_an_id_has_4_digits_and_means_one_commit():
    store = MemoryStore()
    made = [await plain(store, str(number)) for number in range(700)]
    ids = sorted(commit.id for commit in made)
    shared = {length: Counter(identity[:length] for identity in ids) for length in (3, 4, 5, 6)}
    for length in (4, 5, 6):
        for text, count in shared[length].items():
            if count == 1:
                assert (await refs.resolve(store, text)).commit == next(one for one in ids if one.startswith(text))
            else:
                with pytest.raises(UsageError, match="is ambiguous"):
                    await refs.resolve(store, text)
    assert set(shared[4].values()) == {1, 2}  # an expression that means two is refused, not only one that means more
    single = next(text for text, count in shared[3].items() if count == 1)
    for text in (single, "0000f" if not ids[0].startswith("0000f") else "ffff0"):
        with pytest.raises(RefNotFound):
            await refs.resolve(store, text)


async def test_merge_bases_of_crossing_histories_are_the_best_common_commits_newest_first():
    store = MemoryStore()
    root = await plain(store, "root")
    left, right = await plain(store, "left", root, at=1), await plain(store, "right", root, at=2)
    one, other = await plain(store, "one", left, right, at=3), await plain(store, "other", right, left, at=4)
    late = await plain(store, "late", root, at=9)
    deep = await plain(store, "deep", await plain(store, "below", late, at=10), left, at=11)
    stranger = await plain(store, "stranger")
    for first, second, bases in (
        (one, other, [right, left]),
        (one, one, [one]),
        (one, left, [left]),
        (root, one, [root]),
        (late, one, [root]),
        (deep, one, [left]),  # the root is common, too, but older than left
        (one, stranger, []),
    ):
        expected = [base.id for base in bases]
        for sides in (([first.id], [second.id]), ([second.id], [first.id])):
            assert await merge_bases(CommitReader(store), *sides) == expected
    assert await merge_bases(CommitReader(store), [left.id, right.id], [late.id]) == [root.id]
    assert await merge_bases(CommitReader(store), [late.id, left.id], [other.id]) == [left.id]


class Counting(MemoryStore):
    """Counts reads: of one commit or object, and of lists."""

    reads = lists = 0

    async def get_many(self, places, *, lasting=False):
        self.reads += not lasting
        return await super().get_many(places, lasting=lasting)

    async def pages(self, *args, **settings):
        self.lists += 1
        async for page in super().pages(*args, **settings):
            yield page

    def counted(self) -> tuple[int, int]:
        found, self.reads, self.lists = (self.reads, self.lists), 0, 0
        return found


async def chain(store: MemoryStore, start: Commit, length: int, at: int) -> Commit:
    for number in range(length):
        start = await plain(store, "m", start, at=at + number)
    return start


async def test_walks_read_each_commit_once_and_all_together_when_they_are_far(monkeypatch):
    """Merge bases, logs and steps: `merge` reads no more where there is one base."""
    store = Counting()
    root = await plain(store, "root")
    base = await chain(store, root, 20, 1)
    one, other = await chain(store, base, 50, 100), await chain(store, base, 20, 200)
    store.counted()
    assert await merge_bases(CommitReader(store), [one.id], [other.id]) == [base.id]
    assert store.counted() == (71, 0)
    assert len([None async for _ in ancestors(CommitReader(store), one.id)]) == 71
    assert store.counted() == (71, 0)
    assert (await refs.resolve(store, f"{one.id}~60")).commit
    assert store.counted() == (61, 0)
    monkeypatch.setattr(refs, "LISTED_AFTER_S", -1)
    assert await merge_bases(CommitReader(store), [one.id], [other.id]) == [base.id]
    assert len([None async for _ in ancestors(CommitReader(store), one.id)]) == 71
    assert store.counted() == (0, 2)
    monkeypatch.setattr(refs, "LISTED_BYTES", 1000)
    assert len([None async for _ in ancestors(CommitReader(store), one.id)]) == 71
    assert 60 < store.counted()[0] < 71


async def test_collection_and_log_of_a_key_read_far_commits_together(monkeypatch):
    monkeypatch.setattr(refs, "LISTED_AFTER_S", -1)
    store = Counting()
    repo = Repository(store)
    await repo.init()
    for number in range(30):
        await committed(repo, "main", str(number), a=b"%d" % number)
    store.counted()
    await Repository(store).gc(dry_run=True)
    assert store.counted()[0] < 5
    assert len([None async for _ in Repository(store).log("main", key="a")]) == 30
    assert store.counted()[0] < 5


@pytest.fixture
async def stored(client, unique):
    """A repository on a server."""
    return await kvctl.Repositories(client).create(unique("R"))


async def begun() -> Repository:
    made = Repository(MemoryStore(), author="ann")
    await made.init()
    return made


async def versions(repo: Repository, ref: str = "main", *filters: str) -> list[tuple[str, bytes | None, str | None]]:
    return [
        (one.key, one.value, one.commit.message if one.commit else None)
        async for batch in repo.key_history(ref, filters)
        for one in batch
    ]


class TestHistory:
    async def test_history_lists_changes_by_commit_oldest_first_and_staged_ones_last(self, repo):
        await committed(repo, "main", "one", a=b"1", b=b"1")
        await committed(repo, "main", "two", a=b"2", b=None)
        await repo.put("main", "c", b"3")
        assert await versions(repo) == [
            ("a", b"1", "one"),
            ("b", b"1", "one"),
            ("a", b"2", "two"),
            ("b", None, "two"),
            ("c", b"3", None),
        ]
        assert await versions(repo, "main@", "b") == [("b", b"1", "one"), ("b", None, "two")]
        assert await versions(repo, "main~1", "a") == [("a", b"1", "one")]

    @pytest.mark.guarantee("versions-4")
    async def test_merge_counts_for_keys_that_differ_from_all_its_parents(self, repo):
        await committed(repo, "main", "base", a=b"0", b=b"0")
        await repo.create_branch("try")
        await committed(repo, "main", "left", a=b"1")
        await committed(repo, "try", "right", b=b"1")
        await repo.merge("try", "main", "merge")
        assert [message for *_, message in await versions(repo, "main", "a", "b")] == ["base", "base", "left", "right"]

    async def test_concurrent_commit_at_any_step_hides_no_change(self):
        """Each change is listed as staged or by its commit; it is never missing."""

        async def scenario(fuse: Fuse) -> None:
            repo = await begun()
            await repo.put("main", "a", b"1")
            fuse.then = lambda: repo.commit("main", "meanwhile")
            assert [key for key, *_ in await versions(Repository(SteppedStore(repo.store, fuse)))] == ["a"]

        assert await at_every_step(scenario, kill=False) > 2

    async def test_large_values_are_complete(self, repo):
        await committed(repo, "main", "one", a=b"x" * 100_000)
        assert await versions(repo) == [("a", b"x" * 100_000, "one")]


class TestRevisions:
    async def test_revisions_are_the_streams_and_increase(self, stored):
        first = await stored.put("main", "a", b"1")
        second = await stored.put("main", "a", b"1")
        assert second > first > 10**15
        assert [one.revision for one in await stored.entries("main")] == [second]

    async def test_only_staged_values_have_a_revision_that_of_their_newest_change(self, repo):
        await committed(repo, "main", "one", c=b"1")
        await repo.put("main", "a", b"1")
        made = {"b": await repo.put("main", "b", b"1")}
        await seal(repo.store, "main")
        made |= await repo.put_many("main", {"a": b"2", "d": None})
        staged = {key: made[key] for key in ("a", "b")}
        found = await repo.get("main", "a", "b", "c")
        assert {one.key: one.revision for one in found if one} == {**staged, "c": None}
        assert {one.key: one.revision for one in await repo.entries("main")} == {**staged, "c": None}
        assert {one.key: one.revision for one in (await repo.status("main")).changes} == staged
        listed = [one async for batch in repo.key_history("main") for one in batch]
        assert {one.key: one.revision for one in listed} == {**staged, "c": None}
