"""Merge, revert, cherry-pick, and hard reset: all on a branch without staged changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from kvctl.deferred import pattern
from kvctl.errors import ConflictError, UsageError
from kvctl.phrases import quoted
from kvctl.versions import commits, refs
from kvctl.versions.access import RepositoryAccess
from kvctl.versions.ancestry import merge_bases
from kvctl.versions.branch import branch_state
from kvctl.versions.commits import CommitInfo
from kvctl.versions.model import Branch, Commit
from kvctl.versions.recursive_merge import since_base
from kvctl.versions.ref_diff import KeyChange, KeyConflict, UnrelatedHistories, shown
from kvctl.versions.refs import CommitReader
from kvctl.versions.store.protocol import Store
from kvctl.versions.tree import tree
from kvctl.versions.tree.objects import MissingObject
from kvctl.versions.tree.tree import Conflict, Edit, Strategy, TreeDifference

SHOWN = 10
"""Maximum number of conflicting keys in a message."""


class MergeConflict(ConflictError, kind="merge-conflict"):
    """Both sides changed keys, listed in `conflicts`; nothing was changed."""

    def __init__(self, conflicts: Sequence[KeyConflict]) -> None:
        keys = quoted((item.key for item in conflicts), SHOWN)
        hint = "Pass `--strategy source-wins` or `--strategy dest-wins`"
        super().__init__(f"Both sides changed {keys}; nothing was changed", hint=hint)
        self.conflicts = list(conflicts)


class MergeResult(NamedTuple):
    """Result of a merge: the changes to the branch, sorted by key. Without a commit, there was nothing to do.

    Large values are not read (`Repository.resolved`).
    """

    commit: Commit | None
    changes: tuple[KeyChange, ...]


class MergeInput(NamedTuple):
    """Input of a merge: the changes between two commits, and the information for the new commit."""

    bases: Sequence[str]
    """Merge bases, newest first; several are merged with each other."""
    source: str
    info: CommitInfo
    second_parent: str | None = None


Plan = Callable[[Branch], Awaitable[MergeInput | None]]
"""Return the changes to apply to a branch, which may differ at the next try; None if the branch has them."""


async def merge(
    repo: RepositoryAccess,
    source: str,
    dest: str,
    message: str = "",
    *,
    strategy: Strategy | None = None,
    squash: bool = False,
    dry_run: bool = False,
) -> MergeResult:
    """Merge the source's changes since the merge base into a branch; no commit if it has them already.

    Raises MergeConflict, UnrelatedHistories, HasStagedChanges, RefNotFound, UsageError, and ConflictError after too
    many retries.
    """
    info = CommitInfo(message or f"Merge {source} into {dest}", repo.author, allow_empty=True)

    async def plan(head: Branch) -> MergeInput | None:
        theirs = await refs.committed(repo.store, source)
        bases = await merge_bases(CommitReader(repo.store), [theirs], [head.commit])
        if not bases:
            raise UnrelatedHistories(source, dest)
        return None if bases == [theirs] else MergeInput(bases, theirs, info, None if squash else theirs)

    return await _combine(repo, dest, plan, strategy=strategy, is_merge=True, dry_run=dry_run)


async def revert(
    repo: RepositoryAccess,
    branch: str,
    ref: str,
    *,
    parent: int | None = None,
    strategy: Strategy | None = None,
    dry_run: bool = False,
) -> MergeResult:
    """Undo a commit's changes; for a merge, those since this parent. Raises NothingToCommit, and as `merge`."""

    async def plan(_: Branch) -> MergeInput:
        identity, before = await _commit_and_parent(repo.store, ref, parent)
        title = (await refs.commit(repo.store, identity)).message.partition("\n")[0]
        return MergeInput([identity], before, CommitInfo(_reverse(title, identity), repo.author, {"reverts": identity}))

    return await _combine(repo, branch, plan, strategy=strategy, dry_run=dry_run)


async def cherry_pick(
    repo: RepositoryAccess,
    branch: str,
    ref: str,
    *,
    parent: int | None = None,
    strategy: Strategy | None = None,
    dry_run: bool = False,
) -> MergeResult:
    """Apply a commit's changes to a branch. Raises as `revert`."""

    async def plan(_: Branch) -> MergeInput:
        identity, before = await _commit_and_parent(repo.store, ref, parent)
        message = (await refs.commit(repo.store, identity)).message
        return MergeInput([before], identity, CommitInfo(message, repo.author, {"cherry-picked-from": identity}))

    return await _combine(repo, branch, plan, strategy=strategy, dry_run=dry_run)


