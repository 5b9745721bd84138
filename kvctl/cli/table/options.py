"""Parameters of the table commands."""

from typing import Annotated

import typer

from kvctl.cli.app import live_names
from kvctl.cli.app.session import Session
from kvctl.tables import table


def table_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete names of tables."""
    return live_names.tables(ctx.obj, incomplete)


def table_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete keys of the table that the argument `table` names, in the family of `--family`."""
    return live_names.table_keys(ctx.obj, ctx.params.get("table"), ctx.params.get("family"), incomplete)


TableName = Annotated[str, typer.Argument(metavar="TABLE", help="Name of the table", autocompletion=table_names)]
Key = Annotated[
    str, typer.Argument(metavar="KEY", help="Key: text, `hex:...` or `base64:...`", autocompletion=table_keys)
]
Family = Annotated[
    str | None,
    typer.Option("--family", metavar="F", help="Key family; `''` is the empty family, not the absence of one"),
]
Leader = Annotated[bool, typer.Option("--leader", help="Read from the leader, which is always current")]
IfVersion = Annotated[
    str | None,
    typer.Option("--if-version", metavar="V", help="Required version of the entry; `not-exists` if it must not exist"),
]


async def open_table(session: Session, name: str) -> "table.Table[bytes, bytes]":
    """Open the table. Raises UsageError, TableNotFound."""
    return await table.Table.open((await session.client()).api, name, read_only=session.context.read_only)
