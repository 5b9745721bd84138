"""Commands of `kvctl repo` on repositories: init, ls, show, delete."""

from contextlib import suppress
from typing import Annotated

import kvctl
from kvctl.cli import records
from kvctl.cli.app.command import command, group
from kvctl.cli.app.options import Confirm, DryRun, Force, NewName, Yes, argument, deletes, live
from kvctl.cli.app.session import Session
from kvctl.cli.bucket.options import Given, setting_options
from kvctl.cli.flows import show_config, show_deletion, show_result
from kvctl.cli.records import ANY, CHANGE, COMMIT, REPOSITORY, REPOSITORY_CHANGE, REPOSITORY_DELETION, REPOSITORY_ROW
from kvctl.cli.repo import views
from kvctl.cli.repo.checkout import FromBucket, begin_with, live_bucket
from kvctl.cli.repo.options import Author, Name, open_repository, parse_at, parse_name, writable
from kvctl.errors import KvctlError, UsageError
from kvctl.kv import stream_kind
from kvctl.kv.names import is_ref
from kvctl.render.fields import columns
from kvctl.render.view import View
from kvctl.topology.hazards import hazards
from kvctl.topology.survey import graph, inventory
from kvctl.versions import catalog, refs, repositories

group(
    "repo",
    """Versioned buckets: branches, commits, diff, merge, roll back

    A repository holds configuration that is changed with care. Keys are written to a branch with the same commands as
    in a bucket (`kvctl put NAME@BRANCH KEY VALUE`), and are staged until they are committed. Every commit can be read,
    compared, restored, and checked out to a bucket.
    """,
)


RepositorySettings = Annotated[Given, setting_options("repository")]
Place = Annotated[str, argument("NAME|NAME@REF", "Repository, or one of its commits", live("places", names=True))]


@command(
    "repo init",
    examples=[
        "kvctl repo init config",
        "kvctl repo init config --replicas 3 --description 'Settings of the services'",
        "kvctl repo init config --from services",
    ],
    see=["repo show", "put", "help versions"],
    prints=(REPOSITORY_CHANGE, ANY),
    forces=lambda: (hazards.LAGGING_REPLICA,),
)
async def init(
    session: Session,
    name: NewName,
    source: FromBucket = None,
    author: Author = None,
    *,
    settings: RepositorySettings,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Create a repository.

    A repository starts with an empty commit on the branch `main`. With --from, a second commit records a live bucket.
    If the repository already exists with this configuration, nothing changes; with another configuration the command
    fails (4). Run the command again to complete an interrupted creation.

    A mirror or an aggregate that lacks entries of its origins after five seconds is not recorded without --force
    lagging-replica.
    """
    config = kvctl.RepositoryConfig(name, settings=settings)
    wanted = config.stream(1)  # usage errors are raised before anything is sent
    if author == "":
        raise UsageError("The author must not be empty")
    bucket = await live_bucket(session, source, force, dry_run=dry_run)
    if dry_run:
        remarks = [f"records bucket `{bucket.name}`"] if bucket is not None else []
        show_config(session, f"repository `{name}`", wanted, remarks=remarks)
        return
    repository, fresh = await repositories.create(await writable(session), config, author=author)
    begun = bucket is not None and await begin_with(session, repository, bucket)
    text = f"Created repository `{name}`" if fresh else f"Repository `{name}` already exists with this configuration"
    if not fresh and not await repository.branches():
        newest = await refs.newest(repository.store)
        text += ", but has no branches. Create one at the newest commit: "
        text += f"`kvctl branch create {name}@main --from {newest}`"
    if not fresh and bucket is not None:
        text += f"; {'recorded' if begun else 'did not record'} bucket `{bucket.name}`"
    show_result(session, {"name": name, "stream": wanted["name"], "changed": fresh or begun}, text)


@command(
    "repo ls",
    examples=["kvctl repo ls", "kvctl repo ls -o name"],
    see=["repo show"],
    prints=(REPOSITORY_ROW,),
    listing=True,
)
async def ls(session: Session) -> None:
    """List repositories."""
    rows = [views.repository_row(found) for found in await catalog.listing((await session.client()).api)]
    shown = columns("name replicas bytes created description")
    empty = "No repositories; create one with `kvctl repo init NAME`"
    session.show(View(columns=shown, rows=rows, empty=empty))


@command(
    "repo show",
    examples=["kvctl repo show config", "kvctl repo show config@main~1 -o json"],
    see=["repo log", "repo diff", "branch ls"],
    prints=(REPOSITORY, COMMIT),
    in_pipe="fields",
)
async def show(session: Session, name: Place) -> None:
    """Show a repository or a commit.

    A repository is shown with its branches, what is staged on them, and its tags. A ref is a branch, a tag, a commit
    id, or a prefix of one with at least four characters. Append `~2` for the parent's parent, or `^2` for the second
    parent of a merge.
    """
    if is_ref(name):
        at = parse_at(name)
        shown = await (await open_repository(session, at.repository)).show(at.ref)
        session.show(views.commit_document(shown, records.COMMIT.fields))
        return
    found, repository = await repositories.opened((await session.client()).api, parse_name(name))
    branches, tags = await repository.branches(), await repository.tags()
    rows = await views.branch_rows(repository, branches) if session.output == "table" else None
    session.show(views.repository_document(found, branches, tags, rows))


@command(
    "repo delete",
    examples=["kvctl repo delete config", "kvctl repo delete config --yes"],
    see=["branch delete", "repo ls"],
    prints=(REPOSITORY_DELETION, CHANGE),
)
@deletes("name")
async def delete(
    session: Session, name: Name, yes: Yes = False, confirm: Confirm = None, dry_run: DryRun = False
) -> None:
    """Delete a repository with all its branches and commits.

    If the repository has mirrors, they are listed, and its name must be typed or given with --confirm. Mirrors keep
    their data but receive no new data. The name is also required while a stream that may be a mirror does not answer.
    """
    parse_name(name)
    api = (await session.client()).api if dry_run else await writable(session)
    found = await catalog.find(api, name)
    dependents: list[graph.Dependent] = []
    with suppress(KvctlError):  # its mirrors, and streams that do not answer and may be mirrors
        dependents = await inventory.dependents(api, found.stream)
    mirrors = [item.node.name for item in dependents if item.node.kind != stream_kind.Kind.UNKNOWN]
    row = {"name": name, "stream": found.stream, "dependents": [{"name": mirror} for mirror in mirrors]}
    if dry_run:
        show_deletion(session, f"repository `{name}`", row, "deletes all its branches and commits", dependents)
        return
    for mirror in mirrors:
        session.note(f"Mirror `{mirror}` replicates from `{name}`", always=True)
    if silent := [f"`{item.node.stream}`" for item in dependents if item.node.kind == stream_kind.Kind.UNKNOWN]:
        session.warn(f"Offline streams that may be mirrors of `{name}`: {', '.join(silent)}")
    question = f"Delete repository `{name}` with all its branches and commits?"
    if dependents or confirm is not None:
        hint = f"Add `--confirm {name}`. All its branches and commits will be removed"
        await session.confirm(question, typed_name=name, confirmed=confirm, hint=hint)
    else:
        await session.confirm(question, yes=yes)
    await catalog.delete(api, name)
    show_result(session, {**row, "changed": True}, f"Deleted repository `{name}`")
