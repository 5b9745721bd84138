"""`kvctl copy` and `kvctl rename`: copy or move a key, within a bucket or to another one."""

import os
from typing import Annotated, Any

import typer

import kvctl
from kvctl import contexts
from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, DryRun, KeyName, bucket_names, context_names
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import check_keys, open_bucket
from kvctl.cli.keys.output.entry_rows import revision_view
from kvctl.cli.keys.output.ttl_notice import warn_of_shorter_life
from kvctl.cli.records import COPY_PLAN, WRITE
from kvctl.errors import KeyExists, UsageError
from kvctl.kv import copy_key, names
from kvctl.render.fields import columns
from kvctl.render.view import Column, View

NewKey = Annotated[str, typer.Argument(metavar="NEWKEY", help="New name of the key")]
ToBucket = Annotated[
    str | None,
    typer.Option("--to-bucket", metavar="BUCKET", help="Target bucket, if another one", autocompletion=bucket_names),
]
ToContext = Annotated[
    str | None,
    typer.Option("--to-context", metavar="NAME", help="Context of the target bucket", autocompletion=context_names),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Overwrite NEWKEY if it exists")]


@command(
    "copy",
    examples=[
        "kvctl copy orders NEW.7 DONE.7",
        "kvctl copy orders NEW.7 NEW.7 --to-bucket archive --to-context prod --overwrite",
    ],
    see=["rename", "bucket copy"],
    prints=(WRITE,),
)
async def copy(
    session: Session,
    bucket: BucketName,
    key: KeyName,
    new_key: NewKey,
    to_bucket: ToBucket = None,
    to_context: ToContext = None,
    overwrite: Overwrite = False,
) -> None:
    """Copy a key.

    Writes the value of KEY to NEWKEY with its remaining ttl, without headers and history. A warning reports that the
    ttl of the target bucket expires the key sooner. Prints the new revision, or exits 4 if NEWKEY exists, unless
    --overwrite is given.
    """
    source, target = await _ends(session, bucket, key, new_key, to_bucket, to_context)
    await warn_of_shorter_life(session, source, key, target, new_key)
    try:
        revision = await copy_key.copy(source, key, target, new_key, overwrite=overwrite)
    except KeyExists as error:
        raise _overwritable(error) from None
    session.show(revision_view(target.name, new_key, revision))


@command("rename", examples=["kvctl rename orders NEW.7 DONE.7"], see=["copy"], prints=(WRITE, COPY_PLAN))
async def rename(
    session: Session,
    bucket: BucketName,
    key: KeyName,
    new_key: NewKey,
    to_bucket: ToBucket = None,
    to_context: ToContext = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
) -> None:
    """Rename a key.

    In a bucket that allows atomic batches (`kvctl bucket add --atomic`) the rename is atomic. Otherwise NEWKEY is
    written first and KEY is deleted afterwards: an interruption can leave both keys, but never neither.

    Prints the new revision, or exits 4 if NEWKEY exists, unless --overwrite is given, or if KEY changes concurrently. A
    warning reports that the ttl of the target bucket expires the key sooner.
    """
    source, target = await _ends(session, bucket, key, new_key, to_bucket, to_context, write=True)
    await warn_of_shorter_life(session, source, key, target, new_key)
    if dry_run:
        await _show_rename(session, source, key, target, new_key, overwrite)
        return
    try:
        revision = await copy_key.rename(source, key, target, new_key, overwrite=overwrite)
    except KeyExists as error:
        raise _overwritable(error) from None
    session.show(revision_view(target.name, new_key, revision))


async def _show_rename(
    session: Session, source: "kvctl.Bucket", key: str, target: "kvctl.Bucket", new_key: str, overwrite: bool
) -> None:
    """Show the keys that `--dry-run` would write and delete. Raises the errors of the rename's checks."""
    entry = await source.get(key, leader=True)
    there = await target.last_entry(new_key, leader=True)
    if there is not None and there.operation == "PUT" and not overwrite:
        raise _overwritable(KeyExists(f"`{new_key}` exists", revision=there.revision))
    plan = [
        {"operation": "PUT", "bucket": target.name, "key": new_key},
        {"operation": "DEL", "bucket": source.name, "key": entry.key},
    ]
    shown = columns("operation bucket key", operation=Column("operation"))
    session.show(View(columns=shown, rows=plan, name="key", light=True))


async def _ends(
    session: Session,
    bucket: str,
    key: str,
    new_key: str,
    to_bucket: str | None,
    to_context: str | None,
    *,
    write: bool = False,
) -> tuple["kvctl.Bucket", "kvctl.Bucket"]:
    """Return the source and target buckets, one object if they are the same."""
    check_keys([key, new_key])
    if to_context is None and to_bucket in (None, bucket):
        if key == new_key:
            raise UsageError("KEY and NEWKEY are the same")
        both = await open_bucket(session, bucket, write=True)
        return both, both
    source = await open_bucket(session, bucket, write=write)
    return source, await _target(session, to_bucket or bucket, to_context)


async def _target(session: Session, bucket: str, context: str | None) -> "kvctl.Bucket":
    if context is None:
        return await open_bucket(session, bucket, write=True)
    names.check_bucket(bucket)
    flags: dict[str, Any] = {"context": context}
    flags |= {name: value for name in ("timeout", "read_only") if (value := getattr(session.options, name)) is not None}
    client = await session.connect(contexts.resolve(flags, os.environ))
    target: kvctl.Bucket = client.bucket(bucket)
    return target


def _overwritable(error: KeyExists) -> KeyExists:
    error.hint = f"It is at revision {error.revision}; overwrite it with `--overwrite`" if error.revision else None
    return error
