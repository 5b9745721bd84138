"""Transactions: several keys at once, on conditions."""

import base64
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import BucketName, DryRun
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import open_bucket
from kvctl.cli.keys.output.entry_rows import operation_style
from kvctl.cli.keys.output.ttl_notice import warn_of_other_life, warn_of_return
from kvctl.errors import ConditionsFailed
from kvctl.render.view import Column, View

if TYPE_CHECKING:
    from kvctl.kv.transaction.transaction import Failure, Transaction

app = group()


@command(
    app,
    "txn",
    examples=[
        "kvctl txn config -f change.yaml",
        "kvctl txn config -f change.yaml --dry-run",
        """echo '{if: [{key: port, revision: 3}], then: [{put: port, value: "81"}]}' | kvctl txn config -f -""",
    ],
    see=["update", "lock", "bucket edit", "help guarantees"],
)
async def txn(
    session: Session,
    bucket: BucketName,
    file: Annotated[
        str, typer.Option("--file", "-f", metavar="FILE", help="The transaction, YAML or JSON; `-` is standard input")
    ],
    dry_run: DryRun = False,
) -> None:
    """Change several keys at once, on conditions.

    All changes are made or none, and nobody sees some of them without the others. Prints the new revisions, one a line
    in the order of `then`. When conditions do not hold, nothing is written, every one of them is named with what was
    found (in JSON also on standard output), and the exit code is 4. --dry-run checks the conditions only.

    The file has two lists. `if` holds conditions, also on keys that are not changed: {key: app.port, revision: 3} (of
    the key's last entry, deletions included; 0 is a key never written), {key: lock, absent: true}, {key: lock, exists:
    true}, {key: mode, value: "on"}. `then` holds changes: {put: app.port, value: "8081"}, {create: lock, value: me,
    ttl: 30s} (the key must not live), {update: app.host, value: a, revision: 7}, {delete: app.old} (also one that is
    not there: its marker is written), {purge: app.older}. Values are text, in quotes where YAML would read a number or
    a truth value; `encoding: base64` stands beside one that is no text. A key can be changed once. In JSON an operation
    is PUT, DEL or PURGE.

    In a bucket with a history the value before comes back when the ttl of a `put` or `update` is over; a warning names
    the keys. After `create` with a ttl the key is gone.

    The bucket has to allow atomic batches: `kvctl bucket edit BUCKET --atomic`, on servers from 2.12 on. A transaction
    has 1,000 messages at most: one for each change, which has room for one condition. Conditions on unchanged keys for
    which no change has room ride on repetitions of one of the changes, which show in the history of its key.
    """
    from kvctl.documents import parser
    from kvctl.kv.transaction.transaction_file import read_transaction

    name = "standard input" if file == "-" else file
    transaction = read_transaction(parser.parse(session.read_input(file), name))
    source = await open_bucket(session, bucket, write=not dry_run)
    try:
        if dry_run:
            await source.check(transaction)
            session.note(f"The conditions hold; {len(transaction.changes)} changes would be made")
            session.show(View(columns=_PLANNED, rows=_rows(transaction), name="key"))
            return
        revisions = await source.commit(transaction)
    except ConditionsFailed as error:
        if session.output in ("json", "ndjson", "yaml"):
            session.show(View(columns=_FAILURE, rows=[_failure(failure) for failure in error.failures], name="key"))
        raise
    rows = [{**row, "revision": revision} for row, revision in zip(_rows(transaction), revisions, strict=True)]
    session.show(View(columns=_DONE, rows=rows, name="key"))
    if ttls := {change.key: change.ttl for change in transaction.changes if change.ttl}:
        await warn_of_other_life(session, source, ttls)
    if expiring := [change.key for change in transaction.changes if change.ttl and change.verb in ("put", "update")]:
        await warn_of_return(session, source, expiring)


_PLANNED = [Column("key"), Column("operation", style=operation_style)]
_DONE = [
    Column("key", tsv=False),
    Column("operation", tsv=False, style=operation_style),
    Column("revision", right=True),
]
_FAILURE = [Column("key"), Column("condition"), Column("expected"), Column("found")]


def _rows(transaction: "Transaction") -> list[dict[str, Any]]:
    return [{"key": change.key, "operation": str(change.operation)} for change in transaction.changes]


def _failure(failure: "Failure") -> dict[str, Any]:
    """The JSON object of a condition that does not hold."""
    row: dict[str, Any] = {"key": failure.key, "condition": failure.condition}
    if isinstance(failure.expected, bytes):
        row["expected"], row["encoding"] = _text(failure.expected)
    else:
        row["expected"] = failure.expected
    entry = failure.found
    row["found"] = None
    if entry is not None:
        value, encoding = _text(entry.value)
        row["found"] = {
            "revision": entry.revision, "operation": str(entry.operation), "value": value, "encoding": encoding,
        }  # fmt: skip
    return row


def _text(value: bytes) -> tuple[str, str]:
    try:
        return value.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(value).decode(), "base64"
