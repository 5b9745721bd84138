"""Diffs of commits, of staged changes, since a merge base; the status of a branch."""

import pytest

from kvctl.errors import UsageError
from kvctl.versions.ref_diff import Apart, ChangeKind, UnrelatedHistories, Value
from kvctl.versions.repository import Repository
from kvctl.versions.tree.chunks import object_id
from tests.versions.repos import committed, resolved, stranger

Kind = ChangeKind
LARGE = b"x" * 10_000


async def shown(repo: Repository, *refs: str, three_dot: bool = False) -> dict[str, tuple[ChangeKind, Value]]:
    changes = await resolved(repo, await repo.diff(*refs, three_dot=three_dot))
    return {one.key: (one.kind, one.after) for one in changes}


async def test_diff_of_two_commits_in_both_directions(repo):
    await committed(repo, "main", "one", gone=b"1", same=b"1", other=LARGE)
    await committed(repo, "main", "two", gone=None, other=b"2", new=LARGE + b"2")
    assert await shown(repo, "main~1", "main") == {
        "gone": (Kind.REMOVED, None),
        "new": (Kind.ADDED, LARGE + b"2"),
        "other": (Kind.CHANGED, b"2"),
    }
    back = await resolved(repo, await repo.diff("main", "main~1"))
    assert [(one.key, one.kind, one.before) for one in back] == [
        ("gone", Kind.ADDED, None),
        ("new", Kind.REMOVED, LARGE + b"2"),
        ("other", Kind.CHANGED, b"2"),
    ]
    assert await repo.diff("main", "main@") == []


async def test_diff_of_staged_changes_and_the_head(repo):
    await committed(repo, "main", "one", a=b"1", b=b"1", c=LARGE, d=b"1")
    await repo.put_many("main", {"a": b"2", "b": None, "c": LARGE, "d": b"1", "e": LARGE + b"e", "none": None})
    expected = {"a": (Kind.CHANGED, b"2"), "b": (Kind.REMOVED, None), "e": (Kind.ADDED, LARGE + b"e")}
    assert await shown(repo, "main") == expected
    assert await shown(repo, "main", "main$") == expected
    status = await repo.status("main")
    changes = await resolved(repo, status.changes)
    assert {one.key: (one.kind, one.after) for one in changes} == expected
    assert status.commit == (await repo.show("main")).id
    assert await repo.diff("main", "main@") == []
    assert set(await shown(repo, "main$", "main~1")) == {"a", "c", "d", "e"}
    with pytest.raises(UsageError):
        await repo.diff(status.commit)


async def test_three_dot_diff_shows_one_sides_changes_and_marks_conflicts(repo):
    await committed(repo, "main", "base", a=b"1", b=b"1", c=b"1")
    await repo.create_branch("side")
    await committed(repo, "side", "side", a=b"2", b=b"2", d=b"1", e=b"1")
    await committed(repo, "main", "main", a=b"3", b=b"2", c=b"9")
    assert await shown(repo, "main", "side", three_dot=True) == {
        "a": (Kind.CONFLICT, b"2"),
        "b": (Kind.CHANGED, b"2"),
        "d": (Kind.ADDED, b"1"),
        "e": (Kind.ADDED, b"1"),
    }
    base = await repo.merge_base("main", "side")
    assert (await repo.show(base)).message == "base"
    other = await stranger(repo)
    for attempt in (repo.diff("main", other, three_dot=True), repo.merge_base(other, "main")):
        with pytest.raises(UnrelatedHistories):
            await attempt


@pytest.mark.guarantee("versions-21")
async def test_large_values_are_read_on_demand_and_few_at_a_time(repo):
    """Neither a merge nor a diff reads any; resolving them holds some at a time."""
    await repo.create_branch("side")
    content = {f"k{number:02}": bytes([number]) * 5000 for number in range(40)}
    await repo.put_many("side", dict(content))
    assert {one.after for one in (await repo.status("side")).changes} == {
        Apart(object_id(value).hex()) for value in content.values()
    }
    await repo.commit("side", "large")
    fresh = Repository(repo.store)
    changes = await fresh.diff("main", "side")
    made = await fresh.merge("side", "main")
    assert list(made.changes) == changes
    assert all(isinstance(one.after, Apart) for one in changes)
    assert not any(len(data) == 5000 for data in fresh.objects._held.values())
    parts = [part async for part in fresh.resolved(changes)]
    assert [len(part) for part in parts] == [16, 16, 8]
    assert {one.key: one.after for part in parts for one in part} == content
    assert not any(len(data) == 5000 for data in fresh.objects._held.values())
