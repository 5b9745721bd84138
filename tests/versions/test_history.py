"""Log, the commits that touched a key, and who changed each key last."""

import random

import pytest

from kvctl.errors import NotFoundError, UsageError
from kvctl.versions.memory_store import MemoryStore
from kvctl.versions.model import Commit
from kvctl.versions.refs import COMMITS
from kvctl.versions.repository import Repository
from tests.versions.repos import committed, history


async def annotated(repo: Repository, ref: str = "main", *pattern: str) -> dict[str, str | None]:
    return {one.key: one.commit and one.commit.message for one in await repo.annotate(ref, *pattern)}


@pytest.fixture
async def forked(repo: Repository) -> Repository:
    """main: base, left, merge, after; side: right."""
    await committed(repo, "main", "base", a=b"1", b=b"1", both=b"1", gone=b"1")
    await repo.create_branch("side")
    await committed(repo, "side", "right", b=b"2", d=b"1", both=b"2")
    await committed(repo, "main", "left", a=b"2", gone=None, both=b"2")
    await repo.merge("side", "main", "merge")
    await committed(repo, "main", "after", a=b"3", e=b"1")
    return repo


async def test_log_goes_from_the_newest_to_the_first_whole_or_in_part(forked: Repository) -> None:
    names = ["after", "merge", "left", "right", "base", "Repository created"]
    assert await history(forked) == names
    assert [one.message async for _, one in forked.log("main", first_parent=True)] == [
        "after", "merge", "left", "base", "Repository created",
    ]  # fmt: skip
    assert [one.message async for _, one in forked.log("main", limit=2)] == names[:2]
    assert [one.message async for _, one in forked.log("main", limit=0)] == []
    for identity, commit in [item async for item in forked.log("side")]:
        assert identity == commit.id
    with pytest.raises(NotFoundError):
        await anext(forked.log("nope"))


async def test_commits_of_two_branches_come_by_their_time(repo: Repository) -> None:
    await committed(repo, "main", "base", a=b"1")
    await repo.create_branch("side")
    for number in range(3):
        await committed(repo, "main", f"main {number}", a=b"%d" % number)
    await committed(repo, "side", "side", b=b"1")
    await repo.merge("side", "main", "merge")
    assert await history(repo) == ["merge", "side", "main 2", "main 1", "main 0", "base", "Repository created"]


async def test_children_come_before_parents_whatever_the_clocks_say() -> None:
    dice = random.Random(5)
    store = MemoryStore()
    repo = Repository(store)
    made = [(await repo.init()).id]
    for number in range(60):
        parents = tuple(dice.sample(made[-4:], min(len(made), dice.choice([1, 1, 2]))))
        generation = 1 + max([(await repo.show(parent)).generation for parent in parents])
        commit = Commit(
            root=(await repo.show("main")).root, parents=parents, message=str(number), author="",
            created_ns=dice.randrange(10**9), generation=generation,
        )  # fmt: skip
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
async def test_log_of_a_key_is_the_commits_that_touched_it(forked: Repository, key: str, expected: list[str]) -> None:
    assert [one.message async for _, one in forked.log("main", key=key)] == expected
    assert [one.message async for _, one in forked.log("main", key=key, limit=1)] == expected[:1]


async def test_along_the_first_parents_a_merge_touches_what_it_brought(forked: Repository) -> None:
    found = [one.message async for _, one in forked.log("main", key="b", first_parent=True)]
    assert found == ["merge", "base"]


async def test_annotate_names_the_last_commit_of_each_key(forked: Repository) -> None:
    assert await annotated(forked) == {"a": "after", "b": "right", "both": "left", "d": "right", "e": "after"}
    assert await annotated(forked, "main~1", "a") == {"a": "left"}
    assert await annotated(forked, "main~3") == {"a": "base", "b": "base", "both": "base", "gone": "base"}
    await forked.put_many("main", {"a": b"9", "b": b"2", "d": None, "new": b"1"})
    assert await annotated(forked) == {"a": None, "b": "right", "both": "left", "e": "after", "new": None}
    assert await annotated(forked, "main@")== {
        "a": "after", "b": "right", "both": "left", "d": "right", "e": "after",
    }  # fmt: skip
    with pytest.raises(UsageError):
        await forked.annotate("main", "a..b")


async def test_annotate_of_many_keys_reads_differences(repo: Repository) -> None:
    for some in (range(700), range(700, 1400)):
        await repo.put_many("main", {f"k.{number}": b"1" for number in some})
    await repo.commit("main", "many")
    await committed(repo, "main", "one", k_7=b"2")
    found = await annotated(repo)
    assert found.pop("k.7") == "one"
    assert set(found.values()) == {"many"}
    assert await annotated(repo, "main", "k.7") == {"k.7": "one"}
