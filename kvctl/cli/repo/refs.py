"""`kvctl branch` and `kvctl tag`."""

from typing import Annotated

import kvctl
from kvctl.cli.app.command import command, group
from kvctl.cli.app.options import DryRun, Unasked, Yes, deletes
from kvctl.cli.app.session import Session
from kvctl.cli.flows import show_deletion, show_planned, show_result
from kvctl.cli.records import BRANCH, BRANCH_DELETION, BRANCH_ROW, CHANGE, REF_CHANGE, TAG, TAG_ROW
from kvctl.cli.repo import views
from kvctl.cli.repo.options import (
    At,
    AtBranch,
    AtTag,
    Name,
    open_branch,
    open_repository,
    parse_at,
    parse_branch,
    parse_name,
    parse_ref,
    parse_tag,
    ref_argument,
    ref_option,
)
from kvctl.errors import ConflictError
from kvctl.phrases import counted
from kvctl.render.fields import short
from kvctl.render.view import View, document
from kvctl.versions import refs

group(
    "branch",
    """Branches of versioned buckets

    A branch is a line of commits, plus the changes staged since the last one. Staged changes are visible only at the
    branch until they are committed.
    """,
)


@command(
    "branch ls",
    examples=["kvctl branch ls config", "kvctl branch ls config -o name"],
    see=["branch show"],
    prints=(BRANCH_ROW,),
    listing=True,
)
async def branch_ls(session: Session, name: Name) -> None:
    """List branches, each with its last commit and count of staged changes."""
    repository = await open_repository(session, parse_name(name))
    rows = await views.branch_rows(repository, await repository.branches())
    session.show(View(columns=views.BRANCHES, rows=rows, empty="No branches"))


@command(
    "branch show",
    examples=["kvctl branch show config@main", "kvctl branch show config@main -o json | jq .staged"],
    see=["repo status", "repo log"],
    prints=(BRANCH,),
    in_pipe="fields",
)
async def branch_show(session: Session, at: AtBranch) -> None:
    """Show a branch's last commit and number of staged changes."""
    place = parse_branch(at)
    repository = await open_branch(session, place, write=False)
    status = await repository.status(place.ref)
    commit = views.commit_row(await repository.show(status.commit))
    row = {"name": place.ref, "repository": place.repository, "commit": status.commit, "staged": len(status.changes)}
    row["last"] = commit
    session.show(views.ref_document(row, "branch", BRANCH.columns))


@command(
    "branch create",
    examples=["kvctl branch create config@try", "kvctl branch create config@fix --from v1"],
    see=["branch ls", "repo merge"],
    prints=(REF_CHANGE,),
)
async def branch_create(
    session: Session,
    at: AtBranch,
    source: Annotated[str, ref_option("--from", "Commit to start from")] = "main",
    dry_run: DryRun = False,
) -> None:
    """Create a branch.

    The branch starts at the commit of --from, without staged changes. If the branch already exists at that commit,
    nothing changes. If it exists at another commit, the command fails (4).
    """
    place = parse_at(at)
    refs.check_new_name(place.ref)
    await _create(session, place, source, "branch", f"Show it with `kvctl branch show {place}`", dry_run=dry_run)


async def _create(session: Session, place: At, ref: str, kind: str, hint: str, *, dry_run: bool) -> None:
    """Create a branch or a tag at a commit. Raises ConflictError with the hint if it exists at another one."""
    repository = await open_repository(session, place.repository, write=not dry_run)
    commit = await refs.committed(repository.store, parse_ref(ref, place.repository))
    found = (await (repository.branches() if kind == "branch" else repository.tags())).get(place.ref)
    if found not in (None, commit):
        text = f"{kind.capitalize()} `{place.ref}` already exists at commit `{short(str(found))}`"
        raise ConflictError(text, hint=hint)
    create = repository.create_branch if kind == "branch" else repository.create_tag
    if found is None and not dry_run and not await create(place.ref, commit):
        found = commit
    row = {"name": place.ref, "repository": place.repository, "commit": commit, "changed": found is None}
    what, at = f"{kind} `{place.ref}` of `{place.repository}`", f"commit `{short(commit)}`"
    if found is not None:
        show_result(session, row, f"{what[:1].upper()}{what[1:]} already exists at {at}")
    elif dry_run:
        show_planned(session, "create", what, document(row, name="name"), remarks=[f"at {at}"])
    else:
        show_result(session, row, f"Created {what} at {at}")


