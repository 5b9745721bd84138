"""A repository on both stores: staging, commits, refs, diff, merge; and many at once, counted."""

from collections.abc import Sequence
from contextlib import suppress

import pytest

from kvctl.errors import ConflictError, NotFoundError, OutcomeUnknown, UsageError
from kvctl.versions import refs
from kvctl.versions.branch.branch_names import RefExists
from kvctl.versions.commits import HasStagedChanges, NothingToCommit
from kvctl.versions.model import INLINE, LONGEST_KEY, Commit
from kvctl.versions.ref_diff import ChangeKind, UnrelatedHistories
from kvctl.versions.refs import BranchNotFound, RefNotFound
from kvctl.versions.repository import Repository
from kvctl.versions.store.memory import MemoryStore
from kvctl.versions.store.protocol import StoreChange, StoreCondition
from kvctl.versions.tree.chunks import BadRecord
from tests.versions.concurrency.steps import Fuse, SteppedStore, at_every_step
from tests.versions.repos import committed, held, history, history_ids, seal, staged, stranger


class TestStaging:
    async def test_staged_changes_are_read_at_the_branch_and_nowhere_else(self, repo):
        await committed(repo, "main", "one", a=b"1", b=b"1")
        await repo.put("main", "a", b"2")
        await repo.delete("main", "b")
        await repo.put("main", "c", b"")
        assert await held(repo) == {"a": b"2", "c": b""}
        assert await held(repo, "main@") == {"a": b"1", "b": b"1"}
        found = await repo.get("main", "a", "b", "c", "d")
        assert [entry and (entry.value, entry.revision is not None) for entry in found] == [
            *((b"2", True), None, (b"", True), None)
        ]
        assert await staged(repo) == {"a": b"2", "b": None, "c": b""}
        kinds = [change.kind for change in (await repo.status("main")).changes]
        assert kinds == [ChangeKind.CHANGED, ChangeKind.REMOVED, ChangeKind.ADDED]

    @pytest.mark.guarantee("versions-2")
    async def test_writes_need_a_branch_and_keys_of_adr_8(self, repo):
        with pytest.raises(BranchNotFound):
            await repo.put("nope", "a", b"1")
        for key in ("", "a..b", "é", "a*", "_kv.x"):
            with pytest.raises(UsageError):
                await repo.put("main", key, b"1")

    @pytest.mark.guarantee("versions-3")
    async def test_conditional_writes_compare_what_is_read(self, repo):
        await committed(repo, "main", "one", a=b"1")
        (entry,) = await repo.get("main", "a")
        await repo.write_if("main", "a", b"2", entry.identity)
        for identity in (entry.identity, None):
            with pytest.raises(ConflictError, match="`a` on `main` has identity"):
                await repo.write_if("main", "a", b"3", identity)
        await repo.write_if("main", "new", b"1", None)
        with pytest.raises(ConflictError, match="does not exist"):
            await repo.write_if("main", "none", b"1", entry.identity)
        assert await held(repo) == {"a": b"2", "new": b"1"}


