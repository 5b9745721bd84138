"""`kvctl put`, `create`, `update` and `revert`: write one value, unconditionally or on a condition."""

from datetime import timedelta
from typing import Annotated

import typer

from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, KeyedName, KeyName, duration, live
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import check_keys, expected, open_bucket, parse_revision, read_value, require_value
from kvctl.cli.keys.output.entry_rows import revision_view
from kvctl.cli.keys.target.target import parse_target
from kvctl.cli.records import WRITE, WRITE_AT_REF
from kvctl.errors import UsageError

Value = Annotated[str | None, typer.Argument(metavar="VALUE|-", help="Value, or `-` for standard input")]
File = Annotated[str | None, typer.Option("--file", "-f", metavar="FILE", help="Read the value from a file")]


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
        bool, typer.Option("--if-different", help="Write only if the current value, read from the leader, is different")
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
        timedelta | None, duration("--ttl", help="Time until the key expires; the bucket must allow it")
    ] = None,
) -> None:
    """Write a key if it does not exist.

    Prints the new revision, or exits 4 if the key exists. A key that was deleted, purged or has expired can be created
    again. --ttl needs a bucket with --marker-ttl. If the bucket also keeps history, servers keep the key for at least
    the marker ttl. A shorter ttl of the bucket applies to the key too. A warning reports both cases.

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
    last: Annotated[str | None, typer.Argument(metavar="REVISION", help="Expected last revision of the key")] = None,
    file: File = None,
    if_revision: Annotated[
        str | None, expected("--if-revision", help="Expected last revision, same as REVISION")
    ] = None,
    ttl: Annotated[timedelta | None, duration("--ttl", help="Time until the key expires")] = None,
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
        int,
        typer.Argument(
            metavar="REVISION",
            help="Revision of the key to restore",
            parser=parse_revision,
            autocompletion=live("revisions"),
        ),
    ],
) -> None:
    """Restore an earlier value.

    Writes the value of REVISION again and prints the new revision. Exits 3 if the bucket no longer holds REVISION, and
    4 if the key changes concurrently.
    """
    check_keys([key])
    target = await open_bucket(session, bucket, write=True)
    session.show(revision_view(bucket, key, await target.revert(key, to)))
