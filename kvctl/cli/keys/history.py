"""`kvctl history`: all stored entries of keys."""

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import Filters, KeyedName
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import Encoding, Headers, Literal, check_filters, number, open_bucket
from kvctl.cli.keys.output.entry_rows import Shape
from kvctl.cli.keys.output.entry_stream import show_entries

if TYPE_CHECKING:
    from kvctl.kv.entry import Entry

app = group()


@command(
    app,
    "history",
    examples=["kvctl history orders NEW.7", "kvctl history orders 'NEW.*' --limit 20 -o ndjson"],
    see=["get", "revert", "watch"],
)
async def history(
    session: Session,
    bucket: KeyedName,
    filters: Filters = None,
    limit: Annotated[int | None, number("--limit", help="Maximum number of entries, the newest")] = None,
    headers: Headers = False,
    encoding: Encoding = None,
    literal: Literal = False,
) -> None:
    """Show earlier values of keys.

    Prints every entry that the bucket still holds, oldest first, including deletions: per key, as many as the bucket's
    history allows. --limit keeps the newest matching entries, still oldest first.

    At a ref of a repository (NAME@REF) there is one entry per key for each commit that changed it. Staged changes of
    the branch come last.
    """
    if "@" in bucket:
        from kvctl.cli.keys.at_ref import ref_read, ref_rows

        ref_rows.refuse(bucket, headers=headers, literal=literal)
        await ref_read.history(session, bucket, filters, limit, encoding)
        return
    wanted = check_filters(filters, literal=literal)
    source = await open_bucket(session, bucket)
    shape = Shape(encoding=encoding, headers=headers)

    async def batches() -> AsyncGenerator[list["Entry"], None]:
        newest: deque[Entry] = deque(maxlen=limit)
        async with aclosing(source.history_batches(*wanted, literal=literal and bool(wanted))) as entries:
            async for batch in entries:
                if limit is None:
                    yield batch
                else:
                    newest.extend(batch)
        yield list(newest)

    await show_entries(session, shape, batches(), empty="No entries")