class TestCommit:
    async def test_commit_records_staged_changes(self, repo):
        made = await committed(repo, "main", "one", a=b"1", b=b"x" * 10_000)
        assert await held(repo, made.id) == await held(repo, "main") == {"a": b"1", "b": b"x" * 10_000}
        assert await staged(repo) == {}
        assert (made.author, made.generation) == ("ann", 1)
        await committed(repo, "main", "two", a=None)
        assert await history(repo) == ["two", "one", "Repository created"]
        assert await held(repo) == {"b": b"x" * 10_000}

    async def test_commit_without_changes_is_refused_and_leaves_nothing(self, repo):
        await committed(repo, "main", "one", a=b"1")
        before = await refs.branch(repo.store, "main")
        for changes in ({}, {}, {"a": b"1"}, {"none": None}):
            await repo.put_many("main", changes) if changes else None
            with pytest.raises(NothingToCommit):
                await repo.commit("main", "again")
            assert await staged(repo) == {}
            assert changes or await refs.branch(repo.store, "main") == before  # nothing was written
        made = await repo.commit("main", "on purpose", allow_empty=True)
        assert made.parents == ((await history_ids(repo))[1],)

    async def test_text_that_is_not_utf_8_is_refused(self, repo):
        await repo.put("main", "a", b"1")
        for message, meta in (("\udcff", {}), ("one", {"k": "\udcff"}), ("one", {"\udcff": "v"})):
            with pytest.raises(UsageError, match="is not UTF-8"):
                await repo.commit("main", message, meta=meta)
        assert (await repo.commit("main", "one")).parents

    async def test_size_of_message_author_and_metadata_is_limited(self, repo):
        await repo.put("main", "a", b"1")
        for said in {"message": "m" * 2_000_000}, {"message": "m", "meta": {"k": "v" * 2_000_000}}:
            with pytest.raises(UsageError, match="message, author and metadata"):
                await repo.commit("main", **said)
        assert await staged(repo) == {"a": b"1"}

    async def test_commit_of_a_change_that_was_dropped_leaves_nothing(self, repo):
        await repo.put("main", "a", b"1")
        await repo.reset_key("main", "a")
        with pytest.raises(NothingToCommit):
            await repo.commit("main", "nothing")
        assert (await refs.branch(repo.store, "main")).branch.sealed == ()
        assert await history(repo) == ["Repository created"]

    async def test_late_committer_learns_which_commit_has_its_changes(self, repo, store):
        async def scenario(fuse: Fuse) -> None:
            await repo.put("main", "a", b"%d" % fuse.number)
            others: list[Commit] = []

            async def other() -> None:
                others.append(await Repository(store).commit("main", "other"))
                await repo.put("main", "later", b"%d" % fuse.number)
                await Repository(store).commit("main", "later")

            fuse.then = other
            try:
                await Repository(SteppedStore(store, fuse)).commit("main", "mine")
            except NothingToCommit as error:
                found.append((error.taken_by, others[0].id))

        found: list[tuple[str | None, str]] = []
        await at_every_step(scenario, kill=False)
        named = [(taker, other) for taker, other in found if taker is not None]
        assert named
        assert all(taker == other for taker, other in named)

    async def test_dropping_epochs_already_committed_loses_nothing(self, repo, store):
        await committed(repo, "main", "one", a=b"1")

        async def scenario(fuse: Fuse) -> None:
            key = f"k{fuse.number}"
            await repo.put("main", "a", b"1")

            async def other() -> None:
                await Repository(store).put("main", key, b"1")
                await seal(store, "main")
                await Repository(store).put("main", f"{key}.more", b"1")

            fuse.then = other
            with suppress(NothingToCommit):
                await Repository(SteppedStore(store, fuse)).commit("main", "mine")
            if fuse.blown:
                assert {key, f"{key}.more"} <= (await held(repo)).keys()
            await repo.reset("main")

        assert await at_every_step(scenario, kill=False) > 5


class Unanswered(MemoryStore):
    """Store whose answer to one conditional write is lost, after it was stored or before."""

    stored: bool | None = None

    async def write(self, conditions: Sequence[StoreCondition], changes: Sequence[StoreChange]) -> list[int]:
        stored, self.stored = self.stored, None
        if stored is None:
            return await super().write(conditions, changes)
        if stored:
            await super().write(conditions, changes)
        raise OutcomeUnknown("No answer")


@pytest.mark.parametrize("stored", [True, False])
async def test_commit_goes_on_after_a_lost_answer_to_its_early_seal(stored):
    store = Unanswered()
    repo = Repository(store)
    await repo.init()
    await repo.put("main", "a", b"1")
    store.stored = stored
    await repo.commit("main", "one")
    assert store.stored is None
    assert (await held(repo, "main@"), await staged(repo)) == ({"a": b"1"}, {})


