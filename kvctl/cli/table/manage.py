"""Tables: create, inspect, change, seal, delete."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvctl.cli.app.command import command, group
from kvctl.cli.app.parameters import (
    DryRun,
    Force,
    Yes,
    duration,
)
from kvctl.cli.app.session import Session
from kvctl.cli.bucket.options import (
    Cluster,
    Description,
    HeadersOnly,
    MaxBytes,
    MaxValueSize,
    Metadata,
    Replicas,
    Republish,
    Storage,
    Tags,
    Ttl,
    settings,
)
from kvctl.cli.keys.arguments import check_forced, number
from kvctl.cli.table import entries, scan
from kvctl.cli.table.options import TableName
from kvctl.cli.topology.replicas import tell
from kvctl.errors import ReadOnly, UsageError

if TYPE_CHECKING:
    from kvctl.kv.catalog import Edit

app = group(
    "table",
    help="""Key-value tables: keys of any bytes, families, versions, atomic batches

    A table is for entries that belong together: it takes keys and values of any bytes, writes up to 1,000 entries
    together or not at all, each on condition of its version, and is gone through in the order of its keys.
    """,
)
app.entries.update(entries.app.entries)
app.entries.update(scan.app.entries)

NewName = Annotated[str, typer.Argument(metavar="NAME", help="Name: letters, digits, `_` and `-`")]


@command(
    app,
    "create",
    examples=["kvctl table create users", "kvctl table create users --partitions 64 --replicas 3"],
    see=["table show", "help tables"],
)
async def create(
    session: Session,
    name: NewName,
    partitions: Annotated[
        int | None, number("--partitions", help="Number of partitions, which cannot be changed later (default 16)")
    ] = None,
    partition_streams: Annotated[
        bool, typer.Option("--partition-streams", help="Make every partition a stream of its own")
    ] = False,
    description: Description = None,
    ttl: Ttl = None,
    replicas: Replicas = None,
    storage: Storage = None,
    max_value_size: MaxValueSize = None,
    max_bytes: MaxBytes = None,
    compress: Annotated[bool, typer.Option("--compress", help="Compress on disk (s2)")] = False,
    cluster: Cluster = None,
    tags: Tags = None,
    metadata: Metadata = None,
    republish: Republish = None,
    republish_headers_only: HeadersOnly = None,
    dry_run: DryRun = False,
) -> None:
    """Create a table.

    The number of partitions never changes. All of them share one stream, so that a batch may hold any keys;
    --partition-streams gives each its own, so that writes spread over servers: then a batch stays within one partition,
    where all keys of a family are.

    A table that exists with the same configuration is left as it is; another configuration is an error.
    """
    from kvctl.cli.topology.replicas import show_config
    from kvctl.tables import catalog
    from kvctl.tables.config import TableConfig

    given = settings(
        description=description, ttl=ttl, replicas=replicas, storage=storage, max_value_size=max_value_size,
        max_bytes=max_bytes, compress=compress or None, cluster=cluster, tags=tags, metadata=metadata,
        republish=republish, republish_headers_only=republish_headers_only,
    )  # fmt: skip
    config = TableConfig(name, partitions=partitions or 16, apart=partition_streams, settings=given)
    config.head(1)  # what is wrong with the words is found before anything is sent
    if dry_run:
        show_config(session, config.head(1))
        return
    found, fresh = await catalog.create(await _writable(session), config)
    text = f"Created table `{name}`" if fresh else f"Table `{name}` exists already, with the same configuration"
    row = {"name": name, "stream": found.info["config"]["name"], "partitions": config.partitions, "changed": fresh}
    tell(session, row, text, always=not fresh)


@command(app, "ls", examples=["kvctl table ls", "kvctl table ls -o name"], see=["table show"])
async def ls(session: Session) -> None:
    """List tables."""
    from kvctl.cli.table.views import TABLES, table_row
    from kvctl.render.view import View
    from kvctl.tables import catalog

    api = (await session.client()).api
    rows = []
    for found in await catalog.listing(api):
        rows.append(table_row(found, [info async for _, info in catalog.partitions(api, found)]))
    session.show(View(columns=TABLES, rows=rows, empty="No tables; `kvctl table create NAME` makes one"))


@command(app, "show", examples=["kvctl table show users", "kvctl table show users -o json"], see=["table ls"])
async def show(session: Session, table: TableName) -> None:
    """Show a table, partition by partition.

    RANGE are the hashes that belong to a partition. ENTRIES counts what was removed in the last hour as well.
    """
    from kvctl.cli.table.views import table_document
    from kvctl.tables import catalog

    api = (await session.client()).api
    session.show(await table_document(api, await catalog.find(api, table)))


@command(
    app,
    "edit",
    examples=["kvctl table edit users --description 'People' --max-bytes 10GB", "kvctl table edit users --clear ttl"],
    see=["table create", "table show"],
)
async def edit(
    session: Session,
    table: TableName,
    partitions: Annotated[
        int | None, number("--partitions", help="Refused if it is another number: partitions never change")
    ] = None,
    description: Description = None,
    ttl: Ttl = None,
    replicas: Replicas = None,
    max_value_size: MaxValueSize = None,
    max_bytes: MaxBytes = None,
    compress: Annotated[bool | None, typer.Option("--compress/--no-compress", help="Compress on disk (s2)")] = None,
    cluster: Cluster = None,
    tags: Tags = None,
    metadata: Metadata = None,
    clear: Annotated[
        list[str] | None,
        typer.Option("--clear", metavar="FIELD", help="Give a field its default again: an option's name; repeatable"),
    ] = None,
    dry_run: DryRun = False,
    force: Force = None,
) -> None:
    """Change settings of a table.

    The difference is shown first. What would lose entries is refused unless --force lossy-edit is given. The number of
    partitions, and whether each is a stream, can never change.
    """
    from kvctl.tables import catalog
    from kvctl.topology.hazards import hazards

    changes = settings(
        description=description, ttl=ttl, replicas=replicas, max_value_size=max_value_size, max_bytes=max_bytes,
        compress=compress, cluster=cluster, tags=tags, metadata=metadata,
    )  # fmt: skip
    check_forced(force, hazards.LOSSY_EDIT)
    _check_clear(clear)
    if not changes and not clear and partitions is None:
        raise UsageError("Nothing to change", hint="`kvctl table edit --help` lists the settings")
    api = (await session.client()).api
    await _refuse_repartition(session, table, partitions)
    edits = await catalog.plan_edit(api, table, changes, clear or ())
    found = await _show_differences(session, edits)
    if dry_run:
        return
    hazards.refuse(found, force, f"The edit of table `{table}` would lose entries")
    await catalog.apply_edit(await _writable(session), edits)
    changed = any(edit.differences for edit in edits)
    text = f"Changed table `{table}`" if changed else f"Table `{table}` is like that already"
    tell(session, {"name": table, "changed": changed}, text, always=not changed)


@command(app, "seal", examples=["kvctl table seal users --yes"], see=["table delete", "table show"])
async def seal(session: Session, table: TableName, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Make a table permanently read-only.

    Entries stay and can be read; no server lets a sealed table be opened again. Deleting the whole table goes on to be
    possible.
    """
    from kvctl.tables import catalog

    api = await _writable(session)
    found = await catalog.find(api, table)
    if not dry_run and not found.sealed:
        await session.confirm(f"Seal table `{table}`? It will be permanently read-only", yes=yes)
    changed = not found.sealed if dry_run else await catalog.seal(api, table)  # also completes an interrupted one
    done = f"Would seal table `{table}`" if dry_run else f"Sealed table `{table}`"
    text = done if changed else f"Table `{table}` is sealed already"
    tell(session, {"name": table, "sealed": True, "changed": changed}, text, always=dry_run or not changed)


