"""`kvctl table`: create, inspect, edit, seal, compact and delete tables."""

from datetime import timedelta
from typing import Annotated, Any

import kvctl
from kvctl.cli import flows, records
from kvctl.cli.app.command import command, group
from kvctl.cli.app.options import DryRun, Force, NewName, Yes, deletes, duration, flag, number
from kvctl.cli.app.session import Session
from kvctl.cli.bucket.options import Given, clear_option, setting_options
from kvctl.cli.flows import show_config, show_creation, show_deletion, show_planned, show_result, show_sealed
from kvctl.cli.table import views
from kvctl.cli.table.entries import TableName
from kvctl.errors import RefusedError, UsageError
from kvctl.phrases import counted
from kvctl.render.view import View, document
from kvctl.tables import catalog as tables_catalog
from kvctl.tables import config as tables_config
from kvctl.tables import table as tables_table
from kvctl.topology.hazards import hazards, lossy_edit

group(
    "table",
    """Key-value tables: keys of any bytes, families, versions, atomic batches

    A table stores entries that belong together. Keys and values are any bytes. Up to 1,000 entries are written in one
    atomic batch, each with an optional condition on its version. Entries are listed in key order.
    """,
)

TableSettings = Annotated[Given, setting_options("table")]
TableEdit = Annotated[Given, setting_options("table", edit=True)]


@command(
    "table create",
    examples=["kvctl table create users", "kvctl table create users --partitions 64 --replicas 3"],
    see=["table show", "help tables"],
    prints=(records.TABLE_CREATION,),
)
async def create(
    session: Session,
    name: NewName,
    partitions: Annotated[
        int | None, number("--partitions", "Number of partitions, which cannot be changed later [default: 16]")
    ] = None,
    partition_streams: Annotated[bool, flag("--partition-streams", "Store each partition in its own stream")] = False,
    *,
    settings: TableSettings,
    dry_run: DryRun = False,
) -> None:
    """Create a table.

    The number of partitions cannot be changed later. By default all partitions share one stream, and a batch may hold
    any keys. With --partition-streams each partition has its own stream, which spreads writes over servers. A batch
    must then stay within one partition; all keys of a family are in the same one.

    If the table already exists with this configuration, nothing changes. With another configuration the command fails.
    """
    config = kvctl.TableConfig(name, partitions=partitions or 16, apart=partition_streams, settings=settings)
    config.head(1)  # usage errors are raised before anything is sent
    if dry_run:
        apart = ", each in a stream of its own" if partition_streams else ""
        remarks = [f"has {counted(config.partitions, 'partition')}{apart}"]
        show_config(session, f"table `{name}`", config.head(1), remarks=remarks)
        return
    found, fresh = await tables_catalog.create(await _writable(session), config)
    row = {"name": name, "stream": found.info["config"]["name"], "partitions": config.partitions}
    show_creation(session, f"table `{name}`", row, created=fresh)


@command(
    "table ls",
    examples=["kvctl table ls", "kvctl table ls -o name"],
    see=["table show"],
    prints=(records.TABLE_ROW,),
    listing=True,
)
async def ls(session: Session) -> None:
    """List tables."""
    api = (await session.client()).api
    rows = []
    for found in await tables_catalog.listing(api):
        rows.append(views.table_row(found, [info async for _, info in tables_catalog.partitions(api, found)]))
    empty = "No tables; create one with `kvctl table create NAME`"
    session.show(View(columns=views.TABLES, rows=rows, empty=empty))


@command(
    "table show",
    examples=["kvctl table show users", "kvctl table show users -o json"],
    see=["table ls"],
    prints=(records.TABLE,),
    in_pipe="fields",
)
async def show(session: Session, table: TableName) -> None:
    """Show a table and its partitions.

    RANGE is the range of key hashes in a partition. ENTRIES includes removed entries until `kvctl table compact`.
    """
    api = (await session.client()).api
    session.show(await views.table_document(api, await tables_catalog.find(api, table)))