class TestRefs:
    @pytest.mark.guarantee("versions-1")
    async def test_ref_expressions(self, repo):
        commits = [await committed(repo, "main", str(number), n=b"%d" % number) for number in range(4)]
        await repo.create_tag("v1", "main~1")
        await repo.put("main", "n", b"staged")
        expected = {
            "main": b"staged",
            "main$": b"staged",
            "main@": b"3",
            "main~1": b"2",
            "main~": b"2",
            "main^": b"2",
            "main^1~1": b"1",
            "main~2^": b"0",
            "v1": b"2",
            "v1~2": b"0",
            commits[1].id: b"1",
            commits[1].id[:7]: b"1",
            "main^0": b"3",
            "main~0000": b"3",
            f"main~{'0' * 5000}2": b"1",
        }
        for expression, value in expected.items():
            (entry,) = await repo.get(expression, "n")
            assert (expression, entry.value) == (expression, value)
        many = "9" * 5000
        for missing in ("none", "main~9", "main^2", "abcd", "f" * 40, f"main~{many}", f"main^{many}", f"main~0{many}"):
            with pytest.raises(NotFoundError):
                await repo.get(missing, "n")
        for wrong in ("", "main..", "v1$", "main$~1", "-x", "main.", ".x"):
            with pytest.raises(UsageError):
                await repo.get(wrong, "n")

    async def test_new_name_that_looks_like_a_commit_id_is_refused(self, repo):
        identity = (await committed(repo, "main", "one", a=b"1")).id
        for name in (identity, "0" * 40):
            with pytest.raises(UsageError, match="looks like a commit id"):
                await repo.create_branch(name)
            with pytest.raises(UsageError, match="looks like a commit id"):
                await repo.create_tag(name)
        await repo.create_branch("0" * 39)
        await repo.create_tag("0" * 41)

    async def test_newest_commit_is_found_without_a_branch(self, repo):
        made = await committed(repo, "main", "one", a=b"1")
        await repo.delete_branch("main")
        assert await refs.newest(repo.store) == made.id
        await repo.create_branch("main", made.id)
        assert await held(repo) == {"a": b"1"}

    async def test_commands_on_commits_refuse_refs_with_staged_changes(self, repo):
        await committed(repo, "main", "one", a=b"1")
        await repo.create_branch("other")
        await repo.put("main", "a", b"staged")
        for attempt in (
            repo.merge("main$", "other"),
            repo.cherry_pick("other", "main$"),
            repo.revert("other", "main$"),
            repo.reset_hard("other", "main$"),
            repo.create_branch("x", "main$"),
            repo.create_tag("x", "main$"),
            repo.diff("other", "main$", three_dot=True),
        ):
            with pytest.raises(UsageError, match="a commit is required"):
                await attempt
        assert (list(await repo.branches()), await repo.tags()) == (["main", "other"], {})

    async def test_undecodable_records_raise_bad_record(self, repo):
        async def read_all(fresh: Repository) -> None:
            for ref in ("main", "main~1"):
                await fresh.entries(ref)
                await fresh.show(ref)

        await committed(repo, "main", "one", a=b"1")
        objects = [("objects", entry.key) async for entry in repo.store.scan(b"objects")]
        head = bytes.fromhex((await repo.branches())["main"])
        for partition, key in [("branches", b"main"), ("commits", head), *objects]:
            before = await repo.store.get(partition.encode(), key)
            await repo.store.set(partition.encode(), key, b"junk")
            with pytest.raises(BadRecord, match="Could not decode"):
                await read_all(Repository(repo.store))
            await repo.store.set(partition.encode(), key, before.value)
        assert await held(repo) == {"a": b"1"}

    async def test_creation_of_the_same_branch_or_tag_is_repeatable(self, repo):
        first = await committed(repo, "main", "one", a=b"1")
        for create in (repo.create_branch, repo.create_tag):
            name = create.__name__
            assert await create(name, first.id)
            assert not await create(name, "main@")
            with pytest.raises(RefExists):
                await create(name, "main~1")
        with pytest.raises(RefExists):
            await repo.create_tag("create_branch", first.id)
        with pytest.raises(RefExists):
            await repo.create_branch("create_tag", first.id)

    async def test_branches_and_tags_are_created_and_deleted(self, repo):
        first = await committed(repo, "main", "one", a=b"1")
        await repo.put("main", "a", b"staged")
        assert await repo.create_branch("feature/x")
        assert await held(repo, "feature/x") == {"a": b"1"}
        await repo.create_tag("v1")
        for again in (repo.create_branch("v1"), repo.create_tag("main")):
            with pytest.raises(ConflictError):
                await again
        assert await repo.branches() == {"feature/x": first.id, "main": first.id}
        assert await repo.tags() == {"v1": first.id}
        await repo.put("feature/x", "b", b"1")
        await repo.delete_branch("feature/x")
        with pytest.raises(RefNotFound):
            await repo.get("feature/x", "a")
        await repo.create_branch("feature/x")
        assert await held(repo, "feature/x") == {"a": b"1"}


