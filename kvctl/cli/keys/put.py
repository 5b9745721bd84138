"""Writing keys: put, create, update, revert, copy, rename."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import (
    BucketName,
    DryRun,
    KeyedName,
    KeyName,
    bucket_names,
    duration,
)
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import (
    check_keys,
    expected,
    open_bucket,
    parse_revision,
    read_value,
    require_value,
)
from kvctl.cli.keys.entry_rows import writing_view
from kvctl.cli.keys.ttl_notice import warn_of_other_life, warn_of_return, warn_of_shorter_life
from kvctl.errors import KeyExists, UsageError
from kvctl.render.view import Column, View

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket

app = group()


def _contexts(incomplete: str) -> list[str]:
    from kvctl.cli.app.candidates import contexts

    return contexts(incomplete)


Value = Annotated[str | None, typer.Argument(metavar="VALUE|-", help="Value; `-` reads it from standard input")]
File = Annotated[str | None, typer.Option("--file", "-f", metavar="FILE", help="Read the value from a file")]
NewKey = Annotated[str, typer.Argument(metavar="NEWKEY", help="Its new name")]
ToBucket = Annotated[
    str | None,
    typer.Option("--to-bucket", metavar="BUCKET", help="Into another bucket", autocompletion=bucket_names),
]
ToContext = Annotated[
    str | None,
    typer.Option("--to-context", metavar="NAME", help="Into a bucket of another context", autocompletion=_contexts),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Also if NEWKEY exists")]


@command(
    app,
    "put",
    examples=[
        "kvctl put orders NEW.7 'two of these'",
        "kvctl put orders NEW.7 - < order.json",
        "kvctl put orders NEW.7 --file order.json --if-different",
        "kvctl put config@main app.port 8080",
    ],
    see=["create", "update", "get"],
)
async def put(
    session: Session,
    bucket: KeyedName,
    key: KeyName,
    value: Value = None,
    file: File = None,
    if_different: Annotated[
        bool, typer.Option("--if-different", help="Not if the key has this value already, as the leader sees it")
    ] = False,
) -> None:
    """Write a key.

    Prints the new revision. With --if-different and the same value nothing is written, and the revision that holds it
    is printed.

    VALUE has to be given, if only as `''` for an empty one: standard input is read for `-` alone. A value that starts
    with a dash stands after `--`.

    On a branch of a repository (NAME@BRANCH) the value is staged, until `kvctl repo commit` records it.
    """
    check_keys([key])
    data = read_value(session, value, file)
    if "@" in bucket:
        from kvctl.cli.keys.at_ref import ref_stage

        await ref_stage.put(session, bucket, key, data, if_different=if_different)
        return
    target = await open_bucket(session, bucket, write=True)
    if if_different:
        entry = await target.last_entry(key, leader=True)
        if entry is not None and entry.operation == "PUT" and entry.value == data:
            session.note(f"`{key}` has this value already")
            _show_revision(session, target, key, entry.revision)
            return
    _show_revision(session, target, key, await target.put(key, data))


@command(
    app,
    "create",
    examples=["kvctl create orders NEW.7 'two of these'", 'kvctl create locks deploy "$HOSTNAME" --ttl 15m'],
    see=["put", "update"],
)
async def create(
    session: Session,
    bucket: KeyedName,
    key: KeyName,
    value: Value = None,
    file: File = None,
    ttl: Annotated[
        timedelta | None, duration("--ttl", help="The key goes by itself after this; the bucket must allow it")
    ] = None,
) -> None:
    """Write a key that must not exist.

    Prints the new revision; exits 4 when the key lives. A key that was deleted, purged, or has expired can be created
    again. --ttl needs a bucket with --marker-ttl; where it has a history, too, servers keep the key for the marker's
    time at least. The ttl of the bucket ends the key sooner. A warning tells of both.

    On a branch of a repository (NAME@BRANCH) the key must be neither staged nor committed.
    """
    check_keys([key])
    if "@" in bucket:
        from kvctl.cli.keys.at_ref import ref_rows, ref_stage

        ref_rows.refuse(bucket, ttl=ttl)
        await ref_stage.create(session, bucket, key, read_value(session, value, file))
        return
    data = read_value(session, value, file)
    target = await open_bucket(session, bucket, write=True)
    _show_revision(session, target, key, await target.create(key, data, ttl=ttl))
    if ttl is not None:
        await warn_of_other_life(session, target, {key: ttl})


@command(
    app,
    "update",
    examples=[
        "kvctl update orders NEW.7 'three of these' 12",
        "kvctl update orders NEW.7 --file order.json --if-revision 12",
    ],
    see=["get", "put", "edit"],
)
async def update(
    session: Session,
    bucket: KeyedName,
    key: KeyName,
    value: Value = None,
    last: Annotated[str | None, typer.Argument(metavar="REVISION", help="The last revision, as it was read")] = None,
    file: File = None,
    if_revision: Annotated[str | None, expected("--if-revision", help="The same as REVISION")] = None,
    ttl: Annotated[timedelta | None, duration("--ttl", help="The key goes by itself after this")] = None,
) -> None:
    """Write a key that must not have changed.

    Writes if the key's last revision is REVISION, deletions included; 0 stands for a key never written. Prints the new
    revision; exits 4 otherwise, naming the revision found.

    With --file, REVISION follows KEY. A ttl that the key had is not kept: give --ttl again. In a bucket with a history
    the value before comes back when that time is over, as a warning says. For that reason ADR-48 gives a ttl to create
    alone. kvctl takes one here, too, since a key that expires could not be renewed otherwise: created again, it would
    be gone for a moment. In a bucket without a history nothing comes back.

    On a branch of a repository (NAME@BRANCH) REVISION is the key's identity, or the revision at which it is staged.
    """
    check_keys([key])
    if file is not None and last is None:
        value, last = None, value
    require_value(value, file)
    wanted = _expected(last, if_revision, f"kvctl get {bucket} {key} -o json")
    if "@" in bucket:
        from kvctl.cli.keys.at_ref import ref_rows, ref_stage

        ref_rows.refuse(bucket, ttl=ttl)
        await ref_stage.update(session, bucket, key, read_value(session, value, file), wanted)
        return
    revision = parse_revision(wanted)
    data = read_value(session, value, file)
    target = await open_bucket(session, bucket, write=True)
    _show_revision(session, target, key, await target.update(key, data, revision, ttl=ttl))
    if ttl is not None:
        await warn_of_other_life(session, target, {key: ttl})
        await warn_of_return(session, target, [key])


def _expected(last: str | None, if_revision: str | None, shows: str) -> str:
    if last is not None and if_revision is not None:
        raise UsageError("REVISION and `--if-revision` exclude each other")
    found = if_revision if last is None else last
    if found is None:
        raise UsageError(
            "Missing argument `REVISION`",
            hint=f"`{shows}` shows the last one; `kvctl put` writes without looking",
        )
    return found


@command(
    app,
    "revert",
    examples=["kvctl revert orders NEW.7 12"],
    see=["history", "put"],
)
async def revert(
    session: Session,
    bucket: BucketName,
    key: KeyName,
    to: Annotated[
        int, typer.Argument(metavar="REVISION", help="A revision of the key with a value", parser=parse_revision)
    ],
) -> None:
    """Write an earlier value again.

    The value of REVISION becomes the key's last one, under a new revision, which is printed. Exits 3 when the bucket no
    longer holds it, 4 when the key changes meanwhile.
    """
    check_keys([key])
    target = await open_bucket(session, bucket, write=True)
    _show_revision(session, target, key, await target.revert(key, to))


@command(
    app,
    "copy",
    examples=[
        "kvctl copy orders NEW.7 DONE.7",
        "kvctl copy orders NEW.7 NEW.7 --to-bucket archive --to-context prod --overwrite",
    ],
    see=["rename", "bucket copy"],
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

    The value of KEY is written to NEWKEY, with what is left of its ttl; headers and history stay behind. A warning
    tells when the ttl of another bucket ends it sooner. Prints the new revision; exits 4 when NEWKEY exists, unless
    --overwrite.
    """
    from kvctl.kv.write import copy_key

    source, target = await _ends(session, bucket, key, new_key, to_bucket, to_context)
    await warn_of_shorter_life(session, source, key, target, new_key)
    try:
        revision = await copy_key.copy(source, key, target, new_key, overwrite=overwrite)
    except KeyExists as error:
        raise _overwritable(error) from None
    _show_revision(session, target, new_key, revision)


