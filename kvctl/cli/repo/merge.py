"""`kvctl repo merge`, `revert`, `cherry-pick`, `merge-base` and `reset`."""

from collections.abc import Awaitable
from typing import Annotated

import kvctl
from kvctl.cli.app.command import command
from kvctl.cli.app.options import DryRun, Unasked, flag, number, one_of, option
from kvctl.cli.app.session import Session
from kvctl.cli.flows import show_result
from kvctl.cli.records import COMMIT, KEY_CHANGE, MERGE_CONFLICT, NEW_COMMIT, RESET
from kvctl.cli.repo import views
from kvctl.cli.repo.options import (
    At,
    AtBranch,
    Author,
    Name,
    open_branch,
    open_repository,
    parse_branch,
    parse_name,
    parse_ref,
    ref_argument,
    ref_option,
)
from kvctl.errors import UsageError
from kvctl.kv import names
from kvctl.phrases import counted
from kvctl.render.fields import columns
from kvctl.render.view import View
from kvctl.versions import merges
from kvctl.versions.tree import tree

STRATEGIES = ("source-wins", "dest-wins")

Commit = Annotated[str, ref_argument("COMMIT", "Commit: its id or any ref")]
Wins = Annotated[
    str | None,
    option("--strategy", "STRATEGY", "Side that wins conflicts: `source-wins` or `dest-wins`", one_of(*STRATEGIES)),
]
Parent = Annotated[int | None, number("--parent", "For a merge commit: number of the parent to compare with, from 1")]


@command(
    "repo merge",
    examples=[
        "kvctl repo merge config try main",
        "kvctl repo merge config try main --dry-run",
        "kvctl repo merge config hotfix main --strategy source-wins -m 'Hotfix of the outage'",
    ],
    see=["repo diff", "repo merge-base", "repo revert"],
    prints=(NEW_COMMIT, KEY_CHANGE, MERGE_CONFLICT),
)
async def merge(
    session: Session,
    name: Name,
    source: Annotated[str, ref_argument("SRC", "Branch, tag or commit to merge")],
    dest: Annotated[str, ref_argument("DST", "Branch to merge into")],
    strategy: Wins = None,
    squash: Annotated[bool, flag("--squash", "Make one commit without a second parent")] = False,
    message: Annotated[
        str | None, option("--message -m", "MSG", "Commit message [default: `Merge SRC into DST`]")
    ] = None,
    author: Author = None,
    dry_run: DryRun = False,
) -> None:
    """Merge a branch, tag or commit into a branch.

    The changes of SRC since the merge base are applied to DST as one commit with both as parents, and its id is
    printed. A key that both sides changed differently is a conflict. Conflicts are listed, nothing is changed, and the
    exit code is 4. --strategy resolves conflicts and affects no other keys.

    If SRC is already merged, DST's last commit is printed. A branch with staged changes cannot be merged into (4).
    Unrelated histories exit with 1.
    """
    place, ref = parse_branch(f"{parse_name(name)}@{parse_ref(dest, name)}"), parse_ref(source, name)
    wins = _strategy(strategy)
    if message is not None and not message.strip():
        raise UsageError("The message must not be empty")
    repository = await open_branch(session, place, write=not dry_run, author=author)
    combined = repository.merge(ref, place.ref, message or "", strategy=wins, squash=squash, dry_run=dry_run)
    await _combine(session, repository, place, combined, dry_run, f"`{ref}` is already merged into `{place.ref}`")


@command(
    "repo revert",
    examples=["kvctl repo revert config@main main~1", "kvctl repo revert config@main 1a2b3c4d --dry-run"],
    see=["repo cherry-pick", "repo reset", "revert"],
    prints=(NEW_COMMIT, KEY_CHANGE, MERGE_CONFLICT),
)
async def revert(
    session: Session,
    at: AtBranch,
    commit: Commit,
    parent: Parent = None,
    strategy: Wins = None,
    author: Author = None,
    dry_run: DryRun = False,
) -> None:
    """Undo a commit with a new commit.

    Later changes are kept. Keys that were changed again after the commit are conflicts; they are listed, and nothing is
    changed (4). --strategy resolves them: with source-wins they get the value from before the commit, with dest-wins
    they keep the one that they have. For a merge commit, --parent selects the side to keep: 1 is the branch that was
    merged into.
    """
    place, wins = parse_branch(at), _strategy(strategy)
    repository = await open_branch(session, place, write=not dry_run, author=author)
    ref = parse_ref(commit, place.repository)
    combined = repository.revert(place.ref, ref, parent=parent, strategy=wins, dry_run=dry_run)
    await _combine(session, repository, place, combined, dry_run, "Nothing to revert")


@command(
    "repo cherry-pick",
    examples=["kvctl repo cherry-pick config@release 1a2b3c4d", "kvctl repo cherry-pick config@release main~1"],
    see=["repo merge", "repo revert"],
    prints=(NEW_COMMIT, KEY_CHANGE, MERGE_CONFLICT),
)
async def cherry_pick(
    session: Session,
    at: AtBranch,
    commit: Commit,
    parent: Parent = None,
    strategy: Wins = None,
    author: Author = None,
    dry_run: DryRun = False,
) -> None:
    """Apply a commit's changes to another branch.

    The new commit has the same message, and its metadata names the original. Keys whose value on the branch differs
    from the commit's parent are conflicts; they are listed, and nothing is changed (4). --strategy resolves them: with
    source-wins they get the commit's value, with dest-wins they keep the branch's.
    """
    place, wins = parse_branch(at), _strategy(strategy)
    repository = await open_branch(session, place, write=not dry_run, author=author)
    ref = parse_ref(commit, place.repository)
    combined = repository.cherry_pick(place.ref, ref, parent=parent, strategy=wins, dry_run=dry_run)
    await _combine(session, repository, place, combined, dry_run, "Nothing to cherry-pick")


