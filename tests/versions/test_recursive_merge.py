"""Merges whose commits have several best common ancestors, by a table that test_git_oracle.py holds against git."""

import pytest

from kvctl.versions.merges import MergeConflict
from kvctl.versions.ref_diff import ChangeKind
from kvctl.versions.refs import COMMITS
from kvctl.versions.repository import Repository
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.tree.tree import Strategy
from tests.versions.repos import held, stranger

CONFLICT = "conflict"
CROSSED = [
    # was, changed on both sides, then decided on both while each merged the other's change, result
    ("80", "8080", "9090", "8080", "9090", CONFLICT),  # each side kept its own
    ("80", "8080", "9090", "9090", "8080", CONFLICT),  # each side took the other's
    ("80", "8080", "9090", "8080", "8080", "8080"),
    ("80", "8080", "9090", "7070", "7070", "7070"),
    ("80", "8080", "9090", "80", "80", "80"),
    ("80", "8080", "9090", "8080", "80", CONFLICT),
    ("80", "8080", "9090", "8080", None, CONFLICT),
    ("80", "8080", "9090", None, None, None),
    ("80", "80", "9090", "9090", "9090", "9090"),
    ("80", "80", "9090", "80", "9090", "80"),  # the bases agree on 9090, one side went back
    ("80", "80", "9090", "80", "7070", CONFLICT),
    ("80", None, "9090", None, "9090", CONFLICT),
    ("80", None, "9090", "80", "9090", "9090"),  # where a base removed the key, git keeps what was
    ("80", None, "9090", "80", None, None),
    ("80", None, "80", None, "80", "80"),
    (None, "8080", "9090", "8080", "9090", CONFLICT),
    (None, "8080", "9090", None, "9090", CONFLICT),
    (None, "8080", "9090", "9090", "9090", "9090"),
    (None, "8080", None, "8080", None, None),
]


async def crossed(repo: Repository, was: str | None, *decisions: str | None) -> None:
    """Let main and side change one key, merge each other's change, and decide otherwise."""
    await changed(repo, "main", was)
    await repo.create_branch("side")
    heads = [await changed(repo, branch, value) for branch, value in zip(("main", "side"), decisions[:2], strict=True)]
    for branch, head, value in zip(("main", "side"), reversed(heads), decisions[2:], strict=True):
        await repo.merge(head, branch, strategy=Strategy.DEST_WINS)
        await changed(repo, branch, value)


async def changed(repo: Repository, branch: str, value: str | None) -> str:
    """Commit a value of the key, even the one that it has; return the commit."""
    await repo.put_many(branch, {"other": b"1", "port": None if value is None else value.encode()})
    return (await repo.commit(branch, "m", allow_empty=True)).id


async def begun() -> Repository:
    repo = Repository(MemoryStore())
    await repo.init()
    return repo


@pytest.mark.guarantee("versions-25")
@pytest.mark.parametrize(("was", "one", "other", "kept", "taken", "result"), CROSSED)
async def test_merge_of_crossing_histories_undoes_no_decision(was, one, other, kept, taken, result):
    repo = await begun()
    await crossed(repo, was, one, other, kept, taken)
    assert len(await repo.merge_bases("main", "side")) == 2
    shown = {one.key: one.kind for one in await repo.diff("main", "side", three_dot=True)}
    if result is CONFLICT:
        with pytest.raises(MergeConflict) as caught:
            await repo.merge("side", "main")
        assert [one.key for one in caught.value.conflicts] == ["port"]
        assert shown == {"port": ChangeKind.CONFLICT}
        return
    await repo.merge("side", "main")
    assert (await held(repo)).get("port") == (None if result is None else result.encode())
    assert ChangeKind.CONFLICT not in shown.values()


async def test_conflict_of_merge_bases_that_conflict_has_no_base_value():
    repo = await begun()
    await crossed(repo, "80", "8080", "9090", "8080", "9090")
    with pytest.raises(MergeConflict) as caught:
        await repo.merge("side", "main")
    assert [tuple(one) for one in caught.value.conflicts] == [("port", None, b"9090", b"8080")]
    (change,) = await repo.diff("main", "side", three_dot=True)
    assert change.values == (None, b"9090")
    assert change.kind is ChangeKind.CONFLICT
    await repo.merge("side", "main", strategy=Strategy.SOURCE_WINS)
    assert await held(repo) == {"other": b"1", "port": b"9090"}


@pytest.mark.parametrize(("value", "kind"), [("7070", ChangeKind.CHANGED), (None, ChangeKind.REMOVED)])
async def test_same_decision_on_both_sides_is_a_change_since_merge_bases_that_conflict(value, kind):
    repo = await begun()
    await crossed(repo, "80", "8080", "9090", value, value)
    (change,) = await repo.diff("main", "side", three_dot=True)
    assert (change.kind, change.before, change.after) == (kind, None, value and value.encode())


async def test_histories_that_crossed_a_thousand_times_are_merged():
    repo = await begun()
    await crossed(repo, "80", "8080", "9090", "8080", "9090")
    heads = [await repo.show("main"), await repo.show("side")]
    for _ in range(1000):
        heads = [
            one._replace(
                parents=(one.id, other.id), generation=one.generation + 1, created_ns=heads[0].created_ns + 2 + at
            )
            for at, (one, other) in enumerate([heads, heads[::-1]])
        ]
        for one in heads:
            await repo.store.set(COMMITS, bytes.fromhex(one.id), one.encode())
    await repo.reset_hard("main", heads[0].id)
    with pytest.raises(MergeConflict):
        await repo.merge(heads[1].id, "main")


async def test_merge_bases_without_common_commit_are_merged_as_if_all_keys_were_added():
    """Two unrelated histories that both sides merged, as no command makes them."""
    repo = await begun()
    await changed(repo, "main", "80")
    first, away = await repo.show("main"), await stranger(repo)
    heads = [first._replace(parents=(first.id, away), generation=9, created_ns=at) for at in (7, 8)]
    for one in heads:
        await repo.store.set(COMMITS, bytes.fromhex(one.id), one.encode())
    await repo.reset_hard("main", heads[0].id)
    assert set(await repo.merge_bases("main", heads[1].id)) == {first.id, away}
    await repo.create_branch("side", heads[1].id)
    await changed(repo, "side", "8080")
    await repo.merge("side", "main")
    assert await held(repo) == {"other": b"1", "port": b"8080"}
