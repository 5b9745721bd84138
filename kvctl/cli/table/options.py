"""Parameters of the table commands."""

from typing import Annotated

import typer

from kvctl.cli.app.options import live
from kvctl.cli.app.session import Session
from kvctl.tables import table

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="Name of the table", autocompletion=live("tables"))]
Key = Annotated[
    str, typer.Argument(metavar="KEY", help="Key: text, `hex:...` or `base64:...`", autocompletion=live("table_keys"))
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