@command(
    app,
    "rename",
    examples=["kvctl rename orders NEW.7 DONE.7"],
    see=["copy"],
)
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

    Within a bucket that allows atomic batches (`kvctl bucket add --atomic`) both names change at once. Elsewhere the
    new name is written first and the old one deleted after it: interrupted half-way, both exist, never neither.

    Prints the new revision; exits 4 when NEWKEY exists, unless --overwrite, and when KEY changes meanwhile. A warning
    tells when the ttl of another bucket ends the key sooner.
    """
    from kvctl.kv.write import copy_key

    source, target = await _ends(session, bucket, key, new_key, to_bucket, to_context, write=True)
    await warn_of_shorter_life(session, source, key, target, new_key)
    if dry_run:
        await _show_rename(session, source, key, target, new_key, overwrite)
        return
    try:
        revision = await copy_key.rename(source, key, target, new_key, overwrite=overwrite)
    except KeyExists as error:
        raise _overwritable(error) from None
    _show_revision(session, target, new_key, revision)


async def _show_rename(
    session: Session, source: "Bucket", key: str, target: "Bucket", new_key: str, overwrite: bool
) -> None:
    """`--dry-run`: what would be written and deleted. Raises what the rename would begin with."""
    entry = await source.get(key, leader=True)
    there = await target.last_entry(new_key, leader=True)
    if there is not None and there.operation == "PUT" and not overwrite:
        raise _overwritable(KeyExists(f"`{new_key}` exists", revision=there.revision))
    plan = [
        {"operation": "PUT", "bucket": target.name, "key": new_key},
        {"operation": "DEL", "bucket": source.name, "key": entry.key},
    ]
    session.show(View(columns=[Column("operation"), Column("bucket"), Column("key")], rows=plan, name="key"))


async def _ends(
    session: Session,
    bucket: str,
    key: str,
    new_key: str,
    to_bucket: str | None,
    to_context: str | None,
    *,
    write: bool = False,
) -> tuple["Bucket", "Bucket"]:
    """The buckets to copy from and to; one and the same object when they are the same."""
    check_keys([key, new_key])
    if to_context is None and to_bucket in (None, bucket):
        if key == new_key:
            raise UsageError("KEY and NEWKEY are the same")
        both = await open_bucket(session, bucket, write=True)
        return both, both
    source = await open_bucket(session, bucket, write=write)
    return source, await _target(session, to_bucket or bucket, to_context)


async def _target(session: Session, bucket: str, context: str | None) -> "Bucket":
    if context is None:
        return await open_bucket(session, bucket, write=True)
    import os

    from kvctl.contexts import resolve
    from kvctl.kv.names import check_bucket

    check_bucket(bucket)
    flags: dict[str, Any] = {"context": context}
    flags |= {name: value for name in ("timeout", "read_only") if (value := getattr(session.options, name)) is not None}
    client = await session.connect(resolve(flags, os.environ))
    target: Bucket = client.bucket(bucket)
    return target


def _overwritable(error: KeyExists) -> KeyExists:
    error.hint = f"It is at revision {error.revision}; `--overwrite` replaces it" if error.revision else None
    return error


def _show_revision(session: Session, bucket: "Bucket", key: str, revision: int) -> None:
    session.show(writing_view([{"bucket": bucket.name, "key": key, "revision": revision}], single=True))
