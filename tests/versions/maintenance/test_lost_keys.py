"""Commits that lost all keys of their parent: found, not mistaken for others, no longer created."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import pytest

from kvctl.versions.maintenance import lost_keys
from kvctl.versions.maintenance.lost_keys import Loss
from kvctl.versions.repository import Repository
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.tree.chunks import EMPTY, chunks_of, object_id
from kvctl.versions.tree.objects import OBJECTS
from kvctl.versions.tree.tree import Reading
from tests.versions.repos import held

T = TypeVar("T")
KEYS = [f"k{number:06d}" for number in range(200)]


def full() -> list[str]:
    """Return the keys of the first leaf, which is full."""
    first, *_ = chunks_of(0, [(key.encode(), b"\0v") for key in KEYS])
    return [key.decode() for key in first.keys]


async def losses(repo: Repository) -> list[Loss]:
    fresh = Repository(repo.store)
    return await lost_keys.losses(fresh.store, fresh.objects, await fresh.branches())


async def lost(repo: Repository) -> tuple[str, str]:
    """Create the defect's result: a commit with only the new key. Return the ids of the parent and that commit."""
    await repo.put_many("main", dict.fromkeys(full(), b"v"))
    before = await repo.commit("main", "before")
    after = await repo.record("main", {KEYS[len(full())]: b"v"}, "after")
    return before.id, after.id


async def test_commit_after_a_full_root_keeps_all_keys(repo):
    for key in KEYS[:100]:
        await repo.put("main", key, b"v")
        await repo.commit("main", key)
        assert len(await repo.entries("main")) == int(key[1:]) + 1
    assert await losses(repo) == []


async def test_lost_keys_are_reported_until_they_are_restored(repo):
    before, after = await lost(repo)
    await repo.create_branch("other")
    await repo.put("main", "zzz", b"v")
    await repo.commit("main", "later")
    assert await losses(repo) == [Loss("main", after, before), Loss("other", after, before)]
    await repo.put_many("main", await held(repo, before))
    await repo.commit("main", "restored")
    assert await losses(repo) == [Loss("other", after, before)]


@pytest.mark.parametrize("content", [["k000003"], ["a", "k000010x"], ["zzz", *KEYS[5:]]])
async def test_replaced_content_within_the_range_is_not_a_loss(repo, content):
    await repo.put_many("main", dict.fromkeys(full(), b"v"))
    await repo.commit("main", "before")
    await repo.record("main", dict.fromkeys(content, b"w"), "after")
    assert await losses(repo) == []


async def test_parent_that_is_not_full_is_not_a_loss(repo):
    await repo.put_many("main", dict.fromkeys(full()[:-1], b"v"))
    await repo.commit("main", "before")
    await repo.record("main", {"zzz": b"v"}, "after")
    assert await losses(repo) == []


# -- on plain trees ----------------------------------------------------------------------------------------


def tree(keys: Iterable[bytes]) -> tuple[bytes, dict[bytes, bytes]]:
    """Root and objects of a tree with these keys."""
    made: dict[bytes, bytes] = {}
    level, pairs = 0, [(key, b"\0v") for key in keys]
    while True:
        found = list(chunks_of(level, pairs)) or [EMPTY]
        made |= {object_id(chunk.encode()): chunk.encode() for chunk in found}
        if len(found) == 1:
            return object_id(found[0].encode()), made
        level, pairs = level + 1, [(chunk.keys[-1], object_id(chunk.encode())) for chunk in found]


def answer(reading: Reading[T], objects: Mapping[bytes, bytes]) -> T:
    """Result of a reading of these objects."""
    try:
        wanted = next(reading)
        while True:
            wanted = reading.send({identity: objects[identity] for identity in wanted})
    except StopIteration as end:
        result: T = end.value
        return result


MANY = [b"m%06d" % number for number in range(100_000)]
LEAVES = [chunk.keys for chunk in chunks_of(0, [(key, b"\0v") for key in MANY])]
BRANCH = next(chunks_of(1, [(keys[-1], bytes(20)) for keys in LEAVES]))
FULL_LEAF, FULL_TREE = LEAVES[0], MANY[: MANY.index(BRANCH.keys[-1]) + 1]


@pytest.mark.parametrize("before", [FULL_LEAF, FULL_TREE], ids=["leaf", "two levels"])
def test_full_tree_counts_as_lost_when_no_key_in_its_range_is_left(before):
    first, last = before[0], before[-1]
    outside = [b"a%06d" % number for number in range(200)]
    for after, lost in (
        ([b"z"], True),
        ([b"a"], True),
        ([b"a", b"z"], True),
        (outside, True),
        ([last + b"x"], True),
        ([*outside, last], False),
        ([last], False),
        ([first], False),
        ([first + b"x", b"z"], False),
        ([b"a", before[1], b"z"], False),
        (before, False),
    ):
        (one, held), (other, new) = tree(before), tree(after)
        assert answer(lost_keys._lost_all(one, other), held | new) is lost, after[:3]


@pytest.mark.parametrize("before", [[], [b"k"], FULL_LEAF[:-1], FULL_TREE[:-1], [*FULL_LEAF, b"x"]])
def test_tree_that_is_not_full_does_not_count_as_lost(before):
    (one, held), (other, new) = tree(before), tree([b"z"])
    assert answer(lost_keys._lost_all(one, other), held | new) is False


@pytest.mark.parametrize(
    ("head", "restored"),
    [
        (FULL_LEAF, True),
        ([FULL_LEAF[0], FULL_LEAF[-1]], True),
        ([FULL_LEAF[0], b"z"], False),
        ([b"a", FULL_LEAF[-1]], False),
        (FULL_LEAF[1:-1], False),
    ],
    ids=["all", "both ends", "first", "last", "between"],
)
def test_lost_tree_counts_as_restored_when_both_its_ends_exist(head, restored):
    (one, held), (other, new) = tree(FULL_LEAF), tree(head)
    assert answer(lost_keys._has_ends(other, one), held | new) is restored
    (single, few) = tree([b"k"])
    assert answer(lost_keys._has_ends(single, single), few) is True


@pytest.mark.parametrize(("limit", "found"), [(1, 0), (2, 0), (3, 1), (4, 1)])
async def test_commits_are_read_up_to_a_limit_the_newest_first(monkeypatch, limit, found):
    repo = Repository(MemoryStore())
    await repo.init()
    before, after = await lost(repo)
    await repo.put("main", "zzz", b"v")
    await repo.commit("main", "later")
    monkeypatch.setattr(lost_keys, "COMMITS_READ", limit)
    assert await losses(repo) == [Loss("main", after, before)] * found


async def test_limit_of_commits_is_for_all_branches_together(monkeypatch):
    repo = Repository(MemoryStore())
    await repo.init()
    before, after = await lost(repo)
    await repo.create_branch("other")
    for limit, branches in ((3, ["main"]), (4, ["main", "other"])):
        monkeypatch.setattr(lost_keys, "COMMITS_READ", limit)
        assert await losses(repo) == [Loss(branch, after, before) for branch in branches]


@pytest.mark.parametrize("side", ["parent", "commit", "head"])
async def test_missing_object_is_a_separate_finding_not_a_loss(side):
    store = MemoryStore()
    repo = Repository(store)
    await repo.init()
    before, after = await lost(repo)
    await repo.put("main", "zzz", b"v")
    await repo.commit("main", "later")
    assert len(await losses(repo)) == 1
    root = (await repo.show({"parent": before, "commit": after, "head": "main"}[side])).root
    await store.delete(OBJECTS, bytes.fromhex(root))
    assert await losses(repo) == []