@command(
    "table edit",
    examples=["kvctl table edit users --description 'People' --max-bytes 10GB", "kvctl table edit users --clear ttl"],
    see=["table create", "table show"],
    prints=(records.STREAM_EDIT, records.DIFFERENCE),
    forces=lambda: (hazards.LOSSY_EDIT,),
)
async def edit(
    session: Session,
    table: TableName,
    partitions: Annotated[int | None, number("--partitions", "Number of partitions, which cannot be changed")] = None,
    *,
    settings: TableEdit,
    clear: Annotated[list[str] | None, clear_option("table")] = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Change settings of a table.

    The difference is shown first. An edit that would lose entries is refused without --force lossy-edit. The number of
    partitions and --partition-streams cannot be changed.
    """
    for name in clear or ():
        field = name.replace("-", "_")
        if field not in tables_config.SETTINGS and field != "placement" and not name.startswith("metadata."):
            raise UsageError(f"`{name}` is not a table field that can be cleared")
    if not settings and not clear and partitions is None:
        raise UsageError("Nothing to change", hint="List the settings with `kvctl table edit --help`")
    api = await _writable(session, dry_run=dry_run)
    await _refuse_repartition(session, table, partitions)
    edits = await tables_catalog.plan_edit(api, table, settings, clear or ())
    costs = [(edit, await lossy_edit.cost(api, edit.before, edit.info, edit.after)) for edit in edits]
    await flows.edit(
        session,
        f"table `{table}`",
        {"name": table},
        list({item.field: item for edit in edits for item in edit.differences}.values()),
        lambda: tables_catalog.apply_edit(api, edits),
        dry_run=dry_run,
        needed=[hazard for edit, cost in costs for hazard in lossy_edit.lossy(edit.before, edit.after, cost)],
        force=force,
        refusal=f"The edit of table `{table}` would lose entries",
    )


@command(
    "table seal", examples=["kvctl table seal users --yes"], see=["table delete", "table show"], prints=(records.SEAL,)
)
async def seal(session: Session, table: TableName, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Make a table permanently read-only.

    Entries can still be read. A sealed table cannot be unsealed, but it can be deleted.
    """
    api = await _writable(session, dry_run=dry_run)
    found = await tables_catalog.find(api, table)
    if not dry_run and not found.sealed:
        await session.confirm(f"Seal table `{table}`? This is permanent: the table becomes read-only.", yes=yes)
    changed = (
        not found.sealed if dry_run else await tables_catalog.seal(api, table)
    )  # also completes an interrupted one
    show_sealed(session, "table", table, changed=changed, dry_run=dry_run)


@command(
    "table compact",
    examples=["kvctl table compact users --dry-run", "kvctl table compact users --older-than 30d"],
    see=["table remove", "bucket compact"],
    prints=(records.TABLE_COMPACTION,),
)
async def compact(
    session: Session,
    table: TableName,
    older_than: Annotated[timedelta | None, duration("--older-than", "Minimum age of removed markers")] = None,
    dry_run: DryRun = False,
) -> None:
    """Remove the markers of removed entries.

    Servers up to 2.15 have a bug (nats-server issue 8505): if a server is killed or crashes within minutes after a
    compaction, a removed entry may reappear. Compact a table while its server is stable, or keep the markers if such an
    entry would do harm.
    """
    opened = await tables_table.Table.open(await _writable(session, dry_run=dry_run), table)
    found = await opened.find_markers(older_than=older_than or timedelta())
    count = sum(len(one.entries) for one in found)
    if not dry_run:
        await opened.remove_markers(found)
    row = {"name": table, "markers": count, "changed": bool(count) and not dry_run}
    if dry_run:
        removed = [f"removes {counted(count, 'marker')}"]
        show_planned(session, "change", f"table `{table}`", document(row, name="name"), remarks=removed)
    else:
        show_result(session, row, f"Removed {counted(count, 'marker')} from table `{table}`")


@command(
    "table delete",
    examples=["kvctl table delete users"],
    see=["table remove", "table ls"],
    prints=(records.CHANGE, records.TABLE_DELETION_PLAN),
)
@deletes("table")
async def delete(session: Session, table: TableName, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Delete a table with all its entries.

    A table whose creation or deletion was interrupted is deleted, too. To remove a single entry, use `kvctl table
    remove`.
    """
    api = await _writable(session, dry_run=dry_run)
    found = await tables_catalog.find(api, table, incomplete=True)
    if dry_run:
        row = {"name": table, "streams": [{"name": stream} for stream in found.streams]}
        show_deletion(session, f"table `{table}`", row, "deletes all its entries")
        return
    await session.confirm(f"Delete table `{table}` with all its entries?", yes=yes)
    await tables_catalog.delete(api, table)
    show_result(session, {"name": table, "changed": True}, f"Deleted table `{table}`")


async def _writable(session: Session, *, dry_run: bool = False) -> Any:
    if not dry_run:
        session.context.require_writable()
    return (await session.client()).api


async def _refuse_repartition(session: Session, table: str, partitions: int | None) -> None:
    if partitions is None:
        return
    there = (await tables_catalog.find((await session.client()).api, table)).config.partitions
    if partitions != there:
        raise RefusedError(
            f"Table `{table}` has {there} partitions, which cannot be changed",
            hint="Create another table, and copy the entries there",
        )
