"""`kvctl purge`: delete keys with their history, by name or by filter."""

from datetime import timedelta
from typing import Annotated

import kvctl
from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, DryRun, Yes, duration
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import revision
from kvctl.cli.keys.removal import IgnoreMissing, Match, Removal, SomeKeys, choose, remove
from kvctl.cli.records import REMOVAL_PLAN, WRITE

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
