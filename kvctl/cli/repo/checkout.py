"""Live buckets: a commit rolled out to one, and one recorded as a commit."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import DryRun, Yes, bucket_names
from kvctl.cli.app.session import Session
from kvctl.cli.bucket.data import counted
from kvctl.cli.repo.options import AtRef, open_repository, parse_at
from kvctl.errors import ConflictError
from kvctl.render.view import Column, View, document

if TYPE_CHECKING:
    from kvctl.cli.repo.options import At
    from kvctl.kv.bucket import Bucket
    from kvctl.versions.model import Commit
    from kvctl.versions.repository import Repository
    from kvctl.versions.transfer.checkout import RolledOut, Rollout

app = group()

FromBucket = Annotated[
    str | None,
    typer.Option("--from", metavar="BUCKET", help="Take what this live bucket holds", autocompletion=bucket_names),
]

SHOWN = 20
"""Changes that are listed before the question is asked; `--dry-run` lists all."""


@command(
    app,
    "checkout",
    examples=[
        "kvctl repo checkout config@v1.2 --to services --dry-run",
        "kvctl repo checkout config@main --to services",
        "kvctl repo checkout config@main~1 --to services --yes",
    ],
    see=["repo commit", "repo diff", "bucket diff", "help versions"],
)
async def checkout(
    session: Session,
    at: AtRef,
    to: Annotated[
        str,
        typer.Option("--to", metavar="BUCKET", help="Bucket to make equal to it", autocompletion=bucket_names),
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Make a live bucket equal to a commit.

    Writes only what differs and deletes what the commit has not, each key on condition that it is still as it was read
    for the plan: one that somebody changed meanwhile is left alone and reported (4). In a bucket that takes atomic
    batches (`--atomic`) up to 1,000 changes are one batch, of which no reader ever sees a part; more, or elsewhere,
    they are done key by key, and running an interrupted checkout again completes it.

    At a branch, what is committed counts, not what is staged. A commit holds keys and values only: keys that lose a ttl
    or headers are named, and keys that ADR-8 does not allow stay as they are.
    """
    from kvctl.kv.names import check_bucket
    from kvctl.versions.transfer import checkout

    place = parse_at(at)
    check_bucket(to)
    repository = await open_repository(session, place.repository)
    bucket = (await session.client()).bucket(to, read_only=session.context.read_only)
    rollout = await checkout.plan(repository, place.ref, bucket, dry_run=dry_run)
    _warn(session, rollout)
    if dry_run:
        session.show(_view(_rows(rollout)))
        return
    if rollout.steps:
        _preview(session, rollout)
        await session.confirm(_question(rollout), yes=yes)
    with session.progress(f"Rolling out to {to}", len(rollout.steps)) as progress:
        done = await checkout.carry_out(rollout, bucket, advance=progress.advance)
    _report(session, place, rollout, done)


async def live_bucket(session: Session, name: str | None) -> "Bucket | None":
    """The bucket to take from, if one was named. Raises BucketNotFound, UsageError."""
    if name is None:
        return None
    bucket = (await session.client()).bucket(name)
    await bucket.locate()
    return bucket


async def record(
    session: Session, repository: "Repository", branch: str, bucket: "Bucket", message: str, **settings: Any
) -> "Commit":
    """Commit what a live bucket holds, and say what a commit has no room for. Raises as `live.record`."""
    from kvctl.cli.repo.views import listed_keys
    from kvctl.versions.transfer import bucket_snapshot

    made, found = await bucket_snapshot.record(repository, branch, bucket, message, **settings)
    if found.adorned:
        session.warn(f"{listed_keys(sorted(found.adorned))}: without their ttl and headers, a commit has none")
    if found.foreign:
        session.warn(f"{listed_keys(sorted(found.foreign))}: not what ADR-8 calls a key, and left out")
    return made


async def begin_with(session: Session, repository: "Repository", bucket: "Bucket") -> bool:
    """Record a live bucket in a repository that has only its first commit yet; whether something was recorded."""
    from contextlib import suppress

    from kvctl.versions.commits import NothingToCommit
    from kvctl.versions.refs import MAIN

    if not (await repository.show(MAIN)).parents:
        with suppress(NothingToCommit):
            await record(session, repository, MAIN, bucket, f"Bucket {bucket.name}")
            return True
    return False


