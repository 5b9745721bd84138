"""`kvctl put`, `create`, `update` and `revert`: one value, written without looking or on a condition."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import BucketName, KeyedName, KeyName, duration
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import (
    check_keys,
    expected,
    open_bucket,
    parse_revision,
    read_value,
    require_value,
)
from kvctl.cli.keys.output.entry_rows import revision_view
from kvctl.cli.keys.output.ttl_notice import warn_of_other_life, warn_of_return
from kvctl.errors import UsageError

if TYPE_CHECKING:
    from kvctl.kv.bucket import Bucket

app = group()


Value = Annotated[str | None, typer.Argument(metavar="VALUE|-", help="Value; `-` reads it from standard input")]
File = Annotated[str | None, typer.Option("--file", "-f", metavar="FILE", help="Read the value from a file")]


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


def _show_revision(session: Session, bucket: "Bucket", key: str, revision: int) -> None:
    session.show(revision_view(bucket.name, key, revision))
