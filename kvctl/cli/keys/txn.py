"""`kvctl txn`: change several keys atomically, on conditions."""

from typing import Annotated, Any

import kvctl
from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, DryRun, Force, option
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import open_bucket
from kvctl.cli.keys.output import warn_of_other_life, warn_of_return
from kvctl.cli.records import TXN, TXN_FAILURE, TXN_PLAN
from kvctl.documents import parser
from kvctl.errors import ConditionsFailed, HazardRefused
from kvctl.kv.transaction import execution, transaction_file
from kvctl.kv.transaction import transaction as kv_transaction
from kvctl.phrases import counted
from kvctl.render.escapes import text_of
from kvctl.render.fields import columns
from kvctl.render.view import View


@command(
    "txn",
    examples=[
        "kvctl txn config -f change.yaml",
        "kvctl txn config -f change.yaml --dry-run",
        """echo '{if: [{key: port, revision: 3}], then: [{put: port, value: "81"}]}' | kvctl txn config -f -""",
    ],
    see=["update", "lock", "bucket edit", "help guarantees"],
    prints=(TXN, TXN_PLAN, TXN_FAILURE),
    forces=lambda: (execution.EVICTS_HISTORY,),
)
async def txn(
    session: Session,
    bucket: BucketName,
    file: Annotated[
        str, option("--file -f", "FILE", "File with the transaction in YAML or JSON, `-` for standard input")
    ],
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Change several keys atomically, on conditions.

    Either all changes are made or none, and readers never see some of them without the others. Prints the new
    revisions, one per line in the order of `then`. If conditions do not hold, nothing is written, the error names each
    of them with the current state (in JSON also on standard output), and the exit code is 4. --dry-run only checks the
    conditions.

    The file has two lists. `if` lists conditions, also on keys that are not changed: {key: app.port, revision: 3} (the
    last entry, which may be a deletion; 0 means never written), {key: lock, absent: true}, {key: lock, exists: true},
    {key: mode, value: "on"}. `then` lists changes: {put: app.port, value: "8081"}, {create: lock, value: me, ttl: 30s}
    (fails if the key exists), {update: app.host, value: a, revision: 7}, {delete: app.old} (writes a marker even if the
    key does not exist), {purge: app.older}. Values are text; quote them where YAML would read a number or a boolean,
    and add `encoding: base64` for binary values. A key can be changed once. In JSON an operation is PUT, DEL or PURGE.

    In a bucket with history the previous value reappears when the ttl of a `put` or `update` ends, and a warning names
    the keys. After `create` with a ttl nothing reappears.

    The bucket must allow atomic batches: `kvctl bucket edit BUCKET --atomic`, on servers from 2.12 on. A transaction
    has at most 1,000 messages. Each change is one message and can carry one condition. Further conditions on unchanged
    keys are carried by repetitions of changes, which appear in the history of their keys. Where they would evict
    earlier values, nothing is written (1) without --force evicts-history.
    """
    name = "standard input" if file == "-" else file
    transaction = transaction_file.read_transaction(parser.parse(session.read_input(file), name))
    source = await open_bucket(session, bucket, write=not dry_run)
    try:
        if dry_run:
            await source.check(transaction, evict_history=bool(force))
            session.note(f"The conditions hold; {counted(len(transaction.changes), 'change')} would be made")
            session.show(View(columns=_PLANNED, rows=_rows(transaction), name="key", light=True))
            return
        revisions = await source.commit(transaction, evict_history=bool(force))
    except HazardRefused as error:
        error.hint = error.hint and error.hint.replace("evict_history=True", f"--force {error.name}")
        raise
    except ConditionsFailed as error:
        if session.output in ("json", "ndjson", "yaml"):
            session.show(View(columns=_FAILURE, rows=[_failure(failure) for failure in error.failures], name="key"))
        raise
    rows = [{**row, "revision": revision} for row, revision in zip(_rows(transaction), revisions, strict=True)]
    session.show(View(columns=_DONE, tsv=TXN.columns, rows=rows, name="key", light=True))
    if ttls := {change.key: change.ttl for change in transaction.changes if change.ttl}:
        await warn_of_other_life(session, source, ttls)
    if expiring := [change.key for change in transaction.changes if change.ttl and change.verb in ("put", "update")]:
        await warn_of_return(session, source, expiring)


_PLANNED = columns("key operation")
_DONE = columns("key operation revision")
_FAILURE = columns("key condition expected found")


def _rows(transaction: "kvctl.Transaction") -> list[dict[str, Any]]:
    return [{"key": change.key, "operation": str(change.operation)} for change in transaction.changes]


def _failure(failure: "kv_transaction.Failure") -> dict[str, Any]:
    """Return the JSON object of a condition that does not hold."""
    row: dict[str, Any] = {"key": failure.key, "condition": failure.condition}
    if isinstance(failure.expected, bytes):
        row["expected"], row["encoding"] = text_of(failure.expected)
    else:
        row["expected"] = failure.expected
    entry = failure.found
    row["found"] = None
    if entry is not None:
        value, encoding = text_of(entry.value)
        row["found"] = {"revision": entry.revision, "operation": str(entry.operation)}
        row["found"] |= {"value": value, "encoding": encoding}
    return row