def _warn(session: Session, rollout: "Rollout") -> None:
    from kvctl.cli.repo.views import listed_keys

    if rollout.adorned:
        session.warn(f"{listed_keys(rollout.adorned)}: ttl and headers are lost, a commit has none")
    if rollout.foreign:
        session.warn(f"{listed_keys(rollout.foreign)}: not what ADR-8 calls a key, and left alone")


def _rows(rollout: "Rollout") -> list[dict[str, Any]]:
    return [{"change": step.kind.value, "key": step.key, "revision": step.revision} for step in rollout.steps]


def _view(rows: list[dict[str, Any]]) -> View:
    from kvctl.cli.repo.views import sign_of, style_of

    columns = [Column("change", "", text=sign_of, style=style_of), Column("key"), Column("revision", right=True)]
    return View(columns=columns, rows=rows, name="key", empty="Nothing differs")


def _preview(session: Session, rollout: "Rollout") -> None:
    """What the question is about, on stderr of a terminal."""
    from kvctl.cli.repo.views import sign_of

    for step in rollout.steps[:SHOWN]:
        session.note(f"{sign_of(step.kind.value)} {step.key}")
    if len(rollout.steps) > SHOWN:
        session.note(f"... and {len(rollout.steps) - SHOWN:,} more; `--dry-run` lists all")


def _question(rollout: "Rollout") -> str:
    removed = sum(step.kind == "removed" for step in rollout.steps)
    written = len(rollout.steps) - removed
    parts = [f"write {counted(written, 'key')}"] if written else []
    parts += [f"delete {counted(removed, 'key')}"] if removed else []
    text = " and ".join(parts)
    return f"{text[0].upper()}{text[1:]} in bucket `{rollout.bucket}`?"


def _report(session: Session, place: "At", rollout: "Rollout", done: "RolledOut") -> None:
    kept, equal = set(done.changed_meanwhile), set(done.done_by_others)
    carried = [] if done.at_once and kept else [step for step in rollout.steps if step.key not in kept | equal]
    removed = sum(step.kind == "removed" for step in carried)
    row = {
        "repository": place.repository,
        "ref": place.ref,
        "commit": rollout.commit,
        "bucket": rollout.bucket,
        "written": len(carried) - removed,
        "removed": removed,
        "unchanged": rollout.unchanged + len(equal),
        "conflicts": sorted({*done.changed_meanwhile, *done.written_by_others}),
    }
    if session.output != "table":
        session.show(document(row, *(Column(name) for name in row), name="commit"))
    elif not kept and not done.written_by_others:
        text = f"{row['written']} written, {removed} deleted" if carried else "nothing to do"
        session.note(f"Bucket `{rollout.bucket}` is as `{place}` ({rollout.commit[:12]}): {text}", always=True)
    if kept:
        raise _conflict(rollout, done)
    if done.written_by_others:
        raise _moved_on(rollout, done)


def _moved_on(rollout: "Rollout", done: "RolledOut") -> ConflictError:
    """All changes were made, and the bucket is not as the commit: others wrote what the comparison had not seen."""
    from kvctl.cli.repo.views import listed_keys

    return ConflictError(
        f"Others wrote {listed_keys(done.written_by_others)} to bucket `{rollout.bucket}` since it was compared; "
        f"all {counted(done.done, 'change')} were made",
        hint="Look at what was written, then run it again: it compares the bucket anew",
    )


def _conflict(rollout: "Rollout", done: "RolledOut") -> ConflictError:
    from kvctl.cli.repo.views import listed_keys

    left = "nothing was changed" if done.at_once else f"{counted(done.done, 'other change')} were carried out"
    return ConflictError(
        f"{listed_keys(done.changed_meanwhile)} changed in bucket `{rollout.bucket}` meanwhile; {left}",
        hint="Look at what was written, then run it again: it compares anew",
    )
