"""Removals of keys: `kvctl delete` and `kvctl purge`."""

from datetime import timedelta
from typing import Annotated

import kvctl
from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, DryRun, KeyedName, Yes, duration
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import Literal, expected, revision
from kvctl.cli.keys.bucket_target import parse_target
from kvctl.cli.keys.removal import IgnoreMissing, Match, Removal, SomeKeys, choose, remove
from kvctl.cli.records import REMOVAL_PLAN, REMOVAL_PLAN_AT_REF, WRITE, WRITE_AT_REF
from kvctl.errors import UsageError

IfExpected = Annotated[str | None, expected("--if-revision", help="Expected last revision (one key only)")]


@command(
    "delete",
    examples=[
        "kvctl delete orders NEW.7",
        "kvctl delete orders NEW.7 --if-revision 12",
        "kvctl delete orders --match 'NEW.*' --dry-run",
    ],
    see=["purge", "bucket delete", "bucket compact"],
    prints=(WRITE, WRITE_AT_REF, REMOVAL_PLAN, REMOVAL_PLAN_AT_REF),
)
async def delete(
    session: Session,
    bucket: KeyedName,
    keys: SomeKeys = None,
    if_revision: IfExpected = None,
    match: Match = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    ignore_missing: IgnoreMissing = False,
    literal: Literal = False,
) -> None:
    """Delete keys.

    Writes a delete marker as the key's last entry and prints its revision. Earlier values stay in the history. A key
    that does not exist at the stream's leader gets no marker: it is reported after the others were deleted, with exit
    code 3. With --if-revision, a key that was deleted after that revision is a conflict (4), so only one of several
    concurrent deletions of a revision succeeds. --ignore-missing ignores both.

    --match deletes all keys that match a filter, one by one, after confirmation. --literal deletes non-conforming keys
    that other programs stored, such as `a.*`.

    On a branch of a repository (NAME@BRANCH) the deletion is staged, and --if-revision also takes the key's identity.
    """
    target = parse_target(bucket)
    target.refuse(literal=literal)
    if if_revision is not None:
        target.check_expected(if_revision)
    if literal and (match or if_revision is not None):
        raise UsageError(f"`--literal` and `{'--match' if match else '--if-revision'}` cannot be combined")
    chosen = choose(keys, match, if_revision)._replace(
        literal=literal, dry_run=dry_run, yes=yes, ignore_missing=ignore_missing
    )
    await target.delete(session, chosen, if_revision)


IfRevision = Annotated[int | None, revision("--if-revision", help="Expected last revision (one key only)")]


@command(
    "purge",
    examples=["kvctl purge orders NEW.7 --yes", "kvctl purge orders --match 'NEW.*' --ttl 1h"],
    see=["delete", "history", "bucket compact"],
    prints=(WRITE, REMOVAL_PLAN),
)
async def purge(
    session: Session,
    bucket: BucketName,
    keys: SomeKeys = None,
    if_revision: IfRevision = None,
    ttl: Annotated[timedelta | None, duration("--ttl", help="Time until the marker expires")] = None,
    match: Match = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    ignore_missing: IgnoreMissing = False,
) -> None:
    """Delete keys with their history.

    Replaces all stored entries of a key with a purge marker and prints its revision. Asks for confirmation; use --yes
    in scripts. A key without any entry is reported after the others were purged, with exit code 3.

    Mirrors, aggregates and backups of the bucket may keep their copies.
    """

    async def one(target: "kvctl.Bucket", key: str) -> int:
        return await target.purge(key, revision=if_revision, ttl=ttl)

    chosen = choose(keys, match, if_revision)._replace(dry_run=dry_run, yes=yes, ignore_missing=ignore_missing)
    removal = Removal("Purge", "purged", one, lambda entry: entry.operation != "PURGE", asks=True)
    await remove(session, bucket, removal, chosen)
