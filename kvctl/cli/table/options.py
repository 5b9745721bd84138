"""Parameters of the table commands."""

from typing import TYPE_CHECKING, Annotated

import typer

from kvctl.cli.app.session import Session

if TYPE_CHECKING:
    from kvctl.tables.table import Table


def table_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete names of tables."""
    from kvctl.cli.app.live_names import tables

    return tables(ctx.obj, incomplete)


def table_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete keys of the table that the argument `table` names, in the family of `--family`."""
    from kvctl.cli.app.live_names import table_keys

    return table_keys(ctx.obj, ctx.params.get("table"), ctx.params.get("family"), incomplete)


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


async def open_table(session: Session, name: str) -> "Table":
    """Open the table. Raises UsageError, TableNotFound."""
    from kvctl.tables.table import Table

    return await Table.open((await session.client()).api, name, read_only=session.context.read_only)