async def reset_hard(repo: RepositoryAccess, branch: str, ref: str, *, dry_run: bool = False) -> Commit:
    """Move a branch without staged changes to a commit; return that commit.

    Raises HasStagedChanges, RefNotFound, UsageError, ConflictError after too many retries.
    """
    for _ in range(branch_state.MAX_ATTEMPTS):
        state = await commits.read_clean(repo, branch, linking=True, dry_run=dry_run)
        identity = await refs.committed(repo.store, ref)
        found = await refs.commit(repo.store, identity)
        if dry_run or identity == state.branch.commit:
            return found
        changes = [state.record.replaced(state.branch.at(identity, found)), state.collections.touched]
        if await repo.store.written(state.clean, changes):
            return found
        await branch_state.pause()
    raise branch_state.busy(branch)


async def _combine(
    repo: RepositoryAccess,
    branch: str,
    plan: Plan,
    *,
    strategy: Strategy | None = None,
    is_merge: bool = False,
    dry_run: bool = False,
) -> MergeResult:
    """Apply a plan's changes to a branch; a merge without changes and with one parent creates no commit.

    Raises MergeConflict, HasStagedChanges, NothingToCommit, ConflictError after too many retries, and as the plan.
    """
    for _ in range(branch_state.MAX_ATTEMPTS):
        state = await commits.read_clean(repo, branch, linking=True, dry_run=dry_run)
        if (sides := await plan(state.branch)) is None:
            return MergeResult(None, ())
        try:
            edits, changes = await _edits(repo, sides, state.branch, strategy)
        except MissingObject:
            if (await branch_state.collections(repo.store)).revision == state.collections.revision:
                raise
            continue  # unreachable commits were collected concurrently
        if dry_run or (is_merge and not edits and sides.second_parent is None):
            return MergeResult(None, changes)
        made = await commits.move(repo, state, sides.info, edits, second_parent=sides.second_parent, linking=True)
        if made is not None:
            return MergeResult(made, changes)
        await branch_state.pause()
    raise branch_state.busy(branch)


def _reverse(title: str, identity: str) -> str:
    """Return the title of a commit that reverts another one; of a revert, that its changes are applied again."""
    reverted = _REVERSED.fullmatch(title)
    if reverted:
        return f"{'Reapply' if reverted[1] == 'Revert' else 'Revert'} `{reverted[2]}`"
    return f"Revert `{title}`" if title else f"Revert {identity[:12]}"


_REVERSED = pattern(r"(Revert|Reapply) `(.+)`")


async def _edits(
    repo: RepositoryAccess, sides: MergeInput, head: Branch, strategy: Strategy | None
) -> tuple[list[Edit], tuple[KeyChange, ...]]:
    """Return the changes to the head. Raises MergeConflict."""
    ours, theirs = await since_base(repo, sides.bases, sides.source, head.commit)
    found = tree.merge(ours, theirs, strategy)
    if found.conflicts:
        raise MergeConflict(_conflicts(found.conflicts))
    return found.edits, _changes(found.edits, ours, theirs)


def _changes(
    edits: Sequence[Edit], ours: Sequence[TreeDifference], theirs: Sequence[TreeDifference]
) -> tuple[KeyChange, ...]:
    held = {one.key: one.before for one in ours} | {one.key: one.after for one in theirs}
    return tuple(KeyChange.of(key, shown(held[key]), shown(value)) for key, value in edits)


def _conflicts(conflicts: Sequence[Conflict]) -> list[KeyConflict]:
    return [KeyConflict(one.key.decode(), shown(one.base), shown(one.source), shown(one.dest)) for one in conflicts]


async def _commit_and_parent(store: Store, ref: str, parent: int | None) -> tuple[str, str]:
    identity = await refs.committed(store, ref)
    parents = (await refs.commit(store, identity)).parents
    if not parents:
        raise UsageError(f"`{ref}` is the first commit and has no parent")
    if len(parents) > 1 and parent is None:
        raise UsageError(f"`{ref}` is a merge", hint="`--parent 1` selects the branch that it was merged into")
    number = 1 if parent is None else parent
    if not 1 <= number <= len(parents):
        has = "one parent" if len(parents) == 1 else f"{len(parents)} parents"
        raise UsageError(f"`{ref}` has {has}; parent {number} does not exist")
    return identity, parents[number - 1]