@command(
    "branch delete",
    examples=["kvctl branch delete config@try", "kvctl branch delete config@try --yes"],
    see=["branch ls", "repo reset"],
    prints=(BRANCH_DELETION, CHANGE),
)
@deletes("at")
async def branch_delete(session: Session, at: AtBranch, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Delete a branch, with its staged changes.

    Commits are kept while another branch or a tag reaches them. `kvctl repo gc` removes unreachable commits.
    """
    place = parse_branch(at)
    repository = await open_branch(session, place, write=not dry_run)
    status = await repository.status(place.ref)
    staged = f" with {counted(len(status.changes), 'staged change')}" if status.changes else ""
    named, commit = f"branch `{place.ref}` of `{place.repository}`", f"commit `{short(status.commit)}`"
    what = f"{named}{staged}, at {commit}"
    row = {"name": place.ref, "repository": place.repository, "commit": status.commit, "staged": len(status.changes)}
    if dry_run:
        effect = (
            f"deletes {counted(len(status.changes), 'staged change')}" if status.changes else "has no staged changes"
        )
        show_deletion(session, named, row, f"{effect}; {commit} remains while another ref reaches it")
        return
    await session.confirm(f"Delete {what}?", yes=yes)
    await repository.delete_branch(place.ref)
    show_result(session, {**row, "changed": True}, f"Deleted {what}")


group(
    "tag",
    """Tags of versioned buckets

    A tag is a permanent name for a commit, such as a release.
    """,
)


@command(
    "tag ls",
    examples=["kvctl tag ls config", "kvctl tag ls config -o ndjson"],
    see=["tag create"],
    prints=(TAG_ROW,),
    listing=True,
)
async def tag_ls(session: Session, name: Name) -> None:
    """List tags, each with its commit."""
    repository = await open_repository(session, parse_name(name))
    tags = sorted((await repository.tags()).items())
    rows = [views.ref_row(tag, await repository.show(commit)) for tag, commit in tags]
    session.show(View(columns=views.TAGS, rows=rows, empty="No tags"))


@command(
    "tag show", examples=["kvctl tag show config@v1"], see=["tag ls", "repo show"], prints=(TAG,), in_pipe="fields"
)
async def tag_show(session: Session, at: AtTag) -> None:
    """Show a tag with its commit."""
    place = parse_tag(at)
    repository = await open_repository(session, place.repository)
    commit = views.commit_row(await repository.show(await _commit_of(repository, place)))
    row = {"name": place.ref, "repository": place.repository, "commit": commit["id"], "last": commit}
    session.show(views.ref_document(row, "tag", TAG.columns))


@command(
    "tag create",
    examples=["kvctl tag create config@v1", "kvctl tag create config@before-outage main~3"],
    see=["tag ls", "branch create"],
    prints=(REF_CHANGE,),
)
async def tag_create(
    session: Session,
    at: AtTag,
    ref: Annotated[str, ref_argument("REF", "Branch, tag or commit to tag")] = "main",
    dry_run: DryRun = False,
) -> None:
    """Tag a commit.

    If the tag already exists at the same commit, nothing changes. If it exists at another commit, the command fails
    (4): tags do not move. A tag and a branch cannot have the same name.
    """
    place = parse_tag(at)
    hint = f"Choose another name, or delete the tag with `kvctl tag delete {place}`"
    try:
        await _create(session, place, ref, "tag", hint, dry_run=dry_run)
    except refs.RefNotFound as error:
        branches = await (await open_repository(session, place.repository)).branches()
        if place.ref in branches and At(place.repository, ref).is_name:  # `NAME@BRANCH TAG`, the wrong way round
            error.hint = f"To tag `{place.ref}`: `kvctl tag create {place.repository}@{ref} {place.ref}`"
        raise


@command("tag delete", examples=["kvctl tag delete config@v1"], see=["tag ls"], prints=(REF_CHANGE, CHANGE))
@deletes("at")
async def tag_delete(session: Session, at: AtTag, yes: Unasked = False, dry_run: DryRun = False) -> None:
    """Delete a tag.

    Its commit is kept while a branch or another tag reaches it.
    """
    place = parse_tag(at)
    repository = await open_repository(session, place.repository, write=not dry_run)
    commit = await _commit_of(repository, place)
    if not dry_run:
        await repository.delete_tag(place.ref)
    row = {"name": place.ref, "repository": place.repository, "commit": commit}
    what, at = f"tag `{place.ref}` of `{place.repository}`", f"at commit `{short(commit)}`"
    if dry_run:
        show_deletion(session, what, row, at)
    else:
        show_result(session, {**row, "changed": True}, f"Deleted {what}, {at}")


async def _commit_of(repository: "kvctl.Repository", place: "At") -> str:
    """Return the id of a tag's commit. Raises RefNotFound."""
    commit = (await repository.tags()).get(place.ref)
    if commit is None:
        hint = f"List the tags with `kvctl tag ls {place.repository}`"
        raise refs.RefNotFound(f"Tag `{place.ref}` does not exist", hint=hint)
    return commit
