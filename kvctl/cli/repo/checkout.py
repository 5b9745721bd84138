"""What the help of `kvctl repo` lists last: checkout, annotate, gc; and recording a live bucket as a commit."""

from contextlib import suppress
from typing import Annotated, Any

import kvctl
from kvctl.cli.app.command import command
from kvctl.cli.app.options import DryRun, Yes, argument, bucket_names, option
from kvctl.cli.app.session import Session
from kvctl.cli.facts import row_of
from kvctl.cli.flows import require_current
from kvctl.cli.records import ANNOTATION, CHECKOUT, CHECKOUT_STEP, COLLECTION
from kvctl.cli.repo.options import At, AtRef, Name, open_repository, parse_at, parse_name
from kvctl.errors import ConflictError
from kvctl.kv import names
from kvctl.phrases import counted, quoted
from kvctl.render.fields import change_sign, columns
from kvctl.render.view import View, document
from kvctl.units import format_time
from kvctl.versions import commits, model, refs
from kvctl.versions.transfer import checkout as transfer_checkout
from kvctl.versions.transfer import record_bucket

NAMED = 10
"""Maximum number of keys to name in a message."""

FromBucket = Annotated[str | None, option("--from", "BUCKET", "Record the contents of this live bucket", bucket_names)]

SHOWN = 20
"""Maximum number of changes listed before the prompt; `--dry-run` lists all."""


