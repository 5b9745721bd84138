"""Merge, revert and cherry-pick against a model of plain dictionaries, whatever the trees."""

import random

import pytest

from kvctl.errors import KvctlError, UsageError
from kvctl.versions import refs
from kvctl.versions.commits import NothingToCommit
from kvctl.versions.merges import MergeConflict
from kvctl.versions.model import INLINE
from kvctl.versions.ref_diff import Apart, ChangeKind, Value
from kvctl.versions.repository import Repository
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.tree.chunks import object_id
from kvctl.versions.tree.tree import Strategy
from tests.versions.repos import held, whole

Content = dict[str, bytes]
STRATEGIES = [None, Strategy.SOURCE_WINS, Strategy.DEST_WINS]


def merged(base: Content, source: Content, dest: Content, strategy: Strategy | None) -> tuple[Content, list[str]]:
    """Return the result of a three-way merge, and the conflicting keys."""
    result, conflicts = dict(dest), []
    for key in sorted(base.keys() | source.keys() | dest.keys()):
        was, theirs, ours = base.get(key), source.get(key), dest.get(key)
        if theirs in (was, ours):
            continue
        if ours != was and strategy is None:
            conflicts.append(key)
        elif ours == was or strategy is Strategy.SOURCE_WINS:
            result.pop(key, None)
            if theirs is not None:
                result[key] = theirs
    return result, conflicts


def content(dice: random.Random, size: int) -> Content:
    """Return content with few values, so that equal ones occur; some are large."""
    values = [b"", b"0", b"1", b"true", b"x" * 5000, b"y" * 5000]
    return {f"k.{number}": dice.choice(values) for number in range(size) if dice.random() < 0.7}


def changed(dice: random.Random, before: Content, size: int) -> Content:
    """Overwrite some keys from another content, and remove some."""
    other = dice.sample(sorted(content(dice, size).items()), dice.randrange(3))
    return {key: value for key, value in (before | dict(other)).items() if dice.random() < 0.9}


async def branched(base: Content, source: Content, dest: Content) -> Repository:
    """Set main to dest, side to source, and their merge base to base."""
    repo = Repository(MemoryStore())
    await repo.init()
    for branch, wanted in (("main", base), ("side", source), ("main", dest)):
        if branch == "side":
            await repo.create_branch("side")
        await repo.record(branch, wanted, "content", allow_empty=True)
    return repo


def apart(value: Value) -> Value:
    """Return a large value as Apart."""
    return Apart(object_id(value).hex()) if isinstance(value, bytes) and len(value) > INLINE else value


@pytest.mark.guarantee("versions-12")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(20))
async def test_merge_equals_the_model(seed, strategy):
    dice = random.Random(seed)
    size = dice.choice([4, 8, 8, 200])
    base = content(dice, size)
    source, dest = changed(dice, base, size), changed(dice, base, size)
    expected, conflicts = merged(base, source, dest, strategy)
    repo = await branched(base, source, dest)
    head = (await repo.show("main")).id
    if conflicts:
        for dry_run in (True, False):
            with pytest.raises(MergeConflict) as caught:
                await repo.merge("side", "main", strategy=strategy, dry_run=dry_run)
        assert [(one.key, one.base, one.source, one.dest) for one in caught.value.conflicts] == [
            (key, *(apart(side.get(key)) for side in (base, source, dest))) for key in conflicts
        ]
        assert (await repo.show("main")).id == head
        return
    planned = await repo.merge("side", "main", strategy=strategy, dry_run=True)
    assert (planned.commit, (await repo.show("main")).id) == (None, head)
    made = await repo.merge("side", "main", strategy=strategy)
    assert made.changes == planned.changes
    resolved = [one for some in [part async for part in repo.resolved(made.changes)] for one in some]
    assert [(apart(one.before), apart(one.after)) for one in resolved] == [
        (one.before, one.after) for one in made.changes
    ]
    assert {one.key: (one.before, one.after) for one in resolved} == {
        key: (dest.get(key), expected.get(key))
        for key in dest.keys() | expected.keys()
        if dest.get(key) != expected.get(key)
    }
    assert await held(repo, "main") == expected
    assert (await repo.merge("side", "main")).commit is None
    await whole(repo)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(15))
