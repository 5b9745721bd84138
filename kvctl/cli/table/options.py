"""Parameters of the table commands."""

from typing import TYPE_CHECKING, Annotated

import typer

from kvctl.cli.app.session import Session

if TYPE_CHECKING:
    from kvctl.tables.table import Table


def table_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes names of tables."""
    from kvctl.cli.app.live_names import tables

    return tables(ctx.obj, incomplete)


TableName = Annotated[str, typer.Argument(metavar="TABLE", help="Name of the table", autocompletion=table_names)]
Key = Annotated[str, typer.Argument(metavar="KEY", help="Key: text, `hex:...` or `base64:...`")]
Family = Annotated[
    str | None, typer.Option("--family", metavar="F", help="Key family; `''` is the empty one, which is not none")
]
Leader = Annotated[bool, typer.Option("--leader", help="Read from the leader, which is never behind")]
IfVersion = Annotated[
    str | None,
    typer.Option(
        "--if-version", metavar="V", help="Only while the entry has this version; `not-exists`: if there is none"
    ),
]


async def open_table(session: Session, name: str) -> "Table":
    """A handle on the table. Raises UsageError, TableNotFound."""
    from kvctl.tables.table import Table

    return await Table.open((await session.client()).api, name, read_only=session.context.read_only)
