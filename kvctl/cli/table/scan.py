"""Going through a table: keys, entries."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Annotated, Any

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.session import Session
from kvctl.cli.keys.arguments import Encoding, number
from kvctl.cli.table.options import Family, TableName, open_table
from kvctl.cli.table.views import (
    ENTRIES,
    KEYS,
    entry_row,
    key_row,
)
from kvctl.render.view import View

app = group()

Prefix = Annotated[str | None, typer.Option("--prefix", metavar="K", help="Only keys that begin so")]
From = Annotated[str | None, typer.Option("--from", metavar="K", help="From this key on")]
To = Annotated[str | None, typer.Option("--to", metavar="K", help="Up to this key, which is one of them")]
Limit = Annotated[int | None, number("--limit", help="No more than these; prints a token that goes on after them")]
After = Annotated[
    str | None, typer.Option("--after", metavar="TOKEN", help="Go on after what another listing ended with")
]


@command(
    app,
    "keys",
    examples=[
        "kvctl table keys users",
        "kvctl table keys users --family staff --prefix a",
        'kvctl table keys users --limit 100 --after "$token" -o json',
    ],
    see=["table entries", "help tables"],
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
    """List keys with their versions, in the order of their bytes.

    Families come one after the other, what has none first. With --limit a token is printed when there is more, in JSON
    as `next`; --after takes it, also in another session, for the same family, prefix and bounds.
    """
    shape = _Shape("keys", KEYS, key_row)
    await _scan(session, table, shape, _range(family, prefix, start, end), limit, after, values=False)


@command(
    app,
    "entries",
    examples=["kvctl table entries users", "kvctl table entries users --from a --to b -o ndjson"],
    see=["table keys", "help tables"],
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
    """List entries, in the order of the bytes of their keys.

    An entry that lives through the listing appears once; its value may be newer than when the listing began. --limit
    and --after work as in `table keys`.
    """
    shape = _Shape("entries", ENTRIES, lambda entry: entry_row(entry, encoding))
    await _scan(session, table, shape, _range(family, prefix, start, end), limit, after, values=True)


class _Shape:
    """How one of the two shows what it lists."""

    def __init__(self, field: str, columns: list[Any], row: Callable[[Any], dict[str, Any]]) -> None:
        self.field = field
        self.columns = columns
        self.row = row


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
    await session.stream(View(columns=shape.columns, name="key", empty="Nothing is there"), batches())
    if token is not None and session.output != "ndjson":
        session.note(f"There is more: --after {token}", always=True)


def _range(family: str | None, prefix: str | None, start: str | None, end: str | None) -> Any:
    from kvctl.tables.keys import parse_key
    from kvctl.tables.ranges import Families, Range

    def bound(text: str | None) -> bytes | None:
        return None if text is None else parse_key(text)

    return Range(
        Families.ALL if family is None else family, prefix=bound(prefix) or b"", start=bound(start), end=bound(end)
    )
