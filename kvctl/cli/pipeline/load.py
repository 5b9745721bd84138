"""`kvctl pipeline load`: import of an export or a table into a bucket."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from kvctl.cli.app.command import command
from kvctl.cli.app.options import DryRun, Force, argument, bucket_names, flag, one_of, option
from kvctl.cli.app.session import Session
from kvctl.cli.bucket.options import Given, Placement
from kvctl.cli.facts import row_of
from kvctl.cli.keys.arguments import check_writable
from kvctl.cli.pipeline.export import hashing
from kvctl.cli.pipeline.runner import OnSpark, StorageOptions, run_job, source_options
from kvctl.cli.records import PIPELINE_LOADED
from kvctl.errors import ConflictError, PartlyDone, UsageError
from kvctl.kv import config, settings
from kvctl.kv.names import check_bucket
from kvctl.phrases import counted
from kvctl.pipeline import options as pipeline_options
from kvctl.pipeline.jobs import load as load_job
from kvctl.pipeline.tables import file_rows, stored_table
from kvctl.pipeline.tables.origin import reading_hint
from kvctl.pipeline.tables.storage import TablePlace
from kvctl.render.fields import columns
from kvctl.render.view import document

Uri = Annotated[str, argument("URI", "Export or capture, or file, folder or URL of a table")]
Into = Annotated[str, option("--into", "BUCKET", "Bucket to write into", bucket_names)]
KeyColumn = Annotated[str | None, option("--key", "COL", "Table column that holds the key; `key` by default")]
ValueColumn = Annotated[str | None, option("--value", "COL", "Table column that holds the value; `value` by default")]
TableFormat = Annotated[
    str | None,
    option(
        "--format",
        "FORMAT",
        "Table format: `delta`, `parquet`, `json`, `csv` or `tsv`; by default from its extension",
        one_of("delta", "parquet", "json", "csv", "tsv"),
    ),
]
Create = Annotated[bool, flag("--create", "Create the bucket with the configuration of the export")]
IfDifferent = Annotated[bool, flag("--if-different", "Write only values that differ from the bucket's")]
DeadLetter = Annotated[str | None, option("--dead-letter", "URI", "Folder or URL for rejected rows, with the causes")]


@command(
    "pipeline load",
    examples=[
        "kvctl pipeline load orders.export --into orders-copy --create",
        "kvctl pipeline load orders.export --into orders --if-different",
        "kvctl pipeline load stock.parquet --into stock --key sku --value count",
        "kvctl pipeline load s3://lake/stock --into stock --format delta --key sku --value count",
    ],
    see=["pipeline export", "load", "help pipeline"],
    prints=(PIPELINE_LOADED,),
    forces=lambda: ("shorter-history",),
)
async def load(
    session: Session,
    uri: Uri,
    into: Into,
    key: KeyColumn = None,
    value: ValueColumn = None,
    format: TableFormat = None,
    create: Create = False,
    if_different: IfDifferent = False,
    dead_letter: DeadLetter = None,
    *,
    placement: Placement,
    dry_run: DryRun = False,
    force: Force = None,
    storage_option: StorageOptions = None,
    target: OnSpark,
) -> None:
    """Load an export, a capture or a table into a bucket.

    The files of an export are checked first. If one is damaged, nothing is written (4). With --key or --value, URI is a
    table of your own: a Delta table, Parquet, JSON with one object per line, or CSV or TSV with a header. Text is
    written as UTF-8, numbers as text, nested values as JSON. The columns `encoding` (`base64`) and `ttl` (seconds) are
    applied.

    --create creates the bucket with the export's configuration, under the given name. Without it, the bucket must exist
    (3). Revisions and times are set by the bucket. An export of history is loaded in the order of each key's entries;
    the bucket must keep as long a history, unless --force shorter-history is given. Entries that already end a key's
    history are not written again.

    To complete an interrupted load, run it again. Rows that cannot be written are counted, the first ones are listed,
    and the command exits 7. The other rows are written.
    """
    check_bucket(into) if dry_run else check_writable(session, into)
    changes = _changes(create, placement)
    options = pipeline_options.parse({"bucket": into, **source_options(session, target)})
    source = await open_input(session, TablePlace.parse(uri, storage_option or ()), key, value, format)
    order = load_job.Order(
        create=create, changes=changes, shorter_history="shorter-history" in (force or ()), dry_run=dry_run
    )
    options = replace(
        options,
        if_different=if_different and not source.history,
        dead_letter=TablePlace.parse(dead_letter, storage_option or ()) if dead_letter else None,
    )
    job = partial(load_job.load, source=source, target=options, order=order)
    left = f"Interrupted: bucket `{into}` may hold only part of the rows; run the command again to complete it"
    loaded, seconds = await run_job(session, target, f"Loading {into}", job, incomplete=left)
    row = row_of(PIPELINE_LOADED, loaded, bucket=into, path=source.place.uri, seconds=seconds)
    session.show(document(row, *_LOADED, tsv=PIPELINE_LOADED.columns, name="bucket"))
    if loaded.rejected and dry_run:
        session.warn(_rejected_rows(loaded, "would be"))
    elif loaded.rejected:
        raise _rejected(loaded, dead_letter)


async def open_input(
    session: Session, place: TablePlace, key: str | None, value: str | None, format: str | None
) -> "load_job.Input":
    """Open a table if a column or format is given, else an export after verifying it. Raises like `open_export`."""
    if key or value or format:
        return await asyncio.to_thread(load_job.open_table, place, key=key, value=value, format=format)
    await asyncio.to_thread(_check_export, place)
    total = (await asyncio.to_thread(stored_table.open_table, place)).bytes
    return await hashing(session, f"Verifying {place.name}", total, partial(load_job.open_export, place))


def _check_export(place: TablePlace) -> None:
    """Raise UsageError for a data file, ConflictError for a folder of data files that is not an export."""
    if (place.path is not None and not place.path.exists()) or stored_table.is_table(place):
        return
    format = file_rows.format_of(place)
    if format is None:
        return
    problem = f"`{place}` is not a complete export: it has no `{stored_table.MANIFEST}`"
    hint = reading_hint(file_rows.column_names(place, format))
    file = place.path is None or place.path.is_file()
    raise UsageError(problem, hint=hint) if file else ConflictError(problem, hint=hint)


_LOADED = columns("bucket path rows written unchanged rejected seconds")


def _rejected(found: "load_job.LoadResult", folder: str | None) -> PartlyDone:
    """Build the error for rejected rows, which are in `folder`, if any."""
    kept = f"the rejected rows are in `{folder}`" if folder else "use `--dead-letter URI` to keep the rejected rows"
    text = _rejected_rows(found, "was" if found.rejected == 1 else "were")
    return PartlyDone(text, hint=f"The other rows were written; {kept}")


def _rejected_rows(found: "load_job.LoadResult", verb: str) -> str:
    """Describe the number of rejected rows and the first of them."""
    return f"{counted(found.rejected, 'row')} {verb} rejected: {found.rejections}"


def _changes(create: bool, placement: Given) -> dict[str, Any]:
    if placement and not create:
        option = settings.SETTINGS[next(iter(placement))].option_name
        raise UsageError(f"`--{option}` requires `--create`")
    return config.edited({}, placement)