@command(
    "repo checkout",
    examples=[
        "kvctl repo checkout config@v1.2 --to services --dry-run",
        "kvctl repo checkout config@main --to services",
        "kvctl repo checkout config@main~1 --to services --yes",
    ],
    see=["repo commit", "repo diff", "bucket diff", "help versions"],
    prints=(CHECKOUT, CHECKOUT_STEP),
)
async def checkout(
    session: Session,
    at: AtRef,
    to: Annotated[str, option("--to", "BUCKET", "Bucket to write the commit to", bucket_names)],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Make a live bucket equal to a commit.

    The command writes the keys that differ and deletes keys that the commit does not have, by compare-and-set. A key
    that is changed concurrently is not overwritten but reported (4). In a bucket with atomic batches (`--atomic`), up
    to 1,000 changes are one batch, so that no reader sees a part of it. Otherwise, keys are changed one by one; run an
    interrupted checkout again to complete it.

    A branch means its last commit, without staged changes. A commit holds only keys and values. Keys that lose a ttl or
    headers are named, and keys that are not legal in ADR-8 are not changed.
    """
    place = parse_at(at)
    names.check_bucket(to)
    repository = await open_repository(session, place.repository)
    bucket = (await session.client()).bucket(to, read_only=session.context.read_only)
    rollout = await transfer_checkout.plan(repository, place.ref, bucket, dry_run=dry_run)
    _warn(session, rollout)
    if dry_run:
        rows = [row_of(CHECKOUT_STEP, step, change=step.kind.value) for step in rollout.steps]
        session.show(View(columns=columns("change key revision"), rows=rows, name="key", empty="No differences"))
        return
    if rollout.steps:
        for step in rollout.steps[:SHOWN]:
            session.note(f"{change_sign(step.kind.value)} {step.key}")
        if len(rollout.steps) > SHOWN:
            session.note(f"... and {len(rollout.steps) - SHOWN:,} more; `--dry-run` lists all")
        await session.confirm(_question(rollout), yes=yes)
    with session.progress(f"Rolling out to {to}", len(rollout.steps), unit="keys") as progress:
        done = await transfer_checkout.apply(rollout, bucket, advance=progress.advance)
    _report(session, place, rollout, done)


@command(
    "repo annotate",
    examples=["kvctl repo annotate config@main", "kvctl repo annotate config@v1 'app.>' -o ndjson"],
    see=["repo log", "history"],
    prints=(ANNOTATION,),
    listing=True,
)
async def annotate(
    session: Session,
    at: AtRef,
    filter: Annotated[str, argument("FILTER", "Filter: `*` matches one token, `>` at the end any number")] = ">",
) -> None:
    """Show the last commit that changed each key.

    A key with a staged change has no commit yet.
    """
    place = parse_at(at)
    names.check_filter(filter)
    repository = await open_repository(session, place.repository)
    rows = []
    for found in await repository.annotate(place.ref, filter):
        created = format_time(found.commit.created_ns) if found.commit else None
        rows.append(row_of(ANNOTATION, found.commit, key=found.key, commit=found.id, created=created))
    shown = columns("key commit author created message")
    session.show(View(columns=shown, rows=rows, name="key", empty="No keys"))


@command(
    "repo gc",
    examples=["kvctl repo gc config --dry-run", "kvctl repo gc config --yes"],
    see=["branch delete"],
    prints=(COLLECTION,),
)
async def gc(session: Session, name: Name, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Remove data that no branch or tag reaches.

    Removes commits of deleted branches and of `reset --hard`, objects that no commit uses, and staged changes that were
    committed or dropped. Other clients may write and commit during the collection. Data that is reachable, or that a
    running commit uses, is kept.
    """
    parse_name(name)
    if not dry_run:
        await session.confirm(f"Remove data that no branch or tag of `{name}` reaches?", yes=yes)
    repository = await open_repository(session, name, write=not dry_run)
    with session.progress(f"Collecting garbage of {name}"):
        found = await repository.gc(dry_run=dry_run)
    row = {"name": name, "commits": found.commits, "objects": found.objects, "epochs": found.epochs}
    session.show(document(row, *columns("name commits objects epochs"), tsv=COLLECTION.columns))
    if dry_run:
        session.note("Nothing was removed")


async def live_bucket(
    session: Session, name: str | None, force: list[str] | None, *, dry_run: bool = False
) -> "kvctl.Bucket | None":
    """Open the bucket to record, if one is named. Raises BucketNotFound, HazardRefused, UsageError."""
    if name is None:
        return None
    bucket = (await session.client()).bucket(name)
    binding = await bucket.locate()
    await require_current(session, binding.api, binding.info, force, dry_run=dry_run)
    return bucket


async def record(
    session: Session, repository: "kvctl.Repository", branch: str, bucket: "kvctl.Bucket", message: str, **settings: Any
) -> "model.Commit":
    """Commit a live bucket, and warn of what a commit cannot hold. Raises as `record_bucket`."""
    made, found = await record_bucket.record_bucket(repository, branch, bucket, message, **settings)
    if found.adorned:
        session.warn(
            f"Recorded without ttl and headers, which a commit cannot hold: {quoted(sorted(found.adorned), NAMED)}"
        )
    if found.foreign:
        session.warn(f"Left out non-conforming keys: {quoted(sorted(found.foreign), NAMED)}")
    return made


async def begin_with(session: Session, repository: "kvctl.Repository", bucket: "kvctl.Bucket") -> bool:
    """Record a live bucket in a repository with only its first commit. Return true if anything was recorded."""
    if not (await repository.show(refs.MAIN)).parents:
        with suppress(commits.NothingToCommit):
            await record(session, repository, refs.MAIN, bucket, f"Bucket {bucket.name}")
            return True
    return False


def _warn(session: Session, rollout: "transfer_checkout.CheckoutPlan") -> None:
    if rollout.adorned:
        session.warn(
            f"Keys that lose their ttl and headers, which a commit cannot hold: {quoted(rollout.adorned, NAMED)}"
        )
    if rollout.foreign:
        session.warn(f"Non-conforming keys are not changed: {quoted(rollout.foreign, NAMED)}")


def _question(rollout: "transfer_checkout.CheckoutPlan") -> str:
    removed = sum(step.kind == "removed" for step in rollout.steps)
    written = len(rollout.steps) - removed
    parts = [f"write {counted(written, 'key')}"] if written else []
    parts += [f"delete {counted(removed, 'key')}"] if removed else []
    text = " and ".join(parts)
    return f"{text[0].upper()}{text[1:]} in bucket `{rollout.bucket}`?"


def _report(
    session: Session, place: "At", rollout: "transfer_checkout.CheckoutPlan", done: "transfer_checkout.CheckoutResult"
) -> None:
    kept, equal = set(done.changed_meanwhile), set(done.done_by_others)
    applied = [] if done.at_once and kept else [step for step in rollout.steps if step.key not in kept | equal]
    removed = sum(step.kind == "removed" for step in applied)
    row = {
        "repository": place.repository,
        "ref": place.ref,
        "commit": rollout.commit,
        "bucket": rollout.bucket,
        "written": len(applied) - removed,
        "removed": removed,
        "unchanged": rollout.unchanged + len(equal),
        "conflicts": [{"key": key} for key in sorted({*done.changed_meanwhile, *done.written_by_others})],
    }
    if session.output != "table":
        session.show(document(row, name="commit"))
    elif not kept and not done.written_by_others:
        text = f"{row['written']} written, {removed} deleted" if applied else "nothing to change"
        session.note(f"Bucket `{rollout.bucket}` matches `{place}` ({rollout.commit[:12]}): {text}", always=True)
    if kept:
        raise _conflict(rollout, done)
    if done.written_by_others:
        raise _moved_on(rollout, done)


def _moved_on(rollout: "transfer_checkout.CheckoutPlan", done: "transfer_checkout.CheckoutResult") -> ConflictError:
    """Build the error for a bucket that others wrote to after it was compared, with all changes made."""
    return ConflictError(
        f"Others wrote {quoted(done.written_by_others, NAMED)} to bucket `{rollout.bucket}` during the checkout; "
        f"all {counted(done.done, 'change')} were made",
        hint="Check those keys, then run the checkout again",
    )


def _conflict(rollout: "transfer_checkout.CheckoutPlan", done: "transfer_checkout.CheckoutResult") -> ConflictError:
    left = "nothing was changed" if done.at_once else f"{counted(done.done, 'other change')} were made"
    return ConflictError(
        f"Others changed {quoted(done.changed_meanwhile, NAMED)} in bucket `{rollout.bucket}`; {left}",
        hint="Check those keys, then run the checkout again",
    )
