"""`kvctl watch`: follow changes of keys."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import typer

import kvctl
from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, Filters
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import Encoding, Headers, Since, check_filters, number, open_bucket, revision
from kvctl.cli.keys.output.entry_rows import Shape
from kvctl.cli.keys.output.entry_stream import show_entries
from kvctl.cli.process import exec
from kvctl.cli.records import ENTRY, ENTRY_META, WATCH_EVENT
from kvctl.errors import UsageError
from kvctl.kv.read import watch as read_watch


@command(
    "watch",
    examples=[
        "kvctl watch orders 'NEW.*'",
        "kvctl watch orders -o ndjson --from-revision 120",
        "kvctl watch config app.yaml --updates-only --exec 'systemctl reload app'",
        "kvctl watch orders --since -15m",
        "kvctl watch orders --until-current -o ndjson > orders.ndjson",
    ],
    see=["wait", "history", "keys"],
    prints=(ENTRY, ENTRY_META, WATCH_EVENT),
)
async def watch(
    session: Session,
    bucket: BucketName,
    filters: Filters = None,
    history: Annotated[
        bool, typer.Option("--history", help="Start with all stored entries, not only the last per key")
    ] = False,
    updates_only: Annotated[bool, typer.Option("--updates-only", help="Start with the next change")] = False,
    ignore_deletes: Annotated[bool, typer.Option("--ignore-deletes", help="Skip deletions")] = False,
    meta_only: Annotated[bool, typer.Option("--meta-only", help="Show sizes instead of values")] = False,
    from_revision: Annotated[int | None, revision("--from-revision", help="Start at this revision")] = None,
    since: Since = None,
    until_current: Annotated[bool, typer.Option("--until-current", help="Stop after the current entries")] = False,
    count: Annotated[int | None, number("--count", help="Stop after this number of entries")] = None,
    run: Annotated[
        str | None, typer.Option("--exec", metavar="CMD", help="Run CMD for each entry instead of printing it")
    ] = None,
    headers: Headers = False,
    encoding: Encoding = None,
) -> None:
    """Watch keys for changes.

    Shows the last entry of every matching key, including deletions, then every change, in order and exactly once, even
    across server restarts and lost connections. The end of the initial entries is marked by a note on a terminal, and
    by the line {"event": "current"} in ndjson (json is the same here).

    --since starts with every stored entry that was written at TIME or later (RFC 3339, or `-15m` for 15 minutes ago by
    the server's clock), and --from-revision with those from a revision on.

    --exec splits CMD into words as a shell does, but runs it without a shell. The value is its standard input. The
    entry is in KVCTL_BUCKET, KVCTL_KEY, KVCTL_REVISION, KVCTL_CREATED, KVCTL_OPERATION (PUT, DEL or PURGE),
    KVCTL_REASON, KVCTL_DELTA, KVCTL_TTL and KVCTL_SIZE. Entries are processed one after the other. A failed run is
    reported and the watch continues; when the watch ends, the exit code is then 7.

    Exits 1 if the bucket is deleted or recreated, 3 if --from-revision is more than one above the last revision, and
    130 on Ctrl-C.
    """
    wanted = check_filters(filters)
    starts = {"--updates-only": updates_only, "--history": history, "--since": since, "--from-revision": from_revision}
    given = [option for option, value in starts.items() if value is not None and value is not False]
    if len(given) > 1 and given != ["--history", "--from-revision"]:
        raise UsageError(f"`{given[0]}` and `{given[1]}` cannot be combined")
    execution = _execution(session, run)
    source = await open_bucket(session, bucket)
    watcher = await source.watch(
        *wanted,
        history=history,
        updates_only=updates_only,
        ignore_deletes=ignore_deletes,
        meta_only=meta_only,
        from_revision=from_revision,
        since=since,
        follow=not until_current,
    )
    if execution is not None:
        await _execute(execution, _batches(watcher, count))
        return
    shape = Shape(encoding=encoding, headers=headers, meta_only=meta_only, live=True)
    note = "" if until_current else "Up to date; watching for changes"
    await show_entries(session, shape, _batches(watcher, count), endless=True, marked=note)


def _execution(session: Session, text: str | None) -> "exec.Execution | None":
    if text is None:
        return None
    return exec.Execution(session, text)


async def _batches(watcher: "read_watch.Watcher", count: int | None) -> AsyncGenerator[list["kvctl.Entry"], None]:
    """Yield the watcher's batches, up to `count` entries; an empty list marks the end of the initial entries."""
    left = count
    async with watcher, aclosing(watcher.batches()) as batches:
        async for batch in batches:
            yield batch[:left]
            if left is not None:
                left -= len(batch)
                if left <= 0:
                    return


async def _execute(execution: "exec.Execution", batches: AsyncGenerator[list["kvctl.Entry"], None]) -> None:
    async with aclosing(batches):
        async for batch in batches:
            for entry in batch:
                await execution.run(entry)
    execution.finish()