def _strategy(text: str | None) -> "tree.Strategy | None":
    """Return the strategy of an option. Raises UsageError."""
    if text is not None and text not in STRATEGIES:
        raise UsageError(f"`{text}` is not a merge strategy", hint=f"Use one of {', '.join(STRATEGIES)}")
    return tree.Strategy(text) if text else None


async def _combine(
    session: Session,
    repository: "kvctl.Repository",
    place: "At",
    combined: "Awaitable[merges.MergeResult]",
    dry_run: bool,
    idle: str,
) -> None:
    """Run it and print the commit, with `dry_run` the changes, or the conflicts. Raises MergeConflict."""
    try:
        done = await combined
    except merges.MergeConflict as error:
        await views.show_conflicts(session, repository, error.conflicts)
        raise
    if dry_run:
        await views.show_changes(session, repository, done.changes, empty="Nothing would change")
        return
    if done.commit is None:
        session.note(idle, always=True)
        views.show_made(session, place.ref, await repository.show(place.ref))
        return
    views.show_made(session, place.ref, done.commit)


@command(
    "repo merge-base",
    examples=["kvctl repo merge-base config main try", "kvctl repo merge-base config main try --all -o name"],
    see=["repo merge", "repo diff"],
    prints=(NEW_COMMIT, COMMIT),
)
async def merge_base(
    session: Session,
    name: Name,
    one: Annotated[str, ref_argument("A", "First ref")],
    other: Annotated[str, ref_argument("B", "Second ref")],
    every: Annotated[bool, flag("--all", "Show all best common commits")] = False,
) -> None:
    """Show the newest common commit of two refs.

    Prints its id, or in JSON the commit. Unrelated histories exit with 1.

    --all shows all best common commits, newest first: those that are not ancestors of another one. Crossing merges have
    several. A merge takes them merged with each other as its base.
    """
    refs = [parse_ref(text, parse_name(name)) for text in (one, other)]
    repository = await open_repository(session, name)
    found = [await repository.show(base) for base in await repository.merge_bases(*refs)]
    if every:
        rows = [views.commit_row(commit) for commit in found]
        session.show(View(columns=columns("id author created message"), rows=rows, name="id"))
    else:
        views.show_commit(session, found[0])


@command(
    "repo reset",
    examples=[
        "kvctl repo reset config@main",
        "kvctl repo reset config@main --key app.port",
        "kvctl repo reset config@main --hard main~2",
    ],
    see=["repo status", "repo revert"],
    prints=(RESET, NEW_COMMIT, KEY_CHANGE),
)
async def reset(
    session: Session,
    at: AtBranch,
    key: Annotated[str | None, option("--key", "KEY", "Reset only this key")] = None,
    prefix: Annotated[str | None, option("--prefix", "P", "Reset only keys with this prefix")] = None,
    hard: Annotated[str | None, ref_option("--hard", "Move the branch to this commit instead")] = None,
    yes: Unasked = False,
    dry_run: DryRun = False,
) -> None:
    """Drop staged changes, or move a branch to another commit.

    Staged changes of all keys, of one key (--key), or of keys with a prefix (--prefix) are dropped permanently.

    --hard moves a branch; it fails if the branch has staged changes (4). Commits that no branch or tag reaches can be
    read by their ids until `kvctl repo gc`.
    """
    place = parse_branch(at)
    if sum(option is not None for option in (key, prefix, hard)) > 1:
        raise UsageError("`--key`, `--prefix` and `--hard` cannot be combined")
    if "" in (key, prefix, hard):
        raise UsageError("`--key`, `--prefix` and `--hard` must not be empty; omit them to drop all staged changes")
    repository = await open_branch(session, place, write=not dry_run)
    if hard is not None:
        await _reset_hard(session, repository, place, parse_ref(hard, place.repository), dry_run)
    else:
        await _reset_staged(session, repository, place, key, prefix, dry_run)


async def _reset_staged(
    session: Session, repository: "kvctl.Repository", place: "At", key: str | None, prefix: str | None, dry_run: bool
) -> None:
    if key is not None:
        names.check_key(key)
    staged = [one.key for one in (await repository.status(place.ref)).changes]
    dropped = [one for one in staged if (key is None or one == key) and one.startswith(prefix or "")]
    if not dry_run:
        if key is not None:
            await repository.reset_key(place.ref, key)
        elif prefix is not None:
            await repository.reset_prefix(place.ref, prefix)
        else:
            await repository.reset(place.ref)
    done = f"{'Would drop' if dry_run else 'Dropped'} {counted(len(dropped), 'staged change')} of `{place}`"
    keys = [{"key": one} for one in dropped]
    row = {"repository": place.repository, "branch": place.ref, "keys": keys, "changed": bool(dropped)}
    idle = f"Nothing {'matching ' if key or prefix else ''}is staged on `{place}`"
    show_result(session, row, done if dropped else idle)


async def _reset_hard(session: Session, repository: "kvctl.Repository", place: "At", ref: str, dry_run: bool) -> None:
    moved = await repository.reset_hard(place.ref, ref, dry_run=dry_run)
    if dry_run:
        found = await repository.diff(place.ref, moved.id)
        await views.show_changes(session, repository, found, empty="Nothing would change")
        return
    views.show_made(session, place.ref, moved)