async def test_reverts_and_cherry_picks_are_merges_with_another_base(seed, strategy):
    dice = random.Random(seed)
    size = dice.choice([4, 8])
    before = content(dice, size)
    after = changed(dice, before, size)
    now = changed(dice, after, size)
    for pick, base, source in ((False, after, before), (True, before, after)):
        repo = await branched(before, now, after)
        expected, conflicts = merged(base, source, now, strategy)
        try:
            made = await (repo.cherry_pick if pick else repo.revert)("side", "main", strategy=strategy)
        except MergeConflict as error:
            found = [one.key for one in error.conflicts]
        except NothingToCommit:
            found = []
            assert expected == now
        else:
            assert made.commit.message == "content" or not pick
            found = []
            assert await held(repo, "side") == expected
        assert found == conflicts
    with pytest.raises(UsageError, match="first commit"):
        await repo.revert("side", [identity async for identity, _ in repo.log("side")][-1])


@pytest.mark.guarantee("versions-17")
async def test_merge_does_not_have_the_known_bugs_of_lakefs():
    """Keys are compared, not identities alone: a new key whose value another one has is a change of its own."""
    repo = await branched({"b": b"x"}, {"a": b"x", "b": b"x"}, {})
    await repo.merge("side", "main")
    assert await held(repo) == {"a": b"x"}
    repo = await branched({"m": b"x"}, {"k": b"x", "m": b"x"}, {"k": b"y", "m": b"x"})
    with pytest.raises(MergeConflict) as caught:
        await repo.merge("side", "main")
    assert [one.key for one in caught.value.conflicts] == ["k"]


async def test_squash_has_one_parent_and_repeating_it_changes_nothing():
    repo = await branched({"a": b"1"}, {"a": b"2"}, {"a": b"1", "b": b"1"})
    made = await repo.merge("side", "main", squash=True)
    assert len(made.commit.parents) == 1
    assert [(one.key, one.kind) for one in made.changes] == [("a", ChangeKind.CHANGED)]
    again = await repo.merge("side", "main", squash=True)
    assert (again.commit, again.changes) == (None, ())


async def test_merge_without_changes_is_recorded_once():
    repo = await branched({"a": b"1"}, {"a": b"2"}, {"a": b"2"})
    made = await repo.merge("side", "main")
    assert (made.changes, len(made.commit.parents)) == ((), 2)
    assert (await repo.merge("side", "main")).commit is None
    assert (await repo.merge("main", "side")).commit is not None


async def test_reverting_a_merge_requires_a_parent():
    repo = await branched({"a": b"1"}, {"a": b"2"}, {"a": b"1", "b": b"1"})
    await repo.merge("side", "main")
    with pytest.raises(KvctlError, match="is a merge"):
        await repo.revert("main", "main")
    with pytest.raises(KvctlError, match="parent 3 does not exist"):
        await repo.revert("main", "main", parent=3)
    await repo.revert("main", "main", parent=1)
    assert await held(repo) == {"a": b"1", "b": b"1"}
    await repo.revert("main", "main~1", parent=2)
    assert await held(repo) == {"a": b"1"}


async def test_staged_value_equal_to_the_committed_one_hides_nothing():
    repo = await branched({"a": b"1"}, {"a": b"2"}, {"a": b"1", "b": b"1"})
    await repo.put("main", "a", b"1")
    assert (await repo.status("main")).changes == ()
    before = await refs.branch(repo.store, "main")
    assert [one.key for one in (await repo.merge("side", "main", dry_run=True)).changes] == ["a"]
    assert await refs.branch(repo.store, "main") == before
    await repo.merge("side", "main")
    assert await held(repo) == {"a": b"2", "b": b"1"}
