"""`kvctl history`: all stored entries of keys."""

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from kvctl.cli.app.command import command
from kvctl.cli.app.options import Filters, KeyedName
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import Encoding, Headers, Literal, Since, check_filters, number
from kvctl.cli.keys.output.entry_rows import Shape
from kvctl.cli.keys.target.interface import Reading
from kvctl.cli.keys.target.target import parse_target
from kvctl.cli.records import ENTRY, ENTRY_AT_REF


@command(
    "history",
    examples=[
        "kvctl history orders NEW.7",
        "kvctl history orders 'NEW.*' --limit 20 -o ndjson",
        "kvctl history orders --since -15m",
    ],
    see=["get", "revert", "watch"],
    prints=(ENTRY, ENTRY_AT_REF),
)
async def history(
    session: Session,
    bucket: KeyedName,
    filters: Filters = None,
    since: Since = None,
    limit: Annotated[int | None, number("--limit", help="Maximum number of entries, the newest")] = None,
    headers: Headers = False,
    encoding: Encoding = None,
    literal: Literal = False,
) -> None:
    """Show earlier values of keys.

    Prints every entry that the bucket still holds, oldest first, including deletions: per key, as many as the bucket's
    history allows. --limit keeps the newest matching entries, still oldest first. --since keeps those written at TIME
    or later (RFC 3339, or `-15m` for 15 minutes ago by the server's clock).

    At a ref of a repository (NAME@REF) there is one entry per key for each commit that changed it. Staged changes of
    the branch come last. There --since compares the times of the commits.
    """
    target = parse_target(bucket)
    target.refuse(headers=headers, literal=literal)
    wanted = check_filters(filters, literal=literal)
    reader = await target.reader(session, Reading(literal=literal, shape=Shape(encoding=encoding, headers=headers)))

    async def batches() -> AsyncGenerator[list[Any], None]:
        newest: deque[Any] = deque(maxlen=limit)
        async with aclosing(reader.history(wanted, since)) as changes:
            async for batch in changes:
                if limit is None:
                    yield batch
                else:
                    newest.extend(batch)
        yield list(newest)

    await reader.show_history(session, batches())
