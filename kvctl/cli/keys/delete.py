"""`kvctl delete`: markers for keys, by name or by filter."""

from typing import TYPE_CHECKING, Annotated

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import DryRun, KeyedName, Yes
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import Literal, expected, parse_revision
from kvctl.cli.keys.removal import IgnoreMissing, Match, Removal, SomeKeys, choose, remove
from kvctl.errors import UsageError, WrongRevision

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket

app = group()

IfExpected = Annotated[str | None, expected("--if-revision", help="Expected last revision (one key only)")]


@command(
    app,
    "delete",
    examples=[
        "kvctl delete orders NEW.7",
        "kvctl delete orders NEW.7 --if-revision 12",
        "kvctl delete orders --match 'NEW.*' --dry-run",
    ],
    see=["purge", "bucket delete", "bucket compact"],
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
    if "@" in bucket:
        from kvctl.cli.keys.at_ref import ref_rows, ref_stage

        ref_rows.refuse(bucket, literal=literal)
        picked = choose(keys, match, if_revision)
        await ref_stage.delete(
            session, bucket, picked.keys, picked.filters, if_revision,
            dry_run=dry_run, yes=yes, ignore_missing=ignore_missing,
        )  # fmt: skip
        return
    last = None if if_revision is None else parse_revision(if_revision)

    async def one(target: "Bucket", key: str) -> int:
        try:
            return await (target.delete_literal(key) if literal else target.delete(key, revision=last))
        except WrongRevision:
            if ignore_missing:
                await target.get(key, leader=True)  # raises KeyNotFound
            raise

    if literal and (match or last is not None):
        raise UsageError(f"`--literal` and `{'--match' if match else '--if-revision'}` cannot be combined")
    chosen = choose(keys, match, if_revision)._replace(
        literal=literal, dry_run=dry_run, yes=yes, ignore_missing=ignore_missing
    )
    await remove(session, bucket, Removal("Delete", "deleted", one, lambda entry: entry.operation == "PUT"), chosen)
