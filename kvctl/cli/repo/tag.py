"""`kvctl tag`: list, create and delete tags."""

from typing import Annotated

import kvctl
from kvctl.cli.app.command import command, group
from kvctl.cli.app.options import DryRun, Unasked, deletes
from kvctl.cli.app.session import Session
from kvctl.cli.flows import show_result
from kvctl.cli.records import CHANGE, REF_CHANGE, TAG, TAG_ROW
from kvctl.cli.repo import views
from kvctl.cli.repo.options import At, AtTag, Name, open_repository, parse_name, parse_ref, parse_tag, ref_argument
from kvctl.errors import ConflictError
from kvctl.render.fields import columns, short
from kvctl.render.view import Column, View, document
from kvctl.versions import refs

group(
    "tag",
    """Tags of versioned buckets

    A tag is a permanent name for a commit, such as a release.
    """,
)


@command(
    "tag ls", examples=["kvctl tag ls config", "kvctl tag ls config -o ndjson"], see=["tag create"], prints=(TAG_ROW,)
)
async def ls(session: Session, name: Name) -> None:
    """List tags, each with its commit."""
    repository = await open_repository(session, parse_name(name))
    tags = sorted((await repository.tags()).items())
    rows = [views.ref_row(tag, await repository.show(commit)) for tag, commit in tags]
    session.show(View(columns=views.TAGS, rows=rows, empty="No tags"))


@command("tag show", examples=["kvctl tag show config@v1"], see=["tag ls", "repo show"], prints=(TAG,))
async def show(session: Session, at: AtTag) -> None:
    """Show a tag with its commit."""
    place = parse_tag(at)
    repository = await open_repository(session, place.repository)
    commit = views.commit_row(await repository.show(await _commit_of(repository, place)))
    row = {"name": place.ref, "repository": place.repository, "commit": commit["id"], "last": commit}
    last = View(columns=views.COMMIT[1:], rows=[commit], single=True)
    looks = {"name": Column("name", style="green"), "commit": Column("commit", style="yellow")}
    shown = columns("name repository commit", **looks)
    session.show(document(row, *shown, tsv=TAG.columns, sections=[("Commit", last)]))


@command(
    "tag create",
    examples=["kvctl tag create config@v1", "kvctl tag create config@before-outage main~3"],
    see=["tag ls", "branch create"],
    prints=(REF_CHANGE,),
)
async def create(
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
    repository = await open_repository(session, place.repository, write=not dry_run)
    commit = await refs.committed(repository.store, parse_ref(ref, place.repository))
    found = (await repository.tags()).get(place.ref)
    if found not in (None, commit):
        raise ConflictError(
            f"Tag `{place.ref}` already exists at commit `{short(str(found))}`",
            hint=f"Choose another name, or delete the tag with `kvctl tag delete {place}`",
        )
    if found is None and not dry_run and not await repository.create_tag(place.ref, commit):
        found = commit
    row = {"name": place.ref, "repository": place.repository, "commit": commit, "changed": found is None}
    done = f"{'Would tag' if dry_run else 'Tagged'} `{short(commit)}` as `{place.ref}`"
    text = done if found is None else f"Tag `{place.ref}` already exists at this commit"
    show_result(session, row, text, always=dry_run or found is not None)


@command("tag delete", examples=["kvctl tag delete config@v1"], see=["tag ls"], prints=(REF_CHANGE, CHANGE))
@deletes("at")
async def delete(session: Session, at: AtTag, yes: Unasked = False, dry_run: DryRun = False) -> None:
    """Delete a tag.

    Its commit is kept while a branch or another tag reaches it.
    """
    place = parse_tag(at)
    repository = await open_repository(session, place.repository, write=not dry_run)
    commit = await _commit_of(repository, place)
    if not dry_run:
        await repository.delete_tag(place.ref)
    row = {"name": place.ref, "repository": place.repository, "commit": commit}
    text = f"{'Would delete' if dry_run else 'Deleted'} tag `{place.ref}`, at commit `{short(commit)}`"
    show_result(session, row if dry_run else {**row, "changed": True}, text, always=dry_run)


async def _commit_of(repository: "kvctl.Repository", place: "At") -> str:
    """Return the id of a tag's commit. Raises RefNotFound."""
    commit = (await repository.tags()).get(place.ref)
    if commit is None:
        hint = f"List the tags with `kvctl tag ls {place.repository}`"
        raise refs.RefNotFound(f"Tag `{place.ref}` does not exist", hint=hint)
    return commit