@command(
    app,
    "compact",
    examples=["kvctl table compact users --dry-run", "kvctl table compact users --older-than 30d"],
    see=["table remove", "bucket compact"],
)
async def compact(
    session: Session,
    table: TableName,
    older_than: Annotated[
        timedelta | None, duration("--older-than", help="Minimum age of the markers that are removed")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Remove the markers that removed entries leave.

    Servers up to 2.15 have a fault (nats-server issue 8505): killed or crashed within the next minutes, they may bring
    back an entry whose marker was removed. Compact a table when its server runs quietly, or keep the markers where that
    would harm.
    """
    from kvctl.tables import marker_cleanup
    from kvctl.tables.table import Table

    opened = await Table.open(await _writable(session), table)
    found = await marker_cleanup.find(opened, older_than=older_than or timedelta())
    count = sum(len(one.entries) for one in found)
    if not dry_run:
        await marker_cleanup.remove(opened, found)
    text = f"{'Would remove' if dry_run else 'Removed'} {count} markers from table `{table}`"
    tell(session, {"name": table, "markers": count, "changed": bool(count) and not dry_run}, text, always=dry_run)


@command(app, "delete", examples=["kvctl table delete users"], see=["table remove", "table ls"])
async def delete(session: Session, table: TableName, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Delete a table with everything it holds.

    One that is not complete, because its creation or deletion was interrupted, is cleared away too. A single entry is
    removed by `kvctl table remove`.
    """
    from kvctl.tables import catalog

    api = await _writable(session)
    found = await catalog.find(api, table, incomplete=True)
    if dry_run:
        tell(session, {"name": table, "streams": found.streams}, f"Would delete table `{table}`", always=True)
        return
    await session.confirm(f"Delete table `{table}` with all its entries?", yes=yes)
    await catalog.delete(api, table)
    tell(session, {"name": table, "changed": True}, f"Deleted table `{table}`")


async def _writable(session: Session) -> Any:
    if session.context.read_only:
        raise ReadOnly("The connection is read-only", hint="`--read-only` or the context's `read_only` is set")
    return (await session.client()).api


def _check_clear(clear: list[str] | None) -> None:
    from kvctl.tables.config import SETTINGS

    for name in clear or ():
        field = name.replace("-", "_")
        if field not in SETTINGS and field != "placement" and not name.startswith("metadata."):
            raise UsageError(f"`{name}` is not a field of a table that can be cleared")


async def _refuse_repartition(session: Session, table: str, partitions: int | None) -> None:
    from kvctl.errors import RefusedError
    from kvctl.tables import catalog

    if partitions is None:
        return
    there = (await catalog.find((await session.client()).api, table)).config.partitions
    if partitions != there:
        raise RefusedError(
            f"Table `{table}` has {there} partitions, which cannot be changed",
            hint="Make another table, and put the entries there",
        )


async def _show_differences(session: Session, edits: "list[Edit]") -> list[Any]:
    """The differences on stderr, and the hazards of all streams."""
    from kvctl.topology.discover import links
    from kvctl.topology.hazards import hazards

    api = (await session.client()).api
    for text in dict.fromkeys(str(item) for edit in edits for item in edit.differences):
        session.note(text, always=True)
    found = []
    for edit in edits:
        cost = await links.cost(api, edit.before, edit.info, edit.after)
        found += hazards.lossy(edit.before, edit.after, cost)
    return found
