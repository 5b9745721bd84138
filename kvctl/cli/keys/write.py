"""Writes of keys: `kvctl put`, `create`, `update`, `revert`, `touch`, `copy` and `rename`."""

import os
from datetime import timedelta
from typing import Annotated, Any

import kvctl
from kvctl import contexts
from kvctl.cli.app.command import command
from kvctl.cli.app.options import (
    BucketName,
    DryRun,
    KeyedName,
    KeyName,
    argument,
    bucket_names,
    context_names,
    flag,
    key_ttl,
    live,
    option,
)
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import check_keys, open_bucket, parse_revision, read_value, require_value
from kvctl.cli.keys.bucket_target import parse_target
from kvctl.cli.keys.output import revision_view, warn_of_other_life, warn_of_return, warn_of_shorter_life
from kvctl.cli.records import COPY_PLAN, WRITE, WRITE_AT_REF
from kvctl.errors import KeyExists, UsageError
from kvctl.kv import copy_key, names
from kvctl.render.fields import columns
from kvctl.render.view import Column, View

Value = Annotated[str | None, argument("VALUE|-", "Value, or `-` for standard input")]
File = Annotated[str | None, option("--file -f", "FILE", "Read the value from a file")]


@command(
    "put",
    examples=[
        "kvctl put orders NEW.7 'two of these'",
        "kvctl put orders NEW.7 - < order.json",
        "kvctl put orders NEW.7 --file order.json --if-different",
        "kvctl put config@main app.port 8080",
    ],
    see=["create", "update", "get"],
    prints=(WRITE, WRITE_AT_REF),
)
async def put(
    session: Session,
    bucket: KeyedName,
    key: KeyName,
    value: Value = None,
    file: File = None,
    if_different: Annotated[
        bool, flag("--if-different", "Write only if the current value, read from the leader, is different")
    ] = False,
) -> None:
    """Write a key.

    Prints the new revision. With --if-different, a key that already has the value is not written, and its current
    revision is printed.

    VALUE is required; pass `''` for an empty value. Standard input is read only for `-`. Put `--` before a value that
    starts with a dash.

    On a branch of a repository (NAME@BRANCH) the value is staged. `kvctl repo commit` commits it.
    """
    check_keys([key])
    data = read_value(session, value, file)
    writer = await parse_target(bucket).writer(session)
    await writer.show(await writer.put(key, data, if_different=if_different))


@command(
    "create",
    examples=["kvctl create orders NEW.7 'two of these'", 'kvctl create locks deploy "$HOSTNAME" --ttl 15m'],
    see=["put", "update", "touch"],
    prints=(WRITE, WRITE_AT_REF),
)
async def create(
    session: Session,
    bucket: KeyedName,
    key: KeyName,
    value: Value = None,
    file: File = None,
    ttl: Annotated[
        timedelta | None, key_ttl("Time until the key expires, or `never`; the bucket must allow it")
    ] = None,
) -> None:
    """Write a key if it does not exist.

    Prints the new revision, or exits 4 if the key exists. A key that was deleted, purged or has expired can be created
    again. --ttl needs a bucket with --marker-ttl. If the bucket also keeps history, servers keep the key for at least
    the marker ttl. A shorter ttl of the bucket applies to the key too. A warning reports both cases. With `--ttl never`
    the key does not expire, not even by the ttl of the bucket. If the bucket has a ttl and keeps history, this value
    reappears when later values expire, and `put` warns of it.

    On a branch of a repository (NAME@BRANCH) the key must be neither staged nor committed.
    """
    check_keys([key])
    target = parse_target(bucket)
    target.refuse(ttl=ttl)
    data = read_value(session, value, file)
    writer = await target.writer(session)
    await writer.show(await writer.create(key, data, ttl=ttl), ttl=ttl)


@command(
    "update",
    examples=[
        "kvctl update orders NEW.7 'three of these' 12",
        "kvctl update orders NEW.7 --file order.json --if-revision 12",
    ],
    see=["get", "put", "edit", "touch"],
    prints=(WRITE, WRITE_AT_REF),
)
async def update(
    session: Session,
    bucket: KeyedName,
    key: KeyName,
    value: Value = None,
    last: Annotated[str | None, argument("REVISION", "Expected last revision of the key")] = None,
    file: File = None,
    if_revision: Annotated[str | None, option("--if-revision", "N", "Expected last revision, same as REVISION")] = None,
    ttl: Annotated[timedelta | None, key_ttl("Time until the key expires, or `never`")] = None,
) -> None:
    """Write a key if it has not changed.

    Writes if the last revision of the key, which may be a deletion, is REVISION; 0 means that the key was never
    written. Prints the new revision, or exits 4 and names the current revision.

    With --file, REVISION follows KEY. The update does not keep the key's ttl: pass --ttl again. In a bucket with
    history the previous value reappears when the ttl ends, and a warning reports it. ADR-48 therefore allows a ttl only
    for create. kvctl allows it here as well, because an expiring key could not be renewed otherwise without deleting it
    for a moment. In a bucket without history nothing reappears.

    On a branch of a repository (NAME@BRANCH) REVISION is the key's identity or its staged revision.
    """
    check_keys([key])
    if file is not None and last is None:
        value, last = None, value
    require_value(value, file)
    wanted = _expected(last, if_revision, f"kvctl get {bucket} {key} -o json")
    target = parse_target(bucket)
    target.refuse(ttl=ttl)
    target.check_expected(wanted)
    data = read_value(session, value, file)
    writer = await target.writer(session)
    await writer.show(await writer.update(key, data, wanted, ttl=ttl), ttl=ttl, rewritten=True)


