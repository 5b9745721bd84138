"""`kvctl table keys` and `entries`: list a table in key order."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Annotated, Any, NamedTuple

import typer

from kvctl.cli.app.command import command
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import Encoding, number
from kvctl.cli.records import TABLE_ENTRY, TABLE_ENTRY_PAGE, TABLE_KEY, TABLE_KEY_PAGE, TABLE_NEXT
from kvctl.cli.table.options import Family, TableName, open_table
from kvctl.cli.table.views import ENTRIES, KEYS, entry_row, key_row
from kvctl.render.view import Column, View
from kvctl.tables import keys as tables_keys
from kvctl.tables import ranges

Prefix = Annotated[str | None, typer.Option("--prefix", metavar="K", help="Prefix of the keys")]
From = Annotated[str | None, typer.Option("--from", metavar="K", help="First key")]
To = Annotated[str | None, typer.Option("--to", metavar="K", help="Last key, inclusive")]
Limit = Annotated[int | None, number("--limit", help="Maximum number of entries; prints a token to resume from")]
After = Annotated[str | None, typer.Option("--after", metavar="TOKEN", help="Resume from a previous listing's token")]


@command(
    "table keys",
    examples=[
        "kvctl table keys users",
        "kvctl table keys users --family staff --prefix a",
        'kvctl table keys users --limit 100 --after "$token" -o json',
    ],
    see=["table entries", "help tables"],
    prints=(TABLE_KEY, TABLE_KEY_PAGE, TABLE_NEXT),
)
async def keys(
    session: Session,
    table: TableName,
    family: Family = None,
    prefix: Prefix = None,
    start: From = None,
    end: To = None,
    limit: Limit = None,
    after: After = None,
) -> None:
    """List keys with their versions, in byte order.

    Keys without a family come first, then one family after the other. If --limit ends the listing early, a token is
    printed, in JSON as `next`. Pass it to --after, now or later, with the same family, prefix and bounds.
    """
    shape = _Shape("keys", KEYS, TABLE_KEY.columns, key_row)
    await _scan(session, table, shape, _range(family, prefix, start, end), limit, after, values=False)


@command(
    "table entries",
    examples=["kvctl table entries users", "kvctl table entries users --from a --to b -o ndjson"],
    see=["table keys", "help tables"],
    prints=(TABLE_ENTRY, TABLE_ENTRY_PAGE, TABLE_NEXT),
)
async def entries(
    session: Session,
    table: TableName,
    family: Family = None,
    prefix: Prefix = None,
    start: From = None,
    end: To = None,
    limit: Limit = None,
    after: After = None,
    encoding: Encoding = None,
) -> None:
    """List entries, in byte order of their keys.

    An entry that exists during the complete listing appears exactly once; its value may be newer than the start of the
    listing. --limit and --after work as in `table keys`.
    """
    shape = _Shape("entries", ENTRIES, TABLE_ENTRY.columns, lambda entry: entry_row(entry, encoding))
    await _scan(session, table, shape, _range(family, prefix, start, end), limit, after, values=True)


class _Shape(NamedTuple):
    """Output shape of a listing: JSON field, columns of tables and of tsv, and row of an entry."""

    field: str
    columns: Sequence[Column]
    tsv: Sequence[str]
    row: Callable[[Any], dict[str, Any]]


async def _scan(
    session: Session, name: str, shape: _Shape, of: Any, limit: int | None, after: str | None, *, values: bool
) -> None:
    table = await open_table(session, name)
    token: str | None = None

    async def batches() -> AsyncGenerator[list[dict[str, Any]], None]:
        nonlocal token
        async with aclosing(table.pages(of, values=values, after=after, limit=limit)) as pages:
            async for page in pages:
                token = page.next
                yield [shape.row(entry) for entry in page.entries]
        if token is not None and session.output == "ndjson":
            yield [{"next": token}]

    if session.output in ("json", "yaml"):
        rows = [row async for batch in batches() for row in batch]
        session.show(View(columns=shape.columns, rows=[{shape.field: rows, "next": token}], single=True))
        return
    await session.stream(View(columns=shape.columns, tsv=shape.tsv, name="key", empty="No entries"), batches())
    if token is not None and session.output != "ndjson":
        session.note(f"More entries follow; resume with --after {token}", always=True)


def _range(family: str | None, prefix: str | None, start: str | None, end: str | None) -> Any:
    def bound(text: str | None) -> bytes | None:
        return None if text is None else tables_keys.parse_key(text)

    return ranges.Range(
        ranges.Families.ALL if family is None else family,
        prefix=bound(prefix) or b"",
        start=bound(start),
        end=bound(end),
    )
