"""Commits that lost all keys of their parent: found, not mistaken for others, no longer made."""

import pytest

from kvctl.versions import lost_keys
from kvctl.versions.chunks import chunks_of
from kvctl.versions.lost_keys import Loss
from kvctl.versions.repository import Repository
from tests.versions.repos import held

KEYS = [f"k{number:06d}" for number in range(200)]


def full() -> list[str]:
    """The keys of the first leaf, which is full."""
    first, *_ = chunks_of(0, [(key.encode(), b"\0v") for key in KEYS])
    return [key.decode() for key in first.keys]


async def losses(repo: Repository) -> list[Loss]:
    fresh = Repository(repo.store)
    return await lost_keys.losses(fresh.store, fresh.objects, await fresh.branches())


async def lost(repo: Repository) -> tuple[str, str]:
    """Make what the defect made: a commit with the new key alone. Ids of the parent and of that commit."""
    await repo.put_many("main", dict.fromkeys(full(), b"v"))
    before = await repo.commit("main", "before")
    after = await repo.record("main", {KEYS[len(full())]: b"v"}, "after")
    return before.id, after.id


async def test_commit_behind_a_full_root_keeps_all_keys(repo: Repository) -> None:
    for key in KEYS[:100]:
        await repo.put("main", key, b"v")
        await repo.commit("main", key)
        assert len(await repo.entries("main")) == int(key[1:]) + 1
    assert await losses(repo) == []


async def test_lost_keys_are_found_until_they_are_there_again(repo: Repository) -> None:
    before, after = await lost(repo)
    await repo.create_branch("other")
    await repo.put("main", "zzz", b"v")
    await repo.commit("main", "later")
    assert await losses(repo) == [Loss("main", after, before), Loss("other", after, before)]
    await repo.put_many("main", await held(repo, before))
    await repo.commit("main", "restored")
    assert await losses(repo) == [Loss("other", after, before)]


@pytest.mark.parametrize("content", [["k000003"], ["a", "k000010x"], ["zzz", *KEYS[5:]]])
async def test_replaced_content_within_the_range_is_no_loss(repo: Repository, content: list[str]) -> None:
    await repo.put_many("main", dict.fromkeys(full(), b"v"))
    await repo.commit("main", "before")
    await repo.record("main", dict.fromkeys(content, b"w"), "after")
    assert await losses(repo) == []


async def test_a_parent_that_is_not_full_was_not_lost(repo: Repository) -> None:
    await repo.put_many("main", dict.fromkeys(full()[:-1], b"v"))
    await repo.commit("main", "before")
    await repo.record("main", {"zzz": b"v"}, "after")
    assert await losses(repo) == []