def _expected(last: str | None, if_revision: str | None, shows: str) -> str:
    if last is not None and if_revision is not None:
        raise UsageError("REVISION and `--if-revision` cannot be combined")
    found = if_revision if last is None else last
    if found is None:
        raise UsageError(
            "Missing argument `REVISION`", hint=f"`{shows}` shows the current one; `kvctl put` writes unconditionally"
        )
    return found


@command("revert", examples=["kvctl revert orders NEW.7 12"], see=["history", "put"], prints=(WRITE,))
async def revert(
    session: Session,
    bucket: BucketName,
    key: KeyName,
    to: Annotated[
        int, argument("REVISION", "Revision of the key to restore", live("revisions"), parser=parse_revision)
    ],
) -> None:
    """Restore an earlier value.

    Writes the value of REVISION again and prints the new revision. Exits 3 if the bucket no longer holds REVISION, and
    4 if the key changes concurrently.
    """
    check_keys([key])
    target = await open_bucket(session, bucket, write=True)
    session.show(revision_view(bucket, key, await target.revert(key, to)))


@command("touch", examples=["kvctl touch sessions user.7 --ttl 30m"], see=["create", "update", "lock"], prints=(WRITE,))
async def touch(
    session: Session,
    bucket: BucketName,
    key: KeyName,
    ttl: Annotated[timedelta, key_ttl("Time until the key expires, from now on, or `never`")],
) -> None:
    """Renew the ttl of a key.

    Writes the current value again, with its headers and the new ttl, and prints the new revision. If the key is written
    concurrently, the newer value is kept and gets the ttl. A key that does not exist is not written (3).

    The bucket must allow per-key TTLs (`kvctl bucket edit BUCKET --marker-ttl 1s`). In a bucket with history the
    previous entry reappears when the ttl ends, and a warning reports it.
    """
    check_keys([key])
    target = await open_bucket(session, bucket, write=True)
    session.show(revision_view(bucket, key, await target.touch(key, ttl)))
    await warn_of_other_life(session, target, {key: ttl})
    await warn_of_return(session, target, [key])


NewKey = Annotated[str, argument("NEWKEY", "New name of the key")]
ToBucket = Annotated[str | None, option("--to-bucket", "BUCKET", "Target bucket, if another one", bucket_names)]
ToContext = Annotated[str | None, option("--to-context", "NAME", "Context of the target bucket", context_names)]
Overwrite = Annotated[bool, flag("--overwrite", "Overwrite NEWKEY if it exists")]


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
    source, target = await _ends(session, bucket, key, new_key, to_bucket, to_context, moves=True, dry_run=dry_run)
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
    moves: bool = False,
    dry_run: bool = False,
) -> tuple["kvctl.Bucket", "kvctl.Bucket"]:
    """Return the source and target buckets, one object if they are the same."""
    check_keys([key, new_key])
    if to_context is None and to_bucket in (None, bucket):
        if key == new_key:
            raise UsageError("KEY and NEWKEY are the same")
        both = await open_bucket(session, bucket, write=not dry_run)
        return both, both
    source = await open_bucket(session, bucket, write=moves and not dry_run)
    return source, await _target(session, to_bucket or bucket, to_context, write=not dry_run)


async def _target(session: Session, bucket: str, context: str | None, *, write: bool) -> "kvctl.Bucket":
    if context is None:
        return await open_bucket(session, bucket, write=write)
    names.check_bucket(bucket)
    flags: dict[str, Any] = {"context": context}
    flags |= {name: value for name in ("timeout", "read_only") if (value := getattr(session.options, name)) is not None}
    client = await session.connect(contexts.resolve(flags, os.environ))
    target: kvctl.Bucket = client.bucket(bucket)
    return target


def _overwritable(error: KeyExists) -> KeyExists:
    error.hint = f"It is at revision {error.revision}; overwrite it with `--overwrite`" if error.revision else None
    return error
