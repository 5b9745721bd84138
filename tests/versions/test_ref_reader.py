"""Reads at a ref, and the number of objects they read."""

import random
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from kvctl.errors import UsageError
from kvctl.versions.model import INLINE
from kvctl.versions.repository import Repository
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.store.protocol import Place, StoredValue
from kvctl.versions.tree.objects import OBJECTS, MissingObject

MANY = 5000


class CountingStore(MemoryStore):
    """Counts reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[Place] = []

    async def get_many(self, places: Sequence[Place], *, lasting: bool = False) -> list[StoredValue | None]:
        self.reads += places
        return await super().get_many(places, lasting=lasting)


@pytest.fixture
async def large():
    """A repository with many keys, in a fresh session."""
    store = CountingStore()
    writing = Repository(store)
    await writing.init()
    await writing.record("main", {f"key.{number:05}": b"v%d" % number for number in range(MANY)}, "many")
    store.reads.clear()
    return Repository(store), store


async def listed(repo: Repository, ref: str, *filters: str, start: str = "") -> list[tuple[str, bytes]]:
    return [
        (entry.key, entry.value) async for batch in repo.entry_batches(ref, *filters, start=start) for entry in batch
    ]


async def test_listings_equal_a_dictionary(repo):
    dice = random.Random(8)
    content = {f"{dice.choice('abc')}.{number:03}": dice.randbytes(30) for number in range(400)}
    await repo.record("main", content, "first")
    for key in dice.sample(sorted(content), 60):
        del content[key]
        await repo.delete("main", key)
    changed = {f"{dice.choice('abcd')}.{number:03}": b"new" for number in range(390, 430)}
    await repo.put_each("main", changed)
    content |= changed
    await repo.put("main", "zz", b"last")
    content["zz"] = b"last"
    for filters, start in (
        ((), ""),
        ((), "b.2"),
        ((), "zzz"),
        (("b.*",), ""),
        (("a.>", "c.>"), "a.3"),
        (("b.100", "b.200.*"), ""),
        (("*.300",), ""),
        (("nothing.>",), ""),
        (("a", "b.*", "zz"), ""),
        ((">",), ""),
    ):
        wanted = [
            (key, content[key])
            for key in sorted(content)
            if key >= start and (not filters or any(_selected(key, one) for one in filters))
        ]
        assert await listed(repo, "main", *filters, start=start) == wanted, (filters, start)


def _selected(key: str, pattern: str) -> bool:
    tokens, wanted = key.split("."), pattern.split(".")
    if wanted[-1] == ">":
        return len(tokens) >= len(wanted) and tokens[: len(wanted) - 1] == wanted[:-1]
    return len(tokens) == len(wanted) and all(w in ("*", t) for w, t in zip(wanted, tokens, strict=True))


async def test_invalid_filter_is_refused(repo):
    for wrong in ("", "a..b", "a b"):
        with pytest.raises(UsageError):
            await repo.entries("main", wrong)


async def test_large_values_are_left_out_where_only_keys_are_wanted(repo):
    small, big = b"v", b"v" * (INLINE + 1)
    await repo.record("main", {"big": big, "small": small}, "both")
    full = {entry.key: entry for entry in await repo.entries("main")}
    bare = {entry.key: entry async for batch in repo.entry_batches("main", values=False) for entry in batch}
    assert (full["big"].value, bare["big"].value, bare["small"].value) == (big, b"", small)
    assert full["big"].identity == bare["big"].identity


@pytest.mark.guarantee("versions-20")
async def test_get_reads_the_branch_and_one_object_per_level_then_only_the_branch(large):
    repo, store = large
    assert await repo.get("main@", "key.02500")
    assert [partition for partition, _ in store.reads] == [b"branches", *[OBJECTS] * 2]
    store.reads.clear()
    assert await repo.get("main@", "key.02501")
    assert [partition for partition, _ in store.reads if partition != OBJECTS] == [b"branches"]
    store.reads.clear()
    assert await repo.get("main@", "key.02500")
    assert len(store.reads) == 1


async def test_a_part_of_a_listing_reads_a_part_of_the_tree(large):
    repo, store = large
    async with aclosing(repo.entry_batches("main@", start="key.04990")) as batches:
        assert len([entry async for batch in batches for entry in batch]) == 10
    assert len([place for place in store.reads if place[0] == OBJECTS]) <= 4


async def test_a_listing_comes_in_batches(large):
    repo, _ = large
    sizes = [len(batch) async for batch in repo.entry_batches("main")]
    assert sum(sizes) == MANY
    assert 1000 <= max(sizes) < 1200


@pytest.mark.guarantee("versions-10")
async def test_listing_during_a_commit_and_a_collection_is_complete():
    """The commit comes right after the branch was read: its epochs are removed, and its commit is outdated."""

    class Interrupted(MemoryStore):
        async def get_many(self, places: Sequence[Place], *, lasting: bool = False) -> list[StoredValue | None]:
            found = await super().get_many(places, lasting=lasting)
            if (b"branches", b"main") in places and self.armed:
                self.armed = False
                await Repository(self).commit("main", "meanwhile")
                await Repository(self).gc()
            return found

        armed = False

    store = Interrupted()
    repo = Repository(store)
    await repo.init()
    await repo.record("main", {"old": b"1", "same": b"2"}, "first")
    for read in (False, True):
        await repo.put_many("main", {"old": None, f"new{read}": b"3"})
        store.armed = True
        if read:
            found = await Repository(store).get("main", "old", "newTrue", "same")
            assert [one.value if one else None for one in found] == [None, b"3", b"2"]
        else:
            assert await listed(Repository(store), "main") == [("newFalse", b"3"), ("same", b"2")]
        assert not store.armed


async def test_missing_object_is_named(large):
    repo, store = large
    await store.clear(OBJECTS)
    with pytest.raises(MissingObject, match="is missing"):
        await listed(repo, "main")