class TestMerge:
    async def test_merge_refuses_staged_changes_and_unrelated_histories(self, repo):
        await committed(repo, "main", "one", a=b"1")
        await repo.create_branch("side", "main~1")
        await repo.put("side", "x", b"1")
        for attempt in (repo.merge("main", "side"), repo.revert("side", "main"), repo.cherry_pick("side", "main")):
            with pytest.raises(ConflictError, match="staged changes"):
                await attempt
        with pytest.raises(UnrelatedHistories):
            await repo.merge(await stranger(repo), "main")


class TestSizes:
    async def test_longest_key_works_everywhere(self, repo):
        longest = "k" * LONGEST_KEY
        await repo.put("main", longest, b"1")
        await repo.write_if("main", longest[:-1], b"2", None)
        made = await repo.commit("main", "long")
        assert await held(Repository(repo.store), made.id) == {longest: b"1", longest[:-1]: b"2"}
        assert [entry and entry.value for entry in await repo.get("main", longest)] == [b"1"]
        for attempt in (repo.put("main", longest + "k", b"1"), repo.get("main", longest + "k")):
            with pytest.raises(UsageError, match="2,048"):
                await attempt

    async def test_values_around_the_inline_limit(self, repo):
        content = {f"k{size}": b"x" * size for size in (0, 1, INLINE - 1, INLINE, INLINE + 1)}
        await repo.put_many("main", content)
        await repo.commit("main", "border")
        assert await held(Repository(repo.store), "main@") == content


class TestRecord:
    async def test_recorded_commit_has_exactly_the_content(self, repo):
        await committed(repo, "main", "one", gone=b"1", same=b"x" * 9000, other=b"1")
        content = {"same": b"x" * 9000, "other": b"2", "new": b"y" * 9000}
        made = await repo.record("main", content, "recorded", meta={"from": "test"})
        assert await held(Repository(repo.store)) == content
        assert (made.message, dict(made.meta), len(made.parents)) == ("recorded", {"from": "test"}, 1)
        with pytest.raises(NothingToCommit):
            await repo.record("main", content, "again")
        assert (await repo.record("main", iter(sorted(content.items())), "empty", allow_empty=True)).root == made.root
        await repo.record("main", {}, "nothing left")
        assert await held(repo) == {}

    async def test_recorded_tree_equals_that_of_a_commit_of_the_same_content(self, repo):
        content = {f"k.{number}": b"%d" % number for number in range(900)}
        await repo.create_branch("other")
        await repo.put_many("other", content)
        assert (await repo.commit("other", "staged")).root == (await repo.record("main", content, "recorded")).root

    async def test_record_is_refused_with_staged_changes_and_for_unsorted_content(self, repo):
        await repo.put("main", "a", b"1")
        with pytest.raises(HasStagedChanges):
            await repo.record("main", {"b": b"1"}, "refused")
        assert await staged(repo) == {"a": b"1"}
        await repo.reset("main")
        for wrong in ([("b", b""), ("a", b"")], [("a", b""), ("a", b"")], [("a..b", b"")]):
            with pytest.raises(UsageError):
                await repo.record("main", wrong, "wrong")
        with pytest.raises(UsageError, match=r"`a\.b` cannot be recorded: the value has"):
            await repo.record("main", {"a.b": b"x" * (repo.writer.largest + 1)}, "too large")
        with pytest.raises(UsageError, match=r"`k{80}…` cannot be recorded: the key has 3,000 characters"):
            await repo.record("main", {"k" * 3000: b""}, "too long")
        assert await history(repo) == ["Repository created"]


async def test_names_that_are_not_utf_8_do_not_exist(repo):
    for attempt in (
        repo.put("\udcff", "k", b"v"),
        repo.status("\udcff"),
        repo.commit("\udcff", "m"),
        repo.merge("main", "\udcff"),
        repo.delete_branch("\udcff"),
        repo.delete_tag("\udcff"),
        repo.reset("\udcff"),
    ):
        with pytest.raises((NotFoundError, UsageError)):
            await attempt
