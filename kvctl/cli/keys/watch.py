"""Changes of keys: `kvctl watch` and `kvctl wait`."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Annotated, NamedTuple

import kvctl
from kvctl.cli import exec
from kvctl.cli.app.command import command
from kvctl.cli.app.options import BucketName, Filters, KeyName, duration, flag, number, option
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import (
    Encoding,
    Headers,
    Since,
    check_filters,
    check_keys,
    noticing_unindexed,
    open_bucket,
    revision,
)
from kvctl.cli.keys.output import Shape, show_entries
from kvctl.cli.records import ENTRY, ENTRY_META, WATCH_EVENT
from kvctl.errors import PermissionDenied, RequestTimeout, UnreachableError, UsageError, WaitExpired
from kvctl.kv.read import watch as read_watch
from kvctl.units import format_duration


@command(
    "watch",
    examples=[
        "kvctl watch orders 'NEW.*'",
        "kvctl watch orders -o ndjson --from-revision 120",
        "kvctl watch config app.yaml --updates-only --exec 'systemctl reload app'",
        "kvctl watch orders --exec 'sh -c \"echo $KVCTL_KEY >> changed\"'",
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
    history: Annotated[bool, flag("--history", "Start with all stored entries, not only the last per key")] = False,
    updates_only: Annotated[bool, flag("--updates-only", "Start with the next change")] = False,
    ignore_deletes: Annotated[bool, flag("--ignore-deletes", "Skip deletions")] = False,
    meta_only: Annotated[bool, flag("--meta-only", "Show sizes instead of values")] = False,
    from_revision: Annotated[int | None, revision("--from-revision", "Start at this revision")] = None,
    since: Since = None,
    until_current: Annotated[bool, flag("--until-current", "Stop after the current entries")] = False,
    count: Annotated[int | None, number("--count", "Stop after this number of entries")] = None,
    run: Annotated[str | None, option("--exec", "CMD", "Run CMD, without a shell, for each entry")] = None,
    headers: Headers = False,
    encoding: Encoding = None,
) -> None:
    """Watch keys for changes.

    Shows the last entry of every matching key, including deletions, then every change, in order and exactly once, even
    across server restarts and lost connections. The end of the initial entries is marked by a note on a terminal, and
    by the line {"event": "current"} in ndjson (json is the same here).

    --since starts with every stored entry that was written at TIME or later (RFC 3339, or `-15m` for 15 minutes ago by
    the server's clock), and --from-revision with those from a revision on.

    --exec runs CMD for each entry instead of printing it. CMD is split into words as a shell does, but no shell runs
    it: variables and pipes need `sh -c`, as in an example. The value is its standard input. The entry is in
    KVCTL_BUCKET, KVCTL_KEY, KVCTL_REVISION, KVCTL_CREATED, KVCTL_OPERATION (PUT, DEL or PURGE), KVCTL_REASON,
    KVCTL_DELTA, KVCTL_TTL and KVCTL_SIZE. Entries are processed one after the other. A failed run is reported and the
    watch continues; when the watch ends, the exit code is then 7.

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
        async with noticing_unindexed(session, bucket), aclosing(_batches(watcher, count)) as batches:
            async for batch in batches:
                for entry in batch:
                    await execution.run(entry)
        execution.finish()
        return
    shape = Shape(encoding=encoding, headers=headers, meta_only=meta_only, live=True)
    note = "" if until_current else "Up to date; watching for changes"
    async with noticing_unindexed(session, bucket):
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


LOOK_AGAIN = 1.0
"""Seconds between reads of `wait --missing`, because a key that expires without a marker sends no entry."""
PATIENCE = timedelta(minutes=1)


@command(
    "wait",
    examples=[
        "kvctl wait orders NEW.7 --wait-for 5m",
        "kvctl wait jobs import.state --value done",
        "kvctl wait locks deploy --missing && ./deploy",
    ],
    see=["watch", "get"],
    prints=(ENTRY,),
)
async def wait(
    session: Session,
    bucket: BucketName,
    key: KeyName,
    exists: Annotated[bool, flag("--exists", "Wait until the key has a value (default)")] = False,
    missing: Annotated[bool, flag("--missing", "Wait until the key is deleted, purged or expired")] = False,
    value: Annotated[str | None, option("--value", "VALUE", "Wait until the key has this value")] = None,
    revision_above: Annotated[
        int | None, revision("--revision-above", "Wait until the key is written after revision N")
    ] = None,
    patience: Annotated[
        timedelta | None, duration("--wait-for", "Maximum time to wait; 0 checks once [default: 1m]")
    ] = None,
    headers: Headers = False,
    encoding: Encoding = None,
) -> None:
    """Wait for a key.

    Ends as soon as the condition holds, possibly immediately, and prints the entry (nothing for --missing). With
    several conditions one entry must meet all of them. Exits 9 on timeout.

    The command watches the key instead of polling it, and continues across server restarts. On timeout it reads the
    key once more from the leader, and exits 5 if the leader does not answer, because the state is then unknown.
    """
    check_keys([key])
    if missing and (exists or value is not None or revision_above is not None):
        raise UsageError("`--missing` and other conditions cannot be combined")
    condition = Condition(missing, None if value is None else os.fsencode(value), revision_above)
    limit = PATIENCE if patience is None else patience
    source = await open_bucket(session, bucket)
    try:
        async with asyncio.timeout(limit.total_seconds() or None):
            entry = await _until(source, key, condition, once=not limit)
    except TimeoutError:
        entry = await _last_look(source, key, condition, session.context.timeout)
        if not condition.holds(entry):
            raise condition.expired(key, limit, entry) from None
    if missing and key in source.unconfirmed:
        session.warn(f"`{key}` is missing, but the leader of the stream did not confirm it")
    if entry is not None and not missing:
        session.show(Shape(encoding=encoding, headers=headers).document(entry))


class Condition(NamedTuple):
    """Condition on a key: missing, or a live entry, optionally with this value and above this revision."""

    missing: bool
    value: bytes | None
    above: int | None

    def holds(self, entry: "kvctl.Entry | None") -> bool:
        """Return True if the key's last entry (None if never written) meets the condition."""
        lives = entry is not None and entry.operation == "PUT"
        if self.missing or entry is None or not lives:
            return self.missing and not lives
        return (self.value is None or entry.value == self.value) and entry.revision > (self.above or 0)

    def expired(self, key: str, limit: timedelta, entry: "kvctl.Entry | None" = None) -> WaitExpired:
        """Return the error for a timeout, with the first condition that the entry does not meet."""
        if self.missing:
            what = "still exists"
        elif self.value is not None and (entry is None or entry.value != self.value or entry.operation != "PUT"):
            what = "does not have this value"
        elif self.above is not None and (entry is None or entry.operation == "PUT"):
            what = f"was not written after revision {self.above}"
        else:
            what = "does not exist"
        waited = f" (waited {format_duration(limit)})" if limit else ""
        return WaitExpired(f"`{key}` {what}{waited}", hint="Wait longer with `--wait-for`")


async def _last_look(bucket: "kvctl.Bucket", key: str, condition: Condition, limit: timedelta) -> "kvctl.Entry | None":
    """Read the key's last entry from the leader, as a watch can lose its connection without noticing.

    Raises UnreachableError if nothing answers, WaitExpired if permissions allow only the watch.
    """
    try:
        async with asyncio.timeout(limit.total_seconds()):
            return await bucket.last_entry(key, leader=True)
    except PermissionDenied:
        raise condition.expired(key, timedelta()) from None
    except (TimeoutError, UnreachableError) as error:
        reason = f": {error.message}" if isinstance(error, UnreachableError) else ""
        raise RequestTimeout(
            f"Could not read `{key}` after the timeout{reason}",
            hint=error.hint if isinstance(error, UnreachableError) else "Check the server with `kvctl context test`",
        ) from None


async def _until(bucket: "kvctl.Bucket", key: str, condition: Condition, *, once: bool) -> "kvctl.Entry | None":
    """Return the entry that meets the condition. Raises TimeoutError if it does not hold and `once` is set."""
    if once or not condition.missing:
        return await _until_watched(bucket, key, condition, once)
    ways = [
        asyncio.ensure_future(_until_watched(bucket, key, condition, once)),
        asyncio.ensure_future(_until_polled(bucket, key, condition)),
    ]
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _until_watched(bucket: "kvctl.Bucket", key: str, condition: Condition, once: bool) -> "kvctl.Entry | None":
    """Watch until an entry of the key, or its absence at the start, meets the condition."""
    last: kvctl.Entry | None = None
    async with await bucket.watch(key, follow=not once) as watcher, aclosing(watcher.batches()) as batches:
        async for batch in batches:
            for last in batch:
                if await _holds(bucket, key, condition, last):
                    return last
            if not batch and last is None and await _holds(bucket, key, condition, None):
                return None
    raise TimeoutError


async def _holds(bucket: "kvctl.Bucket", key: str, condition: Condition, entry: "kvctl.Entry | None") -> bool:
    """Return whether an entry of the watch meets the condition; a missing key is confirmed, as by a get."""
    if condition.missing and condition.holds(entry):
        entry = (await bucket.confirm({key: entry}))[key]
    return condition.holds(entry)


async def _until_polled(bucket: "kvctl.Bucket", key: str, condition: Condition) -> "kvctl.Entry | None":
    """Read the key periodically until it meets the condition."""
    while True:
        await asyncio.sleep(LOOK_AGAIN)
        with suppress(UnreachableError):
            entry = await bucket.last_entry(key, leader=True)
            if condition.holds(entry):
                return entry
